"""The content of bodies: counted, checked and unpacked within bounds. Nothing here needs the service.

Samples and receipts are counted before they become objects, and images are measured before they are unpacked. Still,
the bytes are untrusted. So all but small and simple bodies of numbers and texts are read in a worker process
(`neverseen.service.reception.workers`). If it runs out of memory or time, only the sender notices.
"""

from __future__ import annotations

import base64
import binascii
import io
import re
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

import numpy as np
from pydantic import TypeAdapter, ValidationError

from neverseen.backbones.contents import FORMATS, Reduced, decoded
from neverseen.backbones.images import Images
from neverseen.errors import FileRejectedError, InputError, NeverseenError
from neverseen.proof.receipts import PREFIXES
from neverseen.service.errors import Refusal
from neverseen.service.reception.forms import form_of as fields_of
from neverseen.service.reception.labelled import checked, form_of, labels_in
from neverseen.service.reception.schemas import (
    Body,
    ForgetBody,
    Id,
    Label,
    LabelledSample,
    LearnBody,
    PredictBody,
    Sample,
    TestSample,
    WhatIfBody,
)
from neverseen.sources.receipts import receipt_of

Model = TypeVar("Model", bound=Body)
JSON, FORM = "application/json", "multipart/form-data"
KINDS = {"features": "features", "images": "image", "texts": "text"}
"""The field of a sample, by the kind of samples."""
_STANDARD = bytes.maketrans(b"-_", b"+/")
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)  # one without an end is tried once, not per quote
_FIELDS = 8  # strings, or values, of a sample besides its features: names and values of three fields, and some more
_RECEIPT = 2**18  # bytes of a receipt besides a byte for each feature: id, owner and label have 2**16 at most
_TILE_WIDTH, _TILE_LENGTH = 322, 323  # tags of TIFF
_NUMBERS = ("features", "numbers")  # fields without names in them
_RANGE = ("less_than_equal", "greater_than_equal")
_LABELS: TypeAdapter[Any] = TypeAdapter(list[Label])
_IDS: TypeAdapter[Any] = TypeAdapter(list[Id])


@dataclass(frozen=True)
class Bounds:
    """Limits on the content of one body."""

    kind: str  # what the backbone takes: "features", "images" or "texts"
    n_features: int
    # as in `Settings`
    max_batch: int
    max_text: int
    max_image_bytes: int
    max_pixels: int
    max_request_pixels: int
    # configuration of the `Images` that scales images for the backbone, where that may be done beforehand
    images: dict[str, Any] | None = None
    max_rows: int = 2**53  # rows of features that fit the room of one key
    targets: dict[str, Any] | None = None  # `Targets.configuration`: what labels stand for
    max_labels: int = 0

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of features."""
        return 8 * self.n_features

    def as_json(self) -> dict[str, Any]:
        """Return them as JSON values."""
        return asdict(self)


@dataclass
class Given:
    """The content of a body."""

    # rows of features, images, or texts; where there are receipts, those to predict alone
    samples: list[Any] = field(default_factory=list)
    receipts: list[bytes] | None = None
    # of the samples, where they are given
    labels: list[Any] = field(default_factory=list)
    ids: list[str | None] = field(default_factory=list)
    owner: str | None = None
    spans: list[tuple[int, int]] = field(default_factory=list)  # where in a form its files are
    pixels: int = 0  # of all images together
    tested: int = 0  # how many samples, the last ones, are to be predicted and not to be left out

    def __len__(self) -> int:
        return len(self.samples) + len(self.receipts or ())


Room = Callable[[int], None]
"""Told how much is about to be unpacked, and refuses if there is no room for it.

