"""A data set as a few small files: 500 images tiled to one lossless WebP, in folders below 62 MiB.

For moving CIFAR to a machine that cannot fetch it: ``python -m benchmarks.paper data pack cifar100 FOLDER`` writes
``FOLDER/cifar100-pack/part-0/`` and so on; move the parts one by one and the loader puts them together. Bit for bit:
the digest of the whole data set is in every part and is checked.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.paper.data import DataError, Dataset

TILE_ROWS, TILE_COLUMNS = 25, 20  # of 32 x 32 images: 640 x 800 pixels
PART_LIMIT = 62 * 2**20
LABEL_ROOM = 2**20  # more than all labels take
FORMAT = "neverseen:paper-pack:1"


def write(dataset: Dataset, folder: Path, limit: int = PART_LIMIT) -> list[Path]:
    """Write a data set in parts, and return their folders.

    Parameters
    ----------
    dataset : Dataset
    folder : Path
        A new folder ``<name>-pack`` is made in it.
    limit : int
        Bytes that the files of one part may have together.
    """
    target = folder / f"{dataset.name}-pack"
    target.mkdir(parents=True)
    sizes: dict[str, int] = {}
    for kind, images in (("train", dataset.train_images), ("test", dataset.test_images)):
        for number, first in enumerate(range(0, len(images), TILE_ROWS * TILE_COLUMNS)):
            tile = target / f"{kind}-{number:03}.webp"
            _picture(images[first : first + TILE_ROWS * TILE_COLUMNS]).save(tile, lossless=True, quality=80, method=4)
            sizes[tile.name] = tile.stat().st_size
    room = limit - LABEL_ROOM
    share = sum(sizes.values()) / -(-sum(sizes.values()) // room)  # of parts of about the same size
    parts: list[list[str]] = [[]]
    for name, size in sizes.items():
        used = sum(sizes[other] for other in parts[-1])
        if parts[-1] and (used + size > room or used >= share):
            parts.append([])
        parts[-1].append(name)
    folders = []
    for part, tiles in enumerate(parts):
        place = target / f"part-{part}"
        place.mkdir()
        for name in tiles:
            (target / name).rename(place / name)
        about = {
            "format": FORMAT,
            "name": dataset.name,
            "n_classes": dataset.n_classes,
            "part": part,
            "parts": len(parts),
            "tiles": tiles,
            "train_labels": dataset.train_labels.tolist(),
            "test_labels": dataset.test_labels.tolist(),
            "digest": dataset.digest(),
        }
        (place / "about.json").write_text(json.dumps(about))
        folders.append(place)
    return folders


def read(folder: Path) -> Dataset:
    """Read what `write` wrote, and check that it is whole."""
    abouts: list[tuple[Path, dict[str, Any]]] = []
    for place in sorted(folder.glob("part-*")):
        try:
            about = json.loads((place / "about.json").read_text())
            if about["format"] != FORMAT:
                raise ValueError(f"its format is {about['format']!r}")
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise DataError(f"{place} is not a part of a packed data set: {error}") from error
        abouts.append((place, about))
    if not abouts or len({about["digest"] for _, about in abouts}) > 1:
        raise DataError(f"{folder} holds no parts, or parts of different data sets: pack it again")
    first = abouts[0][1]
    missing = set(range(first["parts"])) - {about["part"] for _, about in abouts}
    if missing:
        raise DataError(f"{folder} lacks {', '.join(f'part-{part}' for part in sorted(missing))}: move them there too")
    tiles = {name: place / name for place, about in abouts for name in about["tiles"]}
    arrays = []
    for kind in ("train", "test"):
        labels = np.array(first[f"{kind}_labels"], dtype=np.int64)
        names = sorted(name for name in tiles if name.startswith(kind))
        images = np.concatenate([_images(tiles[name]) for name in names])[: len(labels)]
        arrays += [images, labels]
    dataset = Dataset(first["name"], first["n_classes"], *arrays)
    if dataset.digest() != first["digest"]:
        raise DataError(f"{folder} is damaged: its images are not those that were packed")
    return dataset


def _picture(images: NDArray[np.uint8]) -> Any:
    from PIL import Image

    tiles = np.zeros((TILE_ROWS * TILE_COLUMNS, 32, 32, 3), np.uint8)
    tiles[: len(images)] = images
    grid = tiles.reshape(TILE_ROWS, TILE_COLUMNS, 32, 32, 3).transpose(0, 2, 1, 3, 4)
    return Image.fromarray(np.ascontiguousarray(grid).reshape(TILE_ROWS * 32, TILE_COLUMNS * 32, 3))


def _images(path: Path) -> NDArray[np.uint8]:
    from PIL import Image

    try:
        with Image.open(path) as picture:
            pixels = np.asarray(picture.convert("RGB"))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    grid = pixels.reshape(TILE_ROWS, 32, TILE_COLUMNS, 32, 3).transpose(0, 2, 1, 3, 4)
    return np.ascontiguousarray(grid).reshape(-1, 32, 32, 3)
