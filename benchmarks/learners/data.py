"""Features on which learners are compared: pixels of digits, or a frozen network's features of CIFAR-10 or CIFAR-100.

The images are looked for where `benchmarks.paper.data` says. Their features, 1280 of each image from EfficientNet-Lite0
at 128 pixels under ONNX Runtime, are computed once and kept in the data folder: 60,000 images take some minutes on two
cores. ``python -m benchmarks.learners.data cifar100`` does only this.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sklearn.datasets import load_digits

from benchmarks.cifar import CifarError
from benchmarks.paper import data
from neverseen.backbones import efficientnet_lite0
from neverseen.errors import NeverseenError

KINDS = ("digits", "cifar10", "cifar100")
_RESOLUTION = 128


class Features(NamedTuple):
    """Labelled rows of features, in a random order that is always the same. Labels are whole numbers from 0 on."""

    about: str
    train: np.ndarray  # float32 (n, d0)
    train_labels: np.ndarray  # int64 (n,)
    test: np.ndarray
    test_labels: np.ndarray

    def reduced(self, train: int, test: int) -> Features:
        """Return the first so many rows; all of them for 0."""
        first, then = slice(train or None), slice(test or None)
        return Features(
            self.about, self.train[first], self.train_labels[first], self.test[then], self.test_labels[then]
        )

    def digest(self) -> str:
        """Return the SHA-256 of all rows and labels, to tell whether two runs saw the same."""
        hasher = hashlib.sha256()
        for array in self[1:]:
            hasher.update(np.ascontiguousarray(array).data)
        return hasher.hexdigest()


def load(name: str, folder: Path) -> Features:
    """Return a set of features: read from the data folder, or computed and written there.

    Parameters
    ----------
    name : {"digits", "cifar10", "cifar100"}
    folder : Path
        Where the images are, and the features will be.
    """
    if name == "digits":
        rows, labels = load_digits(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(rows))
        first, then = order[:1200], order[1200:]
        pixels = rows.astype(np.float32)
        return Features("handwritten digits, 64 pixels", pixels[first], labels[first], pixels[then], labels[then])
    kept = folder / f"{name}-efficientnet-lite0-{_RESOLUTION}-onnx.npz"
    if not kept.exists():
        _extract(name, folder, kept)
    with np.load(kept, allow_pickle=False) as stored:
        arrays = [stored[field] for field in Features._fields[1:]]
    return Features(f"{name}, EfficientNet-Lite0 at {_RESOLUTION} px", *arrays)


def _extract(name: str, folder: Path, kept: Path) -> None:
    found = data.load(name, folder)
    backbone = efficientnet_lite0(resolution=_RESOLUTION, runtime="onnx")
    arrays: list[np.ndarray] = []
    for images, labels in ((found.train_images, found.train_labels), (found.test_images, found.test_labels)):
        order = np.random.default_rng(0).permutation(len(labels))
        arrays += [backbone.extract(list(images[order])), labels[order]]
    partial = folder / f"{kept.name}.{os.getpid()}.partial"  # renamed when whole: a reader never sees half
    with partial.open("wb") as file:
        np.savez(file, **Features(name, *arrays)._asdict())
    partial.replace(kept)


def main(arguments: list[str] | None = None) -> int:
    """Compute the features of some images, and keep them in the data folder."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learners.data", description=main.__doc__)
    parser.add_argument("names", nargs="+", choices=KINDS)
    parser.add_argument("--data", type=Path, help="data folder (NEVERSEEN_DATA, or ~/.cache/neverseen)")
    options = parser.parse_args(arguments)
    for name in options.names:
        try:
            found = load(name, data.data_folder(options.data))
        except (CifarError, NeverseenError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        print(f"{found.about}: {len(found.train)} + {len(found.test)} rows, {found.digest()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
