"""Which samples a store holds, and what happened since its last snapshot, in a SQL database.

SQLite in a file, or PostgreSQL by URL, through SQLAlchemy. The database is where a store commits: a change is one
transaction over the journal and the samples, there as a whole or not at all, and on disk when `Ledger.writing` returns.
There are no features here but in the journal, and those go with the next snapshot. What is removed leaves no mark: the
rows of a ledger that forgot are those of one that never learned.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, NoSuchModuleError, SQLAlchemyError

from neverseen.errors import InputError, LedgerError

FORMAT = "neverseen-ledger-1"
_CHUNK = 500  # values bound to one statement; SQLite allows 32,766, older ones 999
_PATIENCE = 30.0  # seconds to wait for another process
_CACHE = 2**16  # KiB of a SQLite file in memory
_LOG_PAGES = 2**14  # after so many, the log of a SQLite file goes into it: samples come in no order, to pages all over

_tables = sa.MetaData()
_meta = sa.Table(
    "meta", _tables, sa.Column("key", sa.Text, primary_key=True), sa.Column("value", sa.Text, nullable=False)
)
_migrations = sa.Table(
    "migrations",
    _tables,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("what", sa.Text, nullable=False),
)
_samples = sa.Table(
    "samples",
    _tables,
    sa.Column("number", sa.LargeBinary, primary_key=True),
    sa.Column("content", sa.LargeBinary, nullable=False, index=True),
    sa.Column("member", sa.LargeBinary, nullable=False, index=True),
    sa.Column("name", sa.Text, nullable=False, index=True),
    sa.Column("id", sa.Text, nullable=False),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("commitment", sa.LargeBinary, nullable=False),
    sa.Column("learned", sa.BigInteger, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
)
_journal = sa.Table(
    "journal",
    _tables,
    sa.Column("sequence", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("payload", sa.LargeBinary, nullable=False),
)
_forgotten = sa.Table(  # commitments of what was forgotten; the certificate that says so, or NULL while there is none
    "forgotten",
    _tables,
    sa.Column("place", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=False),
    sa.Column("commitment", sa.LargeBinary, nullable=False, index=True),
    sa.Column("certificate", sa.BigInteger),
)


class SampleRow(NamedTuple):
    """One sample that is held."""

    number: bytes  # 16, keyed digest of the id
    content: bytes  # 16, keyed digest of the raw sample and its class
    member: bytes  # 16, keyed digest of class and features
    name: str  # class, canonical text
    id: str  # canonical text
    owner: str  # canonical text
    commitment: bytes  # 32, of the receipt
    learned: int  # Unix time in seconds
    state: str  # "learned", or "published" once a version has it


class JournalRow(NamedTuple):
    """One change since the last snapshot."""

    sequence: int
    kind: str
    payload: bytes


T = TypeVar("T")


def _chunks(values: Iterable[T]) -> Iterator[list[T]]:
    listed = list(dict.fromkeys(values))
    for start in range(0, len(listed), _CHUNK):
        yield listed[start : start + _CHUNK]


class Ledger:
    """A ledger in a database.

    Parameters
    ----------
    url : str or sqlalchemy.URL
        ``sqlite:///path``, or ``postgresql+psycopg://user:password@host/database``; `in_file` makes that of any path.
    create : bool
        Make its tables. Without, they must be there.
    """

    def __init__(self, url: str | sa.URL, create: bool = False) -> None:
        try:
            self.url = sa.make_url(url)
        except (ArgumentError, ValueError):  # the latter quotes what it takes for a port, which may be of a password
            raise LedgerError(
                "the ledger's URL cannot be read: use sqlite:///path or postgresql+psycopg://..."
            ) from None
        self._lite = self.url.get_backend_name() == "sqlite"
        if not self._lite and self.url.get_backend_name() != "postgresql":
            raise LedgerError(f"a ledger is kept in SQLite or PostgreSQL, not in {self.url.get_backend_name()}")
        if self._lite and self.url.database in (None, "", ":memory:"):
            raise LedgerError("a ledger in SQLite is a file: give its path, as in sqlite:///path")
        self._local = threading.local()
        self._uncertain = False
        settings: dict[str, Any] = {"connect_args": {"timeout": _PATIENCE}}
        if not self._lite:  # a transaction sees one state, as those of SQLite do
            settings = {"pool_pre_ping": True, "isolation_level": "REPEATABLE READ"}
        try:
            self._engine = sa.create_engine(self.url, hide_parameters=True, **settings)
        except (NoSuchModuleError, ImportError) as error:
            raise LedgerError("a ledger in PostgreSQL needs psycopg: pip install 'psycopg[binary]'") from error
        sa.event.listen(self._engine, "connect", _set_up_file if self._lite else _set_up_server)
        sa.event.listen(self._engine, "begin", self._begin)
        try:
            with self._clear_errors():
                self._open(create)
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        shown = self.url.set(query={}).render_as_string(hide_password=True)  # a query may hold a password too
        return f"Ledger({shown!r})"

    def close(self) -> None:
        """Let go of the database."""
        self._engine.dispose()

    def _open(self, create: bool) -> None:
        path = Path(self.url.database or "") if self._lite else None
        if path is not None and create:
            _make_private(path)
        elif path is not None and not path.is_file():
            raise LedgerError(f"the ledger {path} is missing: restore it from a copy")
        names = set(sa.inspect(self._engine).get_table_names())
        if create:
            if names & set(_tables.tables):
                raise LedgerError(f"{self!r} holds a ledger already: choose another database")
            with self._engine.begin() as connection:
                _tables.create_all(connection)
                connection.execute(sa.insert(_meta), [{"key": "format", "value": FORMAT}])
                connection.execute(sa.insert(_migrations), [{"number": 1, "what": "all tables"}])
        elif not set(_tables.tables) <= names:
            raise LedgerError(f"{self!r} is not a ledger: tables are missing")
        found = self.meta("format")
        if found != FORMAT:
            raise LedgerError(f"{self!r} has the format {found!r}; this version reads {FORMAT!r}")

    @contextmanager
    def _clear_errors(self, committing: bool = False) -> Iterator[None]:
        """Turn what the database raises into an error that says what to do, and shows neither values nor passwords.

        A commit that fails may have happened: what a disk did before it failed to sync shows when it is read again.
        """
        try:
            yield
        except IntegrityError as error:
            words = type(error.orig).__name__  # no more: PostgreSQL's message has the row in it
            raise LedgerError(f"{self!r} refused a row that is there already ({words}). Nothing was changed") from None
        except DBAPIError as error:
            raise self._explained(error.orig, committing) from None
        except sqlite3.Error as error:  # of a statement that did not go through SQLAlchemy
            raise self._explained(error, committing) from None
        except SQLAlchemyError as error:
            raise LedgerError(f"{self!r} cannot be used ({type(error).__name__})", uncertain=committing) from None

    def _explained(self, error: BaseException | None, committing: bool) -> LedgerError:
        first = str(error).strip().splitlines()[:1]
        words = f"{type(error).__name__}: {''.join(first)}"
        if "malformed" in words or "not a database" in words:
            return LedgerError(f"{self!r} is damaged ({words}): restore it from a copy")
        if "readonly" in words or "unable to open" in words:
            return LedgerError(f"{self!r} cannot be used ({words}): SQLite writes beside it, even to read")
        if "locked" in words or "lock timeout" in words:
            return LedgerError(f"{self!r} is in use by another process: wait for it to end")
        after = ". Whether the change was made is not known: open it again to see" if committing else ""
        return LedgerError(f"{self!r} cannot be used ({words}){after}", uncertain=committing)

    # -- reading -----------------------------------------------------------------------------------

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        """Hand out the transaction of this thread's `writing`, else one of its own."""
        current: sa.Connection | None = getattr(self._local, "connection", None)
        with self._clear_errors():
            if current is not None:
                yield current
            else:
                with self._engine.begin() as connection:
                    yield connection

    def _rows(self, column: sa.Column[Any], values: Iterable[bytes]) -> Iterator[SampleRow]:
        with self._reading() as connection:
            for chunk in _chunks(values):
                for row in connection.execute(sa.select(_samples).where(column.in_(chunk))):
                    yield _sample(row)

    def by_numbers(self, numbers: Iterable[bytes]) -> dict[bytes, SampleRow]:
        """Return the samples held under these ticket numbers."""
        return {row.number: row for row in self._rows(_samples.c.number, numbers)}

    def by_members(self, members: Iterable[bytes]) -> dict[bytes, list[SampleRow]]:
        """Return the samples held with these member digests."""
        found: dict[bytes, list[SampleRow]] = {}
        for row in self._rows(_samples.c.member, members):
            found.setdefault(row.member, []).append(row)
        return found

    def knows_contents(self, contents: Iterable[bytes]) -> set[bytes]:
        """Return those of these contents that are held."""
        return {row.content for row in self._rows(_samples.c.content, contents)}

    def counts(self) -> dict[str, int]:
        """Return the number of samples of each class."""
        question = sa.select(_samples.c.name, sa.func.count()).group_by(_samples.c.name)
        with self._reading() as connection:
            return dict(sorted((str(name), int(count)) for name, count in connection.execute(question)))

    def samples(self, name: str | None = None) -> Iterator[SampleRow]:
        """Yield all samples, or those of a class, in the order of their numbers."""
        question = sa.select(_samples).order_by(_samples.c.number)
        if name is not None:
            question = question.where(_samples.c.name == name)
        streamed = {"yield_per": 1000}
        with self._reading() as connection, connection.execute(question, execution_options=streamed) as result:
            yield from map(_sample, result)

    def journal(self) -> Iterator[JournalRow]:
        """Yield the changes since the last snapshot, oldest first."""
        question = sa.select(_journal).order_by(_journal.c.sequence)
        streamed = {"yield_per": 10}
        with self._reading() as connection, connection.execute(question, execution_options=streamed) as result:
            for row in result:
                yield JournalRow(int(row.sequence), str(row.kind), bytes(row.payload))

    def meta(self, key: str) -> str | None:
        """Return what is noted under a key."""
        with self._reading() as connection:
            value = connection.execute(sa.select(_meta.c.value).where(_meta.c.key == key)).scalar_one_or_none()
            return None if value is None else str(value)

    def pending(self) -> list[bytes]:
        """Return the commitments of what was forgotten and is in no certificate yet, sorted."""
        question = sa.select(_forgotten.c.commitment).where(_forgotten.c.certificate.is_(None))
        with self._reading() as connection:
            return sorted(bytes(value) for (value,) in connection.execute(question))

    def certificate_of(self, commitment: bytes) -> int | None:
        """Return the number of the last certificate that lists a commitment."""
        question = sa.select(sa.func.max(_forgotten.c.certificate)).where(_forgotten.c.commitment == commitment)
        with self._reading() as connection:
            number = connection.execute(question).scalar_one_or_none()
            return None if number is None else int(number)

    # -- writing -----------------------------------------------------------------------------------

    @contextmanager
    def writing(self) -> Iterator[Writing]:
        """Change the ledger: all of it, on disk, once this is left without an error; else nothing."""
        if getattr(self._local, "connection", None) is not None:
            raise InputError("this thread is changing the ledger already")
        if self._uncertain:
            raise LedgerError(f"an earlier change of {self!r} may have been made or not: open it again to see", True)
        with self._clear_errors(), self._engine.connect() as connection:
            self._local.writes = True
            try:
                with connection.begin() as transaction:
                    self._local.connection = connection
                    yield Writing(connection)
                    self._commit(connection, transaction)
            finally:
                self._local.writes, self._local.connection = False, None

    def _commit(self, connection: sa.Connection, transaction: sa.RootTransaction) -> None:
        with self._clear_errors(committing=True):
            try:
                transaction.commit()
            except BaseException:
                self._uncertain = True
                connection.invalidate()  # the driver may still be inside the transaction
                raise

    def _begin(self, connection: sa.Connection) -> None:
        """Begin a transaction: a writer takes its lock at once, not half-way. Readers are not kept out."""
        writes = getattr(self._local, "writes", False)
        if self._lite:
            connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
        elif writes:
            connection.exec_driver_sql("LOCK TABLE meta IN EXCLUSIVE MODE")

    def scrub(self) -> None:
        """Clear the database's files of what was deleted."""
        with self._clear_errors():
            if self._lite:
                self._scrub_file()
                return
            with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                for table in _tables.tables:
                    connection.exec_driver_sql(f'VACUUM FULL "{table}"')

    def _scrub_file(self) -> None:
        """Write the file anew without its free pages, and empty its log."""
        connection = self._engine.raw_connection()  # outside any transaction
        try:
            cursor = connection.cursor()
            cursor.execute("VACUUM")
            (busy, _, _) = cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            connection.close()
        if busy:
            raise LedgerError(f"{self!r} is being read: what was deleted is still in its log. Try again when it is not")


