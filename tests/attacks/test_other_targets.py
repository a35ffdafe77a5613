"""Whatever labels stand for, what is learned can be published, forgotten and checked, and a certificate covers it.

No answer about labels that are not classes passes for one about classes.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import tracemalloc
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from neverseen import AnalyticClassifier, Identity, RandomProjection, store
from neverseen.backbones import Precomputed
from neverseen.cli import app
from neverseen.engine.statistics import Statistics
from neverseen.errors import (
    CertificateRejectedError,
    ConfigurationError,
    FileRejectedError,
    InputError,
    LabelError,
    StoreDamagedError,
)
from neverseen.io.files import replace_file
from neverseen.io.tensorfile import pack, unpack
from neverseen.labels import LabelIndex, from_private_text
from neverseen.model.problem import sums_digest
from neverseen.model.versions import Version, read_version, write_version
from neverseen.proof.certificates import check_chain
from neverseen.service import Settings
from neverseen.service.core import Service
from neverseen.service.operations.served import require_served
from neverseen.store import Store
from neverseen.store.journal import samples_record
from neverseen.targets import PART, LabelSets, Numbers, Targets, WeightedClasses
from tests.services import QUICK, running

FALSE_LABELS = [
    *('"ab"', "5", "null", '{"bytes":"6162"}', '{"frozenset":[null]}', '{"tuple":[]}', '{"tuple":["cat"]}'),
    *('{"tuple":["cat",-5]}', '{"tuple":["cat",0]}', '{"tuple":["cat",1001]}', '{"tuple":["cat","x"]}'),
    *('{"tuple":["cat",true]}', '{"tuple":["cat",2,3]}', '{"tuple":[1,2]}', '{"tuple":[1048577,2,3]}'),
    *('{"tuple":[-1180591620717411303424,2,3]}', '{"tuple":[{"float":"0x1.8000000000000p-1"},2,3]}'),
    *('{"tuple":[true,2,3]}', '{"tuple":[null,2,3]}', '{"tuple":[1,2,3,4]}'),
]
ROWS = np.random.default_rng(0).normal(size=(9, 6)).astype(np.float32)
KINDS: list[tuple[Targets, list[Any]]] = [
    (LabelSets(), [["red", "round", "large"], ["red"], []] * 3),
    (Numbers(3), [[1.0, 2.0, -3.0], [0.5, 0.25, 0.0], [0, 1, 2]] * 3),
    (WeightedClasses(), [("cat", 3), ("dog", 1), ("dog", 1000)] * 3),
]

# Two pairs of samples for each class. Swapping their second halves changes neither the sum of a class nor the Gram
# matrix of all: only that of each class.
CATS, DOGS = [[1, 1, 1, 1], [1, 1, -1, -1]], [[1, -1, 1, -1], [1, -1, -1, 1]]
SWAPPED = [[1, 1, 1, -1], [1, 1, -1, 1]], [[1, -1, 1, 1], [1, -1, -1, -1]]
MORE = [1, 1, 1, 1]  # cats outnumber dogs, so they weigh less


def made(folder: Path, targets: Targets) -> Store:
    grid_bits = 20 if targets.kind == "numbers" else 40
    settings = AnalyticClassifier(RandomProjection(16, seed=0), 2**10, grid_bits=grid_bits, targets=targets)
    return store.create(folder, Precomputed(6), settings)


@pytest.mark.parametrize(("targets", "labels"), KINDS, ids=lambda each: getattr(each, "kind", ""))
def test_a_store_with_fewer_samples_than_columns(tmp_path: Path, targets: Targets, labels: list[Any]) -> None:
    """A sample may have more labels or numbers than there are samples, when the first comes or when most have gone."""
    with made(tmp_path / "store", targets) as model:
        first = model.learn(ROWS[:1], labels[:1])
        model.publish()
        rest = model.learn(ROWS[1:], labels[1:])
        model.publish()
        model.forget([*first, *rest[1:]])
        model.seal()
        never = model.digest()
        model.check()
        model.version().check_stated(model.statistics(), 3, model.certificate(3).after)
        check_chain(model.certificates())
    with made(tmp_path / "never", targets) as model:
        model.learn(ROWS[1:2], labels[1:2])
        assert model.publish().after.model == never
    with store.open(tmp_path / "store") as model:
        model.forget(rest[:1])
        assert (model.seal().after.samples, model.seal().after.classes) == (0, 0)


def test_a_certificate_ahead_of_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that died after signing left one: the next writer recognises it, whatever the labels are."""
    with made(tmp_path / "store", LabelSets()) as model:
        model.learn(ROWS[:1], [["red", "round", "large"]])
        with monkeypatch.context() as patched:
            patched.setattr("neverseen.store.publications.Publications.add", added_and_interrupted)
            with pytest.raises(KeyboardInterrupt):
                model.publish()
    with store.open(tmp_path / "store") as model:
        assert model.published_number == 1


