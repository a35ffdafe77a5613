"""The weights of a model at one moment: they predict, and never change."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from neverseen.engine.arithmetic import GridWeights
from neverseen.errors import ConfigurationError, InputError, NotLearnedError
from neverseen.hardware import Hardware, choose
from neverseen.labels import LabelIndex, as_array, from_text
from neverseen.model.configuration import Configuration, model_digest
from neverseen.model.inputs import label_list
from neverseen.targets import Classes, Targets

CHUNK_ROWS = 32768
"""Samples encoded and summed at a time, to bound memory. Any value gives the same bits."""
_PART = 2**22  # codes or scores of samples that are predicted at a time: 32 MiB of each
_FARTHEST = 600.0  # temperatures by which a score may be behind: farther behind counts as this far
_PER_LN2 = float.fromhex("0x1.71547652b82fep+0")  # 1 / ln 2
_LN2_HIGH, _LN2_LOW = float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33")  # ln 2 is their sum


class FrozenWeights:
    """The weights of a model at one moment, ready to predict.

    Parameters
    ----------
    n_features : int
        Width d0 of the quantised features; 0 if the model held no sample.
    classes : list of str
        Canonical texts, in class order: the columns of the weights.
    weights : int64 ndarray of shape (d, C)
        In grid steps.
    """

    def __init__(
        self,
        configuration: Configuration,
        n_features: int,
        classes: list[str],
        weights: np.ndarray,
        hardware: Hardware | None = None,
    ) -> None:
        self.configuration = configuration
        self.n_features = n_features
        self.classes = classes
        self.weights = weights
        self.hardware = choose("numpy") if hardware is None else hardware
        self._scoring: GridWeights | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self.classes)} classes, {self.n_features} features>"

    def digest(self) -> str:
        """Return the digest of the model, in hex."""
        return model_digest(self.configuration.digest(), self.n_features, self.classes, self.weights)

    def scores(self, quantised: np.ndarray) -> np.ndarray:
        """Return exact scores in grid steps, int64 of shape (n, C), for int8 features of shape (n, d0)."""
        if not self.classes:
            raise NotLearnedError("this model holds no samples, so it has no classes to choose from")
        if quantised.ndim != 2 or quantised.shape[1] != self.n_features or quantised.dtype != np.int8:
            raise InputError(
                f"samples must be int8 features of shape (n, {self.n_features}); "
                f"got {quantised.dtype} of shape {quantised.shape}"
            )
        if self._scoring is None:
            self._scoring = GridWeights(self.weights, self.hardware)
        expand, scored = self.configuration.encoder.expand, self._scoring.scores
        return by_parts(lambda part: scored(expand(part, self.hardware)), quantised, CHUNK_ROWS)

    def predict(self, quantised: np.ndarray) -> np.ndarray:
        """Return the class with the greatest score for each sample, the first among equals; or `Targets.answers`."""
        targets = self.configuration.targets
        if not targets.one_hot:
            answers: np.ndarray = targets.answers(self.scores(quantised), self.classes, self.configuration.grid_bits)
            return answers
        labels: np.ndarray = as_array([from_text(name) for name in self.classes])[self.places(quantised)]
        return labels

    def decision_function(self, quantised: np.ndarray) -> np.ndarray:
        """Return scores in float64, like `AnalyticClassifier.decision_function`."""
        return decision(self.scores(quantised), self.configuration)

    def predict_proba(self, quantised: np.ndarray, temperature: float | None = None) -> np.ndarray:
        """Return probabilities of shape (n, C), like `AnalyticClassifier.predict_proba`."""
        return probabilities(self.scores(quantised), self.configuration, temperature)

    def score(self, quantised: np.ndarray, labels: Any, sample_weight: Any = None) -> float:
        """Return the fraction of samples predicted correctly; for other targets than classes, `Targets.score`."""
        targets = self.configuration.targets
        if targets.one_hot:
            return share_right(self.places(quantised), self.classes, labels, sample_weight)
        return scored(targets, self.predict(quantised), labels, sample_weight)

    def places(self, quantised: np.ndarray) -> np.ndarray:
        """Return the position in `classes` of the class of each sample; see `predict`."""
        return leading(self.scores, quantised, max(self.weights.shape))


def leading(scores: Callable[[np.ndarray], np.ndarray], quantised: np.ndarray, width: int) -> np.ndarray:
    """Return the position of the greatest score of each sample, the first among equals; shape (n,).

    The scores of all samples for all classes may take gigabytes. So `scores` is asked about as many samples at a time
    as have few codes and scores together; one has up to `width` of either.
    """
    rows = max(1, min(CHUNK_ROWS, _PART // max(1, width)))
    return by_parts(lambda part: scores(part).argmax(axis=1), quantised, rows)


def by_parts(answer: Callable[[np.ndarray], np.ndarray], quantised: np.ndarray, rows: int) -> np.ndarray:
    """Return the answers about samples, asked for so many at a time."""
    if len(quantised) <= rows:
        return answer(quantised)
    return np.concatenate([answer(quantised[at : at + rows]) for at in range(0, max(1, len(quantised)), rows)])


def scored(targets: Targets, answers: Any, labels: Any, sample_weight: Any = None) -> float:
    """Return how good predictions of other targets than classes are."""
    if sample_weight is not None:
        raise InputError(f"sample_weight is for classes, and the labels are {targets}: leave it out")
    truth = label_list(labels, any_label=True, targets=targets)
    if not truth or len(truth) != len(answers):
        raise InputError(f"there are {len(answers)} predictions and {len(truth)} labels: give each sample its label")
    return targets.score(answers, truth)


def decision(scores: np.ndarray, configuration: Configuration) -> np.ndarray:
    """Return scores as in scikit-learn, in float64: shape (n, C), or (n,) for two classes, but not for two numbers."""
    if scores.shape[1] == 2 and isinstance(configuration.targets, Classes):
        scores = scores[:, 1] - scores[:, 0]
    return np.ldexp(scores.astype(np.float64), -configuration.grid_bits)


def probabilities(scores: np.ndarray, configuration: Configuration, temperature: float | None) -> np.ndarray:
    """Return a probability for each sample and class, shape (n, C): see `AnalyticClassifier.predict_proba`."""
    if not isinstance(configuration.targets, Classes):
        raise ConfigurationError(f"probabilities need a class for each sample, and {configuration.targets} has none")
    if temperature is None:
        return _nearest(np.ldexp(scores.astype(np.float64), -configuration.grid_bits))
    if isinstance(temperature, bool) or not isinstance(temperature, int | float) or not 1e-6 <= temperature <= 1e6:
        raise InputError(f"temperature must be a number from 1e-6 to 1e6, or None; got {temperature!r}")
    # Two scores differ by less than 2**63: their difference is exact, and then rounded once.
    behind = np.ldexp((scores.max(axis=1, keepdims=True) - scores).astype(np.float64), -configuration.grid_bits)
    powers = _powers(np.minimum(behind / float(temperature), _FARTHEST))
    softened: np.ndarray = powers / np.cumsum(powers, axis=1)[:, -1:]  # added one after the other, in class order
    return softened


def _nearest(values: np.ndarray) -> np.ndarray:
    """Return the probability vector nearest to each row."""
    ranked = -np.sort(-values, axis=1)
    excess = (np.cumsum(ranked, axis=1) - 1) / np.arange(1, values.shape[1] + 1)
    support = (ranked > excess).sum(axis=1) - 1
    nearest: np.ndarray = np.maximum(values - excess[np.arange(len(values)), support][:, None], 0)
    return nearest


def _powers(behind: np.ndarray) -> np.ndarray:
    """Return exp(-t) for each t from 0 to 600, with the same bits everywhere.

    It consists of single IEEE operations in a fixed order, unlike the exponential of a library. With k whole and
    ``r = k ln 2 - t``, it is ``2**-k exp(r)``. ``|r| < 0.35``, so the terms left out of the series are below
    ``0.35**14 / 14! < 2**-57``. ``k < 2**10``, and the high part of ln 2 has 32 bits, so their product is exact. The
    result is at least exp(-600) > 2**-866: it is never 0, nor after a division by a sum of fewer than 2**31 terms.
    """
    halvings = np.rint(behind * _PER_LN2)
    rest = (halvings * _LN2_HIGH - behind) + halvings * _LN2_LOW
    series = np.ones_like(rest)
    for term in range(13, 0, -1):
        series = 1 + rest * series / term
    powers: np.ndarray = np.ldexp(series, -halvings.astype(np.int32))
    return powers


def share_right(places: np.ndarray, names: Iterable[str], labels: Any, sample_weight: Any = None) -> float:
    """Return the share of correct predictions, given their places in `names`, canonical texts."""
    index = LabelIndex(label_list(labels, any_label=True))
    if len(places) != len(index.positions):
        raise InputError(
            f"inconsistent numbers of samples and labels: {len(places)} and {len(index.positions)}. Give each sample "
            "its label"
        )
    if sample_weight is not None and len(sample_weight) != len(places):
        raise InputError(
            f"inconsistent numbers of samples and weights: {len(places)} and {len(sample_weight)}. Give each sample "
            "its weight"
        )
    held = {name: position for position, name in enumerate(names)}
    truth = np.array([held.get(name, -1) for name in index.texts], dtype=np.intp)[index.positions]
    return float(np.average(places == truth, weights=sample_weight))
