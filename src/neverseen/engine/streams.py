"""Two streams: ridge weights, and weights of a second stream that is fitted to what the first leaves over.

A code is two halves, ``(m, c)``, and the sums over these codes have everything: ``G_mm``, ``G_cm``, ``G_cc``, ``B_m``
and ``B_c``. The weights of the *main stream* are those of plain ridge regression, ``N_m = round(2**p A_mm^-1 B_m)``
with ``A_mm = G_mm + gamma I``. They leave the residuals ``y - m N_m 2**-p``, and summed over the samples

    Σ c'(y - m N_m 2**-p) = 2**-p (2**p B_c - G_cm N_m),

an integer over ``2**p``. The *compensation stream* is ridge regression on these residuals, times a fixed ratio r:

    N_c = round(2**p A_cc^-1 2**-8 T),   T = floor(2**8 r 2**-p (2**p B_c - G_cm N_m) + 1/2).

Scores are ``m N_m + c N_c``, so a code and the weights of both streams, one above the other, predict as any others do.
Everything follows from the sums, whatever their history. (The published DS-AL takes the residuals of each phase, under
the weights of that time. These cannot be had from the samples that are left, so it cannot forget exactly.)

One system for both
-------------------
Given N_m, both streams are one system of integers, ``A W = B`` with

    A = 2**8 (diag(G_mm, G_cc) + gamma I),   B = (2**8 B_m, T).

The matrix is a Gram matrix, as its blocks are. So `neverseen.engine.solver` and `neverseen.proof.witness` apply to it
as they are: who checks weights takes N_m from them and computes T. If the check passes, N_m is proved, so T is right,
and N_c is proved with it.

Why T is rounded, and what it changes
-------------------------------------
Right sides are integers of 64 bits. With p = 40, ``2**p B_c - G_cm N_m`` may need more for a hundred thousand samples;
T does not grow with p. Rounding it changes an entry of the right side by at most ``2**-9``, where a sample with a
residual of 1 adds up to 127 r. So it moves a column of exact weights by a vector of at most ``sqrt(d / 2) 2**-9 /
gamma``, because no eigenvalue of A_cc is below gamma.

How large T is
--------------
By Cauchy and Schwarz ``|Σ c_i (y - m W)| <= sqrt(Σ c_i**2) ||y - m W||``. For ridge weights W the last is at most
``||y||``, the residual of zero weights, up to the rounding of W. So T is about ``2**8 r 127 n`` at most, for n samples.
`right_side` does not rely on this: it computes in Python integers, which have no limit, and refuses what is beyond
``2**55``. Class sums may be as large in plain ridge regression, so the solver takes them.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from neverseen.engine.fixedpoint import FixedPoint
from neverseen.engine.solver import Solution, solve
from neverseen.engine.systems import IntegerSystem
from neverseen.errors import InputError, LimitError
from neverseen.hardware import Array, Hardware

EXTRA_BITS = 8
"""Bits of the right side of the compensation stream beyond the point."""
_LARGEST = 2**55
_PART = 2**18  # entries of the right side computed at a time, as Python integers


def blocks(gram: Array, gamma: int, hardware: Hardware) -> tuple[Array, int]:
    """Return ``2**8 diag(G_mm, G_cc)`` and ``2**8 gamma``; raise `LimitError` if they leave no room to solve."""
    half, odd = divmod(len(gram), 2)
    if odd:
        raise InputError(f"two streams of one size make a code of even size; got {len(gram)}")
    matrix = hardware.zeros(len(gram), len(gram))
    for part in (slice(half), slice(half, None)):
        matrix[part, part] = gram[part, part] << EXTRA_BITS
    # Both streams alone would fit a little longer than both at once, in which form others check them.
    IntegerSystem(matrix, gamma << EXTRA_BITS, hardware)
    return matrix, gamma << EXTRA_BITS


def right_side(
    gram: Array, cross: Array, gamma: int, grid_bits: int, ratio: float, main: np.ndarray, hardware: Hardware
) -> Array:
    """Return ``(2**8 B_m, T)`` for weights of the main stream, int64 of shape (d, C).

    Parameters
    ----------
    gram : int64 array of shape (d, d)
        G, whose diagonal bounds its entries.
    cross : int64 array of shape (d, C)
    main : int64 ndarray of shape (d / 2, C)
        N_m, up to 2**61 in magnitude.
    """
    half, columns = len(gram) // 2, cross.shape[1]
    images = _images(gram, gamma, main, hardware)
    sums, share = hardware.numpy(cross), Fraction(float(ratio))  # over a power of two
    top, places = share.numerator << (EXTRA_BITS + 1), grid_bits + share.denominator.bit_length()
    result = np.empty((half, columns), np.int64)
    rows = max(1, _PART // max(1, columns))
    for start in range(0, half, rows):
        part = slice(start, start + rows)
        left = sums[half:][part].astype(object) << grid_bits
        for image, place in images:
            left = left - (image[part].astype(object) << place)
        found = (left * top + (1 << (places - 1))) >> places  # the floor of x + 1/2, in Python integers
        if found.size and max(found.max(), -found.min()) > _LARGEST:
            raise LimitError(
                "the residuals are too large for two streams; lower compensation_ratio, or split the model"
            )
        result[part] = found.astype(np.int64)
    return hardware.concatenate([_main_side(cross, hardware), hardware.array(result)], 0)


def _main_side(cross: Array, hardware: Hardware) -> Array:
    """Return ``2**8 B_m``."""
    sums = cross[: len(cross) // 2]
    if hardware.max_abs(hardware.float64(sums)) > _LARGEST >> EXTRA_BITS:
        raise LimitError("the sums are too large for two streams: split the model")
    return hardware.contiguous(sums << EXTRA_BITS)


def _images(gram: Array, gamma: int, main: np.ndarray, hardware: Hardware) -> list[tuple[np.ndarray, int]]:
    """Return ``G_cm N_m`` as int64 matrices, each with the bits that it is moved to the left.

    `IntegerSystem` multiplies ``(N_m, 0)`` exactly, cut into digits; below, gamma meets zeros.
    """
    if main.size and max(int(main.max()), -int(main.min())) > 2**61:
        raise LimitError("weights are at most 2**61 grid steps")
    system, half = IntegerSystem(gram, gamma, hardware, measure=True), len(main)
    left, place = hardware.concatenate([hardware.array(main), hardware.zeros(*main.shape)], 0), 0
    width, images = system.width(main.shape[1]), list[tuple[np.ndarray, int]]()
    while not images or hardware.max_abs(hardware.float64(left)) > 0:  # digits of `width` bits, with signs
        rest = (left + (1 << (width - 1))) >> width
        images.append((hardware.numpy(system.product(left - (rest << width))[half:]), place))
        left, place = rest, place + width
    return images


def solve_streams(gram: Array, cross: Array, gamma: int, grid_bits: int, ratio: float, hardware: Hardware) -> Solution:
    """Return the weights of both streams, correctly rounded, as the solution of their one system.

    Examples
    --------
    >>> from neverseen.hardware import choose
    >>> gram, cross = np.array([[3, 1], [1, 2]]), np.array([[4], [5]])
    >>> solution = solve_streams(gram, cross, 1, 40, 1.0, choose("numpy"))
    >>> (solution.weights / 2.0**40).round(3).tolist()     # 4 / (3 + 1), and (5 - 1 * 1) / (2 + 1)
    [[1.0], [1.333]]
    """
    half = len(gram) // 2
    matrix, strength = blocks(gram, gamma, hardware)

    def solved(part: slice, right: Array) -> Solution:
        return solve(hardware.contiguous(matrix[part, part]), right, strength, grid_bits, hardware=hardware)

    first, second = slice(half), slice(half, None)
    main = solved(first, _main_side(cross, hardware))
    right = right_side(gram, cross, gamma, grid_bits, ratio, main.weights, hardware)
    other = solved(second, hardware.contiguous(right[second]))
    length = max(len(main.values.limbs), len(other.values.limbs))
    limbs = [
        [*each.values.limbs, *(hardware.zeros(*each.weights.shape) for _ in range(length - len(each.values.limbs)))]
        for each in (main, other)
    ]

    def precondition(right: Array) -> Array:
        return hardware.concatenate([main.preconditioner(right[first]), other.preconditioner(right[second])], 0)

    return Solution(
        np.concatenate([main.weights, other.weights]),
        FixedPoint([hardware.concatenate(list(both), 0) for both in zip(*limbs, strict=True)], hardware),
        (main.residuals + other.residuals) * (1 + 2.0**-50),  # at least the root of the sum of their squares
        precondition,
        strength,
        grid_bits,
    )
