"""Encoders: float features in, small integers out, the same on every machine.

An encoder works in two stages. `quantise` divides a row by its own root mean square and rounds it to int8; this
is the one place where floats are rounded, by single IEEE operations in a fixed order. `expand` turns those
integers into the *code*, by integer arithmetic alone. Nothing is fitted: an encoder's settings are chosen
before the first sample and never depend on data. Sections 1 and 2 of ``docs/specification.md`` define every
bit.
"""

from __future__ import annotations

import hashlib
import struct
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Any

import numpy as np

from neverseen.engine.arithmetic import CodeMatrix
from neverseen.errors import ConfigurationError, InputError
from neverseen.hardware import Array, Hardware, choose
from neverseen.labels import canonical_json

_TARGET_RMS = 16.0
_ROWS = 4096  # rows expanded at a time, to bound memory
_CACHED = 2**15  # numbers quantised at a time: temporaries stay in a processor's cache


def as_features(samples: Any) -> np.ndarray:
    """Return samples as a float64 matrix, or say what is wrong with them.

    Accepts bool, integer and floating-point arrays of shape (n, d0) with n >= 0 and d0 >= 1.
    """
    array = np.asarray(samples)
    if array.ndim != 2:
        raise InputError(
            "features must be a matrix of shape (samples, features); "
            f"got {array.ndim} dimension(s), shape {array.shape}"
        )
    if array.dtype.kind not in "biuf":
        raise InputError(f"features must be real numbers; got dtype {array.dtype}")
    if array.shape[1] == 0:
        raise InputError(f"features have 0 columns (shape={array.shape}); a minimum of 1 is required")
    features = array.astype(np.float64)
    if not np.isfinite(features).all():
        row = int(np.flatnonzero(~np.isfinite(features).all(axis=1))[0])
        raise InputError(
            f"features contain NaN or infinity, first in row {row}; drop or impute such samples before learning"
        )
    return features


