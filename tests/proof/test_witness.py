"""Weights are accepted exactly when they are the oracle's, whatever weights and witness hold."""
# ruff: noqa: S311 (seeded on purpose: the systems are the same in every run)

from __future__ import annotations

import math
import random
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neverseen import CertificateRejectedError, HardwareError, InputError
from neverseen.engine.following import Following
from neverseen.engine.solver import Solution, solve
from neverseen.engine.systems import IntegerSystem
from neverseen.hardware import Hardware, HardwareOf, choose
from neverseen.hardware.numpy_cpu import NumpyHardware
from neverseen.proof import witness as witness_module
from neverseen.proof.witness import MAX_BITS, Witness, _pieces, check_weights, make_witness
from tests import oracle
from tests.engine.test_following import follow, start
from tests.engine.test_solver import CLASSES, SIZE, sums
from tests.engine.test_solver_oracle import near_tie_system, samples

NUMPY = choose("numpy")
GAMMA, GRID_BITS = 2**12, 40


class Case:
    """A system, its weights and their witness."""

    def __init__(
        self, gram: np.ndarray, cross: np.ndarray, gamma: int = GAMMA, grid_bits: int = GRID_BITS, name: str = "numpy"
    ) -> None:
        self.hardware = choose(name)
        self.gram, self.cross, self.gamma, self.grid_bits = gram, cross, gamma, grid_bits
        self.solution = solve(
            self.hardware.array(gram), self.hardware.array(cross), gamma, grid_bits, hardware=self.hardware
        )
        self.weights = self.solution.weights
        self.witness = self.made(self.solution)

    def made(self, solution: Solution | Following) -> Witness:
        return make_witness(self.hardware.array(self.gram), self.hardware.array(self.cross), solution, self.hardware)

    def check(
        self,
        weights: np.ndarray | None = None,
        witness: Witness | None = None,
        gram: np.ndarray | None = None,
        cross: np.ndarray | None = None,
        gamma: int | None = None,
    ) -> None:
        check_weights(
            self.hardware.array(self.gram if gram is None else gram),
            self.hardware.array(self.cross if cross is None else cross),
            self.gamma if gamma is None else gamma,
            self.grid_bits,
            self.weights if weights is None else weights,
            self.witness if witness is None else witness,
            self.hardware,
        )

    def accepts(self, weights: np.ndarray) -> bool:
        try:
            self.check(weights)
        except CertificateRejectedError:
            return False
        return True


ROWS = np.arange(120)
CASE = Case(*sums(ROWS))


def assert_same(one: Witness, other: Witness) -> None:
    assert one.rests.dtype == other.rests.dtype
    assert np.array_equal(one.rests, other.rests)
    assert (one.bits, one.unproved) == (other.bits, other.unproved)


def moved(array: np.ndarray, row: int, column: int, by: int) -> np.ndarray:
    changed = array.copy()
    changed[row, column] += by
    return changed


# -- what is right ------------------------------------------------------------------------------------


@settings(max_examples=100)
@given(
    system=samples(),
    gamma=st.sampled_from([1, 2, 3, 7, 1001, 2**16, 2**30 - 35]),
    grid_bits=st.sampled_from([1, 20, 40, 48]),
    data=st.data(),
)
def test_the_oracles_weights_are_accepted_and_no_others(
    system: tuple[list[list[int]], list[list[int]]], gamma: int, grid_bits: int, data: st.DataObject
) -> None:
    gram, cross = (np.array(part, np.int64) for part in system)
    case = Case(gram, cross, gamma, grid_bits)
    expected = np.array(oracle.weights(*system, gamma, grid_bits), np.int64)
    case.check(expected)
    row, column = (data.draw(st.integers(0, size - 1)) for size in cross.shape)
    by = data.draw(st.sampled_from([-1, 1, 2, -(2**20), 2**50]))
    assert not case.accepts(moved(expected, row, column, by))


