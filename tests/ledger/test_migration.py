"""Ledgers of the older format: opened for writing they become what a new one is; read, they are left as they are."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from neverseen import AlreadyForgottenError, KeyMissingError, LedgerError, ReceiptRejectedError, store
from neverseen.cli import app
from neverseen.holdings import ticket_number
from neverseen.ledger import FORMAT, Ledger, Notes, RequestRow
from neverseen.ledger.migration import STEPS, Step, migrate_tables
from neverseen.ledger.tables import check_of, meta, migrations, old_requests, old_samples, old_tables, requests, samples
from neverseen.model.intake import Intake
from neverseen.store import Store
from tests import oracle
from tests.services import BACKBONE, KEYS, LABELS, ROWS, classifier, never

OWNERS: list[Any] = ["ada", None, "bob", None]
IDS = ["ada/1", "2", "3", "ada/4"]
REQUEST = RequestRow("req_1", b"tag", "app", "learn", 4, b"body", 1000)


def opened(folder: Path, **options: Any) -> Store:
    return store.open(folder, backbone=BACKBONE, hardware="numpy", **({"keys": KEYS} | options))


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest) -> str | None:
    return None if request.param == "sqlite" else str(request.getfixturevalue("schema"))


class Old:
    """A store as the version before made it, which forgot its third sample."""

    def __init__(self, folder: Path, place: str | None) -> None:
        self.folder, self.url = folder, place or f"sqlite:///{folder}/ledger.sqlite"
        store.create(folder, BACKBONE, classifier(), keys=KEYS, ledger=place).close()
        with opened(folder) as made:
            change = made.learning(ROWS[:4], LABELS[:4], IDS, OWNERS)
            made.commit(change.noting(Notes([REQUEST])))
            self.receipts = list(change.receipts)
            made.publish()
            made.forget(self.receipts[2])
            made.publish()
            made.learn(ROWS[4:5], LABELS[4:5], ["5"])
            self.configuration = made.description.configuration.digest()
        self._turn_back()

    def _turn_back(self) -> None:
        """Make the tables what they were, with numbers of the id alone."""
        engine = sa.create_engine(self.url)
        with engine.begin() as connection:
            rows = connection.execute(sa.select(samples)).mappings().all()
            kept = connection.execute(sa.select(requests)).mappings().all()
            for table in (samples, requests):
                table.drop(connection)
                older = old_tables.tables[table.name]
                older.create(connection)
                for column in older.columns if connection.dialect.name == "postgresql" else ():
                    change = f'ALTER TABLE {older.name} ALTER COLUMN "{column.name}" SET STATISTICS 0'
                    connection.execute(sa.text(change))
            for row in rows:
                assert row["salt"] == b""
                number = ticket_number(self.configuration, KEYS.membership, row["id"])
                values = dict(row) | {"number": number, "number_key": int.from_bytes(number[:4]) - 2**31}
                values["checksum"] = check_of(list(values.values()))
                connection.execute(
                    sa.insert(old_samples), {column.name: values[column.name] for column in old_samples.c}
                )
            for row in kept:
                connection.execute(
                    sa.insert(old_requests), {column.name: row[column.name] for column in old_requests.c}
                )
            connection.execute(sa.text("DELETE FROM neverseen_migrations WHERE number = 2"))
            connection.execute(sa.delete(meta).where(meta.c.key == "newest"))
            connection.execute(sa.update(meta).where(meta.c.key == "format").values(value=STEPS[0].format))
        engine.dispose()

    def schema(self) -> Any:
        """All there is in the database, but for the rows."""
        return schema_of(self.url)


def schema_of(url: str) -> Any:
    engine = sa.create_engine(url)
    try:
        with engine.connect() as connection:
            if url.startswith("sqlite"):
                found = connection.execute(sa.text("SELECT type, name, tbl_name, sql FROM sqlite_master"))
                return sorted((*row[:3], "".join((row[3] or "").split())) for row in found)
            columns = sa.text(
                "SELECT table_name, column_name, ordinal_position, data_type, is_nullable, column_default "
                "FROM information_schema.columns WHERE table_schema = current_schema()"
            )
            statistics = sa.text(
                "SELECT c.relname, a.attname, a.attstattarget FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid "
                "WHERE c.relnamespace = current_schema()::regnamespace AND a.attnum > 0 AND c.relkind = 'r'"
            )
            indexes = sa.text(
                "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = current_schema()"
            )
            return [sorted(map(tuple, connection.execute(each))) for each in (columns, statistics, indexes)]
    finally:
        engine.dispose()


@pytest.fixture
def old(tmp_path: Path, place: str | None) -> Old:
    return made_old(tmp_path / "s", place)


def made_old(folder: Path, place: str | None) -> Old:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Intake, "new_salt", lambda _: b"")
        made = Old(folder, place)
    assert all(receipt.startswith(b"NSR1") for receipt in made.receipts)
    return made


def test_what_was_learned_before_is_held_and_its_receipts_are_good(old: Old) -> None:
    with opened(old.folder) as made:
        ledger = made.ledger
        assert ledger.meta("format") == FORMAT
        assert made.digest() == never([0, 1, 3, 4])
        for row in ledger.samples():
            number = oracle.ticket_number_of_owner(old.configuration, KEYS.membership.reveal(), row.owner, row.id)
            assert (row.number, row.salt) == (number, b"")
        assert {row.id: row.state for row in ledger.samples()} == {
            '"ada/1"': "published",
            '"2"': "published",
            '"ada/4"': "published",
            '"5"': "learned",
        }
        assert ledger.request("req_1") == REQUEST._replace(version=1)
        assert made.receipts_again(made.prepare(ROWS[:1]), LABELS[:1], IDS[:1], "ada") == old.receipts[:1]
        with pytest.raises(AlreadyForgottenError, match="certificate 2"):
            made.forget(old.receipts[2])
        made.forget(old.receipts[0])
        made.forget(ROWS[1:2], LABELS[1:2], ids=["2"])
        made.learn(ROWS[:1], LABELS[:1], ["2"], ["ada"])  # an id of another owner
        made.forget(old.receipts[3], owner=None)
        (again,) = made.learn(ROWS[3:4], LABELS[3:4], IDS[3:])
        assert again.startswith(b"NSR2")
        with pytest.raises(ReceiptRejectedError, match="used already"):
            made.forget(old.receipts[3])
        made.seal()
        assert ledger.request("req_1") == REQUEST._replace(version=1, body=None, client="")
    with opened(old.folder) as made:
        assert made.digest() == never([0, 3, 4])


def test_the_tables_are_those_of_a_new_ledger(old: Old, tmp_path: Path, place: str | None) -> None:
    opened(old.folder).close()
    found = old.schema()
    if place is None:
        store.create(tmp_path / "new", BACKBONE, classifier(), keys=KEYS).close()
        assert found == schema_of(f"sqlite:///{tmp_path}/new/ledger.sqlite")
        return
    engine = sa.create_engine(place)
    old_tables.drop_all(engine)
    engine.dispose()
    Ledger(place, create=True).close()
    assert found == schema_of(place)


def test_readers_read_it_as_it_is(old: Old) -> None:
    before = old.schema()
    with opened(old.folder, write=False, keys=None) as reading:
        assert reading.status()["samples"] == 4
        assert reading.statistics().total == 4
        assert len(reading.certificates()) == 2
        reading.predict(ROWS[:3])
        with pytest.raises(LedgerError, match="older format 'neverseen-ledger-1': open its store once for writing"):
            list(reading.ledger.samples())
        assert old.schema() == before
        opened(old.folder).close()
        assert len(list(reading.ledger.samples())) == 4  # another process has brought it up to date


def test_without_keys_nothing_is_done(old: Old) -> None:
    before = old.schema()
    with pytest.raises(KeyMissingError, match="older format: open the store once for writing with its keys"):
        opened(old.folder, keys=None)
    assert old.schema() == before


@pytest.mark.parametrize("killed", [False, True])
def test_cut_off_in_the_middle(old: Old, killed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    before, seen = old.schema(), []

    def number_of(*_: Any) -> bytes:
        seen.append(1)
        if len(seen) == 3:
            if killed:
                os._exit(9)
            raise LedgerError("the disk is full")
        return bytes([len(seen)] * 16)

    with monkeypatch.context() as patched:
        patched.setattr("neverseen.store.recovery.owned_number", number_of)
        if killed:
            child = os.fork()
            if not child:
                opened(old.folder)
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        else:
            with pytest.raises(LedgerError, match="the disk is full"):
                opened(old.folder)
    assert old.schema() == before
    with opened(old.folder) as made:
        assert made.ledger.meta("format") == FORMAT
        made.forget(old.receipts[0])
        assert made.digest() == never([1, 3, 4])


# -- steps -------------------------------------------------------------------------------------------


def steps_of(ledger: Ledger) -> list[int]:
    with ledger._database.reading() as transaction:
        return [number for (number,) in transaction.rows(sa.select(migrations.c.number).order_by(migrations.c.number))]


def test_the_last_step_leads_to_the_format_of_now() -> None:
    assert [step.number for step in STEPS] == list(range(1, len(STEPS) + 1))
    assert STEPS[-1].format == FORMAT


@pytest.mark.parametrize("start", [1, 2])
def test_each_step_that_is_missing_is_taken_and_recorded(
    start: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = made_old(tmp_path / "s", None)
    if start == 2:
        opened(old.folder).close()
    taken: list[list[int]] = []
    third = Step(3, "neverseen-ledger-3", "a third", lambda *_: taken.append(steps_of(ledger)))
    monkeypatch.setattr("neverseen.ledger.migration.STEPS", (*STEPS, third))
    with Ledger(old.url) as ledger:
        migrate_tables(ledger._database, lambda row: row.number)
        migrate_tables(ledger._database, lambda row: row.number)  # there is nothing to do
        assert ledger.meta("format") == "neverseen-ledger-3"
        assert steps_of(ledger) == [1, 2, 3]
    assert taken == [[1, 2][:start]]  # once, after what was there before: readers see all steps or none


# -- archives ----------------------------------------------------------------------------------------


def neverseen(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(map(str, words)))
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    KEYS.save(tmp_path / "elsewhere.json")
    return tmp_path / "elsewhere.json"


def test_an_older_store_whose_keys_are_elsewhere_is_exported(tmp_path: Path, key_file: Path) -> None:
    old = made_old(tmp_path / "s", None)
    target = tmp_path / "s.tar"
    before = old.schema()
    for words in (("export", old.folder, target), ("publish", old.folder), ("seal", old.folder)):
        assert "give their file with --keys FILE" in neverseen(*words, code=1)
    assert (old.schema(), target.exists()) == (before, False)
    neverseen("export", old.folder, target, "--keys", key_file)
    with tarfile.open(target) as archive:
        assert "keys.json" not in archive.getnames()
    neverseen("import", tmp_path / "again", target)
    with opened(tmp_path / "again") as made:
        assert made.digest() == never([0, 1, 3, 4])


def test_an_older_archive_whose_keys_are_elsewhere_is_imported(tmp_path: Path, key_file: Path) -> None:
    """With the files that version 0.1.0 archived because they lay in the folder."""
    old = made_old(tmp_path / "s", None)
    others = ["README.md", "certificates/notes.txt"]
    for name in others:
        (old.folder / name).write_bytes(b"kept")
    with tarfile.open(tmp_path / "s.tar", "w") as archive:
        for path in sorted(old.folder.rglob("*")):
            if path.is_file() and path.name != "lock":
                archive.add(path, path.relative_to(old.folder).as_posix())
    there = set(tmp_path.iterdir())
    words = neverseen("import", tmp_path / "again", tmp_path / "s.tar", code=1)
    assert "holds 'README.md', 'certificates/notes.txt', which are no files of a store" in words
    assert "leave such files out (--skip-others)" in words
    words = neverseen("import", tmp_path / "again", tmp_path / "s.tar", "--skip-others", code=1)
    assert "give their file with --keys FILE" in words
    assert set(tmp_path.iterdir()) == there
    chosen = "--skip-others", "--keys", key_file, "--json"
    assert json.loads(neverseen("import", tmp_path / "again", tmp_path / "s.tar", *chosen))["skipped"] == others
    assert not any((tmp_path / "again" / name).exists() for name in others)
    with opened(tmp_path / "again") as made:
        assert made.digest() == never([0, 1, 3, 4])