These are pixels of images, rows of features, or bytes of texts: a text can take four times the bytes that it had.
"""


def require_room(has_room: Callable[[int], bool], amount: int) -> None:
    """Refuse samples for which there is no room."""
    if not has_room(amount):
        raise Refusal("busy", "too many samples are waiting: try again in a moment", wait=1)


def learned(content: bytes, content_type: str, bounds: Bounds, room: Room) -> Given:
    """Return the samples to learn in a body."""
    if _is_json(content_type):
        form = form_of(bounds.targets)
        body = parsed(LearnBody if form is None else form.learn, content, bounds)
        given = _labelled(body.samples, bounds, room)
        given.owner = body.owner
        return given
    fields = fields_of(content, content_type, bounds.max_batch, ("files",), ("labels", "ids", "owner"))
    files = fields.files.get("files", [])
    form = form_of(bounds.targets)
    labels = _listed(_LABELS if form is None else form.entry, fields.texts.get("labels", b""), "labels")
    if bounds.targets is not None:
        labels = checked(bounds.targets, list(map(list, labels)), bounds.max_labels)
    ids = _listed(_IDS, fields.texts["ids"], "ids") if "ids" in fields.texts else [None] * len(files)
    if not files or not len(labels) == len(ids) == len(files):
        raise Refusal("invalid_request", f"{len(files)} files need as many labels, and as many ids or none")
    pixels, samples = images_of(_cut(content, files), bounds, room)
    try:
        owner = fields.texts["owner"].decode() if "owner" in fields.texts else None
    except UnicodeDecodeError:
        raise Refusal("invalid_request", "the owner is not valid UTF-8") from None
    return Given(samples, None, labels, ids, owner, files, pixels)


def predicted(content: bytes, content_type: str, bounds: Bounds, room: Room) -> Given:
    """Return the samples to predict in a body."""
    if _is_json(content_type):
        return _samples(parsed(PredictBody, content, bounds).samples, bounds, room)
    files = fields_of(content, content_type, bounds.max_batch, ("files",), ()).files.get("files", [])
    if not files:
        raise Refusal("invalid_request", "send the images in the field files")
    pixels, samples = images_of(_cut(content, files), bounds, room)
    return Given(samples, spans=files, pixels=pixels)


def forgotten(content: bytes, content_type: str, bounds: Bounds, room: Room) -> Given:
    """Return the receipts or samples to forget in a body."""
    if _is_json(content_type):
        form = form_of(bounds.targets)
        body = parsed(ForgetBody if form is None else form.forget, content, bounds)
        if body.receipts is None:
            given = _labelled(body.samples, bounds, room)
        else:
            given = Given(receipts=_receipts(body, bounds))
        given.owner = body.owner
        return given
    spans = fields_of(content, content_type, 1, ("receipts",), ()).files.get("receipts", [])
    if len(spans) != 1:
        raise Refusal("invalid_request", "send one file of receipts in the field receipts")
    (file,) = _cut(content, spans)
    return Given(receipts=receipts_in(file, bounds), spans=spans)


def asked(content: bytes, content_type: str, bounds: Bounds, room: Room) -> Given:
    """Return the receipts or samples to leave out in a body, followed by the samples to predict, if any."""
    if not _is_json(content_type):
        raise Refusal("wrong_content_type", f"send {JSON}")
    form = form_of(bounds.targets)
    body = parsed(WhatIfBody if form is None else form.what_if, content, bounds)
    left, tested = body.samples or [], body.test or []
    listed: list[LabelledSample | TestSample] = [*left, *tested]
    given = _samples(listed, bounds, room)
    given.labels = labels_in(listed, bounds.targets, bounds.max_labels)
    given.ids = [sample.id for sample in left]
    given.owner, given.tested = body.owner, len(tested)
    if body.receipts is not None:
        given.receipts = _receipts(body, bounds)
    require_few(len(given), bounds.max_batch)
    return given


READERS = {"learn": learned, "predict": predicted, "forget": forgotten, "what_if": asked}
"""The function that reads a body, by its purpose."""


def _cut(content: bytes, spans: Sequence[tuple[int, int]]) -> list[bytes]:
    view = memoryview(content)
    return [bytes(view[start:end]) for start, end in spans]


# -- JSON --------------------------------------------------------------------------------------------


def parsed(model: type[Model], content: bytes, bounds: Bounds | None = None) -> Model:
    """Return a checked JSON body. A body with too many samples, receipts or numbers is not parsed."""
    if bounds is not None:
        _require_few_values(content, bounds)
    try:
        body = model.model_validate_json(content)
    except ValidationError as error:
        raise _refused(error) from None
    except RecursionError:
        raise Refusal("invalid_json", "the body is nested too deeply") from None
    names = _names(body)
    # In JSON a colon that is in no text stands behind a name. Of a name that is there twice, one value was dropped.
    if content.count(b":") != names and _STRING.sub(b"", content).count(b":") != names:
        raise Refusal("invalid_request", "a name appears twice in one object: give each name once")
    return body


def _names(value: Any) -> int:
    """Return the total number of names of all objects in a body."""
    if isinstance(value, Body):
        names = value.model_fields_set
        return len(names) + sum(_names(getattr(value, name)) for name in names if name not in _NUMBERS)
    if isinstance(value, dict):
        return len(value) + sum(map(_names, value.values()))
    return sum(map(_names, value)) if isinstance(value, list) else 0


def _require_few_values(content: bytes, bounds: Bounds) -> None:
    """Refuse a JSON text with more objects, strings or values than the allowed samples or receipts can have."""
    most = bounds.max_batch + 1
    if len(content) <= most:
        return
    values = most * (_FIELDS + (bounds.n_features if bounds.kind == "features" else 0)) + bounds.max_labels
    # At least so many quotes are no part of a text: each of those that are has a backslash before it.
    quotes = content.count(b'"') - content.count(b'\\"')
    if quotes <= 2 * (most * _FIELDS + bounds.max_labels):
        if content.count(b"{") <= most and content.count(b",") <= values:
            return
        bare = _STRING.sub(b"", content)  # texts may have any number of braces and commas
        if bare.count(b"{") <= most and bare.count(b",") <= values:
            return
    raise Refusal(
        "invalid_request", f"this is too much for one request: send at most {bounds.max_batch} samples at a time"
    )


def _listed(adapter: TypeAdapter[Any], words: bytes, field: str) -> Any:
    """Return a checked list from a JSON field of a form."""
    try:
        return adapter.validate_json(words)
    except ValidationError as error:
        raise _refused(error, field) from None


def _refused(error: ValidationError, field: str | None = None) -> Refusal:
    """Return the refusal of a JSON body, or of a JSON field of a form."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    # A label that is a number out of range is no text either: the error that names the range comes second.
    first = next((each for each in errors[:2] if each["type"] in _RANGE), errors[0])
    if first["type"] == "json_invalid":
        code, what = ("invalid_json", "the body") if field is None else ("invalid_request", f"the field {field}")
        return Refusal(code, f"{what} is not valid JSON: {first['msg'][:200]}")
    place = first["loc"] if field is None else (field, *first["loc"])
    row = next((part for part in place if isinstance(part, int)), None)
    where = ".".join(str(part) for part in place if str(part).isidentifier() or isinstance(part, int))[:200]
    return Refusal("invalid_request", f"{where}: {first['msg']}" if where else first["msg"], row=row)


