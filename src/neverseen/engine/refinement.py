"""Refinement: fixed-point solutions of an integer system, improved until every entry's rounding is proved.

See `neverseen.engine.solver` for the proof that this carries out.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from neverseen.engine.fixedpoint import LIMB, FixedPoint
from neverseen.engine.preconditioning import NoProgressError, Preconditioner
from neverseen.engine.rational import block_values, exact_solution
from neverseen.engine.systems import IntegerSystem
from neverseen.errors import LimitError
from neverseen.hardware import Array

SOLVE_BITS = 26
"""A solution is refined until its error bound is below 2**-26 grid steps. Then one entry in 2**25 is too near a tie
to be decided at once, and small changes can be followed from there."""
RATIONAL_SIZE = 96
"""Systems and blocks up to this size may be solved by elimination over the rationals."""


class Refinement:
    """An approximate solution of ``A X = B`` and its exact residual ``R * 2**-scale``, improved step by step."""

    def __init__(self, system: IntegerSystem, right: Array, values: FixedPoint | None = None, scale: int = 0) -> None:
        self.system, self.hardware = system, system.hardware
        self.values = FixedPoint.zeros(*right.shape, hardware=self.hardware) if values is None else values
        self.residual, self.scale = right, scale
        self._measure()

    def _measure(self) -> None:
        floats = self.hardware.float64(self.residual)
        self._largest = self.hardware.max_abs(floats)
        norms = self.hardware.numpy((floats * floats).sum(0)) ** 0.5  # below 2**126: no overflow
        # Rounding of the conversion, squares, sum and root: less than (d + 8) * 2**-53 relative.
        self.norms = norms * (1 + (self.system.size + 8) * 2.0**-52)  # (c,), units of 2**-scale
        self.floats = floats

    def bounds(self) -> np.ndarray:
        """Return upper bounds on the norms of the columns of the residual, in real units; 0 only if it is 0."""
        with np.errstate(under="ignore"):
            return np.where(self.norms == 0, 0.0, np.maximum(np.ldexp(self.norms, -self.scale), 1e-300))

    def log2_size(self) -> float:
        """Return log2 of the largest column norm of the residual, in real units."""
        top = float(self.norms.max(initial=0.0))
        return -math.inf if top == 0 else math.log2(top) - self.scale

    def step(self, precondition: Preconditioner, least_gain: float) -> None:
        """Refine once; raise `NoProgressError` unless the residual shrinks by at least `least_gain` bits.

        No int64 can wrap, whatever the preconditioner returns: the block is cut to 2**width, so ``|A block| <
        2**62``, and the residual is scaled to at most 2**62.
        """
        before = self.log2_size()
        try:
            with np.errstate(all="ignore"):  # a hint may hold anything, and be for another system
                correction = precondition(self.floats)  # (d, c), units of 2**-scale
        except (ValueError, RuntimeError) as error:
            raise NoProgressError from error
        if correction.shape != self.floats.shape:
            raise NoProgressError
        top = self.hardware.max_abs(correction)
        if not (0 < top < 2.0**400):
            raise NoProgressError
        finer = min(self.system.width(self.floats.shape[1]) - math.frexp(top)[1], 62 - math.frexp(self._largest)[1])
        if finer < 0:
            raise NoProgressError
        block = self.hardware.int64(self.hardware.rint(correction * 2.0**finer))  # (d, c), up to 2**width
        self.residual = (self.residual << finer) - self.system.product(block)
        self.scale += finer
        self.values.add(block, self.scale)
        self._measure()
        if self.log2_size() > before - least_gain:
            raise NoProgressError

    def columns(self, columns: list[int]) -> Refinement:
        """Return the same for some columns alone."""
        residual = self.hardware.contiguous(self.residual[:, columns])
        return Refinement(self.system, residual, self.values.columns(columns), self.scale)


def rounded(values: FixedPoint, errors: np.ndarray, grid_bits: int) -> tuple[np.ndarray, dict[int, list[int]]]:
    """Return the rounded grid weights and, for each column, the rows that the bound does not decide.

    Parameters
    ----------
    values : FixedPoint of shape (d, C)
    errors : ndarray of shape (C,)
        Bounds on ``|values - W*|`` in each column. They were computed with a handful of float64 operations,
        hence the slack.
    """
    hardware = values.hardware
    if hardware.max_abs(values.limbs[0]) >= 2.0 ** min(LIMB - 1, 61 - grid_bits):
        raise LimitError(f"a weight does not fit the grid of 2**-{grid_bits}; raise gamma or lower grid_bits")
    integer, fraction = values.floor_and_fraction(grid_bits)
    with np.errstate(under="ignore"):
        steps = np.ldexp(errors * (1 + 1e-9), grid_bits) + 2.0**-48  # the fraction is known to 2**-50
    near = ~(abs(fraction - 0.5) > hardware.array(steps[None, :]))  # (d, C); not a number counts as near
    weights = hardware.numpy(integer + hardware.int64(fraction > 0.5))
    undecided = {column: list(range(len(weights))) for column in np.flatnonzero(steps > 0.1).tolist()}
    scale = LIMB * len(values.limbs) + grid_bits
    for row, column in np.stack(hardware.where(near), 1).tolist():
        if steps[column] > 0.1:
            continue
        exact = Fraction(values.exactly(row, column, scale), 1 << (scale - grid_bits))  # in grid steps
        error = Fraction(float(errors[column])) * (1 << grid_bits) * Fraction(1001, 1000)
        low, high = round(exact - error), round(exact + error)
        if low == high:  # rounding never decreases, so all between round alike
            weights[row, column] = low
        else:
            undecided.setdefault(column, []).append(row)
    return weights, undecided


def refined_weights(
    system: IntegerSystem,
    refinement: Refinement,
    right: Array,
    precondition: Preconditioner,
    grid_bits: int,
    least_gain: float,
) -> tuple[np.ndarray, Refinement]:
    """Refine until every entry is decided; return the weights and the refinement, which also changes in place."""
    hardware = system.hardware
    while refinement.log2_size() > math.log2(system.floor) - grid_bits - SOLVE_BITS:
        refinement.step(precondition, least_gain)
    weights, undecided = rounded(refinement.values, refinement.bounds() / float(system.floor), grid_bits)
    for column in undecided:
        single = refinement.columns([column])
        target = hardware.numpy(right[:, column])
        weights[:, column] = _settled(system, single, target, precondition, grid_bits)
    return weights, refinement


def _settled(
    system: IntegerSystem, single: Refinement, right: np.ndarray, precondition: Preconditioner, grid_bits: int
) -> np.ndarray:
    """Return the weights of a column with entries too near a tie for the current bound."""
    look = single.scale + 64  # these extra bits nearly always distinguish a near-tie from a tie
    while True:
        while single.scale < look and single.norms.any():
            single.step(precondition, least_gain=0.5)
        weights, undecided = rounded(single.values, single.bounds() / float(system.floor), grid_bits)
        if not undecided:
            return weights[:, 0]
        exact = _exact_values(system, single, right, undecided[0], grid_bits)
        if exact is not None:
            for row, value in exact.items():
                weights[row, 0] = round(value * (1 << grid_bits))
            return weights[:, 0]
        look = 2 * single.scale


def _exact_values(
    system: IntegerSystem, single: Refinement, right: np.ndarray, rows: list[int], grid_bits: int
) -> dict[int, Fraction] | None:
    """Return the exact values of the entries `rows` of one column, if they can be determined yet."""
    gram = system.hardware.numpy(system.gram)
    values = block_values(gram, system.gamma, right, rows, RATIONAL_SIZE)
    if values is not None:
        return values
    approximate = single.values.column_exactly(0)
    error = Fraction(float(single.norms[0])) / (system.floor * 2**single.scale)
    whole = exact_solution(gram, system.gamma, right, approximate, error)
    if whole is not None:
        return {row: whole[row] for row in rows}
    # A tie is m / 2**(p+1), an entry of W* is n / det A, and 0 < det A <= prod A_ii (Hadamard). If they differ, then by
    # at least 1 / (2**(p+1) prod A_ii): within twice the error of each other, and nearer than that, they are equal.
    product = math.prod(entry + system.gamma for entry in gram.diagonal().tolist())
    told = 4 * error * product * 2 ** (grid_bits + 1) < 1
    values = {}
    for row in rows:
        tie = Fraction(2 * math.floor(approximate[row] * 2**grid_bits) + 1, 2 ** (grid_bits + 1))
        if abs(approximate[row] - tie) > error:
            values[row] = approximate[row]  # on this side of the tie, as W* is
        elif told:
            values[row] = tie
        else:
            return None
    return values
