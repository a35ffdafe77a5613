from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from neverseen.engine.fixedpoint import LIMB, FixedPoint
from neverseen.hardware import choose
from tests.samples import codes

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
def test_columns_can_be_picked_replaced_and_multiplied_by_codes(entries: list[list[tuple[int, int]]]) -> None:
    small = [[(block % 2**20, scale) for block, scale in terms] for terms in entries]
    matrix = matrix_of([small[:3], small[3:]])
    columns = [matrix.column_exactly(j) for j in range(3)]
    picked = matrix.columns([2, -1, 0])
    assert [picked.column_exactly(j) for j in range(3)] == [columns[2], [0, 0], columns[0]]
    code = codes("fixed", 4, 2).astype(np.int64)
    product = matrix.after_codes(code)
    for j in range(3):
        assert product.column_exactly(j) == [
            sum(int(c) * x for c, x in zip(row, columns[j], strict=True)) for row in code
        ]
    deep = FixedPoint([*matrix.limbs, NUMPY.zeros(2, 3) + 5], NUMPY)
    shallow = matrix.truncated(1)
    shallow = FixedPoint([limb + 0 for limb in shallow.limbs], NUMPY)
    shallow.set_columns([1], deep.columns([0]))
    assert shallow.column_exactly(1) == deep.column_exactly(0)
    assert shallow.column_exactly(0) == [int(limb) for limb in matrix.limbs[0][:, 0]]


@given(st.lists(TERMS, min_size=4, max_size=4), st.integers(2, 8))
@settings(max_examples=60)
def test_products_lose_no_more_than_is_proved(entries: list[list[tuple[int, int]]], limbs: int) -> None:
    small = [[(block % 2**20, scale + 20) for block, scale in terms] for terms in entries]
    left, right = matrix_of([small[:2]]), matrix_of([[small[2]], [small[3]]])
    total = FixedPoint.zeros(1, 1, hardware=NUMPY)
    total.add_product(left, right, limbs)
    exact = sum(value_of(small[i]) * value_of(small[2 + i]) for i in range(2))
    lost = abs(total.column_exactly(0)[0] - exact)
    assert lost <= Fraction(2 * limbs * 2**42 * (2**20 + 1), 2**20 << (LIMB * limbs))
    if limbs >= len(left.limbs) + len(right.limbs) - 1:
        assert lost == 0


def test_truncation_moves_entries_by_less_than_is_proved() -> None:
    matrix = matrix_of([[[(2**40 - 1, 170), (-(2**39), 100), (12345, 30)]]])
    for limbs in range(1, len(matrix.limbs) + 1):
        moved = abs(matrix.truncated(limbs).column_exactly(0)[0] - matrix.column_exactly(0)[0])
        assert moved < Fraction(1, 1 << (LIMB * (limbs - 1)))
