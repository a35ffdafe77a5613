"""Previews: a model without some samples. The model itself does not change.

The weights follow from those of the model as after a forget, and are the same, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from neverseen.errors import InputError, NotLearnedError
from neverseen.holdings import FORGET, Change
from neverseen.labels import LabelIndex, as_array, canonical_json, from_text, normalise, text
from neverseen.model.exact import ExactModel
from neverseen.model.frozen import FrozenWeights, scored
from neverseen.targets import Classes, Rows, Targets
from neverseen.targets.rows import added

__all__ = ["LeftOut", "Without"]

Check = Callable[[Change], object]


class Without:
    """A view of a model without some samples. It predicts, and cannot be changed.

    The method `without` of `AnalyticClassifier`, `ForgettingModel` and `Store` makes it. It shares nothing with the
    model: whatever the model learns or forgets later, the view stays the same.

    Attributes
    ----------
    classes_ : ndarray of shape (C,)
        Classes that would be left, sorted.
    counts : int64 ndarray of shape (C,)
        Number of samples of each class.
    held : dict of str to int
        The same numbers, by the canonical texts of the classes.
    targets : Targets
        What labels stand for.

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
        self._weights, self._read, self.targets = weights, read, weights.configuration.targets
        self.classes_ = as_array([from_text(name) for name in weights.classes])
        self.held = {name: counts[name] for name in weights.classes}
        self.counts = np.array(list(self.held.values()), np.int64)
        for array in (self.classes_, self.counts, weights.weights):
            array.flags.writeable = False

    def __len__(self) -> int:
        """Return the number of remaining samples."""
        return self.targets.total(self.held)

    def __bool__(self) -> bool:
        return True  # also if there are none

    def __repr__(self) -> str:
        return f"<Without: {len(self)} samples of {len(self.classes_)} classes are left>"

    def predict(self, samples: Any) -> np.ndarray:
        """Return the class with the greatest score for each sample; raise `NotLearnedError` if there are no classes."""
        return self._weights.predict(self._read(samples))

    def decision_function(self, samples: Any) -> np.ndarray:
        """Return scores: shape (n, C), or (n,) for two classes, like `AnalyticClassifier.decision_function`."""
        return self._weights.decision_function(self._read(samples))

    def predict_proba(self, samples: Any, temperature: float | None = None) -> np.ndarray:
        """Return probabilities, of shape (n, C), like `AnalyticClassifier.predict_proba`."""
        return self._weights.predict_proba(self._read(samples), temperature)

    def score(self, samples: Any, labels: Any) -> float:
        """Return the share of correct predictions."""
        return self._weights.score(self._read(samples), labels)

    def digest(self) -> str:
        """Return the digest of the model without the samples."""
        return self._weights.digest()


class Comparison(NamedTuple):
    """How the predictions of two views for labelled samples differ."""

    shares: tuple[float | None, float | None]  # of correct predictions, or `Targets.score`; None without any samples
    changed: int  # predictions


def compared(now: Without, without: Without, samples: Any, labels: Sequence[Any]) -> Comparison:
    """Compare the predictions of two views.

    If a view holds no samples, it predicts nothing: all classes are wrong, and there is no other score.
    """
    if not now.targets.one_hot:
        return _compared(now.targets, now, without, samples, labels)
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


def _compared(targets: Targets, now: Without, without: Without, samples: Any, labels: Sequence[Any]) -> Comparison:
    if not len(labels):
        return Comparison((None, None), 0)
    answers = [view.predict(samples) if len(view) else None for view in (now, without)]
    first, second = (None if each is None else scored(targets, each, labels) for each in answers)
    said = [[None] * len(labels) if each is None else targets.said(each) for each in answers]
    changed = sum(canonical_json(one) != canonical_json(other) for one, other in zip(*said, strict=True))
    return Comparison((first, second), changed)


class LeftOut(NamedTuple):
    """The prediction for one sample by the model without that sample."""

    label: Any  # the class with the greatest score; with other `neverseen.targets`, their prediction
    # (C,) float64, by the classes of the model; -inf for a class that would be gone; of many rows, their sum
    scores: np.ndarray


def what_if(model: ExactModel, change: Change, check: Check, read: Callable[[Any], np.ndarray]) -> Without:
    """Return the view of a model without the samples that a change forgets.

    Parameters
    ----------
    check : callable
        Raises if the change is not allowed; called with the model locked.
    read : callable
        Turns samples to predict into quantised features.
    """
    apart = _apart(model, change, check)
    with apart.locked(), apart.without(change.quantised, change.labels):
        classes, about = apart.classes, apart.configuration
        if not classes:
            return Without(FrozenWeights(about, 0, [], np.zeros((0, 0), np.int64), apart.hardware), {}, read)
        weights = FrozenWeights(about, apart.n_features, classes, np.array(apart.weights()), apart.hardware)
        return Without(weights, dict(apart.statistics.counts), read)


def left_out(model: ExactModel, change: Change, check: Check) -> Iterator[LeftOut]:
    """Predict each sample that a change forgets with the model without that sample.

    The model is solved once. Then each sample takes two small changes of the sums, there and back, and the same work as
    after a forget of one sample. `check` is that of `what_if`.
    """
    apart = _apart(model, change, check)
    if not len(change):
        return iter(())
    if apart.statistics.total < 2:
        raise NotLearnedError("the model holds one sample: without it there are no classes to choose from")
    return _left_out(apart, change)


def _apart(model: ExactModel, change: Change, check: Check) -> ExactModel:
    """Return a copy of a model, from which samples can be left out; the model itself if there are none."""
    if change.kind != FORGET:
        raise InputError("only samples can be left out: give samples or receipts, or a change that forgets some")
    with model.locked():
        check(change)
        return model.apart() if len(change) else model


def _left_out(apart: ExactModel, change: Change) -> Iterator[LeftOut]:
    about = apart.configuration
    apart.discard_hints()
    apart.solution()  # with nothing followed since, so that every sample can be followed from here
    place = {name: position for position, name in enumerate(apart.classes)}
    for row, name in enumerate(change.classes):
        quantised = change.sample(row)
        with apart.without(quantised, LabelIndex([from_text(name)])):
            found, names = apart.scores(quantised)
            if isinstance(about.targets, Rows):
                label = about.targets.together(found, [len(found)], names, about.grid_bits)[0]
                found = added(found, [len(found)])
            scores = np.full(len(place), -np.inf)
            scores[[place[each] for each in names]] = np.ldexp(found[0].astype(np.float64), -about.grid_bits)
            if isinstance(about.targets, Classes):
                label = from_text(names[int(found.argmax())])
            elif not isinstance(about.targets, Rows):
                label = about.targets.answers(found, names, about.grid_bits)[0]
            yield LeftOut(label, scores)
