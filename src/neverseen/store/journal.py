"""What happened since the last snapshot, as the bytes that are kept until the next.

A record holds the quantised features of the samples that came or went: with the snapshot before it, all that is
needed to make the sums anew. It is kept in the ledger's database, in the transaction that changes the ledger.
"""

from __future__ import annotations

import hashlib
import json
import struct

import numpy as np

from neverseen.errors import StoreDamagedError
from neverseen.labels import LabelIndex, canonical_json, from_text

LEARN, FORGET, FORGET_CLASS = "learn", "forget", "forget-class"
_CHECK = 16


def samples_record(quantised: np.ndarray, index: LabelIndex) -> bytes:
    """Return the record of samples that are learned or forgotten."""
    about = canonical_json({"classes": index.texts, "shape": list(quantised.shape)}).encode()
    positions = np.ascontiguousarray(index.positions, "<i4").tobytes()
    body = np.ascontiguousarray(quantised, np.int8).tobytes()
    return _sealed(struct.pack("<I", len(about)) + about + positions + body)


def class_record(name: str) -> bytes:
    """Return the record of a class that is forgotten."""
    return _sealed(name.encode())


def read_samples(record: bytes, sequence: int) -> tuple[np.ndarray, LabelIndex]:
    """Return the quantised features and labels of a record."""
    body = _opened(record, sequence)
    (length,) = struct.unpack_from("<I", body)
    about = json.loads(body[4 : 4 + length])
    rows, width = about["shape"]
    positions = np.frombuffer(body, "<i4", rows, 4 + length)
    quantised = np.frombuffer(body, np.int8, rows * width, 4 + length + 4 * rows).reshape(rows, width).copy()
    labels = [from_text(text) for text in about["classes"]]
    return quantised, LabelIndex([labels[position] for position in positions])


def read_class(record: bytes, sequence: int) -> str:
    """Return the class of a record."""
    return _opened(record, sequence).decode()


def _sealed(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_CHECK, person=b"neverseen:record").digest() + body


def _opened(record: bytes, sequence: int) -> bytes:
    body = record[_CHECK:]
    if _sealed(body)[:_CHECK] != record[:_CHECK]:
        raise StoreDamagedError(
            f"record {sequence} of the journal is damaged: it is not what was written. Restore the ledger from a copy"
        )
    return body
