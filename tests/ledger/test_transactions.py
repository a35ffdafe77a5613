"""Transactions of the ledger and how it is opened: all or nothing, one writer, on SQLite and on PostgreSQL."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from neverseen.errors import InputError, LedgerError
from neverseen.ledger import FORMAT, Ledger
from neverseen.ledger import rows as rows_module
from neverseen.ledger.migration import STEPS
from tests.ledgers import SOME, add, everything, numbers, remove, sample, some

# -- transactions ------------------------------------------------------------------------------------


class Interruption(BaseException):
    pass


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, Interruption])
def test_all_or_nothing(ledger: Ledger, error: type[BaseException]) -> None:
    rows = some()
    add(ledger, rows[:3])
    before = everything(ledger)

    def change_and_fail() -> None:
        with ledger.writing() as writing:
            writing.append("learn", b"payload")
            writing.add(rows[3:])
            writing.remove(numbers(rows[:1]))
            writing.remove_class('"cat"')
            writing.set_meta("key", "value")
            writing.certify(1)
            writing.drop_journal(1)
            raise error

    with pytest.raises(error):
        change_and_fail()
    assert everything(ledger) == before
    with ledger.writing() as writing:
        assert writing.append("learn", b"") == 1


def test_a_failure_that_is_passed_over_is_not_committed(ledger: Ledger) -> None:
    add(ledger, some(1))
    before = everything(ledger)

    def pass_over() -> None:
        with ledger.writing() as writing:
            writing.add([sample(5)])
            with pytest.raises(InputError):
                writing.add([sample(6), sample(0)])

    with pytest.raises(LedgerError, match="an error during a change of the ledger was ignored"):
        pass_over()
    assert everything(ledger) == before


def test_reading_inside_writing_sees_what_is_written(ledger: Ledger, url: str) -> None:
    rows = some()
    with Ledger(url) as other, ledger.writing() as writing:
        writing.add(rows)
        sequence = writing.append("learn", b"x")
        assert list(ledger.samples()) == sorted(rows)
        assert ledger.counts() == {'"cat"': SOME}
        assert [row.sequence for row in ledger.journal()] == [sequence]
        assert list(other.samples()) == []  # another reader does not, and does not wait
        assert other.counts() == {}
        seen = []
        for row in ledger.samples():  # what is read may be removed on the way
            seen.append(row)
            writing.remove([row.number])
        assert seen == sorted(rows)
        left_over = ledger.samples()
        writing.add(some(1000))
        next(left_over)
    with pytest.raises(LedgerError, match="over: ask the ledger again"):
        list(left_over)


def test_a_reading_sees_one_state(ledger: Ledger, url: str) -> None:
    rows = some(1000)
    add(ledger, rows)
    with Ledger(url) as other:
        reading = other.samples()
        first = next(reading)
        remove(ledger, rows[500:])
        add(ledger, some(10, first=5000))
        assert [first, *reading] == sorted(rows)
        assert len(list(other.samples())) == 510


def test_threads_share_a_ledger(ledger: Ledger) -> None:
    add(ledger, some())
    problems: list[BaseException] = []

    def read() -> None:
        try:
            for _ in range(20):
                assert SOME <= sum(ledger.counts().values()) <= len(list(ledger.samples()))
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(100, 120):
        add(ledger, [sample(number)])
    for thread in threads:
        thread.join()
    assert problems == []


def test_one_writer(ledger: Ledger, url: str) -> None:
    with Ledger(url, patience=0.3) as other:
        with ledger.writing() as writing:
            with (
                pytest.raises(LedgerError, match="in use by another writer: wait for it to end, and try again"),
                other.writing(),
            ):
                pass
            with pytest.raises(LedgerError, match="already"), ledger.writing():
                pass
            with pytest.raises(LedgerError, match="already"):
                ledger.scrub()
            writing.add(some())
        remove(other, some())  # now it may


def test_another_writer_waits(url: str) -> None:
    with Ledger(url, create=True) as ledger, Ledger(url) as other:
        began = threading.Event()

        def write() -> None:
            with other.writing() as writing:
                began.set()
                writing.add([sample(1)])

        thread = threading.Thread(target=write)
        with ledger.writing() as writing:
            thread.start()
            assert not began.wait(0.2)
            writing.add([sample(0)])
        thread.join()
        assert len(list(ledger.samples())) == 2


def test_a_closed_connection_is_replaced(ledger: Ledger) -> None:
    ledger.close()
    add(ledger, some())
    assert ledger.counts() == {'"cat"': SOME}


def test_killed_in_the_middle(url: str) -> None:
    with Ledger(url, create=True, patience=5) as ledger:
        add(ledger, some(3))
        before = everything(ledger)
        script = (
            "import os, sys; from neverseen.ledger import Ledger; from tests.ledgers import some\n"
            "with Ledger(sys.argv[1]).writing() as writing:\n"
            "    writing.add(some(2000, first=100)); writing.append('learn', b'x'); os.kill(os.getpid(), 9)"
        )
        root = Path(__file__).parents[2]
        paths = os.pathsep.join([str(root), *sys.path])
        done = subprocess.run([sys.executable, "-c", script, url], env=os.environ | {"PYTHONPATH": paths}, check=False)
        assert done.returncode == -9
        assert everything(ledger) == before
        add(ledger, some(2000, first=100))


# -- opening -----------------------------------------------------------------------------------------


def test_made_once(ledger: Ledger, url: str) -> None:
    with pytest.raises(LedgerError, match="in use already: choose another place, or open it"):
        Ledger(url, create=True)
    add(ledger, some())  # it was not touched


def test_what_was_changed_when(ledger: Ledger) -> None:
    with ledger._database.reading() as transaction:
        rows = transaction.rows(sa.text("SELECT number, applied, what FROM neverseen_migrations"))
    assert [(number, what) for number, _, what in rows] == [(step.number, step.what) for step in STEPS]
    assert all(applied.endswith("+00:00") for _, applied, _ in rows)


@pytest.mark.parametrize("found", ["neverseen-ledger-3", "something else"])
def test_other_formats_are_refused(ledger: Ledger, url: str, found: str) -> None:
    with ledger._database.writing() as transaction:
        transaction.run(sa.text("UPDATE neverseen_meta SET value = :found WHERE key = 'format'"), {"found": found})
    with pytest.raises(LedgerError, match=f"is of format '{found}', and this version of neverseen reads '{FORMAT}'"):
        Ledger(url)


def test_what_is_no_ledger_is_refused(url: str) -> None:
    if url.startswith("sqlite"):
        path = Path(url.removeprefix("sqlite:///"))
        with pytest.raises(LedgerError, match=f"the ledger {path} is missing: restore it"):
            Ledger(url)
        assert not path.exists()
        connection = sqlite3.connect(path)
        connection.execute("CREATE TABLE samples (number)")
        connection.close()
        with pytest.raises(LedgerError, match="in use already"):
            Ledger(url, create=True)
    with pytest.raises(LedgerError, match="is not a ledger: restore it from a copy, or create it elsewhere"):
        Ledger(url)


def test_a_commit_that_fails_is_uncertain(ledger: Ledger, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(connection: sa.Connection) -> None:
        raise sa.exc.OperationalError("", None, OSError("as if"))

    with monkeypatch.context() as patch:
        patch.setattr(sa.Connection, "commit", fail)
        with pytest.raises(LedgerError, match="Whether the last change was made is not known") as refusal:
            add(ledger, some())
    assert refusal.value.uncertain
    with pytest.raises(LedgerError, match="open it again to see") as refusal:
        add(ledger, some())
    assert refusal.value.uncertain
    with Ledger(url) as again:
        assert list(again.samples()) == []
        add(again, some())


FAILURES = [
    KeyboardInterrupt(),
    sa.exc.OperationalError("", None, OSError("as if")),
    sa.exc.ResourceClosedError("as if"),
]


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
def test_a_read_that_fails_makes_nothing_certain(
    ledger: Ledger, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(connection: sa.Connection) -> None:
        raise error

    ledger.stop_writing()
    with monkeypatch.context() as patch:
        patch.setattr(sa.Connection, "commit", fail)
        with pytest.raises((LedgerError, KeyboardInterrupt)) as interrupted:
            ledger.counts()
    assert not getattr(interrupted.value, "uncertain", False)
    with pytest.raises(LedgerError, match="open it again to see") as refusal:
        add(ledger, some())
    assert refusal.value.uncertain


def test_a_commit_that_fails_in_any_way_is_uncertain(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(connection: sa.Connection) -> None:
        raise FAILURES[2]

    with monkeypatch.context() as patch:
        patch.setattr(sa.Connection, "commit", fail)
        with pytest.raises(LedgerError, match="Whether the last change was made is not known") as refusal:
            add(ledger, some())
    assert refusal.value.uncertain


def test_a_check_sees_one_state(ledger: Ledger, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another process adds after the rows were read is not missing from them."""
    add(ledger, some())
    in_order = rows_module.in_order

    def read_and_add(*about: Any) -> Iterator[Any]:
        yield from in_order(*about)
        with Ledger(url) as other:
            add(other, some(first=100))

    monkeypatch.setattr(rows_module, "in_order", read_and_add)
    ledger.check()
    assert ledger.total() == 2 * len(some())
