"""The settings of a model, and the digest of a model."""

from __future__ import annotations

import hashlib
import re
import struct
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from neverseen.encoding import Encoder, encoder_of, whole_number
from neverseen.errors import ConfigurationError
from neverseen.labels import canonical_json
from neverseen.targets import Classes, Targets, WeightedClasses, targets_of

_HEX_DIGEST = re.compile("[0-9a-f]{64}")
AUTO: Literal["auto"] = "auto"
"""In place of gamma: the sums choose it (`neverseen.engine.strength`)."""
Gamma = int | Literal["auto"]


def ridge_strength(value: Any) -> Gamma:
    """Return the setting gamma as an int or "auto"; raise `ConfigurationError` if it is neither.

    A float such as 1e4 stands for the integer that it is.

    Examples
    --------
    >>> ridge_strength(1e4), ridge_strength("auto")
    (10000, 'auto')
    """
    if isinstance(value, str) and value == AUTO:
        return AUTO
    is_float = isinstance(value, float | np.floating)
    whole = is_float and float(value).is_integer()
    try:
        return whole_number("gamma", int(value) if whole else value, 1, 2**40)
    except ConfigurationError as error:
        why = ": the weights are exact because sums and gamma are integers" if is_float and not whole else ""
        raise ConfigurationError(
            f"gamma must be a whole number between 1 and 2**40, or 'auto'; got {value!r}{why}"
        ) from error


@dataclass(frozen=True)
class Configuration:
    """The settings of a model, which are fixed before its first sample."""

    encoder: Encoder
    gamma: Gamma  # ridge strength, a whole number from 1 to 2**40, or "auto"
    grid_bits: int  # weights are multiples of 2**-grid_bits; from 1 to 52
    # digest of the backbone, 64 hex digits; None if the features come from the caller
    backbone: str | None = None
    targets: Targets = field(default_factory=Classes)  # what labels stand for
    class_weight: str | None = None  # or "balanced"

    def __post_init__(self) -> None:
        object.__setattr__(self, "gamma", ridge_strength(self.gamma))
        object.__setattr__(self, "grid_bits", whole_number("grid_bits", self.grid_bits, 1, 52))
        self.encoder.configuration()  # raises if its settings are unusable
        if self.backbone is not None and not (isinstance(self.backbone, str) and _HEX_DIGEST.fullmatch(self.backbone)):
            raise ConfigurationError(
                f"backbone must be a backbone's digest(), 64 hex digits, or None; got {self.backbone!r}"
            )
        if not isinstance(self.targets, Targets):
            raise ConfigurationError(f"targets must be Targets such as LabelSets(); got {self.targets!r}")
        if self.class_weight not in (None, "balanced"):
            raise ConfigurationError(f"class_weight must be None or 'balanced'; got {self.class_weight!r}")
        if self.class_weight is not None and not self.targets.one_hot:
            raise ConfigurationError(f"class_weight needs a class for each sample, and {self.targets} has none")
        if self.encoder.compensation_ratio is not None and (self.gamma == AUTO or self.class_weight is not None):
            raise ConfigurationError(
                f"two streams need a gamma of your choice, and no class_weight; got gamma={self.gamma!r} and "
                f"class_weight={self.class_weight!r}"
            )
        if self.gamma == AUTO:
            if self.class_weight is not None:
                raise ConfigurationError(
                    f"gamma='auto' counts all samples alike, and class_weight={self.class_weight!r} does not: choose "
                    "gamma yourself, or leave class_weight out"
                )
            if isinstance(self.targets, WeightedClasses):
                raise ConfigurationError(
                    f"gamma='auto' counts all samples alike, and {self.targets} do not: choose gamma yourself"
                )
            if self.targets.squares({}) is None:
                raise ConfigurationError(
                    f"gamma='auto' needs the sum of the squares of all targets, which a model of {self.targets} does "
                    "not keep: choose gamma yourself, for example with neverseen.choose_gamma"
                )
        elif self.class_weight is not None and self.gamma > 2**24:  # or no sum of few samples would leave room to solve
            raise ConfigurationError(
                f"gamma must be at most 2**24 with class_weight='balanced', which multiplies it; got {self.gamma}"
            )

    def as_json(self) -> dict[str, Any]:
        """Return the configuration as JSON values."""
        settings = {
            "encoder": self.encoder.configuration(),
            "format": 1,
            "gamma": self.gamma,
            "grid_bits": self.grid_bits,
        }
        others = {"backbone": self.backbone, "class_weight": self.class_weight, "targets": self.targets.configuration()}
        return settings | {name: value for name, value in others.items() if value is not None}

    def require_tracking(self, tracked: bool) -> None:
        """Raise `ConfigurationError` unless sums of each class may be kept, or are, as these settings need."""
        if tracked and not self.targets.one_hot:
            raise ConfigurationError(f"track_classes needs a class for each sample, and {self.targets} has none")
        if self.class_weight is not None and not tracked:
            raise ConfigurationError("class_weight='balanced' needs the sums of each class: set track_classes=True")

    def require_classes(self, what: str) -> None:
        """Raise `ConfigurationError`, which says `what` needs it, unless each label is a class and nothing more."""
        if type(self.targets) is not Classes:
            raise ConfigurationError(f"{what}: the labels must be classes, and here they are {self.targets}")

    @property
    def followed(self) -> bool:
        """Whether the weights can follow small changes: the system changes by little, and each sample has a class."""
        plain = self.class_weight is None and self.encoder.compensation_ratio is None
        return plain and self.targets.one_hot

    @classmethod
    def from_json(cls, settings: dict[str, Any], array: np.ndarray | None = None) -> Configuration:
        """Return the configuration from `as_json`; an encoder may also need its array."""
        encoder = encoder_of(settings["encoder"], array)
        targets = targets_of(settings.get("targets"))
        gamma, grid_bits, backbone = settings["gamma"], settings["grid_bits"], settings.get("backbone")
        configuration = cls(encoder, gamma, grid_bits, backbone, targets, settings.get("class_weight"))
        if canonical_json(configuration.as_json()) != canonical_json(settings):  # 1, 1.0 and true are three values
            raise ConfigurationError("the configuration has impossible settings")
        return configuration

    def digest(self) -> bytes:
        """Return the SHA-256 of the configuration."""
        return hashlib.sha256(canonical_json(self.as_json()).encode()).digest()


def empty_digest(configuration: Configuration) -> str:
    """Return the digest of a model that holds no sample."""
    return model_digest(configuration.digest(), 0, [], np.zeros((0, 0), np.int64))


def model_digest(configuration: bytes, n_features: int, classes: list[str], weights: np.ndarray) -> str:
    """Return the SHA-256 of a model, in hex: configuration digest, features, classes, grid weights."""
    hasher = hashlib.sha256(b"neverseen:model:1" + configuration)
    hasher.update(struct.pack("<QQQ", n_features, *weights.shape))
    for name in classes:
        hasher.update(struct.pack("<Q", len(name)) + name.encode())
    hasher.update(np.ascontiguousarray(weights, dtype="<i8").tobytes())
    return hasher.hexdigest()
