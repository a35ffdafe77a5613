"""From sums to a linear system: which weights a model has is decided here, by its sums and settings alone.

Plain ridge regression solves ``(G + gamma I) W = B``. With balanced classes, a sample of a class that has n_c samples
counts w_c times: ``w_c = max(1, floor(2**20 / n_c))``, so all classes count about the same. Then

    G' = Σ w_c A_c,   B' = B diag(w),   gamma' = max(1, floor(gamma Σ w_c n_c / n)),

where A_c is the Gram matrix of class c, and n the number of samples. The last keeps gamma as large beside the sums as
it would be without weights. Everything is an integer, so the solution is as exact as that of the plain system.

With ``gamma="auto"``, the sums choose gamma (`neverseen.engine.strength`). With an encoder of two streams, the second
is fitted to what the first leaves over (`neverseen.engine.streams`).
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np

from neverseen.engine.definiteness import why_impossible
from neverseen.engine.packing import unpack_triangle
from neverseen.engine.solver import Solution, solve
from neverseen.engine.spectrum import Spectrum
from neverseen.engine.statistics import Statistics
from neverseen.engine.streams import blocks, right_side, solve_streams
from neverseen.engine.strength import Strength, Sums, chosen_strength
from neverseen.errors import ConfigurationError, NotTrackedError
from neverseen.hardware import Array
from neverseen.model.configuration import Configuration

_SHARE = 2**20


class Problem(NamedTuple):
    """The system ``(gram + gamma I) W = cross``."""

    gram: Array  # int64 (d, d)
    cross: Array  # int64 (d, C)
    gamma: int


def strength(statistics: Statistics, configuration: Configuration, spectrum: Spectrum | None = None) -> Strength:
    """Return the gamma of a model with these sums. If they choose it, a `spectrum` of earlier sums saves time."""
    if configuration.gamma != "auto":
        return Strength(configuration.gamma, None)
    squares = configuration.targets.squares(statistics.counts)
    if squares is None:
        raise ConfigurationError(f"the sums of {configuration.targets} cannot choose gamma")
    sums = Sums(statistics.gram, statistics.cross_here(), statistics.total, squares, statistics.hardware)
    return chosen_strength(sums, spectrum)


def problem(
    statistics: Statistics, configuration: Configuration, weights: np.ndarray, chosen: int | None = None
) -> Problem:
    """Return the system whose rounded solution are the weights of a model with these sums.

    Parameters
    ----------
    weights : int64 ndarray of shape (d, C)
        The weights, or what shall be proved to be the weights. Only the system of two streams depends on them: that of
        the second stream on those of the first.
    chosen : int, optional
        gamma, if the sums choose it and it is known already.
    """
    ratio, plain = configuration.encoder.compensation_ratio, _plain(statistics, configuration, chosen)
    if ratio is None:
        return plain
    hardware, (gram, cross, gamma) = statistics.hardware, plain
    matrix, scaled = blocks(gram, gamma, hardware)
    main = weights[: len(gram) // 2]
    return Problem(matrix, right_side(gram, cross, gamma, configuration.grid_bits, ratio, main, hardware), scaled)


def solved(statistics: Statistics, configuration: Configuration, chosen: int | None = None) -> Solution:
    """Return the weights of a model with these sums; `chosen` as in `problem`."""
    ratio, plain = configuration.encoder.compensation_ratio, _plain(statistics, configuration, chosen)
    if ratio is None:
        return solve(*plain, configuration.grid_bits, hardware=statistics.hardware)
    return solve_streams(*plain, configuration.grid_bits, ratio, statistics.hardware)


def _plain(statistics: Statistics, configuration: Configuration, chosen: int | None) -> Problem:
    """Return the system of one stream."""
    gamma = configuration.gamma
    if gamma == "auto":
        gamma = strength(statistics, configuration).gamma if chosen is None else chosen
    if configuration.class_weight is None:
        return Problem(statistics.gram, statistics.cross_here(), gamma)
    return _balanced(statistics, gamma)


def sums_digest(statistics: Statistics, configuration: Configuration) -> str:
    """Return the digest of all sums that the weights follow from, in hex.

    With balanced classes they follow from the Gram matrix of each class too. Other classes may have the same total.
    """
    digest = statistics.digest()
    if configuration.class_weight is None:
        return digest
    hasher = hashlib.sha256(b"neverseen:statistics:balanced:1" + bytes.fromhex(digest))
    for name in statistics.classes:
        hasher.update(_triangle(statistics, name).tobytes())
    return hasher.hexdigest()


def why_not_made_up(statistics: Statistics) -> str | None:
    """Return why the sums of the classes, if tracked, cannot be those of samples that make up the sums of all.

    None if no reason is found: each class meets `why_impossible`, and the Gram matrices add up, exactly.
    """
    if statistics.class_grams is None:
        return None
    left, why = statistics.packed().astype(np.int64), None
    for name, row in zip(statistics.classes, statistics.cross().T, strict=True):
        packed = statistics.class_grams.packed(name)
        why = why or why_impossible(packed, row[np.newaxis], [statistics.counts[name]])
        left -= packed
    return why or ("the Gram matrices of the classes do not add up to that of all" if left.any() else None)


def _triangle(statistics: Statistics, name: str) -> np.ndarray:
    """Return the Gram matrix of a class: its upper triangle, row by row."""
    if statistics.class_grams is None:
        raise NotTrackedError("the sums of each class are missing; weights by class need them")
    return statistics.class_grams.packed(name).astype("<i8")


def _balanced(statistics: Statistics, gamma: int) -> Problem:
    hardware, classes = statistics.hardware, statistics.classes
    counts = [statistics.counts[name] for name in classes]
    shares = [max(1, _SHARE // count) for count in counts]
    total = np.zeros(statistics.size * (statistics.size + 1) // 2, np.int64)
    for name, share in zip(classes, shares, strict=True):
        # |A_c| <= 127**2 n_c and w_c n_c <= max(2**20, n_c): the sum is below 2**62 for fewer than 2**28 classes.
        total += share * _triangle(statistics, name)
    gram = hardware.array(unpack_triangle(total, statistics.size))
    cross = statistics.cross_here() * hardware.array(np.array(shares, np.int64))
    mass = sum(share * count for share, count in zip(shares, counts, strict=True))
    return Problem(gram, cross, max(1, gamma * mass // max(1, sum(counts))))
