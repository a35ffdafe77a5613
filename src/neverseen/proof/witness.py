"""The witness: extra bits with which anybody can check published weights against the sums without a solve.

The weights are ``N = round(2**p W*)`` with ``W* = A^-1 B`` and ``A = G + gamma I``. To prove them one needs more of W*
than N shows, because rounding to the grid leaves a residual as large as A. So a version is published with more bits of
W*: the *rests* ``Z = 2**p W* - N``, which lie between -1/2 and 1/2, rounded to ``M = round(2**t Z)``.

How weights are proved
----------------------
Let N and M be any integer matrices, from any source. Compute exactly, in integers,

    R = 2**t (2**p B - A N) - A M = A (2**t Z - M).

Every eigenvalue of A is at least gamma if G is a Gram matrix. So in each column, with r the largest magnitude in R's
column and d rows,

    |2**t Z_i - M_i| <= ||A^-1 R||_2 <= ||R||_2 / gamma <= sqrt(d) r / gamma.

If ``|M_i| + ceil(sqrt(d)) r / gamma < 2**(t-1)``, then ``|Z_i| < 1/2``: N_i is the integer nearest to ``2**p W*_i``,
and so N_i is proved. Everything here is an integer, and no float decides anything. If R is 0 then M is exactly
``2**t Z``, and ``|M_i| = 2**(t-1)`` is a tie, proved if N_i is even.

R is built piece by piece: N and M are cut into integers small enough for `IntegerSystem.product`, and ``R <- (R <<
bits) - A piece``. Before each step ``|R| <= 2**62 >> bits`` is checked, and ``|A piece| < 2**62`` follows from the
width of a piece. So no int64 can wrap, whatever N and M are; a column that breaks the bound is given up. Columns of
correct weights keep the bound: after each piece, the rest of W* is at most about half the last unit of the piece. So
``|R_i|`` is at most about half of ``sum_j |A_ij|``, and times ``2**bits`` that is below 2**62 by the rule for
widths.

The cost is one product with A for each piece: no iteration.

Nobody has to trust that G is a Gram matrix. `check_weights` checks that G is symmetric, and proves by one factorisation
that no eigenvalue of A is below a *floor* of at least ``gamma / 2``, nearly always ``63/64 gamma``
(`neverseen.engine.definiteness`); then it divides by the floor in place of gamma. A column that is proved with gamma,
and not with the floor, is solved for.

What remains
------------
No bound proves a tie in a column whose R is not 0. Nor are 60 bits enough where A is more than about ``2**60 gamma``,
and a weight may be too large for one piece. The witness lists such columns as *unproved*, and the check solves for
them, which settles ties (`neverseen.engine.solver`) at the price of a full solve.

Other checks show whether the sums come from the right samples: the sums' digest in the certificate, or learning the
data again.

The witness depends on the sums alone, like the weights. It shows nothing about how they were computed, and so nothing
about forgotten samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from neverseen.engine.definiteness import least_eigenvalue
from neverseen.engine.following import Following
from neverseen.engine.packing import narrowed
from neverseen.engine.solver import Solution, solve
from neverseen.engine.systems import IntegerSystem
from neverseen.errors import CertificateRejectedError, IllConditionedError, InputError, LimitError
from neverseen.hardware import Array, Hardware, choose

__all__ = ["Witness", "check_weights"]

MAX_BITS = 60
"""Bits of a rest. Sums of rests and half a grid step then fit int64 with room to spare."""
_MARGIN_BITS = 20
"""Bits of a grid step: a weight may lie about this close to a half and still be proved at the first attempt."""
_START_BITS = 32
"""Bits of the rests that come from the solver's floats."""
_WIDE = 1024
"""Columns multiplied at a time, which bounds the memory beside A."""


@dataclass(frozen=True, eq=False)
class Witness:
    """Bits of the exact solution beyond the weights.

    Attributes
    ----------
    rests : integer ndarray of shape (d, C)
        ``round(2**bits * (2**grid_bits W* - weights))``, in the narrowest type; 0 in columns that are unproved.
    unproved : tuple of int
        Columns for which this proves nothing, in order.
    """

    rests: np.ndarray
    bits: int
    unproved: tuple[int, ...] = ()


