"""Who learns what, and who forgets what when: splits and request lists, the same for ever.

Every choice is an order of items by the SHA-256 of a seed, a purpose and the item: no random generator whose stream
may change with a library's version.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]


class Split(NamedTuple):
    """Rows of the training images; no row is in both."""

    base: Rows  # trains the backbone, and nothing else ever
    learned: Rows  # what the model learns; its first rows are those to be forgotten


def shuffled(count: int, purpose: str, seed: int) -> Rows:
    """Return 0..count-1 in an order that the purpose and the seed decide."""
    prefix = hashlib.sha256(f"neverseen:paper:{purpose}:{seed}".encode()).digest()
    keys = [hashlib.sha256(prefix + item.to_bytes(8, "little")).digest() for item in range(count)]
    return np.array(sorted(range(count), key=keys.__getitem__), dtype=np.int64)


def split(count: int, base: int, learned: int, seed: int) -> Split:
    """Divide `count` training images into a base and a learned part.

    Parameters
    ----------
    count, base, learned : int
        ``base + learned`` may be less than `count`.
    seed : int
    """
    if base < 0 or learned < 1 or base + learned > count:
        raise ValueError(f"cannot take {base} base and {learned} learned of {count} training images")
    order = shuffled(count, "split", seed)
    return Split(order[:base], order[base : base + learned])


def sample_requests(forgotten: int, requests: int) -> list[Rows]:
    """Cut the first `forgotten` of the learned samples into so many disjoint requests.

    Returns positions in the learned part. Sizes differ by one at most, and the samples forgotten in the end are the
    same for every number of requests.
    """
    if not 1 <= requests <= forgotten:
        raise ValueError(f"cannot forget {forgotten} samples in {requests} requests")
    return np.array_split(np.arange(forgotten, dtype=np.int64), requests)


def class_order(n_classes: int, seed: int) -> list[int]:
    """Return the classes in the order in which they are forgotten."""
    order: list[int] = shuffled(n_classes, "classes", seed).tolist()
    return order


def class_requests(labels: NDArray[np.int64], classes: list[int], requests: int) -> list[Rows]:
    """Return one request a class, for the first of these classes: positions of all its learned samples.

    Parameters
    ----------
    labels : ndarray
        Of the learned samples.
    classes : list of int
        `class_order`.
    requests : int
        Fewer than there are classes.
    """
    if not 1 <= requests < len(classes):
        raise ValueError(f"cannot forget {requests} of {len(classes)} classes and keep one")
    return [np.flatnonzero(labels == label).astype(np.int64) for label in classes[:requests]]


def alternating(learned: int, forgotten: int, cycles: int) -> list[tuple[Rows, Rows]]:
    """Return what is learned and then forgotten in each of so many cycles, as positions in the learned part.

    What is to be forgotten is learned first, before the first cycle: `forgotten` samples, the first ones. Each cycle
    learns a share of the others and forgets a share of those.
    """
    if not 1 <= cycles <= min(forgotten, learned - forgotten):
        raise ValueError(f"cannot learn {learned - forgotten} and forget {forgotten} samples in {cycles} cycles")
    new = np.array_split(np.arange(forgotten, learned, dtype=np.int64), cycles)
    return list(zip(new, sample_requests(forgotten, cycles), strict=True))
