"""Stores as commands open them: the backbone made again from its recipe, the keys from their file.

Here as in all of the command line, what stores and models need is imported where it is used: it takes a second, which
those who ask for help should not wait.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from neverseen.errors import ConfigurationError
from neverseen.keys import Keyring

if TYPE_CHECKING:
    from neverseen.backbones import Backbone
    from neverseen.store import Store
    from neverseen.store.description import Description

KINDS = "features:NUMBER, features:NUMBER:NAME, efficientnet_lite0, efficientnet_lite0:RESOLUTION or minilm"


def recipe_of(words: str) -> dict[str, Any]:
    """Return the recipe that ``--backbone`` asks for.

    Examples
    --------
    >>> recipe_of("features:384")
    {'kind': 'features', 'n_features': 384, 'name': 'precomputed'}
    >>> recipe_of("efficientnet_lite0")
    {'kind': 'efficientnet_lite0', 'resolution': 128}
    """
    kind, *details = words.split(":", 2)
    try:
        if kind == "features" and details:
            return {"kind": kind, "n_features": int(details[0]), "name": (*details, "precomputed")[1]}
        if kind == "efficientnet_lite0" and len(details) <= 1:
            return {"kind": kind, "resolution": int(details[0]) if details else 128}
    except ValueError:
        pass
    if words == "minilm":
        return {"kind": words}
    raise ConfigurationError(f"a backbone is one of {KINDS}; got {words!r}")


def backbone_of(recipe: Any) -> Backbone:
    """Return the backbone that a recipe describes."""
    from neverseen.backbones import Precomputed, efficientnet_lite0, minilm

    match recipe:
        case {"kind": "features", "n_features": int(size), "name": str(name)}:
            return Precomputed(size, name)
        case {"kind": "efficientnet_lite0", "resolution": int(resolution)}:
            return efficientnet_lite0(resolution=resolution)
        case {"kind": "minilm"}:
            return minilm()
    raise ConfigurationError("the store does not say how to make its backbone: open it from Python, with backbone=")


def described(folder: Path) -> Description:
    """Return what a store is, as the file in its folder says."""
    from neverseen.store.description import Description

    return Description.read(folder)


def opened(folder: Path, *, write: bool, keys: Path | None = None, raw: bool = False) -> Store:
    """Open a store.

    Parameters
    ----------
    folder : Path
    write : bool
    keys : Path or None
        The key file, where it is not in the folder.
    raw : bool
        Whether raw samples will be given, for which the backbone is made.
    """
    from neverseen import store

    known = None if keys is None else Keyring.load(keys)
    backbone = backbone_of(described(folder).backbone.get("recipe")) if raw else None
    hardware = "auto" if write or raw else "numpy"  # what only reads is done before PyTorch would be there
    return store.open(folder, backbone=backbone, keys=known, write=write, hardware=hardware)
