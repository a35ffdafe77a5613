"""Features and labels of an estimator, validated as scikit-learn asks of its estimators."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from sklearn.utils import column_or_1d
from sklearn.utils.validation import validate_data

from neverseen.errors import InputError
from neverseen.targets import Classes, Targets

SEEN = ("n_features_in_", "feature_names_in_")
"""What scikit-learn's validation notes about the first batch."""


def column(estimator: Any, y: Any, targets: Targets | None) -> Any:
    """Return labels without a needless second dimension, after scikit-learn's warning about it."""
    if y is None:
        raise InputError(f"{type(estimator).__name__} requires y to be passed, but the target y is None")
    if (targets is None or type(targets) is Classes) and hasattr(y, "__array__") and np.asarray(y).ndim > 1:
        return column_or_1d(y, warn=True)
    return y


def _unfit(X: Any) -> str:
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


def read(estimator: Any, X: Any, *, reset: bool, least: int = 1) -> np.ndarray:
    """Return features as scikit-learn's validation does, with its refusals as our errors.

    Parameters
    ----------
    estimator : BaseEstimator
        Notes the width and the names of the first batch.
    reset : bool
        Whether this is the first batch.
    least : int
        Number of samples that there must be.
    """
    if not reset and _is_plain(estimator, X, least):
        return np.asarray(X)
    try:
        features: np.ndarray = validate_data(estimator, X, reset=reset, ensure_min_samples=least)
    except ValueError as error:
        raise InputError(_unfit(X) or str(error)) from error
    return features


@contextmanager
def unchanged_on_error(estimator: Any) -> Iterator[None]:
    """If a batch is refused, undo what scikit-learn's validation has noted about it."""
    before = {name: vars(estimator)[name] for name in SEEN if name in vars(estimator)}
    try:
        yield
    except BaseException:
        for name in SEEN:
            vars(estimator).pop(name, None)
        vars(estimator).update(before)
        raise


def _is_plain(estimator: Any, X: Any, least: int) -> bool:
    """Return whether scikit-learn's validation, slow for a small request, would return X unchanged."""
    return (
        type(X) is np.ndarray
        and X.dtype in (np.float32, np.float64)
        and X.ndim == 2
        and X.shape[1] == getattr(estimator, "n_features_in_", None)
        and len(X) >= least
        and not hasattr(estimator, "feature_names_in_")
        and bool(np.isfinite(X).all())
    )
