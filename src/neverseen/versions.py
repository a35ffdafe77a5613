"""Published versions: the weights of a model as one file, with what proves them.

A version answers and can be checked, and that is all it can do: it holds no sums, no digests of samples and no key.
It is a function of the samples held, so models with the same settings and samples publish the same bytes, whatever
their histories.

The file is laid out like a saved model (``docs/specification.md``, section 8): safetensors with a canonical header, a
description and a checksum. The description has the keys ``bits`` (of the witness), ``classes``, ``configuration``,
``format`` (``"neverseen-version-1"``), ``n_features``, ``sha256`` and ``unproved``; the tensors are ``centres`` (only
of a `GaussianKernel`), ``rests`` in the narrowest integers, and ``weights`` in int64. A version without samples has
``n_features`` 0, no classes, and no tensors but ``centres``.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from pathlib import Path
from typing import Any, cast

import numpy as np

from neverseen.arithmetic import GridWeights
from neverseen.encoding import GaussianKernel, Identity, RandomProjection
from neverseen.errors import (
    CertificateRejectedError,
    ConfigurationError,
    FileRejectedError,
    InputError,
    NeverseenError,
    NotLearnedError,
)
from neverseen.files import replace_file
from neverseen.following import Following
from neverseen.hardware import Hardware, choose
from neverseen.labels import as_array, canonical_json, from_text, in_class_order
from neverseen.model import CHUNK_ROWS, Configuration, ExactModel, _model_digest
from neverseen.saving import _DTYPES, _encoder
from neverseen.solver import Solution
from neverseen.statistics import Statistics, narrowed
from neverseen.witness import MAX_BITS, Witness, check_weights, make_witness

FORMAT = "neverseen-version-1"
_FIELDS = {"bits", "classes", "configuration", "format", "n_features", "sha256", "unproved"}
_WIDTHS = {name: np.dtype(kind).newbyteorder("<") for kind, name in _DTYPES.items()}


class Version:
    """The weights of a model at one moment, ready to predict and to be checked.

    Parameters
    ----------
    configuration : Configuration
    n_features : int
        Width d0 of the quantised features; 0 if the model held no sample.
    classes : list of str
        Canonical texts, in class order: the columns of the weights.
    weights : int64 ndarray of shape (d, C)
        In grid steps.
    witness : Witness
    hardware : Hardware, optional

    Examples
    --------
    >>> version = Version.empty(Configuration(Identity(), gamma=1, grid_bits=40))
    >>> version.classes, version.digest()[:8]
    ([], '67597ccd')
    """

    def __init__(
        self,
        configuration: Configuration,
        n_features: int,
        classes: list[str],
        weights: np.ndarray,
        witness: Witness,
        hardware: Hardware | None = None,
    ) -> None:
        self.configuration = configuration
        self.n_features = n_features
        self.classes = classes
        self.weights = weights
        self.witness = witness
        self.hardware = choose("numpy") if hardware is None else hardware
        self._scoring: GridWeights | None = None

    @classmethod
    def of(cls, model: ExactModel) -> Version:
        """Return what a model is now. A model that holds no sample is the empty version."""
        with model.locked():
            statistics = model.statistics
            if not statistics.counts:
                return cls.empty(model.configuration, model.hardware)
            weights = np.array(model.weights())
            solution, _ = cast("tuple[Solution | Following, list[str]]", model._hint)  # there, now that weights are
            cross = model.hardware.array(statistics.cross())
            witness = make_witness(statistics.gram, cross, solution, model.hardware)
            return cls(model.configuration, model.n_features, model.classes, weights, witness, model.hardware)

    @classmethod
    def empty(cls, configuration: Configuration, hardware: Hardware | None = None) -> Version:
        """Return the version of a model that holds no sample."""
        nothing = np.zeros((0, 0), np.int64)
        return cls(configuration, 0, [], nothing, Witness(nothing.astype(np.int8), 1), hardware)

    def digest(self) -> str:
        """Return the SHA-256 of what the model is, in hex: that of the model itself."""
        return _model_digest(self.configuration.digest(), self.n_features, self.classes, self.weights)

    def scores(self, quantised: np.ndarray) -> np.ndarray:
        """Return exact scores in grid steps, int64 of shape (n, C), for int8 features of shape (n, d0)."""
        if not self.classes:
            raise NotLearnedError("this version holds no samples, and so has no classes to choose from")
        if quantised.ndim != 2 or quantised.shape[1] != self.n_features or quantised.dtype != np.int8:
            raise InputError(
                f"samples must be int8 features of shape (n, {self.n_features}); "
                f"got {quantised.dtype} of shape {quantised.shape}"
            )
        if self._scoring is None:
            self._scoring = GridWeights(self.weights, self.hardware)
        expand = self.configuration.encoder.expand
        parts = [
            self._scoring.scores(expand(quantised[start : start + CHUNK_ROWS], self.hardware))
            for start in range(0, max(1, len(quantised)), CHUNK_ROWS)
        ]
        return np.concatenate(parts)

    def predict(self, quantised: np.ndarray) -> np.ndarray:
        """Return the class of each sample: the one with the greatest score, the first in class order among equals."""
        best = self.scores(quantised).argmax(axis=1)
        labels: np.ndarray = as_array([from_text(name) for name in self.classes])[best]
        return labels

    def check(self, statistics: Statistics) -> None:
        """Raise `CertificateRejectedError` unless these are the correctly rounded weights of these sums.

        One exact residual, and no solve: see `neverseen.witness`.
        """
        if self.classes != statistics.classes:
            raise CertificateRejectedError("the version and the sums are of different classes")
        if not self.classes:
            return
        check_weights(
            statistics.gram,
            statistics.hardware.array(statistics.cross()),
            self.configuration.gamma,
            self.configuration.grid_bits,
            self.weights,
            self.witness,
            statistics.hardware,
        )


def write_version(path: str | os.PathLike[str], version: Version) -> None:
    """Write a version to a file of mode 600, replacing it as a whole or not at all."""
    encoder = version.configuration.encoder
    if type(encoder) not in (Identity, RandomProjection, GaussianKernel):
        raise ConfigurationError(f"versions with a custom encoder ({type(encoder).__name__}) cannot be written")
    tensors = {"centres": encoder.quantised_centres()} if isinstance(encoder, GaussianKernel) else {}
    if version.classes:
        tensors |= {"rests": version.witness.rests, "weights": version.weights}
    about = {
        "bits": version.witness.bits,
        "classes": version.classes,
        "configuration": version.configuration.as_json(),
        "format": FORMAT,
        "n_features": version.n_features,
        "unproved": list(version.witness.unproved),
    }
    blobs = {
        name: np.ascontiguousarray(tensors[name], tensors[name].dtype.newbyteorder("<")) for name in sorted(tensors)
    }
    header: dict[str, Any] = {}
    place = 0
    for name, blob in blobs.items():
        offsets = [place, place + blob.nbytes]
        header[name] = {"data_offsets": offsets, "dtype": _DTYPES[blob.dtype.name], "shape": list(blob.shape)}
        place += blob.nbytes
    checksum = _checksum(about, header, [blob.data for blob in blobs.values()])
    header["__metadata__"] = {"neverseen": canonical_json(about | {"sha256": checksum})}
    head = canonical_json(header).encode()
    head += b" " * (-len(head) % 8)
    replace_file(Path(path), [struct.pack("<Q", len(head)), head, *(blob.data for blob in blobs.values())])


def read_version(path: str | os.PathLike[str], hardware: Hardware | None = None) -> Version:
    """Return the version that a file holds, or raise `FileRejectedError`.

    That its weights are right is for `Version.check` to say, and that they are the publisher's for the certificate,
    which has their digest.
    """
    place = Path(path)
    if not place.is_file():
        raise FileNotFoundError(f"there is no file {place}")
    try:
        return _assembled(*_opened(place.read_bytes()), hardware)
    except NeverseenError as error:
        raise FileRejectedError(f"{place} is not a version that can be used: {error}") from error
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, struct.error) as error:
        raise FileRejectedError(
            f"{place} is not a version that can be used: it is damaged, or something else"
        ) from error


def _opened(raw: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return description and tensors of a file whose layout is the one there is, and whose checksum holds."""
    (length,) = struct.unpack_from("<Q", raw)
    head, body = raw[8 : 8 + length], memoryview(raw)[8 + length :]
    header = json.loads(head)
    text = canonical_json(header).encode()
    _demand(head == text + b" " * (-len(text) % 8), "its header is damaged or not in canonical form")
    metadata = header.pop("__metadata__")
    about = json.loads(metadata["neverseen"])
    _demand(about["format"] == FORMAT, f"its format is {str(about['format'])[:80]!r}; this version reads {FORMAT!r}")
    _demand(metadata == {"neverseen": canonical_json(about)}, "its description is not in canonical form")
    _demand(set(about) == _FIELDS, "the list of its fields is another")
    tensors, place = {}, 0
    for name in sorted(header):
        entry = header[name]
        kind, shape = _WIDTHS[entry["dtype"]], entry["shape"]
        _demand(all(type(size) is int and size >= 0 for size in shape), "a tensor has no shape")
        end = place + math.prod(shape) * kind.itemsize
        _demand(
            entry == {"data_offsets": [place, end], "dtype": entry["dtype"], "shape": shape},
            "its tensors are misplaced",
        )
        tensors[name] = np.frombuffer(body[place:end], kind).reshape(shape)
        place = end
    _demand(place == len(body), "it is cut short, or there is something behind its tensors")
    _demand(
        about.pop("sha256") == _checksum(about, header, [body]),
        "its checksum does not match: it was damaged or altered",
    )
    return about, tensors


