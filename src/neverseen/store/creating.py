"""Creating a store, and opening one."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neverseen.backbones import Backbone
from neverseen.backbones.recipes import recipe_of, require_recipe
from neverseen.engine.statistics import Statistics
from neverseen.errors import ConfigurationError
from neverseen.hardware import choose
from neverseen.io.files import sync_folder
from neverseen.ledger import Ledger, in_file
from neverseen.ledger.sqlite import absolute_url
from neverseen.proof.keys import Keyring
from neverseen.proof.signing import SigningKey
from neverseen.store.description import Description
from neverseen.store.parts import KEYS, LEDGER, SIGNING_KEY, SUMS
from neverseen.store.publications import CERTIFICATES, VERSIONS
from neverseen.store.snapshots import StoredClassGrams, write_snapshot
from neverseen.store.store import Store

if TYPE_CHECKING:
    from neverseen.model.classifier import AnalyticClassifier


def open_store(
    folder: str | os.PathLike[str],
    *,
    backbone: Backbone | None = None,
    keys: Keyring | None = None,
    write: bool = True,
    hardware: str = "auto",
    clock: Callable[[], float] = time.time,
) -> Store:
    """Open a store.

    Parameters
    ----------
    folder : path
    backbone : Backbone, optional
        The store's backbone; another one is refused by its digest. By default it is made from the store's recipe when
        raw samples come. Without a recipe, you can still give receipts, or rows of features.
    keys : Keyring, optional
        Needed if they are not in the folder.
    write : bool
        Whether to open it for changes. Only one process at a time can. Readers see the published version.
    """
    return Store(Path(folder).absolute(), backbone, keys, write, choose(hardware), clock)


def create(
    folder: str | os.PathLike[str],
    backbone: Backbone,
    classifier: AnalyticClassifier | None = None,
    *,
    keys: Keyring | None = None,
    ledger: str | None = None,
    recipe: dict[str, Any] | None = None,
) -> Store:
    """Create a store and open it for writing.

    Parameters
    ----------
    folder : path
        Must not exist, or must be empty. It appears complete or not at all.
    classifier : AnalyticClassifier, optional
        Only its settings are used. It must hold no samples.
    keys : Keyring, optional
        By default, new keys are made and kept in the folder. Keys that you give are not stored: keep them safe, and
        give them to `open`.
    ledger : str, optional
        URL of a PostgreSQL database (``postgresql+psycopg://...``) for the ledger. By default, a file in the folder.
    recipe : dict, optional
        How to make the backbone again, for `open` without a backbone, the command line and the service
        (`neverseen.backbones.recipes`). By default, the backbone's own recipe: named backbones, `Precomputed` and
        `OnnxBackbone` on images (its file is copied into the folder) have one. Others must be given to `open`.
    """
    from neverseen.model.classifier import AnalyticClassifier  # scikit-learn takes a second, and opening does without
    from neverseen.model.forgetting import ForgettingModel

    if recipe is not None:
        require_recipe(recipe)
    place = Path(folder).absolute()  # the process may change its working folder while the store is open
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise FileExistsError(f"{place} already exists: open it with store.open, or choose another folder")
    if place.exists() and place.samefile(Path()):
        raise ConfigurationError(f"{place} is the working folder, which stays as it is: name a new folder in it")
    if ledger is not None:
        ledger = absolute_url(ledger)
    settings = AnalyticClassifier() if classifier is None else classifier
    known = Keyring.generate(settings.key) if keys is None else keys
    # The facade checks backbone, classifier and keys, and binds the backbone's digest.
    model = ForgettingModel(backbone, settings, known)
    signing = SigningKey.generate()
    partial = place.parent / f".{place.name}.{secrets.token_hex(4)}"
    partial.mkdir(mode=0o700, parents=False)
    try:
        for name in (SUMS, VERSIONS, CERTIFICATES):
            (partial / name).mkdir(mode=0o700)
        if keys is None:
            known.save(partial / KEYS)
        signing.save(partial / SIGNING_KEY)
        configuration = model.classifier.configuration()
        tracked = bool(settings.track_classes)
        configuration.require_tracking(tracked)
        about = {"name": backbone.name, "recipe": recipe or recipe_of(backbone, partial)}
        Description(configuration, backbone.n_features, tracked, about, ledger, signing.public).write(partial)
        sums = Statistics(configuration.encoder.code_size(backbone.n_features))
        sums.class_grams = StoredClassGrams(sums.size) if tracked else None
        snapshot = write_snapshot(partial / SUMS, sums)
        database = Ledger(ledger or in_file(partial / LEDGER), create=True)
        try:
            with database.writing() as writing:
                writing.set_meta("configuration", configuration.digest().hex())
                writing.set_meta("key_check", known.membership.check())
                writing.set_meta("snapshot", snapshot)
        finally:
            database.close()
        if place.exists():
            place.rmdir()
        partial.rename(place)
        sync_folder(place.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return open_store(place, backbone=backbone, keys=keys)
