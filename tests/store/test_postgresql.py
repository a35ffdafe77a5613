"""A store whose ledger is in PostgreSQL: the same answers, the same bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from neverseen import AlreadyForgottenError, LedgerError, StoreDamagedError, StoreLockedError, store
from neverseen.proof.certificates import check_chain, is_mine
from neverseen.store import Store
from neverseen.store.sums import fold
from tests.store.test_store import BACKBONE, IDS, KEYS, LABELS, ROWS, classifier, contents, never, opened, traces


@pytest.fixture
def url(schema: str) -> str:
    """PostgreSQL alone."""
    return schema


def new(folder: Path, url: str) -> Store:
    return store.create(folder, BACKBONE, classifier(), keys=KEYS, ledger=url)


def test_what_is_acknowledged_is_there_again(tmp_path: Path, url: str) -> None:
    with new(tmp_path / "s", url) as first:
        receipts = first.learn(ROWS[:30], LABELS[:30], IDS[:30], ["ada"] * 30)
        first.forget(receipts[:3])
    assert not list((tmp_path / "s").glob("ledger*"))
    with opened(tmp_path / "s") as again:
        assert again.digest() == never(list(range(3, 30)))
        again.forget(ROWS[5:7], LABELS[5:7])
        fold(again._open_parts(), again._exact())
        again.forget_class(int(LABELS[8]))
        rest = [row for row in [3, 4, *range(7, 30)] if LABELS[row] != LABELS[8]]
        assert again.digest() == never(rest)
        assert again.read_receipt(receipts[9]) == {"id": IDS[9], "label": LABELS[9], "owner": "ada"}
    with opened(tmp_path / "s") as again:
        assert again.digest() == never(rest)
        assert again.status()["samples"] == len(rest)


def test_publishing_and_sealing(tmp_path: Path, url: str) -> None:
    with new(tmp_path / "s", url) as made:
        receipts = made.learn(ROWS[:30], LABELS[:30], IDS[:30], ["ada"] * 30)
        made.publish()
        gone = [3, 4]
        rows = {row.id: row for row in made.ledger.samples()}
        secrets = [part for row in gone for part in traces(rows[json.dumps(IDS[row])], row)]
        made.forget([receipts[row] for row in gone])
        with opened(tmp_path / "s", write=False) as reader:
            assert reader.digest() != made.digest()
            certificate = made.seal()
            assert reader.digest() == made.digest() == never([row for row in range(30) if row not in gone])
        assert made.status()["sealed"]
        assert is_mine(certificate, receipts[3])
        with pytest.raises(AlreadyForgottenError, match="certificate 2 says so"):
            made.forget(receipts[3])
        check_chain(made.certificates(), made.description.public_key)
        assert not any(secret in contents(tmp_path / "s") for secret in secrets if b"ada" not in secret)
        assert not any(secret in everything(url) for secret in secrets if b"ada" not in secret)


def everything(url: str) -> bytes:
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        tables = sa.inspect(connection).get_table_names()
        rows = [connection.exec_driver_sql(f'SELECT * FROM "{name}"').all() for name in tables]  # noqa: S608
    engine.dispose()
    return b"|".join(raw(value) for table in rows for row in table for value in row)


def raw(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def test_two_cannot_write(tmp_path: Path, url: str) -> None:
    with new(tmp_path / "s", url), pytest.raises(StoreLockedError, match="being written by process"):
        opened(tmp_path / "s")
    with pytest.raises(LedgerError, match="is in use already"):
        new(tmp_path / "other", url)
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_a_lost_connection_is_a_state_before_or_after(tmp_path: Path, url: str) -> None:
    """Whether the change was made is not known, so the model refuses to go on; the store opens again."""
    made = new(tmp_path / "s", url)
    made.learn(ROWS[:10], LABELS[:10], IDS[:10])
    database = made.ledger._database
    commit = database._commit

    def cut_writes(connection: sa.Connection, purpose: str) -> None:
        if purpose == "write":
            cut(connection)
        commit(connection, purpose)

    database._commit = cut_writes  # type: ignore[method-assign]
    with pytest.raises(LedgerError, match="is not known") as refusal:
        made.learn(ROWS[10:12], LABELS[10:12], IDS[10:12])
    assert refusal.value.uncertain
    with pytest.raises(RuntimeError, match="cut off half-way"):
        made.digest()
    made.close()
    with opened(tmp_path / "s") as again:
        assert again.digest() == never(list(range(10)))


def cut(connection: sa.Connection) -> None:
    """End the server's side of a connection, from another one."""
    pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
    engine = sa.create_engine(connection.engine.url)
    with engine.begin() as other:
        other.exec_driver_sql(f"SELECT pg_terminate_backend({pid}, 5000)")
    engine.dispose()


def test_another_stores_ledger_is_refused(tmp_path: Path, url: str) -> None:
    with new(tmp_path / "s", url) as made, made.ledger.writing() as writing:
        writing.set_meta("configuration", "0" * 64)
    with pytest.raises(StoreDamagedError, match="belongs to another store"):
        opened(tmp_path / "s")
