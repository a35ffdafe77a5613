"""What is learned of samples: labels, as callers give them."""

from __future__ import annotations

from typing import Any

import numpy as np

from neverseen.labels import LabelIndex, require_classes


def label_list(y: Any, any_label: bool = False) -> list[Any]:
    """Return labels as a list, refusing what cannot be class labels; any label will do where it is only looked up."""
    if y is None:
        raise ValueError("AnalyticClassifier requires y to be passed, but the target y is None")
    if isinstance(y, list | tuple) and not any(isinstance(label, list | np.ndarray) for label in y):
        labels = list(y)
    else:
        array = np.asarray(y)
        if array.ndim != 1:
            from sklearn.utils import column_or_1d

            array = column_or_1d(array, warn=True)
        labels = array.tolist() if array.dtype.kind not in "mM" else list(array)
    if not any_label:
        require_classes(labels)
    return labels


def positions_among(classes: list[str], y: Any) -> np.ndarray:
    """Return, for each label, the position of its canonical text among classes; -1 if it is not there."""
    index = LabelIndex(label_list(y, any_label=True))
    held = {name: position for position, name in enumerate(classes)}
    return np.array([held.get(name, -1) for name in index.texts], dtype=np.intp)[index.positions]
