"""Matrices of fixed-point numbers with as many bits as a proof needs.

A matrix is a list of int64 *limbs*; limb k weighs ``2**(-22 k)``. After `normalise`, limbs 1, 2, ... lie in
``[-2**21, 2**21)``, so a product of two limbs is below 2**42 and 2,048 of them sum to at most 2**53: limbs
multiply exactly in float64.
"""

from __future__ import annotations

from fractions import Fraction

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

    def columns(self, columns: list[int]) -> FixedPoint:
        """Return some columns."""
        return FixedPoint([limb[:, columns] for limb in self.limbs], self.hardware)

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
        scale = LIMB * (len(self.limbs) - 1)
        return [
            Fraction(sum(part << (scale - k * LIMB) for k, part in enumerate(entry)), 1 << scale)
            for entry in zip(*(limb[:, column].tolist() for limb in self.limbs), strict=True)
        ]
