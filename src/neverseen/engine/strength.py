"""The choice of gamma: a pure function of the sums, by generalised cross-validation.

For n samples let ``A = G + gamma I``, ``W = A^-1 B`` and

    RSS = Σ |y - c W|**2,   freedom = n - trace(G A^-1),   GCV = n RSS / freedom**2.

Section 5.2 of ``docs/specification.md`` names the candidates, powers of two, and scores each with
``round(16 log2 GCV)``. The smallest score wins, and among equals the largest gamma.

Why it is the same everywhere
-----------------------------
GCV is rational. Where a score changes to the next, ``16 log2 GCV`` is half an odd integer, and GCV would be an
irrational root of 2. So GCV is never there, and an interval around it that is small enough decides the score. Nothing
else decides here.

How RSS is bounded
------------------
Take any X, and let ``R = B - A X``, which is computed exactly. With ``W = X + A^-1 R``,

    trace(B'W) = <X, B> + <X, R> + trace(R'A^-1 R),     0 <= trace(R'A^-1 R) <= |R|**2 / gamma,
    | |W|**2 - |X|**2 | <= 2 |X| |R| / gamma + |R|**2 / gamma**2,
    RSS = Σ |y|**2 - trace(B'W) - gamma |W|**2.

The products ``<,>`` are computed in integers. Refinement shrinks R without end.

How freedom is bounded
----------------------
By the eigenvalues of G (`neverseen.engine.spectrum`), for all candidates at once. Where that is not enough, by the
inverse of A itself, refined in the same way: ``freedom = n - d + gamma trace A^-1``, and with ``R = I - A X``,
``|trace A^-1 - trace X| <= sqrt(d) |R| / gamma``.

What comes first
----------------
From the eigenvectors follow bounds on both, in float64, for any candidate at little cost
(`neverseen.engine.eigenbasis`). They nearly always decide, also when a few samples came or went since the eigenvectors
were computed.

Which candidates are looked at
------------------------------
RSS grows with gamma, and no faster than its square: it is a sum of squares, each times ``(gamma / (k + gamma))**2`` for
an eigenvalue k. So what is known of one candidate bounds all others. The next to look at is always the one that could
win.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from neverseen.engine.eigenbasis import Bounds, Eigenbasis
from neverseen.engine.fixedpoint import LIMB
from neverseen.engine.preconditioning import CholeskyFactor, NoProgressError, Preconditioner
from neverseen.engine.rational import eliminated
from neverseen.engine.refinement import RATIONAL_SIZE, Refinement
from neverseen.engine.spectrum import Spectrum
from neverseen.engine.systems import IntegerSystem
from neverseen.errors import IllConditionedError, InputError
from neverseen.hardware import Array, Hardware

MOST_EXPONENT = 40
STEPS = 16
"""Scores are in parts of an octave: candidates within about four per cent of each other may be equal."""
_BELOW = 16
"""Bits of the mean of the diagonal of G that the smallest candidate may be below it."""

Digits = list[tuple[Array, int]]


class Sums(NamedTuple):
    """Sums over samples."""

    gram: Array  # int64 (d, d)
    cross: Array  # int64 (d, C)
    total: int  # number of samples, at least 1
    squares: int  # Σ |y|**2
    hardware: Hardware


class Strength(NamedTuple):
    """A chosen gamma, and what the next choice can start from."""

    gamma: int
    spectrum: Spectrum | None


def candidates(trace: int, size: int) -> list[int]:
    """Return the candidates, ascending: from ``2**-16`` of the mean of the diagonal of G, roughly, to its sum.

    Examples
    --------
    >>> candidates(300, 2)
    [1, 2, 4, 8, 16, 32, 64, 128, 256]
    """
    bits, spread = trace.bit_length(), max(0, size - 1).bit_length()
    least, most = (min(MOST_EXPONENT, max(0, bits - below)) for below in (_BELOW + 1 + spread, 1))
    return [1 << exponent for exponent in range(least, most + 1)]


def score(value: Fraction) -> int:
    """Return ``round(16 log2 value)`` for a positive fraction, exactly.

    It is the floor of ``(log2(value**32) + 1) / 2``. The floor of a logarithm follows from the lengths of the numbers.

    Examples
    --------
    >>> score(Fraction(1)), score(Fraction(1, 2)), score(Fraction(105, 100))
    (0, -16, 1)
    """
    over: int = value.numerator ** (2 * STEPS)
    under: int = value.denominator ** (2 * STEPS)
    whole = over.bit_length() - under.bit_length()
    if (over << max(0, -whole)) < (under << max(0, whole)):
        whole -= 1
    return (whole + 1) // 2


def chosen_strength(sums: Sums, spectrum: Spectrum | None = None) -> Strength:
    """Return the gamma with the smallest score.

    Parameters
    ----------
    spectrum : Spectrum, optional
        Of sums that these have changed from (`Spectrum.after`). If it does not decide, it is computed anew.

    Examples
    --------
    >>> from neverseen.hardware import choose
    >>> codes, labels = np.array([[9, 1], [8, 2], [1, 9], [3, 9]]), np.array([[1, 0], [1, 0], [0, 1], [0, 1]])
    >>> chosen_strength(Sums(codes.T @ codes, codes.T @ labels, 4, 4, choose("numpy"))).gamma
    4
    """
    trace = sum(sums.hardware.numpy(sums.gram.diagonal()).tolist())
    options = candidates(trace, len(sums.gram))
    if len(options) == 1:
        return Strength(options[0], None)
    if spectrum is not None:
        with suppress(_OutdatedError):
            return _strength(sums, trace, options, spectrum.settled())
    return _strength(sums, trace, options, Spectrum.of(sums.gram, sums.total, sums.hardware))


def _strength(sums: Sums, trace: int, options: list[int], spectrum: Spectrum | None) -> Strength:
    basis = None if spectrum is None else Eigenbasis(spectrum, sums.cross, sums.total, sums.squares, sums.hardware)
    return Strength(_best([_Candidate(sums, trace, gamma, spectrum, basis) for gamma in options]), spectrum)


class _OutdatedError(Exception):
    """The spectrum is of earlier sums, and does not decide."""


def _best(options: list[_Candidate]) -> int:
    """Return the gamma of the best candidate. Ends, because bounds shrink until scores are decided."""
    while True:
        place = min(range(len(options)), key=lambda each: (options[each].scores()[0], -options[each].gamma))
        first, last = options[place].scores()
        if first == last:  # no other has a smaller score, and those with the same have a smaller gamma
            return options[place].gamma
        if not options[place].seen:  # from the middle, most is learned about the others
            start = place
            while start > 0 and not options[start - 1].seen:
                start -= 1
            end = place
            while end + 1 < len(options) and not options[end + 1].seen:
                end += 1
            place = (start + end) // 2
        options[place].refine()
        _spread(options[place], options)


def _spread(known: _Candidate, options: list[_Candidate]) -> None:
    """Bound RSS of all candidates that were not looked at by that of one."""
    (low, high), one = known.residual, Fraction(1)
    for other in options:
        if other.seen:
            continue
        factor = Fraction(other.gamma, known.gamma) ** 2
        other.bound_residual((low * min(one, factor), high * max(one, factor)))


class _Candidate:
    """A gamma, with bounds on its RSS and freedom.

    Attributes
    ----------
    residual, freedom : (Fraction, Fraction)
        Between which RSS and freedom lie. Both are positive.
    seen : bool
        Whether its own system was looked at.
    """

    def __init__(self, sums: Sums, trace: int, gamma: int, spectrum: Spectrum | None, basis: Eigenbasis | None) -> None:
        self._sums, self.gamma, self._spectrum, self.seen = sums, gamma, spectrum, False
        self._basis = basis
        share = Fraction(gamma, trace + gamma)  # no eigenvalue is above the trace
        self.residual: Bounds = (sums.squares * share**2, Fraction(sums.squares))
        self.freedom: Bounds = (sums.total * share, Fraction(sums.total))
        if spectrum is not None:
            self._bound_freedom(spectrum.freedom(gamma))
        self._scores: tuple[int, int] | None = None
        self._residuals, self._freedoms = self._ways(_residuals), self._ways(_freedoms)

    def scores(self) -> tuple[int, int]:
        """Return the smallest and the largest score that is possible."""
        if self._scores is None:
            low, high = (
                score(self._sums.total * residual / freedom**2)
                for residual, freedom in zip(self.residual, reversed(self.freedom), strict=True)
            )
            self._scores = low, high
        return self._scores

    def bound_residual(self, bounds: Bounds) -> None:
        """Note bounds on RSS."""
        found = _within(self.residual, bounds)
        if found != self.residual:
            self.residual, self._scores = found, None

    def _bound_freedom(self, bounds: Bounds) -> None:
        self.freedom, self._scores = _within(self.freedom, bounds), None

    def refine(self) -> None:
        """Bring the bounds closer to each other, or look at the system for the first time."""
        if not self.seen and self._basis is not None:
            self.seen = True
            self.bound_residual(self._basis.residual(self.gamma) or self.residual)
            self._bound_freedom(self._basis.freedom(self.gamma) or self.freedom)
            return
        self.seen = True
        (low, high), (least, most) = before = self.residual, self.freedom
        while before == (self.residual, self.freedom):
            if high / low > (most / least) ** 2:
                self.bound_residual(next(self._residuals))
            elif self._spectrum is not None and not self._spectrum.is_current:
                raise _OutdatedError
            else:
                self._bound_freedom(next(self._freedoms))

    def _ways(self, look: Callable[[IntegerSystem, Sums, Preconditioner], Iterator[Bounds]]) -> Iterator[Bounds]:
        """Yield ever closer bounds, with one preconditioner after the other, and at last in fractions."""
        sums, spectrum = self._sums, self._spectrum
        system = IntegerSystem(sums.gram, self.gamma, sums.hardware, measure=True)
        if spectrum is not None:
            with suppress(NoProgressError):
                yield from look(system, sums, spectrum.inverse(self.gamma))
            if not spectrum.is_current:
                raise _OutdatedError
        factor = system.cholesky()
        if factor is not None:
            with suppress(NoProgressError):
                yield from look(system, sums, CholeskyFactor(factor, sums.hardware))
        if system.size > RATIONAL_SIZE:
            raise IllConditionedError(
                f"no float64 factor of the sums contracts with gamma = {self.gamma}, so gamma='auto' cannot be "
                "decided. Choose gamma yourself"
            )
        while True:
            yield _exactly(sums, self.gamma)[look is _freedoms]


def _residuals(system: IntegerSystem, sums: Sums, precondition: Preconditioner) -> Iterator[Bounds]:
    """Yield bounds on RSS."""
    gamma, right = system.gamma, _digits(sums.cross, 0)
    refinement = Refinement(system, sums.hardware.int64(sums.cross))
    while True:
        if refinement.norms.any():
            refinement.step(precondition, 1)
        values = refinement.values
        found = _digits(values.limbs[0], 0)
        found += [(limb, -place * LIMB) for place, limb in enumerate(values.limbs[1:], 1)]
        rest = _digits(refinement.residual, -refinement.scale)
        size = _product(found, found)
        centre = sums.squares - _product(found, right + rest) - gamma * size
        square = sum((Fraction(float(norm)) for norm in refinement.norms**2), Fraction(0)) / 4**refinement.scale
        square *= Fraction(1 + 2**20, 2**20)  # for the rounding of these squares
        reach = 2 * _root(size * square)
        yield centre - 2 * square / gamma - reach, centre + square / gamma + reach


def _freedoms(system: IntegerSystem, sums: Sums, precondition: Preconditioner) -> Iterator[Bounds]:
    """Yield bounds on freedom, from the inverse of the system."""
    hardware, size = sums.hardware, system.size
    identity = hardware.array(np.eye(size, dtype=np.int64))
    refinement = Refinement(system, identity)
    while True:
        if refinement.norms.any():
            refinement.step(precondition, 1)
        trace = Fraction(0)
        for place, limb in enumerate(refinement.values.limbs):
            trace += Fraction(sum(hardware.numpy(limb.diagonal()).tolist()), 1 << (place * LIMB))
        square = sum((Fraction(float(norm)) for norm in refinement.norms**2), Fraction(0)) / 4**refinement.scale
        reach = _root(size * square * Fraction(1 + 2**20, 2**20))  # gamma times the error of the trace
        centre = sums.total - size + system.gamma * trace
        yield centre - reach, centre + reach


def _exactly(sums: Sums, gamma: int) -> tuple[Bounds, Bounds]:
    """Return RSS and freedom of a small system, each as bounds that are equal."""
    hardware, size = sums.hardware, len(sums.gram)
    cross = hardware.numpy(sums.cross)
    solved = eliminated(hardware.numpy(sums.gram), gamma, np.concatenate([cross, np.eye(size, dtype=np.int64)], 1))
    columns, none = cross.shape[1], Fraction(0)
    weights = [x for row in solved for x in row[:columns]]
    fits = sum((x * b for x, b in zip(weights, cross.ravel().tolist(), strict=True)), none)
    residual = sums.squares - fits - gamma * sum((x * x for x in weights), none)
    freedom = sums.total - size + gamma * sum((row[columns + place] for place, row in enumerate(solved)), none)
    return (residual, residual), (freedom, freedom)


def _within(bounds: Bounds, closer: Bounds) -> Bounds:
    low, high = max(bounds[0], closer[0]), min(bounds[1], closer[1])
    if low > high:
        raise InputError("the sums are not those of any samples: no ridge strength can be chosen for them")
    return low, high


def _digits(array: Array, shift: int) -> Digits:
    """Return integers below 2**62 in magnitude as digits from -2**21 to 2**21, and their shifts."""
    found: Digits = []
    while True:
        higher = (array + (1 << (LIMB - 1))) >> LIMB
        found.append((array - (higher << LIMB), shift))
        array, shift = higher, shift + LIMB
        if bool((array == 0).all()):
            return found


def _product(left: Digits, right: Digits) -> Fraction:
    """Return the sum of the products of all entries, exactly: 2**42 times 2**20 rows is 2**62."""
    total = Fraction(0)
    for one, shift in left:
        for other, more in right:
            part = sum((one * other).sum(0).tolist())
            total += Fraction(part) * Fraction(2) ** (shift + more)
    return total


def _root(value: Fraction) -> Fraction:
    """Return a little more than the root of a fraction."""
    if value == 0:
        return Fraction(0)
    bits = 2 * max(0, 64 - (value.numerator.bit_length() - value.denominator.bit_length()) // 2)
    return Fraction(math.isqrt((value.numerator << bits) // value.denominator) + 1, 1 << (bits // 2))
