from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from neverseen.engine.fixedpoint import LIMB, FixedPoint
from neverseen.hardware import choose

NUMPY = choose("numpy")
TERMS = st.lists(st.tuples(st.integers(-(2**40), 2**40), st.integers(0, 180)), min_size=1, max_size=8)


def value_of(terms: list[tuple[int, int]]) -> Fraction:
    return sum((Fraction(block, 1 << scale) for block, scale in terms), Fraction(0))


def matrix_of(rows: list[list[list[tuple[int, int]]]]) -> FixedPoint:
    matrix = FixedPoint.zeros(len(rows), len(rows[0]), hardware=NUMPY)
    for i, row in enumerate(rows):
        for j, terms in enumerate(row):
            for block, scale in terms:
                single = np.zeros((len(rows), len(rows[0])), np.int64)
                single[i, j] = block
                matrix.add(single, scale)
    return matrix


@given(TERMS)
def test_sums_are_exact_and_limbs_stay_small(terms: list[tuple[int, int]]) -> None:
    matrix = matrix_of([[terms]])
    assert matrix.column_exactly(0) == [value_of(terms)]
    scale = LIMB * len(matrix.limbs)
    assert matrix.exactly(0, 0, scale) == value_of(terms) * (1 << scale)
    assert all(-(2**21) <= int(limb[0, 0]) < 2**21 for limb in matrix.limbs[1:])


@given(st.lists(st.tuples(st.integers(-(2**30), 2**30), st.integers(20, 180)), max_size=6), st.integers(0, 60))
def test_floor_and_fraction(terms: list[tuple[int, int]], grid_bits: int) -> None:
    matrix = matrix_of([[terms or [(0, 0)]]])
    exact = value_of(terms) * (1 << grid_bits)
    if abs(exact) >= 2**61:
        return
    integer, fraction = matrix.floor_and_fraction(grid_bits)
    rest = exact - int(integer[0, 0])
    assert Fraction(-3, 10) < rest <= 1
    assert abs(Fraction(float(fraction[0, 0])) - rest) < Fraction(1, 2**50)


@given(st.lists(TERMS, min_size=6, max_size=6))
@settings(max_examples=40)
def test_columns_can_be_picked(entries: list[list[tuple[int, int]]]) -> None:
    small = [[(block % 2**20, scale) for block, scale in terms] for terms in entries]
    matrix = matrix_of([small[:3], small[3:]])
    columns = [matrix.column_exactly(j) for j in range(3)]
    picked = matrix.columns([2, 0])
    assert [picked.column_exactly(j) for j in range(2)] == [columns[2], columns[0]]
