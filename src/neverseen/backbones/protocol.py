"""The protocol of a backbone: raw samples in, float32 features out, and a digest that identifies it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

import numpy as np

from neverseen.backbones.base_set import BaseSet
from neverseen.errors import ConfigurationError
from neverseen.labels import canonical_json

CACHE_METHODS = ("remember", "discard", "clear")
"""The extra methods of a backbone that remembers features."""


@runtime_checkable
class Backbone(Protocol):
    """A frozen map from raw samples to features.

    Any object with these four members is a backbone; it need not derive from this class. `FullBackbone` adds optional
    members, and `FeatureCache` those of a backbone that keeps features. To check your own backbone, use
    `neverseen.checks.check_backbone`.

    Attributes
    ----------
    name : str
        For people, in tables and messages.
    n_features : int
        Number of columns that `extract` returns.
    """

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def n_features(self) -> int: ...  # noqa: D102

    def extract(self, samples: Any, /) -> np.ndarray:
        """Return the features of samples, finite float32 of shape (n, n_features); n may be 0.

        The features of a sample must not depend on the other samples.
        """

    def digest(self) -> str:
        """Return a SHA-256, in hex, of everything that affects the features: weights, preprocessing, base set.

        It must be the same in every process and with every version of the libraries. If two machines, runtimes or
        libraries round differently, the digest is still the same: it identifies the computation, not the last bits.
        """


class FullBackbone(Backbone, Protocol):
    """A backbone with all optional members. Derive from it to get their defaults, or define only those you need.

    Attributes
    ----------
    takes : str or None
        The kind of samples for `extract`: ``"features"``, ``"images"`` or ``"texts"``. The command line and the service
        need it to read samples from files and requests.
    base : BaseSet or None
        The base set that the backbone was trained on.
    recipe : dict or None
        How a store makes it again: JSON values with a registered ``kind`` (`neverseen.backbones.recipes`).
    batch_size : int or None
        Number of samples it takes at a time, for progress bars.
    progress : bool or None
        Whether to show a progress bar; None for automatic.
    """

    takes: str | None = None
    base: BaseSet | None = None
    recipe: dict[str, Any] | None = None
    batch_size: int | None = None
    progress: bool | None = None


@runtime_checkable
class FeatureCache(Backbone, Protocol):
    """A backbone that keeps the features of learned samples, and drops those of forgotten ones."""

    def extract(self, samples: Any, /, *, remember: bool = True) -> np.ndarray:
        """Return the features of samples; keep new ones only if `remember` is true."""

    def remember(self, fingerprints: Iterable[bytes], features: Iterable[np.ndarray], /) -> None:
        """Keep the features of the samples with these fingerprints."""

    def discard(self, fingerprints: Iterable[bytes], /) -> None:
        """Drop the features of some samples; afterwards no file may hold them."""

    def clear(self) -> None:
        """Drop all features."""


def require_backbone(backbone: Any) -> Backbone:
    """Return the given backbone, or raise `ConfigurationError` if it cannot be used as one."""
    if not isinstance(backbone, Backbone):
        raise ConfigurationError(
            f"a backbone has a name, n_features, extract and digest; {type(backbone).__name__} has not: "
            "see neverseen.backbones"
        )
    if not isinstance(backbone, FeatureCache) and any(hasattr(backbone, name) for name in CACHE_METHODS):
        raise ConfigurationError(
            f"{backbone.name} has some of remember, discard and clear: a backbone that remembers features needs all, "
            "or they would stay when their samples are forgotten"
        )
    return backbone


def optional(backbone: Backbone, name: str) -> Any:
    """Return an attribute that `FullBackbone` declares, or its default if a backbone does not have it."""
    return getattr(backbone, name, getattr(FullBackbone, name))


def description_digest(description: dict[str, Any]) -> str:
    """Return the SHA-256, in hex, of a description made of JSON values."""
    return hashlib.sha256(canonical_json(description).encode()).hexdigest()
