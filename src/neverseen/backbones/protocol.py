"""What a backbone is: raw samples in, float32 features out, and a digest that says which."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

import numpy as np

from neverseen.backbones.base_set import BaseSet
from neverseen.labels import canonical_json


@runtime_checkable
class Backbone(Protocol):
    """A frozen map from raw samples to features.

    Anything with these four will do; nothing needs to be derived from. `FullBackbone` has what is optional, and
    `FeatureCache` what a backbone has that remembers features. `neverseen.checks.check_backbone` tries all of it.

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


class FullBackbone(Backbone, Protocol):
    """A backbone with all that is optional. Derive from it for the defaults, or leave out what they are right for.

    Attributes
    ----------
    takes : str or None
        ``"features"``, ``"images"`` or ``"texts"``: the samples that `extract` is given. The command line and the
        service need it to read samples from files and requests.
    base : BaseSet or None
        What the backbone was trained on.
    recipe : dict or None
        How a store makes it again, as JSON values with a ``kind`` that is registered (`neverseen.backbones.recipes`).
    batch_size : int or None
        Samples that it takes at a time, for progress bars.
    progress : bool or None
        Whether to show a progress bar; None to find out.
    """

    takes: str | None = None
    base: BaseSet | None = None
    recipe: dict[str, Any] | None = None
    batch_size: int | None = None
    progress: bool | None = None


@runtime_checkable
class FeatureCache(Backbone, Protocol):
    """A backbone that remembers features. It keeps those of samples that are learned, and loses what is forgotten."""

    def extract(self, samples: Any, /, *, remember: bool = True) -> np.ndarray:
        """Return the features of samples; keep those that are new only if told to remember them."""

    def remember(self, fingerprints: Iterable[bytes], features: Iterable[np.ndarray], /) -> None:
        """Keep the features of samples that are known by these fingerprints."""

    def discard(self, fingerprints: Iterable[bytes], /) -> None:
        """Drop the features of some samples, so that no file holds them."""

    def clear(self) -> None:
        """Drop all features."""


def optional(backbone: Backbone, name: str) -> Any:
    """Return an attribute that `FullBackbone` declares, or its default if a backbone does not have it."""
    return getattr(backbone, name, getattr(FullBackbone, name))


def description_digest(description: dict[str, Any]) -> str:
    """Return the SHA-256, in hex, of a description made of JSON values."""
    return hashlib.sha256(canonical_json(description).encode()).hexdigest()
