"""Raw samples: their types, their decoded form, and their fingerprint.

A sample is a NumPy array (an image, or a row of features), a ``PIL.Image.Image``, a `pathlib.Path` of an image file,
the `bytes` of one, or a `str`, which is always a text and never a path. An image may also be `Reduced`: already scaled
to a network's size.
"""

from __future__ import annotations

import hashlib
import io
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from neverseen.backbones.packages import imported
from neverseen.errors import InputError
from neverseen.labels import canonical_json, has_surrogates

FINGERPRINT_SIZE = 16
PIXEL_LIMIT = 64_000_000
PORTION_BYTES = 2**28
"""Bytes of decoded samples in memory at a time, unless a single sample has more."""
# What is decoded is untrusted: these formats need no other program, and all are in every build of Pillow.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")

_KINDS = "a NumPy array, a PIL image, a pathlib.Path of an image file, the bytes of one, or a text (str, never a path)"
_WIDE = ("I", "F")  # modes of more than 8 bits, which Pillow would clip and not scale


@dataclass(frozen=True, eq=False)
class Reduced:
    """An image that was already scaled and cropped for a network (`Images.reduced`).

    Attributes
    ----------
    pixels : ndarray
        The network's input, uint8 of shape (size, size, 3).
    fingerprint : bytes
        Of the whole image.
    settings : tuple
        The settings of the scaling. `Images` with other settings refuses it.
    """

    pixels: np.ndarray
    fingerprint: bytes
    settings: tuple[int, int, str]


Content = np.ndarray | str | Reduced
"""The content of a sample, for a network."""


class ImageRejectedError(InputError):
    """An image cannot be used.

    Attributes
    ----------
    fault : str
        The reason, as the rest of a sentence about the image: ``"cannot be decoded ..."``.
    """

    def __init__(self, image: str, fault: str) -> None:
        super().__init__(f"{image} {fault}")
        self.fault = fault


class Undecoded(list[Any]):
    """Samples with their own way of decoding. Each is decoded once, when its features are computed."""

    def contents(self) -> Iterator[Content]:
        """Yield the decoded samples, one by one."""
        return map(content_of, self)


def as_list(samples: Any) -> list[Any]:
    """Return a collection of samples as a list; raise `InputError` if it is not one.

    Parameters
    ----------
    samples : iterable of samples, or an array whose first axis counts them

    Examples
    --------
    >>> as_list(("a text", "another"))
    ['a text', 'another']
    >>> len(as_list(np.zeros((5, 32, 32, 3), np.uint8)))
    5
    """
    if isinstance(samples, str | bytes | Path) or _is_pil(samples):
        raise InputError(f"samples must be a list of samples; got one {type(samples).__name__}: put it into a list")
    if isinstance(samples, Undecoded):
        return samples
    if isinstance(samples, np.ndarray):
        if samples.ndim == 0:
            raise InputError("samples must be a list, or an array whose first axis counts samples; got a single number")
        if samples.dtype == np.uint8 and samples.ndim == 3 and samples.shape[2] in (3, 4):
            raise InputError(
                f"samples are one array of shape {samples.shape}, which looks like a single image: put it into a list, "
                "or stack images to (samples, height, width, 3)"
            )
        return list(samples)
    if isinstance(samples, dict | set | frozenset) or hasattr(samples, "columns"):
        raise InputError(
            f"samples must be in a sequence; got a {type(samples).__name__}, whose order or rows are not clear: "
            "make it a list or an array first"
        )
    try:
        return list(samples)
    except TypeError:
        raise InputError(
            f"samples must be a list, or an array whose first axis counts samples; got {type(samples).__name__}"
        ) from None


def decoded(sample: Any) -> np.ndarray | str:
    """Return the content of a sample: an array, or a text.

    Parameters
    ----------
    sample : ndarray, PIL.Image.Image, pathlib.Path, bytes or str

    Returns
    -------
    ndarray or str
        Texts unchanged; arrays in C order and little-endian. Images become RGB, uint8 of shape (height, width, 3): they
        are turned according to their EXIF orientation, transparent parts become black, and of several frames the first
        is used. uint8 arrays of shape (height, width), (height, width, 1) or (height, width, 4) count as images too.
    """
    if isinstance(sample, str):
        if has_surrogates(sample):
            raise InputError("a text has surrogate code points, which are not characters: decode it properly")
        return "".join(sample)  # also of numpy.str_
    if isinstance(sample, np.ndarray):
        if sample.ndim == 0 or sample.dtype.kind not in "biuf" or sample.dtype.itemsize > 8:
            raise InputError(
                "a sample that is an array must have at least one axis and hold booleans, integers or floats of at "
                f"most 64 bits; got shape {sample.shape} and dtype {sample.dtype}"
            )
        return _as_rgb(np.ascontiguousarray(sample, dtype=sample.dtype.newbyteorder("<")))
    if _is_pil(sample):
        return _rgb(sample, "a PIL image")
    if isinstance(sample, bytes):
        return _decoded_file(io.BytesIO(sample), f"an image of {len(sample):,} bytes")
    if isinstance(sample, Path):
        return _decoded_file(sample, f"the image {sample}")
    raise InputError(f"a sample is of type {type(sample).__name__}; it must be {_KINDS}")


