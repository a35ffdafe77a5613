"""The promise: what no ledger writes is refused with a word about damage, before it is used or costs memory.

SQLite keeps a value of any type in any column. So whoever hands over a store can put a number where bytes belong: taken
for a size, it asks for gigabytes. A note may be no number, or one that none can follow, and a sample that is held may be
noted as forgotten, which the next certificate would then say. A receipt may be said to be in a certificate that does not
list it.
"""

from __future__ import annotations

import shutil
import sqlite3
import tracemalloc
from contextlib import closing
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from neverseen import Keyring, LedgerError, StoreDamagedError
from neverseen.ledger import Ledger, RequestRow, in_file
from neverseen.proof.receipts import commitment
from neverseen.store import open as open_store
from tests.ledgers import add, remove, some
from tests.store.test_store import BACKBONE, IDS, KEYS, LABELS, ROWS, new, opened

COUNT, HELD = 20, 5
MEMORY = 2**24
LARGE = 2_000_000_000


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[bytes]]:
    """A store with a certificate, a journal and something forgotten since."""
    folder = tmp_path_factory.mktemp("odd") / "s"
    with new(folder) as store:
        receipts = store.learn(ROWS[:COUNT], LABELS[:COUNT], IDS[:COUNT])
        store.forget(receipts[:1])
        store.publish()
        store.forget(receipts[1:2])
    return folder, receipts


def alter(folder: Path, statement: str, *values: Any) -> None:
    with closing(sqlite3.connect(folder / "ledger.sqlite", isolation_level=None)) as database:
        database.execute(statement, values)


def look(folder: Path, write: bool) -> None:
    with opened(folder, write=write) as store:
        assert not write  # a writer is refused when it opens the store
        store.check()


