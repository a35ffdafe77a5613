"""The head as a PyTorch module: the model's own scores, whatever surrounds it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from neverseen import (
    AnalyticClassifier,
    ConfigurationError,
    ForgettingModel,
    GaussianKernel,
    Identity,
    InputError,
    NotLearnedError,
    RandomProjection,
    TwoStreams,
)
from neverseen.encoding import Encoder
from neverseen.model.configuration import Configuration
from neverseen.model.versions import Version
from tests.samples import clustered, features

torch = pytest.importorskip("torch")
from neverseen.backbones import Images, TorchBackbone  # noqa: E402
from neverseen.model.torch_head import TorchHead  # noqa: E402

WIDTH = 11
X, Y = clustered("torch head", 80, WIDTH, 4)
ENCODERS: dict[str, Encoder] = {
    "identity": Identity(),
    "projection": RandomProjection(48, seed=3),
    "kernel": GaussianKernel(features("centres of a head", 20, WIDTH), 0.5),
    "gelu": RandomProjection(48, seed=3, activation="gelu"),
    "sign": RandomProjection(48, seed=3, activation="sign", scale=0.3),
    "scaled kernel": GaussianKernel(features("centres of a head", 20, WIDTH), 0.5, scale=1.5),
    "two streams": TwoStreams(24, seed=3),
}


def version(encoder: Encoder, **more: Any) -> Version:
    model = AnalyticClassifier(encoder, 2**9, hardware="numpy", **more).fit(X, Y)
    return Version.of(model.exact)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ENCODERS)
@pytest.mark.parametrize("grid_bits", [1, 40, 50])
def test_the_scores_are_the_models(kind: str, grid_bits: int) -> None:
    weights = version(ENCODERS[kind], grid_bits=grid_bits)
    head = TorchHead(weights)
    assert head.labels == [0, 1, 2, 3]
    rows = np.concatenate([X, features("others", 300, WIDTH), np.zeros((1, WIDTH)), np.eye(WIDTH)]).astype(np.float32)
    for given in (rows, rows * np.float32(2.0**-140), rows * np.float32(2.0**120), rows / 3, rows[:1], rows[:0]):
        expected = weights.scores(ENCODERS[kind].quantise(given))
        scores = head.scores(torch.from_numpy(given))
        assert scores.dtype == torch.int64
        np.testing.assert_array_equal(scores.numpy(), expected)
        np.testing.assert_array_equal(
            head(torch.from_numpy(given)).numpy(), np.ldexp(expected.astype(float), -grid_bits)
        )
        if len(given):
            np.testing.assert_array_equal(scores.argmax(dim=1).numpy(), expected.argmax(axis=1))


@pytest.mark.parametrize("kind", ENCODERS)
def test_what_is_done_to_the_network_around_it_changes_nothing(kind: str) -> None:
    weights = version(ENCODERS[kind])
    rows = torch.from_numpy(X.astype(np.float32))
    quantise = ENCODERS[kind].quantise
    expected = weights.scores(quantise(X.astype(np.float32)))
    network = torch.nn.Sequential(torch.nn.Identity(), TorchHead(weights))
    for change in (network.half, network.float, network.bfloat16, network.eval, network.train):
        change()
        np.testing.assert_array_equal(network[1].scores(rows).numpy(), expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        np.testing.assert_array_equal(network[1].scores(rows).numpy(), expected)
    rough = rows.half()
    np.testing.assert_array_equal(network[1].scores(rough).numpy(), weights.scores(quantise(rough.numpy())))
    again = TorchHead(version(ENCODERS[kind]))
    again.load_state_dict(network[1].state_dict())
    np.testing.assert_array_equal(again.scores(rows).numpy(), expected)


def test_it_takes_no_part_in_training() -> None:
    head = TorchHead(version(Identity()))
    assert list(head.parameters()) == []
    assert not head(torch.ones(2, WIDTH, requires_grad=True)).requires_grad


def test_behind_its_network_it_answers_as_the_model_does() -> None:
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, WIDTH))
    backbone = TorchBackbone(network, Images(8), name="small", device="cpu")
    images = np.random.default_rng(0).integers(0, 256, (30, 8, 8, 3), np.uint8)
    model = ForgettingModel(backbone, AnalyticClassifier(RandomProjection(32), 2**9, hardware="numpy"))
    receipts = model.learn(images, [row % 3 for row in range(30)])
    model.forget(receipts[:6])
    head = TorchHead(Version.of(model.classifier.exact))  # type: ignore[arg-type]
    scores = head(torch.from_numpy(np.asarray(backbone.extract(list(images)))))
    np.testing.assert_array_equal(scores.numpy(), model.decision_function(images))


@pytest.mark.parametrize(
    "given",
    [
        torch.ones(WIDTH),
        torch.ones(2, WIDTH + 1),
        torch.ones(2, WIDTH, dtype=torch.float64),
        torch.ones(2, WIDTH).int(),
    ],
    ids=["one row", "too wide", "float64", "integers"],
)
def test_other_features_are_refused(given: Any) -> None:
    with pytest.raises(InputError, match="features must be float32, or narrower, of shape"):
        TorchHead(version(Identity())).scores(given)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_features_that_are_not_finite_are_refused(bad: float) -> None:
    with pytest.raises(InputError, match="NaN or infinity"):
        TorchHead(version(Identity())).scores(torch.tensor([[1.0] * (WIDTH - 1) + [bad]]))


def test_models_without_a_head() -> None:
    with pytest.raises(NotLearnedError, match="no scores"):
        TorchHead(Version.empty(Configuration(Identity(), 1, 40)))

    class Other(Identity):
        def add_to(self, graph: Any, quantised: str, n_features: int) -> str:
            return str(graph.add("Sin", quantised))

    with pytest.raises(ConfigurationError, match="the operation Sin, which a TorchHead does not"):
        TorchHead(version(Other()))
