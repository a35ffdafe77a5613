"""Every test that takes `url` runs on SQLite and on PostgreSQL.

PostgreSQL is the server that the environment variable NEVERSEEN_TEST_POSTGRES names by its URL, or the one in the
package pgserver, started for the tests in a folder of its own, on a socket there, and stopped again. PostgreSQL does
not run as root, so for root it runs as nobody. (pgserver itself would add a user to the machine; its programs alone
are used here.)
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neverseen.errors import (
    ConfigurationError,
    InputError,
    LedgerError,
    LimitError,
    NeverseenError,
    NotLearnedError,
)
from neverseen.ledger import FORMAT, JournalRow, Ledger, RequestRow, SampleRow
from neverseen.ledger import ledger as ledger_module
from neverseen.ledger.tables import NAME_LIMIT, tables

PASSWORD = "correct-horse"  # noqa: S105
SOME = 5


# -- databases ---------------------------------------------------------------------------------------


def free_account() -> dict[str, Any]:
    """Whom to run PostgreSQL as: ourselves, but for root."""
    if os.name != "posix" or os.geteuid() != 0:
        return {}
    import pwd

    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


@pytest.fixture(scope="session")
def server() -> Iterator[tuple[sa.URL, Path | None]]:
    """The URL of a PostgreSQL server, and its folder if it is our own."""
    if given_url := os.environ.get("NEVERSEEN_TEST_POSTGRES"):
        yield sa.make_url(given_url).set(drivername="postgresql+psycopg"), None
        return
    if importlib.util.find_spec("psycopg") is None:
        pytest.skip("PostgreSQL is reached with psycopg, which is not installed")
    package = importlib.util.find_spec("pgserver")
    if package is None or package.origin is None:
        pytest.skip("there is no PostgreSQL: install pgserver, or name a server in NEVERSEEN_TEST_POSTGRES")
    programs = Path(package.origin).parent / "pginstall" / "bin"
    folder = Path(tempfile.mkdtemp(prefix="neverseen-postgres-"))  # short, as the name of a socket must be
    account = free_account()
    if account:
        os.chown(folder, account["user"], account["group"])
    place = folder / "data"

    def call(program: str, *arguments: str) -> None:
        command = [str(programs / program), "-D", str(place), *arguments]
        log = (folder / "messages").open("ab")
        with log:
            subprocess.run(command, check=True, cwd=folder, stdout=log, stderr=log, timeout=60, **account)

    try:
        try:
            call("initdb", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync")
            call("pg_ctl", "-w", "-l", str(folder / "log"), "-o", f"-k '{folder}' -c listen_addresses=''", "start")
        except (OSError, subprocess.SubprocessError) as error:
            said = (folder / "messages").read_text()[-300:] if (folder / "messages").exists() else ""
            pytest.skip(f"PostgreSQL does not start here: {error} {said}")
        try:
            yield sa.make_url(f"postgresql+psycopg://postgres@/postgres?host={folder}"), folder
        finally:
            call("pg_ctl", "-w", "-m", "fast", "stop")
    finally:
        shutil.rmtree(folder)


schemas = iter(range(10**9))


@pytest.fixture
def schema(server: tuple[sa.URL, Path | None]) -> Iterator[str]:
    """The URL of an empty schema of the server, which is dropped afterwards."""
    url, _ = server
    name = f"neverseen_test_{os.getpid()}_{next(schemas)}"
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text(f"CREATE SCHEMA {name}"))
    own = url.update_query_dict({"options": f"-csearch_path={name}"})
    yield own.render_as_string(hide_password=False)
    with engine.connect() as connection:
        connection.execute(sa.text(f"DROP SCHEMA {name} CASCADE"))
    engine.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ledger.sqlite"
    found: str = request.getfixturevalue("schema")
    return found


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    with Ledger(url, create=True, patience=0.3) as made:
        yield made


# -- rows --------------------------------------------------------------------------------------------


def digest(*about: Any, size: int = 16) -> bytes:
    return hashlib.blake2b(repr(about).encode(), digest_size=size).digest()


def sample(number: int, name: str = '"cat"', member: Any = None, state: str = "learned") -> SampleRow:
    return SampleRow(
        digest("number", number),
        digest("content", number),
        digest("member", number if member is None else member),
        name,
        f'"id {number:06d}"',
        f'"owner {number % 7}"',
        digest("commitment", number, size=32),
        1_700_000_000 + number,
        state,
    )


def some(count: int = SOME, first: int = 0) -> list[SampleRow]:
    return [sample(number) for number in range(first, first + count)]


def numbers(rows: list[SampleRow]) -> list[bytes]:
    return [row.number for row in rows]


def add(ledger: Ledger, rows: list[SampleRow]) -> None:
    with ledger.writing() as writing:
        writing.add(rows)


def remove(ledger: Ledger, rows: list[SampleRow]) -> None:
    with ledger.writing() as writing:
        writing.remove(numbers(rows))


def everything(ledger: Ledger) -> dict[str, list[Any]]:
    """All rows of all tables, sorted; without the journal's counter and the time of the migration."""
    found: dict[str, list[Any]] = {}
    with ledger._database.reading() as transaction:
        for table in tables.sorted_tables:
            rows = [tuple(row) for row in transaction.rows(sa.select(table))]
            found[table.name] = sorted(row for row in rows if row[0] != "sequence")
    found["neverseen_migrations"] = [(row[0], row[2]) for row in found["neverseen_migrations"]]
    return found


