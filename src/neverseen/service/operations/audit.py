"""The audit log: all requests and their outcomes. Lines are added and never changed.

Each line is canonical JSON with its number (``line``), the code of the previous line (``previous``), and its own code
(``mac``), a keyed digest of all the rest. Without the key, nobody can change, drop or add a line unnoticed. The number
and code of the last line are the log's *head*. Every certificate has it, and the ledger notes it with every change, so
a cut-off end is noticed too. `check_audit` makes these checks.

A line holds the name of a key, an action, counts, the code of the outcome and a time, but no ids, labels, features,
receipts or tokens. A line is on disk before its answer goes out. Requests that arrive together share one write.

A full file is renamed to ``audit-00000001.jsonl`` and so on, and the next one continues the chain. When there are too
many, the oldest are removed, and a line says so.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import json
import os
import re
import threading
import time
from collections import deque
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from neverseen.io.files import identity_of, sync_folder
from neverseen.labels import canonical_json
from neverseen.ledger import RequestRow
from neverseen.proof.certificates import AuditHead
from neverseen.proof.keys import Key, Keyring
from neverseen.service.operations.log import LOG

NAME = "audit.jsonl"
START = AuditHead(0, "0" * 64)
"""The head of a log without lines."""
_CLOSED = re.compile(r"audit-([0-9]{8})\.jsonl", re.ASCII)
TURN = 20_000
"""Most samples in one change of the writer, and so most requests in the ledger whose lines are not written yet."""
_BACK = 2**28  # bytes to search for the lines of changes
_APPLIED = b'"outcome":"applied"'
_PAUSE = 0.2  # seconds for which lines that nobody waits for are gathered


def audit_key(keys: Keyring) -> Key:
    """Return the key of a store's audit log."""
    return keys.membership.derive(b"neverseen:audit")


