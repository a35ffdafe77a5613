"""The keyed digests that stand for samples.

- A *member digest* stands for a sample's features and class. Whoever has the digests but not the key cannot tell
  whether a given sample is among them.
- A *ticket* stands for one act of learning. Two people may hand in the same picture: to the sums it is one sample
  learned twice, but each has a receipt of their own, and a receipt must work once. Its *number* is a keyed digest of
  the id, in a store of owner and id; its *content* is a keyed digest of the raw sample. If the content is
  known and the member digest is not, the sample was learned and its features have moved.

Sections 8 and 9 of ``docs/specification.md`` give them byte by byte.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from neverseen.labels import LabelIndex
from neverseen.proof.keys import Key

DIGEST_SIZE = 16

Member = tuple[str, bytes]
"""Class and digest of a sample."""


class Ticket(NamedTuple):
    """What stands for one sample learned under an id. Holdings in memory keep the first two alone."""

    number: bytes  # empty if the id, or in a store the owner, is not known
    content: bytes
    id: str  # canonical text; empty if it is not known
    owner: str = "null"  # canonical text; empty if it is not known
    commitment: bytes = b""  # of the sample's receipt; empty if there is none to compare
    salt: bytes = b""  # of the sample's receipt


def member_digests(configuration: bytes, key: Key, quantised: np.ndarray, index: LabelIndex) -> list[Member]:
    """Return class and digest of each sample, for int8 features of shape (n, d0) before expansion.

    Parameters
    ----------
    configuration : bytes
        Digest of the model's configuration, bound into each: digests of differently configured models never meet.
    key : Key
        The membership key.
    """
    begun = _keyed(configuration, key, b"neverseen:member")
    started = []
    for name in index.texts:
        hasher, encoded = begun.copy(), name.encode()
        hasher.update(struct.pack("<Q", len(encoded)) + encoded)
        started.append(hasher)
    members = []
    for row, position in zip(np.ascontiguousarray(quantised), index.positions, strict=True):
        hasher = started[position].copy()
        hasher.update(row.tobytes())
        members.append((index.texts[position], hasher.digest()))
    return members


def tickets_of(
    configuration: bytes, key: Key, ids: Iterable[str], names: Iterable[str], prints: Iterable[bytes]
) -> list[Ticket]:
    """Return the ticket of each sample of a model in memory, where no two samples have the same id.

    It takes the arguments of `member_digests`, the canonical texts of ids and classes, and fingerprints of 16 bytes.
    """
    return [
        Ticket(
            _keyed(configuration, key, b"neverseen:ticket", id_text.encode()).digest(),
            _keyed(configuration, key, b"neverseen:raw", fingerprint + name.encode()).digest(),
            id_text,
        )
        for id_text, name, fingerprint in zip(ids, names, prints, strict=True)
    ]


def owned_number(configuration: bytes, key: Key, owner: str, id_text: str) -> bytes:
    """Return the number of a ticket in a store, where ids are an owner's own: the same id of two owners has two."""
    about = struct.pack("<Q", len(owner)) + owner.encode() + id_text.encode()
    return _keyed(configuration, key, b"neverseen:owned", about).digest()


def _keyed(configuration: bytes, key: Key, person: bytes, about: bytes = b"") -> hashlib.blake2b:
    return hashlib.blake2b(configuration + about, key=key.reveal(), digest_size=DIGEST_SIZE, person=person)