class Writing:
    """One transaction of a ledger."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def append(self, kind: str, payload: bytes) -> int:
        """Add a change to the journal and return its sequence number, higher than any that is there."""
        last = self._connection.execute(sa.select(sa.func.max(_journal.c.sequence))).scalar_one()
        sequence = int(last or 0) + 1
        self._connection.execute(sa.insert(_journal), [{"sequence": sequence, "kind": kind, "payload": payload}])
        return sequence

    def add(self, rows: Sequence[SampleRow]) -> None:
        """Take samples in. One that went since the last certificate, and now comes back, did not go."""
        if rows:
            mark = "?" if self._connection.dialect.name == "sqlite" else "%s"
            marks = ", ".join([mark] * len(SampleRow._fields))
            statement = f"INSERT INTO samples ({', '.join(SampleRow._fields)}) VALUES ({marks})"  # noqa: S608
            self._connection.exec_driver_sql(statement, sorted(rows))  # by the driver: there may be very many
        waiting = _forgotten.c.certificate.is_(None)
        for chunk in _chunks(row.commitment for row in rows):
            self._connection.execute(sa.delete(_forgotten).where(waiting, _forgotten.c.commitment.in_(chunk)))

    def remove(self, numbers: Sequence[bytes]) -> None:
        """Let samples go, and note their commitments for the next certificate."""
        for chunk in _chunks(numbers):
            self._remove(_samples.c.number.in_(chunk))

    def remove_class(self, name: str) -> None:
        """Let all samples of a class go, likewise."""
        self._remove(_samples.c.name == name)

    def _remove(self, which: sa.ColumnElement[bool]) -> None:
        place = sa.func.row_number().over(order_by=_samples.c.commitment) + self._last_place()
        chosen = sa.select(place, _samples.c.commitment).where(which)
        self._connection.execute(sa.insert(_forgotten).from_select(["place", "commitment"], chosen))
        self._connection.execute(sa.delete(_samples).where(which))

    def _last_place(self) -> int:
        return int(self._connection.execute(sa.select(sa.func.max(_forgotten.c.place))).scalar_one() or 0)

    def set_meta(self, key: str, value: str | None) -> None:
        """Note a value under a key; None removes it."""
        self._connection.execute(sa.delete(_meta).where(_meta.c.key == key))
        if value is not None:
            self._connection.execute(sa.insert(_meta), [{"key": key, "value": value}])

    def drop_journal(self, up_to: int) -> None:
        """Drop the journal up to a sequence number."""
        self._connection.execute(sa.delete(_journal).where(_journal.c.sequence <= up_to))

    def certify(self, certificate: int) -> None:
        """Note that a certificate lists all that is pending, and that all samples are published.

        The rows are written anew in the order of their commitments, so that it does not show what went first.
        """
        waiting = _forgotten.c.certificate.is_(None)
        found = [bytes(row[0]) for row in self._connection.execute(sa.select(_forgotten.c.commitment).where(waiting))]
        self._connection.execute(sa.delete(_forgotten).where(waiting))
        if found:
            rows = [
                {"place": place, "commitment": value, "certificate": certificate}
                for place, value in enumerate(sorted(found), self._last_place() + 1)
            ]
            self._connection.execute(sa.insert(_forgotten), rows)
        fresh = _samples.c.state != "published"
        self._connection.execute(sa.update(_samples).where(fresh).values(state="published"))


def _sample(row: Any) -> SampleRow:
    return SampleRow(
        bytes(row.number), bytes(row.content), bytes(row.member), row.name, row.id, row.owner, bytes(row.commitment),
        int(row.learned), row.state,
    )  # fmt: skip


def in_file(path: Path) -> sa.URL:
    """Return the URL of a ledger in a file, whatever characters its path has."""
    return sa.URL.create("sqlite", database=str(path))


def _make_private(path: Path) -> None:
    """Make an empty file of mode 600, for SQLite to fill: the log beside it gets the same mode."""
    try:
        path.touch(mode=0o600)
        path.chmod(0o600)
    except OSError as error:
        raise LedgerError(f"the ledger {path} cannot be made: {error.strerror}") from error


def _set_up_server(connection: Any, record: Any) -> None:
    """Set what PostgreSQL keeps for each connection."""
    connection.execute(f"SET lock_timeout = {int(_PATIENCE * 1000)}")
    connection.commit()


def _set_up_file(connection: Any, record: Any) -> None:
    """Set what SQLite keeps for each connection; transactions are begun by SQLAlchemy's events, not by the driver."""
    connection.isolation_level = None
    for setting in (
        "journal_mode = WAL",
        "synchronous = FULL",
        "secure_delete = ON",
        "temp_store = MEMORY",
        f"cache_size = -{_CACHE}",
        f"wal_autocheckpoint = {_LOG_PAGES}",
    ):
        connection.execute(f"PRAGMA {setting}")