class AuditLog:
    """An append-only log with a chain of keyed digests.

    Parameters
    ----------
    folder : Path
        The service's own folder.
    key : Key
        Of `audit_key`.
    size : int
        Bytes at which a file is closed and a new one begins.
    files : int
        Closed files to keep.
    expected : AuditHead, optional
        A line that must exist, according to the store. If it is missing, the first new line says so.

    Attributes
    ----------
    healthy : bool
        Whether the last lines were written. If not, or once the log is closed, the service changes nothing.
    """

    def __init__(
        self, folder: Path, key: Key, size: int = 2**26, files: int = 100, expected: AuditHead | None = None
    ) -> None:
        self.path = folder / NAME
        self._key, self._limit, self._files = key, size, files
        self._handle = self._opened()
        self._lock = threading.Lock()
        self.healthy = True
        self._unwritten: list[dict[str, Any]] = []
        self._surplus: list[Path] = []
        self._waiting: deque[dict[str, Any]] = deque()
        self._wake = threading.Event()
        self._closed = False
        self._size, self._head = 0, START
        self.append(self._resumed(expected or START))
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._thread.start()

    @property
    def head(self) -> AuditHead:
        """The head of the log on disk."""
        return self._head

    def append(self, entries: Iterable[dict[str, Any]], later: bool = True) -> bool:
        """Write lines, and return whether they are on disk. If not, they follow `later` (see `healthy`), or never."""
        with self._lock:
            if self._handle < 0:
                return False  # its number may be another file's by now
            self._add(self._waiting.popleft() for _ in range(len(self._waiting)))
            before = len(self._unwritten)
            self._add(entries)
            after = len(self._unwritten)
            try:
                if self._size < self._limit:
                    self._require_file()
                elif self._unwritten:
                    self._turn()
                if not self._unwritten:
                    self.healthy = True
                    return True
                content, head = self._sealed()
                os.ftruncate(self._handle, self._size)  # what a failed write has left
                written = 0
                while written < len(content):
                    written += os.pwrite(self._handle, content[written:], self._size + written)
                os.fsync(self._handle)
            except (OSError, MemoryError) as error:
                if self.healthy:
                    LOG.error("the audit log cannot be written: %r", error)
                self.healthy = False
                if not later:
                    del self._unwritten[before:after]
                return False
            self._size, self._head = self._size + len(content), head
            self._unwritten.clear()
            self.healthy = True
            for path in self._surplus:  # its line is on disk
                with suppress(OSError):
                    path.unlink()
            self._surplus = []
            return True

    def soon(self, entry: dict[str, Any]) -> None:
        """Write a line later; nobody waits for it."""
        self._waiting.append(entry)
        if len(self._waiting) > 1000:
            self._wake.set()

    def logged(self, requests: Sequence[str]) -> set[str]:
        """Return the requests that have a line as carried out, on disk or waiting to be written.

        Requests come oldest first: lines before that of the first are not searched.
        """
        wanted, found = set(requests), set[str]()
        with self._lock:  # no file is closed meanwhile
            for entry in chain(reversed(self._unwritten), self._backwards(_BACK, _APPLIED)):
                name = str(entry.get("request"))
                if entry.get("outcome") == "applied" and name in wanted:
                    found.add(name)
                if found.issuperset(requests[:1]):
                    break
        return found

    def is_complete(self) -> bool:
        """Return whether all lines since the first exist, and `logged` can search them all."""
        with self._lock:
            paths = [path for path in (*closed_files(self.path.parent), self.path) if path.stat().st_size]
            if not paths:
                return self._head == START
            with paths[0].open("rb") as file:
                entry = parsed(file.readline())
            begins = entry is not None and fits(entry, self._key) and entry["line"] == 1
            return begins and sum(path.stat().st_size for path in paths) <= _BACK

    def close(self) -> None:
        """Write the waiting lines and close the file. Nothing is written after that."""
        self._closed = True
        self._wake.set()
        self._thread.join()
        with self._lock:
            self.healthy = False
            handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    def _run(self) -> None:
        while True:
            self._wake.wait(_PAUSE)
            self._wake.clear()
            closed = self._closed
            self.append([])
            if closed and not self._waiting:
                return

    def _add(self, entries: Iterable[dict[str, Any]]) -> None:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._unwritten += [{"time": now} | entry for entry in entries]

    def _sealed(self) -> tuple[bytes, AuditHead]:
        """Return the lines to write, and the head after them."""
        lines, head = [], self._head
        for entry in self._unwritten:
            numbered = entry | {"line": head.lines + 1, "previous": head.head}
            head = AuditHead(head.lines + 1, _code(numbered, self._key))
            lines.append(canonical_json(numbered | {"mac": head.head}).encode() + b"\n")
        return b"".join(lines), head

    # -- files -------------------------------------------------------------------------------------

    def _opened(self) -> int:
        return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _require_file(self) -> None:
        """Raise if the file is no longer in its place, or shorter: what is written would be lost, or after a hole."""
        if identity_of(self.path) != identity_of(self._handle) or os.fstat(self._handle).st_size < self._size:
            words = "it was moved, removed or cut off. Put it back, or start the service again: the log will say so"
            raise OSError(errno.ESTALE, words, str(self.path))

    def _turn(self) -> None:
        """Close the file and begin another; a line names the old files that are removed."""
        self._set_aside()
        for path in closed_files(self.path.parent)[: -self._files]:
            if path not in self._surplus:
                last = next((entry.get("line") for entry in _entries_back(path)), None)
                self._add([{"action": "audit_removed", "file": path.name, "through": last}])
                self._surplus.append(path)

    def _set_aside(self) -> str:
        """Begin a new file; return the new name of the old one."""
        older = closed_files(self.path.parent)
        number = int(older[-1].name[6:14]) + 1 if older else 1
        name = f"audit-{number:08d}.jsonl"
        if self.path.exists():
            self.path.rename(self.path.parent / name)
        handle = self._opened()
        sync_folder(self.path.parent)
        os.close(self._handle)
        self._handle, self._size = handle, 0
        return name

    def _backwards(self, most: int | None = None, part: bytes = b"") -> Iterator[dict[str, Any]]:
        """Yield the lines with a part, newest first; after so many bytes, no further file is looked at."""
        for path in reversed([*closed_files(self.path.parent), self.path]):
            yield from _entries_back(path, part)
            if most is not None and (most := most - path.stat().st_size) < 0:
                return

    # -- going on where another process ended ------------------------------------------------------

    def _resumed(self, expected: AuditHead) -> list[dict[str, Any]]:
        """Continue the chain from its end; return lines about any problem found there."""
        said: list[dict[str, Any]] = []
        content = self.path.read_bytes()
        self._size = content.rfind(b"\n") + 1
        torn = len(content) - self._size
        if torn:
            os.ftruncate(self._handle, self._size)
            os.fsync(self._handle)
            said.append({"action": "audit_mended", "bytes": torn})
        last = content[: self._size].splitlines()[-1:]
        entry = parsed(last[0]) if last else None
        if last and (entry is None or not fits(entry, self._key)):
            name = self._set_aside()
            if entry is not None and "mac" not in entry:  # the chain of version 0.1.0, which had no key
                digest = hashlib.sha256(last[0] + b"\n").hexdigest()
                said.append({"action": "audit_continued", "file": name, "sha256": digest})
            else:
                said.append({"action": "audit_damaged", "file": name})
        found = next((each for each in self._backwards() if fits(each, self._key)), None)
        if found is not None:
            self._head = AuditHead(found["line"], found["mac"])
        if not self._holds(expected):
            said.append({"action": "audit_missing", "expected": expected.lines, "found": self._head.lines})
            self._head = AuditHead(max(expected.lines, self._head.lines), self._head.head)
            words = "the audit log lacks a line that the store names: it was cut off, changed or left behind"
            LOG.error("%s. The new lines say so", words)
        return sorted(said, key=lambda entry: entry["action"] != "audit_missing")  # this one may leave numbers out

    def _holds(self, head: AuditHead) -> bool:
        """Return whether a line exists."""
        if head.lines in (0, self._head.lines):
            return head.lines == 0 or head == self._head
        if head.lines > self._head.lines:
            return False
        lines = (entry for entry in self._backwards() if isinstance(entry.get("line"), int))
        found = next((entry for entry in lines if entry["line"] <= head.lines), None)
        return found is None or (found["line"], found.get("mac")) == (head.lines, head.head)


