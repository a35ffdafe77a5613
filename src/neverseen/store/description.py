"""The description of a store: its fixed settings, in one small file."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neverseen.encoding import require_storable
from neverseen.errors import StoreDamagedError, UnknownKindError
from neverseen.io.files import replace_file
from neverseen.labels import canonical_json, parse_json
from neverseen.model.configuration import Configuration
from neverseen.store.arrays import StoredArray, write_array

NAME = "store.json"
FORMAT = "neverseen-store-1"
_PUBLIC_KEY = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Description:
    """The fixed settings of a store."""

    configuration: Configuration  # with the digest of the backbone
    n_features: int
    track_classes: bool
    # how to make the backbone again: a name and settings that `neverseen.backbones` knows, or its name alone
    backbone: dict[str, Any]
    ledger: str | None  # URL of the ledger; None for a file in the store's folder
    public_key: str  # of the certificates, in hex

    def write(self, folder: Path) -> None:
        """Write the description into a store's folder."""
        encoder = self.configuration.encoder
        require_storable(encoder)
        array = encoder.array()
        about = {
            "backbone": self.backbone,
            "centres": None if array is None else write_array(folder, array),
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
            about = parse_json(path.read_bytes())
            if about["format"] != FORMAT:
                raise StoreDamagedError(f"{path} has the format {about['format']!r}; this version reads {FORMAT!r}")
            wrong = next((field for field, fits in _FIELDS.items() if not fits(about[field])), None)
            if wrong is not None:
                raise StoreDamagedError(f"{path} is damaged: its field {wrong!r} cannot be. Restore it from a copy")
            centres = None if about["centres"] is None else StoredArray(folder, about["centres"]).read()
            configuration = Configuration.from_json(about["configuration"], centres)
            return cls(
                configuration,
                about["n_features"],
                about["track_classes"],
                about["backbone"],
                about["ledger"],
                about["public_key"],
            )
        except UnknownKindError as error:
            raise UnknownKindError(f"the store {folder} cannot be opened here: {error}") from error
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise StoreDamagedError(f"{path} is damaged: restore it from a copy") from error


def _is_backbone(about: Any) -> bool:
    return isinstance(about, dict) and isinstance(about["name"], str) and isinstance(about.get("recipe"), dict | None)


_FIELDS: dict[str, Callable[[Any], bool]] = {
    "backbone": _is_backbone,
    "centres": lambda name: name is None or isinstance(name, str),
    "configuration": lambda settings: isinstance(settings, dict),
    "ledger": lambda url: url is None or (isinstance(url, str) and url != ""),
    "n_features": lambda size: type(size) is int and 1 <= size <= 2**24,
    "public_key": lambda key: isinstance(key, str) and _PUBLIC_KEY.fullmatch(key) is not None,
    "track_classes": lambda tracked: type(tracked) is bool,
}
"""A check for each field. Without a public key, anybody's signature would be accepted."""