def added_and_interrupted(publications: Any, certificate: Any) -> None:
    publications.certificate_path(certificate.number).write_bytes(certificate.to_json())
    raise KeyboardInterrupt


def balanced(folder: Path) -> Store:
    settings = AnalyticClassifier(Identity(), gamma=1, track_classes=True, class_weight="balanced")
    return store.create(folder, Precomputed(4), settings)


def learn(model: Store, cats: list[list[int]], dogs: list[list[int]]) -> list[bytes]:
    return model.learn(np.array([*cats, *dogs], np.float32), ["cat"] * len(cats) + ["dog"] * len(dogs))


def test_equal_totals_of_other_classes(tmp_path: Path) -> None:
    """The digest of the sums is not that of other sums which have other weights: both can be published in turn."""
    with balanced(tmp_path / "store") as model:
        learn(model, [MORE], [])
        receipts = learn(model, CATS, DOGS)
        first = model.publish().after
        model.forget(receipts)
        learn(model, *SWAPPED)
        second = model.publish().after
        assert first.model != second.model
        assert first.statistics != second.statistics
        model.check()
        model.version().check_stated(model.statistics(), 2, second)


def test_swapped_sums_of_classes(tmp_path: Path) -> None:
    """If nothing changed since the last certificate, other sums of the classes are refused, as other totals are."""
    with balanced(tmp_path / "other") as model:
        learn(model, [MORE], [])
        learn(model, *SWAPPED)
        model.seal()
        other, name = model.statistics(), model.ledger.meta("snapshot")
        with balanced(tmp_path / "store") as victim:
            learn(victim, [MORE], [])
            learn(victim, CATS, DOGS)
            victim.seal()
            assert victim.statistics() == other  # but for the classes
            shutil.copytree(tmp_path / "other" / "sums", tmp_path / "store" / "sums", dirs_exist_ok=True)
            with victim.ledger.writing() as writing:
                writing.set_meta("snapshot", name)
    with pytest.raises(StoreDamagedError, match="are not those that certificate 1 states"):
        store.open(tmp_path / "store")


def test_plain_digests_stay() -> None:
    """Sums of classes that are kept only to forget classes do not show in the digest: it is recorded."""
    plain = AnalyticClassifier(Identity(), gamma=1).fit(CATS + DOGS, ["cat"] * 2 + ["dog"] * 2)
    tracked = AnalyticClassifier(Identity(), gamma=1, track_classes=True).fit(CATS + DOGS, ["cat"] * 2 + ["dog"] * 2)
    for model in (plain, tracked):
        assert model.exact is not None
        assert sums_digest(model.exact.statistics, model.configuration()) == model.exact.statistics.digest()


