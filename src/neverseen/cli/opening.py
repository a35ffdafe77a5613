"""Opens stores for commands: the backbone from its recipe or from the operator, the keys from their file.

As everywhere in the command line, modules for stores and models are imported where they are used. Importing them takes
a second, and --help should not take that long.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neverseen.errors import ConfigurationError, KeyMissingError, NotPublishedError
from neverseen.io.files import require_file
from neverseen.proof.keys import Keyring
from neverseen.sources.tables import Takes

if TYPE_CHECKING:
    from neverseen.backbones import Backbone
    from neverseen.store import Store
    from neverseen.store.description import Description

KINDS = (
    "features:NUMBER, features:NUMBER:NAME, efficientnet_lite0, efficientnet_lite0:RESOLUTION, minilm, onnx:FILE or "
    "MODULE:FUNCTION"
)
NAMED = ("features", "efficientnet_lite0", "minilm", "onnx")
"""The words before a colon in these. A module must have another name."""
FEATURES = "features"
"""As ``--backbone`` of an existing store: samples are rows of its backbone's features."""


def recipe_of(words: str) -> dict[str, Any]:
    """Return the recipe that ``--backbone`` asks for.

    Examples
    --------
    >>> recipe_of("features:384")
    {'kind': 'features', 'n_features': 384, 'name': 'precomputed'}
    >>> recipe_of("efficientnet_lite0")
    {'kind': 'efficientnet_lite0', 'runtime': 'auto', 'resolution': 128}
    """
    kind, *details = words.split(":", 2)
    try:
        if kind == "features" and details and details[1:] != [""]:
            return {"kind": kind, "n_features": int(details[0]), "name": (*details, "precomputed")[1]}
        if kind == "efficientnet_lite0" and len(details) <= 1:
            return {"kind": kind, "runtime": "auto", "resolution": int(details[0]) if details else 128}
    except ValueError:
        pass
    if words == "minilm":
        return {"kind": words, "runtime": "auto"}
    raise ConfigurationError(f"a backbone is one of {KINDS}")


def new_backbone(words: str) -> Backbone:
    """Return the backbone that ``--backbone`` asks for. Only call it with words from the command line."""
    from neverseen.backbones import OnnxBackbone
    from neverseen.backbones.recipes import backbone_of

    kind, _, rest = words.partition(":")
    if kind == "onnx" and rest:
        return OnnxBackbone(rest)
    if kind not in NAMED and rest:
        return operators_backbone(words)
    try:
        return backbone_of(recipe_of(words), Path())
    except ConfigurationError as error:
        raise ConfigurationError(f"--backbone {words}: {error}") from error


def operators_backbone(words: str) -> Backbone:
    """Return what a function of the operator's makes, given as ``module:function``.

    Only call it with words from the command line, never from a store's folder. The current folder may be full of files
    from strangers, so it is searched only for a module that is not installed.
    """
    from neverseen.backbones import Backbone
    from neverseen.backbones.recipes import kind_of

    module, _, name = words.partition(":")
    here = str(Path.cwd())
    try:
        if importlib.util.find_spec(module.partition(".")[0]) is None and here not in sys.path:
            sys.path.append(here)
            importlib.invalidate_caches()
        loaded = importlib.import_module(module)
    except Exception as error:  # whatever the operator's module raises
        raise ConfigurationError(
            f"--backbone {words}: it cannot be imported ({_cause(error)}). Give MODULE:FUNCTION, from a module that is "
            f"installed or in this folder. A backbone is one of {KINDS}"
        ) from error
    found: Any = getattr(loaded, name, None)
    if found is None:
        raise ConfigurationError(f"--backbone {words}: there is no {name!r} in {loaded.__file__ or module}")
    is_made = isinstance(found, Backbone) and not isinstance(found, type)
    try:
        made = found() if callable(found) and not is_made else found
    except Exception as error:  # whatever the operator's function raises
        raise ConfigurationError(f"--backbone {words}: the function failed ({_cause(error)})") from error
    if not isinstance(made, Backbone):
        raise ConfigurationError(
            f"--backbone {words} gave a {type(made).__name__}: a backbone has a name, n_features, extract and digest"
        )
    kind_of(made)  # or raise: it does not say
    return made


def _cause(error: Exception) -> str:
    """Return an error of the operator's code in one line, with its place."""
    frames = traceback.extract_tb(error.__traceback__)
    skipped = (__file__, importlib.__file__)
    own = [frame for frame in frames if frame.filename not in skipped and Path(frame.filename).is_file()]
    place = f", in {Path(own[-1].filename).name}, line {own[-1].lineno}" if own else ""
    return f"{type(error).__name__}: {error}{place}"