def without_line(rows: Sequence[RequestRow], logged: Container[str], complete: bool) -> list[RequestRow]:
    """Return the latest requests in the ledger that should have a line in the log, but have none.

    Parameters
    ----------
    rows : sequence of RequestRow
        Oldest first.
    logged : container of str
        Ids of requests with a line that says that they were carried out.
    complete : bool
        Whether the log has all lines since its first. If not, older requests may have lines in a removed file. If it
        knows none at all, sealed requests, which have no key name, had their lines elsewhere.
    """
    first = 0 if complete else next((place for place, row in enumerate(rows) if row.id in logged), None)
    if first is None:
        return [row for row in rows if row.client]
    return [row for row in rows[first:] if row.id not in logged]


def closed_files(folder: Path) -> list[Path]:
    """Return the closed files of an audit log, oldest first."""
    return sorted(path for path in folder.iterdir() if _CLOSED.fullmatch(path.name))


def _code(entry: dict[str, Any], key: Key) -> str:
    """Return the code of a line."""
    said = canonical_json(entry).encode()
    return hashlib.blake2b(said, key=key.reveal(), digest_size=32, person=b"neverseen:line").hexdigest()


def fits(entry: dict[str, Any], key: Key) -> bool:
    """Return whether a line was written with this key."""
    rest = {name: value for name, value in entry.items() if name != "mac"}
    stated, expected = str(entry.get("mac")).encode(), _code(rest, key).encode()
    return type(entry.get("line")) is int and hmac.compare_digest(stated, expected)


def parsed(line: bytes) -> dict[str, Any] | None:
    """Return a line that is canonical JSON."""
    try:
        entry = json.loads(line)
        sound = isinstance(entry, dict) and canonical_json(entry).encode() == line.removesuffix(b"\n")
    except (ValueError, TypeError, RecursionError):
        return None
    return entry if sound else None


def _entries_back(path: Path, part: bytes = b"") -> Iterator[dict[str, Any]]:
    for line in reversed(path.read_bytes().splitlines()):
        entry = parsed(line) if part in line else None
        if entry is not None:
            yield entry