def _assembled(about: dict[str, Any], tensors: dict[str, np.ndarray], hardware: Hardware | None) -> Version:
    settings, classes, n_features = about["configuration"], about["classes"], about["n_features"]
    configuration = Configuration(
        _encoder(settings, tensors), settings["gamma"], settings["grid_bits"], settings.get("backbone")
    )
    _demand(configuration.as_json() == settings, "its configuration is not one that there can be")
    _demand(isinstance(classes, list) and in_class_order(set(classes)) == classes, "its classes are not in order")
    if not classes:
        version = Version.empty(configuration, hardware)
        _demand(not tensors and type(n_features) is int and n_features == 0, "it has no classes, and yet features")
        _demand(
            type(about["bits"]) is int and about["bits"] == 1 and about["unproved"] == [],
            "it has no classes, and yet a witness",
        )
        return version
    _demand(type(n_features) is int and n_features > 0, "the number of its features is not one")
    weights, rests = tensors.pop("weights"), tensors.pop("rests")
    _demand(not tensors, "it has a tensor too many")
    shape = (configuration.encoder.code_size(n_features), len(classes))
    _demand(weights.shape == shape and weights.dtype == np.int64, "its weights are not of the shape of its settings")
    _demand(
        rests.shape == shape and rests.dtype == narrowed(rests).dtype, "its witness is not of the shape of its settings"
    )
    bits, unproved = about["bits"], about["unproved"]
    _demand(type(bits) is int and 1 <= bits <= MAX_BITS, "its witness has an impossible number of bits")
    _demand(
        all(type(column) is int and 0 <= column < len(classes) for column in unproved)
        and unproved == sorted(set(unproved)),
        "its list of unproved columns is not one of columns",
    )
    return Version(configuration, n_features, classes, weights, Witness(rests, bits, tuple(unproved)), hardware)


def _checksum(about: dict[str, Any], header: dict[str, Any], parts: list[memoryview]) -> str:
    """Return the SHA-256 of the description without it, the header without the description, and the tensors."""
    hasher = hashlib.sha256(canonical_json(about).encode() + canonical_json(header).encode())
    for part in parts:
        hasher.update(part)
    return hasher.hexdigest()


def _demand(holds: bool, why: str) -> None:
    if not holds:
        raise FileRejectedError(why)