@pytest.mark.parametrize("gamma", [1, 2**12, 2**30])
def test_the_witness_is_the_rounded_rest(gamma: int) -> None:
    gram, cross = sums(ROWS)
    gram, cross = gram[:20, :20], cross[:20]
    case = Case(gram, cross, gamma)
    exact = oracle.exact_weights(gram.tolist(), cross.tolist(), gamma)
    scale = 2**case.witness.bits
    expected = [
        [round(scale * (value * 2**40 - int(weight))) for value, weight in zip(values, weights, strict=True)]
        for values, weights in zip(exact, case.weights, strict=True)
    ]
    assert case.witness.rests.tolist() == expected
    assert case.witness.unproved == ()


@pytest.mark.parametrize("gamma", [1, 2**6, 2**16, 2**30])
def test_every_hardware_makes_and_accepts_the_same(gamma: int, hardware: Hardware) -> None:
    gram, cross = sums(np.arange(300))
    case = Case(gram, cross, gamma, name=hardware.name)
    case.check()
    assert_same(case.witness, Case(gram, cross, gamma).witness)
    assert not case.accepts(moved(case.weights, 5, 2, 1))


def test_the_witness_does_not_show_how_weights_were_computed(hardware: Hardware) -> None:
    held = list(range(200))
    following = start(held, GAMMA, hardware)
    for step in range(40):
        come, go = ([200 + step], []) if step % 3 else ([], [held[step % len(held)]])
        followed = follow(following, hardware, held, come, go)
        assert followed is not None
        following, held = followed, [row for row in held if row not in go] + come
    case = Case(*sums(held), name=hardware.name)
    witness = case.made(following)
    case.check(following.weights, witness)
    assert_same(witness, case.witness)
    hopeless = replace(following, rests=following.rests + 0.25)  # floats that are no help
    assert_same(case.made(hopeless), case.witness)
    assert_same(case.made(replace(following, rests=following.rests * np.nan)), case.witness)


@pytest.mark.parametrize("error", [2.0**-31, 2.0**-22, 2.0**-12])
def test_a_start_that_is_a_little_wrong_changes_no_bit(error: float, monkeypatch: pytest.MonkeyPatch) -> None:
    made = witness_module._known_rests
    noise = np.sin(np.arange(CASE.weights.size)).reshape(CASE.weights.shape)
    monkeypatch.setattr(witness_module, "_known_rests", lambda *given: made(*given) + error * noise)
    for width in (16, 5):
        monkeypatch.setattr(IntegerSystem, "width", lambda system, columns, width=width: width)
        assert_same(CASE.made(CASE.solution), CASE.witness)
        CASE.check()


@pytest.mark.parametrize("classes", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 2, 40])
def test_small_sizes(size: int, classes: int) -> None:
    gram, cross = sums(ROWS)
    case = Case(gram[:size, :size], cross[:size, :classes])
    case.check()
    for by in (-1, 1):
        with pytest.raises(CertificateRejectedError, match="column 0 are not proved"):
            case.check(moved(case.weights, size - 1, 0, by))


@pytest.mark.parametrize("shape", [(0, 0), (5, 0)])
def test_a_model_without_samples(shape: tuple[int, int]) -> None:
    case = Case(np.zeros((shape[0], shape[0]), np.int64), np.zeros(shape, np.int64))
    case.check()
    assert case.witness.rests.shape == shape
    with pytest.raises(CertificateRejectedError, match="not an int64 array of shape"):
        case.check(np.zeros((5, 1), np.int64))


def test_features_that_never_occur() -> None:
    gram, cross = sums(ROWS)
    gram[3] = gram[:, 3] = cross[3] = 0
    case = Case(gram, cross)
    case.check()
    assert not case.witness.rests[3].any()
    assert not case.accepts(moved(case.weights, 3, 0, 1))


def test_many_columns_are_multiplied_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witness_module, "_WIDE", 2 * CLASSES)
    assert_same(CASE.made(CASE.solution), CASE.witness)
    CASE.check()