def _is_json(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() == JSON


# -- receipts ----------------------------------------------------------------------------------------


def receipts_in(content: bytes, bounds: Bounds) -> list[bytes]:
    """Return the receipts in a file of receipts: see `neverseen.sources.receipts`."""
    if content.startswith(PREFIXES):
        return [_sized(content, 0, bounds)]
    most = bounds.max_batch
    if content.count(b"\n") > most:
        raise Refusal("invalid_request", f"the file has too many lines for one request: send at most {most} at a time")
    found: list[bytes] = []
    for number, line in enumerate(content.split(b"\n"), 1):
        if line.strip():
            try:
                receipt = receipt_of(line, f"line {number} of the file")
            except FileRejectedError as error:
                if line.lstrip().startswith(b"{"):
                    raise Refusal("invalid_request", str(error), row=len(found)) from None
                raise Refusal("receipt_rejected", str(error), row=len(found), reason="foreign") from None
            found.append(_sized(receipt, len(found), bounds))
    if not found:
        raise Refusal("invalid_request", "there are no receipts in the file")
    return found


def _receipts(body: ForgetBody, bounds: Bounds) -> list[bytes]:
    require_few(len(body.receipts), bounds.max_batch)
    return [_receipt(word, row, bounds) for row, word in enumerate(body.receipts)]


def _receipt(word: str, row: int, bounds: Bounds) -> bytes:
    return _sized(from_base64(word, "receipt", row), row, bounds)


def _sized(receipt: bytes, row: int, bounds: Bounds) -> bytes:
    most = bounds.n_features + _RECEIPT
    if not 0 < len(receipt) <= most:
        words = f"receipt {row} has {len(receipt)} bytes; receipts of this model have 1 to {most}"
        raise Refusal("invalid_request", words, row=row)
    return receipt


def from_base64(word: str, what: str, row: int) -> bytes:
    """Decode base64, in either alphabet, with or without padding."""
    try:
        raw = word.encode("ascii").translate(_STANDARD)
        content = base64.b64decode(raw + b"=" * (-len(raw) % 4), validate=True)
    except (ValueError, binascii.Error):
        content = b""
    if not content:
        raise Refusal("invalid_request", f"{what} {row} is not base64, or is empty", row=row)
    return content


# -- samples -----------------------------------------------------------------------------------------


def require_few(count: int, most: int) -> None:
    """Refuse a request with too many items."""
    if count > most:
        raise Refusal("invalid_request", f"{count} are too many for one request: send at most {most} at a time")


def _labelled(samples: Sequence[LabelledSample], bounds: Bounds, room: Room) -> Given:
    given = _samples(samples, bounds, room)
    given.labels = labels_in(samples, bounds.targets, bounds.max_labels)
    given.ids = [sample.id for sample in samples]
    return given


def sample_ids(given: list[str | None]) -> list[str] | None:
    """Return the ids of samples; None if there are none; refuse if only some samples have one."""
    ids = [name for name in given if name is not None]
    if ids and len(ids) != len(given):
        raise Refusal("ambiguous", "give every sample an id, or none")
    return ids or None


def _samples(samples: Sequence[Sample], bounds: Bounds, room: Room) -> Given:
    require_few(len(samples), bounds.max_batch)
    wanted = KINDS[bounds.kind]
    for row, sample in enumerate(samples):
        if getattr(sample, wanted) is None:
            raise Refusal(
                "invalid_request", f"sample {row} must have {wanted!r}: this model takes no other kind", row=row
            )
    if wanted == "features":
        require_few(len(samples), bounds.max_rows)
        room(len(samples))
        return Given(list(_features([sample.features for sample in samples], bounds.n_features)))
    if wanted == "text":
        texts = [_text(sample.text, row, bounds.max_text) for row, sample in enumerate(samples)]
        room(sum(map(sys.getsizeof, texts)))
        return Given(texts)
    files = [from_base64(sample.image, "image", row) for row, sample in enumerate(samples)]
    pixels, images = images_of(files, bounds, room)
    return Given(images, pixels=pixels)


def _features(rows: list[list[float]], n_features: int) -> np.ndarray:
    for row, values in enumerate(rows):
        if len(values) != n_features:
            words = f"sample {row} has {len(values)} features; {n_features} are needed"
            raise Refusal("invalid_request", words, row=row)
    packed = b"".join(struct.pack(f"{n_features}d", *values) for values in rows)  # a fifth of the time of np.array
    return np.frombuffer(packed, np.float64).reshape(len(rows), n_features)


def _text(words: str, row: int, most: int) -> str:
    if len(words) > most:
        raise Refusal("invalid_request", f"text {row} has more than {most} characters: shorten it", row=row)
    return words


def images_of(files: Sequence[bytes], bounds: Bounds, room: Room) -> tuple[int, list[Any]]:
    """Return the number of pixels of image files, and the images. All are measured before the first is unpacked.

    A large image is reduced to the backbone's size here, so that predicting and learning take no longer than for a
    small one.
    """
    if bounds.kind != "images":
        raise Refusal("invalid_request", f"this model takes {bounds.kind}, not images: send JSON")
    require_few(len(files), bounds.max_batch)
    pixels = 0
    for row, content in enumerate(files):
        if len(content) > bounds.max_image_bytes:
            raise Refusal("invalid_request", f"image {row} has more than {bounds.max_image_bytes} bytes", row=row)
        with _blamed(row):
            found = pixels_of(content)
            if found > bounds.max_pixels:
                raise InputError(f"it has more than {bounds.max_pixels} pixels: scale it down first")
        pixels += found
    if pixels > bounds.max_request_pixels:
        words = f"the images have {pixels} pixels together, more than {bounds.max_request_pixels}"
        raise Refusal("too_large", f"{words}: scale them down, or send fewer at a time")
    room(pixels)
    reduction = None if bounds.images is None else Images.from_configuration(bounds.images)
    images = []
    for row, content in enumerate(files):
        with _blamed(row):
            images.append(_carried(decoded(content), reduction))
    return pixels, images


def _carried(image: Any, reduction: Images | None) -> np.ndarray | Reduced:
    """Return an image in the smaller of two forms: whole, or reduced for the backbone."""
    if reduction is None or image.shape[0] * image.shape[1] <= reduction.size**2:
        whole: np.ndarray = image
        return whole
    return reduction.reduced(image)


@contextmanager
def _blamed(row: int) -> Iterator[None]:
    """Name the image in an error."""
    try:
        yield
    except NeverseenError as error:
        raise Refusal("invalid_request", f"image {row} cannot be used: {str(error)[:300]}", row=row) from None


def pixels_of(content: bytes) -> int:
    """Return the number of pixels that an image file has according to its header."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            tags: Any = getattr(image, "tag_v2", {})
            tile = int(tags.get(_TILE_WIDTH, 0)) * int(tags.get(_TILE_LENGTH, 0))  # each is unpacked as a whole
            return max(int(image.width) * int(image.height), tile)
    except Exception:  # decoders raise whatever they please
        raise InputError(f"it is damaged, or its format is none of {', '.join(FORMATS)}") from None
