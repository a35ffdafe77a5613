"""The record of a base set: the samples that a backbone was trained on before it was frozen."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from neverseen.backbones.contents import FINGERPRINT_SIZE
from neverseen.errors import ConfigurationError
from neverseen.labels import canonical_json


class BaseSet:
    """The samples that a backbone was trained on, by their fingerprints.

    These samples stay in the backbone's weights for good. A model on that backbone can neither learn nor forget them.

    Parameters
    ----------
    fingerprints : iterable of bytes
        From `neverseen.backbones.fingerprint`.
    settings : dict
        The settings of the training, as JSON values.

    Examples
    --------
    >>> base = BaseSet("public images", [bytes(16)], {"epochs": 3})
    >>> base.holds(bytes(16)), base.holds(b"another sample..")
    (True, False)
    """

    def __init__(self, name: str, fingerprints: Iterable[bytes], settings: dict[str, Any]) -> None:
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"the base set needs a name; got {name!r}")
        self.name = name
        self._fingerprints = frozenset(fingerprints)
        if not all(isinstance(item, bytes) and len(item) == FINGERPRINT_SIZE for item in self._fingerprints):
            raise ConfigurationError(
                f"fingerprints must be {FINGERPRINT_SIZE} bytes each, from neverseen's fingerprint"
            )
        try:
            self._settings = canonical_json(settings)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"the settings of a base set must be JSON values: {error}") from error

    @property
    def fingerprints(self) -> list[bytes]:
        """The fingerprints, sorted, each once."""
        return sorted(self._fingerprints)

    def holds(self, fingerprint: bytes) -> bool:
        """Return whether the sample with this fingerprint is in the base set."""
        return fingerprint in self._fingerprints

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the training, as JSON values."""
        settings: dict[str, Any] = json.loads(self._settings)
        return settings

    def __len__(self) -> int:
        return len(self._fingerprints)

    def description(self) -> dict[str, Any]:
        """Return name, size, a SHA-256 of the fingerprints and the settings, as JSON values."""
        return {
            "name": self.name,
            "samples": len(self),
            "fingerprints": hashlib.sha256(b"".join(self.fingerprints)).hexdigest(),
            "settings": self.settings,
        }

    def __repr__(self) -> str:
        return f"<BaseSet {self.name!r}, {len(self)} samples>"
