"""The journal: the changes since the last snapshot, as bytes.

A record holds the quantised features of the samples that were learned or forgotten. The sums can be computed from the
snapshot and the records after it. A record is written to the ledger in the transaction of its change.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator

import numpy as np

from neverseen.errors import StoreDamagedError, damaged
from neverseen.holdings import FORGET, FORGET_CLASS, LEARN, Change
from neverseen.labels import Label, LabelIndex, canonical_json, from_text, parse_json
from neverseen.ledger import JournalRow
from neverseen.targets import Rows, Targets

KINDS = {LEARN: "learn", FORGET: "forget", FORGET_CLASS: "forget-class"}
"""The name of each kind of change in the journal."""
HEAD_SIZE = 16
"""First bytes of a record: the digest of the rest."""
_LARGEST = 127  # of quantised features, either sign
_GATHER = 8192  # rows of samples read from records and not yet added up


def samples_record(quantised: np.ndarray, index: LabelIndex) -> bytes:
    """Return the record of a change that learns or forgets samples. A sample has as many rows as its label says."""
    about = canonical_json({"classes": index.texts, "shape": [len(index), quantised.shape[1]]}).encode()
    positions = np.ascontiguousarray(index.positions, "<i4").tobytes()
    body = np.ascontiguousarray(quantised, np.int8).tobytes()
    return _sealed(struct.pack("<I", len(about)) + about + positions + body)


def class_record(name: str) -> bytes:
    """Return the record of a change that forgets a class."""
    return _sealed(name.encode())


def read_samples(
    record: bytes, sequence: int, n_features: int, targets: Targets | None = None
) -> tuple[np.ndarray, list[Label]]:
    """Return the quantised features and labels of a record; raise `StoreDamagedError` if they are impossible.

    The digest of a record has no key, so the maker of a store may have written anything into it.
    """
    body = _opened(record, sequence)
    with damaged(_impossible(sequence)):
        (length,) = struct.unpack_from("<I", body)
        about = parse_json(body[4 : 4 + length])
        samples, width = about["shape"]
        labels = [from_text(text) for text in about["classes"]]
        places = 4 + length
        features = places + 4 * samples
        if type(samples) is not int or samples < 0 or width != n_features or features > len(body):
            raise ValueError
        positions = np.frombuffer(body, "<i4", samples, places)
        if (positions < 0).any() or (positions >= len(labels)).any():
            raise ValueError
        rows = samples
        if isinstance(targets, Rows):
            lengths = np.array([targets.length(text) for text in about["classes"]], np.int64)
            rows = int(lengths[positions].sum())
        if features + rows * width != len(body):
            raise ValueError
        quantised = np.frombuffer(body, np.int8, rows * width, features).reshape(rows, width).copy()
        if (quantised < -_LARGEST).any():
            raise ValueError
        return quantised, [labels[position] for position in positions]


def read_class(record: bytes, sequence: int) -> str:
    """Return the class of a record; raise `StoreDamagedError` if it is not a class."""
    with damaged(_impossible(sequence)):
        name = _opened(record, sequence).decode()
        from_text(name)
        return name


def gathered(records: Iterable[JournalRow], n_features: int, targets: Targets | None = None) -> Iterator[Change]:
    """Yield the changes of records, many joined into one: order does not matter, and one sample takes as long as many.

    Samples to learn come before samples to forget, so that every forgotten sample is held. Nothing is joined across the
    forgetting of a class.
    """
    waiting: dict[str, list[tuple[np.ndarray, list[Label]]]] = {LEARN: [], FORGET: []}
    for record in records:
        if record.kind in waiting:
            waiting[record.kind].append(read_samples(record.payload, record.sequence, n_features, targets))
            if sum(len(rows) for parts in waiting.values() for rows, _ in parts) >= _GATHER:
                yield from _together(waiting)
        elif record.kind == KINDS[FORGET_CLASS]:
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
    return hashlib.blake2b(body, digest_size=HEAD_SIZE, person=b"neverseen:record").digest() + body


def _opened(record: bytes, sequence: int) -> bytes:
    body = record[HEAD_SIZE:]
    if _sealed(body)[:HEAD_SIZE] != record[:HEAD_SIZE]:
        raise StoreDamagedError(
            f"record {sequence} of the journal is damaged: it is not what was written. Restore the ledger from a copy"
        )
    return body
