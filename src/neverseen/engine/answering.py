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

It does not matter how y was found. It comes from a few steps of conjugate gradients with an approximate inverse,
usually that of the sums before the last changes: each costs one pass over the inverse and one over A. The two
quantities of the proof, r and ``y B_j``, are computed in integers.
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
    cross : int64 array of shape (d, C)
        Their class sums.
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
    hardware = system.hardware
    if not len(codes) or not len(counts):
        return np.full(len(codes), -1)
    targets = hardware.contiguous(hardware.int64(codes).T)  # (d, m)
    lengths = hardware.row_sums(codes)  # |x|_1 of each
    reach = np.sqrt(counts / system.gamma) * (1 + 1e-9)  # (C,), bounds on the norms of w_j
    rounding = np.ldexp(lengths, -grid_bits - 1) * (1 + 1e-9)
    search = _Search(system, targets, cross, precondition)
    found = np.full(len(codes), -1)
    for _ in range(_STEPS):
        try:
            search.step()
        except NoProgressError:
            break
        _, leads = _leading(search.scores, search.norms[:, None] * reach + rounding[:, None])
        if (leads > 0).all() or search.done:
            found = _proved(system, targets, cross, reach, rounding, search.solution)
            if (found >= 0).all() or search.done:
                break
    return found


def _leading(scores: np.ndarray, errors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the column of the greatest score of each row, and by how much it leads at least; (m, C) each."""
    places = np.arange(len(scores))
    best = scores.argmax(axis=1)
    rivals = scores + errors
    rivals[places, best] = -np.inf
    return best, scores[places, best] - errors[places, best] - rivals.max(axis=1)


def _proved(
    system: ChangedSystem, targets: Array, cross: Array, reach: np.ndarray, rounding: np.ndarray, solution: Array
) -> np.ndarray:
    """Return the leading column of each sample, and -1 where this solution does not prove one.

    The solution is rounded to ``block 2**-f`` with an integer block, so that neither ``A block``
    (`ChangedSystem.finer`) nor ``block B_j`` (Cauchy and Schwarz) nor ``2**f x`` exceeds 62 bits: residual and scores
    are exact.
    """
    hardware, size = system.hardware, system.size
    longest = [float(column_norms(each, hardware).max()) for each in (solution, hardware.float64(cross))]
    try:
        finer = min(system.finer(solution), 54)
    except NoProgressError:
        return np.full(targets.shape[1], -1)
    finer = min(finer, 61 - math.frexp(longest[0] * max(1.0, longest[1]))[1])
    if finer < 0 or math.ldexp(longest[0], finer) < math.sqrt(size):  # rounding adds at most sqrt(d) / 2 to the norm
        return np.full(targets.shape[1], -1)
    block = hardware.int64(hardware.rint(solution * 2.0**finer))  # (d, m)
    residual = (targets << finer) - system.product(block)
    norms = np.ldexp(column_norms(hardware.float64(residual), hardware), -finer)
    products = [hardware.wrapping_matvec(cross.T, row) for row in hardware.contiguous(block.T)]
    scores = np.ldexp(np.stack([hardware.numpy(row).astype(np.float64) for row in products]), -finer)  # (m, C)
    errors = (norms[:, None] * reach + rounding[:, None]) * (1 + 1e-9)
    errors += 2.0**-50 * np.abs(scores).max(axis=1, keepdims=True)  # conversions and sums of a few float64
    best, leads = _leading(scores, errors)
    return np.where(leads > 0, best, -1)


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

    def __init__(self, system: ChangedSystem, targets: Array, cross: Array, precondition: Preconditioner) -> None:
        self._system, self._precondition, self._hardware = system, precondition, system.hardware
        self._cross = system.hardware.float64(cross)
        self._residual = system.hardware.float64(targets)
        self._direction: Array | None = None
        self._before = np.ones(targets.shape[1])
        self._first = self._size(self._residual, self._residual) ** 0.5
        self.solution = self._residual * 0.0

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
        self.scores = hardware.numpy(hardware.matmul(hardware.contiguous(self.solution.T), self._cross))
        self.done = not bool((self.norms > self._first * 1e-12).any())

    def _size(self, left: Array, right: Array) -> np.ndarray:
        """Return the products of columns."""
        return self._hardware.numpy((left * right).sum(0))


def _quotients(over: np.ndarray, under: np.ndarray) -> np.ndarray:
    """Return quotients, and 0 where they are none."""
    fine = (under > 0) & np.isfinite(over)
    return np.where(fine, over, 0.0) / np.where(fine, under, 1.0)
