"""The backbone for features that you computed elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np

from neverseen.backbones.contents import as_list, decoded
from neverseen.backbones.protocol import description_digest
from neverseen.encoding import whole_number
from neverseen.errors import ConfigurationError, InputError


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
        features = np.empty((len(rows), self.n_features), np.float32)
        for position, sample in enumerate(rows):
            row = decoded(sample)
            if isinstance(row, str) or row.shape != (self.n_features,):
                got = "a text" if isinstance(row, str) else f"an array of shape {row.shape}"
                raise InputError(f"sample {position} must be a row of {self.n_features} features; got {got}")
            with np.errstate(over="ignore"):  # becomes infinite, and is refused below
                features[position] = row
            if not np.isfinite(features[position]).all():
                raise InputError(
                    f"sample {position} has features that are NaN, infinite or beyond float32: drop or rescale it"
                )
        return features

    def digest(self) -> str:
        """Return the SHA-256 of name and size, in hex."""
        return description_digest({"kind": "precomputed", "name": self.name, "features": self.n_features})

    def __repr__(self) -> str:
        return f"Precomputed({self.n_features}, name={self.name!r})"