ODD: dict[str, tuple[Any, ...]] = {
    "a journal row that is a number": ("UPDATE neverseen_journal SET payload = ?", LARGE),
    "a journal row that is a text": ("UPDATE neverseen_journal SET payload = 'x'",),
    "a kind that is bytes": ("UPDATE neverseen_journal SET kind = x'00'",),
    "a commitment that is a number": ("INSERT INTO neverseen_pending VALUES (?)", LARGE),
    "a commitment that is a negative number": ("INSERT INTO neverseen_pending VALUES (-3)",),
    "a commitment that is a text": ("INSERT INTO neverseen_pending VALUES (?)", "0" * 32),
    "a commitment of one byte": ("INSERT INTO neverseen_pending VALUES (x'00')",),
    "a certificate that is no number": ("UPDATE neverseen_meta SET value = 'abc' WHERE key = 'certificate'",),
    "a certificate that was never signed": ("UPDATE neverseen_meta SET value = '999' WHERE key = 'certificate'",),
    "no certificate": ("DELETE FROM neverseen_meta WHERE key = 'certificate'",),
    "a count that is a text": ("UPDATE neverseen_classes SET samples = 'x'",),
    "a journal that began at no time": ("UPDATE neverseen_meta SET value = 'abc' WHERE key = 'oldest'",),
    "a note that is bytes": ("UPDATE neverseen_meta SET value = x'00' WHERE key = 'snapshot'",),
}
ODD_WHEN_CHECKED: dict[str, tuple[Any, ...]] = {
    "a sequence that is no number": ("UPDATE neverseen_meta SET value = 'abc' WHERE key = 'sequence'",),
    "a sequence that none follows": ("UPDATE neverseen_meta SET value = ? WHERE key = 'sequence'", str(2**63 - 1)),
    "a sequence before the journal's": ("UPDATE neverseen_meta SET value = '1' WHERE key = 'sequence'",),
    "a journal row before the first": ("INSERT INTO neverseen_journal VALUES (-1, 'learn', x'00')",),
    "a certified commitment of one byte": ("INSERT INTO neverseen_certified VALUES (x'00', 1)",),
    "a certified commitment that is a number": ("INSERT INTO neverseen_certified VALUES (?, 1)", LARGE),
    "a certificate to come": ("INSERT INTO neverseen_certified VALUES (?, 2)", bytes(32)),
    "a request with a number for a body": (
        "INSERT INTO neverseen_requests VALUES (1, 'r', NULL, 'c', 'learn', 1, ?, 0, 0, NULL)",
        LARGE,
    ),
    "a request with a text for a tag": (
        "INSERT INTO neverseen_requests VALUES (1, 'r', 't', 'c', 'learn', 1, NULL, 0, 0, NULL)",
    ),
    "a request that none follows": (
        "INSERT INTO neverseen_requests VALUES (?, 'r', NULL, 'c', 'learn', 1, NULL, 0, 0, NULL)",
        2**63 - 1,
    ),
    "a sample whose version is a text": ("UPDATE neverseen_samples SET version = 'x'",),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("write", [False, True])
def test_what_is_odd_is_refused(tmp_path: Path, made: tuple[Path, list[bytes]], name: str, write: bool) -> None:
    folder = tmp_path / "s"
    shutil.copytree(made[0], folder)
    alter(folder, *ODD[name])
    with pytest.raises((LedgerError, StoreDamagedError)):
        look(folder, write)


@pytest.mark.parametrize("name", ODD_WHEN_CHECKED)
def test_what_is_odd_is_found(tmp_path: Path, made: tuple[Path, list[bytes]], name: str) -> None:
    folder = tmp_path / "s"
    shutil.copytree(made[0], folder)
    alter(folder, *ODD_WHEN_CHECKED[name])
    with opened(folder, write=False) as store, pytest.raises(LedgerError, match="damaged"):
        store.check()


def test_a_ledger_that_does_not_say_which_keys_it_takes(tmp_path: Path, made: tuple[Path, list[bytes]]) -> None:
    """Any keys would seem right. Samples learned under others are not found by its own."""
    folder = tmp_path / "s"
    shutil.copytree(made[0], folder)
    alter(folder, "DELETE FROM neverseen_meta WHERE key = 'key_check'")
    for keys in (KEYS, Keyring.generate()):
        with pytest.raises(StoreDamagedError, match="which keys it takes: restore it from a copy"):
            open_store(folder, backbone=BACKBONE, keys=keys)
        with open_store(folder, write=False, keys=keys) as reader, pytest.raises(StoreDamagedError, match="which keys"):
            reader.holds(made[1][:1])


def test_a_sequence_that_none_follows(tmp_path: Path, made: tuple[Path, list[bytes]]) -> None:
    folder = tmp_path / "s"
    shutil.copytree(made[0], folder)
    alter(folder, *ODD_WHEN_CHECKED["a sequence that none follows"])
    with opened(folder) as store, pytest.raises(LedgerError, match="damaged"):
        store.learn(ROWS[COUNT:], LABELS[COUNT:], IDS[COUNT:])


def test_a_sample_that_is_held_is_not_certified_as_forgotten(tmp_path: Path, made: tuple[Path, list[bytes]]) -> None:
    folder, receipts = tmp_path / "s", made[1]
    shutil.copytree(made[0], folder)
    alter(folder, "INSERT INTO neverseen_pending VALUES (?)", commitment(receipts[HELD]))
    with pytest.raises(StoreDamagedError, match="noted as forgotten"):
        opened(folder)
    with opened(folder, write=False) as store, pytest.raises(StoreDamagedError, match="noted as forgotten"):
        store.check()


FORGED: dict[str, tuple[Any, ...]] = {
    "one more": ("INSERT INTO neverseen_certified SELECT commitment, 1 FROM neverseen_samples LIMIT 1",),
    "one less": ("DELETE FROM neverseen_certified",),
    "another": ("UPDATE neverseen_certified SET commitment = ?", bytes(32)),
    "another certificate": ("UPDATE neverseen_certified SET certificate = 2",),
}


@pytest.mark.parametrize("name", FORGED)
def test_the_ledger_says_of_certificates_what_they_say(
    tmp_path: Path, made: tuple[Path, list[bytes]], name: str
) -> None:
    folder = tmp_path / "s"
    shutil.copytree(made[0], folder)
    with opened(folder) as store:
        store.publish()  # a second certificate
        store.check()
    alter(folder, *FORGED[name])
    for write in (False, True):
        with opened(folder, write=write) as store, pytest.raises(StoreDamagedError, match="than its certificates list"):
            store.check()


@pytest.mark.parametrize("column", ["name", "id", "owner", "learned", "number"])
def test_a_sample_of_other_types_with_a_good_checksum(tmp_path: Path, column: str) -> None:
    path = tmp_path / "ledger.sqlite"
    (row,) = some(1)
    with Ledger(in_file(path), create=True) as ledger:
        add(ledger, [row])
        odd: Any = LARGE if column == "number" else b"x"
        values = row._asdict() | {column: odd}
        texts = "\0".join(f"{values[name]}" for name in ("name", "id", "owner", "learned"))
        check = crc32(texts.encode(), crc32(row.number + row.content + row.member + row.commitment + row.salt))
        alter(tmp_path, f"UPDATE neverseen_samples SET {column} = ?, checksum = ?", odd, check)  # noqa: S608
        for look in (ledger.check, lambda: list(ledger.samples()), lambda: ledger.by_numbers([row.number])):
            with pytest.raises(LedgerError, match="damaged"):
                look()


def test_a_number_is_not_taken_for_a_size(tmp_path: Path) -> None:
    with Ledger(in_file(tmp_path / "ledger.sqlite"), create=True) as ledger:
        with ledger.writing() as writing:
            writing.append("learn", b"x")
            writing.note_requests([RequestRow("r", bytes(16), "c", "learn", 1, None, 0)])
        alter(tmp_path, "UPDATE neverseen_journal SET payload = ?", LARGE)
        alter(tmp_path, "UPDATE neverseen_requests SET body = ?", LARGE)
        alter(tmp_path, "INSERT INTO neverseen_pending VALUES (?)", LARGE)
        tracemalloc.start()
        try:
            for look in (lambda: list(ledger.journal()), lambda: ledger.request("r"), ledger.pending):
                with pytest.raises(LedgerError, match="damaged"):
                    look()
            assert tracemalloc.get_traced_memory()[1] < MEMORY
        finally:
            tracemalloc.stop()


def test_receipts_without_salt_may_be_pending_and_held(tmp_path: Path) -> None:
    """A sample that was forgotten and learned again had the same receipt, before receipts had a salt."""
    with Ledger(in_file(tmp_path / "ledger.sqlite"), create=True) as ledger:
        salted, old = some(2)
        old = old._replace(salt=b"")
        add(ledger, [salted, old])
        remove(ledger, [old])
        add(ledger, [old])
        assert not ledger.holds_pending()
        remove(ledger, [salted])
        assert not ledger.holds_pending()
        add(ledger, [salted])
        assert ledger.holds_pending()


@pytest.mark.parametrize("write", [False, True])
def test_a_forget_that_is_no_longer_noted(tmp_path: Path, write: bool) -> None:
    """The next certificate would not list it, and say that nothing was forgotten. As many were learned since."""
    folder = tmp_path / "s"
    with new(folder) as store:
        receipts = store.learn(ROWS[:COUNT], LABELS[:COUNT], IDS[:COUNT])
        store.publish()
        store.forget(receipts[:2])
        store.learn(ROWS[COUNT : COUNT + 3], LABELS[COUNT : COUNT + 3], IDS[COUNT : COUNT + 3])
    alter(folder, "DELETE FROM neverseen_pending WHERE commitment = ?", commitment(receipts[0]))
    with pytest.raises(StoreDamagedError, match="has 18 samples of certificate 1 and 1 forgotten since, .* states 20"):
        look(folder, write)


def test_samples_that_are_passed_off_as_certified(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    with new(folder) as store:
        store.learn(ROWS[:COUNT], LABELS[:COUNT], IDS[:COUNT])
        store.publish()
        store.learn(ROWS[COUNT : COUNT + 3], LABELS[COUNT : COUNT + 3], IDS[COUNT : COUNT + 3])
    alter(folder, "UPDATE neverseen_samples SET version = 0")
    with pytest.raises(StoreDamagedError, match="has 23 samples of certificate 1"):
        look(folder, write=True)


def test_all_ways_of_changing_since_a_certificate_are_good(tmp_path: Path) -> None:
    with new(tmp_path / "s") as store:
        receipts = store.learn(ROWS[:COUNT], LABELS[:COUNT], IDS[:COUNT])
        store.publish()
        more = store.learn(ROWS[COUNT : COUNT + 3], LABELS[COUNT : COUNT + 3], IDS[COUNT : COUNT + 3])
        store.forget([*receipts[:2], *more[:2]])
        store.learn(ROWS[:1], LABELS[:1], IDS[:1])
        store.check()
        store.scrub()
        store.check()
    with opened(tmp_path / "s") as store:
        store.check()
        store.publish()
        store.check()
