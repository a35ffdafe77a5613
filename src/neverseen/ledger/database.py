"""The database of a ledger: opened so that what is committed stays, written by one at a time, scrubbed on request."""

from __future__ import annotations

import os
import re
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.schema import CreateIndex, CreateTable, DropTable

from neverseen.errors import ConfigurationError, LedgerError, MissingPackageError
from neverseen.io.files import sync_folder
from neverseen.ledger.schema import require_postgresql, require_sqlite
from neverseen.ledger.tables import SCHEMAS, meta, samples, tables
from neverseen.registry import Registry

Insert = sqlite.Insert | postgresql.Insert
_PREFIX = "sqlite:///"
_PAGE_SIZE = 2048  # a sample touches a page of each index; small ones are less to write
_CACHE_SIZE = 2**30  # at most: the indexes of ten million samples fit
_LOG_SIZE = 2**28  # of the write-ahead log, when it is carried over into the database
_SYNCHRONOUS_FULL = 2
_PAGE_ROWS = 1000  # of a table that is made anew, those in memory at a time
_MOMENT = 1.0  # second to wait for those who read, before anything was done
_READER_SETTINGS = ("temp_store", "cache_size")  # of a file that may not be written


class Transaction:
    """An open transaction: statements in, rows out, failures as `LedgerError`."""

    def __init__(self, database: Database, connection: sa.Connection) -> None:
        self.database = database
        self._connection: sa.Connection | None = connection

    def rows(self, statement: sa.Executable, values: Any = None) -> Sequence[Any]:
        """Return all rows that a statement yields."""
        with self.database.clear_errors():
            return self._open().execute(statement, values).fetchall()

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

    def rebuild(self, table: sa.Table, columns: str, load: Callable[[Sequence[Any]], None]) -> None:
        """Make a table anew as it is defined now, and hand its old rows to `load`, some at a time.

        Parameters
        ----------
        table : Table
        columns : str
            Of the old table, what to read: names with commas between them.
        load : callable
            Puts rows into the new one.
        """
        old = f"{table.name}_old"
        with self.database.clear_errors():
            connection = self._open()
            # A copy, not a new name: names of constraints and indexes would go with the old table, and the new one
            # would get others than a ledger that is made new.
            connection.exec_driver_sql(f"CREATE TABLE {old} AS SELECT * FROM {table.name}")  # noqa: S608
            connection.execute(DropTable(table))
            connection.execute(CreateTable(table))
            question = f"SELECT {columns} FROM {old}"  # noqa: S608
            with connection.exec_driver_sql(question, execution_options={"stream_results": True}) as rows:
                while page := rows.fetchmany(_PAGE_ROWS):
                    load(page)
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

    def _require_own(self) -> None:
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
        self._require_own()
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
        self._require_own()
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

        It shows neither values nor passwords, and what it was raised from is not shown either.

        Parameters
        ----------
        uncertain : bool
            A commit is under way: if it fails, it may have been made or not.
        """
        try:
            yield
        except DBAPIError as error:
            lost = error.connection_invalidated
            words = self._explained(error, lost)
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


def in_file(path: Path) -> str:
    """Return the URL of a ledger in a file, whatever characters its path has."""
    return f"{_PREFIX}{path}"


kinds: Registry[Callable[[str, bool, float], Database]] = Registry("database", "databases", {})
register = kinds.add
"""``register(scheme, factory)`` adds a kind of database; it gets URL, create and patience, as `SQLite` does."""


def open_database(url: str, create: bool, patience: float) -> Database:
    """Return the database of a URL: ``sqlite:///path``, the rest taken as it is, or ``postgresql+psycopg://...``."""
    if not isinstance(url, str):
        raise ConfigurationError(f"the URL of a ledger is a text; got {type(url).__name__}")
    return kinds[url.partition(":")[0][:20]](url, create, patience)  # never more in a message: a password may follow


