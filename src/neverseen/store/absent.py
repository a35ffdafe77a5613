"""What stands for a backbone that a store was opened without."""

from __future__ import annotations

from typing import Any

import numpy as np

from neverseen.backbones import Backbone
from neverseen.errors import ConfigurationError
from neverseen.store.description import Description


class AbsentBackbone:
    """Stands where a store was opened without its backbone: receipts work, raw samples do not."""

    base = None

    def __init__(self, description: Description) -> None:
        self.name = str(description.backbone["name"])
        self.n_features = description.n_features
        self._digest = description.configuration.backbone or ""

    def extract(self, samples: Any) -> np.ndarray:
        """Refuse."""
        raise ConfigurationError(
            f"raw samples need the backbone that this store was made with, {self.name}: open it with backbone="
        )

    def digest(self) -> str:
        """Return the digest of the backbone that is not here."""
        return self._digest


def checked(backbone: Backbone | None, description: Description) -> Backbone:
    """Return the backbone if it is the one of the description, and a stand-in if there is none."""
    if backbone is None:
        return AbsentBackbone(description)
    if backbone.digest() != description.configuration.backbone:
        raise ConfigurationError(
            f"the store was made with another backbone than {backbone.name}: {description.backbone['name']}, of digest "
            f"{str(description.configuration.backbone)[:16]}..."
        )
    return backbone
