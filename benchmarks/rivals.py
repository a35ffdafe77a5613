"""What the demo sets beside the exact model: the paper's recursion, and retraining at every request. Both in float64.

They see the same codes, keep their weights up to date with every request, and believe their caller: no receipts, no
check of what was learned.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.linalg

from neverseen import tracking

_ROWS = 1024  # samples the recursion takes at a time: its cost has a term in their cube


class Rival(ABC):
    """A ridge classifier on the rows of a matrix of codes.

    Parameters
    ----------
    codes : int8 ndarray of shape (n, d)
    labels : ndarray of shape (n,)
    gamma : int
    """

    def __init__(self, codes: np.ndarray, labels: np.ndarray, gamma: int) -> None:
        self.codes, self.labels, self.gamma = codes, labels, gamma
        self.classes: list[Any] = []
        self.W = np.zeros((codes.shape[1], 0))  # (d, C), a column for each of the classes

    @abstractmethod
    def learn(self, rows: Sequence[int]) -> None:
        """Learn these rows."""

    @abstractmethod
    def forget(self, rows: Sequence[int]) -> None:
        """Forget these rows."""

    @abstractmethod
    def forget_class(self, label: Any) -> None:
        """Forget a class."""

    def accuracy(self, codes: np.ndarray, labels: np.ndarray) -> float:
        """Return the share of codes whose class is predicted right."""
        return float(np.mean(np.array(self.classes)[(codes @ self.W).argmax(axis=1)] == labels))

    def _batch(self, rows: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return features (k, d) and one-hot targets (k, C) of some rows."""
        return self.codes[rows].astype(np.float64), (self.labels[rows, None] == np.array(self.classes)).astype(float)


class Recursion(Rival):
    """The paper's update of (T, W), and the sums of each class that it needs to forget one (`neverseen.tracking`)."""

    def __init__(self, codes: np.ndarray, labels: np.ndarray, gamma: int) -> None:
        super().__init__(codes, labels, gamma)
        self.T, self.W = tracking.start(codes.shape[1], 0, gamma)
        self.grams: dict[Any, np.ndarray] = {}

    def learn(self, rows: Sequence[int]) -> None:
        """Learn these rows, in parts."""
        self.classes += [label for label in np.unique(self.labels[rows]).tolist() if label not in self.classes]
        for start in range(0, len(rows), _ROWS):
            F, Y = self._batch(rows[start : start + _ROWS])
            self.T, self.W = tracking.learn(self.T, self.W, F, Y)
            self._add_to_grams(F, Y, 1)

    def forget(self, rows: Sequence[int]) -> None:
        """Forget these rows, in parts."""
        for start in range(0, len(rows), _ROWS):
            F, Y = self._batch(rows[start : start + _ROWS])
            self.T, self.W = tracking.forget_samples(self.T, self.W, F, Y)
            self._add_to_grams(F, Y, -1)

    def forget_class(self, label: Any) -> None:
        """Forget a class by its sums."""
        column = self.classes.index(label)
        self.T, self.W = tracking.forget_class(self.T, self.W, self.grams.pop(label), None, column)
        del self.classes[column]

    def _add_to_grams(self, F: np.ndarray, Y: np.ndarray, sign: int) -> None:
        for label, members in zip(self.classes, Y.T.astype(bool), strict=True):
            if members.any():
                self.grams[label] = self.grams.get(label, 0) + sign * (F[members].T @ F[members])  # (d, d)


class Retraining(Rival):
    """The ridge solution on all features retained, which it has to keep: normal equations, Cholesky."""

    def __init__(self, codes: np.ndarray, labels: np.ndarray, gamma: int) -> None:
        super().__init__(codes, labels, gamma)
        self.held = np.zeros(len(codes), bool)

    def learn(self, rows: Sequence[int]) -> None:
        """Take the rows in and train anew."""
        self.held[rows] = True
        self._train()

    def forget(self, rows: Sequence[int]) -> None:
        """Let the rows go and train anew."""
        self.held[rows] = False
        self._train()

    def forget_class(self, label: Any) -> None:
        """Let the rows of a class go and train anew."""
        self.held &= self.labels != label
        self._train()

    def _train(self) -> None:
        rows = np.flatnonzero(self.held)
        self.classes = np.unique(self.labels[rows]).tolist()
        F, Y = self._batch(rows)
        system = F.T @ F  # (d, d)
        system[np.diag_indices_from(system)] += self.gamma
        factor = scipy.linalg.cho_factor(system, overwrite_a=True, check_finite=False)
        self.W = scipy.linalg.cho_solve(factor, F.T @ Y, check_finite=False)  # (d, C)
