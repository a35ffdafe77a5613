"""What a backbone is: raw samples in, float32 features out, and a digest that says which."""

from __future__ import annotations

import hashlib
from typing import Any, Protocol, runtime_checkable

import numpy as np

from neverseen.labels import canonical_json


@runtime_checkable
class Backbone(Protocol):
    """A frozen map from raw samples to features.

    Anything with these four will do; nothing needs to be derived from. Two more attributes are optional:

    - ``takes``: ``"features"``, ``"images"`` or ``"texts"``, the samples that `extract` is given. The command line and
      the service need it to read samples from files and requests.
    - ``base``: the `BaseSet` that the backbone was trained on, or None.

    Attributes
    ----------
    name : str
        For people, in tables and messages.
    n_features : int
        Columns of what `extract` returns.
    """

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def n_features(self) -> int: ...  # noqa: D102

    def extract(self, samples: Any, /) -> np.ndarray:
        """Return the features of samples, finite float32 of shape (n, n_features); n may be 0.

        The features of a sample do not depend on the samples beside it.
        """

    def digest(self) -> str:
        """Return a SHA-256, in hex, of all that decides the features: weights, preprocessing, base set.

        The same in every process and with every version of the libraries. Where two machines, runtimes or libraries
        round differently, the digest is still the same: it says what is computed, not how the last bit falls.
        """


def description_digest(description: dict[str, Any]) -> str:
    """Return the SHA-256, in hex, of a description made of JSON values."""
    return hashlib.sha256(canonical_json(description).encode()).hexdigest()
