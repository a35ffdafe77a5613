"""Exported weights answer as the model does, or are refused: no score wraps, and no answer is made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neverseen import AnalyticClassifier, Identity, LimitError
from neverseen.encoding import quantise
from neverseen.io.tensorfile import pack, unpack
from neverseen.model.onnx_graph import graph_of
from neverseen.model.versions import Version, read_version, write_version
from neverseen.targets import LabelSets, Numbers, Targets, WeightedClasses

ROWS = np.random.default_rng(0).normal(size=(16, 16)).astype(np.float32)


def version_of(targets: Targets | None, labels: list[Any], grid_bits: int = 40) -> Version:
    model = AnalyticClassifier(Identity(), gamma=1, targets=targets, grid_bits=grid_bits).fit(ROWS, labels)
    return Version.of(model.exact)  # type: ignore[arg-type]


def test_scores_that_wrap() -> None:
    """As many samples as codes, and gamma = 1: the weights are so large that 64 bits do not hold every score."""
    torch = pytest.importorskip("torch")
    from neverseen.model.torch_head import TorchHead

    labels = [[-4000.0, 4000.0][row % 2] for row in range(16)]
    large, small = version_of(Numbers(), labels), version_of(Numbers(), labels, grid_bits=20)
    codes = quantise(np.sign(large.weights[:, :1].T))
    assert abs((codes.astype(object) @ large.weights.astype(object)).item()) >= 2**63
    for use in (lambda: large.scores(codes), lambda: TorchHead(large), lambda: graph_of(large)):
        with pytest.raises(LimitError, match="too large for 64-bit scores"):
            use()
    assert np.array_equal(TorchHead(small).scores(torch.from_numpy(ROWS)).numpy(), small.scores(quantise(ROWS)))


@pytest.mark.parametrize("weight", [-(2**63), 2**63 - 1])
def test_the_least_integer(tmp_path: Path, weight: int) -> None:
    """Its magnitude is no int64: a file of a version that had it passed the bound, and its scores were wrong."""
    write_version(tmp_path / "v", version_of(None, ["cat", "dog"] * 8))
    about, tensors = unpack(tmp_path / "v", "neverseen-version-1")
    tensors["weights"] = np.zeros_like(tensors["weights"])
    tensors["weights"][0, 0] = weight
    (tmp_path / "v").write_bytes(b"".join(map(bytes, pack(about, tensors))))
    version = read_version(tmp_path / "v")
    for use in (lambda: version.scores(quantise(ROWS)), lambda: graph_of(version)):
        with pytest.raises(LimitError, match="too large for 64-bit scores"):
            use()


@pytest.mark.parametrize(
    ("targets", "labels", "has"),
    [
        (None, ["cat", "dog"] * 8, True),
        (WeightedClasses(), [("cat", 3), ("dog", 1)] * 8, True),
        (LabelSets(), [["red", "round"], []] * 8, False),
        (Numbers(2), [[1.0, 2.0], [0.0, -1.0]] * 8, False),
    ],
    ids=["classes", "weighted", "sets", "numbers"],
)
def test_the_best_of_what_are_no_classes(targets: Targets | None, labels: list[Any], has: bool) -> None:
    """The greatest score of a label set is mostly that of the sample itself, and that of numbers is no number."""
    assert (b"ArgMax" in graph_of(version_of(targets, labels))) == has