def test_retraining_a_balanced_store(tmp_path: Path) -> None:
    """`verify retrain` makes the very model of the store."""
    with balanced(tmp_path / "store") as model:
        learn(model, [MORE, *CATS], DOGS)
        model.publish()
    table = tmp_path / "retained.csv"
    rows = [(each, "cat") for each in [MORE, *CATS]] + [(each, "dog") for each in DOGS]
    table.write_text("label,a,b,c,d\n" + "".join(f"{name},{','.join(map(str, row))}\n" for row, name in rows))
    found = CliRunner().invoke(app, ["verify", "retrain", str(tmp_path / "store"), str(table), "--json"])
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["passed"]


@pytest.mark.parametrize(("targets", "labels"), KINDS, ids=lambda each: getattr(each, "kind", ""))
@pytest.mark.parametrize("name", FALSE_LABELS)
def test_labels_that_cannot_be(tmp_path: Path, targets: Targets, labels: list[Any], name: str) -> None:
    """A journal or a ledger with a label of another kind is damaged, whoever wrote it."""
    with made(tmp_path / "store", targets) as model:
        model.learn(ROWS[:1], labels[:1])
    record = samples_record(np.ones((1, 6), np.int8), LabelIndex([from_private_text(name)]))
    for order, value in (("neverseen_journal SET payload", record), ("neverseen_classes SET name", name)):
        shutil.copytree(tmp_path / "store", copy := tmp_path / order.split()[0])
        with closing(sqlite3.connect(copy / "ledger.sqlite")) as ledger:
            ledger.execute(f"UPDATE {order} = ?", (value,))
            ledger.commit()
        with pytest.raises(StoreDamagedError):
            store.open(copy)


def in_memory(targets: Targets) -> AnalyticClassifier:
    return AnalyticClassifier(RandomProjection(16, seed=0), gamma=2**10, targets=targets)


@pytest.mark.parametrize(("targets", "labels"), KINDS, ids=lambda each: getattr(each, "kind", ""))
def test_leaving_out_one(targets: Targets, labels: list[Any]) -> None:
    """The answer is the prediction after a forget. It was the name of a column: None, or the place of a number."""
    model = in_memory(targets).fit(ROWS, labels)
    for row, found in enumerate(model.leave_one_out(ROWS, labels)):
        without = model.without(ROWS[row : row + 1], [labels[row]])
        assert np.array_equal(found.label, without.predict(ROWS[row : row + 1])[0])


@pytest.mark.parametrize(("targets", "labels"), [(Numbers(2), [[1.0, 2.0]] * 9), (LabelSets(), [["red"]] * 9)])
def test_scores_of_two_columns(targets: Targets, labels: list[Any]) -> None:
    """Two numbers are not two classes: their scores are not subtracted. Nor are those of a sample and its label."""
    model = in_memory(targets).fit(ROWS, labels)
    assert model.decision_function(ROWS).shape == (9, 2)
    assert model.without(ROWS[:1], labels[:1]).decision_function(ROWS).shape == (9, 2)


@pytest.mark.parametrize("targets", [LabelSets(), Numbers(1), WeightedClasses()], ids=lambda each: each.kind)
@pytest.mark.parametrize("labels", [{("a", 1): 0, ("b", 2): 0}, {("a", 1), ("b", 2)}, "ab", np.array(1)], ids=type)
def test_labels_in_no_order(targets: Targets, labels: Any) -> None:
    """A set has no order, and of a dictionary only the keys would be read."""
    with pytest.raises(InputError, match="labels must be a sequence"):
        in_memory(targets).fit(ROWS[:2], labels)


def test_a_matrix_of_indicators() -> None:
    """A 0 or 1 for each label, as scikit-learn has them, would be learned as the labels 0 and 1."""
    with pytest.raises(LabelError, match="a 0 or 1 for each label"):
        in_memory(LabelSets()).fit(ROWS[:2], np.array([[1, 0], [0, 1]]))


def test_a_table_of_numbers() -> None:
    """The rows of a table are learned, not the names of its columns."""
    table = pytest.importorskip("pandas").DataFrame([[1.0, 2.0], [3.0, 4.0]])
    found = in_memory(Numbers(2)).fit(ROWS[:2], table).digest()
    key = in_memory(Numbers(2)).fit(ROWS[:2], [[1.0, 2.0], [3.0, 4.0]])
    assert found == key.digest()


