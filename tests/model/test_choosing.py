"""`choose_gamma`: a pure function of samples, whoever holds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from neverseen import (
    AnalyticClassifier,
    ConfigurationError,
    ForgettingModel,
    Identity,
    InputError,
    Key,
    Keyring,
    RandomProjection,
    ReceiptRejectedError,
    choose_gamma,
    store,
)
from neverseen.backbones import Precomputed
from neverseen.targets import Classes, LabelSets, Numbers, Targets, WeightedClasses
from tests import oracle
from tests.samples import clustered

WIDTH, COUNT = 4, 14
X, NUMBERS = clustered("choosing", COUNT, WIDTH, 3)
Y = np.array(["ant", "bee", "cow"])[NUMBERS]
KEYS = Keyring(Key(bytes([7] * 32)), [Key(bytes([8] * 32))])


def expected(encoder: Any, rows: Any, labels: Any, targets: Targets | None = None) -> int:
    targets = Classes() if targets is None else targets
    texts = [oracle.label_text(targets.label(each)) for each in labels]
    found = targets.columns(texts).values
    return oracle.gamma_by_leaving_out(encoder.encode(rows).tolist(), found.tolist())


@pytest.mark.parametrize("encoder", [Identity(), RandomProjection(5, seed=3)], ids=str)
def test_the_choice_is_the_oracles(encoder: Any) -> None:
    model = AnalyticClassifier(encoder, 2**5)
    before = dict(vars(model))
    gamma = choose_gamma(model, X, Y)
    assert gamma == expected(encoder, X, Y)
    assert vars(model) == before  # nothing was noted in it
    order = np.random.default_rng(0).permutation(COUNT)
    held = clone(model).fit(X[:3], Y[:3])
    digest = held.digest()
    assert choose_gamma(held, X[order], Y[order]) == gamma
    assert choose_gamma(AnalyticClassifier(encoder, "auto"), X, Y.tolist()) == gamma
    assert held.digest() == digest


def test_receipts_choose_as_their_samples_do(tmp_path: Path) -> None:
    classifier = AnalyticClassifier(RandomProjection(5, seed=3))
    gamma = choose_gamma(classifier, X.astype(np.float32), Y)
    model = ForgettingModel(Precomputed(WIDTH), classifier, KEYS)
    receipts = model.learn(X, Y)
    assert choose_gamma(model, receipts) == gamma == choose_gamma(model, X, Y)
    model.forget(receipts[:4])
    left = choose_gamma(model, receipts[4:])
    assert left == choose_gamma(clone(classifier).set_params(backbone=None), X[4:].astype(np.float32), Y[4:])
    with store.create(tmp_path / "s", Precomputed(WIDTH), clone(classifier), keys=KEYS) as made:
        receipts = made.learn(X, Y)
        assert choose_gamma(made, receipts) == gamma
        assert made.status()["samples"] == COUNT


@pytest.mark.parametrize(
    ("targets", "labels"),
    [(LabelSets(), [["a"], ["a", "b"], [], ["c"]] * 3), (Numbers(2), [[0.5, 1.0], [-3.0, 0.25], [0.0, 2.0]] * 4)],
    ids=["sets", "numbers"],
)
def test_sets_and_numbers_choose_too(targets: Targets, labels: list[Any]) -> None:
    model = AnalyticClassifier(Identity(), targets=targets)
    assert choose_gamma(model, X[:12], labels) == expected(Identity(), X[:12], labels, targets)


def test_what_cannot_choose_is_refused() -> None:
    model = AnalyticClassifier(Identity())
    with pytest.raises(InputError, match="to leave one sample out, there must be two; got 1"):
        choose_gamma(model, X[:1], Y[:1])
    with pytest.raises(InputError, match="requires y to be passed"):
        choose_gamma(model, X)
    with pytest.raises(ConfigurationError, match="counts all samples alike, and weights do not"):
        choose_gamma(AnalyticClassifier(Identity(), targets=WeightedClasses()), X[:2], [("a", 1), ("b", 2)])
    with pytest.raises(ConfigurationError, match="counts all samples alike, and weights do not"):
        choose_gamma(AnalyticClassifier(Identity(), track_classes=True, class_weight="balanced"), X, Y)
    holding = ForgettingModel(Precomputed(WIDTH), AnalyticClassifier(Identity()), KEYS)
    receipts = holding.learn(X, Y)
    with pytest.raises(InputError, match="a receipt is listed twice"):
        choose_gamma(holding, [*receipts, receipts[0]])
    other = ForgettingModel(Precomputed(WIDTH), AnalyticClassifier(Identity()), Keyring.generate())
    with pytest.raises(ReceiptRejectedError):
        choose_gamma(other, receipts)
