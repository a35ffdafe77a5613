"""From raw samples to quantised features and fingerprints: each sample is decoded once, a portion at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neverseen.backbones.contents import fingerprint, portions
from neverseen.backbones.progress import progress_bar
from neverseen.backbones.protocol import Backbone, FeatureCache, optional
from neverseen.encoding import quantise
from neverseen.errors import InputError

CHUNK = 256
"""Samples decoded at a time, or fewer if they are large. Any value gives the same features."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """Samples whose features have been taken already, to be given instead of them."""

    quantised: np.ndarray  # int8, shape (n, d0)
    prints: list[bytes]  # fingerprints of the raw samples
    features: np.ndarray | None = None  # float32, for a cache to keep once the samples are learned

    def __len__(self) -> int:
        return len(self.prints)

    def only(self, rows: Sequence[int]) -> Prepared:
        """Return some of them."""
        features = None if self.features is None else self.features[list(rows)]
        return Prepared(self.quantised[list(rows)], [self.prints[row] for row in rows], features)

    @classmethod
    def joined(cls, parts: Sequence[Prepared]) -> Prepared:
        """Return several as one, in order, for no cache to keep."""
        return cls(np.concatenate([part.quantised for part in parts]), [each for part in parts for each in part.prints])


def prepare(backbone: Backbone, samples: list[Any] | Prepared, *, remember: bool) -> Prepared:
    """Return quantised features and fingerprints, refusing samples of the backbone's base set.

    Parameters
    ----------
    samples : list, or Prepared, which is returned as it is
    remember : bool
        Whether a cache is to keep the features once the samples are learned. They are in memory until then.
    """
    if isinstance(samples, Prepared):
        return samples
    base = optional(backbone, "base")
    parts, prints = [np.empty((0, backbone.n_features), np.int8)], list[bytes]()
    kept = [np.empty((0, backbone.n_features), np.float32)] if remember and isinstance(backbone, FeatureCache) else None
    with progress_bar("features", len(samples), batch=CHUNK) as advance:
        for chunk in portions(samples, CHUNK):
            for sample in chunk:
                prints.append(fingerprint(sample))
                if base is not None and base.holds(prints[-1]):
                    raise InputError(
                        f"sample {len(prints) - 1} belongs to the base set {base.name!r} that the backbone was "
                        "trained on: it can be neither learned nor forgotten. Nothing was changed"
                    )
            features = features_of(backbone, chunk)
            if len(features) != len(chunk):
                raise InputError(f"{backbone.name} gave {len(features)} rows for {len(chunk)} samples")
            parts.append(quantise(features))
            if kept is not None:
                kept.append(features)
            advance(len(chunk))
    return Prepared(np.concatenate(parts), prints, None if kept is None else np.concatenate(kept))


def extracted(backbone: Backbone, samples: Any) -> np.ndarray:
    """Return what a backbone gives for samples, whatever that is; a cache does not keep it."""
    if isinstance(backbone, FeatureCache):
        return np.asarray(backbone.extract(samples, remember=False))
    return np.asarray(backbone.extract(samples))


def features_of(backbone: Backbone, samples: Any) -> np.ndarray:
    """Return the features of samples. A cache does not keep them: that is for what is learned."""
    features = extracted(backbone, samples)
    if features.ndim != 2 or features.shape[1] != backbone.n_features:
        raise InputError(
            f"{backbone.name} gave features of shape {features.shape}; n_features is {backbone.n_features}"
        )
    return features


def to_predict(backbone: Backbone, samples: Any) -> Prepared:
    """Return samples with their features taken, to be predicted several times: without fingerprints, of any set."""
    quantised = samples.quantised if isinstance(samples, Prepared) else quantise(features_of(backbone, samples))
    return Prepared(quantised, [b""] * len(quantised))


def lose(backbone: Backbone, prints: Sequence[bytes] | None) -> None:
    """Let a cache lose what is not held, or all of it if None: it must not outlast the samples."""
    if isinstance(backbone, FeatureCache):
        if prints is None:
            backbone.clear()
        elif prints:
            backbone.discard(prints)
