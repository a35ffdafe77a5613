"""What forgetting leaves in the ledger: in its files after scrubbing, and in any table."""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neverseen.errors import LedgerError, NeverseenError
from neverseen.ledger import FORMAT, Ledger, in_file
from neverseen.ledger.migration import STEPS as MIGRATIONS
from neverseen.ledger.postgresql import PostgreSQL
from neverseen.ledger.tables import tables
from tests.ledgers import add, everything, folder_bytes, forgetful, numbers, remove, sample, some, traces


def test_scrubbing_removes_the_bytes(tmp_path: Path) -> None:
    gone = [sample(number)._replace(owner=f'"gone {number}"') for number in range(30)]
    rest = some(900, first=1000)
    with (
        Ledger(f"sqlite:///{tmp_path}/ledger.sqlite", create=True) as ledger,
        Ledger(f"sqlite:///{tmp_path}/ledger.sqlite") as reader,
    ):
        forgetful(ledger, gone, rest)
        list(reader.samples())  # it may stay connected
        secrets = [secret for row in gone for secret in traces(row)] + [b"payload: "]
        raw = folder_bytes(tmp_path)
        assert any(secret in raw for secret in secrets)  # so that the search below can fail
        ledger.scrub()
        raw = folder_bytes(tmp_path)
        assert (tmp_path / "ledger.sqlite-wal").stat().st_size == 0
        for secret in secrets:
            assert secret not in raw
        for row in gone:
            assert row.commitment in raw  # which the certificate says
        for row in rest:
            assert row.number in raw
        assert list(reader.samples()) == sorted(row._replace(state="published") for row in rest)


def test_the_scrubbed_file_is_that_of_a_ledger_that_never_learned(tmp_path: Path) -> None:
    gone, rest = some(300), some(2000, first=1000)
    files = []
    for name in ("forgot", "never"):
        path = tmp_path / name
        with Ledger(f"sqlite:///{path}", create=True) as ledger:
            with ledger._database.writing() as transaction:
                transaction.run(sa.text("UPDATE neverseen_migrations SET applied = ''"))
            if name == "forgot":
                add(ledger, gone[:100] + rest[1500:])
                add(ledger, gone[100:] + rest[:700])
                remove(ledger, gone[50:])
                ledger.scrub()
                add(ledger, rest[700:1500])
                remove(ledger, gone[:50])
            else:
                add(ledger, rest)
            with ledger._database.writing() as transaction:
                transaction.run(sa.text("DELETE FROM neverseen_pending"))  # what certificates say is what differs
            ledger.scrub()
        raw = bytearray(path.read_bytes())
        for start in (24, 40, 92):  # SQLite counts changes, changes of the schema, and changes again
            raw[start : start + 4] = bytes(4)
        files.append(bytes(raw))
    assert files[0] == files[1]


def test_a_reader_in_the_way_of_scrubbing(ledger: Ledger, url: str) -> None:
    rows = some(1000)
    add(ledger, rows)
    with Ledger(url) as other:
        reading = other.samples()
        next(reading)
        remove(ledger, rows[:10])
        with pytest.raises(LedgerError, match="is being read|in use"):
            ledger.scrub()
        assert len(list(reading)) == 999
        ledger.scrub()
    assert list(ledger.samples()) == sorted(rows[10:])


def test_a_reader_who_comes_while_postgresql_scrubs(schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PostgreSQL, "_wait_for_older_readers", lambda *_: None)
    with Ledger(schema, create=True, patience=0.2) as ledger, Ledger(schema) as other:
        rows = some(1000)
        add(ledger, rows)
        reading = other.samples()
        next(reading)
        with pytest.raises(LedgerError, match="is being read") as refused:
            ledger.scrub()
        assert refused.value.being_read
        assert len(list(reading)) == 999
        ledger.scrub()


def test_scrubbing_again_and_again_beside_a_reader_does_not_fill_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with Ledger(in_file(path), create=True, patience=0.02) as ledger:
        rows = some(3000)
        add(ledger, rows)
        ledger.scrub()
        size = path.stat().st_size
        with closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM neverseen_meta").fetchall()
            remove(ledger, rows[:1])
            for _ in range(4):
                with pytest.raises(LedgerError, match="is being read") as refused:
                    ledger.scrub()
                assert refused.value.being_read
            assert path.with_name("ledger.sqlite-wal").stat().st_size < size
        ledger.scrub()
        assert path.with_name("ledger.sqlite-wal").stat().st_size == 0


# -- what is left of what went -----------------------------------------------------------------------