class SQLite(Database):
    """A file of SQLite, with a write-ahead log: readers and the writer do not wait for each other.

    Parameters
    ----------
    url : str
        ``sqlite:///`` and a path, which is taken as it is.
    create : bool
        Make the file, of mode 600. One that is there is opened; whether it is of use is for the caller to find out.
    patience : float
    """

    is_ours_alone = True
    mark = "?"

    def __init__(self, url: str, create: bool, patience: float) -> None:
        if not url.startswith(_PREFIX):
            raise ConfigurationError("the URL of a ledger in SQLite is sqlite:/// and a path")
        path = Path(url.removeprefix(_PREFIX)).absolute()
        if sqlite3.sqlite_version_info < (3, 35):
            raise MissingPackageError(f"a ledger needs SQLite 3.35 or newer; Python has {sqlite3.sqlite_version}")
        if create and not path.exists():
            if not path.parent.is_dir():
                raise FileNotFoundError(f"there is no folder {path.parent} to make {path.name} in")
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            sync_folder(path.parent)
        if not path.is_file():
            raise LedgerError(f"the ledger {path} is missing: restore it from a copy, or create it")
        self._path, self._create = path, create
        self.is_read_only = not create and not may_write(path)
        pool = sa.NullPool if self.is_read_only else sa.QueuePool
        engine = sa.create_engine("sqlite://", creator=self._connect, poolclass=pool, hide_parameters=True)
        super().__init__(str(path), engine, patience)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"file:{quote(str(self._path))}?{self._mode()}",
            uri=True,
            timeout=self._patience,
            isolation_level=None,  # transactions begin where it is said, below
            check_same_thread=False,
        )
        try:
            connection.execute("PRAGMA trusted_schema = OFF")
            if not self._create:  # before a setting changes the file
                require_sqlite(connection.execute, str(self._path), SCHEMAS)
            for setting, value, wanted in (
                ("page_size", _PAGE_SIZE, None),  # of a new file
                ("journal_mode", "WAL", "wal"),
                ("synchronous", "FULL", _SYNCHRONOUS_FULL),
                ("fullfsync", "ON", 1),  # for macOS, which otherwise leaves it to the disk
                ("checkpoint_fullfsync", "ON", 1),
                ("secure_delete", "ON", 1),
                ("temp_store", "MEMORY", 2),  # nothing of it on another disk
                ("cache_size", -(_CACHE_SIZE // 1024), None),
                ("wal_autocheckpoint", _LOG_SIZE // _PAGE_SIZE, None),
            ):
                if self.is_read_only and setting not in _READER_SETTINGS:
                    continue
                connection.execute(f"PRAGMA {setting} = {value}")
                (found,) = connection.execute(f"PRAGMA {setting}").fetchone() or (None,)
                if wanted is not None and found != wanted:
                    raise LedgerError(
                        f"the ledger {self._path} cannot be kept safely: SQLite has {setting} = {found} here, and "
                        f"{value} is needed. It may be on a network disk: choose a local one"
                    )
        except BaseException:
            connection.close()
            raise
        return connection

    def _mode(self) -> str:
        """Return how to open the file.

        SQLite makes two files beside a database with a write-ahead log, even to read it. Where it may not, the database
        can be read as one that nobody changes, if there is no log; or through the files of whoever writes it.
        """
        if not self.is_read_only:
            return "mode=rw"  # never made by accident
        return "mode=ro&immutable=1" if self._is_at_rest() else "mode=ro"

    def _is_at_rest(self) -> bool:
        log = self._path.with_name(f"{self._path.name}-wal")
        return not log.exists() or log.stat().st_size == 0

    @contextmanager
    def reading(self) -> Iterator[Transaction]:
        """Hand out a transaction; where the file may not be written, see that nobody else wrote it meanwhile."""
        before = self._stamp() if self.is_read_only and self._is_at_rest() else None
        with super().reading() as transaction:
            yield transaction
        if before is not None and before != self._stamp():
            raise LedgerError(f"the ledger {self.name} changed while it was being read: try again")

    def _stamp(self) -> tuple[int, int, int]:
        about = self._path.stat()
        return about.st_ino, about.st_size, about.st_mtime_ns

    def insert(self, table: sa.Table) -> Insert:  # noqa: D102
        return sqlite.insert(table)

    def prepare(self, transaction: Transaction) -> None:
        """Do nothing: all that SQLite needs is set with each connection."""

    def check(self, transaction: Transaction) -> None:  # noqa: D102
        ((found,),) = transaction.rows(sa.text("PRAGMA integrity_check(1)"))
        if found != "ok":
            raise LedgerError(f"the ledger {self.name} is damaged: {found}. Restore it from a copy")

    def _begin(self, connection: sa.Connection, purpose: str) -> None:
        connection.exec_driver_sql("BEGIN" if purpose == "read" else "BEGIN IMMEDIATE")

    def scrub(self) -> None:
        """Write the samples anew in the order of their numbers, then the whole file, and empty the log."""
        self._empty_log(min(self._patience, _MOMENT))  # or all of it would be written into the log, time and again
        # SQLite numbers the rows as they come. Gaps in these numbers would show that something went, and where.
        old = f"{samples.name}_old"
        columns = ", ".join(column.name for column in samples.columns)
        with self.writing() as transaction:
            transaction.run(sa.text(f"ALTER TABLE {samples.name} RENAME TO {old}"))
            transaction.run(CreateTable(samples))
            transaction.run(
                sa.text(
                    f"INSERT INTO {samples.name} ({columns}) SELECT {columns} FROM {old} "  # noqa: S608
                    "ORDER BY number_key, number"
                )
            )
            transaction.run(sa.text(f"DROP TABLE {old}"))
            for index in sorted(samples.indexes, key=lambda index: str(index.name)):
                transaction.run(CreateIndex(index))
        with self.clear_errors(), self._engine.connect() as connection:  # not in a transaction: none was begun
            connection.exec_driver_sql("VACUUM")
        self._empty_log(self._patience)

    def _empty_log(self, patience: float) -> None:
        """Carry the log over into the file, and empty it; wait so long for those who read."""
        with self.clear_errors(), self._engine.connect() as connection:
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {round(1000 * patience)}")
            try:
                busy, *_ = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()
            finally:
                connection.exec_driver_sql(f"PRAGMA busy_timeout = {round(1000 * self._patience)}")
        if busy:
            raise LedgerError(
                f"the ledger {self.name} is being read: its log still holds what was deleted. End the reading, and "
                "try again",
                being_read=True,
            )

    def _explained(self, error: DBAPIError, lost: bool) -> str:
        code = str(getattr(error.orig, "sqlite_errorname", ""))
        if self.is_read_only and code.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY")):
            return (
                f"the ledger {self.name} has a log that was not carried over, or is to be changed, and may not be "
                f"written here: open the store once where it may ({code})"
            )
        for start, words in (
            ("SQLITE_BUSY", "is in use by another writer: wait for it to end, and try again"),
            ("SQLITE_LOCKED", "is in use by another writer: wait for it to end, and try again"),
            ("SQLITE_CORRUPT", "is damaged: restore it from a copy"),
            ("SQLITE_NOTADB", "is damaged, or no database at all: restore it from a copy"),
            ("SQLITE_FULL", "found the disk full: make room, and try again"),
            ("SQLITE_READONLY", "may not be written, which SQLite does even to read: see who owns file and folder"),
            ("SQLITE_CANTOPEN", "cannot be opened: see that the file is there, and who owns it and its folder"),
            ("SQLITE_IOERR", "could not be read or written: see to the disk, then open it again"),
        ):
            if code.startswith(start):
                return f"the ledger {self.name} {words} ({code})"
        # No more: what the driver says may quote what is in a row.
        return f"the ledger {self.name} cannot be used ({code or type(error.orig).__name__})"


def may_write(path: Path) -> bool:
    """Return whether a database may be written: its file, and its folder, where its log is made."""
    return os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)


_LOCKED = "55P03"  # a lock was not to be had in time
_NAMES = re.compile(r'"(?:[^"]|"")*"|[^,\s"]+')
"""Of the schemas in a search path."""


class PostgreSQL(Database):
    """A database of PostgreSQL.

    Parameters
    ----------
    url : str
    create : bool
        The tables are not there yet.
    patience : float
    """

    is_ours_alone = False
    mark = "%s"

    def __init__(self, url: str, create: bool, patience: float) -> None:
        try:
            parsed = sa.make_url(url)
        except Exception:  # what is wrong may be shown, and be a part of the password
            raise ConfigurationError(
                "the URL of the ledger cannot be read: write postgresql+psycopg://user:password@host:port/database, "
                "with %XX for special letters of the password"
            ) from None
        if any("password" in key for key in parsed.query):
            raise ConfigurationError(
                "a password in the query of the ledger's URL would show in messages: write user:password@host, or use "
                "a password file"
            )
        shown = parsed.set(query={}).render_as_string(hide_password=True)
        try:
            engine = sa.create_engine(
                parsed,
                hide_parameters=True,
                pool_pre_ping=True,
                connect_args={"connect_timeout": max(2, round(patience)), "application_name": "neverseen"},
            )
        except ImportError:
            raise MissingPackageError(
                "a ledger in PostgreSQL needs the package psycopg: pip install 'neverseen[postgresql]'"
            ) from None
        super().__init__(shown, engine, patience)
        self._create = create
        sa.event.listen(engine, "do_connect", self._connected)  # before SQLAlchemy asks the server anything

    def _connected(self, dialect: Any, record: Any, places: Any, options: Any) -> Any:
        connection = dialect.connect(*places, **options)
        try:
            with connection.cursor() as cursor:
                self._set_up_with(cursor)
            connection.commit()
        except BaseException:
            connection.close()
            raise
        return connection

    def _set_up_with(self, cursor: Any) -> None:
        # The server looks into its own catalogue first unless the path names it: then a schema before it can hide it,
        # and put functions and operators in place of the server's.
        (shown,) = cursor.execute("SHOW search_path").fetchone()
        path = [name for name in _NAMES.findall(shown) if name.strip('"').lower() != "pg_catalog"]
        cursor.execute("SELECT pg_catalog.set_config('search_path', %s, false)", [", ".join(path)])
        cursor.execute("SELECT set_config('lock_timeout', %s, false)", [f"{round(1000 * self._patience)}ms"])
        # Rows are found by index. The planner cannot know that, as no statistics are kept: they quote values.
        cursor.execute("SET enable_seqscan = off")
        cursor.execute("SELECT current_setting('fsync'), current_setting('synchronous_commit')")
        fsync, synchronous = cursor.fetchone()
        if fsync != "on":
            raise LedgerError(
                f"the server of {self.name} runs with fsync = off: what it commits may be lost. Turn it on"
            )
        if synchronous == "off":
            cursor.execute("SET synchronous_commit = on")
        if not self._create:
            require_postgresql(lambda question: cursor.execute(question).fetchall(), self.name, SCHEMAS)

    def insert(self, table: sa.Table) -> Insert:  # noqa: D102
        return postgresql.insert(table)

    def prepare(self, transaction: Transaction) -> None:
        """Keep the server from noting values of columns as statistics, where they would outlast their rows.

        Then the tables must be what is asked for when they are opened. What acts on all tables of the database, such as
        a publication, acts on new ones too: it is refused before they are committed.
        """
        for table in tables.sorted_tables:
            for column in table.columns:
                transaction.run(sa.text(f'ALTER TABLE {table.name} ALTER COLUMN "{column.name}" SET STATISTICS 0'))
        require_postgresql(lambda question: transaction.rows(sa.text(question)), self.name, [tables])

    def check(self, transaction: Transaction) -> None:
        """Do nothing: a server looks after its own files."""

    def _begin(self, connection: sa.Connection, purpose: str) -> None:
        if purpose == "read":
            connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        elif purpose == "write":  # readers go on; another writer waits
            connection.execute(sa.text(f"LOCK TABLE {meta.name} IN EXCLUSIVE MODE"))

    def scrub(self) -> None:
        """Write every table anew, the samples in the order of their numbers.

        The server's own log, its standbys and its backups are not in our hands.
        """
        with self.clear_errors():
            connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        with connection, self.clear_errors():
            self._wait_for_older_readers(connection)
            try:
                for table in tables.sorted_tables:
                    if table is samples:
                        connection.execute(sa.text(f"CLUSTER {table.name} USING {table.name}_number"))
                    else:
                        connection.execute(sa.text(f"VACUUM (FULL) {table.name}"))
            except DBAPIError as error:
                if getattr(error.orig, "sqlstate", None) != _LOCKED:
                    raise
                raise self._being_read() from None

    def _wait_for_older_readers(self, connection: sa.Connection) -> None:
        """Wait until nobody sees what was deleted before now: rows that somebody sees are carried over."""
        now = connection.execute(sa.text("SELECT CAST(CAST(pg_current_xact_id() AS xid) AS text)")).scalar_one()
        older = sa.text(
            "SELECT count(*) FROM (SELECT backend_xmin AS seen FROM pg_stat_activity "
            "WHERE datname = current_database() OR datname IS NULL "
            "UNION ALL SELECT xmin FROM pg_replication_slots) AS horizons "
            "WHERE seen IS NOT NULL AND age(seen) > age(CAST(:now AS xid))"
        )
        deadline = time.monotonic() + self._patience
        while connection.execute(older, {"now": now}).scalar_one():
            if time.monotonic() > deadline:
                raise self._being_read()
            time.sleep(0.05)

    def _being_read(self) -> LedgerError:
        return LedgerError(
            f"the ledger {self.name} is being read, or another transaction of the server is still open, and keeps what "
            "was deleted. End it (see pg_stat_activity), and try again",
            being_read=True,
        )

    def _explained(self, error: DBAPIError, lost: bool) -> str:
        diagnosis = getattr(error.orig, "diag", None)
        state = getattr(error.orig, "sqlstate", None)
        if state == _LOCKED:
            return f"the ledger {self.name} is in use by another writer: wait for it to end, and try again"
        said = getattr(diagnosis, "message_primary", None) if state else str(error.orig).strip().partition("\n")[0]
        if self._engine.url.password:
            said = str(said).replace(str(self._engine.url.password), "***")
        if state is None or lost:
            return (
                f"the ledger {self.name} cannot be reached ({said}): see that the server runs, and that address, user "
                "and password are right"
            )
        return f"the ledger {self.name} cannot be used ({state}: {said})"


register("sqlite", SQLite)
register("postgresql+psycopg", PostgreSQL)
