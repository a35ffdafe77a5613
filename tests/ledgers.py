"""Rows for the tests of the ledger, and what is in its files."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from neverseen.ledger import Ledger, SampleRow
from neverseen.ledger.tables import tables

SOME = 5


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
        digest("salt", number),
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
