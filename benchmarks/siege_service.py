"""A service for images with a backbone that costs next to nothing: for `benchmarks.siege`, and for attacks in tests."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from neverseen import AnalyticClassifier, Identity, store
from neverseen.backbones.contents import as_list, portions
from neverseen.backbones.images import Images
from neverseen.backbones.protocol import description_digest
from neverseen.service import serve

SIDE = 4


class Thumbnails:
    """A backbone: an image is its thumbnail."""

    name, base = "thumbnails", None
    n_features = 3 * SIDE * SIDE

    def __init__(self) -> None:
        self.preprocess = Images(SIDE)

    def extract(self, samples: Any) -> np.ndarray:
        """Return float32 of shape (n, n_features)."""
        found = [self.preprocess(list(portion)) for portion in portions(as_list(samples), 64)]
        return np.concatenate([np.zeros((0, 3, SIDE, SIDE), np.float32), *found]).reshape(-1, self.n_features)

    def digest(self) -> str:
        """Return what stands for it."""
        return description_digest(self.preprocess.configuration())


def create(folder: Path) -> str:
    """Make a store for images; return its public key."""
    with store.create(folder, Thumbnails(), AnalyticClassifier(Identity(), 2**12)) as made:
        return made.description.public_key


if __name__ == "__main__":
    serve(sys.argv[1], backbone=Thumbnails(), port=int(sys.argv[2]))
