"""What all learners share: columns for classes as they come, and predictions by the largest score."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from benchmarks.learners.references.embeddings import Embedding, identity

State = tuple[np.ndarray, np.ndarray]
"""R (d, d), the inverse of the regularised Gram matrix, and the weights W (d, C)."""


class NothingLearnedError(ValueError):
    """Scores or a state were asked for before the first phase."""

    def __init__(self) -> None:
        super().__init__("nothing was learned yet; call learn first")


class Learner(ABC):
    """A classifier that learns phase by phase.

    Attributes
    ----------
    classes : list
        The labels of the columns, in the order in which they first came.
    """

    def __init__(self, embed: Embedding = identity) -> None:
        self.embed = embed
        self.classes: list[Any] = []

    @abstractmethod
    def learn(self, features: np.ndarray, labels: np.ndarray) -> None:
        """Learn one phase."""

    @abstractmethod
    def scores(self, features: np.ndarray) -> np.ndarray:
        """Return one score per class."""

    def predict(self, features: np.ndarray) -> np.ndarray:
        """Return the label of the largest score."""
        labels: np.ndarray = np.array(self.classes)[self.scores(features).argmax(axis=-1)]
        return labels

    def targets(self, labels: np.ndarray) -> np.ndarray:
        """Return one-hot rows (n, C); labels that are new get columns behind the others."""
        self.classes += sorted(set(np.unique(labels).tolist()) - set(self.classes))
        rows: np.ndarray = (np.asarray(labels)[:, None] == np.array(self.classes)).astype(np.float64)
        return rows


class Weighted(Learner):
    """A learner whose scores are ``codes @ W``."""

    @property
    @abstractmethod
    def weights(self) -> np.ndarray:
        """The weights W (d, C) of all that was learned."""

    def scores(self, features: np.ndarray) -> np.ndarray:
        """Return one score per class."""
        scores: np.ndarray = self.embed(features) @ self.weights
        return scores


class Summed(Weighted):
    """A learner that keeps sums, and solves them when it is asked after a phase."""

    solved: State | None = None

    @abstractmethod
    def solution(self) -> State:
        """Return (R, W) of the sums."""

    def state(self) -> State:
        """Return (R, W)."""
        if self.solved is None:
            self.solved = self.solution()
        return self.solved

    @property
    def weights(self) -> np.ndarray:
        """The weights W (d, C)."""
        return self.state()[1]


def widened(matrix: np.ndarray | None, rows: int, columns: int) -> np.ndarray:
    """Return a matrix with zero columns behind its own, up to so many; zeros if there was none."""
    if matrix is None:
        return np.zeros((rows, columns))
    return np.pad(matrix, ((0, 0), (0, columns - matrix.shape[1])))


def ridge_solution(gram: np.ndarray, cross: np.ndarray, gamma: float) -> np.ndarray:
    """Return ``(G + gamma I)^-1 B``."""
    return np.linalg.solve(gram + gamma * np.eye(len(gram)), cross)
