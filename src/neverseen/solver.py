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
4. An exact tie is beyond refinement. Where it has gone on for long without deciding, the entry is settled in exact
   rational arithmetic: its own block of the system if that is small, else the whole column guessed from continued
   fractions and proved by substitution, else by the distance that two different fractions must keep.

Floating point appears only inside preconditioners, where it decides how fast R shrinks and nothing else, and in
norms, which are rounded up. **A hint can change the time, never the bits.**

Following a small change
------------------------
Let k samples with codes C and one-hot labels Y come or go, with signs S of +1 or -1: ``A' = A + C'SC`` and
``B' = B + C'SY``. Take any U with ``A' U = C' - V`` and let ``E = Y - C X``, ``X' = X + U S E``. Then

    B' - A' X' = B + C'SY - A X - C'SC X - (C' - V) S E = (B - A X) + V S E.

So the new residual is the old one plus ``V S E``, and solving for the k columns of U, not the C of X, certifies
X'. A request of one sample costs a few passes over A. `Solution.followed` does this.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from neverseen.arithmetic import IntegerSystem
from neverseen.errors import IllConditionedError, InputError, LimitError
from neverseen.fixedpoint import LIMB, FixedPoint
from neverseen.hardware import INT8_PRODUCT, Array, Hardware, choose, contiguous
from neverseen.preconditioning import (
    ApproximateInverse,
    CholeskyFactor,
    Corrected,
    NoProgressError,
    Preconditioner,
    corrected,
)
from neverseen.rational import block_values, eliminated, exact_solution

_SOLVE_BITS = 26
"""A solution is refined until its error bound is below 2**-26 grid steps. One entry in 2**25 is then too near a tie
to be decided at once, and small changes can be followed from there."""
_FOLLOW_BITS = 30
"""A change is followed until it adds less than 2**-30 grid steps to the error bound."""
_LIMBS = 8
"""Limbs kept when following a change, at most: 154 bits after the point."""
_MAX_CORRECTION = 2**11 // _LIMBS
"""Rank of the correction to a factor beyond which a new factor is cheaper; the inner dimension `FixedPoint` allows."""
_RATIONAL_SIZE = 96
"""Up to this size, systems too ill-conditioned for float64 are solved by elimination over the rationals."""


class _Refinement:
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

    def columns(self, columns: list[int]) -> _Refinement:
        """Return the same for some columns alone."""
        return _Refinement(self.system, contiguous(self.residual[:, columns]), self.values.columns(columns), self.scale)


