"""What a service can do for the labels of its store. What it cannot is refused at the start."""

from __future__ import annotations

from pathlib import Path

from neverseen.errors import ConfigurationError
from neverseen.model.configuration import Configuration
from neverseen.service.operations.history import PROBE
from neverseen.service.operations.settings import Settings
from neverseen.targets import Classes

_KINDS = ("weighted-classes", "label-sets", "numbers")


def require_served(configuration: Configuration, settings: Settings, place: Path) -> None:
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
    if targets.kind != "weighted-classes" and (place / PROBE).is_file():
        raise ConfigurationError(
            f"{place / PROBE} measures the share of correct classes, and the labels of this store are {targets}: "
            "remove it"
        )