# -- round trips -------------------------------------------------------------------------------------


def test_what_is_added_is_found(ledger: Ledger, url: str) -> None:
    rows = some()
    add(ledger, rows)
    with Ledger(url) as again:
        for book in (ledger, again):
            assert book.by_numbers([*numbers(rows), bytes(16)]) == {row.number: row for row in rows}
            assert book.by_members([rows[0].member, bytes(16)]) == {rows[0].member: [rows[0]]}
            assert book.knows_contents([rows[1].content, bytes(16)]) == {rows[1].content}
            assert list(book.samples()) == sorted(rows)
            assert book.counts() == {'"cat"': SOME}
            assert book.by_numbers([]) == {}
            assert book.by_members([]) == {}
            assert book.knows_contents([]) == set()


def test_texts_are_kept_as_they_are(ledger: Ledger) -> None:
    printable = "".join(map(chr, range(1, 128)))
    texts = [
        printable,
        "'; DROP TABLE neverseen_samples; --",
        '"%s %(id)s ? :id {0} \\"',
        "3",
        "null",
        "",
        "x" * 60_000,
    ]
    rows = [sample(number)._replace(id=text, owner=text, name=text[:NAME_LIMIT]) for number, text in enumerate(texts)]
    add(ledger, rows)
    assert list(ledger.samples()) == sorted(rows)
    assert ledger.counts() == dict.fromkeys(sorted(text[:NAME_LIMIT] for text in texts), 1)
    for row in rows:
        assert list(ledger.samples(row.name)) == [row]
    with ledger.writing() as writing:
        writing.set_meta("'; --", texts[1])
        for row in rows:
            writing.remove_class(row.name)
    assert ledger.meta("'; --") == texts[1]
    assert ledger.counts() == {}


def test_one_sample_held_twice(ledger: Ledger) -> None:
    rows = [sample(number, member="same") for number in range(3)]
    add(ledger, rows)
    assert ledger.by_members([rows[0].member]) == {rows[0].member: sorted(rows)}
    remove(ledger, rows[1:2])
    assert ledger.by_members([rows[0].member]) == {rows[0].member: sorted([rows[0], rows[2]])}


