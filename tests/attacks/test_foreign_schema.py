"""The promise: a ledger consists of our tables and indexes alone, so nothing in its database keeps what is forgotten.

The attacker hands over a store (a folder, an archive, a database) whose schema does more than ours: a trigger that copies
deleted rows, a view in place of a table, a column that is computed. It is refused before anything is read or written.
"""

from __future__ import annotations

import io
import os
import shutil
import sqlite3
import tarfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from neverseen import LedgerError, StoreDamagedError
from neverseen.ledger import Ledger
from neverseen.ledger.tables import tables
from neverseen.store import create
from neverseen.store.archives import read_archive, write_archive
from tests.ledgers import add, some
from tests.postgresql import Server
from tests.store.test_store import BACKBONE, IDS, KEYS, LABELS, ROWS, classifier, never, opened

LOOP = "WITH RECURSIVE t(key, value) AS (SELECT 'a', 'b' UNION ALL SELECT key, value FROM t) SELECT key, value FROM t"
SQLITE = {
    "a trigger that copies deleted rows": (
        "CREATE TRIGGER keep AFTER DELETE ON neverseen_samples BEGIN "
        "INSERT INTO neverseen_meta VALUES (hex(OLD.number), OLD.id); END"
    ),
    "a trigger that refuses to delete": (
        "CREATE TRIGGER refuse BEFORE DELETE ON neverseen_journal BEGIN SELECT RAISE(IGNORE); END"
    ),
    "a view": "CREATE VIEW watched AS SELECT id FROM neverseen_samples",
    "a view in place of a table": "DROP TABLE neverseen_pending; CREATE VIEW neverseen_pending AS SELECT x'00' commitment",
    "a view that never ends": f"DROP TABLE neverseen_meta; CREATE VIEW neverseen_meta AS {LOOP}",
    "a table": "CREATE TABLE kept (id TEXT)",
    "a table with a name like ours": "CREATE TABLE neverseen_kept (id TEXT)",
    "a virtual table": "CREATE VIRTUAL TABLE kept USING rtree(id, low, high)",
    "an index": "CREATE INDEX kept ON neverseen_samples (id)",
    "an index of an expression": "CREATE INDEX kept ON neverseen_samples (abs(number_key))",
    "a unique index": "CREATE UNIQUE INDEX kept ON neverseen_samples (number)",
    "another index under our name": (
        "DROP INDEX neverseen_samples_number; CREATE INDEX neverseen_samples_number ON neverseen_samples (number_key) "
        "WHERE number_key > 0"
    ),
    "no index": "DROP INDEX neverseen_samples_number",
    "a column": "ALTER TABLE neverseen_samples ADD COLUMN kept TEXT DEFAULT 'x'",
    "a computed column": "ALTER TABLE neverseen_samples ADD COLUMN kept TEXT GENERATED ALWAYS AS (id) VIRTUAL",
    "statistics, which quote values": "ANALYZE",
    "a constraint": "{edit neverseen_samples: id TEXT NOT NULL => id TEXT NOT NULL CHECK (owner <> 'null')}",
    "an order of rows that ignores case": "{edit neverseen_classes: name TEXT NOT NULL => name TEXT COLLATE NOCASE NOT NULL}",
    "conflicts that are passed over": (
        "{edit neverseen_pending: commitment BLOB NOT NULL => commitment BLOB NOT NULL ON CONFLICT IGNORE}"
    ),
    "words that are quoted, and so are a type": '{edit neverseen_samples: id TEXT NOT NULL => id TEXT "NOT" "NULL"}',
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store that is sound, and its archive."""
    place = tmp_path_factory.mktemp("whole")
    with create(place / "s", BACKBONE, classifier(), keys=KEYS) as made:
        KEYS.save(place / "s" / "keys.json")
        receipts = made.learn(ROWS[:10], LABELS[:10], IDS[:10])
        made.forget(receipts[:2])
        made.seal()  # which makes the table of samples anew
    write_archive(place / "s", place / "s.tar")
    return place


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole / "s", tmp_path / "s"))


def tamper(path: Path, attack: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        if attack.startswith("{edit "):
            table, _, change = attack[6:-1].partition(": ")
            old, _, text = change.partition(" => ")
            connection.execute("PRAGMA writable_schema = ON")
            changed = connection.execute(
                "UPDATE sqlite_master SET sql = replace(sql, ?, ?) WHERE name = ? AND instr(sql, ?)",
                (old, text, table, old),
            )
            assert changed.rowcount == 1
        else:
            connection.executescript(attack)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("write", [True, False])
@pytest.mark.parametrize("attack", SQLITE)
def test_a_store_with(attack: str, write: bool, folder: Path) -> None:
    tamper(folder / "ledger.sqlite", SQLITE[attack])
    before = files(folder)
    with pytest.raises(LedgerError, match="ledger.sqlite is not made of the tables of a ledger: .* the"):
        opened(folder, write=write)
    assert files(folder) == before


@pytest.mark.parametrize("attack", SQLITE)
def test_an_archive_with(attack: str, whole: Path, tmp_path: Path) -> None:
    repack(whole / "s.tar", tmp_path / "evil.tar", lambda path: tamper(path, SQLITE[attack]))
    before = sorted(tmp_path.iterdir())
    with pytest.raises(LedgerError, match="is not made of the tables of a ledger"):
        read_archive(tmp_path / "again", tmp_path / "evil.tar")
    assert sorted(tmp_path.iterdir()) == before


def repack(source: Path, target: Path, change: Callable[[Path], None]) -> None:
    """Write an archive again with another ledger."""
    with tarfile.open(source) as old, tarfile.open(target, "w") as archive:
        for member in old:
            content = old.extractfile(member)
            assert content is not None
            raw = content.read()
            if member.name == "ledger.sqlite":
                path = target.with_suffix(".sqlite")
                path.write_bytes(raw)
                change(path)
                raw = path.read_bytes()
                path.unlink()
                member.size = len(raw)
            archive.addfile(member, io.BytesIO(raw))


def test_a_refusal_does_not_even_change_the_kind_of_log(folder: Path) -> None:
    """The file is not one with a write-ahead log, and opening it would make it one."""
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    tamper(folder / "ledger.sqlite", SQLITE["a view"])
    before = files(folder)
    with pytest.raises(LedgerError, match="it has the view 'watched', and a ledger has none"):
        opened(folder)
    assert files(folder) == before


def test_a_ledger_that_is_ours_opens_however_it_was_written(folder: Path) -> None:
    """White space and quotes in a definition are up to the version of SQLAlchemy that wrote it."""
    with closing(sqlite3.connect(folder / "ledger.sqlite", isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_master SET sql = replace(replace(sql, ', \n\t', ','), 'owner TEXT', '\"owner\" TEXT')"
        )
        connection.execute("PRAGMA writable_schema = RESET")
        connection.execute("VACUUM")
    with opened(folder) as again:
        assert again.digest() == never(list(range(2, 10)))
        again.seal()
    opened(folder).close()


# -- content -----------------------------------------------------------------------------------------

HIDING = (
    "DROP INDEX {index}; CREATE INDEX {index} ON neverseen_samples ({columns}) WHERE number_key > 99999999999; "
    "PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = replace(sql, ' WHERE number_key > 99999999999', '') "
    "WHERE name = '{index}'; PRAGMA writable_schema = OFF"
)
CONTENT = {
    "an index by number that is empty behind its right text": HIDING.format(
        index="neverseen_samples_number", columns="number_key"
    ),
    "an index by member that is empty behind its right text": HIDING.format(
        index="neverseen_samples_member", columns="member_key, owner_key, content_key"
    ),
    "a sample that is gone, and counted": "DELETE FROM neverseen_samples WHERE id = '\"sample number 5\"'",
    "a sample twice": (
        "DELETE FROM neverseen_samples WHERE id = '\"sample number 5\"'; INSERT INTO neverseen_samples "
        "SELECT * FROM neverseen_samples WHERE id = '\"sample number 6\"'"
    ),
    "a sample of another class": "UPDATE neverseen_samples SET name = '\"x\"' WHERE id = '\"sample number 5\"'",
    "keys under which no sample is found": "UPDATE neverseen_samples SET number_key = number_key + 1",
    "keys of other owners": "UPDATE neverseen_samples SET owner_key = 7",
}


@pytest.mark.parametrize("attack", CONTENT)
def test_an_archive_whose_schema_is_right_has(attack: str, whole: Path, tmp_path: Path) -> None:
    repack(whole / "s.tar", tmp_path / "evil.tar", lambda path: tamper(path, CONTENT[attack]))
    before = sorted(tmp_path.iterdir())
    with pytest.raises((LedgerError, StoreDamagedError), match="damaged|not of the same samples"):
        read_archive(tmp_path / "again", tmp_path / "evil.tar")
    assert sorted(tmp_path.iterdir()) == before


def test_a_folder_with_a_sample_that_is_gone_and_counted(folder: Path) -> None:
    tamper(folder / "ledger.sqlite", CONTENT["a sample that is gone, and counted"])
    with pytest.raises(StoreDamagedError, match=r"are not of the same samples \(7 and 8\): restore"):
        opened(folder)


# -- PostgreSQL --------------------------------------------------------------------------------------

POSTGRESQL = {
    "a trigger that copies deleted rows": (
        "CREATE TABLE kept (id text); CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN INSERT INTO kept VALUES (OLD.id); RETURN OLD; END$$; "
        "CREATE TRIGGER keep AFTER DELETE ON neverseen_samples FOR EACH ROW EXECUTE FUNCTION keep()"
    ),
    "a rule": (
        "CREATE TABLE kept (id text); CREATE RULE keep AS ON DELETE TO neverseen_samples DO ALSO "
        "INSERT INTO kept VALUES (OLD.id)"
    ),
    "a view in place of a table": (
        "DROP TABLE neverseen_pending; CREATE VIEW neverseen_pending AS SELECT CAST('x' AS bytea) AS commitment"
    ),
    "a policy that hides rows": (
        "ALTER TABLE neverseen_samples ENABLE ROW LEVEL SECURITY; CREATE POLICY hide ON neverseen_samples USING (false)"
    ),
    "a constraint": "ALTER TABLE neverseen_samples ADD CONSTRAINT kept CHECK (owner <> 'x')",
    "a table that refers to ours": (
        "CREATE TABLE kept (id text REFERENCES neverseen_requests (id) ON DELETE RESTRICT)"
    ),
    "a table that inherits from ours": "CREATE TABLE kept () INHERITS (neverseen_samples)",
    "a column": "ALTER TABLE neverseen_samples ADD COLUMN kept text",
    "a computed column": "ALTER TABLE neverseen_samples ADD COLUMN kept text GENERATED ALWAYS AS (id) STORED",
    "a default": "ALTER TABLE neverseen_samples ALTER COLUMN owner SET DEFAULT 'x'",
    "a column that may be empty": "ALTER TABLE neverseen_samples ALTER COLUMN owner DROP NOT NULL",
    "an index": "CREATE INDEX kept ON neverseen_samples (id)",
    "another index under our name": (
        "DROP INDEX neverseen_samples_number; CREATE INDEX neverseen_samples_number ON neverseen_samples (number_key) "
        "WHERE number_key > 0"
    ),
    "statistics of a column": "ALTER TABLE neverseen_samples ALTER COLUMN id SET STATISTICS 100",
    "statistics of two columns": "CREATE STATISTICS kept ON id, owner FROM neverseen_samples",
    "rows that are hidden from their owner": "ALTER TABLE neverseen_samples FORCE ROW LEVEL SECURITY",
    "a log that quotes deleted rows": "ALTER TABLE neverseen_samples REPLICA IDENTITY FULL",
    "a publication, which sends rows elsewhere": "CREATE PUBLICATION neverseen_tests FOR TABLE neverseen_samples",
    "a table that is lost in a crash": "ALTER TABLE neverseen_journal SET UNLOGGED",
}


@pytest.mark.parametrize("attack", POSTGRESQL)
def test_a_database_with(attack: str, schema: str) -> None:
    with Ledger(schema, create=True) as ledger:
        add(ledger, some())
        ledger.scrub()
    Ledger(schema).close()
    engine = sa.create_engine(schema)
    with engine.begin() as connection:
        connection.exec_driver_sql(POSTGRESQL[attack])
    engine.dispose()
    try:
        with pytest.raises(LedgerError, match="is not made of the tables of a ledger: .* the"):
            Ledger(schema)
    finally:
        run_sql(schema, "DROP PUBLICATION IF EXISTS neverseen_tests")


def test_statistics_that_were_kept_once(own_database: str, postgresql: Server, tmp_path: Path) -> None:
    """They quote ids after their rows are gone, and to keep none from now on does not remove them.

    The remedy removes them: from the catalogue, and from the server's files.
    """

    def quoted() -> list[str]:
        engine = sa.create_engine(own_database, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            seen = "SELECT attname FROM pg_stats WHERE schemaname = 'public' AND tablename LIKE 'neverseen%%'"
            names = [name for (name,) in connection.exec_driver_sql(seen)]
            connection.exec_driver_sql("CHECKPOINT")
        engine.dispose()
        files = () if postgresql.folder is None else (postgresql.folder / "data" / "base").rglob("*")
        secret = IDS[3].encode() + b'"'
        return names + ["a file" for path in files if path.is_file() and secret in path.read_bytes()]

    with create(tmp_path / "s", BACKBONE, classifier(), keys=KEYS, ledger=own_database) as made:
        receipts = made.learn(ROWS[:20], LABELS[:20], IDS[:20], ["ada"] * 20)
        made.publish()
        made.forget([receipts[4]])
        columns = [(table.name, column.name) for table in tables.sorted_tables for column in table.columns]
        kept = 'ALTER TABLE {} ALTER COLUMN "{}" SET STATISTICS {}'
        for target, then in ((100, "ANALYZE"), (0, "CHECKPOINT")):
            run_sql(own_database, *(kept.format(*column, target) for column in columns), then)
        assert {"id", "name", "owner", "number_key", "key", "value", "payload", "commitment"} <= set(quoted())
        assert ("a file" in quoted()) == (postgresql.folder is not None)
        made.forget([receipts[3]])
        with pytest.raises(
            LedgerError, match="it has the statistics of the column 'applied' of 'neverseen_migrations'"
        ):
            made.seal()  # also where the store was open all the while
        assert not made.status()["sealed"]
    for write in (True, False):
        with pytest.raises(LedgerError, match="They quote values") as refusal:
            opened(tmp_path / "s", write=write)
    run_sql(own_database, *str(refusal.value).partition("As the owner of the database: ")[2].split("; "))
    with opened(tmp_path / "s") as made:
        assert made.digest() == never([row for row in range(20) if row not in (3, 4)])
        made.seal()
        assert made.status()["sealed"]
        assert quoted() == []


def test_what_is_added_while_a_ledger_is_open_is_found_by_a_scrub(url: str) -> None:
    with Ledger(url, create=True) as ledger:
        add(ledger, some())
        ledger.scrub()
        if url.startswith("sqlite"):
            tamper(Path(url.removeprefix("sqlite:///")), SQLITE["statistics, which quote values"])
        else:
            run_sql(url, POSTGRESQL["a trigger that copies deleted rows"])
        with pytest.raises(LedgerError, match="is not made of the tables of a ledger"):
            ledger.scrub()


EVENT = (
    "CREATE FUNCTION keep() RETURNS event_trigger LANGUAGE plpgsql AS "
    "$$BEGIN CREATE TABLE IF NOT EXISTS kept (id text); END$$",
    "CREATE EVENT TRIGGER neverseen_tests ON ddl_command_start WHEN TAG IN ('DROP TABLE') EXECUTE FUNCTION keep()",
)
WHOLE_DATABASE = {
    "event trigger": EVENT,
    "publication": ("CREATE PUBLICATION neverseen_tests FOR ALL TABLES",),
}


@pytest.fixture
def own_database(postgresql: Server) -> Iterator[str]:
    """The URL of a database for one test: what acts on all tables would act on those of other tests."""
    name = f"neverseen_tests_{os.getpid()}"
    run_sql(postgresql.url, f"DROP DATABASE IF EXISTS {name}", f"CREATE DATABASE {name}")
    yield sa.make_url(postgresql.url).set(database=name).render_as_string(hide_password=False)
    run_sql(postgresql.url, f"DROP DATABASE {name} WITH (FORCE)")


def test_a_database_with_an_event_trigger(own_database: str) -> None:
    """It runs whenever tables are made or dropped, as they are when a ledger is brought up to date."""
    Ledger(own_database, create=True).close()
    run_sql(own_database, *EVENT)
    with pytest.raises(LedgerError, match="it has the event trigger 'neverseen_tests', .* a database of its own"):
        Ledger(own_database)
    run_sql(own_database, "ALTER EVENT TRIGGER neverseen_tests DISABLE")
    Ledger(own_database).close()


def test_an_ordinary_role_sees_event_triggers(own_database: str) -> None:
    role = f"neverseen_ordinary_{os.getpid()}"
    run_sql(own_database, f"CREATE ROLE {role}", f"GRANT ALL ON SCHEMA public TO {role}")
    place = sa.make_url(own_database).update_query_dict({"options": f"-crole={role}"})
    ordinary = place.render_as_string(hide_password=False)
    try:
        Ledger(ordinary, create=True).close()
        Ledger(ordinary).close()
        run_sql(own_database, *EVENT)
        with pytest.raises(LedgerError, match="it has the event trigger 'neverseen_tests'"):
            Ledger(ordinary)
    finally:
        run_sql(own_database, f"DROP OWNED BY {role} CASCADE", f"DROP ROLE {role}")


@pytest.mark.parametrize("what", WHOLE_DATABASE)
def test_a_ledger_is_not_made_where_it_would_be_refused(what: str, own_database: str, tmp_path: Path) -> None:
    run_sql(own_database, *WHOLE_DATABASE[what])
    with pytest.raises(LedgerError, match=f"it has the {what} 'neverseen_tests'"):
        create(tmp_path / "s", BACKBONE, classifier(), ledger=own_database)
    assert list(tmp_path.iterdir()) == []
    engine = sa.create_engine(own_database)
    assert sa.inspect(engine).get_table_names() == []
    engine.dispose()


def run_sql(url: str, *statements: str) -> None:
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()


@pytest.fixture
def in_front(schema: str) -> Iterator[tuple[str, str]]:
    """A ledger and its URL with a schema in front of the server's own, as `ALTER DATABASE ... SET search_path` does."""
    with Ledger(schema, create=True) as ledger:
        add(ledger, some())
    place = sa.make_url(schema)
    ours = str(place.query["options"]).rpartition("=")[2]
    run_sql(schema, "CREATE SCHEMA neverseen_evil")
    try:
        path = f"-csearch_path=neverseen_evil,PG_Catalog,{ours}"
        yield schema, place.update_query_dict({"options": path}).render_as_string(hide_password=False)
    finally:
        run_sql(schema, "DROP SCHEMA neverseen_evil CASCADE")


def test_a_trigger_behind_a_catalogue_in_front_of_the_servers_own(in_front: tuple[str, str]) -> None:
    ours, evil = in_front
    Ledger(evil).close()
    run_sql(
        ours,
        POSTGRESQL["a trigger that copies deleted rows"],
        "CREATE VIEW neverseen_evil.pg_trigger AS SELECT * FROM pg_catalog.pg_trigger WHERE false",
    )
    with pytest.raises(LedgerError, match="it has the trigger 'keep' of 'neverseen_samples', and"):
        Ledger(evil)


def test_functions_and_operators_in_front_of_the_servers_own_are_not_called(in_front: tuple[str, str]) -> None:
    ours, evil = in_front
    raises = "LANGUAGE plpgsql AS $$BEGIN RAISE 'called'; END$$"
    run_sql(
        ours,
        f"CREATE FUNCTION neverseen_evil.current_schema() RETURNS name {raises}",
        f"CREATE FUNCTION neverseen_evil.set_config(text, text, boolean) RETURNS text {raises}",
        f"CREATE FUNCTION neverseen_evil.same(bigint, bigint) RETURNS boolean {raises}",
        "CREATE OPERATOR neverseen_evil.= (FUNCTION = neverseen_evil.same, LEFTARG = bigint, RIGHTARG = bigint)",
    )
    with Ledger(evil) as ledger:
        assert len(ledger.by_numbers([some()[0].number])) == 1
        ledger.scrub()


def test_tables_of_others_beside_ours_do_not_matter(schema: str) -> None:
    with Ledger(schema, create=True) as ledger:
        add(ledger, some())
    engine = sa.create_engine(schema)
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE others (id text PRIMARY KEY); CREATE VIEW shown AS SELECT * FROM others"
        )
    engine.dispose()
    with Ledger(schema) as ledger:
        assert len(list(ledger.samples())) == len(some())
        ledger.scrub()
    Ledger(schema).close()


def test_the_store_and_archive_of_the_tests_are_not_refused(whole: Path, folder: Path, tmp_path: Path) -> None:
    """So that the refusals above are refusals of the attack."""
    repack(whole / "s.tar", tmp_path / "same.tar", lambda path: None)
    read_archive(tmp_path / "again", tmp_path / "same.tar")
    for place in (folder, tmp_path / "again"):
        for write in (True, False):
            with opened(place, write=write) as made:
                assert made.digest() == never(list(range(2, 10)))
