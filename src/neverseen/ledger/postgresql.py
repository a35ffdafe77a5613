"""Ledgers in PostgreSQL: tables in a database of a server."""

from __future__ import annotations

import re
import time
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import DBAPIError

from neverseen.errors import ConfigurationError, LedgerError, MissingPackageError
from neverseen.ledger.database import Database, Transaction
from neverseen.ledger.schema import require_postgresql
from neverseen.ledger.tables import SCHEMAS, meta, samples, tables

_LOCKED = "55P03"  # no lock was free in time
_NAMES = re.compile(r'"(?:[^"]|"")*"|[^,\s"]+')
"""Of the schemas in a search path."""


class PostgreSQL(Database):
    """A database of PostgreSQL. With `create`, it has no tables yet."""

    is_ours_alone = False
    mark = "%s"

    def __init__(self, url: str, create: bool, patience: float) -> None:
        try:
            parsed = sa.make_url(url)
        except Exception:  # its message may quote a part of the password
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

    def insert(self, table: sa.Table) -> postgresql.Insert:  # noqa: D102
        return postgresql.insert(table)

    def prepare(self, transaction: Transaction) -> None:
        """Keep the server from recording values of columns as statistics, where they would outlast their rows.

        Then check the new tables as when they are opened. Anything that acts on all tables of the database, such as a
        publication, acts on them too, and is refused before they are committed.
        """
        for table in tables.sorted_tables:
            for column in table.columns:
                transaction.run(sa.text(f'ALTER TABLE {table.name} ALTER COLUMN "{column.name}" SET STATISTICS 0'))
        require_postgresql(lambda question: transaction.rows(sa.text(question)), self.name, [tables])

    def check(self, transaction: Transaction) -> None:
        """Do nothing: a server takes care of its own files."""

    def _begin(self, connection: sa.Connection, purpose: str) -> None:
        if purpose == "read":
            connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        elif purpose == "write":  # readers go on; another writer waits
            connection.execute(sa.text(f"LOCK TABLE {meta.name} IN EXCLUSIVE MODE"))

    def scrub(self) -> None:
        """Rewrite every table, with the samples in the order of their numbers.

        The server's own log, its standbys and its backups are beyond our control.
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
            # Somebody may have added what keeps values since the connection was made: then nothing is clear.
            require_postgresql(lambda question: connection.execute(sa.text(question)).all(), self.name, [tables])

    def _wait_for_older_readers(self, connection: sa.Connection) -> None:
        """Wait until no transaction can see the deleted rows: rows that are still visible would be copied."""
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
