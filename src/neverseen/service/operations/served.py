"""What a service can do for the labels of its store. What it cannot is refused at the start."""

from __future__ import annotations

import math
from pathlib import Path

from neverseen.errors import ConfigurationError
from neverseen.model.configuration import Configuration
from neverseen.service.operations.history import PROBE
from neverseen.service.operations.settings import Settings
from neverseen.targets import Classes, Numbers

_SAMPLES = 2**30
"""Samples with which a model of numbers can be published, whatever they are."""
_KINDS = ("weighted-classes", "label-sets", "numbers")


def require_served(configuration: Configuration, settings: Settings, place: Path, n_features: int) -> None:
    """Raise `ConfigurationError` if settings, or files in the service's own folder, are not for labels of this kind."""
    targets = configuration.targets
    if type(targets) is Classes:
        return
    if targets.kind not in _KINDS:
        raise ConfigurationError(
            f"a service learns and predicts classes, {', '.join(_KINDS)}, and the labels of this store are {targets}"
        )
    if settings.effect == "immediate":
        raise ConfigurationError(
            f"effect = 'immediate' needs classes without weights, and the labels of this store are {targets}: each "
            "change would take new weights before the next answer. Use effect = 'published'"
        )
    if targets.kind == "numbers" and settings.output != "labels":
        raise ConfigurationError(
            f"output = {settings.output!r} is for classes and label sets: numbers are answered as they are. Leave the "
            "setting out"
        )
    if isinstance(targets, Numbers):
        _require_publishable(configuration, n_features)
    if targets.kind != "weighted-classes" and (place / PROBE).is_file():
        raise ConfigurationError(
            f"{place / PROBE} measures the share of correct classes, and the labels of this store are {targets}: "
            "remove it"
        )


def _require_publishable(configuration: Configuration, n_features: int) -> None:
    """Raise `ConfigurationError` unless `_SAMPLES` samples can be published, whatever they are.

    Otherwise somebody could learn numbers whose weights do not fit (`engine.arithmetic.require_scores_fit`), and
    nothing could be published or sealed any more. With codes C of n samples and numbers y, the weights of an output are
    ``(C'C + gamma I)^-1 C'y``. A singular value s of C counts as ``s / (s^2 + gamma) <= 1 / (2 sqrt(gamma))``, so their
    length is at most ``sqrt(n) max|y| / (2 sqrt(gamma))``, and d of them have magnitudes of at most sqrt(d) times that
    together. One bit is left for rounding them to the grid.
    """
    gamma = configuration.gamma
    size = configuration.encoder.code_size(n_features)
    together = math.sqrt(size * _SAMPLES) * configuration.targets.largest / (2 * math.sqrt(float(gamma)))
    most = 61 - math.ceil(math.log2(127 * together))
    if configuration.grid_bits > most:
        raise ConfigurationError(
            f"with grid_bits = {configuration.grid_bits}, the weights of some numbers would not fit 64 bits, and "
            f"nothing could be published any more: a service needs a store of numbers with grid_bits of at most {most}"
        )
