"""Following small changes: the certified weights after a few samples came or went, without a full solve.

Let k samples with codes C and one-hot labels Y come or go, with signs S of +1 or -1: ``A' = A + C'SC`` and
``B' = B + C'SY``. Take any U with ``A' U = C' - V``, any E, and let ``X' = X + U S E``. Then

    B' - A' X' = (B - A X) + V S E + C' S (Y - C X - E).

So with E near ``Y - C X`` and V near 0, the residual of X' is that of X and little more, and its norm bounds the error
of X' as `neverseen.engine.solver` proves. Solving for the k columns of U, not the C of X, certifies all weights: a
request of one sample costs a few passes over A.

X is never written out. It stays a base and a product of thin factors, ``X = X0 + L R``, in exact fixed point. What
is kept for every weight is its rounding ``N`` and the rest ``2**p X - N`` as a float64 with a bound on its error;
each change adds a float64 product to the rest. The few entries whose rest is too near a half are looked up in the
exact factors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from neverseen.engine.arithmetic import IntegerSystem, check_float_product
from neverseen.engine.fixedpoint import LIMB, FixedPoint
from neverseen.engine.preconditioning import NoProgressError, Preconditioner, corrected
from neverseen.engine.refinement import Refinement, cut_residual, refined_weights
from neverseen.engine.solver import Solution
from neverseen.hardware import INT8_PRODUCT, Array, Hardware

_FOLLOW_BITS = 30
"""A change is followed until it adds less than 2**-30 grid steps to the error bound."""
_LIMBS = 8
"""Limbs of E, and of X where it is written out: 154 bits after the point."""
_MAX_RANK = 2**11 // _LIMBS
"""Samples that can be followed before a new factor is due: the inner dimension that `FixedPoint` allows."""
_MAX_DOUBT = 2.0**-14
"""Grid steps. Once the rests are less certain than this, too many entries would have to be looked up: solve anew."""
_LOOK_UPS = 2048
"""Entries looked up at a time."""
_FEW = 64
"""More entries of a column too near a half than this, and the whole column is refined."""


def can_follow(samples: int, size: int, hardware: Hardware) -> bool:
    """Return whether that many samples at once are few enough for codes of that size to be followed."""
    return samples <= min(_MAX_RANK, size // 16, hardware.follows)


@dataclass(frozen=True)
class Following:
    """A solution on its way through small changes.

    Attributes
    ----------
    weights : int64 ndarray of shape (d, C)
        ``round(2**grid_bits * W*)`` for the system as it is now.
    """

    weights: np.ndarray
    base: FixedPoint  # X0, (d, C)
    lefts: FixedPoint  # L, (d, m)
    rights: FixedPoint  # R, (m, C)
    steps: Array  # N, (d, C) int64
    rests: Array  # 2**p X - N, (d, C) float64
    rest_errors: np.ndarray  # bounds on the error of the rests, (C,)
    residuals: np.ndarray  # bounds on the column norms of B - A X, (C,)
    preconditioner: Preconditioner
    gamma: int
    grid_bits: int

    @classmethod
    def of(cls, solution: Solution, hardware: Hardware) -> Following | None:
        """Start from a full solve; None if it left no approximation to start from."""
        if not np.isfinite(solution.residuals).all():
            return None
        integer, fraction = solution.values.floor_and_fraction(solution.grid_bits)
        steps = hardware.array(solution.weights)
        size, classes = solution.weights.shape
        return cls(
            solution.weights,
            solution.values,
            FixedPoint.zeros(size, 0, hardware=hardware),
            FixedPoint.zeros(0, classes, hardware=hardware),
            steps,
            fraction + hardware.float64(integer - steps),
            np.full(classes, 2.0**-49),
            solution.residuals,
            solution.preconditioner,
            solution.gamma,
            solution.grid_bits,
        )

    def with_columns(self, columns: list[int]) -> Following:
        """Return the same for other classes: columns picked by position, -1 for a class without samples."""
        if columns == list(range(len(self.residuals))):
            return self
        return replace(
            self,
            base=self.base.columns(columns),
            rights=self.rights.columns(columns),
            steps=_picked(self.steps, columns),
            rests=_picked(self.rests, columns),
            rest_errors=np.array([self.rest_errors[column] if column >= 0 else 0.0 for column in columns]),
            residuals=np.array([self.residuals[column] if column >= 0 else 0.0 for column in columns]),
        )

    def after(
        self, gram: Array, cross: Array, codes: Array, signs: np.ndarray, targets: np.ndarray, hardware: Hardware
    ) -> Following | None:
        """Return the solution after a few samples came or went, or None where a full solve is cheaper or needed.

        Parameters
        ----------
        gram, cross : the sums *after* the change
        codes : int8 array of shape (k, d)
        signs : ndarray of shape (k,), +1 for samples that came and -1 for those that went
        targets : ndarray of shape (k,), each sample's column, or -1 if its class is gone
        """
        if self.lefts.limbs[0].shape[1] + len(codes) > _MAX_RANK or not can_follow(len(codes), len(gram), hardware):
            return None
        system = IntegerSystem(gram, self.gamma, hardware)
        try:
            return self._after(system, cross, hardware.int64(codes), signs.astype(np.int64), targets)
        except NoProgressError:
            return None

    def _after(
        self, system: IntegerSystem, cross: Array, codes: Array, signs: np.ndarray, targets: np.ndarray
    ) -> Following:
        hardware = system.hardware
        precondition = corrected(self.preconditioner, hardware.float64(codes), signs, hardware)
        errors, slack = self._signed_errors(system, codes, signs, targets)  # S E, (k, C)
        floats = errors.nearest_floats()
        sizes = np.abs(hardware.numpy(floats)) * (1 + 2.0**-50)  # (k, C)

        # U with A' U = C' - V, refined until V S E cannot matter.
        inverse = Refinement(system, hardware.contiguous(codes.T))  # (d, k)
        enough = math.ldexp(self.gamma, -self.grid_bits - _FOLLOW_BITS)
        if inverse.norms.any():  # samples whose codes are all zero change nothing
            inverse.step(lambda right: precondition.latest(signs), least_gain=4)
        while (change := inverse.bounds() @ sizes).max(initial=0.0) > enough:
            inverse.step(precondition, least_gain=4)
        if hardware.max_abs(inverse.values.limbs[0]) >= 2 ** (LIMB - 1):
            raise NoProgressError

        # N and the rests move by 2**p U S E, computed in float64: rounded inputs, products and sums are wrong by
        # less than (k + 10) 2**-52 of the sum of magnitudes.
        left = inverse.values.nearest_floats()  # (d, k)
        right = floats * 2.0**self.grid_bits
        moves = hardware.matmul(left, right)  # (d, C)
        tops = hardware.numpy(abs(left)).max(axis=0)  # (k,)
        if (reach := (tops @ sizes) * 2.0**self.grid_bits * (1 + 1e-9)).max(initial=0.0) >= 2.0**50:
            raise NoProgressError
        check_float_product(left, right, moves, float(reach.sum()), hardware)
        rest_errors = (self.rest_errors + (len(signs) + 10) * 2.0**-52 * reach + 2.0**-52) * (1 + 1e-9)
        if rest_errors.max(initial=0.0) > max(_MAX_DOUBT, self.rest_errors.max(initial=0.0)):
            raise NoProgressError
        whole = hardware.rint(moves)
        rests = self.rests + (moves - whole)  # the bracket is exact
        carry = hardware.rint(rests)
        moved = replace(
            self,
            steps=self.steps + hardware.int64(whole + carry),
            rests=rests - carry,
            rest_errors=rest_errors,
            lefts=self.lefts.beside(inverse.values),
            rights=self.rights.above(errors),
            residuals=(self.residuals + change + slack) * (1 + 1e-9),
            preconditioner=precondition,
        )
        return moved._decided(system, cross)

    def _signed_errors(
        self, system: IntegerSystem, codes: Array, signs: np.ndarray, targets: np.ndarray
    ) -> tuple[FixedPoint, float]:
        """Return S E with E near ``Y - C X``, and a bound on the norm of a column of ``C' S (Y - C X - E)``."""
        hardware = system.hardware
        fit = self.base.truncated(_LIMBS).after_codes(codes)  # C X0, (k, C)
        inner = self.lefts.after_codes(codes)  # C L, (k, m)
        if max(hardware.max_abs(part.limbs[0]) for part in (inner, self.rights)) >= 2 ** (LIMB - 1):
            raise NoProgressError
        if len(self.rights.limbs[0]):
            fit.add_product(inner, self.rights, _LIMBS)
        onehot = np.zeros((len(targets), len(self.residuals)), np.int64)
        onehot[np.flatnonzero(targets >= 0), targets[targets >= 0]] = 1
        sign_column = hardware.array(signs[:, None])
        errors = FixedPoint([-sign_column * limb for limb in fit.limbs], hardware)
        errors.limbs[0] = errors.limbs[0] + sign_column * hardware.array(onehot)
        errors.normalise()  # a negated limb may be 2**21, one too many
        if hardware.max_abs(errors.limbs[0]) >= 2 ** (LIMB - 1):
            raise NoProgressError
        # An entry of E is off by what X0 beyond _LIMBS limbs adds, and by what the product dropped.
        off = 127 * system.size * 2.0 ** (-LIMB * (_LIMBS - 1)) + _MAX_RANK * _LIMBS * 2.0 ** (43 - LIMB * _LIMBS)
        return errors, math.sqrt(INT8_PRODUCT * system.size) * len(signs) * off

    def _decided(self, system: IntegerSystem, cross: Array) -> Following:
        """Return the same with its weights proved, looking closer where the bounds do not decide."""
        hardware = system.hardware
        with np.errstate(under="ignore"):
            doubt = np.ldexp(self.residuals / self.gamma * (1 + 1e-9), self.grid_bits) + self.rest_errors
        rows, columns = hardware.where(~(0.5 - abs(self.rests) > hardware.array(doubt[None, :])))  # NaN counts as near
        many = np.bincount(columns, minlength=len(doubt)) > _FEW
        whole = set(np.flatnonzero((many | ~(doubt <= 0.1)) & np.isin(np.arange(len(doubt)), columns)).tolist())
        few = [
            (row, column) for row, column in zip(rows.tolist(), columns.tolist(), strict=True) if column not in whole
        ]
        for start in range(0, len(few), _LOOK_UPS):
            whole |= self._look_up(few[start : start + _LOOK_UPS])
        settled = self if not whole else self._refined(system, cross, sorted(whole))
        return replace(settled, weights=hardware.numpy(settled.steps))

    def _look_up(self, entries: list[tuple[int, int]]) -> set[int]:
        """Set step and rest of some entries from the exact factors; return columns that even so are not decided."""
        rows, columns = ([entry[axis] for entry in entries] for axis in (0, 1))
        values = self.base.picked_plus_product(rows, columns, self.lefts, self.rights)
        errors = {
            column: Fraction(float(self.residuals[column])) / self.gamma * 2**self.grid_bits for column in set(columns)
        }
        undecided, steps, rests = set(), [], []
        for exact, column in zip(values, columns, strict=True):
            value = exact * 2**self.grid_bits
            step = round(value - errors[column])
            if step != round(value + errors[column]):  # rounding never decreases, so all between round alike
                undecided.add(column)
            steps.append(step)
            rests.append(float(value - step))
        self.steps[rows, columns] = self.base.hardware.array(np.array(steps, np.int64))
        self.rests[rows, columns] = self.base.hardware.array(np.array(rests))
        return undecided

    def _refined(self, system: IntegerSystem, cross: Array, columns: list[int]) -> Following:
        """Return the same with some columns written out and refined until they are decided."""
        hardware = system.hardware
        written = self.base.columns(columns).truncated(_LIMBS)
        written.add_product(self.lefts, self.rights.columns(columns), _LIMBS)
        # Cut and dropped terms move an entry by less than 2**-120, far below the place that this bound is for.
        cut = cut_residual(system, _LIMBS - 2)
        right = hardware.contiguous(cross[:, columns])
        refinement = _restarted(system, right, written, float(self.residuals[columns].max()) + cut)
        weights, _ = refined_weights(system, refinement, right, self.preconditioner, self.grid_bits, 4)
        steps = hardware.array(weights)
        integer, fraction = refinement.values.floor_and_fraction(self.grid_bits)
        base, rights = self.base.copied(), self.rights.copied()
        base.set_columns(columns, refinement.values)
        rights.set_columns(columns, FixedPoint.zeros(rights.limbs[0].shape[0], len(columns), hardware=hardware))
        self.steps[:, columns] = steps
        self.rests[:, columns] = fraction + hardware.float64(integer - steps)
        residuals, rest_errors = self.residuals.copy(), self.rest_errors.copy()
        residuals[columns], rest_errors[columns] = refinement.bounds(), 2.0**-49
        return replace(self, base=base, rights=rights, residuals=residuals, rest_errors=rest_errors)


