"""What if: a model without some samples says what it would say had they been forgotten, and the model stays as it is."""

from __future__ import annotations

import copy
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neverseen import (
    AnalyticClassifier,
    ForgettingModel,
    InputError,
    Key,
    Keyring,
    NotLearnedError,
    RandomProjection,
    ReceiptRejectedError,
)
from neverseen.backbones import Precomputed
from neverseen.encoding import quantise
from neverseen.engine.solver import Solution, solve
from neverseen.engine.statistics import Statistics
from neverseen.model import problem as problem_module
from tests.samples import clustered

KEYS = Keyring(Key(bytes([7] * 32)), [Key(bytes([8] * 32))])
X, NUMBERS = clustered("without", 40, 6, 4)
Y = np.array(["cat", "dog", "emu", "fox"])[NUMBERS]


def new(codes: int = 64, **more: Any) -> AnalyticClassifier:
    return AnalyticClassifier(
        RandomProjection(codes, seed=1), 2**9, key=KEYS.membership, hardware="numpy", **more
    )  # of 64 codes, a few samples are followed


def scratch(rows: list[int], codes: int = 64) -> AnalyticClassifier:
    return new(codes).fit(X[rows], Y[rows]) if rows else new(codes)


def saved(model: AnalyticClassifier) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model")
        return (Path(folder) / "model").read_bytes()