def content_of(sample: Any) -> Content:
    """Return the content of a sample, like `decoded`; a reduced image stays as it is."""
    return sample if isinstance(sample, Reduced) else decoded(sample)


def fingerprint(sample: Any) -> bytes:
    """Return 16 bytes that identify the content of a sample.

    The same pixels have the same fingerprint as a file, as bytes and as an array. It has no key: anyone who has the
    sample can compute it. For lossy files (JPEG) it covers the decoded pixels, which another version of the decoder may
    round differently.

    Examples
    --------
    >>> fingerprint("a text").hex()
    'e2a949b7bbe66eb84014f5a1612264c1'
    """
    content = content_of(sample)
    if isinstance(content, Reduced):
        return content.fingerprint
    head: list[Any] = ["text"] if isinstance(content, str) else ["array", content.dtype.str, list(content.shape)]
    framed = canonical_json(head).encode()
    hasher = hashlib.blake2b(struct.pack("<Q", len(framed)) + framed, digest_size=16, person=b"neverseen:sample")
    hasher.update(content.encode() if isinstance(content, str) else content.data)
    return hasher.digest()


def fingerprint_of_rows(fingerprints: Sequence[bytes]) -> bytes:
    """Return the fingerprint of a sample, given those of its rows in order."""
    framed = canonical_json(["rows", len(fingerprints)]).encode()
    content = struct.pack("<Q", len(framed)) + framed + b"".join(fingerprints)
    return hashlib.blake2b(content, digest_size=16, person=b"neverseen:sample").digest()


def portions(samples: list[Any], most: int) -> Iterator[list[Content]]:
    """Yield decoded samples in portions, bounded in number and, approximately, in bytes."""
    portion: list[Content] = []
    size = 0
    for content in samples.contents() if isinstance(samples, Undecoded) else map(content_of, samples):
        portion.append(content)
        array = content.pixels if isinstance(content, Reduced) else content
        size += len(array) if isinstance(array, str) else array.nbytes
        if len(portion) >= most or size >= PORTION_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def _as_rgb(array: np.ndarray) -> np.ndarray:
    """Return an array, as RGB if it is an image of another form."""
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 4)):
        return array
    if array.ndim == 3 and array.shape[2] == 4:
        pil = imported("PIL.Image", "images with transparency", "pip install pillow")
        return _rgb(pil.fromarray(array), "an image")
    return np.repeat(array.reshape(*array.shape[:2], 1), 3, axis=2)


def _is_pil(sample: Any) -> bool:
    module = sys.modules.get("PIL.Image")  # whoever has such an image has imported it
    return module is not None and isinstance(sample, module.Image)


def _decoded_file(source: Path | io.BytesIO, what: str) -> np.ndarray:
    pil = imported("PIL.Image", "reading image files", "pip install pillow")
    try:
        with pil.open(source, formats=FORMATS) as image:
            return _rgb(image, what)
    except FileNotFoundError:
        raise InputError(f"there is no file {source}") from None
    except (pil.DecompressionBombError, pil.DecompressionBombWarning):
        raise ImageRejectedError(what, f"has more than {PIXEL_LIMIT:,} pixels: scale it down first") from None
    except InputError:
        raise
    except Exception as error:
        raise _undecodable(what, error) from error


def _rgb(image: Any, what: str) -> np.ndarray:
    from PIL import Image, ImageOps

    if image.width * image.height > PIXEL_LIMIT:
        size = f"is {image.width} x {image.height}, more than {PIXEL_LIMIT:,} pixels"
        raise ImageRejectedError(what, f"{size}: scale it down first")
    if image.mode.startswith(_WIDE):
        depth = f"has more than 8 bits a channel (mode {image.mode})"
        raise ImageRejectedError(what, f"{depth}: scale its values to 0..255 first")
    try:
        upright = ImageOps.exif_transpose(image)
        if upright.has_transparency_data:
            above = upright.convert("RGBA")
            upright = Image.alpha_composite(Image.new("RGBA", above.size, (0, 0, 0, 255)), above)
        return np.array(upright.convert("RGB"))
    except Exception as error:  # the pixels are read only now, and decoders of damaged files raise whatever they please
        raise _undecodable(what, error) from error


def _undecodable(what: str, error: Exception) -> ImageRejectedError:
    kinds = ", ".join(FORMATS)
    return ImageRejectedError(what, f"cannot be decoded ({type(error).__name__}: {error}): damaged, or none of {kinds}")