@dataclass(frozen=True)
class Solution:
    """Correctly rounded weights, and what lets the next solve start from them.

    Attributes
    ----------
    weights : int64 ndarray of shape (d, C)
        ``round(2**grid_bits * W*)``.
    values : FixedPoint of shape (d, C)
        An approximation of W* with more bits.
    residuals : ndarray of shape (C,)
        Proven upper bounds on the column norms of ``B - A values``.
    preconditioner : Preconditioner
    gamma, grid_bits : int
    """

    weights: np.ndarray
    values: FixedPoint
    residuals: np.ndarray
    preconditioner: Preconditioner
    gamma: int
    grid_bits: int

    def with_columns(self, columns: list[int]) -> Solution:
        """Return the solution for other classes: columns picked by position, -1 for a class without samples."""
        if columns == list(range(len(self.residuals))):
            return self
        picked = np.array([self.residuals[column] if column >= 0 else 0.0 for column in columns])
        return replace(self, values=self.values.columns(columns), residuals=picked)

    def followed(
        self, gram: Array, cross: Array, codes: Array, signs: np.ndarray, targets: np.ndarray, hardware: Hardware
    ) -> Solution | None:
        """Return the solution after a few samples came or went, or None where a full solve is cheaper or needed.

        Parameters
        ----------
        gram, cross : the sums *after* the change
        codes : int8 array of shape (k, d)
        signs : ndarray of shape (k,), +1 for samples that came and -1 for those that went
        targets : ndarray of shape (k,), each sample's column, or -1 if its class is gone
        """
        rank = self.preconditioner.images.shape[1] if isinstance(self.preconditioner, Corrected) else 0
        if rank + len(codes) > _MAX_CORRECTION or len(codes) * 16 > len(gram):
            return None
        system = IntegerSystem(gram, self.gamma, hardware)
        try:
            return self._followed(system, cross, hardware.int64(codes), signs.astype(np.int64), targets)
        except NoProgressError:
            return None

    def _followed(
        self, system: IntegerSystem, cross: Array, codes: Array, signs: np.ndarray, targets: np.ndarray
    ) -> Solution | None:
        hardware = system.hardware
        precondition = corrected(self.preconditioner, hardware.float64(codes), signs, hardware)
        # How many limbs to keep: what is cut, of X and of the product below, moves each entry by less than `dropped`, and
        # so the residual by `cut`, as no eigenvalue of A or A' exceeds `largest`. It should not weaken the bound.
        largest = float(system.trace + INT8_PRODUCT * len(signs) * system.size)
        enough = math.ldexp(self.gamma, -self.grid_bits - _FOLLOW_BITS)
        for limbs in range(3, _LIMBS + 1):
            dropped = (len(signs) * limbs + 1) * 2.0 ** (43 - LIMB * limbs)
            cut = 2 * largest * math.sqrt(system.size) * dropped
            if cut < enough:
                break
        old = self.values.truncated(limbs)

        # S E = S (Y - C X), exact.                                              (k, C)
        fit = old.after_codes(codes)
        onehot = np.zeros((len(targets), cross.shape[1]), np.int64)
        onehot[np.flatnonzero(targets >= 0), targets[targets >= 0]] = 1
        sign_column = hardware.array(signs[:, None])
        errors = FixedPoint([-sign_column * limb for limb in fit.limbs], hardware)
        errors.limbs[0] = errors.limbs[0] + sign_column * hardware.array(onehot)
        errors.normalise()  # a negated limb may be 2**21, one too many
        sizes = (
            np.abs(hardware.numpy(hardware.float64(errors.limbs[0]))) + 1
        )  # (k, C); the other limbs add up to less than 1

        # U with A' U = C' - V, refined until V S E cannot matter.                (d, k)
        right = contiguous(codes.T)
        inverse = _Refinement(system, right)
        if inverse.norms.any():  # samples whose codes are all zero change nothing
            inverse.step(lambda right: precondition.latest(signs), least_gain=4)
        while (change := inverse.bounds() @ sizes).max(initial=0.0) > enough:
            inverse.step(precondition, least_gain=4)
        if max(hardware.max_abs(part.limbs[0]) for part in (inverse.values, errors)) >= 2 ** (LIMB - 1):
            return None

        # X' = X + U S E.                                                         (d, C)
        values = FixedPoint(list(old.limbs), hardware)
        values.add_product(inverse.values, errors, limbs)
        residuals = (self.residuals + change + cut) * (1 + 1e-9)

        solution = replace(self, values=values, residuals=residuals, preconditioner=precondition)
        return solution._decided(system, cross)

    def _decided(self, system: IntegerSystem, cross: Array) -> Solution:
        """Return the solution with its weights rounded, refining the columns that need it."""
        weights, undecided = _rounded(self.values, self.residuals / self.gamma, self.grid_bits)
        residuals = self.residuals.copy()
        if columns := sorted(undecided):
            refinement = self._restarted(system, cross, columns)
            weights[:, columns], _ = _refined_weights(
                system, refinement, contiguous(cross[:, columns]), self.preconditioner, self.grid_bits, 4
            )
            self.values.set_columns(columns, refinement.values.truncated(_LIMBS))
            residuals[columns] = refinement.bounds() + _cut_residual(system, _LIMBS)
        return replace(self, weights=weights, residuals=residuals)

    def _restarted(self, system: IntegerSystem, cross: Array, columns: list[int]) -> _Refinement:
        """Return some columns with their residual computed anew, exactly, modulo 2**64.

        X is cut to whole limbs such that the true residual, at most the proven bound plus what the cut adds, stays
        below 2**61 units: so its value modulo 2**64 is its value.
        """
        largest = float(self.residuals[columns].max())
        limbs = _LIMBS
        while (largest + _cut_residual(system, limbs)) * 2.0 ** (LIMB * (limbs - 1)) > 2.0**61:
            limbs -= 1
            if limbs < 2:
                raise NoProgressError
        scale = LIMB * (limbs - 1)
        values = self.values.columns(columns).truncated(limbs)
        residual = _shifted(contiguous(cross[:, columns]), scale)
        for k, limb in enumerate(values.limbs):
            if scale - LIMB * k < 64:
                residual = residual - _shifted(system.wrapping_product(limb), scale - LIMB * k)
        return _Refinement(system, residual, values, scale)


def _shifted(array: Array, bits: int) -> Array:
    """Return ``array * 2**bits`` modulo 2**64."""
    return array << bits if bits < 64 else array * 0


def _cut_residual(system: IntegerSystem, limbs: int) -> float:
    """Bound what cutting X to `limbs` limbs adds to the norm of a residual column."""
    return float(system.trace) * (1 + 1e-9) * math.sqrt(system.size) * 2.0 ** (-LIMB * (limbs - 1))


