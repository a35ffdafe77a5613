"""Recipes: a store makes its backbone again, or says at once that it cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neverseen import AnalyticClassifier, RandomProjection, store
from neverseen.backbones import Cached, Images, OnnxBackbone, PerSample, Precomputed, TorchBackbone, recipes
from neverseen.errors import ConfigurationError, FileRejectedError
from neverseen.service.operations.settings import Settings
from neverseen.service.reception.reception import bounds_of
from tests.networks_for_stores import Letters, linear_network
from tests.samples import clustered, uniform_bytes

ROWS, NUMBERS = clustered("recipes", 12, 8, 2)
PIXELS = [uniform_bytes(f"recipe {row}", 8, 8, 3) for row in range(4)]


def classifier() -> AnalyticClassifier:
    return AnalyticClassifier(RandomProjection(16), gamma=64)


def test_rows_of_features(tmp_path: Path) -> None:
    store.create(tmp_path / "s", Precomputed(8, "measured"), classifier()).close()
    with store.open(tmp_path / "s") as model:
        assert model.description.backbone["recipe"] == {"kind": "features", "n_features": 8, "name": "measured"}
        model.learn(ROWS, NUMBERS)
        model.publish()
        assert model.predict(ROWS).shape == (12,)


def test_a_cache_is_as_what_it_caches(tmp_path: Path) -> None:
    store.create(tmp_path / "s", Cached(Precomputed(8), tmp_path / "cache"), classifier()).close()
    with store.open(tmp_path / "s") as model:
        assert len(model.learn(ROWS, NUMBERS)) == 12


@pytest.mark.parametrize("recipe", [{"kind": "python", "module": "os"}, {"kind": 3}, {}, "minilm", ["onnx"]])
def test_a_recipe_that_nobody_can_follow_is_refused(tmp_path: Path, recipe: Any) -> None:
    with pytest.raises(ConfigurationError, match="a recipe is a dict whose kind is one of"):
        store.create(tmp_path / "s", Precomputed(8), recipe=recipe)
    assert not (tmp_path / "s").exists()


def test_a_backbone_without_a_recipe(tmp_path: Path) -> None:
    with store.create(tmp_path / "s", Letters(), classifier()) as model:
        receipts = model.learn(["abc", "xyz"], ["a", "b"])
        model.publish()
    with store.open(tmp_path / "s") as model:
        assert model.description.backbone == {"name": "letters", "recipe": None}
        with pytest.raises(ConfigurationError, match="its folder does not say how to make it"):
            model.learn(["more"], ["a"])
        features = Letters().extract(["abc"])  # made elsewhere
        assert model.predict(features).tolist() == ["a"]
        assert len(model.learn(features, ["a"])) == 1
        model.forget(receipts[0])
    with store.open(tmp_path / "s", backbone=Letters()) as model:
        model.learn(["more"], ["a"])


class Mine(Precomputed):
    takes = "texts"


class Odd(Precomputed):
    takes: Any = ("texts",)


def test_a_backbone_says_what_it_takes(tmp_path: Path) -> None:
    assert recipes.kind_of(Precomputed(8)) == "features"
    assert recipes.kind_of(Mine(8)) == "texts"
    assert recipes.kind_of(Cached(Mine(8), tmp_path)) == "texts"
    assert bounds_of(Mine(8), Settings()).kind == "texts"
    for odd in (Odd(8), Cached(Odd(8), tmp_path)):
        with pytest.raises(ConfigurationError, match="precomputed does not say which samples it takes"):
            recipes.kind_of(odd)


def test_a_network_takes_what_its_preprocessing_takes(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    preprocess = PerSample(len)
    made = TorchBackbone(torch.nn.Linear(1, 8), preprocess, name="n", n_features=8, preprocess_id="1")
    assert recipes.kind_of(made) == "images"
    made.takes = "texts"
    made.save_weights(tmp_path / "weights")
    assert recipes.kind_of(made.with_weights(tmp_path / "weights")) == "texts"


def network(tmp_path: Path) -> OnnxBackbone:
    path = tmp_path / "network.onnx"
    path.write_bytes(linear_network(8))
    return OnnxBackbone(path, Images(size=4), name="linear")


def test_a_network_in_an_onnx_file_goes_into_the_folder(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime"), pytest.importorskip("onnx")
    given = network(tmp_path)
    with store.create(tmp_path / "s", given, classifier()) as model:
        model.learn(PIXELS, list("aabb"))
        model.publish()
        expected = model.predict(PIXELS).tolist()
    (tmp_path / "network.onnx").unlink()
    with store.open(tmp_path / "s", write=False) as model:
        assert model.predict(PIXELS).tolist() == expected
        assert bounds_of(model.backbone, Settings()).kind == "images"
        assert recipes.kind_of(model.backbone) == "images"
    assert recipes.takes(json.loads((tmp_path / "s" / "store.json").read_bytes())["backbone"]["recipe"]) == "images"


def test_a_network_that_is_another_by_now_is_not_kept(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime"), pytest.importorskip("onnx")
    given = network(tmp_path)
    (tmp_path / "network.onnx").write_bytes(linear_network(8, seed=1))
    with store.create(tmp_path / "s", given, classifier()) as model:
        assert model.description.backbone["recipe"] is None
    assert not (tmp_path / "s" / recipes.FILE).exists()


def test_a_preprocessing_that_cannot_be_told_is_not_kept(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime"), pytest.importorskip("onnx")
    (tmp_path / "network.onnx").write_bytes(linear_network(8))
    given = OnnxBackbone(tmp_path / "network.onnx", Images(size=4), preprocess_id="mine")
    with store.create(tmp_path / "s", given, classifier()) as model:
        assert model.description.backbone["recipe"] is None
    assert not (tmp_path / "s" / recipes.FILE).exists()


def test_a_damaged_network_is_told(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime"), pytest.importorskip("onnx")
    store.create(tmp_path / "s", network(tmp_path), classifier()).close()
    path = tmp_path / "s" / recipes.FILE
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    with (
        store.open(tmp_path / "s") as model,
        pytest.raises(FileRejectedError, match="is not the network that the store"),
    ):
        model.learn(PIXELS, list("aabb"))
    path.unlink()
    with store.open(tmp_path / "s") as model, pytest.raises(FileRejectedError, match="is missing"):
        model.learn(PIXELS, list("aabb"))


def test_what_is_made_is_compared_with_the_stores_digest(tmp_path: Path) -> None:
    store.create(tmp_path / "s", Letters(), classifier()).close()
    path = tmp_path / "s" / "store.json"
    about = json.loads(path.read_bytes())
    about["backbone"]["recipe"] = {"kind": "features", "n_features": 8, "name": "letters"}
    path.write_text(json.dumps(about), "utf-8")
    with store.open(tmp_path / "s") as model, pytest.raises(ConfigurationError, match="made with another backbone"):
        model.learn(np.zeros((1, 8)), ["a"])
