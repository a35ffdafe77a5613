"""What is learned of samples: labels, as callers give them."""

from __future__ import annotations

from typing import Any

import numpy as np

from neverseen.labels import require_classes


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
