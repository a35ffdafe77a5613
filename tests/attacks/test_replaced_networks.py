"""The promise: a store makes no other network than the one it was made with.

The attack: put another network into the store's folder, and let its recipe say that this one stands for the right one.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from neverseen import AnalyticClassifier, RandomProjection, store
from neverseen.backbones import Images, OnnxBackbone
from neverseen.backbones.recipes import FILE
from neverseen.errors import ConfigurationError
from neverseen.labels import canonical_json
from tests.networks_for_stores import linear_network
from tests.samples import uniform_bytes

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")
PIXELS = [uniform_bytes(f"replaced {row}", 8, 8, 3) for row in range(4)]


def network(path: Path, seed: int = 0, stands_for: str | None = None) -> OnnxBackbone:
    path.write_bytes(linear_network(8, seed=seed))
    return OnnxBackbone(path, Images(size=4), name="linear", stands_for=stands_for)


def test_a_recipe_cannot_say_what_its_network_stands_for(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    good = network(tmp_path / "network.onnx")
    with store.create(folder, good, AnalyticClassifier(RandomProjection(16), gamma=64)) as made:
        made.learn(PIXELS, list("aabb"))
        made.publish()
    about = json.loads((folder / "store.json").read_bytes())
    other = linear_network(8, seed=1)
    (folder / FILE).write_bytes(other)
    about["backbone"]["recipe"] |= {"sha256": hashlib.sha256(other).hexdigest(), "stands_for": good.digest()}
    (folder / "store.json").write_text(canonical_json(about) + "\n")
    with store.open(folder) as made:
        for act in (lambda: made.predict(PIXELS), lambda: made.learn(PIXELS, list("aabb"))):
            with pytest.raises(ConfigurationError, match=r"nothing can check that: give the backbone yourself"):
                act()
    with store.open(folder, backbone=good) as made:  # what to do
        assert made.predict(PIXELS).shape == (4,)


def test_no_recipe_is_written_for_a_network_that_stands_for_another(tmp_path: Path) -> None:
    given = network(tmp_path / "network.onnx", 1, network(tmp_path / "first.onnx").digest())
    with store.create(tmp_path / "s", given) as made:
        assert made.description.backbone["recipe"] is None
    assert not (tmp_path / "s" / FILE).exists()
    with store.open(tmp_path / "s", backbone=given) as made:
        made.learn(PIXELS, list("aabb"))
