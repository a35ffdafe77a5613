"""Tensors and a description in one safetensors file. Each content has exactly one encoding.

Models (`neverseen.model.saving`) and published versions (`neverseen.model.versions`) are files of this kind. Section 8
of ``docs/specification.md`` lays it out byte by byte.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np

from neverseen.errors import FileRejectedError, damaged
from neverseen.labels import canonical_json

_DTYPES = {"int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64", "uint8": "U8"}
_WIDTHS = {name: np.dtype(kind).newbyteorder("<") for kind, name in _DTYPES.items()}


def pack(about: dict[str, Any], tensors: dict[str, np.ndarray]) -> list[Any]:
    """Return the bytes of a file, in parts: a description (JSON values, with ``"format"``) and integer tensors."""
    names = sorted(tensors)
    blobs = [np.ascontiguousarray(tensors[name], dtype=tensors[name].dtype.newbyteorder("<")) for name in names]
    header: dict[str, Any] = {}
    place = 0
    for name, blob in zip(names, blobs, strict=True):
        header[name] = {
            "data_offsets": [place, place + blob.nbytes],
            "dtype": _DTYPES[blob.dtype.name],
            "shape": list(blob.shape),
        }
        place += blob.nbytes
    checksum = _checksum(about, header, [blob.data for blob in blobs])
    header["__metadata__"] = {"neverseen": canonical_json(about | {"sha256": checksum})}
    head = canonical_json(header).encode()
    head += b" " * (-len(head) % 8)
    return [struct.pack("<Q", len(head)), head, *(blob.data for blob in blobs)]


def unpack(path: Path, expected: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return description and tensors of a file of the `expected` format; raise `FileRejectedError` with the reason.

    The file is read once, so the checked bytes are the bytes used. The tensors are read-only.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    return parsed(path.read_bytes(), expected)


def parsed(raw: bytes, expected: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return description and tensors of the bytes of such a file, as `unpack` does."""
    with damaged(FileRejectedError("it is damaged, cut short, or not a safetensors file")):
        return _read(raw, expected)


def _read(raw: bytes, expected: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    (length,) = struct.unpack_from("<Q", raw)
    head, body = raw[8 : 8 + length], memoryview(raw)[8 + length :]
    header = json.loads(head)
    metadata = header.pop("__metadata__", {})
    demand("neverseen" in metadata, "it is a safetensors file of another program")
    about = json.loads(metadata["neverseen"])
    found = about["format"]
    demand(found == expected, f"its format is {str(found)[:80]!r}; this version reads {expected!r}")
    text = canonical_json(header | {"__metadata__": metadata}).encode()
    demand(head == text + b" " * (-len(text) % 8), "its header is damaged or not in canonical form")
    demand(metadata == {"neverseen": canonical_json(about)}, "its description is not in canonical form")
    tensors, place = {}, 0
    for name in sorted(header):
        entry = header[name]
        kind, shape = _WIDTHS[entry["dtype"]], entry["shape"]
        demand(all(type(size) is int and size >= 0 for size in shape), "a tensor has no shape")
        end = place + math.prod(shape) * kind.itemsize
        offsets = {"data_offsets": [place, end], "dtype": entry["dtype"], "shape": shape}
        demand(entry == offsets and end <= len(body), "it is cut short, or its tensors are misplaced")
        tensors[name] = np.frombuffer(body[place:end], kind).reshape(shape)
        place = end
    demand(place == len(body), "there are extra bytes after its tensors")
    claimed = about.pop("sha256")
    demand(claimed == _checksum(about, header, [body]), "its checksum does not match: it was damaged or altered")
    return about, tensors


def _checksum(about: dict[str, Any], header: dict[str, Any], parts: list[memoryview]) -> str:
    """Return the SHA-256 of the description (without checksum), the header (without description) and the tensors."""
    hasher = hashlib.sha256(canonical_json(about).encode() + canonical_json(header).encode())
    for part in parts:
        hasher.update(part)
    return hasher.hexdigest()


def demand(holds: bool, why: str) -> None:
    """Raise `FileRejectedError` with the reason unless a condition holds."""
    if not holds:
        raise FileRejectedError(why)
