"""The eigenvalues of a Gram matrix, each in a proven interval.

A float64 decomposition ``G ~ Q diag(m) Q'`` is a guess. Two products tell how good it is:

    F = Q'Q - I   and   T = G Q - Q diag(m).

Let M = Q'G Q. Then ``M = diag(m) + E`` with ``E = F diag(m) + Q'T``. So (Weyl) no eigenvalue of M, in descending order,
is further from the estimate of its place than ``||E||``. And (Ostrowski) each eigenvalue of G, times a number between
``1 - ||F||`` and ``1 + ||F||``, is the eigenvalue of M in its place.

So in an orthogonal basis near Q, G is ``diag(m)`` but for a matrix of norm ``5 ||E||`` at most: let H be the root of
Q'Q, and ``H^-1 = I + J``. The basis is ``Q H^-1``, and there G is ``H^-1 M H^-1 = diag(m) + J diag(m) + diag(m) J +
J diag(m) J + H^-1 E H^-1``. Where ``||F|| < 1/2``, ``||J diag(m)|| <= ||F diag(m)||``, because J is F times a function
of F that is below 1; ``||J|| < 1/2`` and ``||H^-1||**2 <= 2``. The bound on ``||E||`` counts ``||F diag(m)||`` too.

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
from neverseen.hardware import INT8_PRODUCT, Array, Hardware

_FEW = 16
"""Changes that are always few."""
_SLACK = 1e-9
"""More than the rounding errors of a few sums of up to 2**20 positive numbers, relative to the sum."""


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues with proven bounds, and approximate eigenvectors; and the samples added or removed since.

    Attributes
    ----------
    vectors : float64 array of shape (d, d)
        Q.
    values : ndarray of shape (d,)
        The estimates m, descending.
    lows, highs : ndarray of shape (d,)
        The eigenvalue in each place lies between these. No bound is negative.
    tilt, error : float
        Bounds on the norms of F and E.
    total : int
        The number of samples in the sums. At most so many eigenvalues are not 0.
    signs : ndarray of shape (k,)
        +1 for each sample that was added to the sums since, and -1 for each that was removed.
    images : ndarray of shape (at most k, d)
        About the codes of the first of these samples times Q.
    squares : int
        The sum of the squares of all these codes, and more.
    waiting : tuple of Array
        The codes of the others.
    """

    vectors: Array
    values: np.ndarray
    lows: np.ndarray
    highs: np.ndarray
    tilt: float
    error: float
    hardware: Hardware
    total: int
    signs: np.ndarray
    images: np.ndarray
    squares: int = 0
    waiting: tuple[Array, ...] = ()

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
        signs, images = np.zeros(0), np.zeros((0, len(values)))
        return cls(vectors, values, lows, highs, shares, error, hardware, total, signs, images)

    def after(self, codes: Array, sign: int) -> Spectrum | None:
        """Return the same, for sums to which samples were added (+1) or from which they were removed (-1).

        Returns None if there were more changes in all than pay off: an eighth of the number of eigenvalues.
        """
        signs = np.concatenate([self.signs, np.full(len(codes), float(sign))])
        if len(signs) > max(_FEW, len(self.values) // 8):
            return None
        squares = self.squares + INT8_PRODUCT * codes.shape[0] * codes.shape[1]
        return replace(self, signs=signs, squares=squares, waiting=(*self.waiting, codes))

    def settled(self) -> Spectrum:
        """Return the same with the images of all samples."""
        if not self.waiting:
            return self
        hardware, codes = self.hardware, self.waiting
        block = hardware.float64(codes[0] if len(codes) == 1 else hardware.concatenate(list(codes), 0))
        images = hardware.numpy(checked_product(block, self.vectors, hardware, whole=self.length))  # (w, d) @ (d, d)
        return replace(self, images=np.concatenate([self.images, images]), waiting=())

    @property
    def length(self) -> float:
        """A bound on the Frobenius norm of Q: its square is the trace of Q'Q, which is d and the trace of F."""
        return math.sqrt(len(self.values) * (1 + self.tilt))

    @property
    def is_current(self) -> bool:
        """Whether the sums have not changed since."""
        return not len(self.signs)

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
        removed = int((self.signs < 0).sum())
        return Fraction(low) - removed, Fraction(high) + len(self.signs) - removed

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

    angles = checked_product(hardware.contiguous(vectors.T), vectors, hardware)
    hardware.add_to_diagonal(angles, -1.0)
    apart = (column_norms(angles, hardware) + unit * lengths * whole) * (1 + _SLACK)  # (d,): columns of F
    shares = math.sqrt(float((apart**2).sum())) * (1 + _SLACK)

    # |G| |q| is at most the largest row sum of |G| times |q|: a symmetric matrix has no larger norm.
    reach = float(hardware.row_sums(gram).max(initial=0.0)) * (1 + _SLACK)
    images = checked_product(matrix, vectors, hardware) - vectors * hardware.array(values[None, :])
    off = column_norms(images, hardware) + unit * (reach + np.abs(values)) * lengths  # (d,): columns of T
    left = math.sqrt(float((off**2).sum())) * math.sqrt(1 + shares)
    return shares, (math.sqrt(float(((apart * values) ** 2).sum())) + left) * (1 + _SLACK)


def checked_product(
    left: Array, right: Array, hardware: Hardware, *, rows: float | None = None, whole: float | None = None
) -> Array:
    """Return a float64 product; raise `HardwareError` if random signs of its columns show more than rounding.

    Bounds on the norms of the rows on the left, and on the Frobenius norm on the right, save time if they are known.
    """
    columns = right.shape[1]
    size = max(len(right), columns)
    drawn = np.frombuffer(os.urandom(columns), np.int8) < 0
    signs = hardware.array(np.where(drawn, -1.0, 1.0)[:, None])
    product = hardware.matmul(left, right)
    seen, expected = hardware.matmul(product, signs), hardware.matmul(left, hardware.matmul(right, signs))
    reach = column_norms(hardware.contiguous(left.T), hardware) if rows is None else np.full(len(left), rows)
    if whole is None:
        whole = math.sqrt(float((column_norms(right, hardware) ** 2).sum()))
    off = np.abs(hardware.numpy(seen - expected)[:, 0])
    if not (off <= (size + 8) * 2.0**-49 * math.sqrt(size) * whole * reach + 2.0**-900).all():  # also refuses NaN
        raise HardwareError("a float64 product computed on this machine is wrong beyond rounding; nothing was changed")
    return product