def test_digests_with_the_same_key_are_told_apart(ledger: Ledger) -> None:
    rows = [
        sample(number)._replace(number=b"key!" + bytes([number]) * 12, content=b"key!" + bytes([9 - number]) * 12)
        for number in range(5)
    ]
    rows = [row._replace(member=row.number) for row in rows]
    add(ledger, rows[:4])
    assert ledger.by_numbers(numbers(rows)) == {row.number: row for row in rows[:4]}
    assert ledger.by_members(numbers(rows[3:])) == {rows[3].number: [rows[3]]}
    assert ledger.knows_contents([row.content for row in rows]) == {row.content for row in rows[:4]}
    remove(ledger, rows[1:2])
    assert list(ledger.samples()) == [rows[0], *rows[2:4]]
    add(ledger, rows[4:])
    assert numbers(list(ledger.samples())) == [rows[place].number for place in (0, 2, 3, 4)]


def test_more_than_one_statement_can_bind(ledger: Ledger) -> None:
    count = 40_000
    rows = [sample(number, name=f'"{number % 3}"') for number in range(count)]
    add(ledger, rows)
    assert list(ledger.samples()) == sorted(rows)
    asked = rows[:3000]
    assert ledger.by_numbers(numbers(asked)) == {row.number: row for row in asked}
    assert ledger.by_members([row.member for row in asked]) == {row.member: [row] for row in asked}
    assert len(ledger.knows_contents([row.content for row in asked])) == 3000
    remove(ledger, asked)
    assert ledger.pending() == sorted(row.commitment for row in asked)
    with ledger.writing() as writing:
        writing.remove_class('"1"')
    left = [row for row in rows[3000:] if row.name != '"1"']
    assert list(ledger.samples()) == sorted(left)
    assert list(ledger.samples('"2"')) == sorted(row for row in left if row.name == '"2"')
    assert ledger.counts() == {name: sum(row.name == name for row in left) for name in ('"0"', '"2"')}


def test_many_classes(ledger: Ledger) -> None:
    rows = [sample(number, name=f"{number}") for number in range(1200)]
    add(ledger, rows)
    add(ledger, [sample(number, name=f"{number - 2000}") for number in range(2000, 2600)])
    assert ledger.counts() == {f"{number}": 2 if number < 600 else 1 for number in sorted(range(1200), key=str)}
    remove(ledger, rows)
    assert len(ledger.counts()) == 600


# -- refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"number": b"short"}, "row 1: number, content and member must be 16 bytes each"),
        ({"commitment": bytes(16)}, "and commitment 32"),
        ({"member": bytearray(16)}, "must be 16 bytes"),
        ({"id": "caf\u00e9"}, "row 1: .* ASCII"),
        ({"owner": "a\0b"}, "without NUL"),
        ({"name": "n" * (NAME_LIMIT + 1)}, f"class's text is {NAME_LIMIT + 1} bytes long; at most {NAME_LIMIT}"),
        ({"learned": 0.5}, "time in seconds"),
        ({"state": "forgotten"}, "state is 'learned' or 'published'"),
        ({"number": sample(0).number}, "rows 0 and 1 have the same number. Nothing was changed"),
        ({"number": sample(7).number}, "the number of row 1 is that of a sample in the ledger. Nothing was changed"),
    ],
)
def test_rows_that_cannot_be_kept(ledger: Ledger, wrong: dict[str, Any], words: str) -> None:
    add(ledger, [sample(7)])
    before = everything(ledger)
    with pytest.raises(InputError, match=words):
        add(ledger, [sample(0), sample(1)._replace(**wrong), sample(2)])
    assert everything(ledger) == before


def test_only_what_is_there_can_be_removed(ledger: Ledger) -> None:
    rows = some()
    add(ledger, rows)
    before = everything(ledger)
    with pytest.raises(NotLearnedError, match=r"under the number of row 1 \(2 of 3 in all\)") as refusal:
        remove(ledger, [rows[0], sample(100), sample(101)])
    assert refusal.value.rows == (1, 2)
    with pytest.raises(InputError, match="given twice"):
        remove(ledger, [rows[0], rows[0]])
    with pytest.raises(NotLearnedError, match="no sample of this class"), ledger.writing() as writing:
        writing.remove_class('"dog"')
    assert everything(ledger) == before


