"""A cache of features on disk, so that a sample goes through the network only once.

Each backbone has one SQLite file, named after its digest. Each sample has a row under its fingerprint, with a checksum.
A damaged row or file counts as missing. Discarded features are overwritten: afterwards no page of the file or of its
log holds them.

SQLite's `secure_delete` does not do this alone: when rows move to other pages, copies stay in the gaps of the old ones.
So all rows that share a table with a discarded one are written anew, on pages that were cleared. There are 64 tables,
by the first byte of the fingerprint, so that this is little. With 100,000 samples of 1,280 features, discarding one
takes 0.1 to 0.2 s, a thousand at once 6 s. To rewrite the whole file with `VACUUM` would take 3 to 6 s and 0.6 GB
of memory each time.
"""

from __future__ import annotations

import hashlib
import os
import re
import sqlite3
import warnings
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from neverseen.backbones.base_set import BaseSet
from neverseen.backbones.contents import FINGERPRINT_SIZE, as_list, fingerprint, portions
from neverseen.backbones.progress import progress_bar
from neverseen.backbones.protocol import Backbone, optional
from neverseen.errors import ConfigurationError, FileRejectedError, InputError

_TABLES = [f"features_{number}" for number in range(64)]
_COLUMNS = "(fingerprint BLOB PRIMARY KEY, features BLOB NOT NULL, checksum BLOB NOT NULL)"
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}  # the last: another table than ours
_PATIENCE = 30.0  # seconds to wait for another process
_SAMPLES = 1024  # decoded samples that are held at a time


def cache_folder(name: str) -> Path:
    """Return a folder for data that can be computed again; create it with mode 700 if it is missing.

    It is inside ``NEVERSEEN_CACHE`` if that is set, else inside ``~/.cache/neverseen``.
    """
    root = os.environ.get("NEVERSEEN_CACHE")
    folder = (Path(root) if root else Path.home() / ".cache" / "neverseen").absolute() / name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


