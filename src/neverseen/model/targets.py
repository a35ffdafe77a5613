"""Labels as callers give them, and errors about unusable features."""

from __future__ import annotations

from typing import Any

import numpy as np

from neverseen.labels import require_classes


def label_list(y: Any, any_label: bool = False) -> list[Any]:
    """Return labels as a list. Labels to learn must be able to name a class; labels to look up can be any."""
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


def unfit(X: Any) -> str:
    """Return the error about the first row that is not finite, if there is one.

    scikit-learn's own message advises to fit an imputer. Nothing may be fitted on samples that may be forgotten.
    """
    try:
        bad = ~np.isfinite(np.asarray(X, dtype=np.float64)).all(axis=1)
    except (TypeError, ValueError):
        return ""
    if not bad.any():
        return ""
    return f"row {int(bad.argmax())} of X has NaN or infinity among its features: leave the sample out, or fill the gap"
