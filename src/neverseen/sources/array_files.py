"""Samples from NumPy's .npz files."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from neverseen.errors import FileRejectedError, InputError
from neverseen.sources import tables
from neverseen.sources.tables import Columns, Samples, Takes

ARRAYS = {"labels": "y", "ids": "ids", "owners": "owners", "weights": "weights"}
"""The usual names of arrays beside X."""


def read_arrays(source: Path, columns: Columns, takes: Takes | None) -> Samples:
    """Return the samples of an .npz file: its array X, with y, ids and owners beside it."""
    try:
        with zipfile.ZipFile(source) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > tables.BYTE_LIMIT:
            raise InputError(f"{source} unpacks to {size:,} bytes; at most {tables.BYTE_LIMIT:,} are read")
        with np.load(source, allow_pickle=False) as arrays:
            if len(set(arrays.files)) != len(arrays.files):
                raise InputError(f"{source} has two arrays of the same name: {tables.listed(arrays.files)}")
            given = {name: arrays[name] for name in arrays.files}
    except InputError:
        raise
    except MemoryError:
        raise InputError(
            f"{source}: its arrays do not fit into memory, or say that they are larger than they are: use fewer "
            "samples at a time"
        ) from None
    except Exception as error:  # what is raised about a damaged member may be almost anything
        if isinstance(error, OSError) and error.filename is not None:  # it cannot be opened
            raise
        raise FileRejectedError(f"{source} is not an .npz file of plain arrays: {error}") from error
    other = next((name for name, array in given.items() if not isinstance(array, np.ndarray)), None)
    if other is not None:
        raise FileRejectedError(f"{source} is not an .npz file of plain arrays: {other} is not an array")
    wanted = columns.texts or "X"
    if wanted not in given:
        raise InputError(f"{source} has no array {wanted} of samples; it has {tables.listed(sorted(given)) or 'none'}")
    if not given[wanted].ndim:
        raise InputError(f"{source}: {wanted} is a single value, not an array of samples")
    samples, lists = given.pop(wanted), {}
    special = tables.special_columns(source, sorted(given), columns, ARRAYS)
    for what, name in columns.read(special).items():
        outputs = columns.form.outputs if what == "labels" and columns.form is not None else 1
        if given[name].shape != (len(samples),) and (outputs == 1 or given[name].shape != (len(samples), outputs)):
            raise InputError(f"{source}: {name} has shape {given[name].shape}, not one entry for each row of {wanted}")
        lists[what] = tables.cells(what, given[name].tolist(), source, name, columns)
    _require_array(source, wanted, samples, takes)
    where = [f"row {row}" for row in range(1, len(samples) + 1)]
    if samples.dtype.kind == "U":
        lists["texts"] = tables.cells("texts", samples.tolist(), source, wanted, columns)
        return tables.samples_of(lists["texts"], lists, where)
    if samples.ndim == 2 and takes is not None and takes.kind == "features":
        return tables.features_of(source, samples, lists, None, where)
    return tables.samples_of(samples, lists, where)


def _require_array(source: Path, name: str, samples: np.ndarray, takes: Takes | None) -> None:
    """Raise unless an array may hold samples of the store's kind."""
    if takes is None:
        return
    shape, kind = samples.shape, samples.dtype.kind
    numbers = kind in "biuf" and samples.dtype.itemsize <= 8
    fits = {
        "features": samples.ndim == 2 and numbers and shape[-1] == takes.n_features,
        "images": numbers and (samples.ndim == 4 or (samples.ndim == 3 and shape[2] not in (3, 4))),
        "texts": samples.ndim == 1 and kind == "U",
    }
    if not fits[takes.kind]:
        hint = ": an array of them has the shape (images, height, width, 3)" if takes.kind == "images" else ""
        raise InputError(f"{source}: {name} has shape {shape} and dtype {samples.dtype}, and {takes}{hint}")
