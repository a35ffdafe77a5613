"""The two sides of each row: this library, and a published formula in float64. Both learn, predict and tell their size.

A side takes classes, as whole numbers, and makes of them what its learner is asked: sets of labels, numbers, weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.learners.references import Mahalanobis, Ridge
from neverseen import AnalyticClassifier, Federation
from neverseen.model import saving
from neverseen.model.means import ClassMeans

Asked = Callable[[np.ndarray], Any]


def classes(labels: np.ndarray) -> np.ndarray:
    """Return classes as they are."""
    return labels


class Exact:
    """An `AnalyticClassifier`, which forgets.

    Parameters
    ----------
    new : callable
        Returns a model that holds nothing, with a key that is always the same.
    asked : callable
        Makes labels of classes.
    """

    def __init__(self, new: Callable[[], AnalyticClassifier], asked: Asked = classes) -> None:
        self.new, self.asked = new, asked
        self.model = new()

    def learn(self, rows: np.ndarray, labels: np.ndarray, part: int = 0) -> None:
        """Learn some rows, which are a part of all."""
        self.model.partial_fit(rows, self.asked(labels))

    def forget(self, rows: np.ndarray, labels: np.ndarray, part: int = 0) -> None:
        """Forget some rows of a part."""
        self.model.forget(rows, self.asked(labels))

    def predict(self, rows: np.ndarray) -> Any:
        """Return the prediction for each row."""
        return self.model.predict(rows)

    def digest(self) -> str:
        """Return the digest of what predicts."""
        return self.model.digest()

    def size(self) -> int:
        """Return the bytes of what is kept: the saved file."""
        return 0 if self.model.exact is None else len(saving.content(self.model.exact))


class Sets(Exact):
    """A model of sets of labels, asked for a score for each of `multi_hot`'s columns."""

    def __init__(self, new: Callable[[], AnalyticClassifier], count: int) -> None:
        super().__init__(new, sets)
        self.names = [*range(count), *range(1000, 1005)]

    def predict(self, rows: np.ndarray) -> Any:
        """Return a score for each row and label; 0 for labels that no sample has yet."""
        place = {name: column for column, name in enumerate(self.model.classes_.tolist())}
        found = self.model.decision_function(rows)
        empty = np.zeros(len(rows))
        return np.stack([found[:, place[name]] if name in place else empty for name in self.names], axis=1)


class Means(Exact):
    """Predictions from the means of the classes; with `novel`, how new a row is."""

    def __init__(
        self, new: Callable[[], AnalyticClassifier], by: str, shrinkage: float | None = None, *, novel: bool = False
    ) -> None:
        super().__init__(new)
        self.by, self.shrinkage, self.novel = by, shrinkage, novel

    def _means(self) -> ClassMeans:
        return self.model.means(self.by, self.shrinkage)

    def predict(self, rows: np.ndarray) -> Any:
        """Return the class of the nearest mean of each row, or how far it is."""
        return self._means().novelty(rows) if self.novel else self._means().predict(rows)

    def digest(self) -> str:
        """Return the digest of the means."""
        return self._means().digest()


class Clients(Exact):
    """A federation in which each part is a client with a key of its own."""

    def __init__(self, new: Callable[[], AnalyticClassifier]) -> None:
        super().__init__(new)
        self.federation = Federation(new())
        self.clients: dict[int, AnalyticClassifier] = {}

    def learn(self, rows: np.ndarray, labels: np.ndarray, part: int = 0) -> None:
        """Have a client learn some rows, and bring its part."""
        known = part in self.clients
        client = self.clients.setdefault(part, self.new().set_params(key=None))
        client.partial_fit(rows, labels)
        (self.federation.replace if known else self.federation.join)(str(part), client)
        self.model = self.federation.classifier

    def forget(self, rows: np.ndarray, labels: np.ndarray, part: int = 0) -> None:
        """Have a client forget, and bring its part; with nothing left, it leaves."""
        client = self.clients[part].forget(rows, labels)
        if client.exact is None:
            self.federation.leave(str(part))
            del self.clients[part]
        else:
            self.federation.replace(str(part), client)
        self.model = self.federation.classifier


class Published:
    """A published formula in float64 (`benchmarks.learners.references`), which does not forget.

    Parameters
    ----------
    learner : object
        With ``learn`` and the method that answers.
    asked : callable
        Makes targets of classes.
    answers : callable, optional
        Makes predictions of rows; by default the learner's own ``predict``.
    """

    def __init__(
        self, learner: Any, asked: Asked = classes, answers: Callable[[Any, np.ndarray], Any] | None = None
    ) -> None:
        self.learner, self.asked, self.answers = learner, asked, answers

    def learn(self, rows: np.ndarray, labels: np.ndarray) -> None:
        """Learn one phase."""
        self.learner.learn(rows, self.asked(labels))

    def predict(self, rows: np.ndarray) -> Any:
        """Return the prediction for each row."""
        return self.learner.predict(rows) if self.answers is None else self.answers(self.learner, rows)

    def size(self) -> int:
        """Return the bytes of the arrays that are carried from phase to phase, without the embedding."""
        total = 0
        for name, value in vars(self.learner).items():
            if name not in ("embed", "solved"):
                total += sum(each.nbytes for each in (value if isinstance(value, list) else [value]) if _is_array(each))
        return total


class Repeated(Published):
    """A formula without weights: a row of weight 3 is learned three times."""

    def learn(self, rows: np.ndarray, labels: np.ndarray) -> None:
        """Learn one phase; `asked` gives the classes and the weights."""
        targets, weights = self.asked(labels)
        self.learner.learn(np.repeat(rows, weights, axis=0), np.repeat(targets, weights, axis=0))


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray)


# -- what classes are made into ------------------------------------------------------------------------


def one_hot(count: int) -> Asked:
    """Return a maker of one-hot rows with a column for each of so many classes."""
    return lambda labels: np.eye(count)[labels]


def greatest(ridge: Ridge, rows: np.ndarray) -> np.ndarray:
    """Return the column of the greatest output."""
    columns: np.ndarray = ridge.predict(rows).argmax(axis=1)
    return columns


def novelty(learner: Mahalanobis, rows: np.ndarray) -> np.ndarray:
    """Return how new each row is."""
    return learner.novelty(rows)


def weights(labels: np.ndarray) -> np.ndarray:
    """Return a weight of 1, 2 or 3 for each class."""
    found: np.ndarray = 1 + labels % 3
    return found


def weighted(labels: np.ndarray) -> list[tuple[int, int]]:
    """Return pairs of a class and its weight."""
    return list(zip(labels.tolist(), weights(labels).tolist(), strict=True))


def sets(labels: np.ndarray) -> list[frozenset[int]]:
    """Return two labels for each class: itself, and one of five groups, numbered from 1000."""
    return [frozenset((label, 1000 + label % 5)) for label in labels.tolist()]


def multi_hot(count: int) -> Asked:
    """Return a maker of the same as rows of 0 and 1: so many classes, then five groups."""
    return lambda labels: np.hstack([np.eye(count)[labels], np.eye(5)[labels % 5]])


def scores(learner: Any, rows: np.ndarray) -> np.ndarray:
    """Return a score for each row and label."""
    found: np.ndarray = learner.scores(rows)
    return found


def numbers(labels: np.ndarray) -> np.ndarray:
    """Return two numbers for each class, in steps of 1/8."""
    found: np.ndarray = np.stack([labels % 4, labels // 4], axis=1) / 8
    return found
