"""Following changes: the certified weights after samples were added or removed, without a full solve.

Let p be the bits of the grid. The system ``A X = 2**p B`` has the solution X*, the weights in grid steps. We keep for
every weight an integer, the *step*, and a float64 between -1/2 and 1/2, the *rest*; and for every column j two bounds.
They claim that there is a real matrix Y such that

    |step + rest - Y| <= slip_j  for every entry,  and  ||2**p B_j - A Y_j|| <= residual_j.

Every eigenvalue of A is at least gamma, so ``|step + rest - X*| <= slip_j + residual_j / gamma``: the *doubt*. Where no
half lies within the doubt of a rest, the step is the weight.

Small changes
-------------
Let k samples with codes C and one-hot labels L be added or removed, with signs S of +1 or -1: ``A' = A + C'SC`` and
``B' = B + C'SL``. Take any U, let ``V = C' - A'U``, take any E, and let ``Y' = Y + U S E``. Then

    2**p B' - A' Y' = (2**p B - A Y) + V S E + C' S (2**p L - C Y - E).

So with E near ``2**p L - C Y`` and V near 0 the residual of Y' is that of Y and little more. U comes from an
approximate inverse and V is computed exactly, in integers: a request of one sample costs a few passes over A, whatever
the number of classes.

Large changes
-------------
The inverse is updated, Y moves by about the effect of the samples, and the residual of all columns is computed anew,
exactly: see `_anew`. This needs none of the earlier bounds. Columns with an entry in doubt after small changes are
treated in the same way.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from neverseen.engine.arithmetic import wide_matmul
from neverseen.engine.captured import Captured
from neverseen.engine.fixedpoint import LIMB
from neverseen.engine.preconditioning import Inverse, NoProgressError, explicit
from neverseen.engine.residuals import LEAST_SCALE, MOST_STEP, ExactResidual
from neverseen.engine.solver import Solution, solve
from neverseen.engine.systems import ChangedSystem, column_norms
from neverseen.errors import HardwareError
from neverseen.hardware import Array, Hardware

_SMALL = 2**6
"""Number of samples up to which a change is small: U has a column for each, a large change one for each class."""
_CLASSES = 1  # times as many classes as samples make a change small too
_FOLLOW_BITS = 22
"""U is refined until ``V S E`` adds less than 2**-22 grid steps to the doubt."""
_ANEW_BITS = 30
"""A residual that is computed anew is refined until it adds less than 2**-30 grid steps to the doubt."""
_WRONG = "a float64 product computed on this machine is wrong beyond rounding; nothing was changed"
_MOST_DOUBT = 2.0**-18
"""Grid steps. In columns with more, one entry in 2**17 would have to be looked at again: their residual is due."""
_SOME_DOUBT = 2.0**-26


def can_follow(samples: int, size: int) -> bool:
    """Return whether so many samples at once are few enough for codes of that size to be followed."""
    return samples <= min(max(_SMALL, size // 2), size)


Cross = Callable[[list[int]], Array]


class Misfit(NamedTuple):
    """``E = whole + rest``, near ``2**p L - C Y``: (k, C) each, whole numbers and what is added to them."""

    whole: np.ndarray
    rest: np.ndarray
    error: np.ndarray  # a bound on how far off
    norms: np.ndarray  # (k,), bounds on the norms of the codes


@dataclass(frozen=True)
class Following:
    """A solution that follows changes.

    Attributes
    ----------
    weights : int64 ndarray of shape (d, C)
        ``round(2**grid_bits * W*)`` for the system as it is now.
    """

    steps: Array  # (d, C) int64
    rests: Array  # (d, C) float64
    slips: np.ndarray  # (C,)
    residuals: np.ndarray  # (C,), in grid steps
    preconditioner: Inverse
    top: float  # no step is larger
    gamma: int
    grid_bits: int
    hardware: Hardware
    captured: Captured | None = None

    @cached_property
    def weights(self) -> np.ndarray:
        """The weights, in grid steps."""
        return self.hardware.numpy(self.steps)

    @classmethod
    def of(cls, solution: Solution, hardware: Hardware) -> Following | None:
        """Start from a full solve; None if it left no approximation to start from."""
        if not np.isfinite(solution.residuals).all():
            return None
        integer, fraction = solution.values.floor_and_fraction(solution.grid_bits)
        steps = hardware.array(solution.weights)
        try:
            inverse = explicit(solution.preconditioner, len(solution.weights), hardware)
        except NoProgressError:
            return None
        with np.errstate(under="ignore"):
            residuals = np.ldexp(solution.residuals, solution.grid_bits)
        run = hardware.small_changes()
        return cls(
            steps,
            fraction + hardware.float64(integer - steps),
            np.full(len(residuals), 2.0**-49),
            residuals,
            inverse,
            hardware.max_abs(hardware.float64(steps)),
            solution.gamma,
            solution.grid_bits,
            hardware,
            None if run is None else Captured(run, hardware),
        )

    def with_columns(self, columns: list[int]) -> Following:
        """Return the same for other classes: columns picked by position, -1 for a class without samples."""
        if columns == list(range(len(self.residuals))):
            return self
        return replace(
            self,
            steps=_picked(self.steps, columns),
            rests=_picked(self.rests, columns),
            slips=np.array([self.slips[column] if column >= 0 else 0.0 for column in columns]),
            residuals=np.array([self.residuals[column] if column >= 0 else 0.0 for column in columns]),
        )

    def after(
        self, system: ChangedSystem, cross: Cross, codes: Array, signs: np.ndarray, targets: np.ndarray
    ) -> Following | None:
        """Return the solution after samples were added or removed, or None if a full solve is cheaper or needed.

        Parameters
        ----------
        system : ChangedSystem
            *After* the change.
        cross : callable
            Returns columns of the class sums after the change, int64 of shape (d, c).
        codes : int8 array of shape (k, d)
        signs : ndarray of shape (k,), +1 for added samples and -1 for removed ones
        targets : ndarray of shape (k,), each sample's column, or -1 if its class is gone
        """
        if not can_follow(len(codes), system.size):
            return None
        few = len(codes) < _SMALL
        small = few or _CLASSES * len(codes) <= len(self.slips)
        try:
            if few and self.captured is not None and abs(signs.sum()) == len(signs):
                found = self._moved_at_once(self.captured, system, cross, codes, int(signs[0]), targets)
                if found is not None:
                    return found
            with self.hardware.alone():
                floats = self.hardware.float64(codes)
                misfit = self._misfit(codes, floats, targets)
                inverse, images = self.preconditioner.after(floats, signs)
                changed = replace(self, preconditioner=inverse)
                if small:
                    return changed._moved(system, cross, codes, images, signs, misfit)
                move = self.hardware.matmul(images, self.hardware.array(signs[:, None] * (misfit.whole + misfit.rest)))
                return changed._anew(system, cross, list(range(len(self.slips))), move)
        except NoProgressError:
            return None

    def _moved_at_once(
        self,
        captured: Captured,
        system: ChangedSystem,
        cross: Cross,
        codes: Array,
        sign: int,
        targets: np.ndarray,
    ) -> Following | None:
        """Return the solution after a small change, or None if it has to be followed step by step."""
        wanted = np.zeros((len(codes), len(self.slips)))
        place = np.flatnonzero(targets >= 0)
        wanted[place, targets[place]] = 2.0**self.grid_bits
        try:
            bounds = self.slips, self.residuals
            found = captured.moved(system, self.preconditioner, codes, sign, wanted, self.steps, self.rests, bounds)
            if found is None:
                return None
        except HardwareError:
            raise
        except (RuntimeError, MemoryError):  # of a GPU that is short of memory
            return None
        moved = replace(
            self,
            steps=found.steps,
            rests=found.rests,
            slips=found.slips,
            residuals=found.residuals,
            top=found.top,
            preconditioner=found.inverse,
        )
        return moved._settled(system, cross, found.near, found.doubts)

    # -- small changes -----------------------------------------------------------------------------

    def _misfit(self, codes: Array, floats: Array, targets: np.ndarray) -> Misfit:
        """Return E near ``2**p L - C Y``.

        ``C step`` is exact in integers. ``C rest`` in float64 is off by at most d 2**-52 |c|_1, as rests are below 1.
        Where that is too much, a rest is cut into a multiple of ``2**-cut`` and what is left of it, at most 2**-cut:
        the sums of the first part have 53 bits and are exact, and the error of the second is 2**cut times smaller.
        """
        hardware = self.hardware
        lengths = hardware.row_sums(codes)  # (k,): the sum of the magnitudes of each sample's codes
        longest = max(1.0, float(lengths.max(initial=0.0)))
        if longest * self.top + 2.0**self.grid_bits >= 2.0**62:
            raise NoProgressError
        whole = -hardware.numpy(wide_matmul(codes, self.steps, hardware))  # (k, C)
        place = np.flatnonzero(targets >= 0)
        whole[place, targets[place]] += 1 << self.grid_bits
        if len(whole) and np.abs(whole).max() >= 2**53:
            raise NoProgressError
        norms = np.sqrt(lengths * 127.0) * (1 + 1e-9)  # ||c|| <= sqrt(|c|_1 max |c|)
        rounding = (codes.shape[1] + 8) * 2.0**-52
        if float(norms @ lengths) * rounding / self.gamma <= _MOST_DOUBT * 2.0**-8:
            rest = hardware.numpy(hardware.matmul(floats, self.rests))
        else:
            cut = 52 - math.frexp(longest)[1]
            high = hardware.rint(self.rests * 2.0**cut) * 2.0**-cut
            rest = hardware.numpy(hardware.matmul(floats, high))
            rest = rest + hardware.numpy(hardware.matmul(floats, self.rests - high))
            rounding *= 2.0**-cut
        self._check_rest(floats, rest, lengths)
        # The last term: the sum of both parts.
        error = lengths[:, None] * (self.slips[None, :] + rounding) + 2.0**-52 * np.abs(rest)
        return Misfit(whole.astype(np.float64), -rest, error * (1 + 1e-9) + 2.0**-60, norms)

    def _check_rest(self, floats: Array, rest: np.ndarray, lengths: np.ndarray) -> None:
        """Raise `HardwareError` unless ``C rests`` is right to within rounding, by random signs of the columns."""
        hardware, columns = self.hardware, rest.shape[1]
        signs = np.where(np.frombuffer(os.urandom(columns), np.int8) < 0, -1.0, 1.0)
        seen = hardware.matmul(floats, hardware.matmul(self.rests, hardware.array(signs[:, None])))
        off = np.abs(rest @ signs - hardware.numpy(seen)[:, 0])
        if not (off <= (floats.shape[1] + columns + 8) * 2.0**-50 * columns * lengths).all():  # also refuses NaN
            raise HardwareError(_WRONG)

    def _moved(
        self, system: ChangedSystem, cross: Cross, codes: Array, images: Array, signs: np.ndarray, misfit: Misfit
    ) -> Following:
        hardware, count = self.hardware, len(signs)
        sizes = np.abs(misfit.whole) + np.abs(misfit.rest) + 1  # (k, C)
        blocks, left_over = self._refined_images(system, codes, images, sizes)

        # Y' = Y + U S E. U is cut into u1 + u2 + u3 and E into e1 + e2 + e3, so that u1 e1 is exact, and u1 e2 + u2 e1:
        # u1 and e1 are `half` bits high, and the next parts, at most half a bit of these, one bit less. What is left of
        # the product is small, and so is its rounding.
        half = (53 - max(0, count - 1).bit_length()) // 2
        first, scale = blocks[0]
        place = scale - max(0, math.frexp(hardware.max_abs(first))[1] - half)  # u1 is a multiple of 2**-place
        u1 = hardware.rint(first * 2.0 ** (place - scale)) * 2.0**-place
        below = first * 2.0**-scale - u1  # exact: a difference of multiples of 2**-scale
        u2 = hardware.rint(below * 2.0 ** (place + half - 1)) * 2.0 ** (1 - half - place)
        u3 = below - u2
        for block, finer in blocks[1:]:
            u3 = u3 + block * 2.0**-finer
        most = float((np.abs(misfit.whole) + np.abs(misfit.rest)).max(initial=1.0))
        cut = 2.0 ** (math.frexp(most)[1] - half)
        e1 = np.rint((misfit.whole + misfit.rest) / cut) * cut
        low = (misfit.whole - e1) + misfit.rest  # the bracket is exact
        e2 = np.rint(low / cut * 2.0 ** (half - 1)) * (cut * 2.0 ** (1 - half))
        e3, error = low - e2, misfit.error + np.abs(low) * 2.0**-52
        tops, middles, lows = (hardware.numpy(abs(part)).max(axis=0) for part in (u1, u2, u3))  # (k,)
        reach = (tops + middles + lows) @ sizes * (1 + 1e-9)  # (C,): how far an entry of a column moves at most
        inexact = (tops @ np.abs(e3) + middles @ (np.abs(e2) + np.abs(e3)) + lows @ sizes) * (1 + 1e-9)
        if not reach.sum() + self.top < MOST_STEP:
            raise NoProgressError
        # 3 k products and sums of each entry, each right to 2**-53, and a few operations on the rest, which is below 2.
        slips = (self.slips + (2 * count + 8) * 2.0**-52 * inexact + 2.0**-50) * (1 + 1e-9)
        residuals = (self.residuals + left_over + misfit.norms @ error) * (1 + 1e-9)
        doubts = (residuals / self.gamma + slips) * (1 + 1e-9)
        column = signs.astype(np.float64)[:, None]
        right = hardware.array(column * e1), hardware.array(column * e2), hardware.array(column * e3)
        steps, rests, near = hardware.move(self.steps, self.rests, (u1, u2, u3), right, doubts)
        self._check_move(u1 + (u2 + u3), right[0] + (right[1] + right[2]), steps, rests, reach)
        moved = replace(
            self, steps=steps, rests=rests, slips=slips, residuals=residuals, top=self.top + reach.max() + 1
        )
        return moved._settled(system, cross, near, doubts)

    def _settled(self, system: ChangedSystem, cross: Cross, near: list[int], doubts: np.ndarray) -> Following:
        """Return the same with new residuals for columns with an entry in doubt, or with too much doubt.

        Once one column needs it, all that have gathered some doubt are done with it: their turn would come soon.
        """
        self._require_fit()
        if not near and (doubts <= _MOST_DOUBT).all():
            return self
        return self._anew(system, cross, sorted({*near, *np.flatnonzero(~(doubts <= _SOME_DOUBT)).tolist()}), None)

    def _check_move(self, left: Array, right: Array, steps: Array, rests: Array, reach: np.ndarray) -> None:
        """Raise `HardwareError` unless steps and rests have moved by ``left @ right``, to within rounding.

        Both sides are multiplied by a random vector of signs, so an error in one entry shows. `reach` bounds the moves
        of each column. With k columns in `left` and C in `right` the sides differ by less than ``(k + C + 8) 2**-51``
        times the sum of `reach`, and by less than ``C**2 2**-50`` in the sums of rests.
        """
        hardware, columns = self.hardware, len(reach)
        drawn = np.frombuffer(os.urandom(columns), np.int8) < 0
        signs = hardware.array(np.where(drawn, -1, 1))
        vector = hardware.float64(signs)[:, None]
        change = hardware.wrapping_matvec(steps, signs) - hardware.wrapping_matvec(self.steps, signs)  # below 2**62
        whole = hardware.float64(change)[:, None]
        rest = hardware.matmul(rests, vector) - hardware.matmul(self.rests, vector)
        wrong = (whole + rest) - hardware.matmul(left, hardware.matmul(right, vector))
        tolerance = (len(right) + columns + 8) * 2.0**-51 * float(reach.sum()) + (columns + 16) ** 2 * 2.0**-50
        if not hardware.max_abs(wrong) <= tolerance:  # also refuses NaN
            raise HardwareError(_WRONG)

    def _refined_images(
        self, system: ChangedSystem, codes: Array, images: Array, sizes: np.ndarray
    ) -> tuple[list[tuple[Array, int]], np.ndarray]:
        """Return U as blocks and their scales, and bounds on the column norms of ``V S E``.

        Blocks are integers, and V is exact, but for the last step: its product is computed in float64, with a bound on
        its error. That is enough once the correction is small. If it is not, the step is repeated in integers.
        """
        hardware = self.hardware
        residual = hardware.contiguous(hardware.int64(codes).T)  # C', (d, k)
        largest, scale, blocks = hardware.max_abs(hardware.float64(residual)), 0, list[tuple[Array, int]]()
        enough, before = math.ldexp(self.gamma, -_FOLLOW_BITS), math.inf
        while True:
            if largest == 0:  # samples whose codes are all zero: they change nothing
                return [(images * 0, 0)], sizes[0] * 0
            finer = min(system.finer(images, fast=True), 62 - math.frexp(largest)[1])
            if finer < 0:
                raise NoProgressError
            block = hardware.rint(images * 2.0**finer)
            residual = (residual << finer) - system.product(hardware.int64(block))
            scale += finer
            blocks.append((block, scale))
            floats = hardware.float64(residual)  # right to 2**-53
            norms = column_norms(floats, hardware) * (1 + 2.0**-52)
            left_over = _left_over(norms, scale, sizes)
            now = left_over.max(initial=0.0)
            if now <= enough:
                return blocks, left_over
            if not now < before / 16:
                raise NoProgressError
            images = self.preconditioner(floats)
            product, error = system.approximate_product(images)
            # Three roundings: of the residual, of the difference, and in these sums.
            left_over = _left_over(column_norms(floats - product, hardware) + error + norms * 2.0**-50, scale, sizes)
            if left_over.max(initial=0.0) <= enough:
                blocks.append((images, scale))
                return blocks, left_over
            before, largest = now, hardware.max_abs(floats)

    def _require_fit(self) -> None:
        """Leave weights that may be refused as too large to a full solve, which is the one to tell."""
        if not self.top < 2.0 ** min(self.grid_bits + LIMB - 1, 61) / 2:
            raise NoProgressError

    # -- residuals anew ----------------------------------------------------------------------------

    def _anew(self, system: ChangedSystem, cross: Cross, columns: list[int], move: Array | None) -> Following:
        """Return the same with the residuals of some columns computed anew, exactly, and refined; see `ExactResidual`.

        The steps, rests and `move` (float64, (d, c)) are a guess.
        """
        hardware = self.hardware
        steps, rests = (hardware.contiguous(part[:, columns]) for part in (self.steps, self.rests))
        right = cross(columns)
        for _ in range(4):
            anew = ExactResidual.start(system, right, self.grid_bits, steps, rests if move is None else rests + move)
            if anew.scale >= LEAST_SCALE:
                break
            steps, rests = anew.steps, hardware.float64(anew.steps * 0)
            move = self.preconditioner(anew.estimate)
        else:
            raise NoProgressError
        enough = math.ldexp(self.gamma, -_ANEW_BITS)
        bounds, last = anew.bounds(), None
        while bounds.max(initial=0.0) > enough and anew.scale < 56:
            correction = self.preconditioner(anew.floats)
            product, error = system.approximate_product(correction)
            # Three roundings: of the residual, of the difference, and in these sums.
            finished = np.ldexp(
                column_norms(anew.floats - product, hardware) + error + np.ldexp(bounds, anew.scale - 50), -anew.scale
            )
            if finished.max(initial=0.0) <= enough:
                bounds, last = finished, correction
                break
            anew.step(correction)
            bounds = anew.bounds()
        steps, rests = anew.rounded(last)
        slips = np.full(len(columns), 2.0**-51)
        doubt = (bounds / self.gamma + slips) * (1 + 1e-9)
        undecided = hardware.near_half(rests, doubt)
        if undecided:  # within 2**-29 of a half: a solve tells, ties and all
            places = np.array(undecided)
            exact = solve(
                system.settled(),
                hardware.contiguous(right[:, places]),
                self.gamma,
                self.grid_bits,
                self.preconditioner,
                hardware,
            ).weights
            moved = hardware.array(exact) - steps[:, places]
            rests[:, places] = rests[:, places] - hardware.float64(moved)
            steps[:, places] = hardware.array(exact)
            if not hardware.max_abs(rests) < 1.0:
                raise NoProgressError
        if len(columns) == len(self.slips):
            found = replace(self, steps=steps, rests=rests, slips=slips, residuals=bounds)
        else:
            all_steps, all_rests = (hardware.copied(part) for part in (self.steps, self.rests))
            all_steps[:, columns], all_rests[:, columns] = steps, rests
            all_slips, residuals = self.slips.copy(), self.residuals.copy()
            all_slips[columns], residuals[columns] = slips, bounds
            found = replace(self, steps=all_steps, rests=all_rests, slips=all_slips, residuals=residuals)
        found = replace(found, top=hardware.max_abs(hardware.float64(found.steps)))
        found._require_fit()
        return found


def _left_over(norms: np.ndarray, scale: int, sizes: np.ndarray) -> np.ndarray:
    """Return bounds on the column norms of ``V S E`` from those of V, in units of 2**-scale."""
    with np.errstate(under="ignore"):
        bounds: np.ndarray = np.ldexp(norms, -scale) @ sizes * (1 + 1e-9)
    return bounds


def _picked(array: Array, columns: list[int]) -> Array:
    """Return columns of an array by position, -1 for zeros."""
    picked = array[:, [max(0, column) for column in columns]]
    picked[:, [place for place, column in enumerate(columns) if column < 0]] = 0
    return picked
