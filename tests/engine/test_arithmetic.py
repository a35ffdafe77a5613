from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from neverseen import HardwareError, LimitError
from neverseen.engine.arithmetic import CodeMatrix, GridWeights, exact_matmul, gram
from neverseen.engine.systems import IntegerSystem
from neverseen.hardware import FLOAT32_ROWS, INT8_PRODUCT, INT32_ROWS, Hardware, HardwareOf
from neverseen.hardware.numpy_cpu import NumpyHardware
from tests.samples import codes, uniform_bytes

SHAPES = [(0, 3), (1, 1), (1, 40), (2, 5), (17, 9), (100, 33), (1041, 24), (2500, 8)]


def slow_product(left: np.ndarray, right: np.ndarray) -> list[list[int]]:
    return (
        (left.astype(object) @ right.astype(object)).tolist() if left.shape[1] else [[0] * right.shape[1]] * len(left)
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_gram_is_exact(shape: tuple[int, int], hardware: Hardware) -> None:
    batch = codes("gram", *shape)
    assert hardware.numpy(gram(hardware.array(batch), hardware)).tolist() == slow_product(batch.T, batch)


@pytest.mark.parametrize("fill", [127, -127])
def test_gram_of_extremes_does_not_overflow(fill: int, hardware: Hardware) -> None:
    batch = np.full((FLOAT32_ROWS * 3 + 1, 16), fill, np.int8)
    assert (hardware.numpy(gram(hardware.array(batch), hardware)) == len(batch) * INT8_PRODUCT).all()


def test_chunks_are_as_large_as_proved_and_no_larger() -> None:
    assert FLOAT32_ROWS * INT8_PRODUCT < 2**24 <= (FLOAT32_ROWS + 1) * INT8_PRODUCT
    assert INT32_ROWS * INT8_PRODUCT < 2**31 <= (INT32_ROWS + 1) * INT8_PRODUCT


def test_gram_beyond_32_bits(hardware: Hardware) -> None:
    batch = np.full((INT32_ROWS + 5, 16), 127, np.int8)
    assert (hardware.numpy(gram(hardware.array(batch), hardware)) == len(batch) * INT8_PRODUCT).all()


def test_rows_too_long_for_32_bits_are_refused(hardware: Hardware) -> None:
    with pytest.raises(LimitError, match="too long for exact products"):
        CodeMatrix(np.zeros((INT32_ROWS + 1, 1), np.int8), hardware)


@pytest.mark.parametrize("columns", [1, 2, 3, 20])
@pytest.mark.parametrize("scale", [1, 10**6, 2**30, 2**34])
def test_system_products_are_exact_up_to_the_bound(columns: int, scale: int, hardware: Hardware) -> None:
    root = codes("system", 40, 24).astype(np.int64)
    matrix = (root.T @ root) * scale
    system = IntegerSystem(hardware.array(matrix), 3, hardware)
    limit = 1 << system.width(columns)
    draw = uniform_bytes("block", 24, columns, 8).copy().view(np.int64)[:, :, 0] % (2 * limit + 1) - limit
    draw[0], draw[1] = limit, -limit
    product = hardware.numpy(system.product(hardware.array(draw)))
    exact = matrix.astype(object) @ draw.astype(object) + 3 * draw.astype(object)
    assert product.tolist() == exact.tolist()
    assert max(abs(value) for value in exact.ravel()) < 2**62


@pytest.mark.parametrize("scale", [1, 10**6, 2**30, 2**34])
def test_a_measured_system_takes_wider_blocks_and_no_wider_than_proved(scale: int, hardware: Hardware) -> None:
    root = codes("measured", 60, 24).astype(np.int64)
    matrix = (root.T @ root) * scale
    plain = IntegerSystem(hardware.array(matrix), 3, hardware)
    measured = IntegerSystem(hardware.array(matrix), 3, hardware, measure=True)
    reach = int(np.abs(matrix).sum(axis=1).max()) + 3
    width = measured.width(1)
    assert plain.width(1) <= width <= 40
    assert plain.width(4) <= measured.width(4) <= width
    assert (measured.width(4) > plain.width(4)) == (scale > 1)  # where it is 1 float64 is the limit
    assert reach << width < 2**62  # no entry of a product can be larger
    worst = np.where(matrix[np.abs(matrix).sum(axis=1).argmax()] < 0, -1, 1)[:, None] << measured.width(4)
    block = np.repeat(worst, 4, axis=1)
    expected = slow_product(matrix + 3 * np.eye(24, dtype=np.int64), block)
    assert hardware.numpy(measured.product(hardware.array(block))).tolist() == expected


def test_a_block_over_the_bound_is_refused(hardware: Hardware) -> None:
    system = IntegerSystem(hardware.array(np.eye(8, dtype=np.int64)), 1, hardware)
    with pytest.raises(LimitError, match="exceeds 40 bits"):
        system.product(hardware.array(np.full((8, 3), 2**40 + 1)))


def test_sums_that_leave_no_room_are_refused(hardware: Hardware) -> None:
    with pytest.raises(LimitError, match="no room for exact products"):
        IntegerSystem(hardware.array(np.full((2, 2), 2**61)), 1, hardware)


@pytest.mark.parametrize("largest", [0, 1, 2**34, 2**45, 2**49])
def test_scores_are_exact(largest: int, hardware: Hardware) -> None:
    weights = (uniform_bytes("weights", 30, 4, 8).copy().view(np.int64)[:, :, 0] % (2 * largest + 1)) - largest
    batch = codes("scored", 25, 30)
    found = GridWeights(weights, hardware).scores(hardware.array(batch))
    assert found.tolist() == (batch.astype(object) @ weights.astype(object)).tolist()


def test_weights_too_large_for_scores_are_refused(hardware: Hardware) -> None:
    with pytest.raises(LimitError, match="too large for 64-bit scores"):
        GridWeights(np.full((2, 1), 2**55), hardware)


class Faulty(NumpyHardware):
    """Hardware that gets one entry of each product slightly wrong."""

    integers = False

    def matmul(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        product = super().matmul(left, right)
        product[-1, 0] += 1
        return product

    def int8_gram(self, codes: np.ndarray) -> np.ndarray:
        product = super().int8_gram(codes).astype(np.int64)
        product[0, -1] += 2**20
        return product

    def int8_matmul(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        product = super().int8_matmul(left, right)
        product[0, 0] = min(product[0, 0], 2**15)  # saturation in 16 bits
        return product


@pytest.mark.parametrize("rows", range(5))
@pytest.mark.parametrize(("inner", "columns"), [(0, 3), (1, 1), (7, 0), (300, 5), (5000, 3)])
def test_exact_products_are_those_of_python_integers(rows: int, inner: int, columns: int, hardware: Hardware) -> None:
    """Few rows take another way than many."""
    left = np.resize(np.array([127, -127, 1, 0, -126], np.int64), (rows, inner))
    right = np.resize(np.array([2**21, -(2**21), 2**21 - 1, 5], np.int64), (inner, columns))
    expected = (left.astype(object) @ right.astype(object)).astype(np.int64).reshape(rows, columns)
    found = hardware.numpy(exact_matmul(hardware.array(left), hardware.array(right), hardware))
    assert found.dtype == np.int64
    assert np.array_equal(found, expected)


def test_wrong_products_are_never_silent() -> None:
    faulty: HardwareOf[Any] = Faulty()
    with pytest.raises(HardwareError, match="Gram matrix computed on this machine fails its check"):
        gram(codes("faulty", 9, 5), faulty)
    with pytest.raises(HardwareError, match="product of features"):
        CodeMatrix(np.full((9, 4), 127, np.int8), faulty).after(np.full((20, 9), 127, np.int8))
    with pytest.raises(HardwareError, match="product with the system"):
        IntegerSystem(np.eye(6, dtype=np.int64), 1, faulty).product(np.ones((6, 3), np.int64))
    with pytest.raises(HardwareError, match="exact product"):
        GridWeights(np.ones((5, 2), np.int64), faulty).scores(codes("faulty", 9, 5))
    with pytest.raises(HardwareError, match="exact product"):
        exact_matmul(np.ones((3, 3), np.int64), np.ones((3, 3), np.int64), faulty)