class Cached:
    """A backbone that keeps features on disk.

    It has the name, the digest and the base set of the backbone it wraps, and gives the same features.

    Parameters
    ----------
    folder : str or path, optional
        Created with mode 700 if missing. By default ``features`` in ``NEVERSEEN_CACHE``, or in
        ``~/.cache/neverseen``.

    Notes
    -----
    Features reveal much about a sample, and are kept until `discard` or `clear`: protect the folder like the data.
    Anyone who can write to it can plant false features; the checksums only detect damage.

    Examples
    --------
    >>> import tempfile
    >>> from neverseen.backbones import Precomputed
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     backbone = Cached(Precomputed(2), folder)
    ...     features = backbone.extract(np.array([[1.0, 2.0], [3.0, 4.0]]))
    ...     print(len(backbone))
    2
    """

    def __init__(self, backbone: Backbone, folder: str | os.PathLike[str] | None = None) -> None:
        if not isinstance(backbone, Backbone):
            raise ConfigurationError(f"Cached wraps a backbone; got {type(backbone).__name__}")
        self.backbone = backbone
        self.name = backbone.name
        self.n_features = backbone.n_features
        self.base: BaseSet | None = optional(backbone, "base")
        self.takes: str | None = optional(backbone, "takes")
        self._digest = backbone.digest()
        if not re.fullmatch("[0-9a-f]{64}", self._digest):
            raise ConfigurationError(f"a backbone's digest must be a SHA-256 in hex; got {self._digest!r}")
        # Absolute: forgotten features must be found even if the working folder changes.
        place = cache_folder("features") if folder is None else Path(folder).absolute()
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = place / f"{self._digest}.sqlite"

    def digest(self) -> str:
        """Return the digest of the backbone, in hex."""
        return self._digest

    def extract(self, samples: Any, *, remember: bool = True) -> np.ndarray:
        """Return the features of samples, float32 of shape (n, n_features).

        Parameters
        ----------
        samples : iterable of samples, or an array whose first axis counts them
        remember : bool
            Whether to keep new features. `ForgettingModel` and stores do not: they call `remember` for learned samples.
        """
        listed = as_list(samples)
        features = np.empty((len(listed), self.n_features), np.float32)
        shown, batch = optional(self.backbone, "progress"), optional(self.backbone, "batch_size") or _SAMPLES
        row = 0
        with progress_bar(self.name, len(listed), batch=batch, shown=shown) as advance:
            for contents in portions(listed, _SAMPLES):
                fingerprints = [fingerprint(content) for content in contents]
                known = self._known(fingerprints)
                missing = {
                    each: content for each, content in zip(fingerprints, contents, strict=True) if each not in known
                }
                if missing:
                    fresh = dict(zip(missing, self.backbone.extract(list(missing.values())), strict=True))
                    if remember:
                        self.remember(fresh, fresh.values())
                    known |= fresh
                for each in fingerprints:
                    features[row] = known[each]
                    row += 1
                advance(len(fingerprints))
        return features

    def remember(self, fingerprints: Iterable[bytes], features: Iterable[np.ndarray]) -> None:
        """Keep the features of the samples with these fingerprints; if that fails, warn."""
        rows = []
        for each, row in zip(fingerprints, features, strict=True):
            content = row.astype("<f4").tobytes()
            rows.append((each, content, self._checksum(each, content)))
        try:
            with self._open() as database:
                database.execute("BEGIN IMMEDIATE")
                _insert(database, rows)
                database.execute("COMMIT")
        except (sqlite3.DatabaseError, OSError) as error:  # the features are there: go on without storing them
            self._drop_if_damaged(error)
            warnings.warn(f"features could not be stored in {self.path}: {error}", RuntimeWarning, stacklevel=3)

    def discard(self, fingerprints: Iterable[bytes]) -> None:
        """Drop the features of samples, and overwrite them on disk. Unknown fingerprints are ignored.

        Raises `FileRejectedError` if they cannot be overwritten, for example because another process uses the file.
        """
        listed = list(fingerprints)
        if not all(isinstance(each, bytes) and len(each) == FINGERPRINT_SIZE for each in listed):
            raise InputError(f"fingerprints must be {FINGERPRINT_SIZE} bytes each, as fingerprint(sample) gives them")
        self._erase(set(listed))

    def clear(self) -> None:
        """Drop all features of this backbone, and overwrite them on disk."""
        self._erase(None)

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        try:
            with self._open() as database:
                counts = (database.execute(f"SELECT count(*) FROM {table}").fetchone() for table in _TABLES)  # noqa: S608
                return sum(count for (count,) in counts)
        except sqlite3.DatabaseError as error:
            self._drop_if_damaged(error)
            return 0

    def __repr__(self) -> str:
        return f"Cached({self.backbone!r})"

    # -- the file ----------------------------------------------------------------------------------

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Open the file for one operation. Connections are not kept, because of threads and forks."""
        handle = os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600)  # by itself SQLite goes by the umask
        os.close(handle)
        with closing(sqlite3.connect(self.path, timeout=_PATIENCE, isolation_level=None)) as database:
            database.execute("PRAGMA secure_delete = ON")
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA temp_store = MEMORY")
            database.text_factory = bytes  # texts are damage, and may be no texts
            (tables,) = database.execute("SELECT count(*) FROM sqlite_master WHERE type = 'table'").fetchone()
            if tables != len(_TABLES):
                self._arrange(database)
            yield database

    def _arrange(self, database: sqlite3.Connection) -> None:
        """Make the tables of a new file, and move the rows of 0.1.0 into them."""
        database.execute("BEGIN IMMEDIATE")
        for table in _TABLES:
            database.execute(f"CREATE TABLE IF NOT EXISTS {table} {_COLUMNS}")
        if database.execute("SELECT 1 FROM sqlite_master WHERE name = 'features'").fetchone():
            rows = database.execute("SELECT fingerprint, features, checksum FROM features")
            _insert(database, (row for row in rows if self._is_whole(*row)))
            database.execute("DROP TABLE features")
        database.execute("COMMIT")

    def _known(self, fingerprints: list[bytes]) -> dict[bytes, np.ndarray]:
        """Return the undamaged features on disk, by fingerprint."""
        known = {}
        try:
            with self._open() as database:
                for each in fingerprints:
                    question = f"SELECT features, checksum FROM {_table(each)} WHERE fingerprint = ?"  # noqa: S608
                    for features, checksum in database.execute(question, (each,)).fetchall():
                        if self._is_whole(each, features, checksum):
                            known[each] = np.frombuffer(features, "<f4")
        except sqlite3.DatabaseError as error:
            self._drop_if_damaged(error)
        except OSError:
            pass  # told when the features are to be stored
        return known

    def _erase(self, gone: set[bytes] | None) -> None:
        """Drop and overwrite the rows of these fingerprints; None for all."""
        if not self.path.exists():
            return
        try:
            with self._open() as database:
                database.execute("BEGIN IMMEDIATE")
                for table in _TABLES if gone is None else sorted(set(map(_table, gone))):
                    rows = database.execute(f"SELECT * FROM {table}").fetchall()  # noqa: S608
                    kept = [row for row in rows if gone is not None and row[0] not in gone and self._is_whole(*row)]
                    if gone is None or len(kept) < len(rows):
                        database.execute(f"DELETE FROM {table}")  # noqa: S608  # all: each of its pages is cleared
                        _insert(database, kept)
                database.execute("COMMIT")
                # What was written lately is in the log as well, until it is brought into the file and cut off.
                busy, _, _ = database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except (sqlite3.DatabaseError, OSError) as error:
            if self._drop_if_damaged(error):
                return
            raise FileRejectedError(
                f"features could not be removed from {self.path}: {error}. Delete the file, or call this again"
            ) from error
        if busy:
            raise FileRejectedError(
                f"features were removed from {self.path}, and another process keeps its log from being cut off: call "
                "this again when it has ended"
            )

    def _drop_if_damaged(self, error: Exception) -> bool:
        """If an error says that the file is damaged, delete it; return whether that was so."""
        if getattr(error, "sqlite_errorcode", 0) & 255 not in _DAMAGED:  # the low byte is the kind
            return False
        for ending in ("", "-wal", "-shm"):
            self.path.with_name(self.path.name + ending).unlink(missing_ok=True)
        return True

    def _checksum(self, of: bytes, features: bytes) -> bytes:
        """Return the checksum of features together with their fingerprint."""
        content = bytes.fromhex(self._digest) + of + features
        return hashlib.blake2b(content, digest_size=16, person=b"neverseen:cached").digest()

    def _is_whole(self, of: Any, features: Any, checksum: Any) -> bool:
        return (
            isinstance(of, bytes)
            and len(of) == FINGERPRINT_SIZE
            and isinstance(features, bytes)
            and len(features) == 4 * self.n_features
            and checksum == self._checksum(of, features)
        )


def _table(of: bytes) -> str:
    """Return the name of the table that has a fingerprint."""
    return _TABLES[of[0] % len(_TABLES)]


def _insert(database: sqlite3.Connection, rows: Iterable[tuple[bytes, bytes, bytes]]) -> None:
    for row in rows:
        database.execute(f"INSERT OR REPLACE INTO {_table(row[0])} VALUES (?, ?, ?)", row)  # noqa: S608
