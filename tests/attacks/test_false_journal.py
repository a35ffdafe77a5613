"""The promise: a journal that no samples can have made is refused, by a word about damage, before anything is changed.

Records of the journal have a checksum and no key. So whoever hands over a store can have written any record into it.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neverseen import AnalyticClassifier, store
from neverseen.encoding import RandomProjection
from neverseen.engine.statistics import Statistics
from neverseen.errors import NotLearnedError, StoreDamagedError
from neverseen.labels import LabelIndex
from neverseen.store.journal import class_record, samples_record
from tests.services import BACKBONE, KEYS, ROWS, new_store

COUNT = 4
CLASSES = ['"cat"', '"dog"']
WIDTH = ROWS.shape[1]
Q = np.ones((COUNT, WIDTH), np.int8)


def sealed(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16, person=b"neverseen:record").digest() + body


def written(about: Any, places: list[int] | None = None, features: np.ndarray = Q) -> bytes:
    """A record with a good checksum."""
    head = json.dumps(about, separators=(",", ":")).encode() if not isinstance(about, bytes) else about
    positions = np.array([0] * COUNT if places is None else places, "<i4").tobytes()
    return sealed(struct.pack("<I", len(head)) + head + positions + features.astype(np.int8).tobytes())


def about(rows: Any = COUNT, width: Any = WIDTH, classes: Any = CLASSES) -> dict[str, Any]:
    return {"classes": classes, "shape": [rows, width]}


FALSE = {
    "too narrow": written(about(width=WIDTH - 1), features=Q[:, 1:]),
    "too wide": written(about(width=WIDTH + 1), features=np.ones((COUNT, WIDTH + 1))),
    "beyond the range": written(about(), features=np.full((COUNT, WIDTH), -128)),
    "cut short": written(about(), features=Q[:1]),
    "too long": written(about(), features=np.ones((COUNT + 1, WIDTH))),
    "a class that is not listed": written(about(), [2] * COUNT),
    "a class from behind": written(about(), [-1] * COUNT),
    "a label that is none": written(about(classes=["nope"])),
    "labels that are no texts": written(about(classes=[{"a": 1}])),
    "no classes": written(about(classes=None)),
    "fewer rows than none": written(about(rows=-1), [], Q[:0]),
    "very many rows": written(about(rows=2**62)),
    "rows that are no number": written(about(rows="4")),
    "rows that are a truth": written(about(rows=True), [0], Q[:1]),
    "one shape too many": written({"classes": CLASSES, "shape": [COUNT, WIDTH, 1]}),
    "no object": written([1]),
    "a name twice": written(b'{"classes":["1"],"classes":["\\"cat\\""],"shape":[%d,%d]}' % (COUNT, WIDTH)),
    "nested deeply": written(b"[" * 100_000),
    "not JSON": written(b"{{{"),
    "not text": written(b"\xff\xfe"),
    "a length beyond the end": sealed(struct.pack("<I", 2**32 - 1)),
    "nothing": sealed(b""),
}


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[bytes]]:
    """A store that holds some samples of two classes, and their receipts."""
    folder = new_store(tmp_path_factory.mktemp("journal") / "s")
    with store.open(folder, backbone=BACKBONE, keys=KEYS, hardware="numpy") as opened:
        receipts = opened.learn(ROWS[:COUNT], ["cat", "cat", "dog", "dog"], [f"s{row}" for row in range(COUNT)])
    return folder, receipts


def journal(folder: Path, *records: tuple[str, bytes]) -> None:
    with sqlite3.connect(folder / "ledger.sqlite") as ledger:
        ledger.execute("delete from neverseen_journal")
        ledger.executemany(
            "insert into neverseen_journal values (?, ?, ?)", [(n, *r) for n, r in enumerate(records, 1)]
        )
        ledger.execute("update neverseen_meta set value = ? where key = 'sequence'", [str(len(records))])


def refused(folder: Path) -> str:
    for write in (True, False):
        with (
            pytest.raises(StoreDamagedError, match="Restore") as caught,
            store.open(folder, backbone=BACKBONE, keys=KEYS, write=write, hardware="numpy") as opened,
        ):
            opened.check()  # as `import` does
    return str(caught.value)


@pytest.mark.parametrize("name", FALSE)
def test_a_false_record_is_refused(held: tuple[Path, list[bytes]], name: str) -> None:
    journal(held[0], ("learn", FALSE[name]))
    assert "record 1 of the journal is damaged" in refused(held[0])


@pytest.mark.parametrize("body", [b"nope", b"\xff", b"", b'"cat" '])
def test_a_class_that_is_none_is_refused(held: tuple[Path, list[bytes]], body: bytes) -> None:
    journal(held[0], ("forget-class", sealed(body)))
    assert "record 1 of the journal is damaged" in refused(held[0])


def real(start: int, end: int, label: str) -> bytes:
    """The record that the store itself would write."""
    return samples_record(np.full((end - start, WIDTH), 7 * start + 1, np.int8), LabelIndex([label] * (end - start)))


HISTORIES: dict[str, list[tuple[str, bytes]]] = {
    "more go than came": [("learn", real(0, 1, "cat")), ("forget", real(0, 2, "cat"))],
    "others go than came": [("learn", real(0, 2, "cat")), ("forget", real(2, 4, "cat"))],
    "a class goes that never came": [("forget-class", class_record('"bird"'))],
    "sums of no samples are left": [
        ("learn", samples_record(np.ones((4, WIDTH), np.int8), LabelIndex(["cat", "cat", "dog", "dog"]))),
        ("learn", samples_record(np.ones((2, WIDTH), np.int8), LabelIndex(["cat", "dog"]))),
        ("forget", samples_record(np.full((2, WIDTH), 127, np.int8), LabelIndex(["cat", "dog"]))),
    ],
}


@pytest.mark.parametrize("name", HISTORIES)
def test_a_history_that_cannot_be_is_refused(held: tuple[Path, list[bytes]], name: str) -> None:
    journal(held[0], *HISTORIES[name])
    assert "does not fit its sums" in refused(held[0])


def test_a_class_goes_from_a_store_without_sums_of_classes(tmp_path: Path) -> None:
    classifier = AnalyticClassifier(RandomProjection(24, seed=1), 2**9, hardware="numpy")
    with store.create(tmp_path / "s", BACKBONE, classifier, keys=KEYS) as opened:
        opened.learn(ROWS[:2], ["cat", "cat"])
    record = samples_record(Q[:2], LabelIndex(["cat", "cat"]))
    journal(tmp_path / "s", ("learn", record), ("forget-class", class_record('"cat"')))
    assert "does not fit its sums" in refused(tmp_path / "s")


def test_a_receipt_whose_sample_the_sums_do_not_have(
    held: tuple[Path, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger holds the sample, and the sums cannot: the error says so, and nothing is changed."""
    journal(held[0], ("learn", samples_record(Q, LabelIndex(["cat", "cat", "dog", "dog"]))))

    def not_part(self: Statistics, other: Statistics) -> None:
        raise NotLearnedError("the samples to be taken away are not those that are held")

    with store.open(held[0], backbone=BACKBONE, keys=KEYS, hardware="numpy") as opened:
        before = opened.digest()
        monkeypatch.setattr(Statistics, "require_part", not_part)
        with pytest.raises(NotLearnedError, match="not those that are held"):
            opened.forget(held[1][:1])
        assert (opened.digest(), opened.status()["samples"]) == (before, COUNT)


@pytest.mark.parametrize(
    "note",
    [
        '{"lines":"5","head":1}',
        '{"lines":5,"head":1}',
        '{"lines":-1,"head":"%s"}' % ("0" * 64),
        '{"lines":true,"head":"%s"}' % ("0" * 64),
        '{"lines":1e3,"head":"%s"}' % ("0" * 64),
        '{"lines":9,"lines":1,"head":"%s"}' % ("0" * 64),
        '{"lines":5,"head":"zz"}',
        "[" * 100_000,
        "5",
    ],
)
def test_a_note_of_the_log_that_is_none(held: tuple[Path, list[bytes]], note: str) -> None:
    folder = held[0]
    with sqlite3.connect(folder / "ledger.sqlite") as ledger:
        ledger.execute("insert or replace into neverseen_meta values ('audit', ?)", (note,))
    with (
        store.open(folder, backbone=BACKBONE, keys=KEYS, write=False, hardware="numpy") as opened,
        pytest.raises(StoreDamagedError, match="its note 'audit'"),
    ):
        _ = opened.audit_head
