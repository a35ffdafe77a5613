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

import math
import os
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from neverseen.engine.preconditioning import NoProgressError
from neverseen.errors import HardwareError, LimitError
from neverseen.hardware import INT8_PRODUCT, INT32_ROWS, Array, Hardware

MAX_SAMPLES = 2**48
"""No sum overflows below this many samples: 2**48 * 127**2 < 2**62."""

assert MAX_SAMPLES * INT8_PRODUCT < 2**62


def random_vector(size: int, hardware: Hardware) -> Array:
    """Return `size` int64 values, uniform modulo 2**64, that no input can have been built against.

    They come from a generator with a new seed of 256 bits each time, and never leave their check.
    """
    generator = np.random.default_rng(int.from_bytes(os.urandom(32)))
    return hardware.array(generator.integers(-(2**63), 2**63 - 1, size, endpoint=True))


def _require_equal(left: Array, right: Array, what: str) -> None:
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
    _require_equal(hardware.wrapping_matvec(total, probe), expected, "Gram matrix")
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
    sums = hardware.class_sums(codes, positions, classes)
    probe = random_vector(codes.shape[1], hardware)
    expected = np.zeros(classes, np.int64)
    np.add.at(expected, positions, hardware.numpy(hardware.wrapping_matvec(codes, probe)))  # modulo 2**64
    _require_equal(hardware.numpy(hardware.wrapping_matvec(sums, probe)), expected, "class sums")
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
        _require_equal(hardware.wrapping_matvec(product, self._probe), expected, "exact product")
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
        self._hardware = hardware
        self._matrix = hardware.array(matrix)
        self._probe = random_vector(matrix.shape[1], hardware)
        self._image = hardware.wrapping_matvec(self._matrix, self._probe)  # (k,)

    def after(self, rows: Array) -> Array:
        """Return ``rows @ matrix`` exactly, for int8 rows of shape (n, k), as int32 or wider."""
        product = self._hardware.int8_matmul(rows, self._matrix)  # (n, m)
        expected = self._hardware.wrapping_matvec(rows, self._image)
        _require_equal(self._hardware.wrapping_matvec(product, self._probe), expected, "product of features")
        return product


