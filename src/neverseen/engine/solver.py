"""The certified solve: ridge weights, correctly rounded, whatever computed them.

With integer sums G and B and an integer gamma >= 1, ``A = G + gamma I`` and ``W* = A^-1 B`` is a rational matrix.
`solve` returns ``N = round(2**p W*)``, every entry rounded to nearest, ties to even: a pure function of G, B, gamma
and p.

How it is proved
----------------
1. X is a fixed-point approximation of W*, and ``R = B - A X`` its residual, computed exactly in integers.
2. G is positive semidefinite, so every eigenvalue of A is at least gamma, and column by column
   ``|X_ij - W*_ij| <= ||X_j - W*_j||_2 = ||A^-1 R_j||_2 <= ||R_j||_2 / gamma``.
3. An entry is rounded only when no half-integer of the grid lies within that bound. Otherwise X is refined: a
   preconditioner (any approximate inverse of A) turns R into a correction, and R is updated exactly.
4. Refinement cannot decide an exact tie. If it has gone on for long, the entry is settled in exact rational
   arithmetic: its own block of the system if that is small, else the whole column guessed from continued
   fractions and proved by substitution, else by the distance that two different fractions must keep.

Floating point appears inside preconditioners, where it decides how fast R shrinks and nothing else, and in norms,
which are rounded up. **A hint can change the time, never the bits.**
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from neverseen.engine.fixedpoint import LIMB, FixedPoint
from neverseen.engine.preconditioning import CholeskyFactor, Inverse, NoProgressError, Preconditioner
from neverseen.engine.rational import eliminated
from neverseen.engine.refinement import RATIONAL_SIZE, Refinement, refined_weights
from neverseen.engine.systems import IntegerSystem
from neverseen.errors import IllConditionedError, InputError, LimitError
from neverseen.hardware import Array, Hardware, choose


@dataclass(frozen=True)
class Solution:
    """Correctly rounded weights, with data from which the next solve can start.

    Attributes
    ----------
    weights : int64 ndarray of shape (d, C)
        ``round(2**grid_bits * W*)``.
    values : FixedPoint of shape (d, C)
        An approximation of W* with more bits.
    residuals : ndarray of shape (C,)
        Proven upper bounds on the column norms of ``B - A values``.
    """

    weights: np.ndarray
    values: FixedPoint
    residuals: np.ndarray
    preconditioner: Preconditioner
    gamma: int
    grid_bits: int


def solve(
    gram: Array,
    cross: Array,
    gamma: int,
    grid_bits: int = 40,
    hint: Solution | Preconditioner | np.ndarray | None = None,
    hardware: Hardware | None = None,
    floor: Fraction | None = None,
) -> Solution:
    """Return the ridge weights ``(G + gamma I)^-1 B``, correctly rounded to the grid.

    Parameters
    ----------
    gram : int64 array of shape (d, d)
        A Gram matrix of integer codes (symmetric, positive semidefinite).
    cross : int64 array of shape (d, C)
    gamma : int, at least 1
    grid_bits : int
        Weights are multiples of ``2**-grid_bits``.
    hint : Solution, Preconditioner or float array of shape (d, d), optional
        The solution of a similar system, a factor, or an approximate inverse of A (the paper's T). Whether it
        is right, stale or nonsense, the weights are the same.
    floor : Fraction, optional
        For sums from others: a proven lower bound on the eigenvalues of ``G + gamma I``. Without it, G is trusted to be
        a Gram matrix, and the bound is gamma.

    Returns
    -------
    Solution

    Examples
    --------
    >>> solution = solve(np.array([[3, 1], [1, 2]]), np.array([[1], [0]]), gamma=1)
    >>> (solution.weights / 2.0**40).round(6).tolist()     # A = [[4, 1], [1, 3]]
    [[0.272727], [-0.090909]]
    """
    hardware = choose("numpy") if hardware is None else hardware
    if gram.ndim != 2 or gram.shape[0] != gram.shape[1] or cross.ndim != 2 or len(cross) != len(gram):
        raise InputError(
            f"gram must be (d, d) and cross (d, C); got shapes {tuple(gram.shape)} and {tuple(cross.shape)}"
        )
    system = IntegerSystem(gram, gamma, hardware, measure=True, floor=floor)
    if cross.shape[1] == 0 or system.size == 0:
        empty = FixedPoint.zeros(*cross.shape, hardware=hardware)
        return Solution(
            np.zeros(tuple(cross.shape), np.int64), empty, np.zeros(cross.shape[1]), _identity, gamma, grid_bits
        )
    for make, least_gain in _preconditioners(system, hint):
        precondition = make()
        if precondition is None:
            continue
        try:
            weights, refinement = refined_weights(
                system, Refinement(system, cross), cross, precondition, grid_bits, least_gain
            )
        except NoProgressError:
            continue
        return Solution(weights, refinement.values, refinement.bounds(), precondition, gamma, grid_bits)
    if system.size > RATIONAL_SIZE:
        raise IllConditionedError(
            f"the sums reach 2**{math.log2(system.trace):.0f} with gamma = {gamma}: "
            "no float64 factor of the system contracts. Raise gamma"
        )
    exact = eliminated(hardware.numpy(gram), gamma, hardware.numpy(cross))
    steps = [[round(value * (1 << grid_bits)) for value in row] for row in exact]
    # The limit of `refinement.rounded`: whether a weight fits must not depend on how it was computed.
    if max(abs(step) for row in steps for step in row) >> grid_bits >= 2 ** min(LIMB - 1, 61 - grid_bits):
        raise LimitError(f"a weight does not fit the grid of 2**-{grid_bits}; raise gamma or lower grid_bits")
    weights = np.array(steps, dtype=np.int64)
    return Solution(
        weights,
        FixedPoint.zeros(*cross.shape, hardware=hardware),
        np.full(cross.shape[1], np.inf),
        _identity,
        gamma,
        grid_bits,
    )


def _identity(right: Array) -> Array:
    return right


def _preconditioners(
    system: IntegerSystem, hint: Solution | Preconditioner | np.ndarray | None
) -> list[tuple[Callable[[], Preconditioner | None], float]]:
    """Return preconditioners, best first, each with the bits that a step must gain to be worthwhile."""
    hardware = system.hardware
    ways: list[tuple[Callable[[], Preconditioner | None], float]] = []
    if isinstance(hint, Solution):
        hint = hint.preconditioner
    if isinstance(hint, np.ndarray):
        if hint.shape == (system.size, system.size) and hint.dtype.kind in "fiu":
            matrix = hint.astype(np.float64)
            ways.append((lambda: Inverse(hardware.array(matrix), hardware), 8))
    elif hint is not None and hint is not _identity:
        ways.append((lambda: hint, 8))

    def factor() -> Preconditioner | None:
        found = system.cholesky()
        return None if found is None else CholeskyFactor(found, hardware)

    ways.append((factor, 1))
    return ways
