"""What if: a model as it would be without some samples. The model itself stays as it is.

The weights follow from those of the model as they would after a forget, and are the same, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from neverseen.errors import NotLearnedError
from neverseen.holdings import Change
from neverseen.labels import LabelIndex, as_array, from_text, normalise, text
from neverseen.model.exact import ExactModel
from neverseen.model.frozen import FrozenWeights, decision, probabilities, share_right

__all__ = ["LeftOut", "Without"]


class Without:
    """A model as it would be if some samples were forgotten: it answers, and cannot be changed.

    Made by the method `without` of `AnalyticClassifier`, `ForgettingModel` and `Store`. It has nothing in common with
    the model it comes from: whatever the model learns or forgets later, the answers stay the same.

    Attributes
    ----------
    classes_ : ndarray of shape (C,)
        Classes that would be left, sorted.
    counts : int64 ndarray of shape (C,)
        How many samples of each.
    held : dict of str to int
        The same, by the canonical texts of the classes.

    Examples
    --------
    >>> import numpy as np
    >>> from neverseen import AnalyticClassifier, RandomProjection
    >>> X = np.random.default_rng(0).normal(size=(60, 5)); y = np.where(X[:, 0] > 0, "cat", "dog")
    >>> model = AnalyticClassifier(RandomProjection(32, seed=0), gamma=2**12).fit(X, y)
    >>> view = model.without(X[:20], y[:20])
    >>> len(view), view.score(X[:20], y[:20]) <= model.score(X[:20], y[:20])
    (40, True)
    >>> view.digest() == model.digest(), view.digest() == model.forget(X[:20], y[:20]).digest()
    (False, True)
    """

    def __init__(self, weights: FrozenWeights, counts: dict[str, int], read: Callable[[Any], np.ndarray]) -> None:
        self._weights, self._read = weights, read
        self.classes_ = as_array([from_text(name) for name in weights.classes])
        self.held = {name: counts[name] for name in weights.classes}
        self.counts = np.array(list(self.held.values()), np.int64)
        for array in (self.classes_, self.counts, weights.weights):
            array.flags.writeable = False

    @classmethod
    def of(cls, apart: ExactModel, change: Change, read: Callable[[Any], np.ndarray]) -> Without:
        """Return a model that is `ExactModel.apart` without samples that it holds; without none, any model will do.

        `read` makes quantised features of what the view is to answer about.
        """
        with apart.locked(), apart.without(change.quantised, change.labels):
            classes, about = apart.classes, apart.configuration
            if not classes:
                return cls(FrozenWeights(about, 0, [], np.zeros((0, 0), np.int64), apart.hardware), {}, read)
            weights = FrozenWeights(about, apart.n_features, classes, np.array(apart.weights()), apart.hardware)
            return cls(weights, dict(apart.statistics.counts), read)

    def __len__(self) -> int:
        """Return how many samples would be left."""
        return int(self.counts.sum())

    def __bool__(self) -> bool:
        return True  # also if none would be

    def predict(self, samples: Any) -> np.ndarray:
        """Return the class of greatest score for each sample; raise `NotLearnedError` if no class would be left."""
        return self._weights.predict(self._read(samples))

    def decision_function(self, samples: Any) -> np.ndarray:
        """Return scores: shape (n, C), or (n,) for two classes, as `AnalyticClassifier.decision_function` does."""
        return decision(self._weights.scores(self._read(samples)), self._weights.configuration.grid_bits)

    def predict_proba(self, samples: Any) -> np.ndarray:
        """Return probabilities, of shape (n, C), as `AnalyticClassifier.predict_proba` does."""
        return probabilities(self._weights.scores(self._read(samples)), self._weights.configuration.grid_bits)

    def score(self, samples: Any, labels: Any) -> float:
        """Return the share of samples whose class is predicted right."""
        return share_right(self._weights.scores(self._read(samples)), self._weights.classes, labels)

    def digest(self) -> str:
        """Return the digest that the model would have."""
        return self._weights.digest()


class Comparison(NamedTuple):
    """How what a model says about labelled samples differs from what it would say."""

    shares: tuple[float | None, float | None]  # of samples predicted right, now and without; None of no samples
    changed: int  # predictions


def compared(now: Without, without: Without, samples: Any, labels: Sequence[Any]) -> Comparison:
    """Return how two views differ on samples; where one has no classes, all its predictions are wrong."""
    truth = [text(normalise(label)) for label in labels]
    said = [
        [text(normalise(name)) for name in view.predict(samples)] if truth and len(view) else [None] * len(truth)
        for view in (now, without)
    ]
    first, second = (
        sum(one == other for one, other in zip(each, truth, strict=True)) / len(truth) if truth else None
        for each in said
    )
    return Comparison((first, second), sum(one != other for one, other in zip(*said, strict=True)))


class LeftOut(NamedTuple):
    """What a model says about one of its samples without having learned it."""

    label: Any  # the class of greatest score
    scores: np.ndarray  # (C,) float64, by the classes of the model; -inf for a class that would be gone


def left_out(apart: ExactModel, change: Change) -> Iterator[LeftOut]:
    """Return, for each sample of a change, what the model without that one sample says about it.

    `apart` is a model that is `ExactModel.apart` and holds them. It is solved once. Then each sample takes two small
    changes of its sums, there and back, and the work that follows a forget of one sample.
    """
    if not len(change):
        return iter(())
    if apart.statistics.total < 2:
        raise NotLearnedError("the model holds one sample: without it there are no classes to choose from")
    return _left_out(apart, change)


def _left_out(apart: ExactModel, change: Change) -> Iterator[LeftOut]:
    apart.discard_hints()
    apart.solution()  # with nothing followed since, so that every sample can be followed from here
    place = {name: position for position, name in enumerate(apart.classes)}
    for row, name in enumerate(change.classes):
        quantised = change.quantised[row : row + 1]
        with apart.without(quantised, LabelIndex([from_text(name)])):
            (found,), names = apart.scores(quantised)
            scores = np.full(len(place), -np.inf)
            scores[[place[each] for each in names]] = np.ldexp(found.astype(np.float64), -apart.configuration.grid_bits)
            yield LeftOut(from_text(names[int(found.argmax())]), scores)
