"""A model as one file: safetensors, no pickle, the same bytes for the same model.

Section 8 of ``docs/specification.md`` lays the file out byte by byte. It holds sums, counts and member digests. Weights
follow from these and are computed again. So a model that forgot a sample has the same file as one that never learned
it.
"""

from __future__ import annotations

import os
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from neverseen.encoding import require_storable
from neverseen.engine.definiteness import why_impossible
from neverseen.engine.packing import narrowed
from neverseen.errors import ConfigurationError, FileRejectedError, NeverseenError
from neverseen.hardware import Hardware
from neverseen.holdings import DIGEST_SIZE, MemoryHoldings
from neverseen.io import tensorfile
from neverseen.io.files import replace_file
from neverseen.io.tensorfile import demand, pack, unpack
from neverseen.labels import from_text, in_class_order
from neverseen.model.configuration import Configuration
from neverseen.model.exact import ExactModel
from neverseen.proof.keys import Key

FORMAT = "neverseen-model-1"
_UNFIT = (NeverseenError, KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
_FIELDS = {"classes", "configuration", "counts", "format", "key", "key_check", "n_features", "track_classes"}


def write(
    path: str | os.PathLike[str],
    configuration: Configuration,
    model: ExactModel | None,
    track_classes: bool,
    key: Key | None,
    *,
    include_key: bool,
) -> None:
    """Write a model to a file of mode 600, replacing it as a whole or not at all.

    `model` is None if no sample is held; then `track_classes` and `key` are the settings to write.
    """
    if model is not None:
        track_classes, key = model.statistics.class_grams is not None, model.holdings.key
    with nullcontext() if model is None else model.locked():
        parts = _file(configuration, model, track_classes, key, include_key)
        replace_file(Path(path), parts)


def content(model: ExactModel) -> bytes:
    """Return the bytes of the file of a model, without its key."""
    with model.locked():
        tracked = model.statistics.class_grams is not None
        return b"".join(_file(model.configuration, model, tracked, model.holdings.key, include_key=False))


def parsed(raw: bytes, hardware: Hardware) -> ExactModel | None:
    """Return the model in the bytes of a file, None if it holds no sample. Raise `FileRejectedError` with the reason.

    Its key is not needed, and not used.
    """
    try:
        return _assemble(*tensorfile.parsed(raw, FORMAT), None, hardware, None)[1]
    except _UNFIT as error:
        raise FileRejectedError(_why(error)) from error


def _file(
    configuration: Configuration, model: ExactModel | None, track_classes: bool, key: Key | None, include_key: bool
) -> list[Any]:
    """Return the bytes of the file, in parts."""
    require_storable(configuration.encoder)
    tensors: dict[str, np.ndarray] = {}
    about: dict[str, Any] = {
        "classes": [],
        "configuration": configuration.as_json(),
        "counts": [],
        "format": FORMAT,
        "key": None,
        "key_check": None if key is None else key.check(),
        "n_features": 0,
        "track_classes": track_classes,
    }
    if (array := configuration.encoder.array()) is not None:
        tensors["centres"] = array
    if model is not None:
        statistics = model.statistics
        classes = statistics.classes
        about |= {
            "classes": classes,
            "counts": [statistics.counts[name] for name in classes],
            "n_features": model.n_features,
        }
        tensors["gram"] = narrowed(statistics.packed())
        tensors["sums"] = np.ascontiguousarray(statistics.cross().T)  # (C, d)
        holdings = _in_memory(model)
        about["key_check"] = holdings.key_check
        tensors["members"] = holdings.members_array()
        tickets = holdings.tickets_array()
        if len(tickets):
            tensors["tickets"] = tickets
        if statistics.class_grams is not None:
            for position, name in enumerate(classes):
                tensors[f"class_gram.{position:06d}"] = statistics.class_grams.packed(name)
    if include_key and key is not None:
        about["key"] = key.reveal().hex()

    return pack(about, tensors)


def read(
    path: str | os.PathLike[str],
    key: Key | None,
    hardware: Hardware,
    class_folder: str | os.PathLike[str] | None = None,
) -> tuple[Configuration, ExactModel | None, bool, Key | None]:
    """Return configuration, model (None if no sample is held), whether classes are tracked, and the key if known."""
    try:
        return _assemble(*unpack(Path(path), FORMAT), key, hardware, class_folder)
    except _UNFIT as error:
        raise FileRejectedError(f"{path} is not a model that can be loaded: {_why(error)}") from error


def _why(error: Exception) -> str:
    if isinstance(error, NeverseenError):
        return str(error)
    return f"its description does not fit its data ({type(error).__name__})"


def _assemble(
    about: dict[str, Any],
    tensors: dict[str, np.ndarray],
    key: Key | None,
    hardware: Hardware,
    class_folder: str | os.PathLike[str] | None,
) -> tuple[Configuration, ExactModel | None, bool, Key | None]:
    _demand(set(about) == _FIELDS, "the list of its fields")
    settings, classes, counts = about["configuration"], about["classes"], about["counts"]
    n_features = about["n_features"]
    _demand(type(classes) is list and type(counts) is list and type(n_features) is int, "the list of its classes")
    centres = tensors.pop("centres", None)
    _demand(centres is None or (centres.dtype == np.int8 and centres.ndim == 2), "the shape of its centres")
    configuration = Configuration.from_json(settings, centres)
    if about["key"] is not None:
        found = Key(bytes.fromhex(about["key"]))
        _demand(about["key"] == found.reveal().hex(), "its key")  # as it is written, and in no other way
        _demand(key is None or key == found, "its key, which is not the key given,")
        _demand(about["key_check"] == found.check(), "the check of its key")
        key = found
    check = about["key_check"]
    _demand(check is None or re.fullmatch("[0-9a-f]{16}", check) is not None, "the check of its key")
    demand(
        not classes or check is not None or key is None,
        "it holds samples, and does not say under which key: version 0.1.0 saved it without. Load the file that it was "
        "made from; or load it without a key, to predict and to forget classes; 'Saved models' in "
        "docs/how-to/upgrade.md says more",
    )
    _demand(key is None or check in (None, key.check()), "its key, which is not the key given,")
    _demand(type(about["track_classes"]) is bool, "whether it tracks classes")
    track_classes = about["track_classes"]
    if not classes:
        _demand(not tensors and n_features == 0 and counts == [], "the list of its classes")
        return configuration, None, track_classes, key
    _demand(all(type(count) is int and count > 0 for count in counts) and len(counts) == len(classes), "its counts")
    for name in classes:
        from_text(name)
    _demand(in_class_order(set(classes)) == classes, "the order of its classes")
    held, targets = dict(zip(classes, counts, strict=True)), configuration.targets
    _demand(targets.has_columns(held), "the list of its classes")
    _demand(n_features > 0 and (centres is None or centres.shape[1] == n_features), "the number of its features")

    size = configuration.encoder.code_size(n_features)
    triangle = size * (size + 1) // 2
    packed, sums = tensors.pop("gram"), tensors.pop("sums")
    _demand(packed.shape == (triangle,) and packed.dtype.kind == "i", "the shape of its Gram matrix")
    _demand(sums.shape == (len(classes), size) and sums.dtype == np.int64, "the shape of its class sums")
    model = ExactModel.in_memory(configuration, n_features, key, hardware, track_classes, class_folder)
    statistics = model.statistics
    _require_possible(packed, sums, counts, targets.total(held), targets.largest)

    if track_classes:
        assert statistics.class_grams is not None
        rest = packed.astype(np.int64)
        for position, name in enumerate(classes):
            part = tensors.pop(f"class_gram.{position:06d}")
            _demand(part.shape == (triangle,) and part.dtype.kind == "i", "the shape of a class's Gram matrix")
            _require_possible(part, sums[position : position + 1], counts[position : position + 1])
            rest -= part
            statistics.class_grams.put(name, part)
        _demand(not rest.any(), "the sum of its classes' Gram matrices")
    statistics.fill(packed, sums, classes, counts)
    _fill_members(model, tensors)
    _in_memory(model).key_check = check
    _demand(not tensors, "the list of its parts")
    return configuration, model, track_classes, key


def _require_possible(packed: np.ndarray, sums: np.ndarray, counts: list[int], *limits: int) -> None:
    """Raise if no samples can have such sums. `witness.check_weights` proves that G is positive semidefinite."""
    why = why_impossible(packed, sums, counts, *limits)
    demand(why is None, f"its sums are not those of any samples: {why}")
    _demand(packed.dtype == narrowed(packed).dtype, "the width of its sums")


def _in_memory(model: ExactModel) -> MemoryHoldings:
    if not isinstance(model.holdings, MemoryHoldings):
        raise ConfigurationError("only a model in memory is saved to one file: a store is a folder already")
    return model.holdings


def _fill_members(model: ExactModel, tensors: dict[str, np.ndarray]) -> None:
    """Add members and tickets to the holdings."""
    members, total, holdings = tensors.pop("members"), model.statistics.total, _in_memory(model)
    _demand(members.shape == (total, DIGEST_SIZE) and members.dtype == np.uint8, "the list of its members")
    tickets = tensors.pop("tickets", None)
    if tickets is not None:
        _demand(tickets.ndim == 2 and tickets.shape[1] == 3 * DIGEST_SIZE, "the shape of its tickets")
        _demand(tickets.dtype == np.uint8 and 0 < len(tickets) <= total, "the list of its tickets")
    holdings.fill(members, model.statistics.counts, tickets)
    _demand(np.array_equal(holdings.members_array(), members), "the order of its members")
    if tickets is not None:
        _demand(np.array_equal(holdings.tickets_array(), tickets), "the order of its tickets")
        _demand(holdings.is_sound(), "the list of its tickets")


def _demand(holds: bool, what: str) -> None:
    demand(holds, f"{what} is not as it must be")
