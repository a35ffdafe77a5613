"""The ledger of a store: the held samples, and the changes since the last snapshot, in a SQL database.

The database is SQLite in a file, or PostgreSQL; `register` adds a kind. A store commits here: each change is one
transaction over the journal and the samples. It happens as a whole or not at all, and is on disk when `Ledger.writing`
ends. Only the journal has features, and the next snapshot drops them. A removed sample leaves no trace except its
commitment in a certificate: the rows are those of a ledger that never had the sample. Its bytes may stay in the files
of the database until the next `Ledger.scrub`.
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
