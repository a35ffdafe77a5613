"""Messages between the service and a worker process: JSON values and bytes, over a pipe.

A message is two lengths, a JSON object, and bytes; the object's ``sizes`` say where the parts of the bytes end.
Nothing is pickled.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from neverseen.backbones.contents import Reduced
from neverseen.service.reception.contents import Given

_LENGTHS = struct.Struct("<QQ")
_TOGETHER = 2**16


def send(pipe: io.RawIOBase, about: dict[str, Any], parts: Sequence[bytes | memoryview] = ()) -> None:
    """Write a message."""
    sizes = [len(part) for part in parts]
    head = json.dumps(about | {"sizes": sizes}).encode()
    _write(pipe, _LENGTHS.pack(len(head), sum(sizes)) + head)
    waiting: list[bytes | memoryview] = []
    size = 0
    for part in parts:  # small ones together: a call for each would take longer than copying them
        waiting.append(part)
        size += len(part)
        if size >= _TOGETHER:
            _write(pipe, waiting[0] if len(waiting) == 1 else b"".join(waiting))
            waiting, size = [], 0
    _write(pipe, b"".join(waiting))


def receive(pipe: io.RawIOBase) -> tuple[dict[str, Any], list[memoryview]] | None:
    """Read a message; None if the other side has ended."""
    lengths = _read(pipe, _LENGTHS.size)
    if lengths is None:
        return None
    head_size, size = _LENGTHS.unpack(lengths)
    head, content = _read(pipe, head_size), _read(pipe, size)
    if head is None or content is None:
        return None
    about: dict[str, Any] = json.loads(bytes(head))
    parts, start = [], 0
    for length in about.pop("sizes"):
        parts.append(content[start : start + length])
        start += length
    return about, parts


def packed(given: Given) -> tuple[dict[str, Any], list[bytes | memoryview]]:
    """Return a body's content as a message."""
    about: dict[str, Any] = {
        "labels": given.labels,
        "ids": given.ids,
        "owner": given.owner,
        "spans": given.spans,
        "pixels": given.pixels,
        "tested": given.tested,
        "receipts": None if given.receipts is None else len(given.receipts),
    }
    kind, parts = _packed_samples(given.samples)
    return about | kind, [*(given.receipts or ()), *parts]


def _packed_samples(samples: list[Any]) -> tuple[dict[str, Any], list[bytes | memoryview]]:
    if samples and isinstance(samples[0], str):
        return {"kind": "texts"}, [text.encode() for text in samples]
    if samples and isinstance(samples[0], np.ndarray) and samples[0].ndim == 1:
        rows = np.array(samples)
        return {"kind": "rows", "shape": rows.shape}, [rows.data.cast("B")]
    arrays = [image.pixels if isinstance(image, Reduced) else image for image in samples]
    reduced = [(image.fingerprint.hex(), image.settings) if isinstance(image, Reduced) else None for image in samples]
    about = {"kind": "images", "shapes": [array.shape for array in arrays], "reduced": reduced}
    return about, [array.data.cast("B") for array in arrays]


def unpacked(about: dict[str, Any], parts: list[memoryview]) -> Given:
    """Return the content that was given to `packed`."""
    spans = [(start, end) for start, end in about["spans"]]
    given = Given([], None, about["labels"], about["ids"], about["owner"], spans, about["pixels"], about["tested"])
    if about["receipts"] is not None:
        given.receipts = [bytes(part) for part in parts[: about["receipts"]]]
        parts = parts[about["receipts"] :]
    if about["kind"] == "texts":
        given.samples = [str(part, "utf-8") for part in parts]
    elif about["kind"] == "rows":
        given.samples = list(np.frombuffer(parts[0], np.float64).reshape(about["shape"]))
    else:
        given.samples = [_image(*image) for image in zip(parts, about["shapes"], about["reduced"], strict=True)]
    return given


def _image(part: memoryview, shape: list[int], reduced: Any) -> np.ndarray | Reduced:
    pixels = np.frombuffer(part, np.uint8).reshape(shape)
    if reduced is None:
        return pixels
    fingerprint, (size, resize, resample) = reduced
    return Reduced(pixels, bytes.fromhex(fingerprint), (size, resize, resample))


def _write(pipe: io.RawIOBase, content: bytes | memoryview) -> None:
    left = memoryview(content)
    while left:
        left = left[pipe.write(left) or 0 :]


def _read(pipe: io.RawIOBase, size: int) -> memoryview | None:
    content = memoryview(bytearray(size))
    place = 0
    while place < size:
        count = pipe.readinto(content[place:])
        if not count:
            return None
        place += count
    return content
