"""The rows of a ledger, and the tables that hold them.

Digests are looked up by short integer keys, their first bytes, and then compared in full. An index over keys is a third
of the size of one over digests, and the speed of adding samples depends on the number of index pages that each one
touches. A key alone decides nothing: two digests with the same key are two digests.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar
from zlib import crc32

import sqlalchemy as sa

from neverseen.errors import InputError

FORMAT = "neverseen-ledger-2"
"""Format of the tables. Older ones: see `neverseen.ledger.migration.STEPS`."""
CHUNK = 450
"""Most values in one statement. Some statements bind each value twice, and the smallest usual limit is 999."""
NAME_LIMIT = 2000
"""Most bytes of a class's text: it fits the indexes of PostgreSQL, with room to spare."""
LASTING = 33
"""First bytes of a request's body that a seal keeps. A shorter body is cleared."""
PAYLOAD_LIMIT = 2**29
"""Most bytes of a journal row, below the limit of either database."""
DIGEST_SIZE, COMMITMENT_SIZE, _SALT_SIZE = 16, 32, 16

Number = TypeVar("Number")


class SampleRow(NamedTuple):
    """One held sample. The digests are keyed: without the key they reveal nothing."""

    number: bytes  # 16, digest of owner and id; no two samples have the same
    content: bytes  # 16, digest of the raw sample and its class
    member: bytes  # 16, digest of class and features; several samples may have the same
    name: str  # class, canonical text
    id: str  # canonical text
    owner: str  # canonical text
    commitment: bytes  # 32, what a certificate will show once it is forgotten
    salt: bytes  # 16, of its receipt; none if it was learned before receipts had one
    learned: int  # Unix time in seconds
    state: str  # "learned", or "published" once a certificate has been issued since


class RequestRow(NamedTuple):
    """One request that was carried out. Its client can ask about it."""

    id: str
    tag: bytes | None  # by which a repetition is known; no two requests have the same
    client: str  # name of the API key; `Ledger.scrub` clears it
    kind: str
    samples: int  # how many came or went
    body: bytes | None  # digests of the request; `Ledger.scrub` keeps the first `LASTING` bytes of a longer one
    applied: int  # Unix time in milliseconds
    version: int = 0  # of the certificate that publishes it; set by the ledger
    maker: bytes | None = None  # by which the client is known once its name is cleared


class Notes(NamedTuple):
    """Notes to write in the transaction of a change."""

    requests: Sequence[RequestRow] = ()  # that the change carries out, in order
    meta: Mapping[str, str | None] = {}  # as for `Writing.set_meta`


class JournalRow(NamedTuple):
    """One change since the last snapshot."""

    sequence: int
    kind: str
    payload: bytes


_integer = sa.BigInteger().with_variant(sa.Integer(), "sqlite")  # which makes a primary key the row's own number

