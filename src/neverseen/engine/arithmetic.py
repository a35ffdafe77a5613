"""Exact integer products on hardware built for floats.

Floating-point sums of integers are exact while every partial sum stays within the significand: 2**24 for
float32, 2**53 for float64, in any order, fused or not. So a product is exact *by construction* once its
operands are bounded. Each function here bounds them before, and checks the result after:

The check (Freivalds) multiplies both sides by a random vector `r` in plain 64-bit integers, modulo 2**64. Let a
wrong product differ from the right one by a matrix E with some entry not 0 modulo 2**64, and let 2**v be the
largest power of two that divides every entry of its row. For `r` uniform modulo 2**64, ``E r`` is 0 in that row
with probability at most 2**(v - 64). An entry that is not zero has v below its own bits. So a wrong Gram matrix,
of entries below 2**34, passes with probability below 2**-29, and a product that was rounded or saturated, wrong in
its low bits, below 2**-40. The worst case is a lone flip of the top bit of a 62-bit entry, which one probe in four
misses. A product that fails raises `HardwareError`; the caller has changed nothing yet.
"""

from __future__ import annotations

import os

import numpy as np

from neverseen.errors import HardwareError, LimitError
from neverseen.hardware import INT8_PRODUCT, INT32_ROWS, Array, Hardware
from neverseen.hardware.few_rows import FEW
from neverseen.hardware.protocol import BYTE_ROWS

MAX_SAMPLES = 2**48
"""No sum overflows below this many samples: 2**48 * 127**2 < 2**62."""

assert MAX_SAMPLES * INT8_PRODUCT < 2**62

_FEW_CODES = 64
_FEW_ROWS = 256  # of weights that are looked at together: a copy of them takes little memory


def random_vector(size: int, hardware: Hardware) -> Array:
    """Return `size` int64 values, uniform modulo 2**64, that no input can have been built against.

    They come from a generator with a new seed of 256 bits each time, and never leave their check.
    """
    generator = np.random.default_rng(int.from_bytes(os.urandom(32)))
    return hardware.array(generator.integers(-(2**63), 2**63 - 1, size, endpoint=True))


def require_equal(left: Array, right: Array, what: str) -> None:
    """Raise `HardwareError` unless both sides of a check are equal."""
    if not bool((left == right).all()):
        raise HardwareError(
            f"the {what} computed on this machine fails its check: the processor, memory or numerical library "
            "is at fault; nothing was changed. Try hardware='numpy', or another machine"
        )


def gram(codes: Array, hardware: Hardware) -> Array:
    """Return ``codes.T @ codes`` exactly.

    Parameters
    ----------
    codes : int8 array of shape (n, d), entries in -127..127
        Chunks of INT32_ROWS rows keep each partial result below 2**31, and their sum is kept in int64.

    Returns
    -------
    array of shape (d, d), integers of 16, 32 or 64 bits
    """
    if len(codes) <= INT32_ROWS:
        total = hardware.int8_gram(codes)
    else:
        total = hardware.zeros(codes.shape[1], codes.shape[1])
        for start in range(0, len(codes), INT32_ROWS):
            hardware.add_in_place(total, hardware.int8_gram(codes[start : start + INT32_ROWS]), 1)
    probe = random_vector(codes.shape[1], hardware)
    expected = hardware.wrapping_matvec(codes.T, hardware.wrapping_matvec(codes, probe))
    require_equal(hardware.wrapping_matvec(total, probe), expected, "Gram matrix")
    return total  # (d, d)


def class_sums(codes: Array, positions: np.ndarray, classes: int, hardware: Hardware) -> Array:
    """Return the sum of the codes of each class, exactly: int64 of shape (classes, d).

    Parameters
    ----------
    codes : int8 array of shape (n, d), entries in -127..127
    positions : ndarray of shape (n,)
        Each sample's class, counted from 0.
    classes : int
        How many there are.
    """
    if len(codes) <= _FEW_CODES:  # in integers: this is cheaper than a check, and needs none
        return hardware.few_class_sums(codes, positions, classes)
    sums = hardware.class_sums(codes, positions, classes)
    probe = random_vector(codes.shape[1], hardware)
    expected = np.zeros(classes, np.int64)
    np.add.at(expected, positions, hardware.numpy(hardware.wrapping_matvec(codes, probe)))  # modulo 2**64
    require_equal(hardware.numpy(hardware.wrapping_matvec(sums, probe)), expected, "class sums")
    return sums


def exact_matmul(left: Array, right: Array, hardware: Hardware) -> Array:
    """Return the product of two int64 arrays, exact because the caller has bounded its partial sums by 2**53.

    One or two rows are multiplied in integers: this is cheaper than a check, and needs none.
    """
    if 0 < len(left) <= 2:
        rows = [hardware.wrapping_matvec(right.T, row) for row in left]
        return hardware.concatenate([row[None, :] for row in rows], 0)
    return ExactOperand(right, hardware).after(left)


