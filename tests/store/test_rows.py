"""A store of samples that have many rows each, on both kinds of database."""

from __future__ import annotations

import base64
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from neverseen import (
    AlreadyForgottenError,
    AnalyticClassifier,
    ConfigurationError,
    ForgettingModel,
    InputError,
    Key,
    Keyring,
    RandomProjection,
    StoreDamagedError,
    store,
)
from neverseen.backbones import Precomputed
from neverseen.cli import app
from neverseen.engine.statistics import Statistics
from neverseen.errors import NeverseenError
from neverseen.labels import LabelIndex, from_private_text
from neverseen.model.grouping import predict_together
from neverseen.proof.certificates import check_chain
from neverseen.service import Settings
from neverseen.service.core import Service
from neverseen.store import Store
from neverseen.store.journal import samples_record
from neverseen.store.sums import fold
from neverseen.targets import LabelSets, Numbers, Rows, Targets

KEYS = Keyring(Key(bytes([7] * 32)), [Key(bytes([8] * 32))])
LENGTHS = [3, 1, 2, 4, 1, 3, 2, 2]
SAMPLES = [
    np.random.default_rng(place).normal(size=(length, 4)).astype(np.float32) for place, length in enumerate(LENGTHS)
]
CLASSES = [[["sky", "sea", "tree"][(place + row) % 3] for row in range(length)] for place, length in enumerate(LENGTHS)]
LABELS: dict[str, tuple[Targets | None, list[Any]]] = {
    "classes": (None, CLASSES),
    "sets": (LabelSets(), [[[name] * (row % 2) for row, name in enumerate(names)] for names in CLASSES]),
    "numbers": (Numbers(bits=3), [[len(name) / 8 for name in names] for names in CLASSES]),
}


def settings_of(kind: str) -> AnalyticClassifier:
    return AnalyticClassifier(RandomProjection(12, seed=1), gamma=2**8, targets=Rows(LABELS[kind][0], most=4))


def new(folder: Path, kind: str = "classes", url: str | None = None) -> Store:
    return store.create(folder, Precomputed(4), settings_of(kind), keys=KEYS, ledger=url)


def chosen(kind: str, places: list[int]) -> tuple[list[Any], list[Any]]:
    return [SAMPLES[at] for at in places], [LABELS[kind][1][at] for at in places]


def never(kind: str, places: list[int]) -> ForgettingModel:
    model = ForgettingModel(Precomputed(4), settings_of(kind), KEYS)
    model.learn(*chosen(kind, places), places)
    return model


def test_a_life_of_a_store(tmp_path: Path, url: str) -> None:
    """Learning, forgetting, publishing, sealing and opening again: on each kind of database, with the same bits."""
    with new(tmp_path / "s", url=url) as made:
        receipts = made.learn(*chosen("classes", list(range(6))), range(6), ["ada"] * 6)
        assert made.publish().after.samples == 6
        made.check()
        made.forget(receipts[:2])
        made.forget(*chosen("classes", [2]), owner="ada")
        assert made.without(receipts[3:4]).digest() == never("classes", [4, 5]).digest()
        with pytest.raises(NeverseenError, match="may be forgotten|holds no such sample|not hold"):
            made.forget(*chosen("classes", [3]), owner="bob")
    with store.open(tmp_path / "s", keys=KEYS) as made:  # from the journal
        assert made.digest() == never("classes", [3, 4, 5]).digest()
        assert made.status()["samples"] == 3
        assert made.status()["samples_by_class"] == {'"sea"': 3, '"sky"': 2, '"tree"': 2}
        again = made.learn(*chosen("classes", [0]), [0], ["ada"])
        assert [each.held for each in made.holds([receipts[0], *again, receipts[1]])] == ["sample", "receipt", None]
        assert made.held_already(*chosen("classes", [0, 1]), ["ada", "ada"]) == [True, False]
        samples, labels = chosen("classes", [0, 3])
        assert made.receipts_again(made.prepare(samples), labels, [0, 3], "ada") == [again[0], receipts[3]]
        certificate = made.seal()
        assert (certificate.after.samples, certificate.forgotten, certificate.learned) == (4, 3, 1)
        check_chain(made.certificates())
        made.version().check_stated(made.statistics(), 2, certificate.after)
        assert np.array_equal(
            predict_together(made, SAMPLES), predict_together(never("classes", [0, 3, 4, 5]), SAMPLES)
        )
        with pytest.raises(AlreadyForgottenError, match="certificate 2"):
            made.forget(receipts[:1])
    with store.open(tmp_path / "s", keys=KEYS) as made:  # from a snapshot alone
        made.check()
        assert made.digest() == never("classes", [0, 3, 4, 5]).digest()
        made.forget([*again, *receipts[3:6]])
        assert made.seal().after.samples == 0


def test_a_store_as_one_file(tmp_path: Path) -> None:
    with new(tmp_path / "s") as made:
        receipts = made.learn(*chosen("classes", [0, 1, 2]))
        made.publish()
        made.forget(receipts[:1])
        digest = made.digest()
    store.write_archive(tmp_path / "s", tmp_path / "file", KEYS)
    assert store.read_archive(tmp_path / "t", tmp_path / "file", KEYS) == digest


OPERATION = st.tuples(
    st.sampled_from(["learn", "learn", "receipt", "sample", "fold", "open", "publish"]), st.integers(0, 7)
)


@settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(kind=st.sampled_from(list(LABELS)), history=st.lists(OPERATION, max_size=10))
def test_any_history(tmp_path_factory: pytest.TempPathFactory, kind: str, history: list[tuple[str, int]]) -> None:
    """The sums of a store, from journal or snapshot, are those of a model that learned what remains."""
    folder, receipts, held = tmp_path_factory.mktemp("rows") / "s", dict[int, bytes](), set[int]()
    made = new(folder, kind)
    try:
        for verb, at in history:
            if verb == "learn" and at not in held:
                (receipts[at],) = made.learn(*chosen(kind, [at]), [at])
                held.add(at)
            elif verb == "receipt" and at in held:
                made.forget(receipts[at])
                held.discard(at)
            elif verb == "sample" and at in held:
                made.forget(*chosen(kind, [at]))
                held.discard(at)
            elif verb == "fold":
                fold(made._open_parts(), made._exact())
            elif verb == "publish":
                assert made.publish().after.samples == len(held)
            elif verb == "open":
                made.close()
                made = store.open(folder, keys=KEYS)
        made.close()
        made = store.open(folder, keys=KEYS)
        made.check()
        expected = never(kind, sorted(held))
        assert made.digest() == expected.digest()
        assert made.status()["samples"] == len(held) == len(expected)
        if held:
            assert expected.classifier.exact is not None
            assert made.statistics() == expected.classifier.exact.statistics
    finally:
        made.close()


def test_an_interrupted_publication(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def added_and_interrupted(publications: Any, certificate: Any) -> None:
        publications.certificate_path(certificate.number).write_bytes(certificate.to_json())
        raise KeyboardInterrupt

    with new(tmp_path / "s") as made:
        made.learn(*chosen("classes", [0, 3]))
        with monkeypatch.context() as patched:
            patched.setattr("neverseen.store.publications.Publications.add", added_and_interrupted)
            with pytest.raises(KeyboardInterrupt):
                made.publish()
    with store.open(tmp_path / "s", keys=KEYS) as made:
        assert made.published_number == 1


def test_a_label_that_is_too_long_for_a_ledger(tmp_path: Path) -> None:
    with new(tmp_path / "s") as made:
        before = made.digest()
        with pytest.raises(InputError, match="at most 2000 are held"):
            made.learn([SAMPLES[0]], [["x" * 1000, "y" * 1000, "z"]])
        assert made.digest() == before
        assert len(made.learn([SAMPLES[0]], [["x", "y", "z"]])) == 1


@pytest.mark.parametrize(
    "name",
    [
        *(
            '"sky"',
            '{"tuple":["sky"]}',
            '{"tuple":[{"tuple":["sky",5]}]}',
        ),
        *('{"tuple":[{"tuple":["sky",1]},{"tuple":["sea",1]}]}', '{"tuple":[{"tuple":["sky",2]}]}'),
    ],
)
def test_labels_that_cannot_be(tmp_path: Path, name: str) -> None:
    """A journal or a ledger with the label of no such sample is damaged, whoever wrote it. So is one of more rows."""
    with new(tmp_path / "store") as model:
        model.learn([SAMPLES[1]], ["sky"])
    record = samples_record(np.ones((1, 4), np.int8), LabelIndex([from_private_text(name)]))
    orders = [("neverseen_journal SET payload", record)]
    if '"sky",2' not in name:  # which is the label of a sample of two rows: the ledger has only its name
        orders.append(("neverseen_classes SET name", name))  # type: ignore[arg-type]
    for order, value in orders:
        shutil.copytree(tmp_path / "store", copy := tmp_path / order.split()[0])
        with closing(sqlite3.connect(copy / "ledger.sqlite")) as ledger:
            ledger.execute(f"UPDATE {order} = ?", (value,))
            ledger.commit()
        with pytest.raises(StoreDamagedError):
            store.open(copy)


def test_the_command_line_and_the_service_say_that_they_cannot(tmp_path: Path) -> None:
    """They forget such samples by receipt and predict rows, and refuse to learn or to judge them."""
    with store.create(tmp_path / "s", Precomputed(4), settings_of("classes")) as made:
        receipts = made.learn(*chosen("classes", [0, 3, 5]))
        digest = made.publish().after.model
        never_seen = made.without(receipts[:1]).digest()
    table, file = tmp_path / "table.csv", tmp_path / "receipt.jsonl"
    table.write_text("label,a,b,c,d\nsky,1,2,3,4\nsea,4,3,2,1\n")
    file.write_text(json.dumps({"receipt": base64.urlsafe_b64encode(receipts[0]).decode()}) + "\n")

    def run(*words: Any) -> tuple[int, str]:
        found = CliRunner().invoke(app, [*map(str, words)])
        return found.exit_code, " ".join(found.output.split())

    for words in (("learn", tmp_path / "s", table, "--receipts", tmp_path / "r"), ("what-if", tmp_path / "s", table)):
        code, said = run(*words)
        assert code == 1
        assert "from Python" in said, said
    code, said = run("verify", "retrain", tmp_path / "s", table)
    assert code == 1
    assert "from Python" in said, said
    assert run("predict", tmp_path / "s", table)[0] == 0
    with store.open(tmp_path / "s") as made:
        assert made.digest() == digest
    code, said = run("forget", tmp_path / "s", "--receipts", file)
    assert code == 0, said
    with store.open(tmp_path / "s") as made:
        assert made.digest() == never_seen
        assert isinstance(made.statistics(), Statistics)
    with pytest.raises(ConfigurationError, match="labels .*Rows"):
        Service(tmp_path / "s", Settings(), Precomputed(4)).start()