@pytest.mark.parametrize(("targets", "labels"), KINDS[:2], ids=lambda each: getattr(each, "kind", ""))
def test_asking_for_classes(tmp_path: Path, targets: Targets, labels: list[Any]) -> None:
    """Where a class is asked for, a store of other labels refuses; else it answers with sets or numbers.

    It answered with the name of a column.
    """
    with made(tmp_path / "store", targets) as model:
        model.learn(ROWS, labels)
        model.publish()
        with pytest.raises(ConfigurationError, match="the labels must be classes"):
            model.held_labels(np.ones((1, 6), np.int8))
    table = tmp_path / "table.jsonl"
    for label, code in ((labels[0], 0), ("red", 1)):
        entries = [{"features": row.tolist(), "label": label} for row in ROWS[:1]]
        table.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
        for words in (
            ["predict", table, "--labelled"],
            ["what-if", table, "--leave-one-out"],
            ["what-if", table, "--test", table],
        ):
            command, *rest = map(str, words)
            found = CliRunner().invoke(app, [command, str(tmp_path / "store"), *rest, "--json"])
            assert found.exit_code == code, found.output
            if code:
                assert "table.jsonl, line 1: " in found.output
            elif command == "predict":
                field = "labels" if targets.kind == "label-sets" else "numbers"
                said = json.loads(found.stdout)["predictions"][0]
                assert set(said) == {field, "sample"}
                with store.open(tmp_path / "store", write=False) as model:
                    assert said[field] == targets.said(model.predict(ROWS[:1]))[0]
    store.open(tmp_path / "store").close()


@pytest.mark.parametrize("entry", [2**62, 2**20])
def test_made_up_sums_of_classes(entry: int) -> None:
    """Balanced weights of sums that no samples have are refused, also where their weighted total wraps to a true one."""
    settings = AnalyticClassifier(Identity(), gamma=1, track_classes=True, class_weight="balanced")
    model = settings.fit([*CATS, *CATS, *DOGS], ["cat"] * 4 + ["dog"] * 2).exact
    assert model is not None
    sums, grams = model.statistics, model.statistics.class_grams
    assert grams is not None
    Version.of(model).check(sums)
    forged = grams.packed('"cat"').astype(np.int64)
    forged[0] += entry  # times 2**18, the weight of a cat
    grams.put('"cat"', forged)
    model.discard_hints()
    with pytest.raises(CertificateRejectedError, match="the sums do not come from any samples"):
        Version.of(model).check(sums)


def test_a_gamma_that_cannot_be_balanced() -> None:
    """It is refused before samples are learned that could never be published."""
    with pytest.raises(ConfigurationError, match="at most 2\\*\\*24"):
        AnalyticClassifier(gamma=2**25, track_classes=True, class_weight="balanced").fit(CATS, ["cat", "cat"])
    AnalyticClassifier(gamma=2**24, track_classes=True, class_weight="balanced").fit(CATS, ["cat", "cat"]).digest()


@pytest.mark.parametrize("targets", [LabelSets(), WeightedClasses()], ids=lambda each: each.kind)
def test_many_labels_at_once(targets: Targets) -> None:
    """Samples with a label each take memory for their labels, and not for its square."""
    count = 2 * PART + 9
    labels = [[place] if targets.kind == "label-sets" else (place, 3) for place in range(count)]
    codes = np.random.default_rng(0).integers(-127, 128, (count, 2)).astype(np.int8)
    index = LabelIndex(targets.labels(labels))
    tracemalloc.start()
    sums = Statistics.of(codes, index, targets=targets)
    counted = targets.counted(dict.fromkeys(index.texts, 1))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 * count * PART + 2**24
    assert counted == sums.counts
    for place in (0, PART - 1, PART, count - 1):
        assert (
            sums.sums[str(place)] == codes[place].astype(np.int64) * (1 if targets.kind == "label-sets" else 3)
        ).all()


