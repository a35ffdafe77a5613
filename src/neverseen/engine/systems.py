"""The system ``A = G + gamma I`` and its products, exact in integers or bounded in floating point.

A system may have samples aside, added or removed since its sums were computed: then it need not be made anew for each.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from fractions import Fraction
from functools import cached_property

import numpy as np

from neverseen.engine.arithmetic import random_vector, require_equal, wide_matmul
from neverseen.engine.preconditioning import NoProgressError
from neverseen.errors import HardwareError, LimitError
from neverseen.hardware import INT8_PRODUCT, Array, Hardware

MOST_ASIDE = 256
"""Number of waiting samples that a product may use beside the Gram matrix. Each costs as much as a row of it."""
_FEW_COLUMNS = 4
"""Blocks of more columns are multiplied faster if all numbers have 32 bits."""


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
    largest : float
        Bounds the sum of the magnitudes of each row, and so every eigenvalue of the matrix of magnitudes.
    narrow : bool
        Whether all entries of G lie in -2**31..2**31 - 1.
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
        self.narrow = self._bits < 32
        self._spread = max(0, self.size - 1).bit_length()  # d <= 2**spread
        self._limb_count = next(count for count in (1, 2, 3) if self._float_width(count) >= 16 or count == 3)
        self._limbs: list[Array] = []
        self._probe: Array | None = None
        self._image: Array | None = None  # A times it
        self._signs: tuple[Array, Array] | None = None
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
        if measure and self.size:
            self._measure()

    def _measure(self) -> None:
        hardware, wider = self.hardware, self._float_width(self._limb_count) > 62 - self._reach
        if hardware.integers:
            sizes, sums, squares = hardware.row_moments(self.gram)
            means = sums / self.size
            self.mean = float(np.abs(means).max() + sizes.max() * 2.0**-40)
            self.deviation = math.sqrt(float((squares - sums * means + squares * 1e-9).max()))
        elif wider:
            sizes = hardware.row_sums(self._cut()[0] if self._shares else self.gram)
        else:
            return
        # d conversions and additions, each right to 2**-53, and a few more operations.
        self.largest = min(self.largest, (float(sizes.max()) + self.gamma) * (1 + (self.size + 8) * 2.0**-52))
        if wider:
            self._reach = min(self._reach, math.frexp(self.largest)[1])

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

        Costs one to three float64 products of (d, d) by (d, c); the first also an integer matrix-vector product.
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
        if (
            self._image is None or self._probe is None
        ):  # A is symmetric: the vector multiplies it from the left, once for all products
            self._probe = random_vector(self.size, hardware)
            self._image = self.wrapping_product(self._probe[:, None])[:, 0]
        expected = hardware.wrapping_matvec(block.T, self._image)
        require_equal(hardware.wrapping_matvec(result.T, self._probe), expected, "product with the system")
        return result

    def wrapping_product(self, block: Array, narrow: bool = False) -> Array:
        """Return ``A @ block`` modulo 2**64, for any int64 block, in integer arithmetic alone: nothing to check.

        If `narrow`, entries of G and of the block lie in -2**31..2**31 - 1.
        """
        return self.hardware.symmetric_product(self.gram, block, narrow) + self.gamma * block

    def signs_and_image(self) -> tuple[Array, Array]:
        """Return random signs r and ``A r``, int64 of shape (d, 1); they stay the same."""
        if self._signs is None:
            drawn = np.frombuffer(os.urandom(self.size), np.int8) < 0
            signs = self.hardware.array(np.where(drawn, -1, 1)[:, None])
            self._signs = signs, self.wrapping_product(signs)
        return self._signs

    def approximate_product(self, block: Array) -> Array:
        """Return ``A @ block`` in float64."""
        hardware, gamma = self.hardware, float(self.gamma)
        if self._shares:
            return hardware.matmul(self._cut()[0], block) + gamma * block
        return hardware.approximate_product(self.gram, block) + gamma * block

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
    base : IntegerSystem
    codes : int8 array of shape (w, d)
    signs : ndarray of shape (w,), +1 and -1
    lengths : ndarray of shape (w,)
        The sum of the magnitudes of each sample's codes.
    settled : callable
        Returns the Gram matrix of ``A'``, for callers who need it.
    """

    def __init__(
        self,
        base: IntegerSystem,
        codes: Array | None,
        signs: np.ndarray,
        lengths: np.ndarray,
        settled: Callable[[], Array],
    ) -> None:
        self.size, self.gamma, self.hardware, self.settled = base.size, base.gamma, base.hardware, settled
        self.base, self._codes = base, codes if len(signs) else None
        self._signs = signs
        # A row of C'SC has magnitudes that add up to at most 127 |c|_1 for each sample; ||c||**2 <= 127 |c|_1.
        self.largest = (base.largest + 127 * float(lengths.sum())) * (1 + 1e-9)
        self._reach = math.frexp(self.largest)[1]
        self._spread = base.deviation + 127 * float(np.sqrt(127 * lengths).sum()) * (1 + 1e-9)

    @property
    def aside(self) -> tuple[Array, Array]:
        """The samples aside and their signs, int8 of shape (w, d) and (w, 1)."""
        hardware = self.hardware
        codes = hardware.int8(hardware.zeros(0, self.size)) if self._codes is None else self._codes
        return codes, hardware.array(self._signs.astype(np.int8)[:, None])

    @cached_property
    def _column(self) -> Array:
        """The signs, int64 of shape (w, 1)."""
        return self.hardware.array(self._signs.astype(np.int64)[:, None])

    def width(self, columns: int) -> int:
        """Return w such that blocks of that many columns may have entries up to ``2**w`` in magnitude."""
        own = 62 - self._reach
        return own if self.hardware.integers else min(self.base.width(columns), own)

    def finer(self, block: Array, *, fast: bool = False) -> int:
        """Return f such that ``round(2**f block)`` may be multiplied; `block` is float64, of shape (d, c).

        If `fast`, it may be a few bits less where that makes the product faster.
        """
        hardware = self.hardware
        top = hardware.max_abs(block)
        if not 0 < top < 2.0**400:
            raise NoProgressError
        finer = self.width(block.shape[1]) - math.frexp(top)[1]
        if hardware.integers and math.isfinite(self._spread):
            sums = np.abs(hardware.numpy(block.sum(0))).max() + self.size * 2.0**-50 * top * self.size
            norms = column_norms(block, hardware).max()
            bound = self.base.mean * sums + self._spread * norms + self.base.gamma * top
            # Rounding the block adds at most 1/2 to each entry: less than the row sums, which are far below 2**61.
            finer = max(finer, 61 - math.frexp(bound * (1 + 1e-9))[1])
        if fast and hardware.integers and self.base.narrow and block.shape[1] > _FEW_COLUMNS:
            finer = min(finer, 30 - math.frexp(top)[1])  # rounded, at most 2**30: a narrow product
        return finer

    def product(self, block: Array) -> Array:
        """Return ``A' @ block`` exactly, for an int64 block of shape (d, c) that `width` or `finer` allows."""
        hardware = self.hardware
        if not hardware.integers:
            return self._with_codes(self.base.product(block), block)
        narrow = self.base.narrow and block.shape[1] > _FEW_COLUMNS
        return self.wrapping_product(block, narrow and hardware.max_abs(hardware.float64(block)) < 2.0**31)

    def wrapping_product(self, block: Array, narrow: bool = False) -> Array:
        """Return ``A' @ block`` modulo 2**64, for any int64 block; only for hardware with `integers`."""
        return self._with_codes(self.base.wrapping_product(block, narrow), block)

    def _with_codes(self, result: Array, block: Array) -> Array:
        """Add what the samples aside contribute to a product, modulo 2**64."""
        if self._codes is None:
            return result
        inner = wide_matmul(self._codes, block, self.hardware) * self._column
        return result + wide_matmul(self._codes.T, inner, self.hardware)

    def approximate_product(self, block: Array) -> tuple[Array, np.ndarray]:
        """Return ``A' @ block`` in float64, and for each column a bound on the norm of the error.

        Let u = 2**-53, w the number of samples aside and ``M = |G| + gamma + |C|'|C|``. Each entry is a sum of products
        in which every term is rounded at most d + w + 6 times: G, gamma and the product itself, the sums over d and w,
        and the two that join the parts. So it is off by at most ``((1 + u)**(d + w + 6) - 1) (M |b|)_i``, in any
        order of summation, with fused operations or without, and by less than ``(d + w) 2**-1000`` if something
        underflows. M is symmetric, so its norm is at most its largest row sum, and ``||M |b||| <= largest ||b||``.

        Random signs r check it: ``r A' b`` computed from ``A' r``, which is exact, differs by no more than rounding.
        """
        hardware = self.hardware
        result, waiting = self.base.approximate_product(block), 0
        if self._codes is not None:
            waiting, codes = len(self._codes), hardware.float64(self._codes)
            inner = hardware.matmul(codes, block) * hardware.float64(self._column)
            result = result + hardware.matmul(codes.T, inner)
        terms = self.size + waiting + 8
        error = terms * 2.0**-52 * self.largest * column_norms(block, hardware) + terms**2 * 2.0**-1000
        if not np.isfinite(error).all():
            raise NoProgressError
        signs, seen = self._signs_and_image()
        off = np.abs(hardware.numpy((signs * result).sum(0)) - hardware.numpy((seen * block).sum(0)))
        if not (off <= 8 * math.sqrt(self.size) * error).all():  # also refuses NaN
            raise HardwareError(
                "a float64 product computed on this machine is wrong beyond rounding; nothing was changed"
            )
        return result, error

    def _signs_and_image(self) -> tuple[Array, Array]:
        """Return random signs r and ``A' r``, float64 of shape (d, 1)."""
        hardware, (signs, image) = self.hardware, self.base.signs_and_image()
        return hardware.float64(signs), hardware.float64(self._with_codes(image, signs))


def column_norms(array: Array, hardware: Hardware) -> np.ndarray:
    """Return upper bounds on the norms of the columns of a float64 array of shape (d, c); NaN if one has a NaN."""
    squares = hardware.numpy((array * array).sum(0))  # d squares and additions, each right to 2**-53
    norms: np.ndarray = np.sqrt(squares) * (1 + (len(array) + 8) * 2.0**-52) + len(array) * 2.0**-500
    return norms
