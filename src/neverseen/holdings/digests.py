"""Keyed digests, which represent samples.

- A *member digest* represents the features and the class of a sample. Somebody who has the digests but not the key
cannot
  tell whether a given sample is among them.
- A *ticket* represents one learning of a sample. Two people may bring the same picture. For the sums it is one sample
  learned twice, but each person has a receipt of their own, which must work once. The *number* of a ticket is a keyed
  digest of the id, or in a store of owner and id. Its *content* is a keyed digest of the raw sample. If the content is
  known but the member digest is not, the sample was learned, and its features have moved.

Sections 8 and 9 of ``docs/specification.md`` give them byte by byte.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from neverseen.labels import LabelIndex
from neverseen.proof.keys import Key

DIGEST_SIZE = 16

Member = tuple[str, bytes]
"""The class and the member digest of a sample."""


class Origin(NamedTuple):
    """The key and configuration of digests. Digests of different origins never match."""

    configuration: bytes  # digest of the model's configuration
    key: Key  # the membership key


class Ticket(NamedTuple):
    """One sample that was learned under an id. Holdings in memory keep only the first two fields."""

    number: bytes  # empty if the id, or in a store the owner, is not known
    content: bytes
    id: str  # canonical text; empty if it is not known
    owner: str = "null"  # canonical text; empty if it is not known
    commitment: bytes = b""  # of the sample's receipt; empty if there is none to compare
    salt: bytes = b""  # of the sample's receipt


def member_digests(
    configuration: bytes, key: Key, quantised: np.ndarray | Sequence[np.ndarray], index: LabelIndex
) -> list[Member]:
    """Return class and digest of each sample.

    Parameters
    ----------
    configuration : bytes
        Digest of the model's configuration. It is part of each digest, so those of other configurations never match.
    key : Key
        The membership key.
    quantised : int8 ndarray of shape (n, d0), or a sequence of n int8 ndarrays
        The features before expansion. A sample that has many rows has an array of its own.
    """
    begun = _keyed(configuration, key, b"neverseen:member")
    started = []
    for name in index.texts:
        hasher, encoded = begun.copy(), name.encode()
        hasher.update(struct.pack("<Q", len(encoded)) + encoded)
        started.append(hasher)
    if len(quantised) != len(index.positions):
        raise ValueError(f"there are {len(quantised)} samples and {len(index.positions)} labels")
    members = []
    for features, position in zip(_parts(quantised), index.positions.tolist(), strict=True):
        hasher = started[position].copy()
        hasher.update(features)
        members.append((index.texts[position], hasher.digest()))
    return members


def _parts(quantised: np.ndarray | Sequence[np.ndarray]) -> Iterable[bytes | memoryview]:
    """Return the bytes of each sample, one after another; fast, as many small samples come at once."""
    if not isinstance(quantised, np.ndarray):
        return (np.ascontiguousarray(each).tobytes() for each in quantised)
    rows, width = memoryview(np.ascontiguousarray(quantised).tobytes()), quantised.shape[1]
    starts = range(0, len(rows), max(1, width))
    return map(rows.__getitem__, map(slice, starts, range(width, len(rows) + width, max(1, width))))


def content_digest(configuration: bytes, key: Key, fingerprint: bytes, name: str) -> bytes:
    """Return the keyed digest of a raw sample, given its fingerprint and the canonical text of its class."""
    return _keyed(configuration, key, b"neverseen:raw", fingerprint + name.encode()).digest()


def ticket_number(configuration: bytes, key: Key, id_text: str) -> bytes:
    """Return the number of a ticket of a model in memory, where no two samples have the same id."""
    return _keyed(configuration, key, b"neverseen:ticket", id_text.encode()).digest()


def owned_number(configuration: bytes, key: Key, owner: str, id_text: str) -> bytes:
    """Return the number of a ticket in a store. Each owner has their own ids, so it covers both owner and id."""
    about = struct.pack("<Q", len(owner)) + owner.encode() + id_text.encode()
    return _keyed(configuration, key, b"neverseen:owned", about).digest()


def _keyed(configuration: bytes, key: Key, person: bytes, about: bytes = b"") -> hashlib.blake2b:
    return hashlib.blake2b(configuration + about, key=key.reveal(), digest_size=DIGEST_SIZE, person=person)
