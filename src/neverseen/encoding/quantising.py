"""Quantisation: the only place where floats are rounded, by single IEEE operations in a fixed order."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from neverseen.encoding.settings import real_number
from neverseen.errors import HardwareError, InputError
from neverseen.hardware import Hardware, few_rows, kernels

_TARGET_RMS = 16.0
_COMPARED = 4  # rows of each call that other hardware quantised
_CACHED = 2**15  # numbers quantised at a time: temporaries stay in a processor's cache


def as_features(samples: Any) -> np.ndarray:
    """Return samples as a float64 matrix, or raise `InputError`.

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
    features = array.astype(np.float64)  # a copy
    if not np.isfinite(features).all():
        row = int(np.flatnonzero(~np.isfinite(features).all(axis=1))[0])
        raise InputError(
            f"features contain NaN or infinity, first in row {row}; drop or impute such samples before learning"
        )
    return features


def quantise(samples: Any, scale: float | None = None, hardware: Hardware | None = None) -> np.ndarray:
    """Return each row divided by its own root mean square, or by a fixed scale, times 16, rounded to int8.

    Parameters
    ----------
    samples : array-like of shape (n, d0)
        Finite real numbers.
    scale : float, 2**-40 <= scale <= 2**40, optional
        Divides all rows alike, so their lengths count. Features beyond 7.9 times the scale become 127 or -127.
    hardware : Hardware, optional
        Where many samples may be quantised by their own root mean squares. The bits are the same, and a few rows of
        each call are compared.

    Returns
    -------
    int8 ndarray of shape (n, d0), entries in -127..127
        A row of zeros stays zeros. Without a scale, multiplying a row by a power of two changes nothing.

    Notes
    -----
    The bits are the same on every machine: scaling by a power of two, products, sums in a fixed tree,
    division and square root are each one correctly rounded IEEE operation. Scaling to a largest magnitude in
    [1/2, 1) rules out overflow. Numbers that underflow are too small to affect a sum of at least 1/4. With a scale,
    there is one product for each feature; one that overflows is clipped, and one that underflows is 0.

    Examples
    --------
    >>> quantise([[3.0, -4.0], [0.0, 0.0]]).tolist()
    [[14, -18], [0, 0]]
    >>> quantise([[3.0, -4.0], [0.3, -40.0]], scale=2.0).tolist()
    [[24, -32], [2, -127]]
    """
    if hardware is not None and scale is None:
        found = _quantised_there(samples, hardware)
        if found is not None:
            return found
    if scale is None and _is_few(samples):
        found = few_rows.quantised(samples)
        if found is not None:
            return found
    factor = None if scale is None else _TARGET_RMS / fixed_scale(scale)
    features = as_features(samples)
    codes = np.empty(features.shape, np.int8)
    rows = max(1, _CACHED // features.shape[1])
    for start in range(0, len(features), rows):
        codes[start : start + rows] = _quantise_rows(features[start : start + rows], factor)
    return codes


def _is_few(samples: Any) -> bool:
    """Return whether there are compiled loops for these features, and few rows of them."""
    if not isinstance(samples, np.ndarray) or samples.ndim != 2 or not 0 < len(samples) <= few_rows.FEW:
        return False
    plain = samples.dtype in (np.float32, np.float64) and samples.flags.c_contiguous and samples.flags.aligned
    return plain and samples.size > 0 and kernels.available()


def fixed_scale(value: Any) -> float:
    """Return a scale as a float; raise `ConfigurationError` if it cannot be one."""
    return real_number("scale", value, 2.0**-40, 2.0**40)


def _quantised_there(samples: Any, hardware: Hardware) -> np.ndarray | None:
    """Return codes that other hardware made, or None if it makes none. Raise `HardwareError` if a row is wrong."""
    if not isinstance(samples, np.ndarray) or samples.ndim != 2 or not samples.size:
        return None
    codes = hardware.quantised(samples, _TARGET_RMS)
    if codes is not None:
        places = np.array([int.from_bytes(os.urandom(8)) % len(samples) for _ in range(_COMPARED)])
        if not np.array_equal(_quantise_rows(samples[places].astype(np.float64), None), codes[places]):
            raise HardwareError(
                "features quantised on this machine are not what the processor makes of them: the hardware or a "
                "numerical library is at fault; nothing was changed. Try hardware='numpy', or another machine"
            )
    return codes


def _quantise_rows(features: np.ndarray, factor: float | None) -> np.ndarray:
    width = features.shape[1]
    with np.errstate(under="ignore", over="ignore"):
        if factor is not None:
            return _rounded(features * factor)
        _, exponents = np.frexp(np.abs(features).max(axis=1, keepdims=True))
        scaled = np.ldexp(features, -exponents)  # (n, d0), largest magnitude in [1/2, 1)
        squares = np.zeros((len(features), 1 << (width - 1).bit_length()))
        np.multiply(scaled, scaled, out=squares[:, :width])
        while squares.shape[1] > 1:
            half = squares.shape[1] // 2
            squares = squares[:, :half] + squares[:, half:]
        root = np.sqrt(squares / width)  # (n, 1)
        return _rounded(scaled * np.divide(_TARGET_RMS, root, out=np.zeros_like(root), where=root > 0))


def _rounded(numbers: np.ndarray) -> np.ndarray:
    whole = np.rint(numbers)
    codes: np.ndarray = np.maximum(np.minimum(whole, 127, out=whole), -127, out=whole).astype(np.int8)
    return codes
