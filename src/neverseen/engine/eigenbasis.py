"""Bounds on RSS and freedom for any gamma, cheap ones, from a spectrum and the few samples that came or went since.

`neverseen.engine.strength` says what RSS and freedom are, and `neverseen.engine.spectrum` what Q, m, F and E. Let Q~ be
the orthogonal basis near Q named there, C the codes of the k samples since, and S their signs. In that basis the
system ``A = G + gamma I`` of the sums as they are now is

    diag(m + gamma) + U'S U + D,    U = C Q,    ||D|| <= 5 ||E|| + v (2 ||U|| + v).

U is computed in float64, with Q in place of Q~, so the rows of ``C Q~`` are off by ``v = ||C|| (||F|| + w ||Q||)`` at
most: the distance from Q to Q~ is at most ||F||, and w bounds the rounding of a product. In the same way
``T = Q'B`` is off by ``t = ||B|| (||F|| + w ||Q||)``.

**RSS.** Take any V, here about the solution in that basis. Its true residual has a norm of at most
``r = ||T - (diag(m + gamma) + U'S U) V|| + t + ||D|| ||V||`` and rounding. So, as in `neverseen.engine.strength`,

    RSS = Σ |y|**2 - <V, T> - gamma |V|**2,   but for   |V| (t + 3 r) + 2 r**2 / gamma.

**Freedom.** By Woodbury, ``X = N - N U'K U N`` is about the inverse of A, for ``N = diag(1 / (m + gamma))`` and K about
the inverse of ``L = S + U N U'``. Whatever K is, ``I - (diag(m + gamma) + U'S U) X = U'S (I - L K) U N``. Let e be a
bound on its norm. The norm of ``I - A X`` is at most ``e + ||D|| ||X||``, and ``||X|| <= (sqrt(d) + e) / (gamma -
||D||)``. So ``freedom = n - d + gamma trace X``, but for sqrt(d) times that norm.

All norms are roots of sums of squares of entries.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from neverseen.engine.spectrum import Spectrum, checked_product
from neverseen.engine.systems import column_norms
from neverseen.hardware import Array, Hardware, choose

Bounds = tuple[Fraction, Fraction]

_SLACK = 1 + 1e-9
"""For the rounding of a few sums of positive numbers."""


class Eigenbasis:
    """Bounds for the sums of so many samples, from the spectrum of earlier ones.

    Parameters
    ----------
    spectrum : Spectrum
        With the images of all samples (`Spectrum.settled`).
    cross : int64 array of shape (d, C)
    total : int
    squares : int
        ``Σ |y|**2``.

    Attributes
    ----------
    values : ndarray of shape (d,)
        m.
    error : float
        A bound on ||D||.
    turn : float
        A vector times Q, in float64, is off by this share of its norm at most.
    """

    def __init__(self, spectrum: Spectrum, cross: Array, total: int, squares: int, hardware: Hardware) -> None:
        self.values, self._signs, self._images = spectrum.values, spectrum.signs, spectrum.images
        self._total, self._squares, self._size = total, squares, len(spectrum.values)
        self._host = choose("numpy")
        floats = hardware.float64(cross)
        product = checked_product(spectrum.vectors.T, floats, hardware, rows=math.sqrt(1 + spectrum.tilt))
        self._right = hardware.numpy(product)  # T, (d, d) @ (d, C)
        self.turn = spectrum.tilt + rounding_of(self._size) * spectrum.length
        self._right_error = self.turn * _norm(column_norms(floats, hardware)) * _SLACK  # t
        shift = self.turn * math.sqrt(spectrum.squares) * _SLACK  # v
        self._length = _norm(self._images)
        self.error = (5 * spectrum.error + shift * (2 * self._length + shift)) * _SLACK  # of D

    def residual(self, gamma: int) -> Bounds | None:
        """Return bounds on RSS; None if there are none."""
        with np.errstate(all="ignore"):
            return _fractions(self._residual(float(gamma)))

    def freedom(self, gamma: int) -> Bounds | None:
        """Return bounds on freedom; None if there are none."""
        with np.errstate(all="ignore"):
            return _fractions(self._freedom(float(gamma)))

    def solution(self, gamma: float) -> tuple[np.ndarray, float]:
        """Return V, (d, C), and r: a bound on the norm of its true residual, which may be infinite or NaN."""
        ridged, right, images = (self.values + gamma)[:, None], self._right, self._images
        found, reached = right / ridged, np.zeros_like(right)
        if len(images):
            inner = _inverse(self._core(gamma)) @ (images @ found)  # (k, C)
            found -= (images.T @ inner) / ridged  # V; whatever it is, the rest is true
            reached = self._product(images.T, self._signs[:, None] * self._product(images, found))  # U'S U V
        image = ridged * found
        size = _norm(found)
        terms = _norm(image) + self._length**2 * size + _norm(right)
        rounding = rounding_of(self._size + len(images)) * terms
        return found, (_norm(right - image - reached) + rounding + self._right_error + self.error * size) * _SLACK

    def _residual(self, gamma: float) -> tuple[float, float]:
        right = self._right
        found, rest = self.solution(gamma)
        size, length = _norm(found), _norm(right)
        product, square = float((found * right).sum()), float((found * found).sum())
        centre = self._squares - product - gamma * square
        error = size * (self._right_error + 3 * rest) + 2 * rest**2 / gamma
        error += rounding_of(right.size) * (self._squares + size * length + gamma * size**2)
        return centre - error * _SLACK, centre + error * _SLACK

    def _freedom(self, gamma: float) -> tuple[float, float]:
        ridged, size, images = self.values + gamma, self._size, self._images
        off = self.error + 2.0**-52 * float(ridged.max(initial=0.0))  # of D, and of the sum
        if not (off < gamma / 2 and ridged.min(initial=math.inf) > 0):
            return -math.inf, math.inf
        trace = total = float((1 / ridged).sum())
        defect = 0.0
        if len(images):
            core = self._core(gamma)
            inverse, count = _inverse(core), len(core)
            weight = _norm(images / np.sqrt(ridged)) ** 2  # the trace of U N U', which is no smaller than its norm
            narrow, width, reach = images / ridged, math.sqrt(count), _norm(inverse)  # U N
            spread, unit = _norm(narrow), rounding_of(size + 4 * count)
            left = _norm(np.eye(count) - self._product(core, inverse)) + unit * (width + (1 + weight + width) * reach)
            trace -= float((self._product(inverse, narrow) * narrow).sum())
            defect = self._length * left * spread * _SLACK  # e
            total += 2 * reach * spread**2 * count
        whole = (math.sqrt(size) + defect) / (gamma - off)  # more than ||X||
        error = math.sqrt(size) * (defect + off * whole) + rounding_of(0) * (self._total + size)
        error += gamma * rounding_of(size + 2 * len(images)) * total
        centre = self._total - size + gamma * trace
        return centre - error * _SLACK, centre + error * _SLACK

    def _core(self, gamma: float) -> np.ndarray:
        """Return about L, (k, k)."""
        core = self._product(self._images, (self._images / (self.values + gamma)).T)
        core[np.diag_indices(len(core))] += self._signs
        return core

    def _product(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        found: np.ndarray = checked_product(left, right, self._host)  # type: ignore[assignment]
        return found


def rounding_of(terms: int) -> float:
    """Return a bound on the rounding of a sum of so many products, relative to the sum of their magnitudes."""
    return (terms + 16) * 2.0**-52


def _inverse(core: np.ndarray) -> np.ndarray:
    """Return about the inverse; zeros if there is none."""
    try:
        return np.linalg.inv(core)
    except np.linalg.LinAlgError:
        return np.zeros_like(core)


def _norm(array: np.ndarray) -> float:
    """Return the root of the sum of the squares, and a little more."""
    return math.sqrt(float((array * array).sum())) * _SLACK


def _fractions(bounds: tuple[float, float]) -> Bounds | None:
    if not all(map(math.isfinite, bounds)):
        return None
    return Fraction(bounds[0]), Fraction(bounds[1])
