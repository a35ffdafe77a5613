"""Creates the tables of a ledger, or brings older ones up to date."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from neverseen.errors import LedgerError
from neverseen.ledger.database import Database, Transaction
from neverseen.ledger.rows import FIELDS, read_note, sample_of
from neverseen.ledger.tables import (
    FORMAT,
    SampleRow,
    meta,
    migrations,
    old_requests,
    old_samples,
    record,
    requests,
    samples,
    tables,
)

Renumber = Callable[[SampleRow], bytes]
"""Returns the new number of a sample of an older ledger; see `Ledger.migrate`."""


class Step(NamedTuple):
    """A step from one format of the tables to the next."""

    number: int
    format: str
    what: str  # as the ledger records it
    change: Callable[[Transaction, Renumber], None]

    def record(self, transaction: Transaction) -> None:
        """Note that the step was taken, in the transaction that takes it.

        Written by hand: Alembic's table has neither time nor description, and `schema` would have to allow it.
        """
        now = datetime.now(UTC).isoformat(timespec="seconds")
        transaction.run(sa.insert(migrations), [{"number": self.number, "applied": now, "what": self.what}])
        transaction.run(sa.update(meta).where(meta.c.key == "format").values(value=self.format))


def _to_format_2(transaction: Transaction, number_of: Renumber) -> None:
    def renumbered(old: Sequence[Any]) -> tuple[Any, ...]:
        *about, learned, version, check = old
        sample = sample_of((*about, b"", learned, version, check), 0)
        return record(sample._replace(number=number_of(sample), state="learned"), 0, int(version))

    transaction.rebuild(samples, list(old_samples.columns.keys())[: len(FIELDS) - 1], renumbered)
    transaction.rebuild(requests, old_requests.columns.keys(), lambda row: (*row, None))


STEPS = (
    Step(1, "neverseen-ledger-1", "the tables of neverseen-ledger-1", lambda *_: None),
    Step(
        2,
        "neverseen-ledger-2",
        "samples: a salt, numbers of owner and id, a key of the owner; requests: who made them, without the name",
        _to_format_2,
    ),
)
"""The steps to all formats, oldest first. A new format needs a step; `tables` keeps the tables before it."""


def create_tables(database: Database) -> None:
    """Make the tables in a database that has none of them yet."""
    found = database.table_names()
    if found & set(tables.tables) or (found and database.is_ours_alone):
        raise LedgerError(f"{database.name} is in use already: choose another place, or open it")
    with database.writing(locked=False) as transaction:
        transaction.make(tables)
        database.prepare(transaction)
        transaction.run(sa.insert(meta), [{"key": "format", "value": FORMAT}])
        for step in STEPS:
            step.record(transaction)


def migrate_tables(database: Database, number_of: Renumber) -> None:
    """Take all missing steps, in one transaction; see `Ledger.migrate`."""
    with database.writing() as transaction:
        formats = [step.format for step in STEPS]
        found = read_note(transaction, "format")
        if found not in formats[:-1]:
            return
        for step in STEPS[formats.index(found) + 1 :]:
            step.change(transaction, number_of)
            step.record(transaction)
        database.prepare(transaction)
