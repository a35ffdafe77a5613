"""The encoders of this package. A new one needs a class here, a section in the specification, and tests."""

from __future__ import annotations

import hashlib
import struct
from functools import lru_cache
from typing import Any

import numpy as np

from neverseen.encoding.encoder import Encoder, Graph, register
from neverseen.encoding.settings import real_number, whole_number
from neverseen.encoding.tables import ACTIVATIONS, activation_table, kernel_thresholds
from neverseen.engine.arithmetic import CodeMatrix
from neverseen.errors import ConfigurationError, InputError
from neverseen.hardware import Array, Hardware

_ROWS = 4096  # rows expanded at a time, to bound memory
_SIGNS = 2**31  # at most in a projection, so that a small file cannot ask for any amount of memory


@register
class Identity(Encoder):
    """The quantised features themselves are the code.

    Parameters
    ----------
    scale : float, 2**-40 <= scale <= 2**40, optional
        Divides features by this instead of by the root mean square of their row, so that the length of a row counts.

    Examples
    --------
    >>> Identity().encode([[1.0, 1.0, -2.0]]).tolist()
    [[11, 11, -23]]
    """

    kind = "identity"
    _settings = ("scale",)

    def __init__(self, *, scale: float | None = None) -> None:
        self.scale = scale

    def configuration(self) -> dict[str, Any]:
        return self.with_scale({"kind": self.kind})

    @classmethod
    def from_configuration(cls, settings: dict[str, Any], array: np.ndarray | None) -> Identity:
        return cls(scale=cls.scale_in(settings))

    def code_size(self, n_features: int) -> int:
        return n_features

    def expand(self, quantised: np.ndarray, hardware: Hardware) -> Array:
        return hardware.array(quantised)

    def add_to(self, graph: Graph, quantised: str, n_features: int) -> str:
        return quantised


