"""From raw samples to quantised features and fingerprints: each sample is decoded once, a portion at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from neverseen.backbones.contents import Undecoded, as_list, fingerprint, portions
from neverseen.backbones.progress import progress_bar
from neverseen.backbones.protocol import Backbone, FeatureCache, optional
from neverseen.encoding import Encoder
from neverseen.errors import InputError

CHUNK = 256
"""Number of samples decoded at a time; fewer if they are large. Any value gives the same features."""


@dataclass(frozen=True, eq=False)
class Grouped:
    """Samples that have many rows each, one after another."""

    rows: list[Any]
    lengths: tuple[int, ...]  # number of rows of each sample

    def __len__(self) -> int:
        return len(self.lengths)


@dataclass(frozen=True, eq=False)
class Prepared:
    """Samples with their features, to use in their place."""

    quantised: np.ndarray  # int8, shape (n, d0); or, with `lengths`, that of all rows, one sample after another
    fingerprints: list[bytes]  # of the raw samples
    features: np.ndarray | None = None  # float32, for a cache to keep once the samples are learned
    # class and digest of each, where they were made already, and what they were made under: see `neverseen.holdings`
    members: tuple[tuple[str, bytes], ...] = ()
    origin: object = None
    scale: float | None = None  # of the encoder that quantised them
    backbone: str | None = None  # digest of the one that made the features; None if only its own model gets them
    lengths: tuple[int, ...] | None = None  # number of rows of each sample, where a sample has many

    def __post_init__(self) -> None:
        self.quantised.flags.writeable = False  # what stands for the samples is made of it

    def __len__(self) -> int:
        return len(self.fingerprints if self.lengths is None else self.lengths)

    def only(self, rows: Sequence[int]) -> Prepared:
        """Return some of them."""
        if self.lengths is not None:
            raise InputError("samples of many rows were prepared together, and are used together")
        features = None if self.features is None else self.features[list(rows)]
        members = tuple(self.members[row] for row in rows) if self.members else ()
        fingerprints = [self.fingerprints[row] for row in rows]
        quantised = self.quantised[list(rows)]
        return Prepared(quantised, fingerprints, features, members, self.origin, self.scale, self.backbone)

    @classmethod
    def joined(cls, parts: Sequence[Prepared]) -> Prepared:
        """Return several as one, in order. A cache does not keep them."""
        if any(part.lengths is not None for part in parts):
            raise InputError("samples of many rows were prepared together, and are used together")
        fingerprints = [each for part in parts for each in part.fingerprints]
        quantised = np.concatenate([part.quantised for part in parts])
        return cls(quantised, fingerprints, scale=parts[0].scale, backbone=parts[0].backbone)

    def require_scale(self, encoder: Encoder) -> Prepared:
        """Return them, or raise `InputError` if they were prepared for a model with another scale."""
        if self.scale != encoder.scale:
            raise InputError(
                f"these samples were prepared with scale={self.scale}, and this model has scale={encoder.scale}: give "
                "the samples themselves"
            )
        return self


def require_own(samples: Any, backbone: str | None) -> Any:
    """Return samples, or raise `InputError` if they were prepared with another backbone than that of this digest."""
    if isinstance(samples, Prepared) and samples.backbone not in (None, backbone):
        raise InputError(
            "these samples were prepared with another backbone: its features mean nothing to this model. Give the "
            "samples themselves"
        )
    return samples


def as_samples(samples: Any) -> list[Any] | Prepared:
    """Return samples in a form for `prepare`: a list, or `Prepared` samples."""
    return samples if isinstance(samples, Prepared) else as_list(samples)


def prepare(
    backbone: Backbone, encoder: Encoder, samples: list[Any] | Grouped | Prepared, *, remember: bool
) -> Prepared:
    """Return quantised features and fingerprints, refusing samples of the backbone's base set.

    Parameters
    ----------
    samples : list, or Prepared, which is returned as it is
        Of grouped samples, there is a fingerprint for each row, and a cache keeps nothing: a receipt does not name
        the rows, so forgetting could not drop them.
    remember : bool
        Whether a cache should keep the features once the samples are learned. Until then they are in memory.
    """
    if isinstance(samples, Prepared):
        return samples.require_scale(encoder)
    if isinstance(samples, Grouped):
        return replace(prepare(backbone, encoder, samples.rows, remember=False), lengths=samples.lengths)
    base = optional(backbone, "base")
    parts, fingerprints = [np.empty((0, backbone.n_features), np.int8)], list[bytes]()
    kept = [np.empty((0, backbone.n_features), np.float32)] if remember and isinstance(backbone, FeatureCache) else None
    with progress_bar("features", len(samples), batch=CHUNK) as advance:
        for chunk in portions(samples, CHUNK):
            for sample in chunk:
                fingerprints.append(fingerprint(sample))
                if base is not None and base.holds(fingerprints[-1]):
                    raise InputError(
                        f"sample {len(fingerprints) - 1} belongs to the base set {base.name!r} that the backbone was "
                        "trained on: it can be neither learned nor forgotten. Nothing was changed"
                    )
            features = features_of(backbone, chunk)
            if len(features) != len(chunk):
                raise InputError(f"{backbone.name} gave {len(features)} rows for {len(chunk)} samples")
            parts.append(encoder.quantise(features))
            if kept is not None:
                kept.append(features)
            advance(len(chunk))
    rows = None if kept is None else np.concatenate(kept)
    return Prepared(np.concatenate(parts), fingerprints, rows, scale=encoder.scale)


def extracted(backbone: Backbone, samples: Any) -> np.ndarray:
    """Return the output of a backbone for samples, unchecked. A cache does not keep it."""
    # Python asks for all that a protocol has, which takes longer than a prediction: most lack the first.
    if hasattr(backbone, "remember") and isinstance(backbone, FeatureCache):
        return np.asarray(backbone.extract(samples, remember=False))
    return np.asarray(backbone.extract(samples))


def features_of(backbone: Backbone, samples: Any) -> np.ndarray:
    """Return the features of samples. A cache does not keep them, as it keeps only learned samples."""
    if isinstance(samples, Undecoded):
        parts = [features_of(backbone, portion) for portion in portions(samples, CHUNK)]
        return np.concatenate([np.empty((0, backbone.n_features), np.float32), *parts])
    features = extracted(backbone, samples)
    if features.ndim != 2 or features.shape[1] != backbone.n_features:
        raise InputError(
            f"{backbone.name} gave features of shape {features.shape}; n_features is {backbone.n_features}"
        )
    return features


def to_predict(backbone: Backbone, encoder: Encoder, samples: Any) -> Prepared:
    """Return samples with their features, to predict several times. They may be in a base set."""
    if isinstance(samples, Prepared):
        quantised = samples.require_scale(encoder).quantised
    else:
        quantised = encoder.quantise(features_of(backbone, samples))
    return Prepared(quantised, [b""] * len(quantised), scale=encoder.scale)


def lose(backbone: Backbone, fingerprints: Sequence[bytes] | None) -> None:
    """Drop features from a cache (all, if None): they must not outlast their samples."""
    if isinstance(backbone, FeatureCache):
        if fingerprints is None:
            backbone.clear()
        elif fingerprints:
            backbone.discard(fingerprints)
