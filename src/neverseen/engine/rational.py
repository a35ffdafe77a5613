"""Exact rational answers in Python integers, for the few systems that fixed-point refinement cannot settle.

`block_values` and `exact_solution` settle exact ties; `eliminated` solves small systems that no float64 factor can
precondition. All are slow and rare.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from neverseen.errors import IllConditionedError


def exact_solution(
    gram: np.ndarray, gamma: int, right: np.ndarray, approximate: list[Fraction], error: Fraction
) -> list[Fraction] | None:
    """Return the exact solution x of ``(G + gamma I) x = b``, guessed from an approximation and proved by substitution.

    Parameters
    ----------
    gram : int64 ndarray of shape (d, d)
    right : int64 ndarray of shape (d,)
    approximate : list of d Fractions
    error : Fraction
        No entry of `approximate` is further from x than this.

    Returns
    -------
    list of d Fractions, or None
        None if the approximation is not yet close enough to determine x. It always is once
        ``error < 1 / (2 D**2)`` for the common denominator D of x.
    """
    denominator = 1
    for value in approximate:
        # Multiplied by the denominator found so far, most entries are integers already.
        denominator *= simplest_between((value - error) * denominator, (value + error) * denominator).denominator
        if denominator * denominator * error > 1:
            return None
    numerators = [round(value * denominator) for value in approximate]
    for row, numerator, target in zip(gram, numerators, right.tolist(), strict=True):
        image = sum(a * x for a, x in zip(row.tolist(), numerators, strict=True) if a) + gamma * numerator
        if image != denominator * target:
            return None
    return [Fraction(numerator, denominator) for numerator in numerators]


def block_values(
    gram: np.ndarray, gamma: int, right: np.ndarray, rows: list[int], largest: int
) -> dict[int, Fraction] | None:
    """Return exact entries `rows` of the solution from the blocks of the system they belong to.

    Features that never occur together leave zeros in G, so the system falls into blocks that can be solved separately.
    Returns None if a block has more than `largest` features.
    """
    from scipy.sparse import csr_array  # takes long to import, and is rarely needed
    from scipy.sparse.csgraph import connected_components

    _, block_of = connected_components(csr_array(gram != 0), directed=False)
    values = {}
    for block in {int(block_of[row]) for row in rows}:
        members = np.flatnonzero(block_of == block)
        if len(members) > largest:
            return None
        solution = eliminated(gram[np.ix_(members, members)], gamma, right[members, None])
        values.update({int(member): entry[0] for member, entry in zip(members, solution, strict=True)})
    return {row: values[row] for row in rows}


def simplest_between(low: Fraction, high: Fraction) -> Fraction:
    """Return the fraction of least denominator in a closed interval, by continued fractions.

    Examples
    --------
    >>> simplest_between(Fraction(333, 1000), Fraction(334, 1000))
    Fraction(1, 3)
    """
    before, last = (0, 1), (1, 0)  # numerator and denominator of the last two convergents
    while True:
        whole = math.floor(low)
        term = whole if low == whole or whole + 1 > high else whole + 1
        before, last = last, (term * last[0] + before[0], term * last[1] + before[1])
        if low <= term <= high:
            return Fraction(*last)
        low, high = 1 / (high - whole), 1 / (low - whole)


def eliminated(gram: np.ndarray, gamma: int, cross: np.ndarray) -> list[list[Fraction]]:
    """Return ``(G + gamma I)^-1 B`` by fraction-free elimination (Bareiss): it needs no conditioning at all."""
    size = len(gram)
    rows = [
        [int(value) for value in row] + [int(value) for value in more] for row, more in zip(gram, cross, strict=True)
    ]
    for i in range(size):
        rows[i][i] += gamma
    previous = 1
    for k in range(size):  # the matrix is positive definite, so every pivot, a leading minor, is positive
        pivot = rows[k][k]
        if pivot <= 0:
            raise IllConditionedError(
                "the sums are not those of any samples: their matrix is not positive semidefinite"
            )
        for i in range(size):
            if i != k:
                factor = rows[i][k]
                # Bareiss: every entry is a minor of the matrix, so the division leaves no remainder.
                rows[i] = [(pivot * a - factor * b) // previous for a, b in zip(rows[i], rows[k], strict=True)]
        previous = pivot
    return [[Fraction(value, row[i]) for value in row[size:]] for i, row in enumerate(rows)]


def is_positive_definite(matrix: list[list[int]]) -> bool:
    """Return whether a symmetric matrix is positive definite: whether its leading minors are all positive.

    Examples
    --------
    >>> is_positive_definite([[2, 1], [1, 1]]), is_positive_definite([[1, 1], [1, 1]])
    (True, False)
    """
    rows, previous = [list(row) for row in matrix], 1
    for k, top in enumerate(rows):
        pivot = top[k]
        if pivot <= 0:
            return False
        for row in rows[k + 1 :]:  # Bareiss, as above
            factor = row[k]
            row[k + 1 :] = [
                (pivot * a - factor * b) // previous for a, b in zip(row[k + 1 :], top[k + 1 :], strict=True)
            ]
        previous = pivot
    return True
