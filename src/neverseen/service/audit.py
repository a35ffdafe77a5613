"""The audit log: who asked for what, and how it ended. Lines are added and never changed.

Each line is canonical JSON, with the SHA-256 of the line before it under ``previous``: a line that is changed, dropped
or put in shows. It has no ids, labels, features, receipts or tokens in it: the name of a key, an action, counts, the
code of the outcome, a time. A line is on disk before its answer goes out; those of requests that come together share
one write.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from neverseen.errors import FileRejectedError
from neverseen.labels import canonical_json

NAME = "audit.jsonl"
_START = "0" * 64
_TAIL = 2**23  # bytes of the end that are looked at on start
_PAUSE = 0.2  # seconds that lines nobody waits for may wait for each other


class AuditLog:
    """An append-only log with a chain of hashes.

    Parameters
    ----------
    folder : Path
        The service's own folder.

    Attributes
    ----------
    healthy : bool
        Whether the last lines could be written. While they could not, the service changes nothing.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._lock = threading.Lock()
        self.healthy = True
        self._unwritten: list[dict[str, Any]] = []
        self._waiting: deque[tuple[dict[str, Any], asyncio.Future[None] | None]] = deque()
        self._wake = threading.Event()
        self._closed = False
        self._size, self._previous, cut = self._mended()
        if cut:
            self.append([{"action": "audit_mended", "bytes": cut}])
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._thread.start()

    def append(self, entries: Iterable[dict[str, Any]]) -> None:
        """Write lines, and return when they are on disk; if that fails, they are written later (see `healthy`)."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        with self._lock:
            self._unwritten += [{"time": now} | entry for entry in entries]
            if not self._unwritten:
                return
            previous, lines = self._previous, []
            for entry in self._unwritten:
                line = canonical_json(entry | {"previous": previous}).encode() + b"\n"
                previous = hashlib.sha256(line).hexdigest()
                lines.append(line)
            content = b"".join(lines)
            try:
                os.ftruncate(self._handle, self._size)  # what a failed write has left
                written = 0
                while written < len(content):
                    written += os.pwrite(self._handle, content[written:], self._size + written)
                os.fsync(self._handle)
            except OSError as error:
                print(f"error: the audit log cannot be written: {error}", file=sys.stderr)  # noqa: T201
                self.healthy = False
                return
            self._size, self._previous = self._size + len(content), previous
            self._unwritten.clear()
            self.healthy = True

    def soon(self, entry: dict[str, Any]) -> None:
        """Have a line written that nobody waits for."""
        self._waiting.append((entry, None))
        if len(self._waiting) > 1000:
            self._wake.set()

    async def written(self, entry: dict[str, Any]) -> None:
        """Have a line written, together with others, and wait for it."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((entry, future))
        self._wake.set()
        await future

    def known(self, field: str) -> set[str]:
        """Return the values of a field in the newest lines."""
        with self._lock:
            start = max(0, self._size - _TAIL)
            tail = os.pread(self._handle, self._size - start, start)
        lines = tail.split(b"\n")[1 if start else 0 :]
        return {str(entry[field]) for entry in map(json.loads, filter(None, lines)) if field in entry}

    def close(self) -> None:
        """Write what waits, and let go of the file."""
        if not self._closed:
            self._closed = True
            self._wake.set()
            self._thread.join()
            os.close(self._handle)

    def _run(self) -> None:
        while True:
            self._wake.wait(_PAUSE)
            self._wake.clear()
            closed = self._closed
            waiting = [self._waiting.popleft() for _ in range(len(self._waiting))]
            if waiting or self._unwritten:
                self.append([entry for entry, _ in waiting])
                _settle([future for _, future in waiting if future is not None])
            if closed and not self._waiting:
                return

    def _mended(self) -> tuple[int, str, int]:
        """Cut off a last line that is torn; return the size, the hash of the last line, and the bytes cut off."""
        size = os.fstat(self._handle).st_size
        end, previous = size, _START
        if size:
            start = max(0, size - _TAIL)
            tail = os.pread(self._handle, size - start, start)
            whole = tail.rfind(b"\n") + 1
            if not whole and start:
                raise FileRejectedError(f"{self.path} does not end in lines: it is not an audit log, or damaged")
            end = start + whole
            if whole:
                line = tail[tail.rfind(b"\n", 0, whole - 1) + 1 : whole]
                previous = hashlib.sha256(line).hexdigest()
        if end < size:
            os.ftruncate(self._handle, end)
            os.fsync(self._handle)
        return end, previous, size - end


def _settle(futures: list[asyncio.Future[None]]) -> None:
    def done(settled: list[asyncio.Future[None]]) -> None:
        for future in settled:
            if not future.done():
                future.set_result(None)

    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for future in futures:
        by_loop.setdefault(future.get_loop(), []).append(future)
    for loop, theirs in by_loop.items():
        try:
            loop.call_soon_threadsafe(done, theirs)
        except RuntimeError:  # the loop has ended, and nobody waits
            continue


def check_audit(path: Path) -> int:
    """Return the number of lines of an audit log, or raise `FileRejectedError` where its chain is broken."""
    previous, count = _START, 0
    with path.open("rb") as file:
        for line in file:
            count += 1
            try:
                entry = json.loads(line)
                sound = entry["previous"] == previous and canonical_json(entry).encode() + b"\n" == line
            except (ValueError, KeyError, TypeError, RecursionError):
                sound = False
            if not sound:
                raise FileRejectedError(
                    f"{path}, line {count}: the chain is broken here: a line was changed or is missing"
                )
            previous = hashlib.sha256(line).hexdigest()
    return count
