"""How the tables of a ledger come to be: made new, or brought up to date."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from neverseen.errors import LedgerError
from neverseen.ledger.database import Database
from neverseen.ledger.rows import FIELDS, read_note, sample_of
from neverseen.ledger.tables import (
    FORMAT,
    MIGRATIONS,
    OLD_FORMAT,
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


def create_tables(database: Database) -> None:
    """Make the tables in a database that has none of them yet."""
    found = database.table_names()
    if found & set(tables.tables) or (found and database.is_ours_alone):
        raise LedgerError(f"{database.name} is in use already: choose another place, or open it")
    with database.writing(locked=False) as transaction:
        transaction.make(tables)
        database.prepare(transaction)
        transaction.run(sa.insert(meta), [{"key": "format", "value": FORMAT}])
        transaction.run(sa.insert(migrations), _steps(1))


def migrate_tables(database: Database, number_of: Callable[[SampleRow], bytes]) -> None:
    """Bring tables of the older format up to date, in one transaction; see `Ledger.migrate`."""
    with database.writing() as transaction:
        if read_note(transaction, "format") != OLD_FORMAT:
            return

        def load_samples(page: Sequence[Any]) -> None:
            rows = []
            for old in page:
                *about, learned, version, check = old
                sample = sample_of((*about, b"", learned, version, check), 0)
                renumbered = sample._replace(number=number_of(sample), state="learned")
                rows.append(record(renumbered, 0, int(version)))
            transaction.load(samples, rows)

        fields = list(old_samples.columns.keys())[: len(FIELDS) - 1]
        transaction.rebuild(samples, ", ".join(fields), load_samples)
        transaction.rebuild(
            requests,
            ", ".join(old_requests.columns.keys()),
            lambda page: transaction.load(requests, [(*row, None) for row in page]),
        )
        database.prepare(transaction)
        transaction.run(sa.update(meta).where(meta.c.key == "format").values(value=FORMAT))
        transaction.run(sa.insert(migrations), _steps(2))


def _steps(first: int) -> list[dict[str, Any]]:
    """Return the rows that say how the tables came to be, from a migration on."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return [{"number": step, "applied": now, "what": what} for step, what in enumerate(MIGRATIONS, 1) if step >= first]
