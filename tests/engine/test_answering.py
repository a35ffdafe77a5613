"""Labels that are proved without weights are those of the weights; what cannot be proved is not claimed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from neverseen.engine.answering import _Asked, _leading, leading_columns
from neverseen.engine.preconditioning import CholeskyFactor, Inverse, Preconditioner
from neverseen.engine.solver import solve
from neverseen.hardware import Array, Hardware, choose
from tests.engine.test_following import changed
from tests.engine.test_solver import CLASSES, CODES, LABELS, SIZE, sums, weights_of

NUMPY = choose("numpy")
QUERIES = CODES[380:396]


def counts_of(rows: list[int]) -> np.ndarray:
    return np.bincount(LABELS[rows], minlength=CLASSES)


def asked(
    rows: list[int],
    gamma: int,
    queries: np.ndarray = QUERIES,
    *,
    hardware: Hardware = NUMPY,
    precondition: Preconditioner | None = None,
    cross: np.ndarray | None = None,
    grid_bits: int = 40,
) -> np.ndarray:
    gram, own = sums(rows)
    used = own if cross is None else cross
    if precondition is None:
        precondition = solve(hardware.array(gram), hardware.array(own), gamma, hardware=hardware).preconditioner
    return leading_columns(
        changed(gram, gamma, hardware),
        hardware.array(np.ascontiguousarray(used.T)),
        counts_of(rows),
        hardware.array(queries),
        grid_bits,
        precondition,
    )


@pytest.mark.parametrize("gamma", [1, 2**10, 2**16, 2**30])
@pytest.mark.parametrize("held", [370, 60])
def test_proved_labels_are_those_of_the_weights(gamma: int, held: int, hardware: Hardware) -> None:
    rows = list(range(held))
    found = asked(rows, gamma, hardware=hardware)
    exact = (QUERIES.astype(np.int64) @ weights_of(rows, gamma)).argmax(axis=1)
    assert ((found == exact) | (found == -1)).all()
    if hardware.integers or gamma > 1:  # without integer products, there are too few bits for an ill-conditioned system
        assert (found == exact).all()  # nothing here is so near a tie


@pytest.mark.parametrize(("come", "go"), [([], [7]), ([371, 372], list(range(20))), ([], list(range(120)))])
def test_the_inverse_of_before_serves_after_a_change(come: list[int], go: list[int], hardware: Hardware) -> None:
    before, gamma = list(range(370)), 2**14
    after = [row for row in before if row not in go] + come
    gram, cross = (hardware.array(part) for part in sums(before))
    earlier = solve(gram, cross, gamma, hardware=hardware).preconditioner
    signs = np.array([1] * len(come) + [-1] * len(go))
    system = changed(sums(before)[0], gamma, hardware, CODES[come + go], signs)  # what came and went still waits
    right = hardware.array(np.ascontiguousarray(sums(after)[1].T))
    found = leading_columns(system, right, counts_of(after), hardware.array(QUERIES), 40, earlier)
    assert np.array_equal(found, (QUERIES.astype(np.int64) @ weights_of(after, gamma)).argmax(axis=1))


class _Wild:
    """An approximate inverse that is none."""

    def __init__(self, make: Any) -> None:
        self._make = make

    def __call__(self, right: Array) -> Array:
        made: Array = self._make(right)
        return made


@pytest.mark.parametrize(
    "make",
    [
        lambda right: right * np.nan,
        lambda right: right * np.inf,
        lambda right: right * 0.0,
        lambda right: -right,
        lambda right: right * 1e300,
        lambda right: right[::-1].copy(),
        lambda right: np.random.default_rng(0).normal(size=right.shape),
    ],
)
def test_a_nonsense_inverse_proves_nothing_wrong(make: Any) -> None:
    rows = list(range(370))
    exact = (QUERIES.astype(np.int64) @ weights_of(rows, 2**10)).argmax(axis=1)
    with np.errstate(all="ignore"):
        found = asked(rows, 2**10, precondition=_Wild(make))
    assert ((found == exact) | (found == -1)).all()


def test_an_inverse_that_fails_or_is_of_another_size_leaves_all_undecided() -> None:
    rows = list(range(370))

    def fails(right: Array) -> Array:
        raise RuntimeError

    assert (asked(rows, 2**10, precondition=_Wild(fails)) == -1).all()
    assert (asked(rows, 2**10, precondition=Inverse(np.eye(SIZE + 1), NUMPY)) == -1).all()


def test_equal_scores_are_left_undecided() -> None:
    rows = list(range(370))
    gram, cross = sums(rows)
    cross[:, 1] = cross[:, 0]  # two classes with the same samples: all their scores are equal
    gram_and = asked(rows, 2**10, cross=cross)
    scores = QUERIES.astype(np.int64) @ solve(gram, cross, 2**10).weights
    tied = scores.argmax(axis=1) == 0
    assert (gram_and[tied] == -1).all()
    assert np.array_equal(gram_and[~tied], scores.argmax(axis=1)[~tied])
    assert tied.any()
    assert (~tied).any()


def test_a_lead_smaller_than_the_rounding_of_weights_is_left_undecided() -> None:
    """On a coarse grid, rounded weights may rank classes otherwise than the solution does."""
    rows, gamma = list(range(370)), 2**10
    queries = CODES[:370]
    differ = 0
    for grid_bits in (8, 12, 20):
        scores = queries.astype(np.int64) @ weights_of(rows, gamma, grid_bits)
        found = asked(rows, gamma, queries, grid_bits=grid_bits)
        assert ((found == scores.argmax(axis=1)) | (found == -1)).all()
        fine = (queries.astype(np.int64) @ weights_of(rows, gamma)).argmax(axis=1)
        differ += int((scores.argmax(axis=1) != fine).sum())
    assert differ  # the coarse grids do rank some otherwise


def test_samples_of_zeros_single_classes_and_nothing_at_all() -> None:
    rows = list(range(370))
    nothing = np.zeros((2, SIZE), np.int8)
    assert (asked(rows, 2**10, nothing) == -1).all()  # all scores are 0
    assert asked(rows, 2**10, np.vstack([QUERIES[:1], nothing[:1]]))[1] == -1
    gram, cross = sums(rows)
    only = leading_columns(
        changed(gram, 2**10, NUMPY), cross[:, :1].T, np.array([80]), QUERIES, 40, CholeskyFactor(np.eye(SIZE), NUMPY)
    )
    assert ((only == 0) | (only == -1)).all()
    assert asked(rows, 2**10, QUERIES[:0]).shape == (0,)
    none = leading_columns(
        changed(gram, 2**10, NUMPY), cross[:, :0].T, np.zeros(0), QUERIES, 40, CholeskyFactor(np.eye(SIZE), NUMPY)
    )
    assert (none == -1).all()


@pytest.mark.parametrize("extreme", [-127, 127])
def test_codes_at_the_limits_and_ill_conditioned_sums(extreme: int) -> None:
    rows = [0] * 300 + [1] * 2  # nearly singular: two directions
    queries = np.vstack([QUERIES, np.full((1, SIZE), extreme, np.int8)])
    for gamma in (1, 2**40):
        found = asked(rows, gamma, queries)
        exact = (queries.astype(np.int64) @ weights_of(rows, gamma)).argmax(axis=1)
        assert ((found == exact) | (found == -1)).all()


def test_a_lead_is_counted_from_both_bounds() -> None:
    scores, errors = np.array([[1.0, 3.0, 2.5]]), np.array([[0.0, 0.2, 0.2]])
    best, leads = _leading(scores, errors)
    assert best.tolist() == [1]
    assert leads[0] == pytest.approx(0.1)
    assert _leading(np.array([[2.0]]), np.array([[9.0]]))[1][0] == np.inf


def test_a_poor_solution_proves_little_and_nothing_wrong() -> None:
    rows, gamma = list(range(370)), 2**16
    gram, cross = sums(rows)
    exact = (QUERIES.astype(np.int64) @ weights_of(rows, gamma)).argmax(axis=1)
    best = np.linalg.solve(gram + gamma * np.eye(SIZE), QUERIES.T.astype(np.float64))
    seen = set[object]()
    for number in range(40):
        noise = np.random.default_rng(number).normal(size=best.shape) * np.abs(best).max() * 2.0 ** -(number / 2)
        asked = _Asked(changed(gram, gamma, NUMPY), np.ascontiguousarray(cross.T), counts_of(rows), QUERIES, 52)
        found, *used = asked.proved(best + noise)
        solution, residual = map(NUMPY.numpy, used)
        wanted = QUERIES.T - (gram + gamma * np.eye(SIZE)) @ solution
        assert np.allclose(residual, wanted, rtol=0, atol=1e-9 * np.abs(wanted).max() + 1e-6)
        assert ((found == exact) | (found == -1)).all()
        seen.update(("nothing", "all")[int(found[0] >= 0)] for _ in range(len(set(found >= 0)) == 1))
        guess = ((best + noise).T @ cross).argmax(axis=1)
        if (guess != exact).any():
            seen.add("misled")
    assert seen == {"nothing", "all", "misled"}
