"""A service for images with a backbone that costs next to nothing: for `benchmarks.siege`, and for attacks in tests."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from neverseen import AnalyticClassifier, Identity, store
from neverseen.backbones.images import Images
from neverseen.backbones.network import Network
from neverseen.service import serve

SIDE = 4


class Thumbnails(Network):
    """A backbone: an image is its thumbnail."""

    def __init__(self) -> None:
        super().__init__(Images(SIDE), "thumbnails", 32, None, False)
        self.n_features = 3 * SIDE * SIDE

    def _network_description(self) -> dict[str, Any]:
        return {"kind": "thumbnails"}

    def _run(self, inputs: dict[str, Any]) -> np.ndarray:
        pixels: np.ndarray = inputs[""]
        return pixels.reshape(len(pixels), -1)


def create(folder: Path) -> str:
    """Make a store for images; return its public key."""
    with store.create(folder, Thumbnails(), AnalyticClassifier(Identity(), 2**12)) as made:
        return made.description.public_key


if __name__ == "__main__":
    serve(sys.argv[1], backbone=Thumbnails(), port=int(sys.argv[2]))
