"""The eigenvalues of a Gram matrix, each in a proven interval.

A float64 decomposition ``G ~ Q diag(m) Q'`` is a guess. Two products tell how good it is:

    F = Q'Q - I   and   T = G Q - Q diag(m).

Let M = Q'G Q. Then ``M = diag(m) + E`` with ``E = F diag(m) + Q'T``. So (Weyl) no eigenvalue of M, in descending order,
is further from the estimate of its place than ``||E||``. And (Ostrowski) each eigenvalue of G, times a number between
``1 - ||F||`` and ``1 + ||F||``, is the eigenvalue of M in its place.

F and T are computed in float64. An entry of a product of two d x d matrices is off by at most ``d 2**-52`` times the
product of the norms of its row and its column, in any order of summation, with fused operations or without. The norms
here are roots of sums of squares of entries, which are no smaller than spectral norms.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from neverseen.engine.systems import column_norms
from neverseen.errors import HardwareError
from neverseen.hardware import Array, Hardware

_SLACK = 1e-9
"""More than the rounding errors of a few sums of up to 2**20 positive numbers, relative to the sum."""


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues with proven bounds, and approximate eigenvectors.

    Attributes
    ----------
    vectors : float64 array of shape (d, d)
        Q.
    values : ndarray of shape (d,)
        The estimates m, descending.
    lows, highs : ndarray of shape (d,)
        The eigenvalue in each place lies between these. No bound is negative.
    total : int
        The number of samples in the sums. At most so many eigenvalues are not 0.
    added, removed : int
        The numbers of samples added to the sums and removed from them since.
    """

    vectors: Array
    values: np.ndarray
    lows: np.ndarray
    highs: np.ndarray
    hardware: Hardware
    total: int
    added: int = 0
    removed: int = 0

    @classmethod
    def of(cls, gram: Array, total: int, hardware: Hardware) -> Spectrum | None:
        """Return the spectrum of a Gram matrix of so many samples, or None if no decomposition was found.

        Costs a decomposition and two products of (d, d) by (d, d).
        """
        matrix = hardware.float64(gram)
        try:
            values, columns = np.linalg.eigh(hardware.numpy(matrix))
        except np.linalg.LinAlgError:
            return None
        values, vectors = values[::-1].copy(), hardware.array(np.array(columns[:, ::-1], order="C"))
        if not (np.isfinite(columns).all() and (values[1:] <= values[:-1]).all()):
            return None
        with np.errstate(all="ignore"):  # nothing is known of what was found
            shares, error = _errors(gram, matrix, values, vectors, hardware)
        if not (shares < 0.5 and math.isfinite(error)):
            return None
        lows = np.maximum(values - error, 0.0) / (1 + shares) * (1 - _SLACK)
        highs = np.maximum(values + error, 0.0) / (1 - shares) * (1 + _SLACK)
        return cls(vectors, values, lows, highs, hardware, total)

    def after(self, added: int, removed: int) -> Spectrum:
        """Return the same, for sums to which samples were added and from which others were removed."""
        return replace(self, added=self.added + added, removed=self.removed + removed)

    @property
    def is_current(self) -> bool:
        """Whether the sums have not changed since."""
        return not (self.added or self.removed)

    def freedom(self, gamma: int) -> tuple[Fraction, Fraction]:
        """Return bounds on ``n - trace(G (G + gamma I)^-1)``, the samples less the effective number of weights.

        It is ``n - r + Σ gamma / (l + gamma)`` over the eigenvalues l of G in the first ``r = min(n, d)`` places. The
        others are 0, because G is a sum of n matrices of rank 1. It is also ``Σ gamma / (k + gamma)`` over the n
        eigenvalues k of C C', where the rows of C are the codes. One more sample borders C C'. Then the eigenvalues
        interlace (Cauchy), so the sum grows, and by at most 1.
        """
        places = min(self.total, len(self.values))
        spare, ridge = self.total - places, float(gamma)
        low = (spare + float((ridge / (self.highs[:places] + ridge)).sum())) * (1 - _SLACK)
        high = (spare + float((ridge / (self.lows[:places] + ridge)).sum())) * (1 + _SLACK)
        return Fraction(low) - self.removed, Fraction(high) + self.added

    def inverse(self, gamma: int) -> SpectralInverse:
        """Return about the inverse of ``G + gamma I``."""
        scales = 1.0 / (np.maximum(self.values, 0.0) + float(gamma))
        return SpectralInverse(self.vectors, self.hardware.array(scales[:, None]), self.hardware)


@dataclass(frozen=True)
class SpectralInverse:
    """The approximate inverse ``Q diag(1 / (m + gamma)) Q'``: a preconditioner."""

    vectors: Array
    scales: Array  # (d, 1)
    hardware: Hardware

    def __call__(self, right: Array) -> Array:
        """Return the product with float64 of shape (d, c)."""
        turned = self.hardware.matmul(self.vectors.T, right)  # (d, c)
        return self.hardware.matmul(self.vectors, turned * self.scales)


def _errors(gram: Array, matrix: Array, values: np.ndarray, vectors: Array, hardware: Hardware) -> tuple[float, float]:
    """Return bounds on the norms of F and E."""
    size = len(values)
    unit = (size + 16) * 2.0**-52  # of a product, with conversions and a few more operations
    lengths = column_norms(vectors, hardware)
    whole = math.sqrt(float((lengths**2).sum())) * (1 + _SLACK)  # Frobenius norm of Q

    angles = _checked_product(hardware.contiguous(vectors.T), vectors, hardware)
    hardware.add_to_diagonal(angles, -1.0)
    apart = (column_norms(angles, hardware) + unit * lengths * whole) * (1 + _SLACK)  # (d,): columns of F
    shares = math.sqrt(float((apart**2).sum())) * (1 + _SLACK)

    # |G| |q| is at most the largest row sum of |G| times |q|: a symmetric matrix has no larger norm.
    reach = float(hardware.row_sums(gram).max(initial=0.0)) * (1 + _SLACK)
    images = _checked_product(matrix, vectors, hardware) - vectors * hardware.array(values[None, :])
    off = column_norms(images, hardware) + unit * (reach + np.abs(values)) * lengths  # (d,): columns of T
    left = math.sqrt(float((off**2).sum())) * math.sqrt(1 + shares)
    return shares, (math.sqrt(float(((apart * values) ** 2).sum())) + left) * (1 + _SLACK)


def _checked_product(left: Array, right: Array, hardware: Hardware) -> Array:
    """Return a float64 product; raise `HardwareError` if random signs of its columns show more than rounding."""
    size = len(right)
    drawn = np.frombuffer(os.urandom(size), np.int8) < 0
    signs = hardware.array(np.where(drawn, -1.0, 1.0)[:, None])
    product = hardware.matmul(left, right)
    seen, expected = hardware.matmul(product, signs), hardware.matmul(left, hardware.matmul(right, signs))
    rows = column_norms(hardware.contiguous(left.T), hardware)  # (d,)
    whole = math.sqrt(float((column_norms(right, hardware) ** 2).sum()))
    off = np.abs(hardware.numpy(seen - expected)[:, 0])
    if not (off <= (size + 8) * 2.0**-49 * math.sqrt(size) * whole * rows + 2.0**-900).all():  # also refuses NaN
        raise HardwareError("a float64 product computed on this machine is wrong beyond rounding; nothing was changed")
    return product
