"""Probabilities with a temperature: the bits of the specification, never 0, and the same from every face."""

from __future__ import annotations

from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neverseen import AnalyticClassifier, ConfigurationError, ForgettingModel, Identity, InputError, RandomProjection
from neverseen.backbones import Precomputed
from neverseen.encoding import quantise
from neverseen.model.configuration import Configuration
from neverseen.model.frozen import probabilities
from neverseen.model.versions import Version
from neverseen.targets import LabelSets
from tests import oracle
from tests.samples import clustered

X, Y = clustered("probabilities", 60, 6, 4)
SCORES = st.integers(-(2**62) + 1, 2**62 - 1) | st.integers(-(2**42), 2**42)


def classifier(**more: Any) -> AnalyticClassifier:
    return AnalyticClassifier(RandomProjection(24, seed=1), 2**9, hardware="numpy", **more)


def softened(scores: list[list[int]], grid_bits: int, temperature: float) -> np.ndarray:
    return probabilities(np.array(scores, np.int64), Configuration(Identity(), 1, grid_bits), temperature)


@given(st.lists(SCORES, min_size=1, max_size=7), st.integers(1, 52), st.floats(1e-6, 1e6))
def test_the_bits_are_those_of_the_specification(scores: list[int], grid_bits: int, temperature: float) -> None:
    (found,) = softened([scores], grid_bits, temperature).tolist()
    assert found == oracle.softened(scores, grid_bits, temperature)
    assert min(found) > 0
    assert abs(sum(found) - 1) < 1e-14
    assert found[scores.index(max(scores))] == max(found)


@given(st.lists(st.integers(-(2**42), 2**42), min_size=2, max_size=7), st.sampled_from([0.01, 0.1, 1.0, 3.0]))
def test_they_are_the_softmax(scores: list[int], temperature: float) -> None:
    (found,) = softened([scores], 40, temperature).tolist()
    with localcontext() as context:
        context.prec = 60
        heats = [Decimal(score - max(scores)) / 2**40 / Decimal(temperature) for score in scores]
        powers = [max(heat, Decimal(-600)).exp() for heat in heats]
        for probability, power in zip(found, powers, strict=True):
            wanted = power / sum(powers)
            assert abs(Decimal(probability) - wanted) <= wanted * Decimal("2e-13"), (probability, wanted)


def test_the_other_rows_of_a_batch_change_no_bit() -> None:
    model = classifier().fit(X, Y)
    whole = model.predict_proba(X, temperature=0.1)
    assert whole.shape == (60, 4)
    assert whole.min() > 0
    assert np.array_equal(whole, np.concatenate([model.predict_proba(row[None], 0.1) for row in X]))
    assert np.array_equal(whole.argmax(axis=1), model.decision_function(X).argmax(axis=1))
    assert (model.predict_proba(X) == 0).any()  # without a temperature, as ever


def test_every_face_gives_the_same() -> None:
    settings = classifier()
    model = ForgettingModel(Precomputed(6), settings)
    receipts = model.learn(X, Y)
    view = model.without(receipts[:20])
    model.forget(receipts[:20])
    inside = model.classifier
    version = Version.of(inside.exact)  # type: ignore[arg-type]
    for temperature in (None, 0.1, np.float64(2), 3):
        wanted = inside.predict_proba(X, temperature)
        assert np.array_equal(model.predict_proba(X, temperature), wanted)
        assert np.array_equal(view.predict_proba(X, temperature), wanted)
        assert np.array_equal(version.predict_proba(quantise(X), temperature), wanted)
    assert np.array_equal(model.decision_function(X), inside.decision_function(X))
    assert np.array_equal(version.decision_function(quantise(X)), inside.decision_function(X))


@pytest.mark.parametrize("temperature", [0, -1.0, 1e-7, 1e7, float("nan"), float("inf"), True, "1"])
def test_other_temperatures_are_refused(temperature: Any) -> None:
    with pytest.raises(InputError, match="temperature must be a number from 1e-6 to 1e6, or None"):
        classifier().fit(X, Y).predict_proba(X, temperature)


def test_targets_without_classes_have_no_probabilities() -> None:
    model = classifier(targets=LabelSets()).partial_fit(X, [{int(label)} for label in Y])
    for asked in (model, model.without(X[:5], [{int(label)} for label in Y[:5]])):
        with pytest.raises(ConfigurationError, match="probabilities need a class for each sample"):
            asked.predict_proba(X)
