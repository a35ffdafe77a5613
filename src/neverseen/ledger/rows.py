"""Reads rows, and checks them: a database made elsewhere may hold anything in any column.

SQLite does not enforce types. A wrong value is refused before it is used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

from neverseen.errors import InputError, LedgerError
from neverseen.ledger.database import Transaction
from neverseen.ledger.tables import (
    CHUNK,
    COMMITMENT_SIZE,
    DIGEST_SIZE,
    PAYLOAD_LIMIT,
    RequestRow,
    SampleRow,
    certified,
    check_of,
    classes,
    journal,
    key_of,
    meta,
    pending,
    record,
    requests,
    samples,
)

_NUMBER_DIGITS = 16  # of a number in meta, at most
FIELDS = list(samples.columns)[: len(SampleRow._fields) + 1]
"""The columns of a SampleRow, with the version for the state, and the check."""
REQUEST = list(requests.columns)[1:]
"""The columns of a RequestRow."""


def damaged() -> LedgerError:
    """Return the error for a value that no ledger writes."""
    return LedgerError("the ledger is damaged: it holds a value that neverseen did not write. Restore it from a copy")


def as_bytes(value: Any, size: int | None = None) -> bytes:
    """Return a value that must be bytes. `bytes` of a large number would allocate that many."""
    if type(value) is not bytes or len(value) > PAYLOAD_LIMIT or size not in (None, len(value)):
        raise damaged()
    return value


def as_text(value: Any) -> str:
    """Return a value that must be a text."""
    if type(value) is not str:
        raise damaged()
    return value


def as_number(value: Any) -> int:
    """Return a value that must be a whole number."""
    if type(value) is not int:
        raise damaged()
    return value


def _is_no_commitment(table: sa.Table) -> sa.ColumnElement[bool]:
    """Return the condition for rows with an impossible commitment. SQLite sorts other types before bytes."""
    column = table.c.commitment
    return (column < b"") | (sa.func.length(column) != COMMITMENT_SIZE)


def read_note(transaction: Transaction, key: str) -> str | None:
    """Return the note with this key, or None."""
    found = transaction.rows(sa.select(meta.c.value).where(meta.c.key == key))
    return as_text(found[0][0]) if found else None


def read_number(transaction: Transaction, key: str) -> int:
    """Return the number noted under a key, or 0."""
    noted = read_note(transaction, key) or "0"
    if not (noted.isascii() and noted.isdecimal() and len(noted) <= _NUMBER_DIGITS):
        raise damaged()
    return int(noted)


def read_counts(transaction: Transaction) -> dict[str, int]:
    """Return the noted number of samples of each class."""
    rows = transaction.rows(sa.select(classes))
    return dict(sorted((as_text(name), as_number(count)) for name, count in rows))


def last_certificate(transaction: Transaction) -> int:
    """Return the number of the last certificate; 0 if there is none."""
    return read_number(transaction, "certificate")


def request_of(row: Any) -> RequestRow:
    """Return the request in a row of the columns `REQUEST`."""
    id_, tag, client, kind, count, body, applied, version, maker = row
    return RequestRow(
        as_text(id_),
        None if tag is None else as_bytes(tag),
        as_text(client),
        as_text(kind),
        as_number(count),
        None if body is None else as_bytes(body),
        as_number(applied),
        as_number(version),
        None if maker is None else as_bytes(maker),
    )


def _is_whole(row: Any, check: Any) -> bool:
    try:
        return bool(check_of(row) == check)
    except TypeError:  # a text or a number where bytes were
        return False


def sample_of(row: Any, published: int) -> SampleRow:
    """Return the sample in a row of the columns `FIELDS`, with its state, given the last certificate."""
    number, content, member, name, id_text, owner, commitment, salt, learned, version, check = row
    if not _is_whole(row, check):
        raise LedgerError(
            "a sample in the ledger is damaged: it is not what was written. Restore the ledger from a copy"
        )
    state = "published" if as_number(version) <= published else "learned"
    digests = as_bytes(number), as_bytes(content), as_bytes(member)
    texts = as_text(name), as_text(id_text), as_text(owner)
    return SampleRow(*digests, *texts, as_bytes(commitment), as_bytes(salt), as_number(learned), state)


def in_order(transaction: Transaction, columns: list[Any], name: str | None = None) -> Iterator[Any]:
    """Yield columns of all samples, or of those of a class, in the order of their numbers. The number comes first."""
    last = sa.tuple_(sa.literal(-(2**32)), sa.literal(b""))
    while True:
        question = (
            sa.select(*columns)
            .where(sa.tuple_(samples.c.number_key, samples.c.number) > last)
            .order_by(samples.c.number_key, samples.c.number)
            .limit(CHUNK)
        )
        if name is not None:
            question = question.where(samples.c.name == name)
        page = transaction.rows(question)
        yield from page
        if len(page) < CHUNK:
            return
        number = as_bytes(page[-1][0], DIGEST_SIZE)
        last = sa.tuple_(sa.literal(key_of(number)), sa.literal(number))


def check_rows(transaction: Transaction) -> None:
    """Raise `LedgerError` unless all rows are undamaged, with the right keys and counts."""
    found: Counter[str] = Counter()
    before, name = b"", transaction.database.name
    transaction.database.check(transaction)
    for row in in_order(transaction, list(samples.columns)):
        sample = sample_of(row[: len(FIELDS)], 0)
        try:
            kept = record(sample, 0, row.version)
        except InputError:  # of a size that no sample has
            raise damaged() from None
        if sample.number == before or kept != tuple(row):
            raise LedgerError(
                f"the ledger {name} is damaged: a sample is in it twice, or under wrong keys. Restore it from a copy"
            )
        before = sample.number
        found[sample.name] += 1
    noted = read_counts(transaction)
    _check_rest(transaction)
    if found != noted:
        raise LedgerError(
            f"the ledger {name} is damaged: it holds {found.total()} samples, and notes other numbers of them by "
            "class. Restore it from a copy"
        )


def _check_rest(transaction: Transaction) -> None:
    """Raise `LedgerError` unless commitments, requests and the numbers of the journal are valid."""
    outside = (certified.c.certificate < 1) | (certified.c.certificate > last_certificate(transaction))
    for which in (_is_no_commitment(pending), _is_no_commitment(certified) | outside):
        if transaction.rows(sa.select(sa.literal(1)).where(which).limit(1)):
            raise damaged()
    sequence = read_number(transaction, "sequence")
    ((first, last),) = transaction.rows(sa.select(sa.func.min(journal.c.sequence), sa.func.max(journal.c.sequence)))
    if first is not None and not 0 < first <= last <= sequence:
        raise damaged()
    place = -(2**63)
    while page := transaction.rows(
        sa.select(requests).where(requests.c.place > place).order_by(requests.c.place).limit(CHUNK)
    ):
        for row in page:
            request_of(row[1:])
        place = page[-1].place
        if place >= 10**_NUMBER_DIGITS:  # no other could follow
            raise damaged()
