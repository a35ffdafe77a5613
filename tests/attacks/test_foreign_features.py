"""The promise: a model takes the features of its own backbone. Those of another pass for nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from neverseen import AnalyticClassifier, ForgettingModel, Identity, InputError, store
from neverseen.backbones import Precomputed
from tests.samples import clustered

X, Y = clustered("foreign features", 40, 4, 2)
ROWS = X.astype(np.float32)


def settings() -> AnalyticClassifier:
    return AnalyticClassifier(Identity(), gamma=2**8, hardware="numpy")


def test_samples_that_were_prepared_with_another_backbone(tmp_path: Path) -> None:
    """They were learned, published and predicted as features of the store's own backbone."""
    other = ForgettingModel(Precomputed(4, "another"), settings())
    with store.create(tmp_path / "store", Precomputed(4), settings()) as model:
        model.learn(ROWS, Y)
        model.publish()
        before, theirs = model.digest(), other.prepare(ROWS)
        for prepared in (theirs, theirs.only([1, 2]), type(theirs).joined([theirs, theirs])):
            labels = Y[: len(prepared)] if len(prepared) <= len(Y) else [*Y, *Y]
            for refused in (
                lambda given=prepared, names=labels: model.learn(given, names),
                lambda given=prepared, names=labels: model.forget(given, names),
                lambda given=prepared, names=labels: model.held_already(given, names),
                lambda given=prepared, names=labels: model.score(given, names),
                lambda given=prepared: model.predict(given),
                lambda given=prepared: model.means().predict(given),
            ):
                with pytest.raises(InputError, match="prepared with another backbone"):
                    refused()
        ours = model.prepare(ROWS)
        assert model.digest() == before
        assert np.array_equal(model.predict(ours), model.predict(ROWS))
        model.forget(ours, Y)
