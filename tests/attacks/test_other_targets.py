"""Whatever labels stand for, what is learned can be published, forgotten and checked, and a certificate covers it."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from neverseen import AnalyticClassifier, Identity, RandomProjection, store
from neverseen.backbones import Precomputed
from neverseen.cli import app
from neverseen.errors import ConfigurationError, StoreDamagedError
from neverseen.labels import LabelIndex, from_private_text
from neverseen.model.problem import sums_digest
from neverseen.proof.certificates import check_chain
from neverseen.service import Settings
from neverseen.service.core import Service
from neverseen.store import Store
from neverseen.store.journal import samples_record
from neverseen.targets import LabelSets, Numbers, Targets, WeightedClasses

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
    settings = AnalyticClassifier(RandomProjection(16, seed=0), gamma=2**10, targets=targets)
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


@pytest.mark.parametrize(("targets", "labels"), KINDS, ids=lambda each: getattr(each, "kind", ""))
def test_a_service_that_would_answer_with_columns(tmp_path: Path, targets: Targets, labels: list[Any]) -> None:
    """A service answers with the class of the greatest score, which is no answer where labels are not classes."""
    with made(tmp_path / "store", targets) as model:
        model.learn(ROWS, labels)
        model.publish()
    with pytest.raises(ConfigurationError, match="cannot be served"):
        Service(tmp_path / "store", Settings(), Precomputed(6)).start()
    store.open(tmp_path / "store").close()  # it is not held by the service


@pytest.mark.parametrize(("targets", "labels"), KINDS, ids=lambda each: getattr(each, "kind", ""))
def test_samples_left_out_one_at_a_time(tmp_path: Path, targets: Targets, labels: list[Any]) -> None:
    """Each prediction is that of the model without the sample, not the name of a column."""
    with made(tmp_path / "store", targets) as model:
        receipts = model.learn(ROWS, labels)
        for row, left in enumerate(model.leave_one_out(receipts[:3])):
            assert np.array_equal(left.label, model.without(receipts[row]).predict(ROWS[row : row + 1])[0])


@pytest.mark.parametrize("words", [["predict", "--labelled"], ["what-if", "--test"], ["what-if", "--leave-one-out"]])
def test_shares_of_correct_answers(tmp_path: Path, words: list[str]) -> None:
    """A number is not right or wrong: there is no share of correct predictions."""
    with made(tmp_path / "store", Numbers()) as model:
        (tmp_path / "receipts").write_bytes(model.learn(ROWS, [[1.0]] * 9)[0])
        model.publish()
    table = tmp_path / "rows.csv"
    table.write_text("label,a,b,c,d,e,f\n1," + ",".join(map(str, ROWS[0].tolist())) + "\n")
    command, option = words
    given = [str(table), option] if command == "predict" else ["--receipts", str(tmp_path / "receipts"), option]
    found = CliRunner().invoke(app, [command, str(tmp_path / "store"), *given, *[str(table)] * (option == "--test")])
    assert found.exit_code == 1
    assert "needs a class for each sample" in found.stderr
