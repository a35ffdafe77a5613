"""What stands for a backbone that a store was opened without."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np

from neverseen.backbones import Backbone, Precomputed
from neverseen.backbones.contents import as_list
from neverseen.backbones.protocol import optional, require_backbone
from neverseen.backbones.recipes import backbone_of, kind_of
from neverseen.errors import ConfigurationError, StoreDamagedError
from neverseen.store.description import NAME, Description


class AbsentBackbone:
    """Stands where a store was opened without its backbone: it makes it from the store's recipe once it is needed.

    Receipts need none. Where the store has no recipe, rows of the backbone's features can be given, which the same
    network made elsewhere. With `features_only`, this is done as if there were no recipe.
    """

    def __init__(self, description: Description, folder: Path, *, features_only: bool = False) -> None:
        self.name = str(description.backbone["name"])
        self.n_features = description.n_features
        self._description, self._folder = description, folder
        self._recipe = None if features_only else description.backbone.get("recipe")
        self._lock = threading.Lock()
        self._made: Backbone | None = None

    @property
    def backbone(self) -> Backbone:
        """The backbone itself, made now; where it cannot be made, this."""
        if self._recipe is None:
            return self
        with self._lock:
            if self._made is None:
                self._made = checked(backbone_of(self._recipe, self._folder), self._description, self._folder)
            return self._made

    @property
    def takes(self) -> str:
        """What the backbone takes; where it cannot be made, rows of its features."""
        made = self.backbone
        return "features" if made is self else kind_of(made)

    @property
    def base(self) -> Any:
        """The base set of the backbone."""
        made = self.backbone
        return None if made is self else optional(made, "base")

    def extract(self, samples: Any) -> np.ndarray:
        """Return the features of samples; without a recipe, take rows of features as they are."""
        made = self.backbone
        if made is not self:
            return made.extract(samples)
        rows = as_list(samples)
        if not all(isinstance(row, np.ndarray) and row.ndim == 1 for row in rows):
            raise ConfigurationError(
                f"raw samples need the backbone that this store was made with, {self.name}, and its folder does not "
                "say how to make it: open it with backbone=, or give rows of its features"
            )
        return Precomputed(self.n_features).extract(rows)

    def digest(self) -> str:
        """Return the digest of the backbone that is not here."""
        return self._description.configuration.backbone or ""


def checked(backbone: Backbone | None, description: Description, folder: Path) -> Backbone:
    """Return the backbone if it is the one of the description, and a stand-in if there is none."""
    if backbone is None:
        return AbsentBackbone(description, folder)
    if require_backbone(backbone).digest() != description.configuration.backbone:
        raise ConfigurationError(
            f"the store was made with another backbone than {backbone.name}: {description.backbone['name']}, of digest "
            f"{str(description.configuration.backbone)[:16]}..."
        )
    if backbone.n_features != description.n_features:
        raise StoreDamagedError(
            f"{folder / NAME} says that samples have {description.n_features} features, and {backbone.name} makes "
            f"{backbone.n_features}: restore it from a copy"
        )
    return backbone