def wide_matmul(left: Array, right: Array, hardware: Hardware) -> Array:
    """Return ``left @ right`` modulo 2**64, for int8 and int64 arrays of any shape and values."""
    if hardware.integers:
        return hardware.int8_int64_matmul(left, right)
    if hardware.bytewise and left.shape[1] <= BYTE_ROWS:
        product = hardware.int8_int64_matmul(left, right)
        probe = random_vector(right.shape[1], hardware)
        expected = hardware.wrapping_matvec(left, hardware.wrapping_matvec(right, probe))
        require_equal(hardware.wrapping_matvec(product, probe), expected, "exact product")
        return product
    # Limbs so small that a sum of products is at most 2**53: 127 <= 2**7.
    bits = 53 - 7 - max(0, left.shape[1] - 1).bit_length()
    total, shift = None, 0
    while total is None or hardware.max_abs(hardware.float64(right)) > 0:
        rest = (right + (1 << (bits - 1))) >> bits  # digits from -2**(bits-1) to 2**(bits-1)
        part = exact_matmul(left, right - (rest << bits), hardware) << shift
        total = part if total is None else total + part
        right, shift = rest, shift + bits
        if shift >= 64:
            break
    return total


class ExactOperand:
    """An int64 matrix for many exact products in float64, with its check vector computed once.

    The caller bounds the partial sums of every product by 2**53.
    """

    def __init__(self, matrix: Array, hardware: Hardware) -> None:
        self._hardware = hardware
        self._values = hardware.float64(matrix)
        self._probe = random_vector(matrix.shape[1], hardware)
        self._image = hardware.wrapping_matvec(matrix, self._probe)

    def after(self, left: Array) -> Array:
        """Return ``left @ matrix`` exactly, for an integer array of any width, as int64."""
        hardware = self._hardware
        product = hardware.int64(hardware.matmul(hardware.float64(left), self._values))
        expected = hardware.wrapping_matvec(left, self._image)
        require_equal(hardware.wrapping_matvec(product, self._probe), expected, "exact product")
        return product


class CodeMatrix:
    """A fixed int8 matrix for products with many batches, with its check vector computed once.

    Parameters
    ----------
    matrix : int8 ndarray of shape (k, m), entries in -127..127
    """

    def __init__(self, matrix: np.ndarray, hardware: Hardware) -> None:
        if len(matrix) > INT32_ROWS:
            raise LimitError(f"rows of {len(matrix)} features are too long for exact products; at most {INT32_ROWS}")
        self._hardware, self._few = hardware, hardware.few_rows(matrix)
        self._matrix = hardware.array(matrix)
        self._probe = random_vector(matrix.shape[1], hardware)
        self._image = hardware.wrapping_matvec(self._matrix, self._probe)  # (k,)

    def after(self, rows: Array) -> Array:
        """Return ``rows @ matrix`` exactly, for int8 rows of shape (n, k), as int32 or wider."""
        if self._few is not None and len(rows) <= FEW:
            return self._few(rows)
        product = self._hardware.int8_matmul(rows, self._matrix)  # (n, m)
        expected = self._hardware.wrapping_matvec(rows, self._image)
        require_equal(self._hardware.wrapping_matvec(product, self._probe), expected, "product of features")
        return product


def require_scores_fit(weights: np.ndarray) -> None:
    """Raise `LimitError` unless no code has a score of 2**62 or more in magnitude, for int64 weights, (d, C).

    Whoever computes scores must ask first: products of 64 bits would wrap, and the scores be those of other weights.
    """
    # As floats, because the magnitude of -2**63 is no int64. A sum of d of them is right to a factor of 1 + d * 2**-52,
    # far less than the bit to spare here.
    sums = np.zeros(weights.shape[1])
    for start in range(0, len(weights), _FEW_ROWS):
        sums += np.abs(weights[start : start + _FEW_ROWS].astype(np.float64)).sum(axis=0)
    if 127 * sums.max(initial=0.0) >= 2.0**62:
        raise LimitError("the weights are too large for 64-bit scores; raise gamma or lower grid_bits")


class GridWeights:
    """Integer weights of shape (d, C), ready to score codes exactly.

    The weights are cut into limbs small enough that ``127 * d * 2**limb_bits <= 2**53``.
    """

    def __init__(self, weights: np.ndarray, hardware: Hardware) -> None:
        require_scores_fit(weights)
        limb_bits = 53 - 7 - max(0, len(weights) - 1).bit_length()
        bits = int(np.abs(weights).max(initial=0)).bit_length()
        limbs = []
        for shift in range(0, max(bits, 1), limb_bits):
            limb = weights >> shift
            if shift + limb_bits < bits:
                limb = limb & ((1 << limb_bits) - 1)  # non-negative; the top limb keeps the sign
            limbs.append((shift, ExactOperand(hardware.array(limb), hardware)))
        (_, self._lowest), *self._higher = limbs
        self._hardware, self._few = hardware, hardware.few_rows(weights)

    def scores(self, codes: Array) -> np.ndarray:
        """Return ``codes @ weights`` exactly, as int64 of shape (n, C), for int8 codes of shape (n, d)."""
        if self._few is not None and len(codes) <= FEW:
            return self._hardware.numpy(self._few(codes))
        total = self._lowest.after(codes)
        for shift, limb in self._higher:
            total = total + (limb.after(codes) << shift)
        return self._hardware.numpy(total)  # (n, C)
