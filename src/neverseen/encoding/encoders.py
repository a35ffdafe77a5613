"""The encoders of this package. A new one needs a class here, a section in the specification, and tests."""

from __future__ import annotations

import hashlib
import struct
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Any

import numpy as np

from neverseen.encoding.encoder import Encoder, Graph, register, whole_number
from neverseen.encoding.quantising import quantise
from neverseen.engine.arithmetic import CodeMatrix
from neverseen.errors import ConfigurationError, InputError
from neverseen.hardware import Array, Hardware

_ROWS = 4096  # rows expanded at a time, to bound memory
_SIGNS = 2**31  # at most in a projection, so that a small file cannot ask for any amount of memory


@register
class Identity(Encoder):
    """The quantised features themselves are the code.

    Examples
    --------
    >>> Identity().encode([[1.0, 1.0, -2.0]]).tolist()
    [[11, 11, -23]]
    """

    kind = "identity"

    def configuration(self) -> dict[str, Any]:
        return {"kind": self.kind}

    @classmethod
    def from_configuration(cls, settings: dict[str, Any], array: np.ndarray | None) -> Identity:
        return cls()

    def code_size(self, n_features: int) -> int:
        return n_features

    def expand(self, quantised: np.ndarray, hardware: Hardware) -> Array:
        return hardware.array(quantised)

    def add_to(self, graph: Graph, quantised: str, n_features: int) -> str:
        return quantised


@register
class RandomProjection(Encoder):
    """A seeded random projection with signs +1 and -1, rectified and scaled to 0..127.

    Parameters
    ----------
    n_codes : int
        Size of the code. A larger code is more accurate; memory grows with its square. At most 2**20, and 2**31 divided
        by the number of features.
    seed : int, 0 <= seed < 2**64

    Examples
    --------
    >>> RandomProjection(8, seed=0).encode([[1.0, 2.0, -1.0]]).tolist()
    [[0, 11, 0, 0, 11, 0, 11, 11]]
    """

    kind = "random-projection"
    _settings = ("n_codes", "seed")

    def __init__(self, n_codes: int = 2048, seed: int = 0) -> None:
        self.n_codes = n_codes
        self.seed = seed

    def configuration(self) -> dict[str, Any]:
        size = whole_number("n_codes", self.n_codes, 1, 2**20)
        return {"kind": self.kind, "codes": size, "seed": whole_number("seed", self.seed, 0, 2**64 - 1)}

    @classmethod
    def from_configuration(cls, settings: dict[str, Any], array: np.ndarray | None) -> RandomProjection:
        return cls(settings["codes"], settings["seed"])

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
        shift = projection_shift(width)
        parts = []
        for start in range(0, max(1, len(quantised)), _ROWS):
            projected = matrix.after(hardware.array(quantised[start : start + _ROWS]))  # (rows, d), |p| <= 127 d0
            parts.append(
                hardware.int8((projected >> shift).clip(0, 127))
            )  # the shift of a negative number stays negative
        return parts[0] if len(parts) == 1 else hardware.concatenate(parts, 0)

    def add_to(self, graph: Graph, quantised: str, n_features: int) -> str:
        signs = projection_signs(int(self.seed), n_features, int(self.n_codes))
        matrix = graph.cast(graph.constant(signs, np.int8), "DOUBLE")
        projected = graph.add("MatMul", quantised, matrix)  # (n, d), integers of at most 127 d0
        step = graph.constant(2.0 ** -projection_shift(n_features))
        shifted = graph.add("Floor", graph.add("Mul", projected, step))  # a shift to the right
        return graph.add("Clip", shifted, graph.constant(0.0), graph.constant(127.0))


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

    Examples
    --------
    >>> GaussianKernel([[1.0, 0.0], [0.0, 1.0]], bandwidth=1.0).encode([[1.0, 0.1]]).tolist()
    [[127, 49]]
    """

    kind = "gaussian-kernel"
    _settings = ("centres", "bandwidth")

    def __init__(self, centres: Any, bandwidth: float = 0.5) -> None:
        self.centres = centres
        self.bandwidth = bandwidth

    def __repr__(self) -> str:
        return f"GaussianKernel(centres=<array of shape {np.shape(self.centres)}>, bandwidth={self.bandwidth!r})"

    def array(self) -> np.ndarray:
        """Return the centres as int8 of shape (n_codes, n_features)."""
        try:
            given = np.asarray(self.centres)
            centres = np.maximum(given, -127) if given.dtype == np.int8 and given.ndim == 2 else quantise(given)
        except InputError as error:
            raise ConfigurationError(f"centres: {error}") from error
        if len(centres) == 0:
            raise ConfigurationError("centres must have at least one row; got none")
        return centres

    def configuration(self) -> dict[str, Any]:
        centres = self.array()
        try:
            bandwidth = float(self.bandwidth)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"bandwidth must be a number; got {self.bandwidth!r}") from error
        if not 2.0**-20 <= bandwidth <= 2.0**20:  # also refuses NaN
            raise ConfigurationError(f"bandwidth must be a number between 2**-20 and 2**20; got {self.bandwidth!r}")
        return {
            "kind": self.kind,
            "centres": hashlib.sha256(centres.tobytes()).hexdigest(),
            "shape": list(centres.shape),
            "bandwidth": bandwidth.hex(),
        }

    @classmethod
    def from_configuration(cls, settings: dict[str, Any], array: np.ndarray | None) -> GaussianKernel:
        if array is None:
            raise ConfigurationError("the centres of the encoder are missing")
        return cls(array, float.fromhex(settings["bandwidth"]))

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


@lru_cache(maxsize=16)
def kernel_thresholds(bandwidth: float, n_features: int) -> np.ndarray:
    """Return ``t_v = floor(512 h**2 d0 ln(254 / (2v - 1)))`` for v = 1..127: the code is at least v up to distance t_v.

    `decimal` rounds its logarithm correctly at any precision, so the table is the same everywhere. The value is
    transcendental, so a high enough precision always decides its floor.
    """
    thresholds = np.empty(127, np.int64)
    for v in range(1, 128):
        digits = 50
        while True:
            with localcontext() as context:
                context.prec = digits
                h = Decimal(bandwidth)  # exact
                value = 512 * h * h * n_features * (Decimal(254) / Decimal(2 * v - 1)).ln()
                slack = value * Decimal(10) ** (8 - digits)  # six roundings at most
                if int(value - slack) == int(value + slack):
                    break
            digits *= 2
        thresholds[v - 1] = min(int(value), 2**62)
    thresholds.flags.writeable = False
    return thresholds
