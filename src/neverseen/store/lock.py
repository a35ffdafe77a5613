"""One writer at a time.

By hand, as filelock would take the place of the two calls of ``flock`` alone. The rest is ours: who holds the lock, and
what to do about it.
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

    It is this process's alone. One that is forked from it shares the open file, and can let go of its own copy only.
    The file stays. Its content says who holds the lock, for the message to others; the lock itself is the operating
    system's, on the open file.
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
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _holder(os.pread(self._handle, 4096, 0))
            os.close(self._handle)
            raise StoreLockedError(
                f"{path.parent} is being written by {holder}. Wait for it to end. What is published can be read "
                "meanwhile"
            ) from error
        self._process = os.getpid()
        about = {"host": socket.gethostname(), "pid": self._process, "since": int(time.time())}
        with suppress(OSError):  # a full disk: the message to others says less, the lock is no worse
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, canonical_json(about).encode(), 0)

    def release(self) -> None:
        """Let others write."""
        if self._handle >= 0:
            if self._process == os.getpid():
                with suppress(OSError):
                    os.ftruncate(self._handle, 0)
                fcntl.flock(self._handle, fcntl.LOCK_UN)  # closing is not enough while a forked process has it open
            os.close(self._handle)
            self._handle = -1


def _holder(content: bytes) -> str:
    try:
        about = json.loads(content)
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(int(about["since"])))
        return f"process {int(about['pid'])} on {about['host']}, since {since}"
    except (ValueError, KeyError, TypeError):
        return "another process"
