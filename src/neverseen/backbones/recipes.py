"""Recipes: how a store makes its backbone again, as JSON values in its folder.

A recipe names one of the backbones below, or one that a package registered, and its settings. It holds no code and no
path, because a store's folder may come from somebody else. Before the backbone is used, its digest is compared with
that of the store.

=========================  ======================================================================================
``features``               `Precomputed`: ``n_features``, ``name``
``efficientnet_lite0``     ``resolution``, and ``runtime``: ``onnx``, or PyTorch if there is none
``minilm``                 ``runtime``, in the same manner
``onnx``                   `OnnxBackbone` on images: ``backbone.onnx`` in the store's folder, and its ``sha256``
=========================  ======================================================================================

No recipe makes a cache of features: what is forgotten by receipt needs no backbone, so that a cache which nobody has
opened would keep it. And none says ``stands_for``: the digest of a network is taken of its file, or it proves nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from neverseen.backbones.cache import Cached
from neverseen.backbones.images import Images
from neverseen.backbones.named import efficientnet_lite0, minilm
from neverseen.backbones.network import Network
from neverseen.backbones.onnx_runtime import OnnxBackbone
from neverseen.backbones.precomputed import Precomputed
from neverseen.backbones.protocol import CACHE_METHODS, Backbone, optional
from neverseen.errors import ConfigurationError, FileRejectedError
from neverseen.io.files import replace_file
from neverseen.registry import Registry

FILE = "backbone.onnx"
"""The network of a store, in its folder."""
TAKES = ("features", "images", "texts")


class Recipe(NamedTuple):
    """One way to make a backbone."""

    takes: str
    make: Callable[[dict[str, Any], Path], Backbone]


kinds: Registry[Recipe] = Registry("recipe", "backbones", {})


def register(kind: str, takes: str, make: Callable[[dict[str, Any], Path], Backbone]) -> None:
    """Add a way to make a backbone again.

    Parameters
    ----------
    kind : str
        The ``kind`` in the recipes of these backbones.
    takes : {"features", "images", "texts"}
    make : callable
        Gets the recipe (untrusted) and the store's folder, and returns the backbone.
    """
    if takes not in TAKES:
        raise ConfigurationError(f"a backbone takes one of {', '.join(TAKES)}; got {takes!r}")
    kinds.add(kind, Recipe(takes, make))


def takes(recipe: Any) -> str | None:
    """Return what the backbone of a recipe takes, without making it: features, images, texts; None if it is unknown.

    Examples
    --------
    >>> takes({"kind": "minilm"})
    'texts'
    """
    kind = recipe.get("kind") if isinstance(recipe, dict) else None
    return kinds[str(kind)].takes if kind in kinds else None


def kind_of(backbone: Backbone) -> str:
    """Return what a backbone takes, as its attribute ``takes`` says: ``"features"``, ``"images"`` or ``"texts"``."""
    said = optional(backbone, "takes")
    if not isinstance(said, str) or said not in TAKES:
        raise ConfigurationError(
            f"the backbone {backbone.name} does not say which samples it takes: give it an attribute takes, which is "
            f'"features", "images" or "texts"; got {said!r}'
        )
    return said


def reduction_of(backbone: Backbone) -> Images | None:
    """Return what may scale and cut images before a backbone gets them; None if it must see the whole.

    The networks of this package take `Reduced` images. Nothing is known about what a backbone of somebody else does.
    """
    inner = backbone.backbone if isinstance(backbone, Cached) else backbone
    if not isinstance(inner, Network) or type(inner).extract is not Network.extract:
        return None
    return inner.preprocess if type(inner.preprocess) is Images else None


def recipe_of(backbone: Backbone, folder: Path) -> dict[str, Any] | None:
    """Return a recipe that makes a backbone again, or None if there is none.

    Parameters
    ----------
    backbone : Backbone
    folder : Path
        Of the store. The file of an `OnnxBackbone` on images is copied into it.
    """
    inner = backbone.backbone if isinstance(backbone, Cached) else backbone
    if isinstance(inner, Precomputed):
        return {"kind": "features", "n_features": inner.n_features, "name": inner.name}
    own: dict[str, Any] | None = optional(inner, "recipe")
    if own is not None:
        require_recipe(own)
    if own is not None or not isinstance(inner, OnnxBackbone) or type(inner.preprocess) is not Images:
        return own
    if inner.stands_for is not None:  # its digest would fit any file
        return None
    model = inner.path.read_bytes() if inner.path.is_file() else b""
    if hashlib.sha256(model).hexdigest() != inner.file_digest:
        return None  # another file is there by now
    recipe = inner.settings() | {"kind": "onnx", "images": inner.preprocess.configuration()}
    replace_file(folder / FILE, [model])
    if backbone_of(recipe, folder).digest() != inner.digest():  # a base set, or an id of the preprocessing
        (folder / FILE).unlink()
        return None
    return recipe


def require_recipe(recipe: Any) -> None:
    """Raise `ConfigurationError` unless a recipe is one of those that can be followed."""
    if takes(recipe) is None:
        raise ConfigurationError(
            f"a recipe is a dict whose kind is one of {', '.join(kinds.names())}; leave it out, and the backbone says "
            "how it is made, if it can. neverseen.backbones.register adds a kind"
        )


def backbone_of(recipe: Any, folder: Path) -> Backbone:
    """Return the backbone that a recipe describes. Whether it is the right one, its digest must tell.

    Parameters
    ----------
    recipe : JSON value
        Untrusted.
    folder : Path
        Of the store.
    """
    if not isinstance(recipe, dict) or "kind" not in recipe:
        raise ConfigurationError("the store does not say how to make its backbone")
    made = kinds[recipe["kind"]].make(recipe, folder)
    if any(hasattr(made, name) for name in CACHE_METHODS):
        raise ConfigurationError(
            f"the recipe of kind {recipe['kind']} makes a cache of features, which would keep what is forgotten by "
            "receipt: let it make only the backbone, and give the cache with backbone= (--backbone MODULE:FUNCTION)"
        )
    return made


def _own(recipe: dict[str, Any], folder: Path) -> Backbone:
    match recipe:
        case {"kind": "features", "n_features": int(size), "name": str(name)}:
            return Precomputed(size, name)
        case {"kind": "efficientnet_lite0", "resolution": int(resolution)}:
            return efficientnet_lite0(resolution=resolution, runtime=str(recipe.get("runtime", "torch")))
        case {"kind": "minilm"}:
            return minilm(runtime=str(recipe.get("runtime", "torch")))
        case {"kind": "onnx", "sha256": str(digest), "images": dict(images)}:
            return _network(folder / FILE, digest, images, recipe)
    raise ConfigurationError("the store says how to make its backbone with settings that cannot be used")


for _kind, _takes in (
    ("features", "features"),
    ("efficientnet_lite0", "images"),
    ("minilm", "texts"),
    ("onnx", "images"),
):
    register(_kind, _takes, _own)


def _network(path: Path, digest: str, images: dict[str, Any], recipe: dict[str, Any]) -> OnnxBackbone:
    if recipe.get("stands_for") is not None:
        raise ConfigurationError(
            f"the store says that {path.name} stands for another network, and nothing can check that: give the "
            "backbone yourself, with backbone= (--backbone MODULE:FUNCTION). If you trust the file, that is "
            f"OnnxBackbone({str(path)!r}, ..., stands_for=...)"
        )
    if path.is_symlink() or not path.is_file():
        raise FileRejectedError(f"{path}, the store's network, is missing, or is not a plain file: restore it")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != digest:
        raise FileRejectedError(f"{path} is not the network that the store was made with: restore it from a copy")
    try:
        preprocess = Images.from_configuration(images)
    except (KeyError, TypeError, ValueError) as error:
        raise FileRejectedError("the store's recipe has a preprocessing that cannot be used") from error
    settings: dict[str, Any] = {key: recipe.get(key) for key in ("name", "output", "n_features", "batch_size")}
    made = OnnxBackbone(path, preprocess, **settings)
    if made.file_digest != digest:  # swapped in between
        raise FileRejectedError(f"{path} changed while it was being read")
    return made
