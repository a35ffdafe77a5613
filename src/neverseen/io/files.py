"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from neverseen.errors import FileRejectedError

_PAUSE = 0.005  # seconds between two tries for a lock


def replace_file(path: Path, parts: Iterable[Any]) -> None:
    """Write a file of mode 600 beside `path`, piece by piece, sync it, and rename it into place."""
    with _written_beside(path, parts) as partial:
        partial.replace(path)
    sync_folder(path.parent)


def create_file(path: Path, parts: Iterable[Any]) -> None:
    """Write a new file of mode 600 in the same way; raise `FileExistsError` if there is one already.

    On file systems without hard links (FAT, exFAT, some network mounts), the test and the renaming are two steps. Two
    processes that do not lock each other out could then both succeed.
    """
    with _written_beside(path, parts) as partial:
        try:
            os.link(partial, path)
        except FileExistsError:
            raise
        except OSError:
            if os.path.lexists(path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
            partial.replace(path)
    sync_folder(path.parent)


@contextmanager
def _written_beside(path: Path, parts: Iterable[Any]) -> Iterator[Path]:
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder {path.parent} for {path.name} does not exist")
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 600
    partial = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        yield partial
    except OSError as error:
        if error.filename is None:  # a full disk does not say where
            error.filename = str(path)
        raise
    finally:
        partial.unlink(missing_ok=True)


def leftovers_of(path: Path, *, folders: bool = False) -> list[Path]:
    """Return partial copies beside a file (with `folders`, folders too): a process is writing it, or was killed."""
    pattern = re.compile(re.escape(f".{path.name}.") + "[a-z0-9_]{8}", re.ASCII)  # as `mkstemp` names them
    found = [each for each in path.parent.iterdir() if pattern.fullmatch(each.name)]
    return [each for each in found if folders or each.is_symlink() or not each.is_dir()]


def read_secret(path: Path, limit: int, name: str | None = None) -> bytes:
    """Return the content of a file that only its owner may read, up to one byte more than `limit`.

    Raises `FileRejectedError` with the reason if others may read or change it. Errors use `name` for the path.
    """
    with path.open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if os.name == "posix" and mode & 0o077:
            raise FileRejectedError(
                f"others may read or change it (mode {mode:o}); if nobody has: chmod 600 {name or path}"
            )
        return file.read(limit + 1)


def identity_of(place: Path | int) -> tuple[int, int] | None:
    """Return what tells the file or folder at a path, or an open file, from any other; None if there is none."""
    try:
        about = place.stat() if isinstance(place, Path) else os.fstat(place)
    except FileNotFoundError:
        return None
    return about.st_dev, about.st_ino


def sync_folder(folder: Path) -> None:
    """Make sure that the names in a folder are on disk."""
    if os.name != "posix":  # elsewhere a folder cannot be synced
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        error.filename = str(folder)
        raise
    finally:
        os.close(handle)


@contextmanager
def locked_folder(folder: Path, shared_within: float | None = None) -> Iterator[None]:
    """Keep out other processes that lock the same folder (POSIX systems only).

    Written by hand: filelock or portalocker would replace a few calls of ``flock``, and nothing else.

    Parameters
    ----------
    shared_within : float, optional
        Share the lock with others who share it too. Wait this many seconds for those who do not, and then raise
        `TimeoutError`. By default, wait for everybody, without limit.
    """
    import fcntl

    handle, process = os.open(folder, os.O_RDONLY), os.getpid()
    try:
        if shared_within is None:
            fcntl.flock(handle, fcntl.LOCK_EX)
        else:
            end = time.monotonic() + shared_within
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > end:
                        raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), str(folder)) from None
                    time.sleep(_PAUSE)
        yield
    finally:
        if os.getpid() == process:  # a forked process may have the file open: closing alone would not unlock it
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def require_file(path: Path, what: str) -> None:
    """Raise, and say `what` to give, unless a path is a file. Reading a pipe might wait for ever."""
    if not path.exists():
        raise FileNotFoundError(f"there is no {path}: give {what}")
    if not path.is_file():
        raise FileRejectedError(f"{path} is a folder, a pipe or a device: give {what}")
