"""Which samples a store holds, and what happened since its last snapshot, in a SQL database.

SQLite in a file, or PostgreSQL by URL; `register` adds a kind of database. The database is where a store commits: a
change is one transaction over the journal and the samples, there whole or not at all, and on disk when `Ledger.writing`
is left. There are no features here but in the journal, and they go with the next snapshot. What is removed leaves no
mark but the commitment that a certificate shows: the rows of a ledger that forgot are those of one that never learned.
"""

from __future__ import annotations

from neverseen.ledger.database import Database, register
from neverseen.ledger.ledger import Ledger
from neverseen.ledger.sqlite import in_file
from neverseen.ledger.tables import FORMAT, LASTING, JournalRow, Notes, RequestRow, SampleRow
from neverseen.ledger.writing import Writing

__all__ = [
    "FORMAT",
    "LASTING",
    "Database",
    "JournalRow",
    "Ledger",
    "Notes",
    "RequestRow",
    "SampleRow",
    "Writing",
    "in_file",
    "register",
]