def spy(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Full solves, as they are made."""
    solves: list[int] = []

    def counted(*arguments: Any, **options: Any) -> Solution:
        solves.append(1)
        return solve(*arguments, **options)

    monkeypatch.setattr(problem_module, "solve", counted)
    return solves


rows_of = st.lists(st.integers(0, len(X) - 1), min_size=1, max_size=12, unique=True)
step = st.tuples(st.sampled_from(["ask", "one", "forget", "learn", "digest", "discard"]), rows_of)


@pytest.mark.parametrize("track", [False, True], ids=["plain", "tracked"])
@given(learned=rows_of, history=st.lists(step, max_size=8))
@settings(max_examples=25)
def test_asking_is_forgetting_that_did_not_happen(track: bool, learned: list[int], history: list[Any]) -> None:
    model = new(track_classes=track).fit(X[learned], Y[learned])
    held = set(learned)
    for verb, drawn in history:
        some = [row for row in drawn if row in held]
        rest = sorted(held - set(some))
        if verb == "ask" and some:
            before, answers = saved(model), model.decision_function(X)
            view, other = model.without(X[some], Y[some]), copy.deepcopy(model)
            other.forget(X[some], Y[some])
            assert view.digest() == other.digest() == scratch(rest).digest()
            assert len(view) == len(rest)
            assert saved(model) == before
            assert np.array_equal(model.decision_function(X), answers)
            if rest:
                assert view.classes_.tolist() == other.classes_.tolist()
                assert view.counts.tolist() == [np.count_nonzero(Y[rest] == name) for name in view.classes_]
                assert np.array_equal(view.decision_function(X), other.decision_function(X))
                assert np.array_equal(view.predict(X), other.predict(X))
                assert view.score(X, Y) == other.score(X, Y)
        elif verb == "one" and some and len(held) > 1:
            before = saved(model)
            for row, found in zip(some, model.leave_one_out(X[some], Y[some]), strict=True):
                other = scratch(sorted(held - {row}))
                assert found.label == other.predict(X[[row]])[0]
                named = dict(zip(model.classes_, found.scores, strict=True))
                gone = set(model.classes_) - set(other.classes_)
                assert all(named.pop(name) == -np.inf for name in gone)
                assert other.exact is not None
                scores, _ = other.exact.scores(quantise(X[[row]]))
                assert list(named.values()) == np.ldexp(scores[0].astype(np.float64), -40).tolist()
            assert saved(model) == before
        elif verb == "forget" and some and rest:
            model.forget(X[some], Y[some])
            held -= set(some)
        elif verb == "learn":
            more = [row for row in drawn if row not in held]
            model.partial_fit(X[more], Y[more])
            held |= set(more)
        elif verb == "digest":
            model.digest()
        elif verb == "discard":
            model.discard_hints()
    assert model.digest() == scratch(sorted(held)).digest()  # also of what is followed from what was asked about
    assert saved(model) == saved(new(track_classes=track).fit(X[sorted(held)], Y[sorted(held)]))


def test_a_few_samples_take_no_full_solve(monkeypatch: pytest.MonkeyPatch) -> None:
    model = scratch(list(range(40)))
    expected = [scratch([other for other in range(40) if other != row]).digest() for row in range(5)]
    solves = spy(monkeypatch)
    model.digest()
    assert [model.without(X[[row]], Y[[row]]).digest() for row in range(5)] == expected
    assert len(solves) == 1, "the model's own"
    list(model.leave_one_out(X[:20], Y[:20]))
    assert len(solves) == 2, "one for all"
    model.forget(X[:1], Y[:1])
    assert model.digest() == expected[0]
    assert len(solves) == 2, "the hints of the model are as they were"


def test_the_grams_of_classes_are_not_copied(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """They are as many as there are classes."""
    model = new(track_classes=True, class_folder=tmp_path).fit(X, Y)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    monkeypatch.setattr(Statistics, "__deepcopy__", None, raising=False)
    assert model.without(X[:3], Y[:3]).digest() == scratch(list(range(3, 40))).digest()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files


def test_a_view_stays_as_it_is() -> None:
    model = scratch(list(range(30)))
    view, left = model.without(X[:2], Y[:2]), model.leave_one_out(X[:3], Y[:3])
    digest, answers = view.digest(), view.decision_function(X)
    first = next(left)
    model.partial_fit(X[30:], Y[30:]).forget(X[:20], Y[:20])
    model.fit(X[:9, :3], Y[:9])  # of other features
    assert view.digest() == digest == scratch(list(range(2, 30))).digest()
    assert np.array_equal(view.decision_function(X), answers)
    assert [first.label, *(each.label for each in left)] == [
        scratch([other for other in range(30) if other != row]).predict(X[[row]])[0] for row in range(3)
    ]
    with pytest.raises(InputError, match="features"):
        view.predict(X[:, :3])
    with pytest.raises(ValueError, match="read-only"):
        view.counts[0] = 0


def test_none_and_all() -> None:
    model = scratch(list(range(10)))
    assert model.without(X[:0], Y[:0]).digest() == model.digest()
    assert list(model.leave_one_out(X[:0], Y[:0])) == []
    empty = model.without(X[:10], Y[:10])
    assert (empty.digest(), len(empty), bool(empty), empty.classes_.tolist()) == (new().digest(), 0, True, [])
    for ask in (empty.predict, empty.decision_function, lambda rows: empty.score(rows, Y)):
        with pytest.raises(NotLearnedError, match="holds no samples"):
            ask(X)
    with pytest.raises(NotLearnedError, match="holds one sample"):
        scratch([3]).leave_one_out(X[[3]], Y[[3]])


def test_predictions_never_hold_the_scores_of_all_samples() -> None:
    classes, asked = 3000, np.tile(X, (150, 1))
    model = new(16).fit(np.tile(X, (75, 1)), np.arange(classes))
    view = model.without(X[:1], [0])
    one, other = model.decision_function(X), view.decision_function(X)
    labels = np.tile(model.predict(X), 150)
    tracemalloc.start()
    try:
        found = model.predict(asked), view.predict(asked), model.score(asked, labels), view.score(asked, labels)
        assert tracemalloc.get_traced_memory()[1] < 8 * len(asked) * classes
    finally:
        tracemalloc.stop()
    assert np.array_equal(found[0], np.tile(model.classes_[one.argmax(axis=1)], 150))
    assert np.array_equal(found[1], np.tile(view.classes_[other.argmax(axis=1)], 150))
    assert found[2:] == (1.0, float(np.mean(found[1] == labels)))


def test_what_forget_refuses_is_refused() -> None:
    model = scratch(list(range(10)))
    before = saved(model)
    for ask in (model.without, model.leave_one_out):
        for rows, labels in ((X[10:11], Y[10:11]), (X[[3, 3]], Y[[3, 3]]), (X[:1], ["gnu"])):
            with pytest.raises(NotLearnedError, match="does not hold"):
                ask(rows, labels)
        with pytest.raises(ValueError, match="inconsistent"):
            ask(X[:2], Y[:1])
        with pytest.raises(NotLearnedError, match="holds no samples"):
            getattr(new(), ask.__name__)(X[:1], Y[:1])
    assert saved(model) == before


# -- with receipts -----------------------------------------------------------------------------------


def taught(rows: int = 30) -> tuple[ForgettingModel, list[bytes]]:
    model = ForgettingModel(Precomputed(6), new().set_params(key=None), KEYS)
    return model, model.learn(X[:rows], Y[:rows], [f"s{row}" for row in range(rows)])


def test_receipts_and_samples_ask_the_same(tmp_path: Path) -> None:
    model, receipts = taught()
    model.save(tmp_path / "before")
    views = [
        model.without(receipts[:3]),
        model.without(X[:3], Y[:3]),
        model.without(X[:3], Y[:3], ids=["s0", "s1", "s2"]),
        model.without(model.prepare(X[:3]), Y[:3]),
    ]
    left = [each.label for each in model.leave_one_out(receipts[:9])]
    assert left == [each.label for each in model.leave_one_out(X[:9], Y[:9])]
    model.save(tmp_path / "after")
    assert (tmp_path / "before").read_bytes() == (tmp_path / "after").read_bytes()
    model.forget(receipts[:3])
    assert {view.digest() for view in views} == {model.digest()}
    assert views[0].score(X, Y) == model.score(X, Y)
    assert np.array_equal(views[0].predict(X), model.predict(X))
    with pytest.raises(ReceiptRejectedError, match="used already"):
        model.without(receipts[2:4])
    with pytest.raises(ReceiptRejectedError, match="twice"):
        model.leave_one_out([receipts[5], receipts[5]])
    with pytest.raises(NotLearnedError, match="under the id"):
        model.without(X[3:4], Y[3:4], ids=["s4"])
    model.forget(receipts[3:])
    assert model.without([]).digest() == model.digest()
    with pytest.raises(NotLearnedError, match="holds no samples"):
        model.without(X[3:4], Y[3:4])
