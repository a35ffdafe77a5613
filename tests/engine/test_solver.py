"""Hints, small changes and hard cases of the certified solve; `test_solver_oracle.py` proves the rounding itself."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from neverseen import HardwareError, IllConditionedError, InputError, LimitError
from neverseen.engine import refinement as refinement_module
from neverseen.engine.preconditioning import CholeskyFactor, Inverse, NoProgressError
from neverseen.engine.rational import eliminated
from neverseen.engine.refinement import Refinement
from neverseen.engine.solver import solve
from neverseen.engine.systems import IntegerSystem
from neverseen.hardware import Array, Hardware, HardwareOf, choose
from neverseen.hardware.numpy_cpu import NumpyHardware
from tests.samples import clustered
from tests.samples import codes as sample_codes

NUMPY = choose("numpy")
SIZE, CLASSES = 96, 5
CODES = np.abs(sample_codes("solver", 400, SIZE))
LABELS = clustered("solver", 400, 2, CLASSES)[1].astype(np.intp)


def sums(rows: np.ndarray | list[int]) -> tuple[np.ndarray, np.ndarray]:
    batch = CODES[rows].astype(np.int64)
    return batch.T @ batch, batch.T @ np.eye(CLASSES, dtype=np.int64)[LABELS[rows]]


def weights_of(rows: np.ndarray | list[int], gamma: int, grid_bits: int = 40) -> np.ndarray:
    return solve(*sums(rows), gamma, grid_bits).weights


def exact_weights(rows: np.ndarray | list[int], gamma: int, grid_bits: int = 40) -> list[list[int]]:
    gram, cross = sums(rows)
    return [[round(value * (1 << grid_bits)) for value in row] for row in eliminated(gram, gamma, cross)]


@pytest.mark.parametrize("gamma", [1, 2**16, 2**30])
@pytest.mark.parametrize("rows", [np.arange(400), np.arange(40), np.arange(1), np.zeros(50, np.intp)])
def test_every_hardware_gives_the_exact_weights(gamma: int, rows: np.ndarray, hardware: Hardware) -> None:
    gram, cross = sums(rows)
    solution = solve(hardware.array(gram), hardware.array(cross), gamma, hardware=hardware)
    assert np.array_equal(solution.weights, weights_of(rows, gamma))
    assert solution.weights.dtype == np.int64


@pytest.mark.parametrize("gamma", [1, 2**16])
def test_larger_systems_against_elimination(gamma: int) -> None:
    rows = np.arange(70)  # fewer samples than features
    assert weights_of(rows, gamma).tolist() == exact_weights(rows, gamma)


@pytest.mark.parametrize("gamma", [1, 2**10, 2**30])
def test_a_million_identical_rows(gamma: int) -> None:
    code = CODES[0].astype(np.int64)
    gram, cross = np.outer(code, code) * 10**6, code[:, None] * 10**6
    expected = [[round(value * 2**40) for value in row] for row in eliminated(gram[:40, :40], gamma, cross[:40])]
    assert solve(gram[:40, :40], cross[:40], gamma).weights.tolist() == expected
    # In closed form: W* = m c / (gamma + m |c|^2).
    total = gamma + 10**6 * int(code @ code)
    assert solve(gram, cross, gamma).weights[:, 0].tolist() == [
        round(Fraction(10**6 * int(c) << 40, total)) for c in code
    ]


def test_residual_bounds_hold() -> None:
    gram, cross = sums(np.arange(120))
    solution = solve(gram, cross, 2**12)
    for column in range(CLASSES):
        exact = solution.values.column_exactly(column)
        for row in range(SIZE):
            image = sum(int(a) * x for a, x in zip(gram[row], exact, strict=True)) + 2**12 * exact[row]
            assert abs(float(int(cross[row, column]) - image)) <= solution.residuals[column]


# -- hints and failures -------------------------------------------------------------------------------


def test_factors_of_other_systems_are_hints() -> None:
    gram, cross = sums(np.arange(300))
    expected = weights_of(np.arange(300), 2**16)
    other = solve(*sums(np.arange(50)), 2**16)
    assert isinstance(other.preconditioner, CholeskyFactor)
    near = np.linalg.inv(gram + 2**16 * np.eye(SIZE))
    for hint in (
        other,
        other.preconditioner,
        near,
        near.astype(np.float32),
        near[:3],
        np.zeros((SIZE, SIZE), complex).real,
    ):
        assert np.array_equal(solve(gram, cross, 2**16, hint=hint).weights, expected)


@pytest.mark.parametrize("ways", ["blocks", "reconstruction", "distance"])
def test_ties_are_settled_in_three_ways(ways: str, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 40
    gram = np.zeros((size, size), np.int64)
    gram[1:, 1:] = sums(np.arange(300))[0][: size - 1, : size - 1]
    gram[0, 0] = 2**13 - 2**10
    cross = np.ones((size, 2), np.int64)
    cross[0] = 3 << 7, -(5 << 7)  # W* = 3 / 64 and -5 / 64 beside entries of a denominator of hundreds of bits
    expected = [[round(value * 2**5) for value in row] for row in eliminated(gram, 2**10, cross)]
    if ways != "blocks":
        monkeypatch.setattr(refinement_module, "block_values", lambda *args: None)
    if ways == "distance":
        monkeypatch.setattr(refinement_module, "exact_solution", lambda *args: None)
    assert solve(gram, cross, 2**10, grid_bits=5).weights.tolist() == expected
    assert expected[0] == [2, -2]


def test_singular_cores_count_as_no_progress(hardware: Hardware) -> None:
    inverse = Inverse(hardware.array(np.eye(3)), hardware)
    with pytest.raises(NoProgressError):  # to take a unit vector away from the identity leaves nothing there
        inverse.after(hardware.array(np.array([[1.0, 0.0, 0.0]])), np.array([-1]))


@pytest.mark.parametrize("nonsense", [np.nan, np.inf, 1e300, 0.0])
def test_preconditioners_that_fail_count_as_no_progress(nonsense: float, hardware: Hardware) -> None:
    system = IntegerSystem(hardware.array(np.eye(3, dtype=np.int64)), 1, hardware)
    inverse = Inverse(hardware.array(np.full((3, 3), nonsense)), hardware)

    def raising(right: Array) -> Array:
        raise ValueError("singular")

    for precondition in (raising, inverse):
        with pytest.raises(NoProgressError):
            Refinement(system, hardware.array(np.ones((3, 1), np.int64))).step(precondition, 1)


def test_systems_beyond_float64_say_what_to_do() -> None:
    root = np.ones((1, 200), np.int64)
    gram = root.T @ root * 2**50
    with pytest.raises(
        IllConditionedError, match=r"with gamma = 1: no float64 factor of the system contracts. Raise gamma"
    ):
        solve(gram, np.ones((200, 3), np.int64), 1)
    weights = solve(gram[:20, :20], np.ones((20, 3), np.int64), 1).weights  # small: eliminated
    assert weights[0, 0] == round(Fraction(2**40, 1 + 20 * 2**50))


def test_weights_that_do_not_fit_are_refused() -> None:
    with pytest.raises(LimitError, match=r"does not fit the grid of 2\*\*-52"):
        solve(np.zeros((2, 2), np.int64), np.full((2, 1), 2**20), 1, grid_bits=52)


def test_shapes_are_checked() -> None:
    with pytest.raises(InputError, match="gram must be"):
        solve(np.zeros((2, 3), np.int64), np.zeros((2, 1), np.int64), 1)
    with pytest.raises(InputError, match="gram must be"):
        solve(np.zeros((2, 2), np.int64), np.zeros((3, 1), np.int64), 1)
    assert solve(np.zeros((2, 2), np.int64), np.zeros((2, 0), np.int64), 1).weights.shape == (2, 0)


def test_wrong_products_stop_the_solve() -> None:
    class Faulty(NumpyHardware):
        integers = False

        def matmul(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
            product = super().matmul(left, right)
            product[0, 0] *= 1 + 2.0**-30
            return product

    faulty: HardwareOf[Any] = Faulty()
    with pytest.raises(HardwareError, match="nothing was changed"):
        solve(*sums(np.arange(300)), 2**16, hardware=faulty)


def test_a_near_tie_below_every_float_is_not_a_tie() -> None:
    size, gamma = 99, 4
    gram = np.diag(np.full(size, 2**20 - gamma)) + np.diag(np.full(size - 1, 4), 1) + np.diag(np.full(size - 1, 4), -1)
    cross = np.zeros((size, 1), np.int64)
    cross[[0, 1, size - 1], 0] = 2**18, 1, 1  # W*_0 = 1/4 + 2**-1783
    weights = solve(gram, cross, gamma, grid_bits=1).weights
    expected = eliminated(gram, gamma, cross)
    assert expected[0][0] > Fraction(1, 4)
    assert weights[:, 0].tolist() == [round(2 * row[0]) for row in expected]
    assert weights[0, 0] == 1


def test_sums_of_no_samples_are_refused() -> None:
    with pytest.raises(IllConditionedError, match="not positive semidefinite"):
        solve(np.array([[0, 9], [9, 0]]), np.ones((2, 1), np.int64), 1)


def test_weights_too_large_after_elimination_are_refused() -> None:
    gram = np.full((20, 20), 2**50)
    with pytest.raises(LimitError, match="does not fit the grid"):
        solve(gram, np.diag(np.full(20, 2**30))[:, :1] - np.diag(np.full(20, 2**30))[:, 1:2], 1, grid_bits=52)


def test_no_features_have_no_weights_whatever_gamma() -> None:
    for gamma in (1, 2**30, 2**40):
        assert solve(np.zeros((0, 0), np.int64), np.zeros((0, 1), np.int64), gamma).weights.shape == (0, 1)


def test_sums_are_refused_by_all_or_by_none() -> None:
    gram = np.diag(np.full(1024, 2**50 + 1))
    with pytest.raises(LimitError, match="leave no room"):
        solve(gram, np.ones((1024, 3), np.int64), 2**40, 20)
    with pytest.raises(LimitError, match="leave no room"):
        IntegerSystem(gram, 2**40, choose("numpy"))


def test_whether_a_weight_fits_does_not_depend_on_the_way_to_it() -> None:
    gram, right = np.diag([2**30, 0]), np.array([[3], [2**22]])
    for columns in (1, 3):
        with pytest.raises(LimitError, match="does not fit the grid"):
            solve(gram, np.repeat(right, columns, axis=1), 1, 1)
