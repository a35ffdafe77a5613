"""Opens stores for commands: the backbone from its recipe or from the operator, the keys from their file.

As everywhere in the command line, modules for stores and models are imported where they are used. Importing them takes
a second, and --help should not take that long.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from neverseen.errors import ConfigurationError, InputError, KeyMissingError, NotPublishedError
from neverseen.io.files import require_file
from neverseen.proof.keys import Keyring
from neverseen.sources.tables import Takes

if TYPE_CHECKING:
    from neverseen.backbones import Backbone
    from neverseen.store import Store
    from neverseen.store.description import Description

FEATURES = "features"
"""As ``--backbone`` of an existing store: samples are rows of its backbone's features."""


def require_place(folder: Path) -> None:
    """Raise unless a folder can be made."""
    if folder.exists() or folder.is_symlink():
        raise FileExistsError(f"{folder} already exists: choose another folder")
    if not folder.parent.is_dir():
        raise FileNotFoundError(f"the folder {folder.parent} for {folder.name} does not exist: make it first")
    if not os.access(folder.parent, os.W_OK | os.X_OK):
        raise PermissionError(f"{folder} cannot be made: {folder.parent} is not writable. Choose another place")


LEFT = "Files there stay when samples are forgotten"
"""The reason to keep files about samples out of a store's folder: a seal would leave them there."""


def require_outside(folder: Path, place: Path, option: str, why: str = LEFT) -> None:
    """Raise if a file would be in a store's folder."""
    found = Path(os.path.realpath(place))
    if Path(os.path.realpath(folder)) in (found, *found.parents):
        raise InputError(f"{option} {place} is in the folder of the store. {why}: choose another place")


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
        raise FileNotFoundError(
            f"{folder} is not a store: it has no {NAME}. To create one: neverseen init {folder} --backbone "
            "features:8 (neverseen init --help lists other backbones)"
        )
    return Description.read(folder)


def operators_backbone(words: str) -> Backbone:
    """Return the backbone that ``--backbone`` asks for."""
    from neverseen.backbones.words import backbone_from_words

    try:
        return backbone_from_words(words)
    except ConfigurationError as error:
        raise ConfigurationError(f"--backbone {words}: {error}") from error


def backbone_for(folder: Path, words: str | None) -> Backbone:
    """Return the backbone of a store, or raise at once; `words` are those of ``--backbone``."""
    from neverseen.backbones.recipes import backbone_of, takes
    from neverseen.store.absent_backbone import AbsentBackbone, checked

    if words == FEATURES:
        return AbsentBackbone(described(folder), folder, features_only=True)
    if words is not None:
        return checked(operators_backbone(words), described(folder), folder)
    about = described(folder).backbone
    recipe = about.get("recipe")
    if takes(recipe) is None:
        raise ConfigurationError(
            f"{folder} was made with the backbone {about['name']}, and has no recipe for it. Give the backbone with "
            "--backbone MODULE:FUNCTION, or give rows of its features with --backbone features. Receipts, status and "
            "verify need no backbone"
        )
    return backbone_of(recipe, folder)


def taken_by(folder: Path, words: str | None) -> tuple[Takes, Backbone | None]:
    """Return the kind of samples of a store, and its backbone if only that could tell. Call this before slow work."""
    from neverseen.backbones.recipes import kind_of, takes
    from neverseen.targets import Classes

    description = described(folder)
    name = str(description.backbone["name"])
    kind = takes(description.backbone.get("recipe")) if words is None else None
    made = None
    if kind is None:
        made = backbone_for(folder, words)
        kind = kind_of(made)
    targets = description.configuration.targets
    others = None if type(targets) is Classes else targets
    return Takes(kind, description.n_features, str(folder), name, others), made


def require_writable(folder: Path) -> None:
    """Raise unless a folder is a store's and may be written."""
    described(folder)
    if not os.access(folder, os.W_OK):
        raise PermissionError(
            f"{folder} cannot be written: it is mounted read-only, or belongs to somebody else. predict, status, "
            "history, certificate, verify and export to .safetensors or .onnx work"
        )


@contextmanager
def keys_asked_for() -> Iterator[None]:
    """If a store cannot be opened without its keys, say how to give them."""
    try:
        yield
    except KeyMissingError:
        raise KeyMissingError(
            "version 0.1.0 wrote this store. Bringing it up to date needs its keys, which are not in its folder: give "
            "their file with --keys FILE"
        ) from None


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

    `raw`: raw samples will follow, so make the backbone, from the `words` of ``--backbone``, unless it is `made`.
    `signs`: a certificate will follow, so require its key now, before anything changes.
    """
    from neverseen import store
    from neverseen.store.certification import signing_key

    if write:
        require_writable(folder)
    else:
        described(folder)
    if signs:
        signing_key(folder, described(folder))
    known = keys_of(folder, keys) if needs_keys or keys is not None else None
    backbone = made
    if made is None and (raw or words is not None):  # a cache that is given must lose what is forgotten by receipt too
        backbone = backbone_for(folder, words)
    hardware = "auto" if write or raw else "numpy"  # importing PyTorch takes longer than reading
    with keys_asked_for():
        return store.open(folder, backbone=backbone, keys=known, write=write, hardware=hardware)
