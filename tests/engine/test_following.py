"""Small changes followed from an earlier solution end in the bits of a full solve."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from neverseen import HardwareError
from neverseen.engine import following as following_module
from neverseen.engine.following import Following
from neverseen.engine.preconditioning import ApproximateInverse, Corrected
from neverseen.engine.solver import solve
from neverseen.hardware import Hardware, HardwareOf, choose
from neverseen.hardware.numpy_cpu import NumpyHardware
from tests.engine.test_solver import CLASSES, CODES, LABELS, SIZE, sums, weights_of

NUMPY = choose("numpy")


def start(rows: list[int], gamma: int, hardware: Hardware) -> Following:
    gram, cross = sums(rows)
    found = Following.of(solve(hardware.array(gram), hardware.array(cross), gamma, hardware=hardware), hardware)
    assert found is not None
    return found


def follow(
    earlier: Following, hardware: Hardware, before: list[int], come: list[int], go: list[int]
) -> Following | None:
    after = [row for row in before if row not in go] + come
    gram, cross = sums(after)
    changed = come + go
    signs = np.array([1] * len(come) + [-1] * len(go))
    return earlier.after(
        hardware.array(gram), hardware.array(cross), hardware.array(CODES[changed]), signs, LABELS[changed], hardware
    )


def exact_column(following: Following, column: int) -> list[Fraction]:
    """X0 + L R, written out in fractions."""
    right = following.rights.column_exactly(column)
    base = following.base.column_exactly(column)
    return [
        base[row] + sum((x * y for x, y in zip(following.lefts.row_exactly(row), right, strict=True)), Fraction(0))
        for row in range(SIZE)
    ]


def assert_claims_are_true(following: Following, rows: list[int], gamma: int, some: int = SIZE) -> None:
    """Weights, residual bounds and rests are what they claim to be."""
    gram, cross = sums(rows)
    assert np.array_equal(following.weights, weights_of(rows, gamma))
    for column in range(CLASSES):
        exact = exact_column(following, column)
        residual = [
            int(cross[row, column])
            - gamma * exact[row]
            - sum(int(a) * x for a, x in zip(gram[row], exact, strict=True))
            for row in range(some)
        ]
        assert sum(float(part) ** 2 for part in residual) ** 0.5 <= following.residuals[column]
        for row in range(SIZE):
            rest = exact[row] * 2**40 - int(following.weights[row, column])
            claimed = Fraction(float(following.rests[row, column]))
            assert abs(rest - claimed) <= Fraction(float(following.rest_errors[column]))


@pytest.mark.parametrize("gamma", [2**6, 2**16, 2**30])
@pytest.mark.parametrize(("come", "go"), [([], [7]), ([301], []), ([], [1, 2, 3]), ([301, 302], [5, 6]), ([303], [3])])
def test_a_followed_change_gives_the_bits_of_a_full_solve(
    gamma: int, come: list[int], go: list[int], hardware: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(hardware), "follows", 4)  # also where to solve anew would be faster
    before = list(range(300))
    followed = follow(start(before, gamma, hardware), hardware, before, come, go)
    assert followed is not None
    assert isinstance(followed.preconditioner, Corrected)
    assert_claims_are_true(followed, [row for row in before if row not in go] + come, gamma)


def test_changes_can_be_followed_for_long(hardware: Hardware) -> None:
    held = list(range(200))
    following = start(held, 2**14, hardware)
    for step in range(60):
        come, go = ([200 + step], []) if step % 3 else ([], [held[step % len(held)]])
        followed = follow(following, hardware, held, come, go)
        assert followed is not None
        following, held = followed, [row for row in held if row not in go] + come
        if step % 10 == 9:
            assert np.array_equal(following.weights, weights_of(held, 2**14))
    assert_claims_are_true(following, held, 2**14, some=8)
    assert following.residuals.max() < 2**14 * 2.0**-60  # 2**-20 grid steps
    assert following.rest_errors.max() < 2.0**-14


@pytest.mark.parametrize("looked_up", [True, False])
def test_entries_near_a_half_are_looked_up_and_columns_refined(
    looked_up: bool, hardware: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following_module, "_MAX_DOUBT", 1.0)
    before = list(range(300))
    following = start(before, 2**16, hardware)
    if looked_up:  # rests so uncertain that a dozen entries of each column are in doubt
        doubtful = replace(following, rest_errors=np.full(CLASSES, 0.05))
        monkeypatch.setattr(Following, "_refined", None)
    else:  # a residual bound of a quarter of a grid step: true, and too weak to decide
        residuals = following.residuals.copy()
        residuals[[1, 3]] = 2**16 * 2.0**-42
        doubtful = replace(following, residuals=residuals)
    followed = follow(doubtful, hardware, before, [], [17])
    assert followed is not None
    after = [row for row in before if row != 17]
    assert_claims_are_true(followed, after, 2**16)
    if not looked_up:
        assert followed.residuals.max() < 2**16 * 2.0**-65
        assert not any(hardware.numpy(limb)[:, [1, 3]].any() for limb in followed.rights.limbs)
        again = follow(followed, hardware, after, [], [18])
        assert again is not None
        assert_claims_are_true(again, [row for row in after if row != 18], 2**16)


def test_too_many_entries_in_doubt_are_refined_by_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following_module, "_FEW", 0)
    monkeypatch.setattr(following_module, "_MAX_DOUBT", 1.0)
    before = list(range(300))
    doubtful = replace(start(before, 2**16, NUMPY), rest_errors=np.full(CLASSES, 0.05))
    followed = follow(doubtful, NUMPY, before, [], [17])
    assert followed is not None
    assert_claims_are_true(followed, [row for row in before if row != 17], 2**16)


def test_samples_of_zeros_change_nothing() -> None:
    before = list(range(300))
    gram, cross = sums(before)
    following = start(before, 2**16, NUMPY)
    followed = following.after(gram, cross, np.zeros((2, SIZE), np.int8), np.array([1, -1]), np.array([0, 1]), NUMPY)
    assert followed is not None
    assert np.array_equal(followed.weights, following.weights)


def test_classes_come_and_go_with_columns() -> None:
    before = list(range(300))
    gram, cross = sums(before)
    # Drop column 2 (its samples stay in G: as if they had a label of no class), and add an empty class in front.
    kept = [-1, 0, 1, 3, 4]
    moved = start(before, 2**16, NUMPY).with_columns(kept)
    assert moved.residuals[0] == 0
    change = CODES[[7]]
    gram2 = gram - np.outer(change[0].astype(int), change[0].astype(int))
    cross2 = np.concatenate([np.zeros((SIZE, 1), np.int64), cross[:, kept[1:]]], axis=1)
    label = LABELS[7]
    target = kept.index(label) if label in kept else -1
    if target >= 0:
        cross2[:, target] -= change[0]
    followed = moved.after(gram2, cross2, change, np.array([-1]), np.array([target]), NUMPY)
    assert followed is not None
    assert np.array_equal(followed.weights, solve(gram2, cross2, 2**16).weights)
    assert not followed.weights[:, 0].any()


def test_what_cannot_be_followed_is_left_to_a_full_solve() -> None:
    before = list(range(300))
    following = start(before, 2**16, NUMPY)
    assert follow(following, NUMPY, before, [], list(range(100))) is None  # too many at once
    for matrix in (np.zeros((SIZE, SIZE)), np.full((SIZE, SIZE), np.nan), np.eye(SIZE)):
        useless = replace(following, preconditioner=ApproximateInverse(matrix, NUMPY))
        assert follow(useless, NUMPY, before, [], [3]) is None
    hopeless = replace(following, residuals=np.full(CLASSES, 1e30))
    assert follow(hopeless, NUMPY, before, [], [3]) is None
    eliminated = solve(np.full((20, 20), 2**50), np.ones((20, 3), np.int64), 1)
    assert Following.of(eliminated, NUMPY) is None
    rank = following_module._MAX_RANK
    full = replace(following, lefts=following.lefts.beside(following.base.columns([0] * rank)))
    assert follow(full, NUMPY, before, [], [3]) is None


@pytest.mark.parametrize("fault", [7.0, np.nan])
def test_a_wrong_float_product_is_not_silent(fault: float) -> None:
    class Faulty(NumpyHardware):
        def matmul(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
            product = super().matmul(left, right)
            if product.shape == (SIZE, CLASSES) and left.shape[1] == 1:
                product[0, 0] += fault
            return np.asarray(product)

    faulty: HardwareOf[Any] = Faulty()
    before = list(range(300))
    following = start(before, 2**16, NUMPY)
    gram, cross = sums(before[1:])
    with pytest.raises(HardwareError, match="wrong beyond rounding"):
        following.after(gram, cross, CODES[:1], np.array([-1]), LABELS[:1], faulty)