def test_large_weights_and_large_sums() -> None:
    # Weights of 2**20, and sums that leave two bits for a piece.
    case = Case(np.zeros((3, 3), np.int64), np.full((3, 2), 2**20 + 1), gamma=1, grid_bits=20)
    case.check()
    assert case.witness.unproved == ()
    wide = Case(np.diag([2**57, 5, 0]), np.array([[2**50], [3], [1]]), gamma=2**40)
    wide.check()
    assert wide.witness.unproved == ()
    assert not wide.accepts(moved(wide.weights, 0, 0, 1))
    # A weight too large for a piece is left to a solve.
    odd = Case(np.diag([2**57, 0, 0]), np.array([[2**56, 1], [2**19, 3], [0, 1]]), gamma=1, grid_bits=20)
    assert odd.witness.unproved == (0,)
    assert not odd.witness.rests[:, 0].any()
    odd.check()
    assert not odd.accepts(moved(odd.weights, 1, 0, 1))


# -- ties -----------------------------------------------------------------------------------------------


def tied(exact: bool) -> Case:
    """W* = 3/64 and -5/64 on a grid of 1/32, beside thirds (column 0) and, if `exact`, beside nothing else."""
    gram = np.diag([2**13 - 2**10, 2, 0]).astype(np.int64)
    cross = np.array([[3 << 7, -(5 << 7)], [0 if exact else 1, 0], [0, 0]], np.int64)
    return Case(gram, cross, 2**10, 5)


def test_ties_with_a_residual_of_zero_are_proved() -> None:
    case = tied(exact=True)
    assert case.weights[0].tolist() == [2, -2]
    assert case.witness.unproved == ()
    half = 1 << (case.witness.bits - 1)
    assert case.witness.rests[0].tolist() == [-half, -half]
    case.check()
    for by, rest in ((-1, half), (1, -3 * half)):
        assert not case.accepts(moved(case.weights, 0, 0, by))
        with pytest.raises(CertificateRejectedError):  # the other neighbour of the tie, with a witness to fit
            case.check(
                moved(case.weights, 0, 0, by), replace(case.witness, rests=moved(case.witness.rests, 0, 0, rest + half))
            )


def test_other_ties_are_left_to_a_solve() -> None:
    case = tied(exact=False)
    assert case.weights[0].tolist() == [2, -2]
    assert case.witness.unproved == (0,)
    assert not case.witness.rests[:, 0].any()
    case.check()
    with pytest.raises(CertificateRejectedError, match="row 0 of column 0 is wrong: 1 grid steps, and .* rounds to 2"):
        case.check(moved(case.weights, 0, 0, -1))
    with pytest.raises(CertificateRejectedError, match="column 0 are not proved"):
        case.check(witness=replace(case.witness, unproved=()))
    case.check(witness=replace(case.witness, unproved=(0, 1)))  # slower, and as sure


@pytest.mark.parametrize(("size", "bits"), [(2, 7), (2, 15), (3, 14), (5, 20)])
@pytest.mark.parametrize(("gamma", "grid_bits"), [(1, 40), (2**16, 20), (2**30 - 35, 40), (12, 1)])
def test_near_ties(size: int, bits: int, gamma: int, grid_bits: int) -> None:
    """One entry in each column is as near to a tie as its determinant allows: from 2**-30 to 2**-230."""
    system = near_tie_system(random.Random(size + gamma), size, bits, gamma, grid_bits)
    gram, cross = (np.array(part, np.int64) for part in system)
    expected = np.array(oracle.weights(*system, gamma, grid_bits), np.int64)
    case = Case(gram, cross, gamma, grid_bits)
    case.check(expected)
    for column in range(2 * size):
        for by in (-1, 1):
            assert not case.accepts(moved(expected, column // 2, column, by))


def test_systems_solved_by_elimination() -> None:
    case = Case(np.full((20, 20), 2**50), np.ones((20, 3), np.int64), 1)
    assert not np.isfinite(case.solution.residuals).any()
    case.check()
    assert case.weights[0, 0] == round(Fraction(2**40, 1 + 20 * 2**50))
    assert not case.accepts(moved(case.weights, 0, 0, 1))


def test_a_close_call_takes_more_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witness_module, "_MARGIN_BITS", -14)
    made = CASE.made(CASE.solution)
    assert made.bits == MAX_BITS
    assert made.unproved == ()
    CASE.check(witness=made)


# -- what is wrong --------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    row=st.integers(0, SIZE - 1),
    column=st.integers(0, CLASSES - 1),
    by=st.one_of(st.sampled_from([-1, 1]), st.integers(-(2**60), 2**60).filter(bool)),
)
def test_a_changed_weight_is_rejected(row: int, column: int, by: int) -> None:
    with pytest.raises(CertificateRejectedError, match=f"column {column} are not proved|is out of range"):
        CASE.check(moved(CASE.weights, row, column, by))


