"""Learning from an iterator: the batches whose receipts came out are learned, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neverseen import (
    AnalyticClassifier,
    ForgettingModel,
    IdTakenError,
    InputError,
    Key,
    Keyring,
    RandomProjection,
    learn_batches,
    store,
)
from neverseen.backbones import Precomputed
from tests.samples import clustered

X, Y = clustered("batches", 40, 6, 3)
KEYS = Keyring(Key(bytes([7] * 32)), [Key(bytes([8] * 32))])


def new() -> ForgettingModel:
    return ForgettingModel(
        Precomputed(6), AnalyticClassifier(RandomProjection(24, seed=1), 2**9, hardware="numpy"), KEYS
    )


def learned(count: int) -> str:
    model = new()
    model.learn(X[:count], Y[:count])
    return model.digest()


def parts(*ends: int) -> list[slice]:
    return [slice(*pair) for pair in zip((0, *ends), ends, strict=False)]


def test_batches_of_every_form_are_learned() -> None:
    model, places = new(), parts(10, 20, 25, 40)
    ids, owners = [f"s{row}" for row in range(40)], ["ada"] * 40
    batches: list[Any] = [
        (X[places[0]], Y[places[0]]),
        [X[places[1]], Y[places[1]].tolist(), ids[places[1]]],
        (X[places[2]], Y[places[2]], iter(ids[places[2]]), owners[places[2]]),
        {"labels": Y[places[3]], "samples": X[places[3]], "owners": owners[places[3]]},
    ]
    receipts = [receipt for each in learn_batches(model, iter(batches)) for receipt in each]
    assert model.digest() == learned(40)
    assert model.read_receipt(receipts[12]) == {"id": "s12", "label": int(Y[12]), "owner": None}
    assert model.read_receipt(receipts[22]) == {"id": "s22", "label": int(Y[22]), "owner": "ada"}
    model.forget(receipts[10:])
    assert model.digest() == learned(10)


def test_nothing_is_drawn_or_learned_ahead() -> None:
    drawn: list[int] = []

    def endless() -> Iterator[Any]:
        while True:
            drawn.append(len(drawn))
            row = drawn[-1]
            yield X[row : row + 1], Y[row : row + 1]

    model = new()
    batches = learn_batches(model, endless())
    assert (len(model), drawn) == (0, [])
    for count in range(1, 5):
        assert len(next(batches)) == 1
        assert (len(model), len(drawn)) == (count, count)


def test_an_iterator_that_raises_leaves_what_has_its_receipts() -> None:
    def broken() -> Iterator[Any]:
        yield X[:10], Y[:10]
        yield X[10:20], Y[10:20]
        raise OSError("the disk is gone")

    model, receipts = new(), list[bytes]()
    with pytest.raises(OSError, match="the disk is gone"):
        receipts.extend(each for some in learn_batches(model, broken()) for each in some)
    assert (len(receipts), model.digest()) == (20, learned(20))
    model.forget(receipts)
    assert model.digest() == new().digest()


def test_a_refused_batch_leaves_no_trace() -> None:
    model, got = new(), list[bytes]()
    batches = [(X[:10], Y[:10], range(10)), (X[10:20], Y[10:20], range(9, 19))]
    with pytest.raises(IdTakenError):
        got.extend(each for some in learn_batches(model, batches) for each in some)
    assert (len(got), model.digest()) == (10, learned(10))


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ((X[:5],), "batch 1 is another tuple"),
        ([X[:5], Y[:5], None, None, None], "batch 1 is another list"),
        ({"samples": X[:5]}, "batch 1 is another dict"),
        ({"samples": X[:5], "labels": Y[:5], "weights": Y[:5]}, "batch 1 is another dict"),
        (X[:2], "batch 1 is another ndarray"),
        (X[5], "batch 1 is another ndarray"),
    ],
)
def test_other_batches_are_refused(batch: Any, words: str) -> None:
    model = new()
    batches = learn_batches(model, [(X[:5], Y[:5]), batch])
    next(batches)
    with pytest.raises(InputError, match=words):
        next(batches)
    assert model.digest() == learned(5)


@pytest.mark.parametrize("batch", [5, None])
def test_what_is_no_batch_is_refused(batch: Any) -> None:
    with pytest.raises(InputError, match=f"batch 0 is another {type(batch).__name__}"):
        next(learn_batches(new(), [batch]))


def test_batches_of_a_data_loader() -> None:
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(
        torch.tensor(X.astype(np.float32), requires_grad=True), torch.tensor(Y), torch.arange(40)
    )
    model, one = new(), new()
    receipts = [
        each for given in learn_batches(model, torch.utils.data.DataLoader(data, batch_size=16)) for each in given
    ]
    one.learn(X.astype(np.float32), Y, range(40))
    assert model.digest() == one.digest()
    assert model.read_receipt(receipts[17]) == {"id": 17, "label": int(Y[17]), "owner": None}
    model.forget(receipts)
    assert model.digest() == new().digest()


def test_a_store_has_each_batch_on_disk_before_its_receipts_come_out(tmp_path: Path) -> None:
    folder, places = tmp_path / "s", parts(15, 30, 40)
    store.create(folder, Precomputed(6), new().classifier, keys=KEYS).close()
    got = []
    with store.open(folder, keys=KEYS) as model:
        batches = learn_batches(model, ((X[place], Y[place]) for place in places))
        got += next(batches)
        got += next(batches)
    with store.open(folder, keys=KEYS) as model:
        assert model.digest() == learned(30)
        model.forget(got[15:])
        assert model.digest() == learned(15)
