"""The exact residual of an approximate solution in grid steps, computed anew, whatever the solution is."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from neverseen.engine.preconditioning import NoProgressError
from neverseen.engine.systems import ChangedSystem, column_norms
from neverseen.hardware import Array

LEAST_SCALE = 8
"""Bits of a fraction with which a residual is computed anew. If there is no room for them, the guess is too far off."""
MOST_STEP = 2.0**60
"""No step comes near this: nothing that is added to it can leave 64 bits."""


@dataclass
class ExactResidual:
    """Steps and fractions, ``H + F 2**-scale``, and their exact residual ``R 2**-scale``.

    ``R = 2**(p + scale) B - A (2**scale H + F)`` is computed in integers modulo 2**64. It is also computed in floating
    point, with a bound on the error. The scale is so small that R has less than 61 bits by that estimate: then R is
    what it is modulo 2**64. F is refined as in `neverseen.engine.refinement`.
    """

    system: ChangedSystem
    steps: Array  # H, (d, c) int64
    fractions: Array  # F
    residual: Array  # R
    scale: int  # negative if the guess was so far off that there is no exact residual
    estimate: Array  # of the residual, in grid steps

    @classmethod
    def start(cls, system: ChangedSystem, right: Array, grid_bits: int, steps: Array, rests: Array) -> ExactResidual:
        """Begin with ``steps + rests``, whatever they are."""
        hardware = system.hardware
        whole = hardware.rint(rests)
        if not hardware.max_abs(whole) < MOST_STEP / 4:
            raise NoProgressError
        steps, rests = steps + hardware.int64(whole), rests - whole
        target = hardware.float64(right) * 2.0**grid_bits
        if hardware.integers:
            product, errors = system.approximate_product(hardware.float64(steps) + rests)
            estimate = target - product
            # The values were rounded to 2**-53: that counts as one more rounding of the product, and fits in its bound.
            error = float(errors.max(initial=0.0)) * 2 + 2.0**-50 * hardware.max_abs(target)
        else:
            residual, estimate, error = right << grid_bits, target, hardware.max_abs(target)
            width, left, place = system.width(steps.shape[1]), steps, 0
            while place == 0 or hardware.max_abs(hardware.float64(left)) > 0:  # digits of `width` bits, with signs
                rest = (left + (1 << (width - 1))) >> width
                product = system.product(left - (rest << width))
                residual = residual - (product << place)
                part = hardware.float64(product) * 2.0**place
                estimate, error = estimate - part, error + hardware.max_abs(part)
                left, place = rest, place + width
                if place > 62:
                    break
            # A dozen roundings of 2**-53; and the rests, which are at most 1/2.
            error = error * 2.0**-49 + system.largest
        largest = (hardware.max_abs(estimate) + error) * (1 + 1e-9)
        scale = min(30, 60 - math.frexp(largest)[1]) if largest < 2.0**60 else -1
        if not hardware.integers:
            scale = min(scale, system.width(steps.shape[1]))
        if scale < LEAST_SCALE:
            return cls(system, steps, steps, steps, -1, estimate)
        fractions = hardware.int64(hardware.rint(rests * 2.0**scale))
        if hardware.integers:
            residual = (right << (grid_bits + scale)) - system.wrapping_product((steps << scale) + fractions)
        else:
            residual = (residual << scale) - system.product(fractions)
        return cls(system, steps, fractions, residual, scale, estimate)

    def bounds(self) -> np.ndarray:
        """Return upper bounds on the norms of the columns of the residual, in grid steps."""
        self.floats = self.system.hardware.float64(self.residual)
        with np.errstate(under="ignore"):
            return np.ldexp(column_norms(self.floats, self.system.hardware) * (1 + 2.0**-52), -self.scale)

    def step(self, correction: Array) -> None:
        """Refine once by about A^-1 R, or raise `NoProgressError`. `bounds` was called before.

        Fractions stay between -1/2 and 1/2, so F is at most 2**57 before a block is added to it: `scale` is at most 58.
        A block is at most 2**61, because A times it is below 2**62 and A is at least 1. So F cannot wrap, however far
        off the guess was.
        """
        hardware = self.system.hardware
        before = hardware.max_abs(self.floats)
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

    def rounded(self, correction: Array | None) -> tuple[Array, Array]:
        """Return steps and rests, with a last correction in units of 2**-scale. A rest is right to 2**-52."""
        hardware = self.system.hardware
        self._carry(self.fractions)
        rests = hardware.float64(self.fractions) * 2.0**-self.scale
        if correction is None:
            return self.steps, rests
        rests = rests + correction * 2.0**-self.scale
        whole = hardware.rint(rests)
        if not hardware.max_abs(whole) <= 2.0:
            raise NoProgressError
        return self.steps + hardware.int64(whole), rests - whole