def test_weights_that_are_not_heeded() -> None:
    """Weights of samples are for the share of correct classes; of other labels they were passed over in silence."""
    model = in_memory(Numbers()).fit(ROWS, list(range(9)))
    with pytest.raises(InputError, match="sample_weight is for classes"):
        model.score(ROWS, list(range(9)), sample_weight=[1] * 9)


def test_numbers_are_rounded_once() -> None:
    """An integer beyond 2**53 just above a tie goes up. Through a float it would be the tie, and go down."""
    assert Numbers(bits=-60).label(2**59 + 1) == (1,)
    assert Numbers(bits=-60).label(2**59) == (0,)
    assert Numbers(bits=1).label([0.25]) == (0,)
    assert Numbers(bits=1).label([0.75]) == (2,)


@pytest.mark.parametrize(("targets", "labels"), KINDS, ids=lambda each: getattr(each, "kind", ""))
def test_a_service_answers_with_no_column(tmp_path: Path, targets: Targets, labels: list[Any]) -> None:
    """It answered with the column of the greatest score, which is no answer where labels are not classes."""
    with made(tmp_path / "store", targets) as model:
        model.learn(ROWS, labels)
        model.publish()
        expected = targets.said(model.predict(ROWS))
    with running(tmp_path / "store", QUICK, Precomputed(6), None) as service:
        body = {"samples": [{"features": row} for row in ROWS.tolist()]}
        found = service.client.post("/v1/predict", json=body, headers=service.admin).json()["predictions"]
        field = {"label-sets": "labels", "numbers": "numbers"}.get(targets.kind, "label")
        assert found == [{field: answer} for answer in expected]
    with pytest.raises(ConfigurationError, match="effect = 'immediate' needs classes without weights"):
        Service(tmp_path / "store", Settings(effect="immediate"), Precomputed(6)).start()
    store.open(tmp_path / "store").close()  # it is not held by the service


@pytest.mark.parametrize(
    ("targets", "names"),
    [
        (LabelSets(), ['"large"', '"red"', '"round"']),
        (Numbers(2), ["0", "7"]),
        (Numbers(2), ["0", '"x"']),
        (Numbers(2), ["0"]),
        (Numbers(2), ["0", "1", "2"]),
    ],
    ids=str,
)
def test_columns_that_cannot_be(tmp_path: Path, targets: Targets, names: list[str]) -> None:
    """A file says for which columns it has weights. The shape of predictions, and what they mean, followed it."""
    model = in_memory(targets).fit(
        ROWS, [["red", "round", "large"]] * 9 if targets.kind == "label-sets" else [[1, 2]] * 9
    )
    assert model.exact is not None
    model.save(tmp_path / "model")
    write_version(tmp_path / "version", Version.of(model.exact))
    for name, format_, read in (
        ("model", "neverseen-model-1", AnalyticClassifier.load),
        ("version", "neverseen-version-1", read_version),
    ):
        about, tensors = unpack(tmp_path / name, format_)
        read(tmp_path / name)
        about |= {"classes": names} | ({"counts": [9] * len(names)} if name == "model" else {})
        for each in tensors.keys() & {"sums", "weights", "rests"}:
            axis = 0 if each == "sums" else 1
            tensors[each] = np.take(tensors[each], [0] * len(names), axis)
        replace_file(tmp_path / name, pack(about, tensors))
        with pytest.raises(FileRejectedError):
            read(tmp_path / name)


def test_a_service_of_labels_that_it_does_not_know(tmp_path: Path) -> None:
    """A kind of another package has answers of its own, which no route describes."""

    class Odd(LabelSets):
        kind = "odd"

    settings = in_memory(Odd()).configuration()
    with pytest.raises(ConfigurationError, match=r"the labels of this store are Odd\(\)"):
        require_served(settings, Settings(), tmp_path, 6)
