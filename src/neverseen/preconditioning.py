"""Approximate inverses: what makes the certified solve fast, and cannot make it wrong.

Everything here is ordinary floating point. A preconditioner that is stale, imprecise or nonsense costs refinement
steps or is given up; the weights stay the same (`neverseen.solver`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from neverseen.hardware import Array, Hardware, contiguous


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
    """A factor of an older system, corrected for the samples that came and went since (Woodbury).

    ``(A0 + C'SC)^-1 = A0^-1 - Z (S + C Z)^-1 Z'`` with ``Z = A0^-1 C'``, for signs S.
    """

    base: Preconditioner
    images: Array  # Z, (d, m)
    core: np.ndarray  # S + C Z, (m, m)
    hardware: Hardware

    def __call__(self, right: Array) -> Array:
        inner = self.hardware.numpy(self.hardware.matmul(self.images.T, right))  # (m, c)
        solved = self.hardware.solve(self.core, inner)
        return self.base(right) - self.hardware.matmul(self.images, self.hardware.array(solved))

    def latest(self, signs: np.ndarray) -> Array:
        """Return about ``A^-1 C'`` for the samples corrected for last, without a solve: ``Z (S + C Z)^-1 S``."""
        place = np.zeros((len(self.core), len(signs)))
        place[-len(signs) :] = np.diag(signs)
        return self.hardware.matmul(self.images, self.hardware.array(self.hardware.solve(self.core, place)))  # (d, k)


def corrected(current: Preconditioner, codes: Array, signs: np.ndarray, hardware: Hardware) -> Corrected:
    """Return `current` corrected for more samples; `codes` is float64 of shape (k, d), `signs` +1 or -1."""
    if not isinstance(current, Corrected):
        images = current(contiguous(codes.T))
        return Corrected(current, images, np.diag(signs) + hardware.numpy(hardware.matmul(codes, images)), hardware)
    images = current.base(contiguous(codes.T))  # (d, k)
    corner = np.diag(signs) + hardware.numpy(hardware.matmul(codes, images))  # (k, k)
    side = hardware.numpy(hardware.matmul(codes, current.images))  # (k, m): C Z_old = (C_old Z)'
    core = np.block([[current.core, side.T], [side, corner]])
    return Corrected(current.base, hardware.concatenate([current.images, images], 1), core, hardware)
