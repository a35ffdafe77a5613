"""Samples, labels and receipts as JSON for the service."""

from __future__ import annotations

import base64
import binascii
import io
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from neverseen.errors import InputError

Label = str | int


def sample_list(
    samples: Any, labels: Any = None, ids: Iterable[str] | None = None, numbers: Any = None, weights: Any = None
) -> list[dict[str, Any]]:
    """Return samples as JSON values, with labels, numbers, weights and ids if given.

    Parameters
    ----------
    samples : array, or sequence of rows of features, texts, or images
        A table of numbers, one row a sample; an array of unsigned bytes with images one after the other; or a list
        of texts (`str`), images (`bytes` of a file, its `Path`, a Pillow image), or rows of features. A single
        text or image is a batch of one.
    labels : sequence of str or int
        Or of sets of these, if the service learns label sets. A list or a tuple stands for a set too.
    numbers : sequence of float, or of rows of float
        If the service learns numbers, in place of labels.
    weights : sequence of int
        If the service learns weighted classes.
    """
    if labels is not None and numbers is not None:
        raise InputError("give labels or numbers, not both: a service learns one of them")
    found = [_sample(sample, row) for row, sample in enumerate(_each(samples))]
    if not found:
        raise InputError("there are no samples: give at least one")
    if labels is not None:
        for entry, label in zip(found, _matching(labels, len(found), "labels"), strict=True):
            entry.update(_labelled(label))
    if numbers is not None:
        for row, (entry, values) in enumerate(zip(found, _matching(numbers, len(found), "numbers"), strict=True)):
            entry["numbers"] = _numbers(values, row)
    if weights is not None:
        for entry, weight in zip(found, _matching(weights, len(found), "weights"), strict=True):
            entry["weight"] = plain_label(weight)
    if ids is not None:
        for entry, name in zip(found, _matching(ids, len(found), "ids"), strict=True):
            if not isinstance(name, str):
                raise InputError(f"an id is of type {type(name).__name__}; ids are texts: give str(id)")
            entry["id"] = str(name)
    return found


def plain_label(label: Any) -> Label:
    """Return a label as a text or an integer; NumPy labels are accepted too."""
    value = label.item() if isinstance(label, np.generic) else label
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, str | int) and not isinstance(value, bool):
        return value
    raise InputError(f"a label is of type {type(label).__name__}; the service takes texts and integers: name the class")


def _labelled(label: Any) -> dict[str, Any]:
    """Return a label, or a set of labels, as a field. A set gets one order: sent again, it is the same bytes."""
    if not isinstance(label, set | frozenset | list | tuple):
        return {"label": plain_label(label)}
    return {"labels": sorted(map(plain_label, label), key=lambda each: (isinstance(each, str), each))}


def _numbers(values: Any, row: int) -> list[float]:
    listed = np.atleast_1d(np.asarray(values))
    if listed.ndim != 1 or listed.dtype.kind not in "iuf" or not np.isfinite(listed).all():
        raise InputError(f"the numbers of sample {row} must be a finite number, or a row of finite numbers")
    found: list[float] = listed.tolist()
    return found


def receipt_list(receipts: bytes | str | Iterable[bytes | str]) -> list[str]:
    """Return receipts in base64url. A `str` must be base64url already."""
    given = [receipts] if isinstance(receipts, bytes | str) else list(receipts)
    if not given:
        raise InputError("there are no receipts: give at least one")
    return [entry if isinstance(entry, str) else base64.urlsafe_b64encode(entry).decode() for entry in given]


def receipt_bytes(word: str) -> bytes:
    """Return the bytes of a receipt in base64url."""
    try:
        raw = word.encode("ascii").rstrip(b"=")
        return base64.b64decode(raw + b"=" * (-len(raw) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        raise InputError("a receipt is not base64url: give it as the service gave it") from None


def _each(samples: Any) -> Iterable[Any]:
    if isinstance(samples, str | bytes | Path) or _is_picture(samples):
        return [samples]
    if isinstance(samples, np.ndarray) and samples.dtype.kind in "biuf":
        if samples.ndim == 2:
            return _rows(samples)
        if samples.ndim in (3, 4) and samples.dtype == np.uint8:
            return [_picture(image) for image in samples]
        raise InputError(
            f"the samples are {samples.dtype} of shape {samples.shape}; give features as a table, one row a sample, or "
            "images as uint8 of shape (n, height, width) or (n, height, width, 3)"
        )
    return samples  # type: ignore[no-any-return]


def _rows(table: np.ndarray) -> list[list[float]]:
    wrong = ~np.isfinite(table).all(axis=1)
    if wrong.any():
        raise InputError(f"sample {int(np.argmax(wrong))} has a feature that is not finite: correct or drop it")
    return table.tolist()  # type: ignore[no-any-return]


def _sample(sample: Any, row: int) -> dict[str, Any]:
    if isinstance(sample, str):
        return {"text": str(sample)}
    if isinstance(sample, Path):
        return {"image": _base64(sample.read_bytes())}
    if isinstance(sample, bytes):
        return {"image": _base64(sample)}
    if _is_picture(sample):
        return {"image": _base64(_png(sample, row))}
    if isinstance(sample, np.ndarray):
        sample = sample.tolist()
    if isinstance(sample, Sequence) and sample and all(isinstance(entry, int | float) for entry in sample):
        if all(map(math.isfinite, sample)):
            return {"features": list(sample)}
        raise InputError(f"sample {row} has a feature that is not finite: correct or drop it")
    raise InputError(
        f"sample {row} is of type {type(sample).__name__}; give a row of numbers, a text, or an image (the bytes of a "
        "file, its Path, or a Pillow image)"
    )


def _is_picture(sample: object) -> bool:
    # Pillow may be missing: a caller can have one of its images only after importing it.
    return any(kind.__module__ == "PIL.Image" and kind.__name__ == "Image" for kind in type(sample).__mro__)


def _picture(image: np.ndarray) -> Any:
    from PIL import Image

    return Image.fromarray(image)


def _png(image: Any, row: int) -> bytes:
    written = io.BytesIO()
    try:
        image.save(written, "PNG")
    except OSError as error:
        raise InputError(f"sample {row}: {error}; convert the image first, such as to RGB") from error
    return written.getvalue()


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _matching(values: Any, count: int, name: str) -> list[Any]:
    given = [values] if isinstance(values, str | int | float) else list(values)
    if len(given) != count:
        raise InputError(f"there are {count} samples and {len(given)} {name}; give one for each sample")
    return given
