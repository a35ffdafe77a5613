"""The ledger, in a SQLite file and in PostgreSQL: the same tests for both."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import stat
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from neverseen import InputError, LedgerError
from neverseen import ledger as ledger_module
from neverseen.ledger import FORMAT, JournalRow, Ledger, SampleRow, in_file
from tests.postgresql import database


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'ledger'}"
        return
    with database(request.getfixturevalue("postgresql"), "ledger_tests") as place:
        yield place


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    made = Ledger(url, create=True)
    yield made
    made.close()


def is_file(url: str) -> bool:
    return url.startswith("sqlite")


def digest(kind: str, number: int, size: int = 16) -> bytes:
    return hashlib.blake2b(f"{kind} {number}".encode(), digest_size=size).digest()


def row(number: int, name: str = '"cat"', member: int | None = None, state: str = "learned") -> SampleRow:
    return SampleRow(
        digest("number", number),
        digest("content", number),
        digest("member", number if member is None else member),
        name,
        f'"sample of mine {number:06d}"',
        f'"owner {number:06d}"',
        digest("commitment", number, 32),
        1_700_000_000 + number,
        state,
    )


def everything(ledger: Ledger) -> Any:
    """All that a ledger says."""
    with ledger._engine.connect() as connection:
        return {
            name: sorted(map(tuple, connection.execute(sa.select(table))), key=repr)
            for name, table in ledger_module._tables.tables.items()
        }


# -- what goes in comes out --------------------------------------------------------------------------


def test_round_trips(ledger: Ledger, url: str) -> None:
    odd = row(3)._replace(name='"Größe \\u0000 日本"', id="-7", owner="null", content=bytes(16), learned=2**40)
    rows = [row(1), row(2, '"dog"'), odd]
    with ledger.writing() as writing:
        assert writing.append("learn", b"\0\xff'\"") == 1
        assert writing.append("forget", b"") == 2
        writing.add(rows)
        writing.set_meta("snapshot", "first")
        writing.set_meta("snapshot", "it's ünïcode")
    ledger.close()
    again = Ledger(url)
    assert list(again.samples()) == sorted(rows)
    assert list(again.samples('"dog"')) == [row(2, '"dog"')]
    assert list(again.samples('"bird"')) == []
    assert again.counts() == {'"cat"': 1, '"dog"': 1, odd.name: 1}
    assert list(again.journal()) == [JournalRow(1, "learn", b"\0\xff'\""), JournalRow(2, "forget", b"")]
    assert again.meta("snapshot") == "it's ünïcode"
    assert again.meta("nothing") is None
    assert again.by_numbers([odd.number, b"unknown"]) == {odd.number: odd}
    assert again.knows_contents([bytes(16), b"unknown"]) == {bytes(16)}
    with again.writing() as writing:
        writing.set_meta("snapshot", None)
        writing.set_meta("never there", None)
        writing.remove([row(2).number, b"unknown"])
        writing.drop_journal(1)
        assert writing.append("learn", b"next") == 3
    assert again.meta("snapshot") is None
    assert again.pending() == [row(2).commitment]
    assert [record.sequence for record in again.journal()] == [2, 3]
    with again.writing() as writing:
        writing.drop_journal(3)
        assert writing.append("learn", b"") == 1  # nothing tells how many there were
    again.close()


def test_an_empty_ledger(ledger: Ledger) -> None:
    assert (list(ledger.samples()), ledger.counts(), list(ledger.journal()), ledger.pending()) == ([], {}, [], [])
    assert (ledger.by_numbers([]), ledger.by_members([]), ledger.knows_contents([])) == ({}, {}, set())
    with ledger.writing() as writing:
        writing.add([])
        writing.remove([])
        writing.remove_class('"nobody"')
        writing.drop_journal(10)
        writing.certify(1)
    assert ledger.certificate_of(bytes(32)) is None


def test_members_held_more_than_once(ledger: Ledger) -> None:
    twins = [row(number, member=0) for number in range(4)]
    with ledger.writing() as writing:
        writing.add([*twins, row(9)])
    found = ledger.by_members([twins[0].member, twins[0].member, row(9).member, b"unknown"])
    assert {member: sorted(rows) for member, rows in found.items()} == {
        twins[0].member: sorted(twins),
        row(9).member: [row(9)],
    }
    with ledger.writing() as writing:
        writing.remove([twins[2].number])
    assert len(ledger.by_members([twins[0].member])[twins[0].member]) == 3


def test_many_rows(ledger: Ledger) -> None:
    """Requests of any size are cut into statements that the database takes; long answers come piece by piece."""
    rows = [row(number, f'"{number % 7}"') for number in range(40_000)]
    with ledger.writing() as writing:
        writing.add(rows)
    asked = rows[::13][:3000]
    assert ledger.by_numbers(row.number for row in asked) == {row.number: row for row in asked}
    assert set(ledger.by_members([row.member for row in asked])) == {row.member for row in asked}
    assert ledger.knows_contents(row.content for row in asked) == {row.content for row in asked}
    assert sum(ledger.counts().values()) == 40_000
    stream = ledger.samples()
    first = [next(stream) for _ in range(10)]
    stream.close()  # type: ignore[attr-defined]
    assert first == sorted(rows)[:10]
    assert [row.number for row in ledger.samples()] == sorted(row.number for row in rows)
    with ledger.writing() as writing:
        writing.remove([row.number for row in asked])
        writing.remove_class('"3"')
    assert set(ledger.pending()) == {row.commitment for row in [*asked, *rows[3::7]]}


def test_reading_inside_writing_sees_the_change(ledger: Ledger) -> None:
    with ledger.writing() as writing:
        writing.add([row(1), row(2)])
        assert ledger.counts() == {'"cat"': 2}
        assert list(ledger.samples()) == sorted([row(1), row(2)])  # streamed, inside the same transaction
        assert list(ledger.journal()) == []
        writing.append("learn", b"after a stream")
        writing.add([row(3)])
        with pytest.raises(InputError, match="changing the ledger already"), ledger.writing():
            pass
        assert set(ledger.by_numbers([row(3).number])) == {row(3).number}
    assert ledger.counts() == {'"cat"': 3}


# -- all or nothing ----------------------------------------------------------------------------------


def test_an_error_leaves_no_trace(ledger: Ledger) -> None:
    with ledger.writing() as writing:
        writing.add([row(1), row(2)])
        writing.append("learn", b"first")
        writing.set_meta("snapshot", "first")
    before = everything(ledger)

    def change(error: BaseException) -> None:
        with ledger.writing() as writing:
            writing.append("forget", b"second")
            writing.remove([row(1).number])
            writing.add([row(3)])
            writing.set_meta("snapshot", None)
            writing.certify(1)
            raise error

    for error in (KeyError("mine"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            change(error)
        assert everything(ledger) == before

    def repeat() -> None:
        with ledger.writing() as writing:
            writing.append("learn", b"second")
            writing.add([row(4), row(2)])

    with pytest.raises(LedgerError, match="there already.*Nothing was changed") as refusal:
        repeat()
    assert not refusal.value.uncertain
    assert row(2).number.hex() not in "".join(traceback.format_exception(refusal.value))
    assert everything(ledger) == before
    with ledger.writing() as writing:  # and it goes on
        writing.add([row(3)])
    assert ledger.counts() == {'"cat"': 3}


# -- what was forgotten ------------------------------------------------------------------------------


def test_commitments_wait_for_a_certificate(ledger: Ledger) -> None:
    rows = [row(number) for number in range(10)]
    with ledger.writing() as writing:
        writing.add(rows)
        writing.certify(1)
    assert {row.state for row in ledger.samples()} == {"published"}
    with ledger.writing() as writing:
        writing.remove([rows[5].number, rows[1].number])
        writing.add([row(10)])
    assert ledger.pending() == sorted([rows[1].commitment, rows[5].commitment])
    assert ledger.certificate_of(rows[1].commitment) is None
    with ledger.writing() as writing:  # one comes back: it did not go
        writing.add([rows[5]])
    assert ledger.pending() == [rows[1].commitment]
    with ledger.writing() as writing:
        writing.certify(2)
    assert ledger.pending() == []
    assert ledger.certificate_of(rows[1].commitment) == 2
    assert ledger.certificate_of(rows[5].commitment) is None
    assert {row.state for row in ledger.samples()} == {"published"}
    with ledger.writing() as writing:  # comes back, and goes again: both certificates say so, the last is named
        writing.add([rows[1]])
    with ledger.writing() as writing:
        writing.remove([rows[1].number])
        writing.certify(7)
    assert ledger.certificate_of(rows[1].commitment) == 7


def test_the_order_of_what_went_does_not_show(url: str, ledger: Ledger) -> None:
    """Rows are those of a ledger that never learned what went, and that forgot the same in another order."""
    rows = [row(number, f'"{number % 3}"') for number in range(12)]
    with ledger.writing() as writing:
        writing.add(rows[6:])
    for number in (9, 8, 7):
        with ledger.writing() as writing:
            writing.append("forget", b"")
            writing.remove([rows[number].number])
    with ledger.writing() as writing:
        writing.add(rows[:6])
        writing.add([rows[8]])
    with ledger.writing() as writing:
        writing.remove([rows[8].number])
        writing.certify(1)
        writing.drop_journal(3)
    first = everything(ledger)
    ledger.close()
    if is_file(url):
        Path(url.removeprefix("sqlite:///")).unlink()
    else:
        engine = sa.create_engine(url)
        ledger_module._tables.drop_all(engine)
        engine.dispose()
    other = Ledger(url, create=True)
    with other.writing() as writing:
        writing.add(list(reversed(rows)))
        writing.remove([rows[number].number for number in (7, 8, 9)])
        writing.certify(1)
    assert everything(other) == first
    other.close()


def test_scrubbing_clears_the_files(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "ledger"
    path.parent.mkdir()
    ledger = Ledger(in_file(path), create=True)
    rows = [row(number) for number in range(600)]
    gone = rows[100:150]
    with ledger.writing() as writing:
        writing.add(rows)
        writing.append("learn", b"features of somebody" * 300)
    with ledger.writing() as writing:
        writing.remove([row.number for row in gone])
        writing.append("forget", b"features of somebody" * 300)
        writing.certify(1)
    with ledger.writing() as writing:
        writing.drop_journal(2)

    def traces() -> list[bytes]:
        raw = b"".join(file.read_bytes() for file in path.parent.iterdir())
        parts = [part for row in gone for part in (row.number, row.content, row.member, row.id.encode())]
        return [part for part in [*parts, b"features of somebody"] if part in raw]

    assert traces()  # so that the search can fail
    ledger.scrub()
    assert traces() == []
    assert set(ledger.samples()) == {row._replace(state="published") for row in rows if row not in gone}
    ledger.close()
    assert traces() == []


def test_scrubbing_keeps_what_is_there(ledger: Ledger) -> None:
    with ledger.writing() as writing:
        writing.add([row(number) for number in range(50)])
        writing.append("learn", b"kept")
    with ledger.writing() as writing:
        writing.remove([row(number).number for number in range(20)])
    before = everything(ledger)
    ledger.scrub()
    assert everything(ledger) == before
    with ledger.writing() as writing:
        assert writing.append("learn", b"on it goes") == 2


# -- others ------------------------------------------------------------------------------------------


def test_a_reader_sees_one_state_while_another_writes(ledger: Ledger, url: str) -> None:
    with ledger.writing() as writing:
        writing.add([row(number) for number in range(3000)])
    reader = Ledger(url)
    with ledger.writing() as writing:
        writing.remove([row(0).number])
        assert reader.counts() == {'"cat"': 3000}  # not kept out, and not shown half of it
    assert reader.counts() == {'"cat"': 2999}
    stream = reader.samples()
    numbers = [next(stream).number]
    with ledger.writing() as writing:
        writing.remove_class('"cat"')
    numbers += [row.number for row in stream]
    assert len(numbers) == 2999
    assert reader.counts() == {}
    reader.close()


def test_a_second_writer_waits(ledger: Ledger, url: str) -> None:
    other, order = Ledger(url), []
    started = threading.Event()

    def write() -> None:
        started.set()
        with other.writing() as writing:
            order.append("second")
            assert writing.append("learn", b"second") == 2

    with ledger.writing() as writing:
        thread = threading.Thread(target=write)
        thread.start()
        started.wait()
        thread.join(0.3)
        assert thread.is_alive()
        writing.append("learn", b"first")
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    assert [record.payload for record in ledger.journal()] == [b"first", b"second"]
    other.close()


def test_a_second_writer_gives_up_in_the_end(ledger: Ledger, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "_PATIENCE", 0.2)
    other = Ledger(url)

    def write() -> None:
        with other.writing():
            pytest.fail("two are writing")

    with ledger.writing() as writing:
        writing.add([row(1)])
        with pytest.raises(LedgerError, match="in use by another process"):
            write()
    with other.writing() as writing:
        writing.add([row(2)])
    assert ledger.counts() == {'"cat"': 2}
    other.close()


def test_a_reader_in_the_way_of_scrubbing_is_named(ledger: Ledger, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "_PATIENCE", 0.2)
    with ledger.writing() as writing:
        writing.add([row(number) for number in range(3000)])
    reader, other = Ledger(url), Ledger(url)
    stream = reader.samples()
    next(stream)
    with pytest.raises(LedgerError, match="is being read|in use by another process"):
        other.scrub()
    stream.close()  # type: ignore[attr-defined]
    other.scrub()
    reader.close()
    other.close()


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_a_lost_connection_is_uncertain(url: str, ledger: Ledger) -> None:
    other = Ledger(url)

    def write() -> None:
        with ledger.writing() as writing:
            writing.add([row(1)])
            pid = writing._connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
            with other._engine.begin() as connection:
                connection.exec_driver_sql(f"SELECT pg_terminate_backend({pid}, 5000)")

    with pytest.raises(LedgerError, match="is not known") as refusal:
        write()
    other.close()
    assert refusal.value.uncertain
    assert ledger.counts() == {}  # a new connection was made


def test_a_commit_that_fails_is_uncertain(ledger: Ledger, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(connection: Any) -> None:
        raise ledger._engine.dialect.loaded_dbapi.OperationalError("disk I/O error")

    def write() -> None:
        with ledger.writing() as writing:
            writing.add([row(1)])

    with monkeypatch.context() as patch:
        patch.setattr(ledger._engine.dialect, "do_commit", fail)
        with pytest.raises(LedgerError, match="disk I/O error.*is not known") as refusal:
            write()
    assert refusal.value.uncertain
    with pytest.raises(LedgerError, match="open it again to see"):
        write()
    again = Ledger(url)
    with again.writing() as writing:
        writing.add([row(2)])
    assert again.counts() == {'"cat"': 1}
    again.close()


# -- what is not a ledger ----------------------------------------------------------------------------


def test_a_database_without_a_ledger_is_refused(url: str) -> None:
    with pytest.raises(LedgerError, match="missing"):
        Ledger(url)
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE samples (number integer)")
    engine.dispose()
    with pytest.raises(LedgerError, match="is not a ledger: tables are missing"):
        Ledger(url)
    with pytest.raises(LedgerError, match="holds a ledger already"):
        Ledger(url, create=True)


def test_another_ledger_is_not_overwritten(ledger: Ledger, url: str) -> None:
    with ledger.writing() as writing:
        writing.add([row(1)])
    with pytest.raises(LedgerError, match="holds a ledger already: choose another database"):
        Ledger(url, create=True)
    assert ledger.counts() == {'"cat"': 1}


@pytest.mark.parametrize("found", ["neverseen-ledger-2", None])
def test_another_format_is_refused(ledger: Ledger, url: str, found: str | None) -> None:
    with ledger.writing() as writing:
        writing.set_meta("format", found)
    with pytest.raises(LedgerError, match=f"has the format {found!r}; this version reads '{FORMAT}'"):
        Ledger(url)


def read_all(path: Path) -> None:
    ledger = Ledger(in_file(path))
    try:
        list(ledger.samples())
    finally:
        ledger.close()


def test_damage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = Ledger(in_file(path), create=True)
    with ledger.writing() as writing:
        writing.add([row(number) for number in range(2000)])
    ledger.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xaa" * (len(whole) - 4096))
    with pytest.raises(LedgerError, match="is damaged .*restore it from a copy"):
        read_all(path)
    path.write_bytes(b"no database at all" * 1000)
    with pytest.raises(LedgerError, match="is damaged .*restore it from a copy"):
        Ledger(in_file(path))
    path.write_bytes(b"")
    with pytest.raises(LedgerError, match="is not a ledger"):
        Ledger(in_file(path))
    path.unlink()
    with pytest.raises(LedgerError, match="ledger is missing: restore it from a copy"):
        Ledger(in_file(path))
    assert not path.exists()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("", "cannot be read"),
        ("somewhere", "cannot be read"),
        ("mysql://user:secret@host/name", "not in mysql"),
        ("sqlite://", "give its path"),
        ("sqlite:///:memory:", "give its path"),
        ("sqlite:////nowhere at all/ledger", "cannot be made: No such file"),
        ("postgresql+psycopg://ada:secret@127.0.0.1:1/name", "cannot be used"),
        ("postgresql+nodriver://ada:secret@127.0.0.1:1/name", "needs psycopg"),
    ],
)
def test_what_cannot_be_opened(wrong: str, words: str) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(LedgerError, match=words) as refusal:
        Ledger(wrong, create=True)
    assert "secret" not in "".join(traceback.format_exception(refusal.value))
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://ada@localhost:open-sesame/place",
        "postgresql+psycopg://ada@/place?host=/nowhere&password=open-sesame",
        "postgresql+psycopg://ada:open-sesame@/place?host=/nowhere",
        "open-sesame",
    ],
)
def test_no_part_of_a_url_that_may_be_a_password_shows(url: str) -> None:
    with pytest.raises(LedgerError) as refusal:
        Ledger(url)
    shown = str(refusal.value) + repr(refusal.value.__cause__) * (not refusal.value.__suppress_context__)
    assert "sesame" not in shown


def test_the_password_does_not_show(postgresql: str) -> None:
    with database(postgresql, "password_test") as place:
        ledger = Ledger(sa.make_url(place).set(password="open sesame"), create=True)  # noqa: S106
        assert "open sesame" not in repr(ledger)
        assert "***" in repr(ledger)
        ledger.close()


@pytest.mark.parametrize("name", ["a?b=c#d", "100%41 sure", "ü ' \" ;", "file:x", "a:b@c"])
def test_a_file_of_any_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / name / "ledger"
    path.parent.mkdir()
    ledger = Ledger(in_file(path), create=True)
    with ledger.writing() as writing:
        writing.add([row(1)])
    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    ledger.close()
    again = Ledger(in_file(path))
    assert again.counts() == {'"cat"': 1}
    again.close()
    shutil.rmtree(path.parent)
    assert list(tmp_path.iterdir()) == []


# -- any history -------------------------------------------------------------------------------------

change = st.one_of(
    st.tuples(st.sampled_from(["add", "remove"]), st.sets(st.integers(0, 20), max_size=5)),
    st.tuples(st.just("class"), st.integers(0, 2)),
    st.tuples(st.sampled_from(["certify", "fail"]), st.just(0)),
)


@settings(max_examples=15)
@given(st.lists(change, max_size=12))
def test_a_ledger_is_a_dictionary(postgresql_or_none: str | None, tmp_path_factory: Any, changes: list[Any]) -> None:
    with database(postgresql_or_none, "dictionary_tests") if postgresql_or_none else temporary(tmp_path_factory) as url:
        ledger = Ledger(url, create=True)
        held: dict[bytes, SampleRow] = {}
        waiting: set[bytes] = set()
        certified: dict[bytes, int] = {}
        for step, (verb, what) in enumerate(changes, 1):
            if verb == "add":
                new = [row(n, f'"{n % 3}"', n % 5) for n in what if digest("number", n) not in held]
                with ledger.writing() as writing:
                    writing.add(new)
                held |= {entry.number: entry for entry in new}
                waiting -= {entry.commitment for entry in new}
            elif verb == "fail":
                with contextlib.suppress(KeyError), ledger.writing() as writing:
                    writing.remove(list(held))
                    raise KeyError
            elif verb == "certify":
                with ledger.writing() as writing:
                    writing.certify(step)
                certified |= dict.fromkeys(waiting, step)
                waiting = set()
                held = {number: entry._replace(state="published") for number, entry in held.items()}
            else:
                gone = [digest("number", n) for n in what] if verb == "remove" else None
                with ledger.writing() as writing:
                    if gone is None:
                        writing.remove_class(f'"{what}"')
                        gone = [number for number, entry in held.items() if entry.name == f'"{what}"']
                    else:
                        writing.remove(gone)
                waiting |= {held.pop(number).commitment for number in gone if number in held}
        assert {entry.number: entry for entry in ledger.samples()} == held
        assert ledger.pending() == sorted(waiting)
        for number in range(21):
            assert ledger.certificate_of(row(number).commitment) == certified.get(row(number).commitment)
            members = ledger.by_members([row(number, member=number % 5).member])
            expected = sorted(entry for entry in held.values() if entry.member == digest("member", number % 5))
            assert sorted(entry for found in members.values() for entry in found) == expected
        ledger.close()


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def postgresql_or_none(request: pytest.FixtureRequest) -> str | None:
    if request.param == "sqlite":
        return None
    return str(request.getfixturevalue("postgresql"))


class temporary:  # noqa: N801 (a context manager)
    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._folder = factory.mktemp("dictionary")

    def __enter__(self) -> str:
        return f"sqlite:///{self._folder / 'ledger'}"

    def __exit__(self, *error: object) -> None:
        shutil.rmtree(self._folder)
