"""Streams of phases, as the learners' papers have them, made from one set of features."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from benchmarks.learners.data import Features

Part = tuple[np.ndarray, np.ndarray]
"""Rows, and what is asked of them: most often their classes."""


_BASE = 1024


class Stream(NamedTuple):
    """Phases to learn, and for each phase the rows to test on once it is learned."""

    phases: list[Part]
    tests: list[Part]


Streamer = Callable[[Features, int], Stream]


def by_class(found: Features, count: int) -> Stream:
    """Return phases of new classes each; tests have the classes seen so far."""
    groups = _groups(found, count)
    seen = [np.concatenate(groups[: place + 1]) for place in range(len(groups))]
    return Stream([_of(found, group) for group in groups], [_of(found, classes, test=True) for classes in seen])


def beside_base(found: Features, count: int) -> Stream:
    """Return phases by class, without the rows of the base set."""
    first = len(base_set(found))
    return by_class(found._replace(train=found.train[first:], train_labels=found.train_labels[first:]), count)


def base_set(found: Features) -> np.ndarray:
    """Return the rows of the base set: the first ones, a quarter at most."""
    return found.train[: min(_BASE, len(found.train) // 4)]


def unit_length(found: Features, count: int) -> Stream:
    """Return phases by class of rows that have a root mean square of 1, as after a layer norm without an offset."""
    return by_class(found._replace(train=_unit(found.train), test=_unit(found.test)), count)


def blurry(found: Features, count: int) -> Stream:
    """Return phases by class, of which three samples in ten come in a random phase instead; tests have all classes."""
    drawn = np.random.default_rng(1)
    own = np.zeros(len(found.train_labels), np.int64)
    for place, group in enumerate(_groups(found, count)):
        own[np.isin(found.train_labels, group)] = place
    strayed = drawn.random(len(own)) < 0.3
    own[strayed] = drawn.integers(0, count, int(strayed.sum()))
    return Stream(
        [(found.train[own == place], found.train_labels[own == place]) for place in range(count)],
        [(found.test, found.test_labels)] * count,
    )


def mixed(found: Features, count: int) -> Stream:
    """Return phases that are alike, of all classes; so are the tests."""
    rows = np.array_split(np.arange(len(found.train)), count)
    phases = [(found.train[some], found.train_labels[some]) for some in rows]
    return Stream(phases, [(found.test, found.test_labels)] * count)


def long_tailed(found: Features, count: int, ratio: float = 100.0) -> Stream:
    """Return phases by class of a set in which the largest class has `ratio` times the samples of the smallest."""
    classes = np.random.default_rng(2).permutation(np.unique(found.train_labels))
    kept = []
    for place, label in enumerate(classes):
        rows = np.flatnonzero(found.train_labels == label)
        kept.append(rows[: max(1, round(len(rows) * ratio ** (-place / max(1, len(classes) - 1))))])
    chosen = np.sort(np.concatenate(kept))
    return by_class(found._replace(train=found.train[chosen], train_labels=found.train_labels[chosen]), count)


def partly_unknown(found: Features, count: int, tests: int = 1000) -> Stream:
    """Return phases of four classes in five; the question in the tests is whether a row is of one of the others."""
    groups = _groups(found, count)
    unknown = np.concatenate(groups[-max(1, count // 5) :])
    new = np.isin(found.test_labels, unknown)
    half = min(tests // 2, int(new.sum()), int((~new).sum()))
    rows = np.concatenate([np.flatnonzero(new)[:half], np.flatnonzero(~new)[:half]])
    known = [_of(found, group) for group in groups if not np.isin(group, unknown).any()]
    last = found.train[:0], found.train_labels[:0]
    together = tuple(np.concatenate(parts) for parts in zip(*known, last, strict=True))
    return Stream([together], [(found.test[rows], new[rows])])  # type: ignore[list-item]


def _unit(rows: np.ndarray) -> np.ndarray:
    lengths = np.sqrt(np.mean(rows.astype(np.float64) ** 2, axis=1, keepdims=True))
    found: np.ndarray = rows / np.where(lengths > 0, lengths, 1)
    return found


def _groups(found: Features, count: int) -> list[np.ndarray]:
    """Return the classes of each phase, in an order that is always the same."""
    classes = np.unique(found.train_labels)
    return np.array_split(np.random.default_rng(0).permutation(classes), count)


def _of(found: Features, classes: np.ndarray, *, test: bool = False) -> Part:
    rows, labels = (found.test, found.test_labels) if test else (found.train, found.train_labels)
    chosen = np.isin(labels, classes)
    return rows[chosen], labels[chosen]