def quantise(samples: Any) -> np.ndarray:
    """Return each row divided by its own root mean square, times 16, rounded to int8.

    Parameters
    ----------
    samples : array-like of shape (n, d0)
        Finite real numbers.

    Returns
    -------
    int8 ndarray of shape (n, d0), entries in -127..127
        A row of zeros stays zeros. Multiplying a row by a power of two changes nothing.

    Notes
    -----
    The same bits on every machine: scaling by a power of two, products, sums in a fixed tree,
    division and square root are each one correctly rounded IEEE operation. Scaling to a largest magnitude in
    [1/2, 1) rules out overflow, and what underflows is too small to move a sum that is at least 1/4.

    Examples
    --------
    >>> quantise([[3.0, -4.0], [0.0, 0.0]]).tolist()
    [[14, -18], [0, 0]]
    """
    features = as_features(samples)
    codes = np.empty(features.shape, np.int8)
    rows = max(1, _CACHED // features.shape[1])
    for start in range(0, len(features), rows):
        codes[start : start + rows] = _quantise_rows(features[start : start + rows])
    return codes


def _quantise_rows(features: np.ndarray) -> np.ndarray:
    width = features.shape[1]
    with np.errstate(under="ignore"):
        _, exponents = np.frexp(np.abs(features).max(axis=1, keepdims=True))
        scaled = np.ldexp(features, -exponents)  # (n, d0), largest magnitude in [1/2, 1)
        squares = np.zeros((len(features), 1 << (width - 1).bit_length()))
        np.multiply(scaled, scaled, out=squares[:, :width])
        while squares.shape[1] > 1:
            half = squares.shape[1] // 2
            squares = squares[:, :half] + squares[:, half:]
        root = np.sqrt(squares / width)  # (n, 1)
        factor = np.divide(_TARGET_RMS, root, out=np.zeros_like(root), where=root > 0)
        codes: np.ndarray = np.clip(np.rint(scaled * factor), -127, 127).astype(np.int8)
        return codes


class Encoder:
    """Base of the encoders: `quantise`, then `expand`.

    Settings are read and changed as scikit-learn does it (`get_params`, `set_params`), so encoders work in grid
    searches.
    """

    _settings: tuple[str, ...] = ()

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the settings by name."""
        return {name: getattr(self, name) for name in self._settings}

    def set_params(self, **settings: Any) -> Encoder:
        """Change settings by name."""
        for name, value in settings.items():
            if name not in self._settings:
                raise ConfigurationError(
                    f"{type(self).__name__} has no setting {name!r}; it has {', '.join(self._settings) or 'none'}"
                )
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self._settings)})"

    def configuration(self) -> dict[str, Any]:
        """Return the settings that decide every code, as JSON values; raise `ConfigurationError` if unusable."""
        raise NotImplementedError

    def digest(self) -> str:
        """Return the SHA-256 of the configuration, in hex."""
        return hashlib.sha256(canonical_json(self.configuration()).encode()).hexdigest()

    def code_size(self, n_features: int) -> int:
        """Return the number of integers in the code of a sample with that many features."""
        raise NotImplementedError

    def expand(self, quantised: np.ndarray, hardware: Hardware) -> Array:
        """Return the int8 codes of quantised features of shape (n, d0), on the hardware given."""
        raise NotImplementedError

    def encode(self, samples: Any) -> np.ndarray:
        """Return the int8 codes, of shape (n, d), of float features of shape (n, d0)."""
        hardware = choose("numpy")
        return hardware.numpy(self.expand(quantise(samples), hardware))


class Identity(Encoder):
    """The quantised features themselves are the code.

    Examples
    --------
    >>> Identity().encode([[1.0, 1.0, -2.0]]).tolist()
    [[11, 11, -23]]
    """

    def configuration(self) -> dict[str, Any]:
        return {"kind": "identity"}

    def code_size(self, n_features: int) -> int:
        return n_features

    def expand(self, quantised: np.ndarray, hardware: Hardware) -> Array:
        return hardware.array(quantised)


class RandomProjection(Encoder):
    """A seeded random projection with signs +1 and -1, rectified and scaled to 0..127.

    Parameters
    ----------
    n_codes : int
        Size of the code. More is more accurate and costs its square in memory.
    seed : int, 0 <= seed < 2**64

    Examples
    --------
    >>> RandomProjection(8, seed=0).encode([[1.0, 2.0, -1.0]]).tolist()
    [[0, 11, 0, 0, 11, 0, 11, 11]]
    """

    _settings = ("n_codes", "seed")

    def __init__(self, n_codes: int = 2048, seed: int = 0) -> None:
        self.n_codes = n_codes
        self.seed = seed

    def configuration(self) -> dict[str, Any]:
        size = whole_number("n_codes", self.n_codes, 1, 2**20)
        return {"kind": "random-projection", "codes": size, "seed": whole_number("seed", self.seed, 0, 2**64 - 1)}

    def code_size(self, n_features: int) -> int:
        return int(self.n_codes)

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


def projection_shift(n_features: int) -> int:
    """Return the greatest s >= 0 with ``81 * 4**s <= 128 * n_features``, which brings the spread near 18."""
    shift = 0
    while 81 * 4 ** (shift + 1) <= 128 * n_features:
        shift += 1
    return shift


def projection_signs(seed: int, n_features: int, n_codes: int) -> np.ndarray:
    """Return the sign matrix, int8 of shape (n_features, n_codes).

    Row i holds the first bits of ``SHAKE-256("neverseen:projection:1" || seed || i)``: a counter-based generator
    that is a published standard (FIPS 202), so no library can change it under us.
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


class GaussianKernel(Encoder):
    """Gaussian kernel values to given centres, as integers 0..127.

    Parameters
    ----------
    centres : array-like of shape (n_codes, n_features)
        Public points, such as a named base set, quantised as samples are; an int8 array is taken as quantised
        already. They must not come from data that may have to be forgotten: a centre is never forgotten.
    bandwidth : float
        In units of the features' root mean square: with rows u, v of root mean square 1 and d0 features, the kernel
        is ``exp(-||u - v||**2 / (2 * bandwidth**2 * d0))``.

    Examples
    --------
    >>> GaussianKernel([[1.0, 0.0], [0.0, 1.0]], bandwidth=1.0).encode([[1.0, 0.1]]).tolist()
    [[127, 49]]
    """

    _settings = ("centres", "bandwidth")

    def __init__(self, centres: Any, bandwidth: float = 0.5) -> None:
        self.centres = centres
        self.bandwidth = bandwidth

    def __repr__(self) -> str:
        return f"GaussianKernel(centres=<array of shape {np.shape(self.centres)}>, bandwidth={self.bandwidth!r})"

    def quantised_centres(self) -> np.ndarray:
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
        centres = self.quantised_centres()
        try:
            bandwidth = float(self.bandwidth)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"bandwidth must be a number; got {self.bandwidth!r}") from error
        if not 2.0**-20 <= bandwidth <= 2.0**20:  # also refuses NaN
            raise ConfigurationError(f"bandwidth must be a number between 2**-20 and 2**20; got {self.bandwidth!r}")
        return {
            "kind": "gaussian-kernel",
            "centres": hashlib.sha256(centres.tobytes()).hexdigest(),
            "shape": list(centres.shape),
            "bandwidth": bandwidth.hex(),
        }

    def code_size(self, n_features: int) -> int:
        return len(self.centres)

    def expand(self, quantised: np.ndarray, hardware: Hardware) -> Array:
        centres = self.quantised_centres()
        if centres.shape[1] != quantised.shape[1]:
            raise InputError(f"samples have {quantised.shape[1]} features and the centres {centres.shape[1]}")
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


@lru_cache(maxsize=16)
def kernel_thresholds(bandwidth: float, n_features: int) -> np.ndarray:
    """Return ``t_v = floor(512 h**2 d0 ln(254 / (2v - 1)))`` for v = 1..127: the code is at least v up to distance t_v.

    `decimal` rounds its logarithm correctly at any precision, so the table is the same everywhere. The value is
    transcendental; precision is raised until its floor is beyond doubt.
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


def require_storable(encoder: Encoder) -> None:
    """Raise `ConfigurationError` for an encoder that `encoder_of` could not make again."""
    if type(encoder) not in (Identity, RandomProjection, GaussianKernel):
        raise ConfigurationError(f"models with a custom encoder ({type(encoder).__name__}) cannot be saved")


def encoder_of(settings: dict[str, Any], centres: np.ndarray | None) -> Encoder:
    """Return the encoder that has this `configuration`; a `GaussianKernel` also needs its centres."""
    if settings["kind"] == "identity":
        return Identity()
    if settings["kind"] == "random-projection":
        return RandomProjection(settings["codes"], settings["seed"])
    if settings["kind"] == "gaussian-kernel" and centres is not None:
        return GaussianKernel(centres, float.fromhex(settings["bandwidth"]))
    raise ConfigurationError(f"the encoder is {settings['kind']!r}, which this version does not know")


def whole_number(name: str, value: Any, least: int, most: int) -> int:
    """Return a setting as an int, or say why it cannot be one."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer) or not least <= value <= most:
        raise ConfigurationError(f"{name} must be a whole number between {least} and {most}; got {value!r}")
    return int(value)
