"""Checks that a database has the tables and indexes of a ledger, and nothing else.

A database that was made elsewhere may contain more than rows: a trigger that copies deleted rows, a view or a generated
column that calls functions, a constraint that refuses writes. So before anything is read or written, the database is
compared with a new ledger. The comparison follows the metadata of `tables`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import sqlalchemy as sa

from neverseen.errors import LedgerError

Part = tuple[str, ...]
"""A part of a schema: its kind, its name, its table, and its definition."""
Ask = Callable[[str], Iterable[Sequence[Any]]]
"""Runs a query in SQL, and returns the rows."""

_QUOTES = "statistics of the column"
_REWRITE = "VACUUM (FULL) pg_catalog.pg_statistic"
_WORD = re.compile(r'"(\w+)"|(\w+|[^\w\s])', re.ASCII)


def require_sqlite(ask: Ask, name: str, allowed: Sequence[sa.MetaData]) -> None:
    """Raise `LedgerError` unless a SQLite database has exactly one of these sets of tables (newest first)."""
    _require(_parts_of_sqlite(ask), lambda tables: _expected_of_sqlite(tables)[0], allowed, name)
    # Every part has the right name and text, so its columns can be asked for: none of them is computed by others' code.
    _require(_columns_of_sqlite(ask), lambda tables: _expected_of_sqlite(tables)[1], allowed, name)


def require_postgresql(ask: Ask, name: str, allowed: Sequence[sa.MetaData]) -> None:
    """Raise `LedgerError` unless a ledger in PostgreSQL has exactly one of these sets of tables.

    Other contents of the database do not matter, unless they act on these tables, as an event trigger does when the
    tables are rewritten.
    """
    _require(_parts_of_postgresql(ask, allowed), _expected_of_postgresql, allowed, name)


def _require(
    found: set[Part], expected: Callable[[sa.MetaData], set[Part]], allowed: Sequence[sa.MetaData], name: str
) -> None:
    if any(found == expected(tables) for tables in allowed):  # an older set is only made if the newest is not there
        return
    newest = expected(allowed[0])
    if not any(part[0] == "table" for part in found & newest):
        raise LedgerError(f"{name} is not a ledger: restore it from a copy, or create it elsewhere")
    extra = sorted(found - newest)
    kind, name_there, table, *_ = extra[0] if extra else min(newest - found)
    where = "" if table == name_there else f" of {table[:80]!r}"
    there = f"the {kind} {name_there[:80]!r}{where}"
    words = f"it lacks {there}"
    if extra:
        known = any(part[:3] == extra[0][:3] for part in newest)
        words = f"{there} differs from a ledger's" if known else f"it has {there}, and a ledger has none"
    remedy = "Restore the ledger from a copy that you trust; if a newer version of neverseen wrote it, use that one"
    if kind == "event trigger":
        remedy = "It acts on all tables of its database: drop or disable it, or give the ledger a database of its own"
    elif kind == _QUOTES:
        # ALTER removes the rows, VACUUM their bytes in the server's own table. Everybody in the database uses that
        # table, so we do not lock it ourselves.
        quoted = [part for part in extra if part[0] == _QUOTES]
        alter = [f'ALTER TABLE {of} ALTER COLUMN "{column}" TYPE {type_}' for _, column, of, type_ in quoted]
        remedy = "They quote values. As the owner of the database: " + "; ".join([*alter, _REWRITE])
    raise LedgerError(
        f"the ledger {name} is not made of the tables of a ledger: {words}. It could keep what is forgotten, so it is "
        f"not used, and nothing was changed. {remedy}"
    )


def _plain(definition: str) -> str:
    """Return a definition without white space and without quotes around words, which do not matter."""
    return " ".join(quoted or other for quoted, other in _WORD.findall(definition))


# -- SQLite ------------------------------------------------------------------------------------------


def _parts_of_sqlite(ask: Ask) -> set[Part]:
    rows = ask("SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_master")
    return {(str(kind), str(name), str(table), _plain(str(definition))) for kind, name, table, definition in rows}


def _columns_of_sqlite(ask: Ask) -> set[Part]:
    rows = ask(
        'SELECT entry.name, part.name, part.type, part."notnull", part.dflt_value, part.pk, part.hidden '
        "FROM sqlite_master AS entry, pragma_table_xinfo(entry.name) AS part WHERE entry.type = 'table'"
    )
    columns = {("column", str(column), str(table), repr(tuple(about))) for table, column, *about in rows}
    return columns | {("table", table, table) for _, _, table, _ in columns}


@cache
def _expected_of_sqlite(tables: sa.MetaData) -> tuple[set[Part], set[Part]]:
    """Return the parts and columns of a new database, made in memory for comparison."""
    engine = sa.create_engine("sqlite://")
    try:
        with engine.connect() as connection:
            tables.create_all(connection)

            def ask(question: str) -> Iterable[Sequence[Any]]:
                return connection.exec_driver_sql(question).all()

            return _parts_of_sqlite(ask), _columns_of_sqlite(ask)
    finally:
        engine.dispose()


# -- PostgreSQL --------------------------------------------------------------------------------------

_CATALOGUE = """
WITH ours AS (
    SELECT c.* FROM pg_catalog.pg_class AS c WHERE c.oid IN ({names})
)
SELECT 'table', relname, relname, pg_catalog.concat_ws(' ', relkind, relpersistence, relrowsecurity,
    relforcerowsecurity, relreplident) FROM ours
