"""Runs one row of the comparison: accuracy, digests after a random history, time, and what is kept."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.metrics import average_precision_score, roc_auc_score

from benchmarks.learners import contestants as side
from benchmarks.learners import streams
from benchmarks.learners.contestants import Exact
from benchmarks.learners.data import Features
from benchmarks.learners.entries import Entry, Shape

STEPS = 16


def accuracy(said: Any, labels: np.ndarray) -> float:
    """Return the share of right classes."""
    return float(np.mean(np.asarray(said) == labels))


def precision(said: Any, labels: np.ndarray) -> float:
    """Return the mean average precision over the labels that occur."""
    truth = side.multi_hot(said.shape[1] - 5)(labels)
    return float(
        np.mean([average_precision_score(*both) for both in zip(truth.T, said.T, strict=True) if any(both[0])])
    )


def explained(said: Any, labels: np.ndarray) -> float:
    """Return the share of the variance that is explained (R²), the mean over the outputs."""
    truth = side.numbers(labels)
    left = ((truth - np.asarray(said)) ** 2).sum(axis=0)
    return float(np.mean(1 - left / ((truth - truth.mean(axis=0)) ** 2).sum(axis=0)))


def separation(said: Any, new: np.ndarray) -> float:
    """Return how often a row of an unknown class is newer than one of a known class (area under the ROC curve)."""
    return float(roc_auc_score(new, said))


MEASURES: dict[str, Callable[[Any, np.ndarray], float]] = {
    "accuracy": accuracy,
    "precision": precision,
    "explained": explained,
    "separation": separation,
}


def compared(entry: Entry, found: Features, codes: int, gamma: int, phases: int) -> dict[str, Any]:
    """Return the figures of one row."""
    size = codes if entry.codes is None else min(codes, entry.codes)
    classes = int(found.train_labels.max()) + 1
    shape = Shape(found.train.shape[1], size, gamma, classes, phases, streams.base_set(found)[:size])
    stream, measure = entry.stream(found, phases), MEASURES[entry.measure]
    row: dict[str, Any] = {"name": entry.name, "measure": entry.measure, "codes": size or shape.width}
    row |= {"stream": entry.stream.__name__, "samples": sum(len(labels) for _, labels in stream.phases)}
    row |= {"figure": entry.figure, "digest equal": forgets_exactly(lambda: entry.ours(shape), found)}
    for name, new in (("ours", entry.ours), ("float", entry.theirs)):
        contestant: Any = new(shape)
        scores, spent = [], np.zeros(2)
        for place, ((rows, labels), (tests, asked)) in enumerate(zip(*stream, strict=True)):
            began = _clocks()
            contestant.learn(rows, labels, *([place] if name == "ours" else []))
            said = contestant.predict(tests)
            spent += _clocks() - began
            scores.append(measure(said, asked))
        row[name] = {
            "phases": scores,
            "average": float(np.mean(scores)),
            "last": scores[-1],
            "seconds": spent[0],
            "processor seconds": spent[1],
            "bytes": contestant.size(),
        }
    return row


def _clocks() -> np.ndarray:
    return np.array([time.perf_counter(), time.process_time()])


def forgets_exactly(new: Callable[[], Exact], found: Features, seed: int = 0) -> bool:
    """Return whether a random history of learning and forgetting ends in the model of the samples that are left."""
    drawn = np.random.default_rng(seed)
    few = np.flatnonzero(found.train_labels < 10)[:800]
    rows, labels = found.train[few], found.train_labels[few]
    model, parts = new(), dict[int, list[int]]()
    unused = iter(range(len(few)))
    for step in range(STEPS):
        if step < 3 or drawn.random() < 0.5:
            part = [row for row, _ in zip(unused, range(int(drawn.integers(1, 50))), strict=False)]
            if part:
                model.learn(rows[part], labels[part], step)
                parts[step] = part
        else:
            place = int(drawn.choice(list(parts)))
            gone = [row for row in parts[place] if drawn.random() < 0.5] or parts[place]
            if len(parts) == 1 and len(gone) == len(parts[place]):
                continue
            model.forget(rows[gone], labels[gone], place)
            parts[place] = [row for row in parts[place] if row not in set(gone)]
            if not parts[place]:
                del parts[place]
    left = drawn.permutation([row for part in parts.values() for row in part])
    never = new()
    never.learn(rows[left], labels[left])
    return model.digest() == never.digest()