def test_notes(ledger: Ledger) -> None:
    with ledger.writing() as writing:
        writing.set_meta("snapshot", "one")
        writing.set_meta("snapshot", "two")
        writing.set_meta("gone", "x")
        writing.set_meta("gone", None)
        writing.set_meta("never", None)
    assert (ledger.meta("snapshot"), ledger.meta("gone"), ledger.meta("never")) == ("two", None, None)
    for key in ("format", "sequence", "certificate"):
        with pytest.raises(InputError, match="not free"), ledger.writing() as writing:
            writing.set_meta(key, "x")
    assert ledger.meta("format") == FORMAT


# -- journal -----------------------------------------------------------------------------------------


def test_journal(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    payloads = [b"", bytes(range(256)) * 40, b"x" * 300_000]
    for number, payload in enumerate(payloads, 1):
        with ledger.writing() as writing:
            assert writing.append("learn", payload) == number
    assert list(ledger.journal()) == [JournalRow(n, "learn", payload) for n, payload in enumerate(payloads, 1)]
    assert [row.sequence for row in ledger.journal(after=1)] == [2, 3]
    with ledger.writing() as writing:
        writing.drop_journal(2)
    assert [row.sequence for row in ledger.journal()] == [3]
    with ledger.writing() as writing:
        writing.drop_journal(3)
        assert writing.append("forget", b"") == 4
    with ledger.writing() as writing:
        writing.drop_journal(4)
    with ledger.writing() as writing:
        assert writing.append("forget", b"") == 5  # also after the journal was empty
    monkeypatch.setattr(ledger_module, "PAYLOAD_LIMIT", 10)
    with pytest.raises(LimitError, match="has 11 bytes, and 10 fit: do it in parts"), ledger.writing() as writing:
        writing.append("learn", bytes(11))
    assert [row.sequence for row in ledger.journal()] == [5]


# -- commitments and certificates --------------------------------------------------------------------


def test_from_pending_to_certified(ledger: Ledger) -> None:
    rows = some()
    add(ledger, rows)
    assert {row.state for row in ledger.samples()} == {"learned"}
    remove(ledger, rows[:2])
    assert ledger.pending() == sorted(row.commitment for row in rows[:2])
    assert ledger.certificates_of([rows[0].commitment]).get(rows[0].commitment) is None
    with ledger.writing() as writing:
        writing.certify(1)
    assert ledger.pending() == []
    assert [ledger.certificates_of([row.commitment]).get(row.commitment) for row in rows[:3]] == [1, 1, None]
    assert {row.state for row in ledger.samples()} == {"published"}
    add(ledger, [sample(10), sample(11, state="published")])
    assert {row.id: row.state for row in ledger.by_numbers(numbers([rows[3], sample(10), sample(11)])).values()} == {
        rows[3].id: "published", sample(10).id: "learned", sample(11).id: "published"
    }  # fmt: skip
    with ledger.writing() as writing:
        writing.certify(4)
    assert {row.state for row in ledger.samples()} == {"published"}
    with pytest.raises(InputError, match="4 does not come after 4"), ledger.writing() as writing:
        writing.certify(4)


def test_learned_and_forgotten_again(ledger: Ledger) -> None:
    row = sample(0)
    for certificate in (1, 2):
        add(ledger, [row])
        remove(ledger, [row])
        add(ledger, [row])
        assert ledger.pending() == []  # it is held: no certificate may say that it is forgotten
        remove(ledger, [row])
        assert ledger.pending() == [row.commitment]
        with ledger.writing() as writing:
            writing.certify(certificate)
        assert ledger.certificates_of([row.commitment]).get(row.commitment) == certificate


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

    with pytest.raises(LedgerError, match="failed and was passed over"):
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
                pytest.raises(LedgerError, match="in use by another writer: wait for it to end, and call again"),
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
            "import os, sys; from neverseen.ledger import Ledger; from tests.test_ledger import some\n"
            "with Ledger(sys.argv[1]).writing() as writing:\n"
            "    writing.add(some(2000, first=100)); writing.append('learn', b'x'); os.kill(os.getpid(), 9)"
        )
        root = Path(__file__).parent.parent
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
    ((number, applied, what),) = rows
    assert (number, what) == (1, "the tables of neverseen-ledger-1")
    assert applied.endswith("+00:00")


