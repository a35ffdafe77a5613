"""A stand-in for the backbone of a store that was opened without it."""

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
    """A stand-in for the backbone of a store. It makes the backbone from the store's recipe when it is first needed.

    Receipts need no backbone. If the store has no recipe, samples can be rows of features that the same network
    computed elsewhere. With `features_only`, the recipe is ignored.
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
        """The backbone itself, made on first use; this stand-in if there is no recipe."""
        if self._recipe is None:
            return self
        with self._lock:
            if self._made is None:
                self._made = checked(backbone_of(self._recipe, self._folder), self._description, self._folder)
            return self._made

    @property
    def takes(self) -> str:
        """The kind of samples of the backbone; ``"features"`` if there is no recipe."""
        made = self.backbone
        return "features" if made is self else kind_of(made)

    @property
    def base(self) -> Any:
        """The base set of the backbone."""
        made = self.backbone
        return None if made is self else optional(made, "base")

    def extract(self, samples: Any) -> np.ndarray:
        """Return the features of samples; without a recipe, samples are rows of features already."""
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
        """Return the digest of the backbone, from the store's description."""
        return self._description.configuration.backbone or ""


def checked(backbone: Backbone | None, description: Description, folder: Path) -> Backbone:
    """Return the backbone, or a stand-in for None; raise unless its digest is that of the description."""
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