@settings(max_examples=60)
@given(row=st.integers(0, SIZE - 1), column=st.integers(0, CLASSES - 1), bit=st.integers(0, MAX_BITS - 2))
def test_a_changed_witness_proves_only_what_is_true(row: int, column: int, bit: int) -> None:
    """Weights stay right, so a change far down may pass; with other weights the same witness may not."""
    rests = CASE.witness.rests.astype(np.int64)
    rests[row, column] ^= 1 << bit
    changed = replace(CASE.witness, rests=rests)
    if bit >= 40:
        with pytest.raises(CertificateRejectedError):
            CASE.check(witness=changed)
    for by in (-1, 1):
        with pytest.raises(CertificateRejectedError):
            CASE.check(moved(CASE.weights, row, column, by), changed)


def test_a_unit_moved_from_weight_to_witness_is_rejected() -> None:
    """N + 1 and Z - 1 leave the same residual: the bound on the rest is what refuses them."""
    bits = CASE.witness.bits
    for by in (-1, 1):
        rests = moved(CASE.witness.rests.astype(np.int64), 7, 3, -by << bits)
        with pytest.raises(CertificateRejectedError, match="a rest is out of range"):
            CASE.check(moved(CASE.weights, 7, 3, by), replace(CASE.witness, rests=rests))


def test_the_bound_is_on_columns_and_not_on_entries() -> None:
    """A forged weight whose error is 2.5 times ``r / gamma``: A^-1 turns many small residuals into one large error."""
    size, unit, bits = 16, 2**14, 40
    signs = np.array([[1]])
    while len(signs) < size:
        signs = np.block([[signs, signs], [signs, -signs]])  # Hadamard's: H H = 16 I
    gram = 2**10 * unit * (4 * np.eye(size, dtype=np.int64) - signs)  # eigenvalues 0 and 2**27
    exact = np.zeros((size, 1), np.int64)
    exact[0] = 410  # W* = exact / unit, on a grid of 1/16: 0.4 steps in row 0
    cross = (gram + unit * np.eye(size, dtype=np.int64)) // unit @ exact
    case = Case(gram, cross, unit, 4)
    case.check(np.zeros((size, 1), np.int64))
    forged = exact * 0
    forged[0] = 1
    scaled = (exact - forged * 2**10) << (bits - 10)  # 2**t Z
    projection = np.eye(size) / 2 + signs / 8
    inverse = projection + (np.eye(size) - projection) / (1 + 2**13)  # of A / gamma
    error = np.rint(inverse @ np.sign(projection[0]) * -0.1 * 2**bits).astype(np.int64)[:, None]
    rests = scaled - error
    residual, sound = witness_module._residual(IntegerSystem(gram, unit, NUMPY), cross, (forged, 4), (rests, bits))
    assert sound.all()
    assert np.array_equal(residual, gram @ error + unit * error)
    assert abs(rests).max() + abs(residual).max() // unit < 2 ** (bits - 1) < abs(scaled[0, 0])
    with pytest.raises(CertificateRejectedError, match="column 0 are not proved"):
        case.check(forged, Witness(rests, bits))


@pytest.mark.parametrize("what", ["gram", "cross", "gamma"])
def test_changed_sums_are_rejected(what: str) -> None:
    gram, cross = sums(ROWS)
    gram[4, 9] += 1
    gram[9, 4] += 1
    cross[11, 2] -= 1
    change: dict[str, object] = {"gram": gram, "cross": cross, "gamma": GAMMA + 1}
    with pytest.raises(CertificateRejectedError, match="are not proved.*one of them was altered"):
        CASE.check(**{what: change[what]})  # type: ignore[arg-type]


