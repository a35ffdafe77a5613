"""What is particular to SQLite and to PostgreSQL: files, damage, full disks, passwords, settings of the server."""

from __future__ import annotations

import sqlite3
import stat
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from neverseen.errors import ConfigurationError, LedgerError
from neverseen.ledger import Ledger
from tests.ledgers import add, everything, folder_bytes, forgetful, sample, some, traces
from tests.postgresql import Server

PASSWORD = "correct-horse"  # noqa: S105


@pytest.mark.parametrize(
    "wrong", ["mysql://u:correct-horse@h/d", "sqlite://", "postgresql://u:correct-horse@h/d", "x", 3]
)
def test_other_databases_are_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        Ledger(wrong)
    assert PASSWORD not in str(refusal.value)


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

        with pytest.raises(LedgerError, match="disk full: free some space"):
            write()
        assert everything(ledger) == before


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


def test_postgresql_is_scrubbed(postgresql: Server, schema: str) -> None:
    folder = postgresql.folder
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


def test_a_server_that_may_lose_commits_is_refused(postgresql: Server, schema: str) -> None:
    if postgresql.folder is None:
        pytest.skip("a server that is not ours is not reconfigured")
    engine = sa.create_engine(postgresql.url, isolation_level="AUTOCOMMIT")
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