UNION ALL
SELECT 'column', a.attname, o.relname, pg_catalog.concat_ws(' ', pg_catalog.format_type(a.atttypid, a.atttypmod),
    CASE WHEN a.attnotnull THEN 'NOT NULL' END, CASE WHEN a.atthasdef THEN 'DEFAULT' END,
    nullif(a.attidentity, ''), nullif(a.attgenerated, ''),
    CASE WHEN a.attcollation <> t.typcollation THEN 'COLLATE' END,
    CASE WHEN coalesce(a.attstattarget, -1) <> 0 THEN 'STATISTICS' END)
    FROM ours AS o JOIN pg_catalog.pg_attribute AS a ON a.attrelid = o.oid AND a.attnum > 0 AND NOT a.attisdropped
    JOIN pg_catalog.pg_type AS t ON t.oid = a.atttypid
UNION ALL
SELECT 'index', i.relname, o.relname,
    pg_catalog.replace(pg_catalog.pg_get_indexdef(i.oid), pg_catalog.quote_ident(n.nspname) || '.', '')
    FROM ours AS o JOIN pg_catalog.pg_index AS x ON x.indrelid = o.oid
    JOIN pg_catalog.pg_class AS i ON i.oid = x.indexrelid
    JOIN pg_catalog.pg_namespace AS n ON n.oid = o.relnamespace
UNION ALL
SELECT 'constraint', k.conname, o.relname, pg_catalog.pg_get_constraintdef(k.oid)
    FROM ours AS o JOIN pg_catalog.pg_constraint AS k ON o.oid IN (k.conrelid, k.confrelid)
    WHERE k.contype NOT IN ('p', 'u', 'n')
UNION ALL
SELECT 'trigger', t.tgname, o.relname, pg_catalog.pg_get_triggerdef(t.oid)
    FROM ours AS o JOIN pg_catalog.pg_trigger AS t ON t.tgrelid = o.oid WHERE NOT t.tgisinternal
UNION ALL
SELECT 'rule', r.rulename, o.relname, '' FROM ours AS o JOIN pg_catalog.pg_rewrite AS r ON r.ev_class = o.oid
UNION ALL
SELECT 'policy', p.polname, o.relname, '' FROM ours AS o JOIN pg_catalog.pg_policy AS p ON p.polrelid = o.oid
UNION ALL
SELECT 'relative', CAST(CAST(h.inhrelid AS pg_catalog.regclass) AS pg_catalog.text), o.relname, ''
    FROM ours AS o JOIN pg_catalog.pg_inherits AS h ON o.oid IN (h.inhrelid, h.inhparent)
UNION ALL
SELECT 'statistics', s.stxname, o.relname, '' FROM ours AS o JOIN pg_catalog.pg_statistic_ext AS s ON s.stxrelid = o.oid
UNION ALL
SELECT '{quotes}', s.attname, o.relname, pg_catalog.format_type(a.atttypid, a.atttypmod)
    FROM ours AS o JOIN pg_catalog.pg_namespace AS n ON n.oid = o.relnamespace
    JOIN pg_catalog.pg_stats AS s ON s.schemaname = n.nspname AND s.tablename = o.relname
    JOIN pg_catalog.pg_attribute AS a ON a.attrelid = o.oid AND a.attname = s.attname
UNION ALL
SELECT 'publication', p.pubname, o.relname, ''
    FROM ours AS o JOIN pg_catalog.pg_namespace AS n ON n.oid = o.relnamespace
    JOIN pg_catalog.pg_publication_tables AS p ON p.schemaname = n.nspname AND p.tablename = o.relname
UNION ALL
SELECT 'event trigger', evtname, evtname, '' FROM pg_catalog.pg_event_trigger WHERE evtenabled <> 'D'
"""


def _parts_of_postgresql(ask: Ask, allowed: Sequence[sa.MetaData]) -> set[Part]:
    names = sorted({name for tables in allowed for name in tables.tables})
    ours = ", ".join(f"pg_catalog.to_regclass('{name}')" for name in names)
    question = _CATALOGUE.format(names=ours, quotes=_QUOTES)
    return {(str(kind), str(name), str(table), _plain(str(about))) for kind, name, table, about in ask(question)}


@cache
def _expected_of_postgresql(tables: sa.MetaData) -> set[Part]:
    from sqlalchemy.dialects import postgresql  # takes long to import

    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    parts: set[Part] = set()
    for table in tables.sorted_tables:
        parts.add(("table", table.name, table.name, "r p f f d"))
        for column in table.columns:
            kind = column.type.compile(dialect).lower()
            parts.add(("column", column.name, table.name, kind if column.nullable else f"{kind} NOT NULL"))
        indexes = [(str(index.name), index.unique, index.columns) for index in table.indexes]
        for constraint in table.constraints:
            if isinstance(constraint, sa.PrimaryKeyConstraint):
                indexes.append((f"{table.name}_pkey", True, constraint.columns))
            elif isinstance(constraint, sa.UniqueConstraint):
                named = "_".join(column.name for column in constraint.columns)
                indexes.append((f"{table.name}_{named}_key", True, constraint.columns))
        for name, unique, columns in indexes:
            if not columns:  # a table without a primary key has an empty one
                continue
            listed = ", ".join(column.name for column in columns)
            kind = "UNIQUE INDEX" if unique else "INDEX"
            parts.add(
                ("index", name, table.name, _plain(f"CREATE {kind} {name} ON {table.name} USING btree ({listed})"))
            )
    return parts