def _restarted(system: IntegerSystem, right: Array, values: FixedPoint, largest: float) -> Refinement:
    """Return a refinement from given values, their residual computed anew, exactly, modulo 2**64.

    The values are cut to whole limbs such that the true residual, whose norm is at most `largest` plus what the cut
    adds, stays below 2**61 units: so its value modulo 2**64 is its value.
    """
    limbs = len(values.limbs)
    while (largest + cut_residual(system, limbs)) * 2.0 ** (LIMB * (limbs - 1)) > 2.0**61:
        limbs -= 1
        if limbs < 2:
            raise NoProgressError
    scale = LIMB * (limbs - 1)
    values = values.truncated(limbs)
    residual = _shifted(right, scale)
    for k, limb in enumerate(values.limbs):
        if scale - LIMB * k < 64:
            residual = residual - _shifted(system.wrapping_product(limb), scale - LIMB * k)
    return Refinement(system, residual, values, scale)


def _shifted(array: Array, bits: int) -> Array:
    """Return ``array * 2**bits`` modulo 2**64."""
    return array << bits if bits < 64 else array * 0


def _picked(array: Array, columns: list[int]) -> Array:
    """Return columns of an array by position, -1 for zeros."""
    picked = array[:, [max(0, column) for column in columns]]
    picked[:, [place for place, column in enumerate(columns) if column < 0]] = 0
    return picked
