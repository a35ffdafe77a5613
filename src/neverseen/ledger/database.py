"""The database of a ledger: commits are durable, one process writes at a time, and deleted rows can be scrubbed."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.schema import CreateIndex, CreateTable, DropTable

from neverseen.errors import ConfigurationError, LedgerError
from neverseen.ledger.tables import chunks
from neverseen.registry import Registry

if TYPE_CHECKING:  # a dialect takes long to import, and a ledger needs one of them
    from sqlalchemy.dialects import postgresql, sqlite

_PAGE_ROWS = 1000  # of a table that is made anew, those in memory at a time


class Transaction:
    """An open transaction. It runs statements, returns rows, and raises failures as `LedgerError`."""

    def __init__(self, database: Database, connection: sa.Connection) -> None:
        self.database = database
        self._connection: sa.Connection | None = connection

    def rows(self, statement: sa.Executable, values: Any = None) -> Sequence[Any]:
        """Return all rows of a statement."""
        with self.database.clear_errors():
            return self._open().execute(statement, values).fetchall()

    def rows_in(self, question: sa.Select[Any], column: sa.Column[Any], values: Iterable[Any]) -> Iterator[Any]:
        """Yield the rows of a query in which a column has one of these values."""
        for chunk in chunks(sorted(set(values))):
            yield from self.rows(question.where(column.in_(chunk)))

    def run(self, statement: sa.Executable, values: Any = None) -> None:
        """Execute a statement; with a list of values, once for each."""
        with self.database.clear_errors():
            self._open().execute(statement, values)

    def load(self, table: sa.Table, rows: list[tuple[Any, ...]]) -> None:
        """Insert many rows, each the values of all columns in order.

        They go to the driver directly: SQLAlchemy would take longer to look at each value than the database to store
        it.
        """
        names = ", ".join(f'"{column.name}"' for column in table.columns)
        marks = ", ".join([self.database.mark] * len(table.columns))
        with self.database.clear_errors():
            self._open().exec_driver_sql(f"INSERT INTO {table.name} ({names}) VALUES ({marks})", rows)  # noqa: S608

    def found(
        self,
        table: sa.Table,
        columns: Sequence[str],
        key: str,
        values: list[int],
        equal: Mapping[str, Any] = MappingProxyType({}),
    ) -> list[Any]:
        """Return some columns of the rows with one of these keys, directly from the driver: there may be very many.

        `equal` names columns and the values that the rows must have in them; other rows are not fetched.
        """
        mark = self.database.mark
        marks = ", ".join([mark] * len(values))
        rest = "".join(f" AND {name} = {mark}" for name in equal)
        question = f"SELECT {', '.join(columns)} FROM {table.name} WHERE {key} IN ({marks}){rest}"  # noqa: S608
        with self.database.clear_errors():
            return list(self._open().exec_driver_sql(question, (*values, *equal.values())))

    def rebuild(
        self, table: sa.Table, columns: Iterable[str], renewed: Callable[[Sequence[Any]], tuple[Any, ...]]
    ) -> None:
        """Create a table again as it is defined now. The new rows are made from these columns of the old ones."""
        old = f"{table.name}_old"
        with self.database.clear_errors():
            connection = self._open()
            # A copy, not a new name: names of constraints and indexes would go with the old table, and the new one
            # would get others than a ledger that is made new.
            connection.exec_driver_sql(f"CREATE TABLE {old} AS SELECT * FROM {table.name}")  # noqa: S608
            connection.execute(DropTable(table))
            connection.execute(CreateTable(table))
            question = f"SELECT {', '.join(columns)} FROM {old}"  # noqa: S608
            with connection.exec_driver_sql(question, execution_options={"stream_results": True}) as rows:
                while page := rows.fetchmany(_PAGE_ROWS):
                    self.load(table, list(map(renewed, page)))
            connection.exec_driver_sql(f"DROP TABLE {old}")
            for index in sorted(table.indexes, key=lambda index: str(index.name)):
                connection.execute(CreateIndex(index))

    def make(self, tables: sa.MetaData) -> None:
        """Create tables and their indexes."""
        with self.database.clear_errors():
            tables.create_all(self._open(), checkfirst=False)

    def end(self) -> None:
        """Refuse further statements."""
        self._connection = None

    def _open(self) -> sa.Connection:
        if self._connection is None:
            raise LedgerError("this transaction is over: ask the ledger again")
        return self._connection


class Database(ABC):
    """A database behind an engine of SQLAlchemy.

    Parameters
    ----------
    name : str
        For messages: a path, or an address without the password.
    patience : float
        Seconds to wait for others.
    """

    is_ours_alone: bool  # nothing else may be in the same database
    mark: str  # what stands for a value in a statement

    def __init__(self, name: str, engine: sa.Engine, patience: float) -> None:
        self.name = name
        self._engine = engine
        self._patience = patience
        self._uncertain = False  # a commit failed: it may have been made or not
        self._process = os.getpid()

    def close(self) -> None:
        """Close all connections, unless they belong to another process."""
        if self._process == os.getpid():
            self._engine.dispose()

    def require_own_process(self) -> None:
        """Raise `LedgerError` in a process that was forked from the one that opened the database.

        The connections and the right to write belong to the other process. Neither would notice the other's changes.
        """
        if self._process != os.getpid():
            raise LedgerError(
                f"the ledger {self.name} was opened by process {self._process}, from which this one was forked. It "
                "cannot be used here, and nothing was changed. Open the store after the fork"
            )

    def table_names(self) -> set[str]:
        """Return the names of all tables."""
        with self.clear_errors():
            return set(sa.inspect(self._engine).get_table_names())

    @contextmanager
    def reading(self) -> Iterator[Transaction]:
        """Open a transaction that sees one state of the database, whatever others write meanwhile."""
        with self._transaction("read") as transaction:
            yield transaction

    @contextmanager
    def writing(self, locked: bool = True) -> Iterator[Transaction]:
        """Open the one write transaction. It is on disk when the block ends, or undone if the block raises."""
        if self._uncertain:
            raise LedgerError(
                f"an earlier change of the ledger {self.name} may have been made or not: open it again to see",
                uncertain=True,
            )
        with self._transaction("write" if locked else "create") as transaction:
            yield transaction

    def stop_writing(self) -> None:
        """Refuse to write from now on, as after a failed commit."""
        self._uncertain = True

    @contextmanager
    def _transaction(self, purpose: str) -> Iterator[Transaction]:
        self.require_own_process()
        with self.clear_errors():
            connection = self._engine.connect()
        try:
            with self.clear_errors():
                self._begin(connection, purpose)
            transaction = Transaction(self, connection)
            try:
                yield transaction
            finally:
                transaction.end()
            self._commit(connection, purpose)
        finally:
            with self.clear_errors():
                connection.close()  # rolls back what is not committed

    def _commit(self, connection: sa.Connection, purpose: str) -> None:
        """Commit. A failed commit may still have reached the disk: that shows when the database is opened again."""
        self.require_own_process()
        with self.clear_errors(uncertain=purpose != "read"):
            try:
                connection.commit()
            except BaseException:
                if purpose != "read":  # what was uncertain before stays so
                    self._uncertain = True
                connection.invalidate()
                raise

    @contextmanager
    def clear_errors(self, uncertain: bool = False) -> Iterator[None]:
        """Turn errors of the database into a `LedgerError` that says what to do.

        It shows neither values nor passwords, and hides the original error. During a commit it is `uncertain`: a failed
        commit may have been made or not.
        """
        try:
            yield
        except SQLAlchemyError as error:
            words = f"the ledger {self.name} cannot be used ({type(error).__name__})"
            if isinstance(error, DBAPIError):
                words = self._explained(error, error.connection_invalidated)
            if uncertain:
                words += ". Whether the last change was made is not known: open the ledger again to see"
            raise LedgerError(words, uncertain=uncertain) from None

    @abstractmethod
    def insert(self, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
        """Return an INSERT that can handle a row that exists already."""

    @abstractmethod
    def scrub(self) -> None:
        """Make sure that no file of the database holds deleted rows."""

    @abstractmethod
    def prepare(self, transaction: Transaction) -> None:
        """Finish new tables, as this kind of database needs."""

    @abstractmethod
    def check(self, transaction: Transaction) -> None:
        """Raise `LedgerError` unless tables and indexes match."""

    @abstractmethod
    def _begin(self, connection: sa.Connection, purpose: str) -> None: ...

    @abstractmethod
    def _explained(self, error: DBAPIError, lost: bool) -> str: ...


kinds: Registry[Callable[[str, bool, float], Database]] = Registry(
    "database", "databases", {"sqlite": "ledger.sqlite:SQLite", "postgresql+psycopg": "ledger.postgresql:PostgreSQL"}
)
register = kinds.add
"""``register(scheme, factory)`` adds a kind of database; the factory takes URL, create and patience, like `SQLite`."""


def open_database(url: str, create: bool, patience: float) -> Database:
    """Return the database of a URL: ``sqlite:///path``, with any path, or ``postgresql+psycopg://...``."""
    if not isinstance(url, str):
        raise ConfigurationError(f"the URL of a ledger is a text; got {type(url).__name__}")
    return kinds[url.partition(":")[0][:20]](url, create, patience)  # never more in a message: a password may follow
