"""Approximate inverses: they make the certified solve fast, and cannot make it wrong.

Everything here is ordinary floating point. A stale, imprecise or nonsensical preconditioner costs refinement steps, or
is given up; the weights stay the same (`neverseen.engine.solver`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from neverseen.hardware import Array, Hardware

MOST_CORRECTIONS = 2**8
"""Number of samples whose corrections are kept apart from the inverse. Merging more takes a pass over it."""


class NoProgressError(Exception):
    """The preconditioner does not contract."""


class Preconditioner(Protocol):
    """An approximate inverse of the system."""

    def __call__(self, right: Array) -> Array:
        """Return about ``A^-1 right``, for float64 of shape (d, c)."""


@dataclass(frozen=True)
class CholeskyFactor:
    """A Cholesky factor of the system or of one like it."""

    factor: Array
    hardware: Hardware

    def __call__(self, right: Array) -> Array:
        return self.hardware.cholesky_solve(self.factor, right)


class Corrections:
    """The corrections of an inverse, two rows of d numbers for each sample. Rows are only ever added.

    So the first rows can still be read while others add more, and corrections need no copies.
    """

    def __init__(self, size: int, hardware: Hardware) -> None:
        self.count = 0
        self.lefts, self.rights = (hardware.float64(hardware.zeros(MOST_CORRECTIONS, size)) for _ in range(2))

    def add(self, lefts: Array, rights: Array) -> None:
        """Add rows, (k, d) each."""
        part = slice(self.count, self.count + len(lefts))
        self.lefts[part], self.rights[part] = lefts, rights
        self.count += len(lefts)


@dataclass
class Owner:
    """Whether others may use the same matrix. If not, corrections are merged into it in place.

    The inverse that came before is useless then, and whoever goes on from there needs a full solve.
    """

    shares: bool = False


@dataclass(frozen=True)
class Inverse:
    """An explicit approximate inverse, such as the paper's Knowledge Tracking Matrix T, corrected for small changes.

    Let k samples with codes C be added or removed, with signs S of +1 or -1. By Woodbury's identity

        (A + C'SC)^-1 = A^-1 - Z K Z'   with Z = A^-1 C' and K = (S + C Z)^-1,

    and ``(A + C'SC)^-1 C' = Z K S``. So the inverse is a matrix and rows that correct it: ``T - L'R``, where ``Z K``
    are the columns of L' and ``Z`` those of R'.
    """

    matrix: Array  # T, (d, d)
    hardware: Hardware
    corrections: Corrections | None = None
    count: int = 0  # of the corrections that count here
    owner: Owner = field(default_factory=Owner)

    def __call__(self, right: Array) -> Array:
        hardware, found = self.hardware, self.hardware.symmetric_matmul(self.matrix, right)
        if self.corrections is None or not self.count:
            return found
        lefts, rights = self.corrections.lefts[: self.count], self.corrections.rights[: self.count]
        return found - hardware.matmul(lefts.T, hardware.matmul(rights, right))

    def after(self, codes: Array, signs: np.ndarray) -> tuple[Inverse, Array]:
        """Return the inverse after a change of samples, and about ``A'^-1 C'``, (d, k); codes are float64, (k, d).

        Raises `NoProgressError` if the core is singular or memory is short.
        """
        hardware = self.hardware
        try:
            images = self(hardware.contiguous(codes.T))  # Z, (d, k)
            core = hardware.matmul(codes, images)  # (k, k)
            hardware.add_to_diagonal(core, hardware.array(signs.astype(np.float64)))
            lefts = hardware.matmul(images, self._core_inverse(core, signs))  # Z K, (d, k)
            return self.corrected(lefts, images), lefts * hardware.array(signs.astype(np.float64))
        except (ValueError, RuntimeError, MemoryError) as error:
            raise NoProgressError from error

    def _core_inverse(self, core: Array, signs: np.ndarray) -> Array:
        """Return K. If all signs are the same, the core times the sign is positive definite: that is faster."""
        sign = int(signs[0])
        if abs(signs.sum()) == len(signs):
            factor = self.hardware.cholesky(core * sign)
            if factor is not None:
                return self.hardware.cholesky_inverse(factor) * sign
        return self.hardware.inverse(core)

    def corrected(self, lefts: Array, images: Array) -> Inverse:
        """Return the inverse less ``lefts @ images.T``, (d, k) each."""
        hardware, size, more = self.hardware, len(self.matrix), images.shape[1]
        if self.count + more > MOST_CORRECTIONS:
            matrix, ours = self.matrix, not self.owner.shares
            if self.corrections is not None and self.count:
                rows = self.corrections.lefts[: self.count], self.corrections.rights[: self.count]
                matrix, ours = hardware.less_product(matrix, rows[0].T, rows[1], overwrite=ours), True
            return Inverse(hardware.less_product(matrix, lefts, images.T, overwrite=ours), hardware)
        corrections = self.corrections
        if corrections is None or corrections.count != self.count:  # somebody else went on from here
            corrections = Corrections(size, hardware)
            if self.corrections is not None:
                corrections.add(self.corrections.lefts[: self.count], self.corrections.rights[: self.count])
        corrections.add(lefts.T, images.T)
        return Inverse(self.matrix, hardware, corrections, corrections.count, self.owner)


def explicit(precondition: Preconditioner, size: int, hardware: Hardware) -> Inverse:
    """Return a preconditioner as an explicit inverse; raise `NoProgressError` if memory is short."""
    if isinstance(precondition, Inverse):
        return precondition
    try:
        if isinstance(precondition, CholeskyFactor):
            return Inverse(hardware.cholesky_inverse(precondition.factor), hardware)
        return Inverse(precondition(hardware.array(np.eye(size))), hardware)
    except (ValueError, RuntimeError, MemoryError) as error:
        raise NoProgressError from error
