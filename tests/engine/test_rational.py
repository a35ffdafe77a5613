from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from neverseen.engine.rational import block_values, eliminated, exact_solution, simplest_between
from tests import oracle
from tests.samples import codes


@given(st.fractions(), st.fractions(min_value=0, max_value=2, max_denominator=10**6))
def test_simplest_fraction_has_the_least_denominator(low: Fraction, width: Fraction) -> None:
    found = simplest_between(low, low + width)
    assert low <= found <= low + width
    for denominator in range(1, min(found.denominator, 200)):
        assert -(-low * denominator // 1) > (low + width) * denominator  # no numerator fits


def test_long_continued_fractions_do_not_recurse() -> None:
    a, b = 1, 1
    for _ in range(5000):
        a, b = a + b, a
    ratio = Fraction(a, b)
    assert simplest_between(ratio, ratio) == ratio


def test_elimination_and_reconstruction_agree_with_the_oracle() -> None:
    root = codes("rational", 9, 5).astype(np.int64)
    gram, cross = root.T @ root, codes("rational:cross", 5, 2).astype(np.int64)
    exact = oracle.exact_weights(gram.tolist(), cross.tolist(), 7)
    assert eliminated(gram, 7, cross) == exact
    column = [row[0] for row in exact]
    common = max(value.denominator for value in column) ** 2
    error = Fraction(1, 4 * common**2)
    shaken = [value + error * (-1) ** i for i, value in enumerate(column)]
    assert exact_solution(gram, 7, cross[:, 0], shaken, error) == column
    assert exact_solution(gram, 7, cross[:, 1], shaken, error) is None
    assert exact_solution(gram, 7, cross[:, 0], shaken, Fraction(1, 1000)) is None


def test_blocks_are_solved_by_themselves() -> None:
    root = codes("blocks", 9, 5).astype(np.int64)
    gram, right = root.T @ root, codes("blocks:right", 5, 1).astype(np.int64)
    gram[:2, 2:] = gram[2:, :2] = 0
    exact = oracle.exact_weights(gram.tolist(), right.tolist(), 3)
    assert block_values(gram, 3, right[:, 0], [1, 4], 3) == {1: exact[1][0], 4: exact[4][0]}
    assert block_values(gram, 3, right[:, 0], [1], 2) == {1: exact[1][0]}
    assert block_values(gram, 3, right[:, 0], [1, 4], 2) is None