def test_the_witness_of_another_model_is_rejected() -> None:
    other = Case(*sums(ROWS[1:]))
    with pytest.raises(CertificateRejectedError, match="are not proved"):
        CASE.check(witness=other.witness)
    with pytest.raises(CertificateRejectedError, match="are not proved"):
        CASE.check(other.weights, other.witness)
    with pytest.raises(CertificateRejectedError, match="are not proved"):
        CASE.check(witness=Witness(np.zeros(CASE.weights.shape, np.int8), 1))


@settings(max_examples=150)
@given(data=st.data())
def test_hostile_numbers_never_wrap(data: st.DataObject) -> None:
    """Extremes of int64 everywhere: rejected, or proved, but never computed wrongly. Numbers are watched on the way."""
    extreme = st.sampled_from([0, 1, -1, 2**31, 2**60, -(2**60), 2**61, -(2**61), 2**62, 2**63 - 1, -(2**63)])
    entry = st.one_of(extreme, st.integers(-(2**63), 2**63 - 1))
    size, classes = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))

    def matrix(rows: int, columns: int) -> np.ndarray:
        row = st.lists(entry, min_size=columns, max_size=columns)
        return np.array(data.draw(st.lists(row, min_size=rows, max_size=rows)), np.int64)

    if data.draw(st.booleans()):
        codes = data.draw(st.lists(st.integers(-127, 127), min_size=size, max_size=size))
        gram = np.outer(codes, codes).astype(np.int64) * data.draw(st.sampled_from([1, 2**20, 2**43]))
    else:
        gram = matrix(size, size)
    cross, weights, rests = (matrix(size, classes) for _ in range(3))
    bits, gamma = data.draw(st.integers(1, MAX_BITS)), data.draw(st.sampled_from([1, 2**20, 2**40]))
    if data.draw(st.booleans()):
        rests = rests >> (64 - bits)
        weights = weights >> 2
    unproved = tuple(column for column in range(classes) if data.draw(st.booleans()))
    with np.errstate(all="raise"):
        try:
            check_weights(gram, cross, gamma, 5, weights, Witness(rests, bits, unproved))
        except CertificateRejectedError:
            return
    assert weights.tolist() == oracle.weights(gram.tolist(), cross.tolist(), gamma, 5)


@settings(max_examples=100)
@given(
    values=st.lists(st.integers(-(2**61), 2**61), min_size=1, max_size=5),
    bits=st.integers(0, 60),
    width=st.integers(2, 40),
)
def test_pieces_add_up_and_are_narrow(values: list[int], bits: int, width: int) -> None:
    total, place = [0] * len(values), 0
    for number, (shift, piece) in enumerate(_pieces(np.array(values)[:, None], bits, width)):
        assert shift <= width
        place += shift
        total = [(sofar << shift) + digit for sofar, digit in zip(total, piece[:, 0].tolist(), strict=True)]
        if number:
            assert max(abs(piece)) <= 2 ** (shift - 1)
    assert place == bits
    assert total == values


def test_the_residual_is_exact_or_given_up() -> None:
    rng = np.random.default_rng(5)
    gram, cross = sums(ROWS)
    for scale, bits in ((2**61, 40), (2**50, 40), (2**41, 40), (2**30, 10)):
        system = IntegerSystem(gram, GAMMA, NUMPY)
        values = rng.integers(-scale, scale, cross.shape)
        residual, sound = witness_module._residual(system, cross, (values, bits), (values >> 2, 3))
        for column in np.flatnonzero(sound)[:2]:
            joint = [8 * value + (value >> 2) for value in values[:, column].tolist()]
            expected = [
                (int(cross[row, column]) << (bits + 3))
                - sum(a * x for a, x in zip(gram[row].tolist(), joint, strict=True))
                - GAMMA * joint[row]
                for row in range(4)
            ]
            assert residual[:4, column].tolist() == expected
        assert sound.all() == (scale == 2**30)


