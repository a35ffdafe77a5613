"""Answers before weights: the class with the greatest score, proved from the sums.

New weights cost a product for every class. A single answer does not need them. Let ``A = G + gamma I`` and B be the
sums as they are now, p the bits of the grid, W the weights in grid steps, and x the codes of a sample to answer about.
The scores are ``2**-p x W``. Take *any* vector y, and let ``r = x - A y``. With ``w_j = A^-1 B_j``, the column of class
j before it is rounded,

    x w_j = y B_j + r w_j,   and   |2**-p x W_j - x w_j| <= 2**-(p+1) |x|_1,

because no weight is off by more than half a grid step. The norm of w_j is bounded too: it minimises ``gamma |v|**2 +
|F v - t|**2`` over v, for the codes F of the samples and the indicator t of their class. At v = 0 that is n_j, the
number of samples of the class. So ``gamma |w_j|**2 <= n_j``, and

    |score_j - y B_j| <= |r| sqrt(n_j / gamma) + 2**-(p+1) |x|_1.

Where the class with the greatest ``y B_j`` is ahead of every other by more than both bounds, it has the greatest score.

It does not matter how y was found. The first is an approximate inverse times x, usually the inverse of the sums before
the last changes: one pass over the inverse and one over A. If that proves nothing, a few steps of conjugate gradients
improve it. The two quantities of the proof, r and ``y B_j``, are computed in integers.
"""

from __future__ import annotations

import math

import numpy as np

from neverseen.engine.preconditioning import NoProgressError, Preconditioner
from neverseen.engine.systems import ChangedSystem, column_norms
from neverseen.hardware import Array

_STEPS = 32
"""Number of steps of conjugate gradients after which a sample is left undecided."""


def leading_columns(
    system: ChangedSystem,
    cross: Array,
    counts: np.ndarray,
    codes: Array,
    grid_bits: int,
    precondition: Preconditioner,
) -> np.ndarray:
    """Return, for each sample, the column of the greatest score where that is proved, and -1 elsewhere.

    Parameters
    ----------
    system : ChangedSystem
        Of the sums of the samples held: a Gram matrix, and gamma.
    cross : int64 array of shape (C, d)
        Their class sums: the columns of B as rows.
    counts : ndarray of shape (C,)
        How many samples each class has.
    codes : int8 array of shape (m, d)
        Samples to answer about: a few.
    precondition : Preconditioner
        Anything. A poor one leaves samples undecided.

    Returns
    -------
    ndarray of shape (m,)
    """
    if not len(codes) or not len(counts):
        return np.full(len(codes), -1)
    with system.hardware.alone():
        asked = _Asked(system, cross, counts, codes, grid_bits)
        solution, residual = asked.targets * 0.0, asked.targets
        found = np.full(len(codes), -1)
        try:
            with np.errstate(all="ignore"):  # the inverse may be that of another system, or none
                found, solution, residual = asked.proved(precondition(asked.targets))
        except (NoProgressError, ValueError, RuntimeError):
            pass  # conjugate gradients begin with zeros
        if (found >= 0).all():
            return found
        search = _Search(asked, precondition, solution, residual)
        for _ in range(_STEPS):
            try:
                search.step()
                _, leads = asked.leading(search.scores, search.norms)
                if (leads > 0).all() or search.done:
                    found, _, _ = asked.proved(search.solution)
            except NoProgressError:
                break
            if (found >= 0).all() or search.done:
                break
        return found


