"""What a store is: settings that are fixed when it is made, in one small file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neverseen.encoding import Encoder, GaussianKernel, Identity, RandomProjection
from neverseen.errors import ConfigurationError, FileRejectedError, StoreDamagedError
from neverseen.files import replace_file
from neverseen.labels import canonical_json
from neverseen.model import Configuration
from neverseen.store.arrays import StoredArray, write_array

NAME = "store.json"
FORMAT = "neverseen-store-1"


@dataclass(frozen=True)
class Description:
    """What a store is.

    Attributes
    ----------
    configuration : Configuration
        With the digest of the backbone.
    n_features : int
    track_classes : bool
    backbone : dict
        How to make the backbone again: a name and settings that `neverseen.backbones` knows, or its name alone.
    ledger : str or None
        URL of the ledger; None for a file in the store's folder.
    public_key : str
        Of the certificates, in hex.
    """

    configuration: Configuration
    n_features: int
    track_classes: bool
    backbone: dict[str, Any]
    ledger: str | None
    public_key: str

    def write(self, folder: Path) -> None:
        """Write the description into a store's folder."""
        encoder = self.configuration.encoder
        if type(encoder) not in (Identity, RandomProjection, GaussianKernel):
            raise ConfigurationError(f"models with a custom encoder ({type(encoder).__name__}) cannot be stored")
        centres = None
        if isinstance(encoder, GaussianKernel):
            centres = write_array(folder, encoder.quantised_centres())
        about = {
            "backbone": self.backbone,
            "centres": centres,
            "configuration": self.configuration.as_json(),
            "format": FORMAT,
            "ledger": self.ledger,
            "n_features": self.n_features,
            "public_key": self.public_key,
            "track_classes": self.track_classes,
        }
        replace_file(folder / NAME, [canonical_json(about).encode() + b"\n"])

    @classmethod
    def read(cls, folder: Path) -> Description:
        """Read the description in a store's folder."""
        path = folder / NAME
        if not path.is_file():
            raise FileNotFoundError(f"{folder} is not a store: there is no {NAME} in it. Make one with store.create")
        try:
            about = json.loads(path.read_bytes())
            if about["format"] != FORMAT:
                raise StoreDamagedError(f"{path} has the format {about['format']!r}; this version reads {FORMAT!r}")
            settings = about["configuration"]
            encoder = _encoder(settings["encoder"], folder, about["centres"])
            configuration = Configuration(encoder, settings["gamma"], settings["grid_bits"], settings.get("backbone"))
            if configuration.as_json() != settings:
                raise ValueError
            return cls(
                configuration,
                about["n_features"],
                about["track_classes"],
                about["backbone"],
                about["ledger"],
                about["public_key"],
            )
        except (ValueError, KeyError, TypeError, RecursionError, FileRejectedError, ConfigurationError) as error:
            raise StoreDamagedError(f"{path} is damaged: restore it from a copy") from error


def _encoder(settings: dict[str, Any], folder: Path, centres: str | None) -> Encoder:
    if settings["kind"] == "identity":
        return Identity()
    if settings["kind"] == "random-projection":
        return RandomProjection(settings["codes"], settings["seed"])
    if settings["kind"] == "gaussian-kernel" and centres is not None:
        return GaussianKernel(StoredArray(folder, centres).read(), float.fromhex(settings["bandwidth"]))
    raise ValueError
