"""Arrays on disk: named after their content, read into memory, and checked there block by block.

One array a file, laid out in section 10 of ``docs/specification.md``. A file is never changed once it is there; the
same array has the same name, so that what did not change is not written again, and two stores that hold the same have
the same files.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np

from neverseen.errors import StoreDamagedError, damaged
from neverseen.io.files import replace_file
from neverseen.labels import canonical_json, parse_json

MAGIC = b"NSARRAY1"
BLOCK = 2**20
"""Bytes under one checksum."""
_CHECK = 16
_ALIGN = 4096
_DTYPES = ("int8", "int16", "int32", "int64")
_HEADER_LIMIT = 4000
_NAME = re.compile("[0-9a-f]{64}")


def write_array(folder: Path, array: np.ndarray) -> str:
    """Write an array of integers into a folder, unless it is there already, and return its name."""
    data = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    raw = data.reshape(-1).view(np.uint8)
    checks = b"".join(_checksum(raw[start : start + BLOCK]) for start in range(0, raw.nbytes, BLOCK))
    about = {"checks": hashlib.sha256(checks).hexdigest(), "dtype": data.dtype.name, "shape": list(data.shape)}
    header = canonical_json(about).encode()
    head = MAGIC + struct.pack("<Q", len(header)) + header
    name = hashlib.sha256(head).hexdigest()
    if not (folder / name).exists():
        replace_file(folder / name, [head.ljust(_ALIGN, b"\0"), raw.data, checks])
    return name


class StoredArray:
    """An array in a file. Each read gives a copy in memory that was checked itself, whatever becomes of the file.

    Between reads the file is closed: there may be one for each class, and a process can open only a limited number. Its
    name, from `write_array`, is a digest of the header, and so of the checksums of all blocks.
    """

    def __init__(self, folder: Path, name: str) -> None:
        if not (isinstance(name, str) and _NAME.fullmatch(name)):
            raise StoreDamagedError(f"{str(name)[:80]!r}, named in {folder}, is not the name of an array")
        self.path = folder / name
        self.name = name
        self.dtype, self.shape, checks = self._header()
        self.size = math.prod(self.shape)
        bytes_long = self.size * self.dtype.itemsize
        blocks = -(-bytes_long // BLOCK)
        expected = _ALIGN + bytes_long + blocks * _CHECK
        try:
            with self.path.open("rb") as file:
                found = file.seek(0, os.SEEK_END)
                if found != expected:
                    raise StoreDamagedError(
                        f"{self.path} has {found} bytes and should have {expected}: it was cut or grew"
                    )
                file.seek(_ALIGN + bytes_long)
                table = file.read()
        except FileNotFoundError:  # removed since its header was read
            raise StoreDamagedError(f"{self.path} is missing") from None
        if hashlib.sha256(table).hexdigest() != checks:
            raise StoreDamagedError(f"{self.path} is damaged: its table of checksums is not what was written")
        self._table = table

    def _header(self) -> tuple[np.dtype[Any], tuple[int, ...], str]:
        try:
            with self.path.open("rb") as file:
                head = file.read(_ALIGN)
        except (FileNotFoundError, IsADirectoryError):
            raise StoreDamagedError(f"{self.path} is missing") from None
        with damaged(StoreDamagedError(f"{self.path} is damaged: its header is not the one it was written with")):
            (length,) = struct.unpack_from("<Q", head, len(MAGIC))
            if head[: len(MAGIC)] != MAGIC or length > _HEADER_LIMIT:
                raise ValueError
            end = len(MAGIC) + 8 + length
            if hashlib.sha256(head[:end]).hexdigest() != self.name or head[end:].strip(b"\0"):
                raise ValueError
            about = parse_json(head[len(MAGIC) + 8 : end])
            if about["dtype"] not in _DTYPES:
                raise ValueError
            if not all(type(length) is int and length >= 0 for length in about["shape"]):
                raise ValueError
            return np.dtype(about["dtype"]).newbyteorder("<"), tuple(about["shape"]), about["checks"]

    def read(self) -> np.ndarray:
        """Return the array, read-only; raise `StoreDamagedError` if a block is damaged."""
        raw = self._content()
        for block, start in enumerate(range(0, len(raw), BLOCK)):
            if _checksum(raw[start : start + BLOCK]) != self._table[block * _CHECK : (block + 1) * _CHECK]:
                raise StoreDamagedError(
                    f"{self.path} is damaged: block {block} (bytes {_ALIGN + start} to "
                    f"{_ALIGN + min(start + BLOCK, len(raw))}) is not as it was written. Restore it from a copy"
                )
        array: np.ndarray = raw.view(self.dtype).reshape(self.shape)
        array.flags.writeable = False
        return array

    def _content(self) -> np.ndarray:
        raw = np.empty(self.size * self.dtype.itemsize, np.uint8)
        try:
            with self.path.open("rb") as file:
                file.seek(_ALIGN)
                if file.readinto(raw.data) == len(raw):
                    return raw
        except FileNotFoundError:
            pass
        raise StoreDamagedError(f"{self.path} is missing, or was cut")


def _checksum(block: np.ndarray) -> bytes:
    return hashlib.blake2b(block.data, digest_size=_CHECK, person=b"neverseen:block").digest()