tables = sa.MetaData()
meta = sa.Table(
    "neverseen_meta",
    tables,
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
    sqlite_with_rowid=False,
)
migrations = sa.Table(
    "neverseen_migrations",
    tables,
    sa.Column("number", _integer, primary_key=True, autoincrement=False),
    sa.Column("applied", sa.Text, nullable=False),
    sa.Column("what", sa.Text, nullable=False),
)
classes = sa.Table(
    "neverseen_classes",
    tables,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("samples", sa.BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
samples = sa.Table(
    "neverseen_samples",
    tables,
    sa.Column("number", sa.LargeBinary, nullable=False),
    sa.Column("content", sa.LargeBinary, nullable=False),
    sa.Column("member", sa.LargeBinary, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("id", sa.Text, nullable=False),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("commitment", sa.LargeBinary, nullable=False),
    sa.Column("salt", sa.LargeBinary, nullable=False),
    sa.Column("learned", sa.BigInteger, nullable=False),
    sa.Column("version", sa.BigInteger, nullable=False),  # published once a certificate has this number or a higher one
    sa.Column("checksum", sa.BigInteger, nullable=False),  # of all before but the version
    sa.Column("number_key", sa.BigInteger, nullable=False),
    sa.Column("member_key", sa.BigInteger, nullable=False),
    sa.Column("content_key", sa.BigInteger, nullable=False),
    sa.Column("owner_key", sa.BigInteger, nullable=False),
    sa.Index("neverseen_samples_number", "number_key"),
    # With the owner's key in the index, no row of another owner is read to answer one, so that how long it takes does
    # not tell whether there is one. Contents are asked for to word an error, and an index of their own would slow down
    # every insert: here they are found by a walk through the index, without the rows.
    sa.Index("neverseen_samples_member", "member_key", "owner_key", "content_key"),
)
journal = sa.Table(
    "neverseen_journal",
    tables,
    sa.Column("sequence", _integer, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("payload", sa.LargeBinary, nullable=False),
)
requests = sa.Table(
    "neverseen_requests",
    tables,
    sa.Column("place", _integer, primary_key=True, autoincrement=False),  # the order in which they were carried out
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("tag", sa.LargeBinary, unique=True),
    sa.Column("client", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("samples", sa.BigInteger, nullable=False),
    sa.Column("body", sa.LargeBinary),
    sa.Column("applied", sa.BigInteger, nullable=False),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("maker", sa.LargeBinary),
)
pending = sa.Table(
    "neverseen_pending", tables, sa.Column("commitment", sa.LargeBinary, primary_key=True), sqlite_with_rowid=False
)
certified = sa.Table(
    "neverseen_certified",
    tables,
    sa.Column("commitment", sa.LargeBinary, primary_key=True),
    sa.Column("certificate", sa.BigInteger, primary_key=True, autoincrement=False),
    sqlite_with_rowid=False,
)


def _before(table: sa.Table, metadata: sa.MetaData, *added: str) -> sa.Table:
    """Return a table as it was before columns were added, without its indexes."""
    settings = ("primary_key", "nullable", "unique", "autoincrement")
    columns = [
        sa.Column(column.name, column.type, **{name: getattr(column, name) for name in settings})
        for column in table.columns
        if column.name not in added
    ]
    return sa.Table(table.name, metadata, *columns)


old_tables = sa.MetaData()
"""The tables of neverseen-ledger-1."""
for _table in tables.sorted_tables:
    if _table not in (samples, requests):
        _table.to_metadata(old_tables)
old_samples = _before(samples, old_tables, "salt", "owner_key")
sa.Index("neverseen_samples_number", old_samples.c.number_key)
sa.Index("neverseen_samples_member", old_samples.c.member_key, old_samples.c.content_key)
old_requests = _before(requests, old_tables, "maker")
SCHEMAS = (tables, old_tables)
"""The sets of tables that a database may have when it is opened: the present ones, and those of the older format."""


_KEY = struct.Struct(">I")  # the first four bytes of a digest
_KEYS = struct.Struct(">I12xI12xI12x")  # those of three


def key_of(digest: bytes) -> int:
    """Return the key of a digest, which a database keeps in four bytes. Keys are ordered as the digests are."""
    first: int = _KEY.unpack_from(digest)[0]
    return first - 2**31


def short_key_of(digest: bytes) -> int:
    """Return the key of a content, for three bytes."""
    first: int = _KEY.unpack_from(digest)[0]
    return (first >> 8) - 2**23


def owner_key_of(owner: str) -> int:
    """Return the key of an owner, for three bytes."""
    return (crc32(owner.encode()) >> 8) - 2**23


def check_of(row: Sequence[Any]) -> int:
    """Return the CRC-32 of the first nine columns of a sample. It reveals damage."""
    number, content, member, name, id_text, owner, commitment, salt, learned = row[:9]
    texts = f"{name}\0{id_text}\0{owner}\0{learned}".encode()
    return crc32(texts, crc32(number + content + member + commitment + salt))


def record(row: SampleRow, position: int, version: int) -> tuple[Any, ...]:
    """Return the values of a sample's columns, in order; raise with its position in the request if it cannot be stored.

    `version` is that of the next certificate.
    """
    number, content, member, name, id_text, owner, commitment, salt, learned, state = row
    if not (
        type(number) is type(content) is type(member) is type(commitment) is type(salt) is bytes
        and len(number) == len(content) == len(member) == DIGEST_SIZE
        and len(commitment) == COMMITMENT_SIZE
        and len(salt) in (0, _SALT_SIZE)
    ):
        raise InputError(
            f"row {position}: number, content and member must be 16 bytes each, commitment 32, and salt 16 or none"
        )
    texts = name + id_text + owner
    if not texts.isascii() or "\0" in texts:
        raise InputError(f"row {position}: name, id and owner must be canonical texts, which are ASCII without NUL")
    if len(name) > NAME_LIMIT:
        raise InputError(f"row {position}: its class's text is {len(name)} bytes long; at most {NAME_LIMIT} are held")
    if type(learned) is not int or not 0 <= learned < 2**63 or state not in ("learned", "published"):
        raise InputError(f"row {position}: learned is a time in seconds, and state is 'learned' or 'published'")
    version = version if state == "learned" else 0
    by_number, by_member, by_content = _KEYS.unpack(number + member + content)  # as `key_of` and `short_key_of`
    keys = by_number - 2**31, by_member - 2**31, (by_content >> 8) - 2**23, owner_key_of(owner)
    return *row[:9], version, check_of(row), *keys


def chunks(values: Iterable[Number], size: int = CHUNK) -> Iterator[list[Number]]:
    """Yield the values in lists of at most `size`."""
    listed: Sequence[Number] = values if isinstance(values, list) else list(values)
    for start in range(0, len(listed), size):
        yield list(listed[start : start + size])
