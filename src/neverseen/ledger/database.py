"""The database of a ledger: opened so that what is committed stays, written by one at a time, scrubbed on request."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.schema import CreateIndex, CreateTable, DropTable

from neverseen.errors import ConfigurationError, LedgerError
from neverseen.ledger.tables import chunks
from neverseen.registry import Registry

Insert = sqlite.Insert | postgresql.Insert
_PAGE_ROWS = 1000  # of a table that is made anew, those in memory at a time


class Transaction:
    """An open transaction: statements in, rows out, failures as `LedgerError`."""

    def __init__(self, database: Database, connection: sa.Connection) -> None:
        self.database = database
        self._connection: sa.Connection | None = connection

    def rows(self, statement: sa.Executable, values: Any = None) -> Sequence[Any]:
        """Return all rows that a statement yields."""
        with self.database.clear_errors():
            return self._open().execute(statement, values).fetchall()

    def rows_in(self, question: sa.Select[Any], column: sa.Column[Any], values: Iterable[Any]) -> Iterator[Any]:
        """Yield the rows of a question in which a column has one of these values."""
        for chunk in chunks(sorted(set(values))):
            yield from self.rows(question.where(column.in_(chunk)))

    def run(self, statement: sa.Executable, values: Any = None) -> None:
        """Execute a statement; with a list of values, once for each."""
        with self.database.clear_errors():
            self._open().execute(statement, values)

    def load(self, table: sa.Table, rows: list[tuple[Any, ...]]) -> None:
        """Insert many rows, each the values of all columns in order.

        They go to the driver as they are. To have SQLAlchemy look at each value takes longer than to store it.
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
        """Return some columns of the rows whose key is one of these, by the driver: there may be very many.

        Rows in which a column is not `equal` to what it is given are not fetched.
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
        """Make a table anew as it is defined now. The new rows are made of these columns of the old ones."""
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
        """Refuse anything more."""
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
    engine : Engine
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
        """Let go of all connections, unless they are another process's."""
        if self._process == os.getpid():
            self._engine.dispose()

    def require_own_process(self) -> None:
        """Raise `LedgerError` in a process that was forked from the one that opened the database.

        The connections are not its own, nor is the right to write. What one of the two wrote, the other would not know.
        """
        if self._process != os.getpid():
            raise LedgerError(
                f"the ledger {self.name} was opened by process {self._process}, from which this one was forked. It "
                "cannot be used here, and nothing was changed. Open the store after the fork"
            )

    def table_names(self) -> set[str]:
        """Return the names of all tables there are."""
        with self.clear_errors():
            return set(sa.inspect(self._engine).get_table_names())

    @contextmanager
    def reading(self) -> Iterator[Transaction]:
        """Hand out a transaction that sees one state of the database, whatever is written meanwhile."""
        with self._transaction("read") as transaction:
            yield transaction

    @contextmanager
    def writing(self, locked: bool = True) -> Iterator[Transaction]:
        """Hand out the one write transaction: on disk once it is left, or undone if it is left by an exception."""
        if self._uncertain:
            raise LedgerError(
                f"an earlier change of the ledger {self.name} may have been made or not: open it again to see",
                uncertain=True,
            )
        with self._transaction("write" if locked else "create") as transaction:
            yield transaction

    def stop_writing(self) -> None:
        """Refuse to write from now on, as after a commit that failed."""
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
        """Commit. One that fails may have been made: what a disk did before it failed shows when it is read again."""
        self.require_own_process()
        with self.clear_errors(uncertain=purpose != "read"):
            try:
                connection.commit()
            except BaseException:
                self._uncertain = purpose != "read"
                connection.invalidate()
                raise

    @contextmanager
    def clear_errors(self, uncertain: bool = False) -> Iterator[None]:
        """Turn what the database raises into a `LedgerError` that says what to do.

        It shows neither values nor passwords, and what it was raised from is not shown either. It is `uncertain` while
        a commit is under way: if that fails, it may have been made or not.
        """
        try:
            yield
        except DBAPIError as error:
            words = self._explained(error, error.connection_invalidated)
            if uncertain:
                words += ". Whether the last change was made is not known: open the ledger again to see"
            raise LedgerError(words, uncertain=uncertain) from None
        except SQLAlchemyError as error:
            raise LedgerError(f"the ledger {self.name} cannot be used ({type(error).__name__})") from None

    @abstractmethod
    def insert(self, table: sa.Table) -> Insert:
        """Return an INSERT that can say what to do about a row that is there already."""

    @abstractmethod
    def scrub(self) -> None:
        """Make sure that no file of the database holds what was deleted."""

    @abstractmethod
    def prepare(self, transaction: Transaction) -> None:
        """Do what this kind of database needs once the tables are made."""

    @abstractmethod
    def check(self, transaction: Transaction) -> None:
        """Raise `LedgerError` unless tables and indexes fit each other."""

    @abstractmethod
    def _begin(self, connection: sa.Connection, purpose: str) -> None: ...

    @abstractmethod
    def _explained(self, error: DBAPIError, lost: bool) -> str: ...


kinds: Registry[Callable[[str, bool, float], Database]] = Registry(
    "database", "databases", {"sqlite": "ledger.sqlite:SQLite", "postgresql+psycopg": "ledger.postgresql:PostgreSQL"}
)
register = kinds.add
"""``register(scheme, factory)`` adds a kind of database; it gets URL, create and patience, as `SQLite` does."""


def open_database(url: str, create: bool, patience: float) -> Database:
    """Return the database of a URL: ``sqlite:///path``, the rest taken as it is, or ``postgresql+psycopg://...``."""
    if not isinstance(url, str):
        raise ConfigurationError(f"the URL of a ledger is a text; got {type(url).__name__}")
    return kinds[url.partition(":")[0][:20]](url, create, patience)  # never more in a message: a password may follow