def _rounded(values: FixedPoint, errors: np.ndarray, grid_bits: int) -> tuple[np.ndarray, dict[int, list[int]]]:
    """Return the rounded grid weights, and by column the rows that the bound does not decide.

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
    near = abs(fraction - 0.5) <= hardware.array(steps[None, :])  # (d, C)
    weights = hardware.numpy(integer + hardware.int64(fraction > 0.5))
    undecided = {column: list(range(len(weights))) for column in np.flatnonzero(steps > 0.1).tolist()}
    scale = LIMB * len(values.limbs) + grid_bits
    for row, column in np.argwhere(hardware.numpy(near)).tolist():
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


def _refined_weights(
    system: IntegerSystem,
    refinement: _Refinement,
    right: Array,
    precondition: Preconditioner,
    grid_bits: int,
    least_gain: float,
) -> tuple[np.ndarray, _Refinement]:
    """Refine until every entry is decided; return the weights and the refinement, which also changes in place."""
    hardware = system.hardware
    while refinement.log2_size() > math.log2(system.gamma) - grid_bits - _SOLVE_BITS:
        refinement.step(precondition, least_gain)
    weights, undecided = _rounded(refinement.values, refinement.bounds() / system.gamma, grid_bits)
    for column in undecided:
        single = refinement.columns([column])
        target = hardware.numpy(right[:, column])
        weights[:, column] = _settled(system, single, target, precondition, grid_bits)
    return weights, refinement


def _settled(
    system: IntegerSystem, single: _Refinement, right: np.ndarray, precondition: Preconditioner, grid_bits: int
) -> np.ndarray:
    """Return the weights of one column that has entries too near a tie for the bound at hand."""
    look = single.scale + 64  # near-ties are nearly always told from ties by that many bits more
    while True:
        while single.scale < look and single.norms.any():
            single.step(precondition, least_gain=0.5)
        weights, undecided = _rounded(single.values, single.bounds() / system.gamma, grid_bits)
        if not undecided:
            return weights[:, 0]
        exact = _exact_values(system, single, right, undecided[0], grid_bits)
        if exact is not None:
            for row, value in exact.items():
                weights[row, 0] = round(value * (1 << grid_bits))
            return weights[:, 0]
        look = 2 * single.scale


def _exact_values(
    system: IntegerSystem, single: _Refinement, right: np.ndarray, rows: list[int], grid_bits: int
) -> dict[int, Fraction] | None:
    """Return the exact values of the entries `rows` of one column, if they can be known by now."""
    gram = system.hardware.numpy(system.gram)
    values = block_values(gram, system.gamma, right, rows, _RATIONAL_SIZE)
    if values is not None:
        return values
    approximate = single.values.column_exactly(0)
    error = Fraction(float(single.norms[0])) / (system.gamma << single.scale)
    whole = exact_solution(gram, system.gamma, right, approximate, error)
    if whole is not None:
        return {row: whole[row] for row in rows}
    # A tie is m / 2**(p+1), an entry of W* is n / det A, and 0 < det A <= prod A_ii (Hadamard). If they differ, then by
    # at least 1 / (2**(p+1) prod A_ii); and an undecided entry is within 2.1 times the error of its tie.
    product = math.prod(entry + system.gamma for entry in gram.diagonal().tolist())
    if 4 * error * product * 2 ** (grid_bits + 1) < 1:
        steps = {row: math.floor(approximate[row] * 2**grid_bits) for row in rows}
        return {row: Fraction(2 * step + 1, 2 ** (grid_bits + 1)) for row, step in steps.items()}
    return None


def solve(
    gram: Array,
    cross: Array,
    gamma: int,
    grid_bits: int = 40,
    hint: Solution | Preconditioner | np.ndarray | None = None,
    hardware: Hardware | None = None,
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
        The solution of a similar system, a factor, or an approximate inverse of A (the paper's T). Right, stale or
        nonsense, the weights are the same.
    hardware : Hardware, optional

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
    system = IntegerSystem(gram, gamma, hardware)
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
            weights, refinement = _refined_weights(
                system, _Refinement(system, cross), cross, precondition, grid_bits, least_gain
            )
        except NoProgressError:
            continue
        return Solution(weights, refinement.values, refinement.bounds(), precondition, gamma, grid_bits)
    if system.size > _RATIONAL_SIZE:
        raise IllConditionedError(
            f"the sums reach 2**{math.log2(system.trace):.0f} with gamma = {gamma}: "
            "no float64 factor of the system contracts. Raise gamma"
        )
    exact = eliminated(hardware.numpy(gram), gamma, hardware.numpy(cross))
    weights = np.array([[round(value * (1 << grid_bits)) for value in row] for row in exact], dtype=np.int64)
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
    """Return ways to precondition, best first, each with the bits a step must gain for it to be worth keeping."""
    hardware = system.hardware
    ways: list[tuple[Callable[[], Preconditioner | None], float]] = []
    if isinstance(hint, Solution):
        hint = hint.preconditioner
    if isinstance(hint, np.ndarray):
        if hint.shape == (system.size, system.size) and hint.dtype.kind in "fiu":
            matrix = hint.astype(np.float64)
            ways.append((lambda: ApproximateInverse(hardware.array(matrix), hardware), 8))
    elif hint is not None and hint is not _identity:
        ways.append((lambda: hint, 8))

    def factor() -> Preconditioner | None:
        matrix = hardware.float64(system.gram)
        hardware.add_to_diagonal(matrix, float(system.gamma))
        found = hardware.cholesky(matrix)
        return None if found is None else CholeskyFactor(found, hardware)

    ways.append((factor, 1))
    return ways
