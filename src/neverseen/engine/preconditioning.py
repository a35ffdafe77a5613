"""Approximate inverses: what makes the certified solve fast, and cannot make it wrong.

Everything here is ordinary floating point. A preconditioner that is stale, imprecise or nonsense costs refinement
steps or is given up; the weights stay the same (`neverseen.engine.solver`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from neverseen.hardware import Array, Hardware

MERGED = 2**8
"""Samples, come one by one, whose corrections are merged into one."""
LEAST_SIZE = 2**11
"""Codes from which on to correct an older factor is faster than to make a new one."""


class NoProgressError(Exception):
    """The preconditioner at hand does not contract."""


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


@dataclass(frozen=True)
class ApproximateInverse:
    """An explicit approximate inverse, such as the paper's Knowledge Tracking Matrix T."""

    matrix: Array
    hardware: Hardware

    def __call__(self, right: Array) -> Array:
        return self.hardware.matmul(self.matrix, right)


@dataclass(frozen=True)
class Corrected:
    """An inverse of an older system, corrected for the samples that came and went since (Woodbury).

    ``(A0 + C'SC)^-1 = A0^-1 - Z (S + C Z)^-1 Z'`` with ``Z = A0^-1 C'``, for signs S. The older inverse may be one that
    was corrected itself.
    """

    base: Preconditioner
    images: Array  # Z, (d, m)
    core: Array  # S + C Z, (m, m)
    inverse: Array  # of the core
    hardware: Hardware

    def __call__(self, right: Array) -> Array:
        inner = self.hardware.matmul(self.inverse, self.hardware.matmul(self.images.T, right))  # (m, c)
        return self.base(right) - self.hardware.matmul(self.images, inner)

    def latest(self, signs: np.ndarray) -> Array:
        """Return about ``A^-1 C'`` for the samples corrected for last, without a solve: ``Z (S + C Z)^-1 S``."""
        columns = self.inverse[:, -len(signs) :] * self.hardware.array(signs.astype(np.float64))  # (m, k)
        return self.hardware.matmul(self.images, columns)  # (d, k)


def corrected(current: Preconditioner, codes: Array, signs: np.ndarray, hardware: Hardware) -> Corrected:
    """Return `current` corrected for more samples; `codes` is float64 of shape (k, d), `signs` +1 or -1.

    Small corrections are merged with the last one, large ones stand on it. Raises `NoProgressError` where that cannot
    be done: the core is singular, or memory is short.
    """
    try:
        return _corrected(current, codes, signs, hardware)
    except (ValueError, RuntimeError, MemoryError) as error:
        raise NoProgressError from error


def _corrected(current: Preconditioner, codes: Array, signs: np.ndarray, hardware: Hardware) -> Corrected:
    last = current if isinstance(current, Corrected) and len(current.core) + len(signs) <= MERGED else None
    base = current if last is None else last.base
    images = base(hardware.contiguous(codes.T))  # (d, k)
    core = hardware.matmul(codes, images)  # (k, k)
    hardware.add_to_diagonal(core, hardware.array(signs.astype(np.float64)))
    if last is not None:
        side = hardware.matmul(codes, last.images)  # (k, m): C Z_old = (C_old Z)'
        above, below = (hardware.concatenate(pair, 1) for pair in ([last.core, side.T], [side, core]))
        core, images = hardware.concatenate([above, below], 0), hardware.concatenate([last.images, images], 1)
    return Corrected(base, images, core, hardware.inverse(core), hardware)


def can_correct(current: Preconditioner, samples: int, size: int) -> bool:
    """Return whether to correct an inverse for so many more samples is faster than a new factor."""
    return size >= LEAST_SIZE and samples <= size // 16 and rank(current) + samples <= size // 4


def rank(preconditioner: Preconditioner) -> int:
    """Return how many samples an inverse has been corrected for."""
    total = 0
    while isinstance(preconditioner, Corrected):
        total, preconditioner = total + len(preconditioner.core), preconditioner.base
    return total
