"""Samples as they come over the wire, checked and decoded before anybody waits for them."""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from neverseen.backbones import Backbone
from neverseen.backbones.contents import FORMATS, decoded
from neverseen.backbones.recipes import kind_of
from neverseen.errors import InputError, NeverseenError
from neverseen.service.errors import Refusal
from neverseen.service.schemas import Sample
from neverseen.service.settings import Settings

_STANDARD = bytes.maketrans(b"-_", b"+/")
KINDS = {"features": "features", "images": "image", "texts": "text"}
"""What a sample is called, by what the backbone takes."""


def from_base64(word: str, what: str, row: int) -> bytes:
    """Return what base64 stands for, in either alphabet, with or without its padding."""
    try:
        raw = word.encode("ascii").translate(_STANDARD)
        content = base64.b64decode(raw + b"=" * (-len(raw) % 4), validate=True)
    except (ValueError, binascii.Error):
        content = b""
    if not content:
        raise Refusal("invalid_request", f"{what} {row} is not base64, or is empty", row=row)
    return content


class Reader:
    """Makes samples of what came over the wire, within limits.

    Parameters
    ----------
    backbone : Backbone
    settings : Settings
    """

    def __init__(self, backbone: Backbone, settings: Settings) -> None:
        self.kind = kind_of(backbone)
        self.n_features = backbone.n_features
        self._settings = settings

    def samples(self, given: Sequence[Sample]) -> list[Any]:
        """Return samples as the backbone takes them. May take long, for images: call it in a thread."""
        self.require_few(len(given))
        wanted = KINDS[self.kind]
        for row, sample in enumerate(given):
            if getattr(sample, wanted) is None:
                raise Refusal("invalid_request", f"sample {row} must have {wanted!r}: this model takes it", row=row)
        if wanted == "features":
            return [self._features(sample.features or [], row) for row, sample in enumerate(given)]
        if wanted == "text":
            return [self._text(sample.text or "", row) for row, sample in enumerate(given)]
        return self.images([from_base64(sample.image or "", "image", row) for row, sample in enumerate(given)])

    def images(self, files: Sequence[bytes]) -> list[Any]:
        """Return the pixels of image files."""
        self.require_few(len(files))
        if self.kind != "images":
            raise Refusal("invalid_request", f"this model takes {self.kind}, not images: send JSON")
        return [self._image(content, row) for row, content in enumerate(files)]

    def require_few(self, count: int) -> None:
        """Refuse a request for more than are taken at a time."""
        most = self._settings.max_batch
        if count > most:
            raise Refusal("invalid_request", f"{count} are too many for one request: send at most {most} at a time")

    def _features(self, values: list[float], row: int) -> np.ndarray:
        if len(values) != self.n_features:
            raise Refusal(
                "invalid_request", f"sample {row} has {len(values)} features; {self.n_features} are needed", row=row
            )
        return np.array(values, np.float64)

    def _text(self, words: str, row: int) -> str:
        most = self._settings.max_text
        if len(words) > most:
            raise Refusal("invalid_request", f"text {row} has more than {most} letters: cut it", row=row)
        return words

    def _image(self, content: bytes, row: int) -> Any:
        settings = self._settings
        if len(content) > settings.max_image_bytes:
            raise Refusal("invalid_request", f"image {row} has more than {settings.max_image_bytes} bytes", row=row)
        try:
            if _pixels(content) > settings.max_pixels:  # before a bomb is unpacked
                raise InputError(f"it has more than {settings.max_pixels} pixels: scale it down first")
            return decoded(content)
        except NeverseenError as error:
            raise Refusal("invalid_request", f"image {row} cannot be used: {str(error)[:300]}", row=row) from None


def _pixels(content: bytes) -> int:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            return int(image.width) * int(image.height)
    except Exception:  # decoders raise whatever they please
        raise InputError(f"it is damaged, or none of {', '.join(FORMATS)}") from None
