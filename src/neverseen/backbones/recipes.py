"""Recipes: how a store makes its backbone again, as JSON values in its folder.

A recipe has a ``kind``, which is one of those below or one that a package registered, and its settings. It holds no
code and no path, because a store's folder may come from somebody else. The store compares the digest of the new
backbone with its own before it uses it.

=========================  ======================================================================================
``features``               `Precomputed`: ``n_features``, ``name``
``efficientnet_lite0``     ``resolution``, and ``runtime``: ``onnx``; without it, PyTorch
``minilm``                 ``runtime``, in the same manner
``onnx``                   `OnnxBackbone` on images: ``backbone.onnx`` in the store's folder, and its ``sha256``
=========================  ======================================================================================

A recipe never makes a cache of features. To forget by receipt, a store needs no backbone: it would not open the cache,
and the features would stay. And a recipe never has ``stands_for``: only the digest of the network's own file proves
anything.
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
from neverseen.errors import ConfigurationError, FileRejectedError, damaged
from neverseen.io.files import replace_file
from neverseen.registry import Registry

FILE = "backbone.onnx"
"""The network of a store, in its folder."""
TAKES = ("features", "images", "texts")


class Recipe(NamedTuple):
    """One kind of backbone, as `register` takes it. An entry point in ``neverseen.backbones`` names one.

    Attributes
    ----------
    takes : {"features", "images", "texts"}
        The kind of samples.
    make : callable
        Makes the backbone again from a recipe (untrusted) and the store's folder.
    from_words : callable, optional
        Makes the backbone for ``--backbone NAME:FIRST:SECOND``, from the texts after the name. By default there are
        none, and the name means the recipe ``{"kind": NAME}``.
    """

    takes: str
    make: Callable[[dict[str, Any], Path], Backbone]
    from_words: Callable[..., Backbone] | None = None


kinds: Registry[Recipe] = Registry("backbone", "backbones", {}, Recipe)


def register(
    kind: str,
    takes: str,
    make: Callable[[dict[str, Any], Path], Backbone],
    from_words: Callable[..., Backbone] | None = None,
) -> None:
    """Add a kind of backbone, for recipes and for the command line. The other arguments are those of `Recipe`."""
    if takes not in TAKES:
        raise ConfigurationError(f"a backbone takes one of {', '.join(TAKES)}; got {takes!r}")
    kinds.add(kind, Recipe(takes, make, from_words))


def takes(recipe: Any) -> str | None:
    """Return the kind of samples of a recipe's backbone, without making it; None if the recipe is unknown.

    Examples
    --------
    >>> takes({"kind": "minilm"})
    'texts'
    """
    kind = recipe.get("kind") if isinstance(recipe, dict) else None
    return kinds[str(kind)].takes if kind in kinds else None


def kind_of(backbone: Backbone) -> str:
    """Return the kind of samples of a backbone, its attribute ``takes``; raise unless it is one of `TAKES`."""
    said = optional(backbone, "takes")
    if not isinstance(said, str) or said not in TAKES:
        raise ConfigurationError(
            f"the backbone {backbone.name} does not say which samples it takes: give it an attribute takes, which is "
            f'"features", "images" or "texts"; got {said!r}'
        )
    return said


def reduction_of(backbone: Backbone) -> Images | None:
    """Return the preprocessing that may reduce images before they reach a backbone; None if it needs whole images.

    The networks of this package accept `Reduced` images. Other backbones may not.
    """
    inner = backbone.backbone if isinstance(backbone, Cached) else backbone
    if not isinstance(inner, Network) or type(inner).extract is not Network.extract:
        return None
    return inner.preprocess if type(inner.preprocess) is Images else None


def recipe_of(backbone: Backbone, folder: Path) -> dict[str, Any] | None:
    """Return a recipe that makes a backbone again, or None if there is none.

    Parameters
    ----------
    folder : Path
        The store's folder. The file of an `OnnxBackbone` on images is copied into it.
    """
    inner = backbone.backbone if isinstance(backbone, Cached) else backbone
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
    """Raise `ConfigurationError` unless the kind of a recipe is registered."""
    if takes(recipe) is None:
        raise ConfigurationError(
            f"a recipe is a dict whose kind is one of {', '.join(kinds.names())}; leave it out, and the backbone says "
            "how it is made, if it can. neverseen.backbones.register adds a kind"
        )


def backbone_of(recipe: Any, folder: Path) -> Backbone:
    """Return the backbone of a recipe. The caller must check its digest.

    Parameters
    ----------
    recipe : JSON value
        Untrusted.
    folder : Path
        The store's folder.
    """
    if not isinstance(recipe, dict) or "kind" not in recipe:
        raise ConfigurationError("the store does not say how to make its backbone")
    made = kinds[recipe["kind"]].make(recipe, folder)
    if any(hasattr(made, name) for name in CACHE_METHODS):
        raise ConfigurationError(
            f"the recipe of kind {recipe['kind']} makes a cache of features, which would keep the features of samples "
            "forgotten by receipt: let it make only the backbone, and give the cache yourself as the backbone",
            arguments=("backbone",),
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


def _whole(words: str) -> Any:
    return int(words) if words.isdecimal() else words  # and is refused by its name


register("features", "features", _own, lambda number, name="precomputed": Precomputed(_whole(number), name))
register(
    "efficientnet_lite0", "images", _own, lambda resolution="128": efficientnet_lite0(resolution=_whole(resolution))
)
register("minilm", "texts", _own, lambda: minilm(runtime="auto"))
register("onnx", "images", _own, lambda file: OnnxBackbone(Path(file)))


def _network(path: Path, digest: str, images: dict[str, Any], recipe: dict[str, Any]) -> OnnxBackbone:
    if recipe.get("stands_for") is not None:
        raise ConfigurationError(
            f"the store says that {path.name} stands for another network, and nothing can check that: give the "
            f"backbone yourself. If you trust the file, that is OnnxBackbone({str(path)!r}, ..., stands_for=...)",
            arguments=("backbone",),
        )
    if path.is_symlink() or not path.is_file():
        raise FileRejectedError(f"{path}, the store's network, is missing, or is not a plain file: restore it")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != digest:
        raise FileRejectedError(f"{path} is not the network that the store was made with: restore it from a copy")
    with damaged(FileRejectedError("the store's recipe has a preprocessing that cannot be used")):
        preprocess = Images.from_configuration(images)
    settings: dict[str, Any] = {key: recipe.get(key) for key in ("name", "output", "n_features", "batch_size")}
    made = OnnxBackbone(path, preprocess, **settings)
    if made.file_digest != digest:  # swapped in between
        raise FileRejectedError(f"{path} changed while it was being read")
    return made
