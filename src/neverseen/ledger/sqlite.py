"""Ledgers in SQLite: a file, with a write-ahead log."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateIndex, CreateTable

from neverseen.errors import ConfigurationError, LedgerError, MissingPackageError
from neverseen.io.files import identity_of, sync_folder
from neverseen.ledger.database import Database, Transaction
from neverseen.ledger.schema import require_sqlite
from neverseen.ledger.tables import SCHEMAS, samples

_PREFIX = "sqlite:///"
_PAGE_SIZE = 2048  # a sample touches a page of each index; small ones are less to write
_CACHE_SIZE = 2**30  # at most: the indexes of ten million samples fit
_LOG_SIZE = 2**28  # of the write-ahead log, when it is carried over into the database
_SYNCHRONOUS_FULL = 2
_MOMENT = 1.0  # second to wait for readers before anything is done
_READER_SETTINGS = ("temp_store", "cache_size")  # of a file that may not be written


def in_file(path: Path) -> str:
    """Return the URL of a ledger in a file. Its path may have any characters."""
    return f"{_PREFIX}{path}"


def absolute_url(url: str) -> str:
    """Return a URL of the ledger that does not depend on the working folder."""
    return in_file(Path(url.removeprefix(_PREFIX)).absolute()) if url.startswith(_PREFIX) else url


class SQLite(Database):
    """A file of SQLite, with a write-ahead log: readers and the writer do not wait for each other.

    The URL is ``sqlite:///`` followed by a path, which is used as it stands. With `create`, a missing file is created
    with mode 600. An existing file is opened; the caller checks whether it is a ledger.
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
        self._path, self._create, self._identity = path, create, identity_of(path)
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

        SQLite makes two files beside a database with a write-ahead log, even to read it. If it may not, the database
        can still be read: as an unchanging file if there is no log, or through the files of a running writer.
        """
        if not self.is_read_only:
            return "mode=rw"  # never made by accident
        return "mode=ro&immutable=1" if self._is_at_rest() else "mode=ro"

    def _is_at_rest(self) -> bool:
        log = self._path.with_name(f"{self._path.name}-wal")
        return not log.exists() or log.stat().st_size == 0

    @contextmanager
    def reading(self) -> Iterator[Transaction]:
        """Open a transaction. If the file may not be written, check afterwards that nobody else wrote it meanwhile."""
        before = self._stamp() if self.is_read_only and self._is_at_rest() else None
        with super().reading() as transaction:
            yield transaction
        if before is not None and before != self._stamp():
            raise LedgerError(f"the ledger {self.name} changed while it was being read: try again")

    def _stamp(self) -> tuple[int, int, int]:
        about = self._path.stat()
        return about.st_ino, about.st_size, about.st_mtime_ns

    def insert(self, table: sa.Table) -> sqlite.Insert:  # noqa: D102
        return sqlite.insert(table)

    def prepare(self, transaction: Transaction) -> None:
        """Do nothing: each connection sets everything that SQLite needs."""

    def check(self, transaction: Transaction) -> None:  # noqa: D102
        ((found,),) = transaction.rows(sa.text("PRAGMA integrity_check(1)"))
        if found != "ok":
            raise LedgerError(f"the ledger {self.name} is damaged: {found}. Restore it from a copy")

    def _begin(self, connection: sa.Connection, purpose: str) -> None:
        if purpose != "read" and identity_of(self._path) != self._identity:
            # SQLite would go on in the file that was opened, even if it is deleted by now.
            raise LedgerError(
                f"the ledger {self.name} is another file than when it was opened, or is gone: it was moved, deleted or "
                "restored meanwhile. Nothing was changed. Open the store again"
            )
        connection.exec_driver_sql("BEGIN" if purpose == "read" else "BEGIN IMMEDIATE")

    def scrub(self) -> None:
        """Rewrite the samples in the order of their numbers, then the whole file, and empty the log."""
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
        with self.clear_errors(), self._engine.connect() as connection:  # outside a transaction
            connection.exec_driver_sql("VACUUM")
            # Somebody may have added what keeps values since the connection was made: then nothing is clear.
            require_sqlite(lambda question: connection.exec_driver_sql(question).all(), self.name, SCHEMAS[:1])
        self._empty_log(self._patience)

    def _empty_log(self, patience: float) -> None:
        """Move the log into the file, and empty it; wait this long for readers."""
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
            ("SQLITE_FULL", "found the disk full: free some space, and try again"),
            ("SQLITE_IOERR_SHMSIZE", "found the disk full, and needs some space to read too: free some, and try again"),
            ("SQLITE_READONLY", "may not be written, which SQLite does even to read: see who owns file and folder"),
            ("SQLITE_CANTOPEN", "cannot be opened: see that the file is there, and who owns it and its folder"),
            ("SQLITE_IOERR", "could not be read or written: check the disk, then open it again"),
        ):
            if code.startswith(start):
                return f"the ledger {self.name} {words} ({code})"
        # No more: the driver's message may quote values of a row.
        return f"the ledger {self.name} cannot be used ({code or type(error.orig).__name__})"


def may_write(path: Path) -> bool:
    """Return whether a database may be written: both its file and its folder, where its log goes."""
    return os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