def make_witness(
    gram: Array, cross: Array, solution: Solution | Following, hardware: Hardware | None = None
) -> Witness:
    """Return the witness of the weights of a solved system.

    It solves ``A Z = 2**p B - A N`` with the existing factor, and is proved in the same way as in a check. The same
    sums have the same witness, bit for bit, however they were solved.

    Parameters
    ----------
    gram : int64 array of shape (d, d)
    cross : int64 array of shape (d, C)
    solution : Solution or Following
        Of this system.

    Examples
    --------
    >>> gram, cross = np.array([[3, 1], [1, 2]]), np.array([[1], [0]])
    >>> solution = solve(gram, cross, gamma=1)
    >>> witness = make_witness(gram, cross, solution)
    >>> check_weights(gram, cross, 1, 40, solution.weights, witness)
    >>> check_weights(gram, cross, 1, 40, solution.weights + 1, witness)  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    neverseen.proof.certificates.CertificateRejectedError: the weights of column 0 are not proved ...
    """
    hardware = choose("numpy") if hardware is None else hardware
    weights, gamma = solution.weights, solution.gamma
    if weights.size == 0:
        return Witness(np.zeros(weights.shape, np.int8), 1)
    system = IntegerSystem(gram, gamma, hardware)
    left, sound = _residual(system, cross, (weights, solution.grid_bits))  # 2**p B - A N = A Z
    left[:, ~sound] = 0
    spread = _root(system.size) * (system.trace // gamma + 1)
    for bits in sorted({min(MAX_BITS, spread.bit_length() + _MARGIN_BITS), MAX_BITS}):
        rests, residual, kept = _rests(system, left, bits, solution)
        proved = sound & kept & _proved(residual, weights, rests, bits, Fraction(gamma))
        if proved.all():
            break
    if not proved.any():
        return Witness(np.zeros(weights.shape, np.int8), 1, tuple(range(len(proved))))
    rests[:, ~proved] = 0
    return Witness(narrowed(rests), bits, tuple(np.flatnonzero(~proved).tolist()))


def _rests(
    system: IntegerSystem, left: np.ndarray, bits: int, solution: Solution | Following
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ``M = round(2**bits Z)`` for ``A Z = left``, the residual ``2**bits left - A M``, and where it is sound.

    A start S of s bits saves steps: M is ``2**(bits-s) S`` and the rounding of ``2**(bits-s) (2**s Z - S)``. It comes
    from the solver's floats. If they are wrong, the computation begins again without a start.
    """
    hardware, known = system.hardware, min(_START_BITS, bits - 1)
    floats = np.nan_to_num(np.clip(_known_rests(solution, hardware), -0.5, 0.5))
    for start, done in ((np.rint(np.ldexp(floats, known)).astype(np.int64), known), (np.zeros_like(left), 0)):
        nearer, sound = _residual(system, hardware.array(left), (start, done))
        if done and not (sound.all() and _largest(nearer) <= _largest(left) << (done // 2)):
            continue  # a good start gains nearly as many bits as it has
        try:
            solved = solve(
                system.gram, hardware.array(nearer), system.gamma, bits - done, solution.preconditioner, hardware
            )
        except (IllConditionedError, LimitError):
            continue
        residual, sound = _residual(system, hardware.array(nearer), (solved.weights, bits - done))
        if sound.all() or not done:
            return (start << (bits - done)) + solved.weights, residual, sound
    return np.zeros_like(left), left, np.zeros(left.shape[1], bool)


def _known_rests(solution: Solution | Following, hardware: Hardware) -> np.ndarray:
    """Return about Z, as float64 of shape (d, C)."""
    if isinstance(solution, Following):
        return hardware.numpy(solution.rests)
    integer, fraction = solution.values.floor_and_fraction(solution.grid_bits)
    rests: np.ndarray = hardware.numpy(fraction) + (hardware.numpy(integer) - solution.weights)
    return rests


def check_weights(
    gram: Array,
    cross: Array,
    gamma: int,
    grid_bits: int,
    weights: np.ndarray,
    witness: Witness,
    hardware: Hardware | None = None,
) -> None:
    """Raise `CertificateRejectedError` unless the weights are the correctly rounded solution for these sums.

    Sums, weights and witness may hold anything: accepted weights are proved (see the module). Sums are refused if their
    matrix is not symmetric or not positive semidefinite, or if gamma is too small beside them to prove that it is.

    Parameters
    ----------
    gram : int64 array of shape (d, d)
    cross : int64 array of shape (d, C)
    weights : int64 ndarray of shape (d, C)
    """
    hardware = choose("numpy") if hardware is None else hardware
    if gram.ndim != 2 or gram.shape[0] != gram.shape[1] or cross.ndim != 2 or len(cross) != len(gram):
        raise InputError(
            f"gram must be (d, d) and cross (d, C); got shapes {tuple(gram.shape)} and {tuple(cross.shape)}"
        )
    if type(gamma) is not int or gamma < 1 or type(grid_bits) is not int or not 1 <= grid_bits <= 52:
        raise InputError(f"gamma must be at least 1 and grid_bits between 1 and 52; got {gamma!r} and {grid_bits!r}")
    _require_form(tuple(cross.shape), weights, witness)
    if weights.size == 0:
        return
    require_gram(gram)
    try:
        system = IntegerSystem(gram, gamma, hardware)
    except LimitError as error:
        raise CertificateRejectedError(f"the sums are too large for the weights to be checked: {error}") from error

    rests, bits = witness.rests.astype(np.int64), witness.bits
    residual, sound = _residual(system, cross, (weights.copy(), grid_bits), (rests, bits))
    proved = sound & _proved(residual, weights, rests, bits, Fraction(gamma))
    left = list(witness.unproved)
    proved[left] = True
    if not proved.all():
        column = int(np.flatnonzero(~proved)[0])
        raise CertificateRejectedError(
            f"the weights of column {column} are not proved: their residual is too large, or they lie too near a half "
            "grid step. Weights, witness and sums do not belong together: one of them was altered"
        )
    floor = least_eigenvalue(system)
    if floor is None:
        raise CertificateRejectedError(
            "the sums cannot be proved to come from samples: their matrix is not positive semidefinite, or gamma = "
            f"{gamma} is too small beside them for 64-bit floats to tell. Learn the data again to check"
        )
    proved = _proved(residual, weights, rests, bits, floor)
    proved[left] = False
    columns = np.flatnonzero(~proved).tolist()
    if columns:
        _check_by_solving(gram, hardware.numpy(cross), gamma, grid_bits, weights, columns, hardware, floor)


def require_gram(gram: Array) -> None:
    """Raise `CertificateRejectedError` unless a matrix is symmetric, with its largest entries on the diagonal."""
    top = int(gram.diagonal().max())
    if int(gram.diagonal().min()) < 0 or int(gram.max()) > top or int(gram.min()) < -top or not (gram == gram.T).all():
        raise CertificateRejectedError("the sums do not come from any samples: their matrix is no Gram matrix")


def _require_form(shape: tuple[int, ...], weights: np.ndarray, witness: Witness) -> None:
    """Raise unless weights and witness are arrays of the right types and shapes."""
    rests, bits, unproved = witness.rests, witness.bits, witness.unproved
    if not (isinstance(weights, np.ndarray) and weights.dtype == np.int64 and weights.shape == shape):
        raise CertificateRejectedError(f"the weights are not an int64 array of shape {shape}, the shape of these sums")
    if not (isinstance(rests, np.ndarray) and rests.dtype.kind == "i" and rests.shape == shape):
        raise CertificateRejectedError(f"the witness is not an array of integers of shape {shape}")
    if type(bits) is not int or not 1 <= bits <= MAX_BITS:
        raise CertificateRejectedError(f"the witness has {bits!r} bits; 1 to {MAX_BITS} are possible")
    if not all(type(column) is int and 0 <= column < shape[1] for column in unproved) or (
        list(unproved) != sorted(set(unproved))
    ):
        raise CertificateRejectedError("the witness's list of unproved columns is not a list of columns")
    for array, what, limit in ((weights, "weight", 2**61), (rests, "rest", 1 << (bits - 1))):
        if array.size and (int(array.max()) > limit or int(array.min()) < -limit):
            raise CertificateRejectedError(f"a {what} is out of range")


def _residual(system: IntegerSystem, start: Array, *digits: tuple[np.ndarray, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return a residual, in units of the last bit, and for each column whether it is right.

    A column is given up, and so not right, if a number on the way would have been too large.

    Parameters
    ----------
    start : int64 array of shape (d, C)
        The residual so far.
    *digits : (int64 ndarray of shape (d, C), int)
        Integers up to 2**61 in magnitude, and their bits: with one pair, the result is ``2**bits start - A
        integers``; a second continues where the first ends.
    """
    hardware, width = system.hardware, system.width(3)  # for blocks of any number of columns
    cut = [piece for part, bits in digits for piece in _pieces(hardware.array(part), bits, width)]
    given_up = _exceeds(start, 2**62)
    for shift, piece in cut:
        if shift == 0:  # an integer part; the others are narrow as they are
            too_wide = _exceeds(piece, 2**width)
            piece[:, too_wide] = 0
            given_up = given_up | too_wide
    residual = hardware.int64(start) + 0  # a copy
    for (shift, _), image in zip(cut, _images(system, [piece for _, piece in cut]), strict=True):
        given_up = given_up | _exceeds(residual, 2 ** (62 - shift))
        residual[:, given_up] = 0
        residual <<= shift  # up to 2**62 in magnitude
        residual -= image  # less than 2**62
    return hardware.numpy(residual), ~hardware.numpy(given_up)


def _images(system: IntegerSystem, pieces: list[Array]) -> list[Array | int]:
    """Return A times each piece. Several are multiplied at once, for wide products are faster."""
    columns = pieces[0].shape[1]
    together = max(1, _WIDE // columns)
    filled = [place for place, piece in enumerate(pieces) if not (piece == 0).all()]  # integer parts are mostly zero
    images: list[Array | int] = [0] * len(pieces)
    for first in range(0, len(filled), together):
        places = filled[first : first + together]
        product = system.product(system.hardware.concatenate([pieces[place] for place in places], 1))
        for order, place in enumerate(places):
            images[place] = product[:, order * columns : (order + 1) * columns]  # (d, C)
    return images


def _pieces(values: Array, bits: int, width: int) -> Iterator[tuple[int, Array]]:
    """Yield ``values * 2**-bits`` as shifts and integers: at first the integer part, then up to `width` bits a piece.

    Each is the nearest integer to what is left, so pieces after the first are at most ``2**(shift-1)``.
    """
    shift, rest = 0, values
    while True:
        piece = (rest + (1 << bits >> 1)) >> bits
        yield shift, piece
        if bits == 0:
            return
        rest = rest - (piece << bits)  # in [-2**(bits-1), 2**(bits-1))
        shift = min(width, bits)
        bits -= shift


def _exceeds(values: Array, limit: int) -> Array:
    """Return for each column whether an entry is greater than `limit` in magnitude."""
    return ((values > limit) | (values < -limit)).sum(0) > 0


def _largest(values: np.ndarray) -> int:
    """Return the largest magnitude."""
    return max(int(values.max()), -int(values.min()))


def _proved(residual: np.ndarray, weights: np.ndarray, rests: np.ndarray, bits: int, floor: Fraction) -> np.ndarray:
    """Return for each column whether the residual of its weights and rests proves the weights.

    No eigenvalue of A is below `floor`.
    """
    tops = [_largest(column) for column in residual.T]
    half = 1 << (bits - 1)
    # |M| + u < half for a fraction u = sqrt(d) r / floor and an integer M, if and only if |M| < half - u rounded down.
    limits = np.array([max(0, half - _root(len(residual)) * top // floor) for top in tops])  # (C,)
    sizes = np.abs(rests)  # (d, C), up to half
    ties = (sizes == half) & (weights % 2 == 0) & (np.array(tops) == 0)
    proved: np.ndarray = ((sizes < limits) | ties).all(axis=0)  # (C,)
    return proved


def _root(size: int) -> int:
    """Return the square root of a positive integer, rounded up."""
    return math.isqrt(size - 1) + 1


def _check_by_solving(
    gram: Array,
    cross: np.ndarray,
    gamma: int,
    grid_bits: int,
    weights: np.ndarray,
    columns: list[int],
    hardware: Hardware,
    floor: Fraction,
) -> None:
    """Raise unless a full solve gives the same weights for some columns."""
    right = hardware.array(np.ascontiguousarray(cross[:, columns]))
    try:
        solution = solve(gram, right, gamma, grid_bits, None, hardware, floor)
    except (IllConditionedError, LimitError) as error:
        raise CertificateRejectedError(f"the weights in unproved columns cannot be checked: {error}") from error
    wrong = np.argwhere(solution.weights != weights[:, columns])
    if len(wrong):
        row, place = wrong[0].tolist()
        raise CertificateRejectedError(
            f"the weight in row {row} of column {columns[place]} is wrong: {weights[row, columns[place]]} grid steps, "
            f"and the solution rounds to {solution.weights[row, place]}"
        )
