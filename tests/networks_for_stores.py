"""Backbones as an operator would write them, for ``--backbone tests.networks_for_stores:...``."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from neverseen.backbones import as_list, decoded
from neverseen.errors import InputError


class Letters:
    """A network that counts letters."""

    name = "letters"
    n_features = 8
    takes = "texts"

    def extract(self, samples: Any) -> np.ndarray:
        features = np.zeros((len(as_list(samples)), 8), np.float32)
        for row, sample in enumerate(as_list(samples)):
            text = decoded(sample)
            if not isinstance(text, str):
                raise InputError("this backbone takes texts")
            for letter in text:
                features[row, ord(letter) % 8] += 1
        return features

    def digest(self) -> str:
        return hashlib.sha256(b"letters").hexdigest()


class Brightness:
    """A network that sees how bright eight stripes of an image are."""

    name = "brightness"
    n_features = 8
    takes = "images"

    def extract(self, samples: Any) -> np.ndarray:
        features = np.zeros((len(as_list(samples)), 8), np.float32)
        for row, sample in enumerate(as_list(samples)):
            pixels = decoded(sample)
            if isinstance(pixels, str) or pixels.ndim != 3:
                raise InputError("this backbone takes images")
            features[row] = [part.mean() for part in np.array_split(pixels.astype(np.float32), 8)]
        return features

    def digest(self) -> str:
        return hashlib.sha256(b"brightness").hexdigest()


class Other(Letters):
    """Another network of the same size."""

    name = "other"

    def digest(self) -> str:
        return hashlib.sha256(b"other").hexdigest()


class Silent(Letters):
    """Does not say what it takes."""

    name = "silent"
    takes = ""


ready_made = Letters()


def failing() -> Letters:
    raise ZeroDivisionError("divided by zero")


def nonsense() -> str:
    return "no backbone"


def linear_network(n_features: int, seed: int = 0, size: int = 4) -> bytes:
    """A linear network on images of one size, as the bytes of an ONNX file."""
    import onnx

    helper, kinds = onnx.helper, onnx.TensorProto
    weights = np.random.default_rng(seed).normal(size=(3 * size * size, n_features)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Flatten", ["samples"], ["flat"]),
            helper.make_node("MatMul", ["flat", "weights"], ["features"]),
        ],
        "linear",
        [helper.make_tensor_value_info("samples", kinds.FLOAT, ["n", 3, size, size])],
        [helper.make_tensor_value_info("features", kinds.FLOAT, ["n", n_features])],
        [onnx.numpy_helper.from_array(weights, "weights")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())