def require_place(folder: Path) -> None:
    """Raise unless a folder can be made."""
    if folder.exists() or folder.is_symlink():
        raise FileExistsError(f"{folder} already exists: choose another folder")
    if not folder.parent.is_dir():
        raise FileNotFoundError(f"the folder {folder.parent} for {folder.name} does not exist: make it first")
    if not os.access(folder.parent, os.W_OK | os.X_OK):
        raise PermissionError(f"{folder} cannot be made: {folder.parent} is not writable. Choose another place")


def keys_of(folder: Path, given: Path | None) -> Keyring:
    """Return the keys of a store: those of ``--keys``, or those in its folder."""
    from neverseen.store.parts import KEYS

    if given is None and not (folder / KEYS).is_file():
        raise KeyMissingError(f"the keys of {folder} are not in its folder: give their file with --keys FILE")
    if given is not None:
        require_file(given, "the key file that the store was made with")
    return Keyring.load(given or folder / KEYS)


def described(folder: Path) -> Description:
    """Return the description of a store."""
    from neverseen.store.description import NAME, Description

    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file, not a store: give the folder that neverseen init made")
    if not (folder / NAME).is_file():
        raise FileNotFoundError(f"{folder} is not a store: there is no {NAME} in it. Make one: neverseen init {folder}")
    return Description.read(folder)


def backbone_for(folder: Path, words: str | None) -> Backbone:
    """Return the backbone of a store, with or without ``--backbone``; raise at once if it cannot be made."""
    from neverseen.backbones.recipes import backbone_of, takes
    from neverseen.store.absent import AbsentBackbone, checked

    if words == FEATURES:
        return AbsentBackbone(described(folder), folder, features_only=True)
    if words is not None:
        return checked(new_backbone(words), described(folder), folder)
    about = described(folder).backbone
    recipe = about.get("recipe")
    if takes(recipe) is None:
        raise ConfigurationError(
            f"{folder} was made with the backbone {about['name']}, and has no recipe for it. Give the backbone with "
            "--backbone MODULE:FUNCTION, or give rows of its features with --backbone features. Receipts, "
            "status and verify need no backbone"
        )
    return backbone_of(recipe, folder)


def taken_by(folder: Path, words: str | None) -> tuple[Takes, Backbone | None]:
    """Return what a store takes, and its backbone if that had to be made to find out. Call this before slow work."""
    from neverseen.backbones.recipes import kind_of, takes

    description = described(folder)
    name = str(description.backbone["name"])
    kind = takes(description.backbone.get("recipe")) if words is None else None
    made = None
    if kind is None:
        made = backbone_for(folder, words)
        kind = kind_of(made)
    return Takes(kind, description.n_features, str(folder), name), made


def require_published(model: Store) -> None:
    """Raise `NotPublishedError`, with the remedy, unless a version is published."""
    if model.published_number == 0:
        raise NotPublishedError(f"nothing is published in {model.folder} yet: run neverseen publish {model.folder}")


def opened(
    folder: Path,
    *,
    write: bool,
    keys: Path | None = None,
    raw: bool = False,
    words: str | None = None,
    made: Backbone | None = None,
    needs_keys: bool = False,
    signs: bool = False,
) -> Store:
    """Open a store.

    Parameters
    ----------
    keys : Path or None
        The key file, if it is not in the folder.
    raw : bool
        Whether raw samples will be given, for which the backbone is made.
    words : str or None
        Of ``--backbone``.
    made : Backbone, optional
        The backbone, if it is already made.
    needs_keys : bool
        Whether the command needs the keys.
    signs : bool
        Whether a certificate will be signed. If the signing key is missing, the store is refused before any change.
    """
    from neverseen import store
    from neverseen.store.parts import SIGNING_KEY

    described(folder)
    if write and not os.access(folder, os.W_OK):
        raise PermissionError(
            f"{folder} cannot be written: it is mounted read-only, or belongs to somebody else. predict, status, "
            "history, certificate, verify and export to .safetensors or .onnx work"
        )
    if signs and not (folder / SIGNING_KEY).is_file():
        raise KeyMissingError(
            f"{folder / SIGNING_KEY}, the key that signs certificates, is missing: restore it from a copy. Nothing was "
            "changed"
        )
    known = keys_of(folder, keys) if needs_keys or keys is not None else None
    backbone = made
    if made is None and (raw or words is not None):  # a cache that is given must lose what is forgotten by receipt too
        backbone = backbone_for(folder, words)
    hardware = "auto" if write or raw else "numpy"  # a reader is done before PyTorch would be imported
    try:
        return store.open(folder, backbone=backbone, keys=known, write=write, hardware=hardware)
    except KeyMissingError:
        raise KeyMissingError(
            "version 0.1.0 wrote this store. Bringing it up to date needs its keys, which are not in its folder: give "
            "their file with --keys FILE"
        ) from None
