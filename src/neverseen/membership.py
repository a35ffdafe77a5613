"""Which samples a model holds, without the samples.

A keyed digest stands for each sample: a multiset of them per class. Whoever has the digests but not the key
cannot tell whether a given sample is among them. Forgetting removes a digest and leaves no mark: the multiset
is the one of never having learned.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from neverseen.errors import ConfigurationError, KeyMissingError, NotLearnedError
from neverseen.keys import Key
from neverseen.labels import LabelIndex, in_class_order

DIGEST_SIZE = 16

Member = tuple[str, bytes]
"""Class and digest of a sample."""


class Membership:
    """A multiset of keyed sample digests for each class.

    Parameters
    ----------
    key : Key or None
        Without it the multiset can be kept, saved and lose classes, but no sample can be looked up.
    configuration_digest : bytes
        Bound into each digest, so that digests of differently configured models never meet.
    """

    def __init__(self, key: Key | None, configuration_digest: bytes) -> None:
        self.key = key
        self._configuration = configuration_digest
        self._held: dict[str, Counter[bytes]] = {}

    def require_key(self) -> Key:
        """Return the key, or say that it is missing."""
        if self.key is None:
            raise KeyMissingError(
                "this model was loaded without its membership key: it can predict, not learn or forget samples. "
                "Load it with key="
            )
        return self.key

    def digests(self, quantised: np.ndarray, index: LabelIndex) -> list[Member]:
        """Return class and digest of each sample, for int8 features of shape (n, d0) before expansion."""
        key = self.require_key()
        begun = hashlib.blake2b(key=key.reveal(), digest_size=DIGEST_SIZE, person=b"neverseen:member")
        begun.update(self._configuration)
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

    def require(self, members: Sequence[Member]) -> Counter[Member]:
        """Return how often each of these is held; raise `NotLearnedError` if one occurs here more often than that."""
        held = self.held(members)
        if all(times <= held[member] for member, times in Counter(members).items()):
            return held
        asked: Counter[Member] = Counter()
        missing = []
        for row, member in enumerate(members):
            asked[member] += 1
            if asked[member] > held[member]:
                missing.append(row)
        shown = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
        raise NotLearnedError(
            f"the model does not hold {len(missing)} of the {len(members)} samples to be forgotten "
            f"(rows {shown}): never learned with these features and this label, already forgotten, or listed "
            "more often than learned. Nothing was changed",
            tuple(missing),
        )

    def add(self, members: Iterable[Member]) -> None:
        """Take samples in."""
        for name, digest in members:
            self._held.setdefault(name, Counter())[digest] += 1

    def remove(self, members: Iterable[Member]) -> None:
        """Let samples go that `require` has found here."""
        for name, digest in members:
            held = self._held[name]
            if held[digest] > 1:
                held[digest] -= 1
            else:
                held.pop(digest)
            if not held:
                del self._held[name]

    def remove_class(self, name: str) -> None:
        """Let all samples of a class go."""
        del self._held[name]

    def require_like(self, other: Membership) -> None:
        """Raise unless both are under one key, which must be there."""
        if self.key is None or other.key is None:
            raise KeyMissingError("models can be merged only with their membership keys. Load them with key=")
        if self.key != other.key:
            raise ConfigurationError("the models have different membership keys; build both with the same key=")

    def merge(self, other: Membership) -> None:
        """Take in all that another holds, `require_like` having been called."""
        for name, held in other._held.items():
            self._held.setdefault(name, Counter()).update(held)

    def held(self, members: Iterable[Member]) -> Counter[Member]:
        """Return how often each of these is held."""
        none: Counter[bytes] = Counter()
        return Counter({member: self._held.get(member[0], none).get(member[1], 0) for member in members})

    def of_class(self, name: str) -> list[bytes]:
        """Return the different digests of a class."""
        return list(self._held.get(name, ()))

    def counts(self) -> dict[str, int]:
        """Return the number of samples of each class."""
        return {name: held.total() for name, held in self._held.items()}

    def occurrences(self) -> Counter[bytes]:
        """Return how often each digest is held. A digest holds its class's name, so that no two classes share one."""
        total: Counter[bytes] = Counter()
        for held in self._held.values():
            total.update(held)
        return total

    def to_array(self) -> np.ndarray:
        """Return all digests, uint8 of shape (n, 16): by class, in class order, then sorted, duplicates repeated."""
        names = in_class_order(self._held)
        rows = b"".join(digest for name in names for digest in sorted(self._held[name].elements()))
        return np.frombuffer(rows, np.uint8).reshape(-1, DIGEST_SIZE)

    def fill(self, digests: np.ndarray, counts: dict[str, int]) -> None:
        """Take in what `to_array` returned, given the number of samples of each class in class order."""
        place = 0
        for name, count in counts.items():
            rows = np.ascontiguousarray(digests[place : place + count])
            self._held[name] = Counter(row.tobytes() for row in rows)
            place += count
