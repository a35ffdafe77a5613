"""The sums of a model on disk.

A snapshot lists the classes, their counts, and the names of the arrays with the sums: the Gram matrix, one row for each
class, and with class tracking a Gram matrix for each class. It contains no times and no order of arrival: models that
hold the same samples have the same snapshot, byte for byte.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from neverseen.engine.classes import ClassGrams
from neverseen.engine.definiteness import why_impossible
from neverseen.engine.packing import narrowed
from neverseen.engine.statistics import Statistics
from neverseen.errors import StoreDamagedError, damaged
from neverseen.hardware import Hardware
from neverseen.io.files import replace_file
from neverseen.labels import canonical_json, in_class_order, parse_json
from neverseen.store.arrays import StoredArray, write_array
from neverseen.targets import Classes, Targets

FORMAT = "neverseen-snapshot-1"


class StoredClassGrams(ClassGrams):
    """The Gram matrices of classes. They are read from disk when needed, and kept in memory once they change."""

    def packed(self, name: str) -> np.ndarray:
        """Return the packed triangle of a class."""
        kept: Any = self._packed[name]
        return kept.read() if isinstance(kept, StoredArray) else kept

    def place(self, name: str, array: StoredArray) -> None:
        """Set the file from which a class is read."""
        self._packed[name] = array  # type: ignore[assignment]

    def write(self, folder: Path, name: str) -> str:
        """Write a class into a folder, unless it is there already, and return the name of its file."""
        kept: Any = self._packed[name]
        return kept.name if isinstance(kept, StoredArray) else write_array(folder, kept)


def write_snapshot(folder: Path, statistics: Statistics) -> str:
    """Write sums into a folder and return the snapshot's name: a digest of its content."""
    classes = statistics.classes
    grams = statistics.class_grams
    about: dict[str, Any] = {
        "class_grams": None,
        "classes": classes,
        "counts": [statistics.counts[name] for name in classes],
        "format": FORMAT,
        "gram": write_array(folder, narrowed(statistics.packed())),
        "size": statistics.size,
        "sums": write_array(folder, np.ascontiguousarray(statistics.cross().T)),
    }
    if isinstance(grams, StoredClassGrams):
        about["class_grams"] = [grams.write(folder, name) for name in classes]
    content = canonical_json(about).encode() + b"\n"
    name = hashlib.sha256(content).hexdigest()
    replace_file(folder / f"{name}.json", [content])
    return name


def release_classes(folder: Path, name: str, statistics: Statistics) -> None:
    """Free memory: from now on, read the Gram matrices of classes from the snapshot just written of these sums.

    Call it only when the ledger names that snapshot: other files are removed.
    """
    grams = statistics.class_grams
    if isinstance(grams, StoredClassGrams):
        about = _manifest(folder, name)
        for label, array in zip(about["classes"], about["class_grams"], strict=True):
            grams.place(label, StoredArray(folder, array))


def read_snapshot(folder: Path, name: str, hardware: Hardware, targets: Targets | None = None) -> Statistics:
    """Return the sums of a snapshot; raise `StoreDamagedError` with the damaged file and the place in it."""
    about = _manifest(folder, name)
    size, classes = about["size"], about["classes"]
    arrays = {each: StoredArray(folder, each) for each in _arrays(about)}
    gram, cross = arrays[about["gram"]], arrays[about["sums"]]
    triangles = [arrays[each] for each in about["class_grams"] or ()]
    packed_shape = (size * (size + 1) // 2,)
    if any(array.shape != packed_shape for array in (gram, *triangles)) or cross.shape != (len(classes), size):
        raise StoreDamagedError(f"the arrays of the snapshot {name} in {folder} have other shapes than it states")
    packed, sums = gram.read(), cross.read()
    counts = dict(zip(classes, about["counts"], strict=True))
    targets = Classes() if targets is None else targets
    why = why_impossible(packed, sums, about["counts"], targets.total(counts), targets.largest) if classes else None
    if not classes and packed.any():
        why = "there is no class, but the Gram matrix is not zero"
    if why is not None:
        raise StoreDamagedError(f"the sums in {folder} are not those of any samples: {why}. Restore them from a copy")
    statistics = Statistics(size, hardware, targets=targets)
    statistics.fill(packed, sums, classes, about["counts"])
    if about["class_grams"] is not None:
        grams = statistics.class_grams = StoredClassGrams(size)
        for label, array in zip(classes, triangles, strict=True):
            grams.place(label, array)
    return statistics


def files_of(folder: Path, name: str) -> set[str]:
    """Return the names of all files that a snapshot consists of."""
    about = _manifest(folder, name)
    return {f"{name}.json", *_arrays(about)}


def _arrays(about: dict[str, Any]) -> list[str]:
    return [about["gram"], about["sums"], *(about["class_grams"] or ())]


def _manifest(folder: Path, name: str) -> dict[str, Any]:
    path = folder / f"{name}.json"
    try:
        content = path.read_bytes()
    except (FileNotFoundError, IsADirectoryError):
        raise StoreDamagedError(f"{path} is missing: restore the store from a copy") from None
    if hashlib.sha256(content).hexdigest() != name:
        raise StoreDamagedError(f"{path} is damaged: it is not what was written. Restore it from a copy")
    with damaged(StoreDamagedError(f"{path} is damaged: it is not a list of sums. Restore it from a copy")):
        about: dict[str, Any] = parse_json(content)
        if about["format"] != FORMAT:
            raise StoreDamagedError(f"{path} has the format {about['format']!r}; this version reads {FORMAT!r}")
        if not _is_sound(about):
            raise ValueError
        return about


def _is_sound(about: dict[str, Any]) -> bool:
    """Return whether a manifest has exactly its fields, with valid values."""
    classes, counts, grams = about["classes"], about["counts"], about["class_grams"]
    return (
        type(about["size"]) is int
        and about["size"] > 0
        and isinstance(classes, list)
        and classes == in_class_order(set(classes))
        and isinstance(counts, list)
        and len(counts) == len(classes)
        and all(type(count) is int and count > 0 for count in counts)
        and (grams is None or (isinstance(grams, list) and len(grams) == len(classes)))
        and all(isinstance(name, str) for name in _arrays(about))
    )
