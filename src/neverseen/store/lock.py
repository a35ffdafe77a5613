"""One writer at a time.

Written by hand: filelock would replace only the two calls of ``flock``. The rest is ours: naming the holder of the
lock, and the remedy.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path

from neverseen.errors import StoreLockedError
from neverseen.labels import canonical_json


class WriterLock:
    """The right to change a store, held until `release` or the end of the process, however it ends.

    It belongs to this process alone. A forked process shares the open file, so it closes its copy at once: otherwise it
    would keep the lock after this process has died. The lock itself is the operating system's, on the open file. The
    file stays, and its content names the holder, for messages to others.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
                raise
            raise PermissionError(
                f"{path.parent} cannot be written: it is mounted read-only, or belongs to somebody else. Open it with "
                "write=False to read what is published"
            ) from error
        _HELD.add(self)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _holder(os.pread(self._handle, 4096, 0))
            self._let_go()
            raise StoreLockedError(
                f"{path.parent} is being written by {holder}. Wait for it to end. What is published can be read "
                "meanwhile"
            ) from error
        about = {"host": socket.gethostname(), "pid": os.getpid(), "since": int(time.time())}
        with suppress(OSError):  # a full disk: the message to others says less, the lock is no worse
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, canonical_json(about).encode(), 0)

    def release(self) -> None:
        """Release the lock. In a forked process, which has none, do nothing."""
        if self._handle >= 0:
            with suppress(OSError):
                os.ftruncate(self._handle, 0)
            fcntl.flock(self._handle, fcntl.LOCK_UN)
            self._let_go()

    def _let_go(self) -> None:
        handle, self._handle = self._handle, -1
        _HELD.discard(self)
        os.close(handle)


_HELD: set[WriterLock] = set()
"""The locks of this process."""


def _forked() -> None:
    for lock in tuple(_HELD):
        lock._let_go()


os.register_at_fork(after_in_child=_forked)


def _holder(content: bytes) -> str:
    try:
        about = json.loads(content)
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(int(about["since"])))
        return f"process {int(about['pid'])} on {about['host']}, since {since}"
    except (ValueError, KeyError, TypeError):
        return "another process"
