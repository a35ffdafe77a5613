"""The backbone for features that you computed elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np

from neverseen.backbones.contents import as_list, decoded
from neverseen.backbones.protocol import description_digest
from neverseen.encoding import whole_number
from neverseen.errors import ConfigurationError, InputError
from neverseen.hardware import few_rows, kernels


class Precomputed:
    """A backbone whose samples are rows of features. It only rounds them to float32, like every backbone.

    Numbers of other types are rounded to nearest, ties to even. Numbers below float32's range become subnormal or 0;
    numbers beyond it are refused. If all numbers of a row are tiny, scale it up first.

    Parameters
    ----------
    name : str
        The source of the features, such as ``"clip-vit-b32"``. It is part of the digest, so that models on features
        from different sources are not confused.

    Examples
    --------
    >>> backbone = Precomputed(3, name="measurements")
    >>> backbone.extract(np.array([[1.0, 2.0, 3.0]])).tolist()
    [[1.0, 2.0, 3.0]]
    """

    base = None
    takes = "features"

    def __init__(self, n_features: int, name: str = "precomputed") -> None:
        self.n_features = whole_number("n_features", n_features, 1, 2**24)
        if not isinstance(name, str):
            raise ConfigurationError(f"name must be a text; got {name!r}")
        self.name = name

    @property
    def recipe(self) -> dict[str, Any]:
        """How a store makes it again."""
        return {"kind": "features", "n_features": self.n_features, "name": self.name}

    def extract(self, samples: Any) -> np.ndarray:
        """Return the rows as float32 of shape (n, n_features)."""
        rows = as_list(samples)
        if 0 < len(rows) <= few_rows.FEW and kernels.available() and all(map(self._is_row, rows)):
            found = few_rows.rounded(np.stack(rows) if len(rows) > 1 else rows[0][None])
            if found is not None:
                return found
        features = np.empty((len(rows), self.n_features), np.float32)
        with np.errstate(over="ignore"):  # becomes infinite, and is refused
            for position, sample in enumerate(rows):
                row = decoded(sample)
                if isinstance(row, str) or row.shape != (self.n_features,):
                    _require_finite(features[:position])
                    got = "a text" if isinstance(row, str) else f"an array of shape {row.shape}"
                    raise InputError(f"sample {position} must be a row of {self.n_features} features; got {got}")
                features[position] = row
        _require_finite(features)
        return features

    def _is_row(self, sample: Any) -> bool:
        """Return whether a sample is a row of float64, as the service has them."""
        if type(sample) is not np.ndarray or sample.dtype != np.float64 or not sample.flags.c_contiguous:
            return False
        return bool(sample.shape == (self.n_features,))

    def digest(self) -> str:
        """Return the SHA-256 of name and size, in hex."""
        return description_digest({"kind": "precomputed", "name": self.name, "features": self.n_features})

    def __repr__(self) -> str:
        return f"Precomputed({self.n_features}, name={self.name!r})"


def _require_finite(features: np.ndarray) -> None:
    if not np.isfinite(features).all():
        row = int(np.flatnonzero(~np.isfinite(features).all(axis=1))[0])
        raise InputError(f"sample {row} has features that are NaN, infinite or beyond float32: drop or rescale it")