class IntegerSystem:
    """The integer matrix ``A = G + gamma * I`` and its exact products with blocks of integers.

    Parameters
    ----------
    gram : int64 array of shape (d, d)
        A Gram matrix: symmetric and positive semidefinite. So ``|G_ij| <= max_i G_ii``, which bounds every entry
        of A by its largest diagonal entry without a pass over the matrix.
    gamma : int
        At least 1. The smallest eigenvalue of A is at least gamma.
    measure : bool
        Take a pass over the matrix if that allows wider blocks. It pays off if several products follow.
    floor : Fraction, optional
        A lower bound on the eigenvalues of A, for sums from others (`neverseen.engine.definiteness`).

    Attributes
    ----------
    floor : Fraction
        gamma, unless given: every error bound divides by it.
    trace : int
        Bounds the largest eigenvalue.
    """

    def __init__(
        self, gram: Array, gamma: int, hardware: Hardware, *, measure: bool = False, floor: Fraction | None = None
    ) -> None:
        diagonal = hardware.numpy(gram.diagonal())
        self.floor = Fraction(gamma) if floor is None else floor
        self.gram, self.gamma, self.hardware = gram, gamma, hardware
        self.size = len(gram)
        self.trace = sum(diagonal.tolist()) + gamma * self.size
        self._top = int(diagonal.max(initial=0)) + gamma
        self._bits = self._top.bit_length()  # |A_ij| < 2**bits
        self._spread = max(0, self.size - 1).bit_length()  # d <= 2**spread
        self._limb_count = next(count for count in (1, 2, 3) if self._float_width(count) >= 16 or count == 3)
        self._limbs: list[Array] = []
        self._shares = self._limb_count == 1 and hardware.cholesky_keeps  # one float64 copy of G serves all
        self._reach = self._bits + self._spread  # no row of A has magnitudes that add up to 2**reach
        self.largest = 2.0**self._reach
        self.mean = self.deviation = math.inf  # bounds on the mean of a row of G, and on the norm of the rest of it
        if self.width(1) < 2:
            raise LimitError(
                f"sums of {self._bits} bits over {self.size} features leave no room for exact products; "
                "split the model, or use a smaller gamma"
            )
        # Not before that refusal: whether sums are refused must not depend on `measure`.
        if measure and self.size and self._float_width(self._limb_count) > 62 - self._reach:  # else of no use
            largest = float(hardware.row_sums(self._cut()[0] if self._shares else gram).max()) + gamma
            # d conversions and additions, each right to 2**-53 relative, and a few more operations.
            self.largest = min(self.largest, largest * (1 + (self.size + 8) * 2.0**-52))
            self._reach = min(self._reach, math.frexp(self.largest)[1])
        if measure and self.size and hardware.integers:
            sums, squares = hardware.row_moments(gram)
            means = sums / self.size
            self.mean = float(np.abs(means).max() + self.largest * 2.0**-40)
            self.deviation = math.sqrt(float((squares - sums * means + squares * 1e-9).max()))

    def has_room_for(self, samples: int) -> bool:
        """Return whether the system would still be accepted with so many more samples."""
        return (self._top + samples * INT8_PRODUCT).bit_length() + self._spread <= 60

    def _float_width(self, limbs: int) -> int:
        return 53 - -(-self._bits // limbs) - self._spread

    def width(self, columns: int) -> int:
        """Return w such that blocks of that many columns may have entries up to ``2**w`` in magnitude.

        Then ``|A @ block| < 2**(reach + w) <= 2**62``: no int64 wraps. Blocks of more than two columns are
        multiplied in float64, by A cut into limbs of ``bits / limbs`` bits: partial sums are at most ``2**(limb
        bits + spread + w) <= 2**53``, and so exact. At most 40 bits, for `FixedPoint`.
        """
        integer = min(40, 62 - self._reach)
        return integer if columns <= 2 else min(integer, self._float_width(self._limb_count))

    def product(self, block: Array) -> Array:
        """Return ``A @ block`` exactly for an int64 block of shape (d, c) with entries up to ``2**width(c)``.

        Costs one to three float64 products of (d, d) by (d, c), and an integer matrix-vector product for the check.
        """
        hardware, columns = self.hardware, block.shape[1]
        values = hardware.float64(block)
        if hardware.max_abs(values) > 2.0 ** self.width(columns):
            raise LimitError(f"a block exceeds {self.width(columns)} bits")
        if columns <= 2:
            return self.wrapping_product(block)
        shift = -(-self._bits // self._limb_count)
        result = self.gamma * block
        for position, limb in enumerate(self._cut()):
            result = result + (hardware.int64(hardware.matmul(limb, values)) << (position * shift))  # (d, c)
        probe = random_vector(columns, hardware)
        image = hardware.wrapping_matvec(block, probe)
        expected = self.wrapping_product(image[:, None])[:, 0]
        _require_equal(hardware.wrapping_matvec(result, probe), expected, "product with the system")
        return result

    def wrapping_product(self, block: Array) -> Array:
        """Return ``A @ block`` modulo 2**64, for any int64 block, in integer arithmetic alone: nothing to check."""
        return self.hardware.symmetric_product(self.gram, block) + self.gamma * block

    def cholesky(self, ridge: float | None = None) -> Array | None:
        """Return a float64 Cholesky factor of ``G + ridge I``, or None if there is none; nothing about it is proved.

        The ridge is gamma, unless it is given: gamma over a small power of two.
        """
        hardware, ridge = self.hardware, float(self.gamma if ridge is None else ridge)
        matrix = self._cut()[0] if self._shares else hardware.limb(self.gram, 0, None)
        hardware.add_to_diagonal(matrix, ridge)
        factor = hardware.cholesky(matrix)
        if self._shares:  # back to G: entries are integers below 2**37, so adding a ridge and taking it away is exact
            hardware.add_to_diagonal(matrix, -ridge)
        return factor

    def _cut(self) -> list[Array]:
        """Return G as float64 limbs, lowest first; the top one has the sign, the others are not negative."""
        if not self._limbs:
            last, bits = self._limb_count - 1, -(-self._bits // self._limb_count)
            self._limbs = [self.hardware.limb(self.gram, k * bits, bits if k < last else None) for k in range(last + 1)]
        return self._limbs


class ChangedSystem:
    """A system, and samples added or removed since its sums were computed: ``A' = A + C'SC``.

    How large a block may be
    ------------------------
    Integers wrap only if an entry of ``A' b`` leaves 62 bits. Let ``m_i`` be the mean of row i of G, and ``r_i`` the
    norm of the row less its mean. Then for any column b

        |(A' b)_i| <= |m_i| |sum b| + r_i ||b|| + gamma max|b| + sum_k |c_ki| ||c_k|| ||b||,

    by Cauchy and Schwarz. Codes are seldom negative and corrections are of both signs, so this allows for several bits
    more than the sum of the magnitudes of a row.

    Parameters
    ----------
    codes : int8 array of shape (w, d)
    signs : ndarray of shape (w,), +1 and -1
    settled : callable
        Returns the Gram matrix of ``A'``, for callers who need it.
    """

    def __init__(
        self, base: IntegerSystem, codes: Array | None, signs: np.ndarray, settled: Callable[[], Array]
    ) -> None:
        self.size, self.gamma, self.hardware, self.settled = base.size, base.gamma, base.hardware, settled
        self._base, self._codes = base, codes if len(signs) else None
        self._signs = base.hardware.array(signs.astype(np.int64)[:, None])
        lengths = np.zeros(0) if self._codes is None else self.hardware.row_sums(self._codes)
        # A row of C'SC has magnitudes that add up to at most 127 |c|_1 for each sample; ||c||**2 <= 127 |c|_1.
        self._reach = math.frexp((base.largest + 127 * float(lengths.sum())) * (1 + 1e-9))[1]
        self._spread = base.deviation + 127 * float(np.sqrt(127 * lengths).sum()) * (1 + 1e-9)

    def width(self, columns: int) -> int:
        """Return w such that blocks of that many columns may have entries up to ``2**w`` in magnitude."""
        own = 62 - self._reach
        return own if self.hardware.integers else min(self._base.width(columns), own)

    def finer(self, block: Array) -> int:
        """Return f such that ``round(2**f block)`` may be multiplied; `block` is float64, of shape (d, c)."""
        hardware = self.hardware
        top = hardware.max_abs(block)
        if not 0 < top < 2.0**400:
            raise NoProgressError
        plain = self.width(block.shape[1]) - math.frexp(top)[1]
        if not hardware.integers or not math.isfinite(self._spread):
            return plain
        sums = np.abs(hardware.numpy(block.sum(0))).max() + self.size * 2.0**-50 * top * self.size
        norms = np.sqrt(hardware.numpy((block * block).sum(0)).max()) * (1 + (self.size + 8) * 2.0**-52)
        bound = self._base.mean * sums + self._spread * norms + self._base.gamma * top
        # Rounding the block adds at most 1/2 to each entry: less than the row sums, which are far below 2**61.
        return max(plain, 61 - math.frexp(bound * (1 + 1e-9))[1])

    def product(self, block: Array) -> Array:
        """Return ``A' @ block`` exactly, for an int64 block of shape (d, c) that `width` or `finer` allows."""
        hardware = self.hardware
        result = self._base.wrapping_product(block) if hardware.integers else self._base.product(block)
        if self._codes is None:
            return result
        inner = wide_matmul(self._codes, block, hardware) * self._signs  # modulo 2**64, as all of this
        return result + wide_matmul(self._codes.T, inner, hardware)


class GridWeights:
    """Integer weights of shape (d, C), ready to score codes exactly.

    The weights are cut into limbs small enough that ``127 * d * 2**limb_bits <= 2**53``.
    """

    def __init__(self, weights: np.ndarray, hardware: Hardware) -> None:
        # A float64 sum of d non-negative terms is right to a factor of 1 + d * 2**-52, far less than the bit to
        # spare here.
        if 127 * np.abs(weights).sum(axis=0, dtype=np.float64).max(initial=0.0) >= 2.0**62:
            raise LimitError("the weights are too large for 64-bit scores; raise gamma or lower grid_bits")
        limb_bits = 53 - 7 - max(0, len(weights) - 1).bit_length()
        bits = int(np.abs(weights).max(initial=0)).bit_length()
        limbs = []
        for shift in range(0, max(bits, 1), limb_bits):
            limb = weights >> shift
            if shift + limb_bits < bits:
                limb = limb & ((1 << limb_bits) - 1)  # non-negative; the top limb keeps the sign
            limbs.append((shift, ExactOperand(hardware.array(limb), hardware)))
        (_, self._lowest), *self._higher = limbs
        self._hardware = hardware

    def scores(self, codes: Array) -> np.ndarray:
        """Return ``codes @ weights`` exactly, as int64 of shape (n, C), for int8 codes of shape (n, d)."""
        total = self._lowest.after(codes)
        for shift, limb in self._higher:
            total = total + (limb.after(codes) << shift)
        return self._hardware.numpy(total)  # (n, C)