def test_products_on_the_way_are_bounded_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block that reaches the hardware is within its width, also for a witness of extremes."""
    seen: list[float] = []
    product = IntegerSystem.product

    def watched(system: IntegerSystem, block: np.ndarray) -> np.ndarray:
        seen.append(float(abs(block).max()) / 2 ** system.width(block.shape[1]))
        return np.asarray(product(system, block))

    monkeypatch.setattr(IntegerSystem, "product", watched)
    rests = np.full(CASE.weights.shape, 2**59)
    for weights in (np.full(CASE.weights.shape, 2**61), np.full(CASE.weights.shape, -(2**40)), CASE.weights):
        with pytest.raises(CertificateRejectedError):
            CASE.check(weights, Witness(rests, 60))
    assert max(seen) <= 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rests": np.zeros((2, 2), np.int64)}, "not an array of integers of shape"),
        ({"rests": np.zeros(CASE.weights.shape)}, "not an array of integers of shape"),
        ({"rests": np.zeros(CASE.weights.shape, np.uint64)}, "not an array of integers of shape"),
        ({"rests": CASE.witness.rests.tolist()}, "not an array of integers of shape"),
        ({"bits": 0}, "has 0 bits"),
        ({"bits": 61}, "has 61 bits"),
        ({"bits": 44.0}, "has 44.0 bits"),
        ({"bits": True}, "has True bits"),
        ({"unproved": (CLASSES,)}, "is not a list of columns"),
        ({"unproved": (-1,)}, "is not a list of columns"),
        ({"unproved": (1, 0)}, "is not a list of columns"),
        ({"unproved": (1, 1)}, "is not a list of columns"),
        ({"unproved": (False,)}, "is not a list of columns"),
    ],
)
def test_a_malformed_witness_is_rejected(changes: dict[str, object], words: str) -> None:
    with pytest.raises(CertificateRejectedError, match=words):
        CASE.check(witness=replace(CASE.witness, **changes))  # type: ignore[arg-type]


def test_malformed_weights_are_rejected() -> None:
    for weights in (CASE.weights[:-1], CASE.weights.astype(np.float64), CASE.weights.astype(np.int32)):
        with pytest.raises(CertificateRejectedError, match="weights are not an int64 array of shape"):
            CASE.check(weights)


def test_matrices_that_are_no_gram_matrices_are_rejected() -> None:
    for row, column, value in ((0, 0, -1), (3, 5, 2**62), (3, 5, -(2**63))):
        gram = CASE.gram.copy()
        gram[row, column] = value
        with pytest.raises(CertificateRejectedError, match="no Gram matrix"):
            CASE.check(gram=gram)
    with pytest.raises(CertificateRejectedError, match="too large for the weights to be checked"):
        CASE.check(gram=np.diag(np.full(SIZE, 2**60)))
    singular, ones = np.full((200, 200), 2**50), np.ones((200, 1), np.int64)
    with pytest.raises(
        CertificateRejectedError, match="cannot be proved to come from samples: .*gamma = 1 is too small"
    ):
        check_weights(singular, ones, 1, 40, ones, Witness(ones * 0, 1, (0,)))


def test_a_matrix_that_is_not_symmetric_is_rejected() -> None:
    gram = CASE.gram.copy()
    gram[4, 9] += 1
    with pytest.raises(CertificateRejectedError, match="no Gram matrix"):
        CASE.check(gram=gram)


def test_arguments_are_checked() -> None:
    with pytest.raises(InputError, match="gram must be"):
        CASE.check(gram=CASE.gram[1:])
    for wrong in (0, -1, 2.0, True):
        with pytest.raises(InputError, match="gamma must be at least 1"):
            CASE.check(gamma=wrong)  # type: ignore[arg-type]


def test_wrong_products_are_not_silent() -> None:
    class Faulty(NumpyHardware):
        def matmul(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
            product = np.asarray(super().matmul(left, right))
            product[1, 1] += 1
            return product

    faulty: HardwareOf[Any] = Faulty()
    with pytest.raises(HardwareError):
        check_weights(CASE.gram, CASE.cross, GAMMA, GRID_BITS, CASE.weights, CASE.witness, faulty)


def test_the_root_is_rounded_up() -> None:
    assert [witness_module._root(size) for size in (1, 2, 4, 5, 9, 10, 2**40)] == [1, 2, 2, 3, 3, 4, 2**20]
    assert all(witness_module._root(size) >= math.sqrt(size) for size in range(1, 3000))