class _Asked:
    """A few samples to answer about, and the sums."""

    def __init__(self, system: ChangedSystem, cross: Array, counts: np.ndarray, codes: Array, grid_bits: int) -> None:
        hardware = system.hardware
        self.system, self.cross, self._codes = system, cross, hardware.contiguous(hardware.int64(codes).T)  # (d, m)
        self.targets = hardware.float64(self._codes)
        lengths = hardware.row_sums(codes)  # |x|_1 of each
        self._reach = np.sqrt(counts / system.gamma) * (1 + 1e-9)  # (C,), bounds on the norms of w_j
        self._rounding = np.ldexp(lengths, -grid_bits - 1) * (1 + 1e-9)
        self._longest = max(1.0, float(np.max(counts)) * 127 * math.sqrt(system.size))  # |B_j|: sums of n_j codes

    def leading(self, scores: np.ndarray, norms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the column of the greatest score of each sample, and by how much it leads at least.

        `scores` are ``y B_j``, of shape (m, C), and `norms` are ``|r|``.
        """
        errors = (norms[:, None] * self._reach + self._rounding[:, None]) * (1 + 1e-9)
        # Conversions and sums of a few float64.
        return _leading(scores, errors + 2.0**-50 * np.abs(scores).max(axis=1, keepdims=True))

    def proved(self, solution: Array) -> tuple[np.ndarray, Array, Array]:
        """Return the leading column of each sample, -1 where this solution does not prove one; and what was used.

        That is the solution rounded to ``block 2**-f`` with an integer block, and its residual. f is such that neither
        ``A block`` (`ChangedSystem.finer`) nor ``block B_j`` (Cauchy and Schwarz) nor ``2**f x`` exceeds 62 bits:
        residual and scores are exact.
        """
        hardware, size = self.system.hardware, self.system.size
        longest = float(column_norms(solution, hardware).max())
        finer = min(self.system.finer(solution), 54, 61 - math.frexp(longest * self._longest)[1])
        if finer < 0 or math.ldexp(longest, finer) < math.sqrt(size):  # rounding adds at most sqrt(d) / 2 to the norm
            raise NoProgressError
        unit = 2.0**-finer
        block = hardware.int64(hardware.rint(solution * 2.0**finer))  # (d, m)
        residual = hardware.float64((self._codes << finer) - self.system.product(block)) * unit
        rows = [hardware.wrapping_matvec(self.cross, row) for row in hardware.contiguous(block.T)]
        scores = np.stack([hardware.numpy(row).astype(np.float64) for row in rows]) * unit  # (m, C)
        best, leads = self.leading(scores, column_norms(residual, hardware))
        return np.where(leads > 0, best, -1), hardware.float64(block) * unit, residual


def _leading(scores: np.ndarray, errors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the column of the greatest score of each row, and by how much it leads at least; (m, C) each."""
    places = np.arange(len(scores))
    best = scores.argmax(axis=1)
    rivals = scores + errors
    rivals[places, best] = -np.inf
    return best, scores[places, best] - errors[places, best] - rivals.max(axis=1)


class _Search:
    """Conjugate gradients for ``A Y = X``, every column by itself, in floating point: nothing here is proved.

    Attributes
    ----------
    solution : float64 array of shape (d, m)
    norms : ndarray of shape (m,), of the residual
    scores : ndarray of shape (m, C)
    done : bool
        Whether further steps would only change digits that float64 does not have.
    """

    def __init__(self, asked: _Asked, precondition: Preconditioner, solution: Array, residual: Array) -> None:
        self._system, self._precondition, self._hardware = asked.system, precondition, asked.system.hardware
        self._cross = self._hardware.float64(asked.cross)  # (C, d)
        self.solution, self._residual = solution, residual
        self._direction: Array | None = None
        self._before = np.ones(residual.shape[1])
        self._first = self._size(asked.targets, asked.targets) ** 0.5

    def step(self) -> None:
        """Take a step; raise `NoProgressError` if that is impossible."""
        hardware = self._hardware
        try:
            with np.errstate(all="ignore"):  # the inverse may be that of another system
                image = self._precondition(self._residual)
        except (ValueError, RuntimeError) as error:
            raise NoProgressError from error
        now = self._size(self._residual, image)
        if self._direction is None:
            self._direction = image
        else:
            self._direction = image + self._direction * hardware.array(_quotients(now, self._before))
        finer = self._system.finer(self._direction)
        block = hardware.rint(self._direction * 2.0**finer)
        product = hardware.float64(self._system.product(hardware.int64(block))) * 2.0**-finer
        self._direction = block * 2.0**-finer
        lengths = hardware.array(_quotients(now, self._size(self._direction, product)))
        self.solution = self.solution + self._direction * lengths
        self._residual, self._before = self._residual - product * lengths, now
        self.norms = self._size(self._residual, self._residual) ** 0.5
        self.scores = hardware.numpy(hardware.matmul(self._cross, self.solution)).T
        self.done = not bool((self.norms > self._first * 1e-12).any())

    def _size(self, left: Array, right: Array) -> np.ndarray:
        """Return the products of columns."""
        return self._hardware.numpy((left * right).sum(0))


def _quotients(over: np.ndarray, under: np.ndarray) -> np.ndarray:
    """Return quotients, and 0 where they are none."""
    fine = (under > 0) & np.isfinite(over)
    return np.where(fine, over, 0.0) / np.where(fine, under, 1.0)
