"""Matrices of fixed-point numbers with as many bits as a proof needs.

A matrix is a list of int64 *limbs*; limb k weighs ``2**(-22 k)``. After `normalise`, limbs 1, 2, ... lie in
``[-2**21, 2**21)``, so a product of two limbs is below 2**42 and 2,048 of them sum to at most 2**53: limbs
multiply exactly in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from neverseen.engine.arithmetic import exact_matmul
from neverseen.hardware import Array, Hardware

LIMB = 22
_HALF = 1 << (LIMB - 1)


class FixedPoint:
    """A matrix of fixed-point numbers.

    Examples
    --------
    >>> from neverseen.hardware import choose
    >>> x = FixedPoint.zeros(1, 1, hardware=choose("numpy"))
    >>> x.add(x.hardware.zeros(1, 1) + 5, 3)     # 5/8
    >>> x.exactly(0, 0, 22) / 2**22
    0.625
    """

    def __init__(self, limbs: list[Array], hardware: Hardware) -> None:
        self.limbs, self.hardware = limbs, hardware

    @classmethod
    def zeros(cls, *shape: int, hardware: Hardware) -> FixedPoint:
        """Return a matrix of zeros."""
        return cls([hardware.zeros(*shape)], hardware)

    def add(self, block: Array, scale: int) -> None:
        """Add ``block * 2**-scale``, for int64 up to 2**40 in magnitude.

        The block moves up by at most 21 bits to meet its limb: at most 2**61, and a limb takes 2 before `normalise`.
        """
        position = -(-scale // LIMB)
        while len(self.limbs) <= position:
            self.limbs.append(self.hardware.zeros(*block.shape))
        self.limbs[position] = self.limbs[position] + (block << (position * LIMB - scale))
        self.normalise(position)

    def normalise(self, last: int | None = None) -> None:
        """Carry upwards from limb `last`, so that all limbs up to it but the first lie in ``[-2**21, 2**21)``."""
        carry: Array | None = None
        for k in range(len(self.limbs) - 1 if last is None else last, 0, -1):
            limb = self.limbs[k] if carry is None else self.limbs[k] + carry
            carry = limb + _HALF
            carry >>= LIMB
            self.limbs[k] = limb - (carry << LIMB)  # a new array: others may share the old one
        if carry is not None:
            self.limbs[0] = self.limbs[0] + carry

    def truncated(self, limbs: int) -> FixedPoint:
        """Return the first `limbs` limbs; each entry moves by less than ``2**(-22 (limbs - 1))``."""
        return FixedPoint(self.limbs[:limbs], self.hardware)

    def copied(self) -> FixedPoint:
        """Return a copy that shares no memory."""
        return FixedPoint([limb + 0 for limb in self.limbs], self.hardware)

    def beside(self, other: FixedPoint) -> FixedPoint:
        """Return the columns of this and then those of another."""
        return self._joined(other, 1)

    def above(self, other: FixedPoint) -> FixedPoint:
        """Return the rows of this and then those of another."""
        return self._joined(other, 0)

    def _joined(self, other: FixedPoint, axis: int) -> FixedPoint:
        depth = max(len(self.limbs), len(other.limbs))
        parts = [
            [*part.limbs, *[self.hardware.zeros(*part.limbs[0].shape)] * (depth - len(part.limbs))]
            for part in (self, other)
        ]
        return FixedPoint(
            [self.hardware.concatenate(list(pair), axis) for pair in zip(*parts, strict=True)], self.hardware
        )

    def nearest_floats(self) -> Array:
        """Return the values as float64, right to a few units of the last place (2**-51 relative, once normalised).

        Limbs are added from the last to the first; each sum is at most about half a unit of the next limb, so rounding
        errors of the early sums are far below those of the last two.
        """
        total = self.hardware.float64(self.limbs[-1])
        for limb in reversed(self.limbs[:-1]):
            total = total * 2.0**-LIMB + self.hardware.float64(limb)
        return total

    def columns(self, columns: list[int]) -> FixedPoint:
        """Return some columns, -1 standing for a column of zeros."""
        picked = []
        for limb in self.limbs:
            part = (
                limb[:, [max(0, column) for column in columns]]
                if limb.shape[1]
                else self.hardware.zeros(len(limb), len(columns))
            )
            for place, column in enumerate(columns):
                if column < 0:
                    part[:, place] = 0
            picked.append(part)
        return FixedPoint(picked, self.hardware)

    def set_columns(self, columns: list[int], values: FixedPoint) -> None:
        """Replace some columns."""
        while len(self.limbs) < len(values.limbs):
            self.limbs.append(self.hardware.zeros(*self.limbs[0].shape))
        for k, limb in enumerate(self.limbs):
            limb[:, columns] = values.limbs[k] if k < len(values.limbs) else 0

    def floor_and_fraction(self, scale: int) -> tuple[Array, Array]:
        """Return the values times ``2**scale`` as an integer part and a float64 rest.

        The rest lies in (-0.3, 1] and is known to 2**-50. The integer part is exact if it is below 2**62.
        """
        whole, rest = divmod(scale, LIMB)  # limbs 0..whole are integers on this grid
        limbs = self.limbs
        integer = self.hardware.zeros(*limbs[0].shape)
        for k in range(min(whole + 1, len(limbs))):
            integer = integer + (limbs[k] << (scale - k * LIMB))
        fraction = self.hardware.float64(self.hardware.zeros(*limbs[0].shape))
        for k in range(min(len(limbs) - 1, whole + 4), whole + 1, -1):  # smallest first; later ones are below 2**-66
            fraction = (fraction + self.hardware.float64(limbs[k])) * 2.0**-LIMB
        if len(limbs) > whole + 1:
            cut = LIMB - rest  # the limb that the grid cuts: its top bits are whole steps
            limb = limbs[whole + 1]
            integer = integer + (limb >> cut)
            fraction = (self.hardware.float64(limb & ((1 << cut) - 1)) + fraction) * 2.0**-cut
        return integer, fraction

    def exactly(self, row: int, column: int, scale: int) -> int:
        """Return one entry times ``2**scale`` as a Python integer; `scale` is at least 22 a limb after the first."""
        return sum(int(limb[row, column]) << (scale - k * LIMB) for k, limb in enumerate(self.limbs))

    def column_exactly(self, column: int) -> list[Fraction]:
        """Return one column as fractions."""
        return self._exactly([limb[:, column] for limb in self.limbs])

    def row_exactly(self, row: int) -> list[Fraction]:
        """Return one row as fractions."""
        return self._exactly([limb[row] for limb in self.limbs])

    def picked_plus_product(
        self, rows: list[int], columns: list[int], left: FixedPoint, right: FixedPoint
    ) -> list[Fraction]:
        """Return entries of ``self + left @ right``, exactly.

        Limbs of `left` and `right` are up to 2**21 in magnitude and multiply in int64: with inner dimension m and at
        most k limbs, a sum of products is at most ``m k 2**42``, which is below 2**62 for ``m k <= 2**20``.
        """
        numpy = self.hardware.numpy
        lefts = [numpy(limb[rows]) for limb in left.limbs]  # (e, m) each
        rights = [numpy(limb[:, columns]).T for limb in right.limbs]
        totals = [np.zeros(len(rows), np.int64) for _ in range(max(len(self.limbs), len(lefts) + len(rights) - 1))]
        for k, limb in enumerate(self.limbs):
            totals[k] += numpy(limb[rows, columns])
        for i, one in enumerate(lefts):
            for j, other in enumerate(rights):
                totals[i + j] += np.einsum("em,em->e", one, other)
        return self._exactly(totals)

    def _exactly(self, lines: Sequence[Array]) -> list[Fraction]:
        scale = LIMB * (len(lines) - 1)
        return [
            Fraction(sum(part << (scale - k * LIMB) for k, part in enumerate(entry)), 1 << scale)
            for entry in zip(*(line.tolist() for line in lines), strict=True)
        ]

    def after_codes(self, codes: Array) -> FixedPoint:
        """Return ``codes @ self`` exactly, for int64 codes of shape (m, d) in -127..127.

        ``127 * d * 2**22 <= 2**53`` for d up to 2**24, if the first limb is below 2**22 like the others.
        """
        product = FixedPoint([exact_matmul(codes, limb, self.hardware) for limb in self.limbs], self.hardware)
        product.normalise()
        return product

    def add_product(self, left: FixedPoint, right: FixedPoint, limbs: int) -> None:
        """Add ``left @ right`` to the first `limbs` limbs.

        Exact but for the terms that belong to later limbs, which are dropped: with inner dimension m, at most ``m *
        limbs * 2**42`` units of ``2**(-22 limbs)`` in each entry, times ``1 + 2**-20`` for those still further
        down. Needs ``m * limbs <= 2**11`` and first limbs up to 2**21 in magnitude.
        """
        hardware = self.hardware
        lefts, rights = left.limbs[:limbs], right.limbs[:limbs]
        while len(self.limbs) < limbs:
            self.limbs.append(hardware.zeros(*self.limbs[0].shape))
        for k in range(limbs):
            pairs = [(i, k - i) for i in range(len(lefts)) if 0 <= k - i < len(rights)]
            if pairs:
                wide = hardware.concatenate([lefts[i] for i, _ in pairs], 1)  # (d, pairs * m)
                tall = hardware.concatenate([rights[j] for _, j in pairs], 0)  # (pairs * m, C)
                self.limbs[k] = self.limbs[k] + exact_matmul(wide, tall, hardware)
        self.normalise()
