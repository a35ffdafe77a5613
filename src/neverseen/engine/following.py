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
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from neverseen.engine.arithmetic import ChangedSystem, wide_matmul
from neverseen.engine.fixedpoint import LIMB
from neverseen.engine.preconditioning import Inverse, NoProgressError, Preconditioner, explicit
from neverseen.engine.solver import Solution, solve
from neverseen.errors import HardwareError
from neverseen.hardware import Array, Hardware

_SMALL = 2**6
"""Number of samples up to which a change is small: U has a column for each, a large change one for each class."""
_FOLLOW_BITS = 22
"""U is refined until ``V S E`` adds less than 2**-22 grid steps to the doubt."""
_ANEW_BITS = 30
"""A residual that is computed anew is refined until it adds less than 2**-30 grid steps to the doubt."""
_MOST_DOUBT = 2.0**-18
"""Grid steps. In columns with more, one entry in 2**17 would have to be looked at again: their residual is due."""
_MOST_STEP = 2.0**60
"""No step comes near this: nothing that is added to it can leave 64 bits."""
_REST_BITS = 12
"""A rest is cut into integers twice: the second has this many bits more."""


def can_follow(samples: int, size: int, hardware: Hardware) -> bool:
    """Return whether so many samples at once are few enough for codes of that size to be followed."""
    return samples <= min(max(_SMALL, size // 2), size, hardware.follows)


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
        if not can_follow(len(codes), system.size, self.hardware):
            return None
        small = len(codes) < _SMALL
        try:
            with self.hardware.alone() if small else nullcontext():
                misfit = self._misfit(codes, targets)
                inverse, images = self.preconditioner.after(self.hardware.float64(codes), signs)
                changed = replace(self, preconditioner=inverse)
                if small:
                    return changed._moved(system, cross, codes, images, signs, misfit)
            move = self.hardware.matmul(images, self.hardware.array(signs[:, None] * (misfit.whole + misfit.rest)))
            return changed._anew(system, cross, list(range(len(self.slips))), move)
        except NoProgressError:
            return None

    # -- small changes -----------------------------------------------------------------------------

    def _misfit(self, codes: Array, targets: np.ndarray) -> Misfit:
        """Return E near ``2**p L - C Y``.

        ``C step`` is exact in integers. A rest is cut into ``a 2**-b + c 2**-(b + 12)`` with integers a and c, which
        leaves at most 2**-(b + 13); ``C a`` and ``C c`` are exact too.
        """
        hardware, columns = self.hardware, len(self.slips)
        lengths = hardware.row_sums(codes)  # (k,): the sum of the magnitudes of each sample's codes
        longest = max(1.0, float(lengths.max(initial=0.0)))
        if longest * self.top + 2.0**self.grid_bits >= 2.0**62:
            raise NoProgressError
        bits = 60 - math.frexp(longest)[1]
        scaled = self.rests * 2.0**bits
        coarse = hardware.rint(scaled)
        fine = hardware.rint((scaled - coarse) * 2.0**_REST_BITS)
        parts = hardware.concatenate([self.steps, hardware.int64(coarse), hardware.int64(fine)], 1)  # (d, 3 C)
        products = hardware.numpy(wide_matmul(codes, parts, hardware))  # (k, 3 C)
        whole = -products[:, :columns]
        place = np.flatnonzero(targets >= 0)
        whole[place, targets[place]] += 1 << self.grid_bits
        if len(whole) and np.abs(whole).max() >= 2**53:
            raise NoProgressError
        rest = -(np.ldexp(products[:, columns : 2 * columns].astype(np.float64), -bits))
        rest -= np.ldexp(products[:, 2 * columns :].astype(np.float64), -bits - _REST_BITS)
        # Two conversions, a subtraction, and what the cut left.
        error = lengths[:, None] * (self.slips[None, :] + 2.0 ** -(bits + _REST_BITS + 1)) + 2.0**-51 * np.abs(rest)
        norms = np.sqrt(lengths * 127.0)  # ||c|| <= sqrt(|c|_1 max |c|)
        return Misfit(whole.astype(np.float64), rest, error * (1 + 1e-9) + 2.0**-60, norms * (1 + 1e-9))

    def _moved(
        self, system: ChangedSystem, cross: Cross, codes: Array, images: Array, signs: np.ndarray, misfit: Misfit
    ) -> Following:
        hardware, count = self.hardware, len(signs)
        sizes = np.abs(misfit.whole) + np.abs(misfit.rest) + 1  # (k, C)
        blocks, left_over = self._refined_images(system, codes, images, sizes)

        # Y' = Y + U S E. U is cut into uh 2**-g + ul and E into eh + el, so that uh and eh / cut are integers of
        # `half` bits: uh eh is exact. The rest of the product is small, and so is its rounding.
        half = (53 - max(0, count - 1).bit_length()) // 2
        first, scale = blocks[0]
        top = hardware.max_abs(first)
        place = scale - max(0, math.frexp(top)[1] - half)  # g
        high = hardware.rint(first * 2.0 ** (place - scale))
        low = first * 2.0**-scale - high * 2.0**-place  # exact: a difference of multiples of 2**-scale
        for block, finer in blocks[1:]:
            low = low + block * 2.0**-finer
        cut = 2.0 ** (math.frexp(float(np.abs(misfit.whole).max(initial=1.0)))[1] - half)
        eh = np.rint(misfit.whole / cut) * cut
        el = (misfit.whole - eh) + misfit.rest  # the bracket is exact
        error = misfit.error + np.abs(el) * 2.0**-52
        tops, lows = (hardware.numpy(abs(part)).max(axis=0) for part in (high * 2.0**-place, low))  # (k,)
        reach = (tops + lows) @ sizes * (1 + 1e-9)  # (C,): how far an entry of a column moves at most
        inexact = (tops @ np.abs(el) + lows @ sizes) * (1 + 1e-9)
        if not reach.sum() + self.top < _MOST_STEP:
            raise NoProgressError
        # 2 k products and sums of each entry, each right to 2**-53, and a few operations on the rest, which is below 2.
        slips = (self.slips + (2 * count + 8) * 2.0**-52 * inexact + 2.0**-50) * (1 + 1e-9)
        residuals = (self.residuals + left_over + misfit.norms @ error) * (1 + 1e-9)
        doubts = (residuals / self.gamma + slips) * (1 + 1e-9)
        column = signs.astype(np.float64)[:, None]
        right = hardware.array(column * eh), hardware.array(column * el)
        steps, rests, near = hardware.move(self.steps, self.rests, (high, 2.0**-place, low), right, doubts)
        self._check_move(high * 2.0**-place + low, right[0] + right[1], steps, rests, reach)
        moved = replace(
            self, steps=steps, rests=rests, slips=slips, residuals=residuals, top=self.top + reach.max() + 1
        )
        moved._require_fit()
        again = sorted({*near, *np.flatnonzero(~(doubts <= _MOST_DOUBT)).tolist()})
        return moved._anew(system, cross, again, None) if again else moved

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
            raise HardwareError(
                "a float64 product computed on this machine is wrong beyond rounding; nothing was changed"
            )

    def _refined_images(
        self, system: ChangedSystem, codes: Array, images: Array, sizes: np.ndarray
    ) -> tuple[list[tuple[Array, int]], np.ndarray]:
        """Return U as blocks of integers and their scales, and bounds on the column norms of ``V S E``."""
        hardware = self.hardware
        residual = hardware.contiguous(hardware.int64(codes).T)  # C', (d, k)
        largest, scale, blocks = hardware.max_abs(hardware.float64(residual)), 0, list[tuple[Array, int]]()
        before = math.inf
        while True:
            if largest == 0:  # samples whose codes are all zero: they change nothing
                return [(images * 0, 0)], sizes[0] * 0
            finer = min(system.finer(images), 62 - math.frexp(largest)[1])
            if finer < 0:
                raise NoProgressError
            block = hardware.rint(images * 2.0**finer)
            residual = (residual << finer) - system.product(hardware.int64(block))
            scale += finer
            blocks.append((block, scale))
            floats = hardware.float64(residual)
            norms = hardware.numpy((floats * floats).sum(0)) ** 0.5 * (1 + (system.size + 8) * 2.0**-52)
            with np.errstate(under="ignore"):
                left_over = np.ldexp(norms, -scale) @ sizes * (1 + 1e-9)
            now = left_over.max(initial=0.0)
            if now <= math.ldexp(self.gamma, -_FOLLOW_BITS):
                return blocks, left_over
            if not now < before / 16:
                raise NoProgressError
            before, largest = now, hardware.max_abs(floats)
            images = self.preconditioner(floats)

    def _require_fit(self) -> None:
        """Leave weights that may be refused as too large to a full solve, which is the one to tell."""
        if not self.top < 2.0 ** min(self.grid_bits + LIMB - 1, 61) / 2:
            raise NoProgressError

    # -- residuals anew ----------------------------------------------------------------------------

    def _anew(self, system: ChangedSystem, cross: Cross, columns: list[int], move: Array | None) -> Following:
        """Return the same with the residuals of some columns computed anew, exactly, and refined.

        The steps, rests and `move` (float64, (d, c)) are a guess. The sum is cut into integers ``H + F 2**-b``, and
        ``R = 2**p B - A (H + F 2**-b)`` is computed in integers, in units of 2**-b, modulo 2**64. It is also computed
        in floating point, with a bound on its error: if that says that R is below 2**61 units, R is what it is modulo
        2**64. Then F is refined as in `neverseen.engine.refinement`.
        """
        hardware = self.hardware
        steps, rests = (hardware.contiguous(part[:, columns]) for part in (self.steps, self.rests))
        right = cross(columns)
        for _ in range(4):
            anew = _Anew.start(system, right, self.grid_bits, steps, rests if move is None else rests + move)
            if anew.fits:
                break
            steps, rests = anew.steps, hardware.float64(anew.steps * 0)
            move = self.preconditioner(anew.estimate)
        else:
            raise NoProgressError
        while anew.bounds().max(initial=0.0) > math.ldexp(self.gamma, -_ANEW_BITS) and anew.scale < 56:
            anew.step(self.preconditioner)
        bounds = anew.bounds()
        steps, rests = anew.rounded()
        slips = np.full(len(columns), 2.0**-52)
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


@dataclass
class _Anew:
    """Steps and fractions, ``H + F 2**-scale``, and their exact residual ``R 2**-scale``: see `Following._anew`."""

    system: ChangedSystem
    steps: Array  # H, (d, c) int64
    fractions: Array  # F
    residual: Array  # R
    scale: int
    estimate: Array  # of the residual, in grid steps
    fits: bool  # whether R is below 2**61

    @classmethod
    def start(cls, system: ChangedSystem, right: Array, grid_bits: int, steps: Array, rests: Array) -> _Anew:
        """Begin with ``steps + rests``, whatever they are."""
        hardware, columns = system.hardware, steps.shape[1]
        whole = hardware.rint(rests)
        if not hardware.max_abs(whole) < _MOST_STEP / 4:
            raise NoProgressError
        steps = steps + hardware.int64(whole)
        width = system.width(columns)
        scale = min(30, width)
        fractions = hardware.int64(hardware.rint((rests - whole) * 2.0**scale))
        residual, estimate = right << grid_bits, hardware.float64(right) * 2.0**grid_bits
        error = hardware.max_abs(estimate)
        left, place = steps, 0
        while place == 0 or hardware.max_abs(hardware.float64(left)) > 0:  # digits from -2**(width-1) to 2**(width-1)
            rest = (left + (1 << (width - 1))) >> width
            product = system.product(left - (rest << width))
            residual = residual - (product << place)
            part = hardware.float64(product) * 2.0**place
            estimate, error = estimate - part, error + hardware.max_abs(part)
            left, place = rest, place + width
            if place > 62:
                break
        last = system.product(fractions)
        residual = (residual << scale) - last
        part = hardware.float64(last) * 2.0**-scale
        estimate, error = estimate - part, (error + hardware.max_abs(part)) * 2.0**-49  # a dozen roundings of 2**-53
        fits = (hardware.max_abs(estimate) + error) * 2.0**scale < 2.0**61
        return cls(system, steps, fractions, residual, scale, estimate, fits)

    def bounds(self) -> np.ndarray:
        """Return upper bounds on the norms of the columns of the residual, in grid steps."""
        self._floats = floats = self.system.hardware.float64(self.residual)
        norms = self.system.hardware.numpy((floats * floats).sum(0)) ** 0.5 * (1 + (self.system.size + 8) * 2.0**-52)
        with np.errstate(under="ignore"):
            return np.ldexp(norms, -self.scale)

    def step(self, precondition: Preconditioner) -> None:
        """Refine once, or raise `NoProgressError`. `bounds` was called before.

        Fractions stay between -1/2 and 1/2, so F is at most 2**57 before a block is added to it: `scale` is at most 58.
        A block is at most 2**61, because A times it is below 2**62 and A is at least 1. So F cannot wrap, however far
        off the guess was.
        """
        hardware = self.system.hardware
        before = hardware.max_abs(self._floats)
        correction = precondition(self._floats)
        finer = min(self.system.finer(correction), 62 - math.frexp(before)[1], 58 - self.scale)
        if finer < 0:
            raise NoProgressError
        block = hardware.int64(hardware.rint(correction * 2.0**finer))
        self.residual = (self.residual << finer) - self.system.product(block)
        self.scale += finer
        self._carry((self.fractions << finer) + block)
        if not hardware.max_abs(hardware.float64(self.residual)) * 2.0**-finer < before / 4:
            raise NoProgressError

    def _carry(self, fractions: Array) -> None:
        """Move whole steps from the fractions to the steps. The sum, and so the residual, stays the same."""
        whole = (fractions + (1 << (self.scale - 1))) >> self.scale
        self.steps, self.fractions = self.steps + whole, fractions - (whole << self.scale)

    def rounded(self) -> tuple[Array, Array]:
        """Return steps and rests; a rest is right to 2**-54."""
        self._carry(self.fractions)
        return self.steps, self.system.hardware.float64(self.fractions) * 2.0**-self.scale


def _picked(array: Array, columns: list[int]) -> Array:
    """Return columns of an array by position, -1 for zeros."""
    picked = array[:, [max(0, column) for column in columns]]
    picked[:, [place for place, column in enumerate(columns) if column < 0]] = 0
    return picked