@pytest.mark.parametrize("found", ["neverseen-ledger-2", "something else"])
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


@pytest.mark.parametrize(
    "wrong", ["mysql://u:correct-horse@h/d", "sqlite://", "postgresql://u:correct-horse@h/d", "x", 3]
)
def test_other_databases_are_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        Ledger(wrong)
    assert PASSWORD not in str(refusal.value)


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


# -- SQLite alone ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ledger.sqlite", "what? 100% #1 'odd' \u00e9.sqlite"])
def test_a_file_of_our_own(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with Ledger(f"sqlite:///{path}", create=True) as ledger:
        add(ledger, some())
        assert repr(ledger) == f"Ledger({str(path)!r})"
        files = list(tmp_path.iterdir())
        assert {path.name, f"{path.name}-wal"} <= {file.name for file in files}
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
        with ledger._database.reading() as transaction:
            wanted = {"journal_mode": "wal", "synchronous": 2, "secure_delete": 1, "temp_store": 2}
            for setting, value in wanted.items():
                assert transaction.rows(sa.text(f"PRAGMA {setting}")) == [(value,)]
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        Ledger(f"sqlite:///{tmp_path}/missing/ledger.sqlite", create=True)


def test_an_interrupted_creation_can_be_repeated(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    path.touch()
    with pytest.raises(LedgerError, match="is not a ledger"):
        Ledger(f"sqlite:///{path}")
    Ledger(f"sqlite:///{path}", create=True).close()


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    url = f"sqlite:///{path}"
    with Ledger(url, create=True) as ledger:
        add(ledger, some(3000))
    whole = path.read_bytes()

    def use() -> None:
        with Ledger(url) as ledger:
            list(ledger.samples())
            ledger.by_members([row.member for row in some(3000)])

    for damaged in (
        b"not a database" * 1000,
        b"\xff" * 4096 + whole[4096:],
        whole[:40_960] + b"\xff" * (len(whole) - 40_960),
        whole[: len(whole) // 2],
    ):
        path.write_bytes(damaged)
        with pytest.raises(LedgerError, match=str(path)) as refusal:
            use()
        assert "id 0" not in str(refusal.value)
    path.write_bytes(whole)
    use()


def test_a_full_disk_changes_nothing(tmp_path: Path) -> None:
    with Ledger(f"sqlite:///{tmp_path}/ledger.sqlite", create=True) as ledger:
        add(ledger, some())
        before = everything(ledger)

        def write() -> None:
            with ledger.writing() as writing:
                writing._transaction.run(sa.text("PRAGMA max_page_count = 60"))  # as if
                writing.append("learn", bytes(10**6))

        with pytest.raises(LedgerError, match="disk full: make room"):
            write()
        assert everything(ledger) == before


def folder_bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def traces(row: SampleRow) -> list[bytes]:
    return [row.number, row.content, row.member, row.id.encode(), row.owner.encode()]


def forgetful(ledger: Ledger, gone: list[SampleRow], rest: list[SampleRow]) -> None:
    """Learn all, forget some, and let a certificate say so."""
    for rows in (gone[::2], rest[::2], gone[1::2], rest[1::2]):
        with ledger.writing() as writing:
            writing.add(rows)
            last = writing.append("learn", b"payload: " + b"".join(row.member for row in rows))
    with ledger.writing() as writing:
        writing.certify(1)
    with ledger.writing() as writing:
        writing.remove(numbers(gone))
        last = writing.append("forget", b"payload: " + b"".join(row.member for row in gone))
    with ledger.writing() as writing:
        writing.certify(2)
        writing.drop_journal(last)


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
    assert again == found
    assert found.pop("neverseen_certified") == sorted((row.commitment, 2) for row in gone)
    assert found.pop("neverseen_classes") == [('"cat"', 30)]
    assert found.pop("neverseen_meta") == [("certificate", "2"), ("format", FORMAT)]
    assert [row[:8] for row in found.pop("neverseen_samples")] == [row[:8] for row in sorted(rest)]
    assert found == {
        "neverseen_journal": [],
        "neverseen_pending": [],
        "neverseen_requests": [],
        "neverseen_migrations": [(1, "the tables of neverseen-ledger-1")],
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
            waiting -= {known[number].commitment for number in chosen}
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


# -- PostgreSQL alone --------------------------------------------------------------------------------


def test_a_password_is_never_shown(schema: str) -> None:
    nobody_there = f"postgresql+psycopg://someone:{PASSWORD}@127.0.0.1:9/ledger"
    with pytest.raises(
        LedgerError, match=r"someone:\*\*\*@127.0.0.1:9/ledger cannot be reached .*: see that"
    ) as refusal:
        Ledger(nobody_there, patience=2)
    assert PASSWORD not in str(refusal.value)
    assert refusal.value.__suppress_context__
    for wrong in (
        f"postgresql+psycopg://u:{PASSWORD}@host:{PASSWORD}/d",
        f"postgresql+psycopg://host/d?password={PASSWORD}",
    ):
        with pytest.raises(ConfigurationError, match="URL") as refused:
            Ledger(wrong)
        assert PASSWORD not in str(refused.value)
        assert refused.value.__suppress_context__ or refused.value.__context__ is None
    own = sa.make_url(schema).set(password=PASSWORD).render_as_string(hide_password=False)
    with Ledger(own, create=True) as ledger:
        assert PASSWORD not in repr(ledger) + repr(vars(ledger)) + repr(vars(ledger._database))


def test_postgresql_keeps_no_statistics(schema: str) -> None:
    with Ledger(schema, create=True) as ledger:
        add(ledger, some(2000))
        with ledger._database.writing() as transaction:
            transaction.run(sa.text("ANALYZE"))
            noted = "SELECT count(*) FROM pg_stats WHERE tablename LIKE 'neverseen%' AND schemaname = current_schema()"
            assert transaction.rows(sa.text(noted)) == [(0,)]
        with ledger._database.reading() as transaction:
            plan = "EXPLAIN SELECT id FROM neverseen_samples WHERE member_key IN (1, 2, 3)"
            assert "neverseen_samples_member" in str(transaction.rows(sa.text(plan)))


def test_postgresql_is_scrubbed(server: tuple[sa.URL, Path | None], schema: str) -> None:
    _, folder = server
    if folder is None:
        pytest.skip("the files of a server that is not ours cannot be searched")
    gone = [sample(number)._replace(owner=f'"gone {number}"') for number in range(20)]
    with Ledger(schema, create=True) as ledger:
        forgetful(ledger, gone, some(300, first=1000))

        def raw() -> bytes:
            with ledger._database.writing(locked=False) as transaction:
                transaction.run(sa.text("CHECKPOINT"))
            return folder_bytes(folder / "data" / "base")

        secrets = [secret for row in gone for secret in traces(row)]
        before = raw()
        assert any(secret in before for secret in secrets)
        ledger.scrub()
        after = raw()
        for secret in secrets:
            assert secret not in after
        assert gone[0].commitment in after


def test_a_server_that_may_lose_commits_is_refused(server: tuple[sa.URL, Path | None], schema: str) -> None:
    url, folder = server
    if folder is None:
        pytest.skip("a server that is not ours is not reconfigured")
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            connection.execute(sa.text("ALTER SYSTEM SET synchronous_commit = off"))
            connection.execute(sa.text("SELECT pg_reload_conf()"))
        with Ledger(schema, create=True) as ledger, ledger._database.reading() as transaction:
            assert transaction.rows(sa.text("SHOW synchronous_commit")) == [("on",)]
        with engine.connect() as connection:
            connection.execute(sa.text("ALTER SYSTEM SET fsync = off"))
            connection.execute(sa.text("SELECT pg_reload_conf()"))
            while connection.execute(sa.text("SHOW fsync")).scalar_one() == "on":
                pass
        with pytest.raises(LedgerError, match="runs with fsync = off"):
            Ledger(schema)
    finally:
        with engine.connect() as connection:
            connection.execute(sa.text("ALTER SYSTEM RESET ALL"))
            connection.execute(sa.text("SELECT pg_reload_conf()"))
            while connection.execute(sa.text("SHOW fsync")).scalar_one() == "off":
                pass
        engine.dispose()


@pytest.mark.parametrize(
    "change",
    [
        "member = CAST(x'00112233445566778899aabbccddeeff' AS BLOB)",
        "id = id || 'x'",
        "name = '\"other\"'",
        "learned = learned + 1",
        "number = 'a text'",
        "checksum = checksum + 1",
    ],
)
def test_a_row_that_rotted_is_not_used(tmp_path: Path, change: str) -> None:
    path = tmp_path / "ledger"
    rows = some(3)
    with Ledger(f"sqlite:///{path}", create=True) as ledger:
        with ledger.writing() as writing:
            writing.add(rows)
        assert len(list(ledger.samples())) == 3
    connection = sqlite3.connect(path)
    connection.execute(f"UPDATE neverseen_samples SET {change}")  # noqa: S608
    connection.commit()
    connection.close()
    with (
        Ledger(f"sqlite:///{path}") as ledger,
        pytest.raises(LedgerError, match="is damaged: it is not what was written"),
    ):
        list(ledger.samples())


# -- requests ----------------------------------------------------------------------------------------


def request(number: int, client: str = "ada", tag: bytes | None = None) -> RequestRow:
    return RequestRow(f"request-{number}", tag, client, "forget", number, bytes([number]), 1_000 + number)


def test_requests_are_noted_with_what_they_change(ledger: Ledger) -> None:
    rows = some(3)
    with ledger.writing() as writing:
        writing.add(rows)
        writing.note_requests([request(1, tag=b"once"), request(2, "eve"), request(3)])
    with ledger.writing() as writing:
        writing.certify(1)
    with ledger.writing() as writing:
        writing.remove(numbers(rows[:1]))
        writing.note_requests([request(4)])
        writing.note_requests([])
    assert ledger.request("request-1") == request(1, tag=b"once")._replace(version=1)
    assert ledger.request_by_tag(b"once") == ledger.request("request-1")
    assert ledger.request("request-4") == request(4)._replace(version=2)
    assert ledger.request("request-5") is ledger.request_by_tag(b"never") is None
    assert [row.id[-1] for row in ledger.requests(10)] == ["4", "3", "2", "1"]
    assert [row.id[-1] for row in ledger.requests(2)] == ["4", "3"]
    assert [row.id[-1] for row in ledger.requests(2, before="request-3")] == ["2", "1"]
    assert [row.id[-1] for row in ledger.requests(9, client="ada")] == ["4", "3", "1"]
    assert ledger.requests(9, before="request-9") == []


def test_a_tag_is_used_once(ledger: Ledger) -> None:
    with ledger.writing() as writing:
        writing.note_requests([request(1, tag=b"once")])
    with ledger.writing() as writing:
        writing.note_requests([request(2, tag=b"other")])

    def again() -> None:
        with ledger.writing() as writing:
            writing.add(some(1))
            writing.note_requests([request(3, tag=b"once")])

    with pytest.raises(LedgerError):
        again()
    assert ledger.counts() == {}
    assert [row.id for row in ledger.requests(9)] == ["request-2", "request-1"]


def test_scrubbing_clears_what_published_requests_were_about(ledger: Ledger) -> None:
    with ledger.writing() as writing:
        writing.note_requests([request(1)])
        writing.certify(1)
    with ledger.writing() as writing:
        writing.note_requests([request(2)])
    ledger.scrub()
    assert [row.body for row in ledger.requests(9)] == [b"\2", None]
