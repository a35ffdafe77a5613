"""Labels as callers give them."""

from __future__ import annotations

from typing import Any

import numpy as np

from neverseen.errors import InputError
from neverseen.labels import require_classes
from neverseen.targets import Classes, Targets


def label_list(y: Any, any_label: bool = False, targets: Targets | None = None) -> list[Any]:
    """Return labels as a list. Labels to learn must fit the targets; labels of samples to look up can be any class."""
    if y is None:
        raise InputError("there are no labels (y is None): give each sample its label")
    if targets is not None and type(targets) is not Classes:
        rows = np.asarray(y) if hasattr(y, "__array__") else y  # a table would yield the names of its columns
        if isinstance(y, str | bytes | dict | set | frozenset) or getattr(rows, "ndim", 1) == 0:
            raise InputError(f"labels must be a sequence, one label for each sample; got {type(y).__name__}")
        return targets.labels(rows, any_label)
    if isinstance(y, list | tuple) and not any(isinstance(label, list | np.ndarray) for label in y):
        labels = list(y)
    else:
        array = np.asarray(y)
        if array.ndim == 2 and array.shape[1] == 1:
            array = array[:, 0]
        if array.ndim != 1:
            raise InputError(f"labels must have one dimension, a label for each sample; got an array of {array.shape}")
        labels = array.tolist() if array.dtype.kind not in "mM" else list(array)
    if not any_label:
        require_classes(labels)
    return labels