@register
class RandomProjection(Encoder):
    """A seeded random projection with signs +1 and -1, then an activation.

    Parameters
    ----------
    n_codes : int
        Size of the code. A larger code is more accurate; memory grows with its square. At most 2**20, and 2**31 divided
        by the number of features.
    seed : int, 0 <= seed < 2**64
    activation : {"relu", "tanh", "sigmoid", "gelu", "sign"}
        With x the projection in standard deviations of a row of root mean square 1: ``relu`` is about 18 x, from 0 to
        127; ``tanh`` is 127 tanh x; ``sigmoid`` is 127 / (1 + exp(-x)); ``gelu``, the sigmoid form of GELU, is 32 x /
        (1 + exp(-1.702 x)), at most 127; ``sign`` is -127, 0 or 127.
    scale : float, 2**-40 <= scale <= 2**40, optional
        Divides features by this instead of by the root mean square of their row, so that the length of a row counts.

    Examples
    --------
    >>> RandomProjection(8, seed=0).encode([[1.0, 2.0, -1.0]]).tolist()
    [[0, 11, 0, 0, 11, 0, 11, 11]]
    >>> RandomProjection(8, seed=0, activation="tanh").encode([[1.0, 2.0, -1.0]]).tolist()
    [[5, 88, -5, -118, 88, -118, 88, 88]]
    """

    kind = "random-projection"
    _settings = ("n_codes", "seed", "activation", "scale")

    def __init__(
        self, n_codes: int = 2048, seed: int = 0, *, activation: str = "relu", scale: float | None = None
    ) -> None:
        self.n_codes = n_codes
        self.seed = seed
        self.activation = activation
        self.scale = scale

    def configuration(self) -> dict[str, Any]:
        size, seed = whole_number("n_codes", self.n_codes, 1, 2**20), whole_number("seed", self.seed, 0, 2**64 - 1)
        settings: dict[str, Any] = {"kind": self.kind, "codes": size, "seed": seed}
        if self.activation not in ACTIVATIONS:
            raise ConfigurationError(f"activation must be one of {', '.join(ACTIVATIONS)}; got {self.activation!r}")
        if self.activation != "relu":
            settings["activation"] = self.activation
        return self.with_scale(settings)

    @classmethod
    def from_configuration(cls, settings: dict[str, Any], array: np.ndarray | None) -> RandomProjection:
        activation, scale = settings.get("activation", "relu"), cls.scale_in(settings)
        return cls(settings["codes"], settings["seed"], activation=activation, scale=scale)

    def code_size(self, n_features: int) -> int:
        size = int(self.n_codes)
        if size * n_features > _SIGNS:
            raise ConfigurationError(
                f"a projection of {n_features} features to {size} codes has more than 2**31 signs: use fewer codes"
            )
        return size

    def expand(self, quantised: np.ndarray, hardware: Hardware) -> Array:
        width = quantised.shape[1]
        matrix = _projection(int(self.seed), width, int(self.n_codes), hardware)
        parts = []
        for start in range(0, max(1, len(quantised)), _ROWS):
            projected = matrix.after(hardware.array(quantised[start : start + _ROWS]))  # (rows, d), |p| <= 127 d0
            parts.append(self._activated(projected, width, hardware))
        return parts[0] if len(parts) == 1 else hardware.concatenate(parts, 0)

    def _activated(self, projected: Array, width: int, hardware: Hardware) -> Array:
        if self.activation == "relu":  # the shift of a negative number stays negative
            return hardware.rectified(projected, projection_shift(width))
        table = activation_table(self.activation, width)
        middle = len(table) // 2
        return hardware.array(table)[projected.clip(-middle, middle) + middle]

    def add_to(self, graph: Graph, quantised: str, n_features: int) -> str:
        signs = projection_signs(int(self.seed), n_features, int(self.n_codes))
        matrix = graph.cast(graph.constant(signs, np.int8), "DOUBLE")
        projected = graph.add("MatMul", quantised, matrix)  # (n, d), integers of at most 127 d0
        if self.activation == "relu":
            step = graph.constant(2.0 ** -projection_shift(n_features))
            shifted = graph.add("Floor", graph.add("Mul", projected, step))  # a shift to the right
            return graph.add("Clip", shifted, graph.constant(0.0), graph.constant(127.0))
        table = activation_table(self.activation, n_features)
        middle = float(len(table) // 2)
        nearest = graph.add("Clip", projected, graph.constant(-middle), graph.constant(middle))
        places = graph.cast(graph.add("Add", nearest, graph.constant(middle)), "int64")
        return graph.add("Gather", graph.constant(table), places)


def projection_shift(n_features: int) -> int:
    """Return the greatest s >= 0 with ``81 * 4**s <= 128 * n_features``, which brings the spread near 18."""
    shift = 0
    while 81 * 4 ** (shift + 1) <= 128 * n_features:
        shift += 1
    return shift


def projection_signs(seed: int, n_features: int, n_codes: int) -> np.ndarray:
    """Return the sign matrix, int8 of shape (n_features, n_codes).

    Row i holds the first bits of ``SHAKE-256("neverseen:projection:1" || seed || i)``. This generator is a published
    standard (FIPS 202), so no library can change it.
    """
    size = -(-n_codes // 8)
    stream = b"".join(
        hashlib.shake_256(b"neverseen:projection:1" + struct.pack("<QQ", seed, row)).digest(size)
        for row in range(n_features)
    )
    packed = np.frombuffer(stream, np.uint8).reshape(n_features, size)
    bits = np.unpackbits(packed, axis=1, count=n_codes, bitorder="little")
    return np.int8(1) - np.int8(2) * bits.astype(np.int8)


@lru_cache(maxsize=4)
def _projection(seed: int, n_features: int, n_codes: int, hardware: Hardware) -> CodeMatrix:
    return CodeMatrix(projection_signs(seed, n_features, n_codes), hardware)


@register
class TwoStreams(Encoder):
    """Two activations of one random projection, as in DS-AL: a main stream, and one that compensates for its errors.

    The main stream is a ridge model of its own. The compensation stream is fitted to what that leaves over, and the
    prediction is the main stream's, plus `compensation_ratio` times that of the compensation stream.

    Parameters
    ----------
    n_codes : int
        Size of each stream, at most 2**19: a code has twice as many. Otherwise as in `RandomProjection`.
    seed : int, 0 <= seed < 2**64
    activation, compensation_activation : {"relu", "tanh", "sigmoid", "gelu", "sign"}
        Of the two streams, as in `RandomProjection`.
    compensation_ratio : float, 2**-10 <= ratio <= 2**10
        DS-AL's paper has 0.6 for CIFAR-100 and 1.5 for ImageNet.
    scale : float, 2**-40 <= scale <= 2**40, optional
        Divides features by this instead of by the root mean square of their row, so that the length of a row counts.

    Examples
    --------
    >>> TwoStreams(4, seed=0).encode([[1.0, 2.0, -1.0]]).tolist()
    [[0, 11, 0, 0, 5, 88, -5, -118]]
    """

    kind = "two-streams"
    _settings = ("n_codes", "seed", "activation", "compensation_activation", "compensation_ratio", "scale")

    def __init__(
        self,
        n_codes: int = 1024,
        seed: int = 0,
        *,
        activation: str = "relu",
        compensation_activation: str = "tanh",
        compensation_ratio: float = 1.0,
        scale: float | None = None,
    ) -> None:
        self.n_codes, self.seed, self.scale = n_codes, seed, scale
        self.activation, self.compensation_activation = activation, compensation_activation
        self.compensation_ratio = compensation_ratio

    def configuration(self) -> dict[str, Any]:
        whole_number("n_codes", self.n_codes, 1, 2**19)
        main, second = (stream.configuration() for stream in self._streams())
        return main | {
            "activation": self.activation,
            "compensation": second.get("activation", "relu"),
            "kind": self.kind,
            "ratio": real_number("compensation_ratio", self.compensation_ratio, 2.0**-10, 2.0**10).hex(),
        }

    @classmethod
    def from_configuration(cls, settings: dict[str, Any], array: np.ndarray | None) -> TwoStreams:
        return cls(
            settings["codes"],
            settings["seed"],
            activation=settings["activation"],
            compensation_activation=settings["compensation"],
            compensation_ratio=float.fromhex(settings["ratio"]),
            scale=cls.scale_in(settings),
        )

    def code_size(self, n_features: int) -> int:
        return sum(stream.code_size(n_features) for stream in self._streams())

    def expand(self, quantised: np.ndarray, hardware: Hardware) -> Array:
        return hardware.concatenate([stream.expand(quantised, hardware) for stream in self._streams()], 1)

    def add_to(self, graph: Graph, quantised: str, n_features: int) -> str:
        return graph.add("Concat", *(each.add_to(graph, quantised, n_features) for each in self._streams()), axis=1)

    def _streams(self) -> list[RandomProjection]:
        """Return an encoder for each stream. They share their signs, and so the memory for them."""
        activations = (self.activation, self.compensation_activation)
        return [RandomProjection(self.n_codes, self.seed, activation=each, scale=self.scale) for each in activations]


@register
class GaussianKernel(Encoder):
    """Gaussian kernel values to given centres, as integers 0..127.

    Parameters
    ----------
    centres : array-like of shape (n_codes, n_features)
        Public points, such as a named base set. They are quantised like samples; an int8 array counts as already
        quantised. Do not take them from data that may be forgotten: a centre is never forgotten.
    bandwidth : float
        In units of the features' root mean square: with rows u, v of root mean square 1 and d0 features, the kernel
        is ``exp(-||u - v||**2 / (2 * bandwidth**2 * d0))``.
    scale : float, 2**-40 <= scale <= 2**40, optional
        Divides features, and centres, by this instead of by the root mean square of their row: the kernel is the above
        with u and v divided by it. So ``bandwidth = sigma / (scale * sqrt(d0))`` gives ``exp(-||x - c||**2 / (2 *
        sigma**2))``, as GKEAL has it.

    Examples
    --------
    >>> GaussianKernel([[1.0, 0.0], [0.0, 1.0]], bandwidth=1.0).encode([[1.0, 0.1]]).tolist()
    [[127, 49]]
    """

    kind = "gaussian-kernel"
    _settings = ("centres", "bandwidth", "scale")

    def __init__(self, centres: Any, bandwidth: float = 0.5, *, scale: float | None = None) -> None:
        self.centres = centres
        self.bandwidth = bandwidth
        self.scale = scale

    def __repr__(self) -> str:
        shape = np.shape(self.centres)
        return f"GaussianKernel(centres=<array of shape {shape}>, bandwidth={self.bandwidth!r}, scale={self.scale!r})"

    def array(self) -> np.ndarray:
        """Return the centres as int8 of shape (n_codes, n_features)."""
        try:
            given = np.asarray(self.centres)
            centres = np.maximum(given, -127) if given.dtype == np.int8 and given.ndim == 2 else self.quantise(given)
        except InputError as error:
            raise ConfigurationError(f"centres: {error}") from error
        if len(centres) == 0:
            raise ConfigurationError("centres must have at least one row; got none")
        return centres

    def configuration(self) -> dict[str, Any]:
        scaled = self.with_scale({"kind": self.kind})  # raises if the scale, which the centres need, is unusable
        centres = self.array()
        return scaled | {
            "centres": hashlib.sha256(centres.tobytes()).hexdigest(),
            "shape": list(centres.shape),
            "bandwidth": real_number("bandwidth", self.bandwidth, 2.0**-20, 2.0**20).hex(),
        }

    @classmethod
    def from_configuration(cls, settings: dict[str, Any], array: np.ndarray | None) -> GaussianKernel:
        if array is None:
            raise ConfigurationError("the centres of the encoder are missing")
        return cls(array, float.fromhex(settings["bandwidth"]), scale=cls.scale_in(settings))

    def code_size(self, n_features: int) -> int:
        return len(self.centres)

    def expand(self, quantised: np.ndarray, hardware: Hardware) -> Array:
        centres = self.array()
        if centres.shape[1] != quantised.shape[1]:
            raise InputError(f"samples have {quantised.shape[1]} features, but the centres have {centres.shape[1]}")
        matrix = CodeMatrix(np.ascontiguousarray(centres.T), hardware)
        offsets = (centres.astype(np.int64) ** 2).sum(axis=1)  # (d,)
        thresholds = kernel_thresholds(float(self.bandwidth), quantised.shape[1])  # t_1 >= t_2 >= ... >= t_127
        codes = np.empty((len(quantised), len(centres)), np.int8)
        for start in range(0, len(quantised), _ROWS):
            rows = quantised[start : start + _ROWS]
            inner = hardware.numpy(matrix.after(hardware.array(rows))).astype(np.int64)  # (rows, d)
            distances = (rows.astype(np.int64) ** 2).sum(axis=1)[:, None] + offsets - 2 * inner
            # How many thresholds are at least the distance: 127 less those below it.
            codes[start : start + _ROWS] = 127 - np.searchsorted(thresholds[::-1], distances, side="left")
        return hardware.array(codes)

    def add_to(self, graph: Graph, quantised: str, n_features: int) -> str:
        centres = self.array().astype(np.float64)  # (d, d0)
        thresholds = np.unique(kernel_thresholds(float(self.bandwidth), n_features), return_counts=True)
        squares = graph.add("Mul", quantised, quantised)
        own = graph.add("ReduceSum", squares, graph.constant([1], np.int64), keepdims=1)  # (n, 1)
        inner = graph.add("MatMul", quantised, graph.constant(-2.0 * centres.T))  # (n, d)
        distances = graph.add("Add", graph.add("Add", inner, own), graph.constant((centres**2).sum(axis=1)))
        codes = graph.constant(0.0)
        for threshold, count in zip(*thresholds, strict=True):
            # A distance is at most 254**2 d0, so a threshold beyond 2**53 is as good as that.
            reached = graph.add("LessOrEqual", distances, graph.constant(min(int(threshold), 2**53)))
            codes = graph.add("Add", codes, graph.add("Mul", graph.cast(reached, "DOUBLE"), graph.constant(int(count))))
        return codes
