"""What happened since the last snapshot, as the bytes that are kept until the next.

A record holds the quantised features of the samples that came or went: with the snapshot before it, all that is
needed to make the sums anew. It is kept in the ledger's database, in the transaction that changes the ledger.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator

import numpy as np

from neverseen.errors import FileRejectedError, StoreDamagedError
from neverseen.holdings import FORGET, FORGET_CLASS, LEARN, Change
from neverseen.labels import Label, LabelIndex, canonical_json, from_text, parse_json
from neverseen.ledger import JournalRow

_CHECK = 16
_LARGEST = 127  # of quantised features, either sign
_GATHER = 8192  # samples read from records and not yet added up


def samples_record(quantised: np.ndarray, index: LabelIndex) -> bytes:
    """Return the record of samples that are learned or forgotten."""
    about = canonical_json({"classes": index.texts, "shape": list(quantised.shape)}).encode()
    positions = np.ascontiguousarray(index.positions, "<i4").tobytes()
    body = np.ascontiguousarray(quantised, np.int8).tobytes()
    return _sealed(struct.pack("<I", len(about)) + about + positions + body)


def class_record(name: str) -> bytes:
    """Return the record of a class that is forgotten."""
    return _sealed(name.encode())


def read_samples(record: bytes, sequence: int, n_features: int) -> tuple[np.ndarray, list[Label]]:
    """Return the quantised features and labels of a record; raise `StoreDamagedError` if no samples can have made it.

    A record says itself what it must be, without a key. So whoever made the store may have written anything into it.
    """
    body = _opened(record, sequence)
    try:
        (length,) = struct.unpack_from("<I", body)
        about = parse_json(body[4 : 4 + length])
        rows, width = about["shape"]
        labels = [from_text(text) for text in about["classes"]]
        places = 4 + length
        features = places + 4 * rows
        if type(rows) is not int or rows < 0 or width != n_features or features + rows * width != len(body):
            raise ValueError
        positions = np.frombuffer(body, "<i4", rows, places)
        quantised = np.frombuffer(body, np.int8, rows * width, features).reshape(rows, width).copy()
        if (positions < 0).any() or (positions >= len(labels)).any() or (quantised < -_LARGEST).any():
            raise ValueError
    except (ValueError, TypeError, KeyError, RecursionError, struct.error, FileRejectedError):
        raise _impossible(sequence) from None
    return quantised, [labels[position] for position in positions]


def read_class(record: bytes, sequence: int) -> str:
    """Return the class of a record; raise `StoreDamagedError` if it is none."""
    try:
        name = _opened(record, sequence).decode()
        from_text(name)
    except (UnicodeDecodeError, FileRejectedError):
        raise _impossible(sequence) from None
    return name


def gathered(records: Iterable[JournalRow], n_features: int) -> Iterator[Change]:
    """Yield the changes of records, many in one: sums do not depend on the order, and a sample takes as long as many.

    What is learned comes before what is forgotten, so that all that goes is there. A class that is forgotten parts
    what came before from what comes after.
    """
    waiting: dict[str, list[tuple[np.ndarray, list[Label]]]] = {LEARN: [], FORGET: []}
    for record in records:
        if record.kind in waiting:
            waiting[record.kind].append(read_samples(record.payload, record.sequence, n_features))
            if sum(len(labels) for parts in waiting.values() for _, labels in parts) >= _GATHER:
                yield from _together(waiting)
        elif record.kind == FORGET_CLASS:
            yield from _together(waiting)
            yield Change(FORGET_CLASS, name=read_class(record.payload, record.sequence))
        else:
            raise StoreDamagedError(f"record {record.sequence} of the journal is of unknown kind {record.kind!r}")
    yield from _together(waiting)


def _together(waiting: dict[str, list[tuple[np.ndarray, list[Label]]]]) -> Iterator[Change]:
    for kind, parts in waiting.items():
        if parts:
            index = LabelIndex([label for _, labels in parts for label in labels])
            yield Change(kind, np.concatenate([quantised for quantised, _ in parts]), index)
            parts.clear()


def _impossible(sequence: int) -> StoreDamagedError:
    return StoreDamagedError(
        f"record {sequence} of the journal is damaged: no samples of this store can have made it. Restore the ledger "
        "from a copy"
    )


def _sealed(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_CHECK, person=b"neverseen:record").digest() + body


def _opened(record: bytes, sequence: int) -> bytes:
    body = record[_CHECK:]
    if _sealed(body)[:_CHECK] != record[:_CHECK]:
        raise StoreDamagedError(
            f"record {sequence} of the journal is damaged: it is not what was written. Restore the ledger from a copy"
        )
    return body
