"""Whether a matrix can be a sum of samples: conditions that are cheap to check, and a proof.

A Gram matrix ``G = Σ c'c`` is positive semidefinite, and every error bound of this package rests on that: no
eigenvalue of ``A = G + gamma I`` is below gamma. Sums that a model computed itself are Gram matrices. Sums from a file
may be anything. Readers of files use `why_impossible`, and checks of weights use `least_eigenvalue`.

How an eigenvalue is bounded
----------------------------
1. A float64 Cholesky factor of ``G + u I`` is computed, with ``u = gamma / share``. It is a guess: the library that
   made it may have rounded in any way, or not have worked at all.
2. It is rounded to integers, ``L ~ 2**k factor``, and from here on everything is exact. Let

       E = 4**k (G + u I) - L L'.

   ``L L'`` is positive semidefinite whatever L is. So no eigenvalue of ``G + u I`` is below ``-||E|| / 4**k``, and if
   ``||E|| <= 4**k u``, then none of G is below ``-2u``, and none of A below ``gamma (1 - 2 / share)``.
3. E is as large as A, and not computed. It is applied to 64 vectors v of random signs: ``L (L' v)`` costs far less than
   ``L L'``. With X = ||E v||**2, rows e_i of E and F = ||E||_F, the Frobenius norm, which is at least ||E||:

   - the mean of X is F**2;
   - the mean of ``(e.v)**4`` is at most ``3 ||e||**4``. So the mean of X**2 is at most ``3 F**4``, by Cauchy and
     Schwarz for each pair of rows;
   - by Paley and Zygmund, ``X > F**2 / 100`` with probability at least ``0.99**2 / 3 > 0.326``.

   So ``||E|| <= 10 max ||E v||``, but for a probability below ``0.674**64 < 2**-36``. The signs are drawn afresh and
   after G is fixed: no G can be built against them.

The cost is a factorisation and a few products with 64 columns. The proof succeeds for real sums unless gamma is very
small beside them: rounding leaves an ``||E||`` of about ``2**-53 d max_i G_ii``. Where floats cannot decide, a small
matrix is settled in exact integers, and a large one stays unproved.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from neverseen.engine.arithmetic import MAX_SAMPLES, ExactOperand
from neverseen.engine.rational import is_positive_definite
from neverseen.engine.refinement import RATIONAL_SIZE
from neverseen.engine.systems import IntegerSystem
from neverseen.hardware import INT8_PRODUCT, Array, Hardware

_SHARES = (128, 4)
"""Parts of gamma to add before G is factored: the first leaves nearly all of gamma to bounds, the last half of it."""
_PROBES = 64


def why_impossible(
    packed: np.ndarray, sums: np.ndarray, counts: Sequence[int], total: int | None = None, largest: int = 1
) -> str | None:
    """Return the reason why these cannot be sums of samples, or None if none is found.

    Necessary conditions, each exact and cheap, for n samples, n_j of them in class j:

    - every entry of the diagonal lies in 0 .. 127**2 n;
    - no 2 x 2 minor is negative: ``G_ij**2 <= G_ii G_jj``;
    - ``|B_ij| <= 127 n_j`` and, by Cauchy and Schwarz, ``B_ij**2 <= n_j G_ii``.

    Where targets and weights go up to M, the diagonal may be M times as large, and ``|B_ij| <= 127 M n_j`` and
    ``B_ij**2 <= M**2 n_j G_ii``: each term of B is ``y c`` with ``|y| <= M``, so its square is at most ``M**2 c**2``.

    Matrices that pass may still not be positive semidefinite.

    Parameters
    ----------
    packed : integer ndarray of shape (d (d + 1) / 2,)
        The upper triangle of G, row by row.
    sums : int64 ndarray of shape (C, d)
        B transposed.
    counts : sequence of C ints, at least 1
    total : int, optional
        Number of samples, at most ``2**48 / largest``; by default the sum of `counts`.
    largest : int
        M, of the `neverseen.targets.Targets`.

    Examples
    --------
    >>> why_impossible(np.array([452, 4, 580]), np.array([[14, -18], [16, 16]]), [1, 1]) is None
    True
    >>> why_impossible(np.array([0, 4, 580]), np.array([[0, -18], [0, 16]]), [1, 1])
    'the entry in row 0, column 1 of the Gram matrix is 4, and the diagonal beside it is 0 and 580'
    """
    size, total = sums.shape[1], sum(counts) if total is None else total
    if total > MAX_SAMPLES // largest or max(counts, default=0) > total:
        return (
            f"{total} samples are more than the {MAX_SAMPLES // largest} whose sums fit 64 bits, or fewer than a class"
        )
    starts = np.concatenate([[0], np.cumsum(np.arange(size, 1, -1))])
    diagonal = packed[starts].astype(np.int64)
    top = int(diagonal.max())
    if int(diagonal.min()) < 0 or top > INT8_PRODUCT * total * largest:
        return f"the diagonal of the Gram matrix is not between 0 and 127**2 times the number of samples, {total}"
    for place, (its_sum, count) in enumerate(zip(sums, counts, strict=True)):
        too_large = max(int(its_sum.max()), -int(its_sum.min())) > 127 * count * largest
        # Where M**2 n_j is not below 2**62, the second condition says little, and is left out.
        squared = largest**2 * count < 2**62 and _square_exceeds(its_sum, np.array(largest**2 * count), diagonal, 2**61)
        if too_large or np.any(squared):
            return f"the sum of class {place} is larger than {count} samples can make it beside the Gram matrix"
    for row, start in enumerate(starts.tolist()):
        entries = packed[start : start + size - row].astype(np.int64)
        if max(int(entries.max()), -int(entries.min())) > top:  # also what keeps the products below from wrapping
            wrong = (entries > top) | (entries < -top)
        else:
            wrong = _square_exceeds(entries, diagonal[row], diagonal[row:], top)
        if wrong.any():
            column = row + int(np.flatnonzero(wrong)[0])
            return (
                f"the entry in row {row}, column {column} of the Gram matrix is {entries[column - row]}, and the "
                f"diagonal beside it is {diagonal[row]} and {diagonal[column]}"
            )
    return None


def _square_exceeds(x: np.ndarray, y: np.ndarray, z: np.ndarray, top: int) -> np.ndarray:
    """Return where ``x * x > y * z``, exactly, for int64 up to `top` < 2**62 in magnitude, y and z not negative."""
    if top < 2**31:
        wrong: np.ndarray = x * x > y * z
        return wrong
    mask = 2**31 - 1
    (x1, x0), (y1, y0), (z1, z0) = ((part >> 31, part & mask) for part in (np.abs(x), y, z))
    # The difference is a 2**62 + b 2**31 + c. Each half is below 2**31, so |b| < 2**63 - 2**32 and |a|, |c| < 2**62.
    a, b, c = x1 * x1 - y1 * z1, 2 * x1 * x0 - (y1 * z0 + y0 * z1), x0 * x0 - y0 * z0
    b += c >> 31
    a += b >> 31
    greater: np.ndarray = (a > 0) | ((a == 0) & (((b & mask) > 0) | ((c & mask) > 0)))
    return greater


def least_eigenvalue(system: IntegerSystem) -> Fraction | None:
    """Return a proven lower bound on the eigenvalues of ``A = G + gamma I``, or None if there is no proof.

    It is at least ``gamma / 2``. For sums of real samples it is nearly gamma, unless gamma is tiny beside them.

    Parameters
    ----------
    system : IntegerSystem
        Its matrix must be symmetric, and no entry larger in magnitude than the largest on the diagonal.

    Examples
    --------
    >>> from neverseen.hardware import choose
    >>> least_eigenvalue(IntegerSystem(np.array([[3, 1], [1, 2]]), 4, choose("numpy")))
    Fraction(63, 16)
    >>> least_eigenvalue(IntegerSystem(np.array([[3, 9], [9, 9]]), 4, choose("numpy"))) is None
    True
    """
    for share in _SHARES:
        factor = system.cholesky(system.gamma / share)
        if factor is not None and _is_near(system, system.hardware.triangle(factor), share):
            return Fraction(system.gamma * (share - 2), share)
    if system.size <= RATIONAL_SIZE:
        matrix = [[2 * entry for entry in row] for row in system.hardware.numpy(system.gram).tolist()]
        for place in range(system.size):
            matrix[place][place] += system.gamma
        if is_positive_definite(matrix):  # 2 G + gamma I
            return Fraction(system.gamma, 2)
    return None


def _is_near(system: IntegerSystem, factor: Array, share: int) -> bool:
    """Return whether ``L L'`` is within ``gamma / share`` of ``G + gamma / share I``; see the module."""
    hardware, size, spread = system.hardware, system.size, max(0, system.size - 1).bit_length()
    top = hardware.max_abs(factor)
    if not 0 < top < 2.0**40:
        return False
    scale = 60 - spread - math.frexp(top)[1]  # so that |L| <= 2**(60 - spread), and |L' v| <= 2**60
    if scale < 0:
        return False
    integers = hardware.int64(hardware.rint(factor * 2.0**scale))  # L, (d, d)
    # In limbs of half the bits that float64 sums leave, products of two are exact.
    width = (53 - spread) // 2
    signs = np.where(np.frombuffer(os.urandom(size * _PROBES), np.int8) < 0, -1, 1).reshape(size, _PROBES)
    probes = hardware.array(signs.astype(np.int64))
    inner, *higher = _product(integers.T, probes, 60 - spread, width, hardware)  # L' v, lowest limb first
    for place, part in enumerate(higher, 1):
        inner = inner + (part << (place * width))  # up to 2**60
    cut = [inner >> shift for shift in range(0, 60, width)]
    cut = [part & ((1 << width) - 1) for part in cut[:-1]] + cut[-1:]
    outer = _product(integers, hardware.concatenate(cut, 1), 60 - spread, width, hardware)  # (d, 64 limbs) each

    groups: dict[int, Array] = {}  # by weight; a few products below 2**53 each
    for high, part in enumerate(outer):
        for low in range(len(cut)):
            piece = part[:, low * _PROBES : (low + 1) * _PROBES]
            groups[high + low] = groups[high + low] + piece if high + low in groups else piece
    image: Any = 0  # L L' v, in Python's integers
    for place, part in groups.items():
        image = image + hardware.numpy(part).astype(object) * (1 << (place * width))
    wide = (hardware.numpy(system.product(probes)) - system.gamma * signs).astype(object)  # G v
    unit = 1 << (2 * scale)
    errors = share * unit * wide + system.gamma * unit * signs.astype(object) - share * image  # share E v
    largest = max(sum(value * value for value in column) for column in errors.T.tolist())
    return bool(100 * largest <= (system.gamma * unit) ** 2)


def _product(matrix: Array, block: Array, bits: int, width: int, hardware: Hardware) -> list[Array]:
    """Return the exact product of each limb of a matrix, entries up to ``2**bits``, and a block up to ``2**width``."""
    operand, products = ExactOperand(block, hardware), []
    for shift in range(0, max(bits, 1), width):
        limb = matrix >> shift
        if shift + width < bits:
            limb &= (1 << width) - 1
        products.append(operand.after(limb))
    return products
