"""The choice of gamma by leaving out one sample after the other: a pure function of the samples given.

For a sample with code c and target y, let W be the weights of all samples and ``h = c A^-1 c'``, for ``A = G + gamma
I``. The weights without it predict ``y - (y - c W) / (1 - h)`` for it (Sherman and Morrison), so

    PRESS = Σ |y - c W|**2 / (1 - h)**2

is the sum of the squared errors of all samples, each predicted by the model without it. Section 5.4 of
``docs/specification.md`` scores each candidate with ``round(16 log2 PRESS)``. The smallest score wins, and among equals
the largest gamma, as in `neverseen.engine.strength`. PRESS is rational, so no score is a tie. It is above 0 unless all
targets are: without errors, ``(G + gamma I) W = B = G W``, so W is 0, and what it predicts.

How it is bounded
-----------------
First in float64, in the eigenbasis of G (`neverseen.engine.eigenbasis`; Q and D are from there). There ``u = c Q`` is
off by ``v = |c| turn``, and ``s = |N u|`` for ``N = diag(1 / (m + gamma))``. The residual of ``N u`` as a solution of
``A z = c'`` is at most ``r = v + ||D|| s`` and rounding, so ``|z| <= s + r / gamma``, and

    |h - u N u'| <= v s + |z| r,      |c W - u V| <= v |V| + |z| R,

where R bounds the residual of V. Besides, ``h <= |c|**2 / (|c|**2 + gamma)``.

Where that does not decide, A itself is solved, by refinement, for B and for the codes. A residual of norm r then moves
h by ``|c| r / gamma`` at most, because ``|A^-1 c'| <= |c| / gamma``, and a row ``c W`` likewise. Refinement shrinks r
without end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction

import numpy as np

from neverseen.engine.arithmetic import gram, wide_matmul
from neverseen.engine.eigenbasis import Eigenbasis, rounding_of
from neverseen.engine.fixedpoint import LIMB, FixedPoint
from neverseen.engine.preconditioning import CholeskyFactor, NoProgressError, Preconditioner
from neverseen.engine.rational import eliminated
from neverseen.engine.refinement import RATIONAL_SIZE, Refinement
from neverseen.engine.spectrum import Spectrum, checked_product
from neverseen.engine.strength import candidates, score
from neverseen.engine.systems import IntegerSystem
from neverseen.errors import IllConditionedError
from neverseen.hardware import Array, Hardware

Bounds = tuple[Fraction, Fraction]

_ROWS = 4096  # samples at a time in float64
_COLUMNS = 256  # samples at a time in refinement
_SLACK = 1 + 1e-9


def least_error(codes: Array, targets: np.ndarray, hardware: Hardware) -> int:
    """Return the gamma whose models predict each sample best when it is left out.

    Costs an eigenvalue decomposition, and for each candidate a product of (n, d) by (d, C).

    Parameters
    ----------
    codes : int8 array of shape (n, d), entries in -127..127
    targets : int64 ndarray of shape (n, C), below 2**21 in magnitude

    Examples
    --------
    >>> from neverseen.hardware import choose
    >>> codes = np.array([[9, 1], [8, 2], [1, 9], [3, 9]], np.int8)
    >>> least_error(codes, np.array([[1, 0], [1, 0], [0, 1], [0, 1]]), choose("numpy"))
    4
    """
    samples = Samples(codes, targets, hardware)
    options = candidates(sum(hardware.numpy(samples.gram.diagonal()).tolist()), codes.shape[1])
    if len(options) == 1 or not targets.any():
        return options[-1]
    bounds = samples.bounds(options)
    found = [_Candidate(samples, gamma, *each) for gamma, each in zip(options, bounds, strict=True)]
    while True:
        best = min(found, key=lambda each: (each.scores[0], -each.gamma))
        if best.scores[0] == best.scores[1]:
            return best.gamma
        best.refine()


class _Candidate:
    """A gamma, and the smallest and largest score that it can have."""

    def __init__(self, samples: Samples, gamma: int, low: Fraction, high: Fraction) -> None:
        self.gamma, self._low, self._high = gamma, low, high
        self._closer = samples.closer(gamma)
        self.scores = score(low), score(high)

    def refine(self) -> None:
        low, high = next(self._closer)
        self._low, self._high = max(self._low, low), min(self._high, high)
        self.scores = score(self._low), score(self._high)


class Samples:
    """Samples, their sums, and bounds on PRESS."""

    def __init__(self, codes: Array, targets: np.ndarray, hardware: Hardware) -> None:
        self._codes, self._targets, self._hardware = codes, targets, hardware
        self.gram = hardware.int64(gram(codes, hardware))
        self._cross = wide_matmul(hardware.contiguous(codes.T), hardware.array(targets), hardware)
        self._spectrum = Spectrum.of(self.gram, len(codes), hardware)
        self._squares = int((targets.astype(object) ** 2).sum())
        self._lengths = (hardware.numpy(codes).astype(np.int64) ** 2).sum(axis=1)  # |c|**2, (n,)

    def bounds(self, options: list[int]) -> list[Bounds]:
        """Return bounds on PRESS for each candidate, all above 0."""
        top = sum(self._lengths.tolist())  # no eigenvalue of G, and no |c|**2, is larger
        found = [
            (self._squares * Fraction(gamma, top + gamma) ** 2, self._squares * Fraction(top + gamma, gamma) ** 2)
            for gamma in options
        ]
        if self._spectrum is not None:
            with np.errstate(all="ignore"):
                closer = self.in_floats(self._spectrum, options)
            for place, (low, high) in enumerate(closer.T.tolist()):
                if math.isfinite(low) and math.isfinite(high):
                    found[place] = max(found[place][0], Fraction(low)), min(found[place][1], Fraction(high))
        return found

    def in_floats(self, spectrum: Spectrum, options: list[int]) -> np.ndarray:
        """Return bounds in float64, (2, candidates)."""
        hardware, size, total = self._hardware, self._codes.shape[1], len(self._codes)
        basis = Eigenbasis(spectrum, self._cross, total, self._squares, hardware)
        gammas = [float(gamma) for gamma in options]
        solved = [basis.solution(gamma) for gamma in gammas]
        sums = [basis.values + gamma for gamma in gammas]
        inverses = [np.where(each > 0, 1 / each, np.nan) for each in sums]
        scales = hardware.array(np.stack([*inverses, *(each**2 for each in inverses)], 1))  # (d, 2 candidates)
        unit, press = rounding_of(size), np.zeros((2, len(options)))
        for start in range(0, total, _ROWS):
            part = slice(start, start + _ROWS)
            images = checked_product(hardware.float64(self._codes[part]), spectrum.vectors, hardware)  # U, (n, d)
            weighed = hardware.numpy(checked_product(images * images, scales, hardware))
            lengths = np.sqrt(self._lengths[part]) * _SLACK
            off = lengths * basis.turn * _SLACK  # v
            for place, (gamma, (V, rest)) in enumerate(zip(gammas, solved, strict=True)):
                shares, spans = weighed[:, place], np.sqrt(weighed[:, len(gammas) + place]) * _SLACK  # u N u', s
                left = (off + (basis.error + unit * gamma) * spans + unit * (lengths + off)) * _SLACK  # r
                reach = spans + left / gamma  # |z|
                doubt = (off * spans + reach * left + unit * shares) * _SLACK
                least = gamma / (gamma + self._lengths[part]) / _SLACK
                low, high = np.maximum(1 - shares - doubt, least), np.minimum(1 - shares + doubt, 1.0)  # 1 - h
                said = hardware.numpy(checked_product(images, hardware.array(V), hardware))  # U V, (n, C)
                errors = np.sqrt(((self._targets[part] - said) ** 2).sum(axis=1))
                length = math.sqrt(float((V * V).sum())) * _SLACK
                slip = (off * length + reach * rest + unit * (lengths + off) * length) * _SLACK
                slip += errors * 1e-9 + unit * np.sqrt((self._targets[part] ** 2).sum(axis=1))
                press[0, place] += float(((np.maximum(errors - slip, 0.0) / high) ** 2).sum())
                press[1, place] += float((((errors + slip) / low) ** 2).sum())
        press *= np.array([[1 / _SLACK], [_SLACK]])
        return press

    def closer(self, gamma: int) -> Iterator[Bounds]:
        """Yield ever closer bounds on PRESS, with one preconditioner after the other, and at last in fractions."""
        hardware = self._hardware
        system = IntegerSystem(self.gram, gamma, hardware, measure=True)
        ways: list[Preconditioner] = [] if self._spectrum is None else [self._spectrum.inverse(gamma)]
        factor = system.cholesky()
        if factor is not None:
            ways.append(CholeskyFactor(factor, hardware))
        for precondition in ways:
            with suppress(NoProgressError):
                for steps in range(1, 2**16):
                    yield self._refined(system, precondition, steps)
        if system.size > RATIONAL_SIZE:
            raise IllConditionedError(
                f"no float64 factor of the sums contracts with gamma = {gamma}, so it cannot be compared with others. "
                "Choose gamma yourself"
            )
        while True:
            yield self._exactly(gamma)

    def _refined(self, system: IntegerSystem, precondition: Preconditioner, steps: int) -> Bounds:
        hardware, codes = self._hardware, self._hardware.numpy(self._codes).astype(np.int64)
        weights, rests = _solved(system, self._cross, precondition, steps)
        rest = _root(sum((each**2 for each in rests), Fraction(0)))  # of all columns
        total = [Fraction(0), Fraction(0)]
        for start in range(0, len(codes), _COLUMNS):
            rows = codes[start : start + _COLUMNS]
            block = hardware.array(np.ascontiguousarray(rows.T))
            images, lefts = _solved(system, block, precondition, steps)
            # |A^-1 c'| <= |c|, and entries of W are below 2**21 sqrt(n): nothing wraps.
            shares = _combined((rows * hardware.numpy(limb).T).sum(1, keepdims=True) for limb in images.limbs)
            said = _combined(rows @ hardware.numpy(limb) for limb in weights.limbs)
            for row, (share, left, outputs) in enumerate(zip(shares, lefts, said, strict=True)):
                length = int(self._lengths[start + row])
                reach = _root(Fraction(length)) / system.gamma
                least = Fraction(system.gamma, system.gamma + length)
                low, high = max(1 - share[0] - reach * left, least), min(1 - share[0] + reach * left, Fraction(1))
                for value, target in zip(outputs, self._targets[start + row].tolist(), strict=True):
                    error, slip = abs(target - value), reach * rest
                    total[0] += (max(error - slip, Fraction(0)) / high) ** 2
                    total[1] += ((error + slip) / low) ** 2
        return total[0], total[1]

    def _exactly(self, gamma: int) -> Bounds:
        hardware, codes = self._hardware, self._hardware.numpy(self._codes).astype(np.int64)
        right = np.concatenate([hardware.numpy(self._cross), codes.T], 1)
        solved = np.array(eliminated(hardware.numpy(self.gram), gamma, right), object)
        columns, whole = self._targets.shape[1], codes.astype(object)
        errors = self._targets.astype(object) - whole @ solved[:, :columns]
        left = 1 - (whole * solved[:, columns:].T).sum(axis=1)
        found = Fraction(((errors / left[:, None]) ** 2).sum())
        return found, found


def _solved(
    system: IntegerSystem, right: Array, precondition: Preconditioner, steps: int
) -> tuple[FixedPoint, list[Fraction]]:
    """Return a solution after so many steps, and a bound on the norm of each column of its residual."""
    refinement = Refinement(system, right)
    for _ in range(steps):
        if refinement.norms.any():
            refinement.step(precondition, 1)
    return refinement.values, [Fraction(float(norm)) / 2**refinement.scale for norm in refinement.norms]


def _combined(limbs: Iterator[np.ndarray]) -> list[list[Fraction]]:
    """Return the rows that limbs make up."""
    parts = [limb.astype(object) for limb in limbs]
    total, scale = parts[0], LIMB * (len(parts) - 1)
    for limb in parts[1:]:
        total = total * (1 << LIMB) + limb
    return [[Fraction(value, 1 << scale) for value in row] for row in total.tolist()]


def _root(value: Fraction) -> Fraction:
    """Return a little more than the root of a fraction."""
    bits = 2 * max(0, 64 - (value.numerator.bit_length() - value.denominator.bit_length()) // 2)
    return Fraction(math.isqrt((value.numerator << bits) // value.denominator) + 1, 1 << (bits // 2))