def test_no_trace_in_any_table(ledger: Ledger) -> None:
    gone, rest = some(20), some(30, first=100)
    forgetful(ledger, gone, rest)
    ledger.scrub()
    found = everything(ledger)
    with ledger.writing() as writing:
        writing.remove(numbers(rest))
        writing.add([row._replace(state="published") for row in rest])
        last = writing.append("learn", b"")
        writing.drop_journal(last)
    ledger.scrub()
    again = everything(ledger)
    assert again.pop("neverseen_pending") == sorted((row.commitment,) for row in rest)
    assert again | {"neverseen_pending": []} == found
    assert found.pop("neverseen_certified") == sorted((row.commitment, 2) for row in gone)
    assert found.pop("neverseen_classes") == [('"cat"', 30)]
    assert found.pop("neverseen_meta") == [("certificate", "2"), ("format", FORMAT)]
    assert [row[:9] for row in found.pop("neverseen_samples")] == [row[:9] for row in sorted(rest)]
    assert found == {
        "neverseen_journal": [],
        "neverseen_pending": [],
        "neverseen_requests": [],
        "neverseen_migrations": [(step.number, step.what) for step in MIGRATIONS],
    }


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.integers(0, 11), unique=True, max_size=5)),
        st.tuples(st.just("remove"), st.lists(st.integers(0, 11), unique=True, max_size=4)),
        st.tuples(st.just("remove_class"), st.integers(0, 2)),
        st.tuples(st.just("certify"), st.just(0)),
    ),
    max_size=12,
)


@given(steps=STEPS)
@settings(max_examples=30)
def test_any_history_ends_in_what_is_left(steps: list[tuple[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder, Ledger(f"sqlite:///{folder}/a", create=True) as ledger:
        check_history(ledger, steps)
        with Ledger(f"sqlite:///{folder}/b", create=True) as never:
            rows = list(ledger.samples())
            add(never, [row._replace(state="published") for row in rows])
            with ledger.writing() as writing:
                writing.certify(100)
            for book in (ledger, never):
                book.scrub()
            found, expected = everything(ledger), everything(never)
            for name in ("neverseen_samples", "neverseen_classes", "neverseen_pending", "neverseen_journal"):
                assert found[name] == expected[name]


@given(steps=STEPS)
@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
def test_any_history_in_postgresql(schema: str, steps: list[tuple[str, Any]]) -> None:
    engine = sa.create_engine(schema)
    tables.drop_all(engine)
    engine.dispose()
    with Ledger(schema, create=True) as ledger:
        check_history(ledger, steps)


def check_history(ledger: Ledger, steps: list[tuple[str, Any]]) -> None:
    """Follow a history in a dict, and compare after each step."""
    held: dict[int, str] = {}
    waiting: set[bytes] = set()
    issued: dict[bytes, int] = {}
    known = [sample(number, name=f'"{number % 3}"', member=number // 2) for number in range(12)]
    for step, (verb, what) in enumerate(steps, 1):
        chosen = [] if verb in ("remove_class", "certify") else what
        if verb == "add":
            refused = any(number in held for number in chosen)
        elif verb == "remove":
            refused = any(number not in held for number in chosen)
        else:
            chosen = [number for number in sorted(held) if number % 3 == what] if verb == "remove_class" else []
            refused = verb == "remove_class" and not chosen
        before = everything(ledger)
        try:
            with ledger.writing() as writing:
                if verb == "add":
                    writing.add([known[number] for number in chosen])
                elif verb == "remove":
                    writing.remove([known[number].number for number in chosen])
                elif verb == "remove_class":
                    writing.remove_class(f'"{what}"')
                else:
                    writing.certify(step)
        except NeverseenError:
            assert refused
            assert everything(ledger) == before
            continue
        assert not refused
        if verb == "add":
            held |= dict.fromkeys(chosen, "learned")
        elif verb == "certify":
            held = dict.fromkeys(held, "published")
            issued |= dict.fromkeys(waiting, step)
            waiting = set()
        else:
            waiting |= {known[number].commitment for number in chosen}
            held = {number: state for number, state in held.items() if number not in chosen}
        rows = sorted(known[number]._replace(state=state) for number, state in held.items())
        assert list(ledger.samples()) == rows
        assert ledger.pending() == sorted(waiting)
        names = [row.name for row in rows]
        assert ledger.counts() == {name: names.count(name) for name in sorted(set(names))}
        assert {row.commitment: ledger.certificates_of([row.commitment]).get(row.commitment) for row in known} == {
            row.commitment: issued.get(row.commitment) for row in known
        }
        members = {row.member for row in rows}
        assert ledger.by_members([row.member for row in known]) == {
            member: [row for row in rows if row.member == member] for member in members
        }
