"""Changes followed from an earlier solution end in the bits of a full solve."""

from __future__ import annotations

import functools
from dataclasses import replace
from fractions import Fraction
from typing import Any, cast

import numpy as np
import pytest

from neverseen import HardwareError
from neverseen.engine import following as following_module
from neverseen.engine.captured import Captured
from neverseen.engine.following import Following, can_follow
from neverseen.engine.preconditioning import MOST_CORRECTIONS, Inverse
from neverseen.engine.rational import eliminated
from neverseen.engine.solver import solve
from neverseen.engine.systems import ChangedSystem, IntegerSystem
from neverseen.hardware import Hardware, HardwareOf, choose
from neverseen.hardware.numpy_cpu import NumpyHardware
from tests.conftest import hardware_here
from tests.engine.test_solver import CLASSES, CODES, LABELS, SIZE, sums, weights_of
from tests.samples import codes as sample_codes

NUMPY = choose("numpy")


def tensors(fused: bool = False) -> Any:
    pytest.importorskip("torch")
    from tests.hardware.cpu_tensors import CpuTensors

    return CpuTensors(fused)  # type: ignore[abstract]


@pytest.fixture(params=[*hardware_here(), "cpu tensors", "fused"])
def hardware(request: pytest.FixtureRequest) -> Hardware:
    """Every kind of hardware here, and the code for a GPU."""
    if request.param not in ("cpu tensors", "fused"):
        return choose(request.param)
    return cast("Hardware", tensors(request.param == "fused"))


def start(rows: list[int], gamma: int, hardware: Hardware) -> Following:
    gram, cross = sums(rows)
    found = Following.of(solve(hardware.array(gram), hardware.array(cross), gamma, hardware=hardware), hardware)
    assert found is not None
    return found


def changed(
    gram: np.ndarray, gamma: int, hardware: Hardware, codes: np.ndarray | None = None, signs: Any = ()
) -> ChangedSystem:
    """Return a system of which the last samples still wait."""
    base = IntegerSystem(hardware.array(gram), gamma, hardware, measure=True)
    after = gram if codes is None else gram + codes.T.astype(np.int64) @ (np.array(signs)[:, None] * codes)
    waiting = None if codes is None else hardware.array(codes)
    lengths = np.zeros(0) if codes is None else np.abs(codes.astype(np.float64)).sum(axis=1)
    return ChangedSystem(base, waiting, np.array(signs), lengths, lambda: hardware.array(after))


def follow(
    earlier: Following, hardware: Hardware, before: list[int], come: list[int], go: list[int], waiting: bool = False
) -> Following | None:
    after = [row for row in before if row not in go] + come
    rows = come + go
    signs = np.array([1] * len(come) + [-1] * len(go))
    gram, cross = sums(after)
    if waiting:
        system = changed(sums(before)[0], earlier.gamma, hardware, CODES[rows], signs)
    else:
        system = changed(gram, earlier.gamma, hardware)
    return earlier.after(
        system, lambda columns: hardware.array(cross[:, columns]), hardware.array(CODES[rows]), signs, LABELS[rows]
    )


def assert_claims_are_true(following: Following, rows: list[int], columns: range = range(CLASSES)) -> None:
    """Weights are right, and steps and rests as near to the solution as they claim."""
    gram, cross = sums(rows)
    assert np.array_equal(following.weights, weights_of(rows, following.gamma))
    doubts = following.slips + following.residuals / following.gamma
    rests = following.hardware.numpy(following.rests)
    for column in columns:
        exact = eliminated(gram, following.gamma, cross[:, [column]])
        for row in range(SIZE):
            off = exact[row][0] * 2**40 - int(following.weights[row, column]) - Fraction(float(rests[row, column]))
            assert abs(off) <= Fraction(float(doubts[column]))


@pytest.mark.parametrize("waiting", [False, True])
@pytest.mark.parametrize("gamma", [2**6, 2**16, 2**30])
@pytest.mark.parametrize(("come", "go"), [([], [7]), ([301], []), ([], [1, 2, 3]), ([301, 302], [5, 6]), ([303], [3])])
def test_a_followed_change_gives_the_bits_of_a_full_solve(
    gamma: int, come: list[int], go: list[int], waiting: bool, hardware: Hardware
) -> None:
    before = list(range(300))
    followed = follow(start(before, gamma, hardware), hardware, before, come, go, waiting)
    assert followed is not None
    after = [row for row in before if row not in go] + come
    assert_claims_are_true(followed, after, range(1 if waiting and len(come) == len(go) == 1 else 0))
    assert (followed.slips + followed.residuals / gamma).max() < 2.0**-18


@pytest.mark.parametrize(("gamma", "waiting"), [(2**4, True), (2**16, False)])
def test_the_largest_codes_of_both_signs_are_followed(
    gamma: int, waiting: bool, hardware: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    largest = np.where(sample_codes("both signs", 400, SIZE) < 0, -127, 127).astype(np.int8)
    for place in ("tests.engine.test_solver", __name__):
        monkeypatch.setattr(f"{place}.CODES", largest)
    held = list(range(300))
    following = start(held, gamma, hardware)
    for come, go in [([], [7]), ([301, 302], [5]), ([], list(range(20, 30)))]:
        followed = follow(following, hardware, held, come, go, waiting)
        assert followed is not None
        following, held = followed, [row for row in held if row not in go] + come
        assert_claims_are_true(following, held, range(1))


@pytest.mark.parametrize(("come", "go"), [([], list(range(70))), (list(range(300, 370)), list(range(20)))])
def test_large_changes_are_followed_by_a_residual_anew(come: list[int], go: list[int], hardware: Hardware) -> None:
    before = list(range(300))
    following_module_small = following_module._SMALL
    assert len(come + go) >= following_module_small
    following = start(before, 2**16, hardware)
    # SIZE // 2 is less than 70: as if the system were larger
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(following_module, "can_follow", lambda *given: True)
        followed = follow(following, hardware, before, come, go)
    assert followed is not None
    after = [row for row in before if row not in go] + come
    assert_claims_are_true(followed, after, range(1))
    again = follow(followed, hardware, after, [], [after[0]])
    assert again is not None
    assert_claims_are_true(again, after[1:], range(1))


def test_with_many_classes_more_samples_are_few(hardware: Hardware, monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs less with a column for each sample, and ends in the same bits."""
    labels = np.arange(len(CODES)) % 60
    monkeypatch.setattr(following_module, "_SMALL", 4)
    before, go = np.arange(380), np.arange(7, 14)  # 7 of 60 classes
    gram = CODES[before].astype(np.int64).T @ CODES[before]
    solution = solve(hardware.array(gram), hardware.array(cross_of(before, labels)), 2**14, hardware=hardware)
    following = Following.of(solution, hardware)
    assert following is not None
    after, gone = np.setdiff1d(before, go), CODES[go].astype(np.int64)
    gram, cross = gram - gone.T @ gone, cross_of(after, labels)
    anew: list[list[int]] = []
    original = Following._anew

    def noted(self: Following, system: Any, right: Any, columns: list[int], move: Any) -> Following:
        anew.append(columns)
        return original(self, system, right, columns, move)

    monkeypatch.setattr(Following, "_anew", noted)
    followed = following.after(
        changed(gram, 2**14, hardware),
        lambda columns: hardware.array(np.ascontiguousarray(cross[:, columns])),
        hardware.array(CODES[go]),
        np.full(len(go), -1),
        labels[go],
    )
    assert followed is not None
    assert all(len(columns) < 60 for columns in anew)  # those in doubt, if any
    assert np.array_equal(followed.weights, solve(gram, cross, 2**14).weights)


def cross_of(rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    sums: np.ndarray = CODES[rows].astype(np.int64).T @ np.eye(60, dtype=np.int64)[labels[rows]]
    return sums


def test_changes_can_be_followed_for_long(hardware: Hardware) -> None:
    held = list(range(200))
    following = start(held, 2**14, hardware)
    for step in range(60):
        come, go = ([200 + step], []) if step % 3 else ([], [held[step % len(held)]])
        followed = follow(following, hardware, held, come, go, waiting=step % 2 == 0)
        assert followed is not None
        following, held = followed, [row for row in held if row not in go] + come
        if step % 10 == 9:
            assert np.array_equal(following.weights, weights_of(held, 2**14))
    assert_claims_are_true(following, held, range(1))
    assert (following.residuals / 2**14 + following.slips).max() < 2.0**-18


def test_corrections_are_merged_and_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    held, other = list(range(300)), None
    following = start(held, 2**16, NUMPY)
    for step in range(0, MOST_CORRECTIONS + 60, 30):
        go = held[:30] if step % 60 else []
        come = [] if go else [row for row in range(330) if row not in held][:30]
        if step == 90:  # two ways to go on from one solution: neither disturbs the other
            other = follow(following, NUMPY, held, [], held[5:7])
            assert other is not None
            assert_claims_are_true(other, [row for row in held if row not in held[5:7]], range(1))
        followed = follow(following, NUMPY, held, come, go)
        assert followed is not None
        following, held = followed, [row for row in held if row not in go] + come
        assert np.array_equal(following.weights, weights_of(held, 2**16))
    assert following.preconditioner.count < MOST_CORRECTIONS


@pytest.mark.parametrize("field", ["slips", "residuals"])
def test_columns_in_doubt_get_a_new_residual(field: str, hardware: Hardware, monkeypatch: pytest.MonkeyPatch) -> None:
    before = list(range(300))
    following = start(before, 2**16, hardware)
    bounds = getattr(following, field).copy()
    bounds[[1, 3]] = 0.05 if field == "slips" else 0.05 * 2**16
    asked: list[list[int]] = []
    anew = Following._anew

    def noted(self: Following, system: Any, cross: Any, columns: list[int], move: Any) -> Following:
        asked.append(columns)
        return anew(self, system, cross, columns, move)

    monkeypatch.setattr(Following, "_anew", noted)
    followed = follow(replace(following, **{field: bounds}), hardware, before, [], [17], waiting=True)
    assert followed is not None
    assert asked == [[1, 3]]
    after = [row for row in before if row != 17]
    assert_claims_are_true(followed, after, range(1, 2))
    assert (followed.residuals / 2**16 + followed.slips).max() < 2.0**-18


def test_entries_that_are_still_undecided_are_solved_for(hardware: Hardware, monkeypatch: pytest.MonkeyPatch) -> None:
    before = list(range(300))
    following = start(before, 2**16, hardware)
    solved: list[int] = []

    def noted(gram: Any, cross: Any, *given: Any) -> Any:
        solved.append(cross.shape[1])
        return solve(gram, cross, *given)

    monkeypatch.setattr(following_module, "solve", noted)
    for name in ("_MOST_DOUBT", "_SOME_DOUBT"):
        monkeypatch.setattr(following_module, name, -1.0)
    monkeypatch.setattr(type(hardware), "near_half", lambda self, rests, doubts: [0, 1])
    followed = follow(following, hardware, before, [], [17], waiting=True)
    assert followed is not None
    assert solved == [2]
    assert np.array_equal(followed.weights, weights_of([row for row in before if row != 17], 2**16))


def test_ties_stay_ties(hardware: Hardware) -> None:
    """W*_0 = 3 / 2**7 on a grid of 2**-6: a tie for ever, whatever happens to the others."""
    gram, gamma = sums(list(range(200)))[0], 2**10
    gram[0], gram[:, 0] = 0, 0
    gram[0, 0] = 2**17 - gamma
    cross = sums(list(range(200)))[1]
    cross[0] = 0
    cross[0, 1] = 3 << 10
    code = CODES[[300]].copy()
    code[0, 0] = 0
    solution = solve(hardware.array(gram), hardware.array(cross), gamma, 6, hardware=hardware)
    following = Following.of(solution, hardware)
    assert following is not None
    cross[:, LABELS[300]] += code[0]
    after = changed(gram, gamma, hardware, code, [1])
    found = following.after(
        after, lambda some: hardware.array(cross[:, some]), hardware.array(code), np.array([1]), LABELS[[300]]
    )
    expected = solve(gram + np.outer(code[0].astype(np.int64), code[0].astype(np.int64)), cross, gamma, 6).weights
    assert expected[0, 1] == 2
    assert found is not None
    assert np.array_equal(found.weights, expected)


def test_a_start_far_away_comes_near_in_steps(hardware: Hardware) -> None:
    before = list(range(300))
    following = start(before, 2**16, hardware)
    far = hardware.array(hardware.numpy(following.steps) + 2**30)
    lost = replace(following, steps=far, slips=np.full(CLASSES, 2.0**50))
    followed = follow(lost, hardware, before, [], [17])
    assert followed is not None
    assert_claims_are_true(followed, [row for row in before if row != 17], range(1))


def test_samples_of_zeros_change_nothing(hardware: Hardware) -> None:
    before = list(range(300))
    gram, cross = sums(before)
    following = start(before, 2**16, hardware)
    system = changed(gram, 2**16, hardware)
    zeros = hardware.array(np.zeros((2, SIZE), np.int8))
    followed = following.after(
        system, lambda some: hardware.array(cross[:, some]), zeros, np.array([1, -1]), np.array([0, 1])
    )
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
    system = changed(gram2, 2**16, NUMPY)
    followed = moved.after(system, lambda some: cross2[:, some], change, np.array([-1]), np.array([target]))
    assert followed is not None
    assert np.array_equal(followed.weights, solve(gram2, cross2, 2**16).weights)
    assert not followed.weights[:, 0].any()


def test_what_cannot_be_followed_is_left_to_a_full_solve() -> None:
    before = list(range(300))
    following = start(before, 2**16, NUMPY)
    assert not can_follow(97, 96)
    assert follow(following, NUMPY, before, [], list(range(100))) is None  # too many at once
    for matrix in (np.zeros((SIZE, SIZE)), np.full((SIZE, SIZE), np.nan), np.eye(SIZE)):
        useless = replace(following, preconditioner=Inverse(matrix, NUMPY))
        assert follow(useless, NUMPY, before, [], [3]) is None
    large = replace(following, steps=following.steps + 2**59, top=2.0**60)
    assert follow(large, NUMPY, before, [], [3]) is None
    eliminated_one = solve(np.full((20, 20), 2**50), np.ones((20, 3), np.int64), 1)
    assert Following.of(eliminated_one, NUMPY) is None


@pytest.mark.parametrize("place", ["approximate_product", "matmul"])
def test_wrong_float_products_are_not_silent(place: str) -> None:
    """Of the last correction, and of codes and rests: nobody else checks them."""

    class Faulty(NumpyHardware):
        def approximate_product(self, matrix: np.ndarray, block: np.ndarray) -> np.ndarray:
            found = super().approximate_product(matrix, block)
            found[3, 0] += np.abs(found).max() if place == "approximate_product" else 0
            return found

        def matmul(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
            found = super().matmul(left, right)
            if place == "matmul" and found.shape == (1, CLASSES):
                found[0, 2] += 1e-3
            return found

    faulty: HardwareOf[Any] = Faulty()
    before = list(range(300))
    following = replace(start(before, 2**16, NUMPY), hardware=faulty)
    following = replace(following, preconditioner=replace(following.preconditioner, hardware=faulty))
    with pytest.raises(HardwareError, match="wrong beyond rounding"):
        follow(following, faulty, before, [], [0])


@pytest.mark.parametrize("fault", [1e-3, np.nan])
def test_a_wrong_move_is_not_silent(fault: float) -> None:
    class Faulty(NumpyHardware):
        def move(self, *given: Any) -> Any:
            steps, rests, near = super().move(*given)
            rests[0, 0] += fault
            return steps, rests, near

    faulty: HardwareOf[Any] = Faulty()
    before = list(range(300))
    following = replace(start(before, 2**16, NUMPY), hardware=faulty)
    with pytest.raises(HardwareError, match="wrong beyond rounding"):
        follow(following, faulty, before, [], [0])


# -- at once -----------------------------------------------------------------------------------------


def counted(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each small change was made at once."""
    found: list[bool] = []
    moved = Captured.moved

    def noted(self: Captured, *given: Any) -> Any:
        result = moved(self, *given)
        found.append(result is not None)
        return result

    monkeypatch.setattr(Captured, "moved", noted)
    return found


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("waiting", [False, True])
def test_a_small_change_is_made_at_once(waiting: bool, fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    hardware, made = tensors(fused), counted(monkeypatch)
    held = list(range(300))
    following = start(held, 2**16, hardware)
    for come, go in [([], [7]), ([301], []), ([], list(range(20, 40))), (list(range(310, 350)), []), ([], [8])]:
        followed = follow(following, hardware, held, come, go, waiting)
        assert followed is not None
        following, held = followed, [row for row in held if row not in go] + come
        assert np.array_equal(following.weights, weights_of(held, 2**16))
    assert made == [True] * 5
    assert_claims_are_true(following, held, range(1))
    assert follow(following, hardware, held, [305], [9], waiting) is not None  # of both kinds: step by step
    assert made == [True] * 5


@pytest.mark.parametrize("fused", [False, True])
def test_what_cannot_be_made_at_once_is_followed_step_by_step(fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    hardware, made = tensors(fused), counted(monkeypatch)
    before = list(range(300))
    following = start(before, 2**16, hardware)
    rough = replace(following.preconditioner, matrix=following.preconditioner.matrix * 1.001)
    followed = follow(replace(following, preconditioner=rough), hardware, before, [], [3])
    assert made == [False]
    assert followed is not None
    assert_claims_are_true(followed, before[:3] + before[4:], range(1))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("gamma", [1, 2, 3, 4, 8, 2**4, 2**30])
def test_at_once_with_any_gamma(gamma: int, fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    hardware, made = tensors(fused), counted(monkeypatch)
    for held in (3, 6, 60):  # fewer than codes: with a small gamma the system is ill-conditioned
        before = list(range(held))
        followed = follow(start(before, gamma, hardware), hardware, before, [], [1])
        if followed is not None:
            assert_claims_are_true(followed, before[:1] + before[2:], range(1))
    assert len(made) == 3


@pytest.mark.parametrize("place", ["image", "steps"])
def test_a_wrong_change_at_once_is_not_silent(place: str) -> None:
    """One wrong bit in A times the random vector, or where steps are read: the two sides of a check differ."""
    torch = pytest.importorskip("torch")
    from neverseen.hardware.torch_small_changes import small_change

    read: list[int] = []

    class Odd(torch.Tensor):  # type: ignore[name-defined, misc]
        def double(self) -> Any:
            found = super().double().as_subclass(torch.Tensor)
            if not read:  # for E; what is moved is right
                found[0, 0] += 2.0**20
            read.append(1)
            return found

    def wrong(limbs: int, *given: Any) -> Any:
        if place == "image":
            given[7][5] += 1
            return small_change(limbs, *given)
        return small_change(limbs, *given[:11], given[11].as_subclass(Odd), *given[12:])

    hardware, before = tensors(), list(range(300))
    following = replace(start(before, 2**16, hardware), captured=Captured(wrong, hardware))
    with pytest.raises(HardwareError, match="fails its check"):
        follow(following, hardware, before, [], [0])


@pytest.mark.parametrize(
    ("name", "argument", "fault"),
    [
        ("cut", 3, 1.0),  # U is no longer what its limbs are
        ("finished_images", 11, 1.0),  # U for the move, in three parts
        ("finished_images", 12, 2.0**-10),
        ("finished_images", 13, 2.0**-10),
        ("see", 3, 5e-324),  # A' r: as an integer, 1
        ("codes_across", 3, 5e-324),
        ("bound", 9, 2.0**20),  # E for the move
    ],
)
def test_a_fault_between_kernels_is_not_silent(name: str, argument: int, fault: float) -> None:
    torch = pytest.importorskip("torch")
    from neverseen.hardware.fused_small_changes import small_change
    from tests.hardware.emulated import emulated

    made: list[str] = []

    def launch(kernel: str, blocks: tuple[int, int], *given: Any) -> None:
        emulated()(kernel, blocks, *given)
        if kernel == name and kernel not in made:
            place = given[argument].view(-1)
            place[0] = (place.view(torch.int64)[0] + 1).view(torch.float64) if fault == 5e-324 else place[0] + fault
        made.append(kernel)

    hardware, before = tensors(), list(range(300))
    captured = Captured(functools.partial(small_change, launch), hardware)
    following = replace(start(before, 2**16, hardware), captured=captured)
    with pytest.raises(HardwareError, match="fails its check"):
        follow(following, hardware, before, [], [0])


@pytest.mark.parametrize("fused", [False, True])
def test_more_classes_than_codes(fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    hardware, made = tensors(fused), counted(monkeypatch)
    rng = np.random.default_rng(5)
    codes, labels = rng.integers(0, 128, (60, 8)).astype(np.int8), np.arange(60) % 20
    wide = codes.astype(np.int64)
    gram, cross = wide.T @ wide, wide.T @ np.eye(20, dtype=np.int64)[labels]
    solution = solve(hardware.array(gram), hardware.array(cross), 2**12, hardware=hardware)
    following = Following.of(solution, hardware)
    assert following is not None
    gram, cross = gram - np.outer(wide[0], wide[0]), cross.copy()
    cross[:, labels[0]] -= wide[0]
    system = changed(gram, 2**12, hardware)
    right, gone = (lambda some: hardware.array(cross[:, some])), hardware.array(codes[:1])
    followed = following.after(system, right, gone, np.array([-1]), labels[:1])
    assert made == [True]
    assert followed is not None
    assert np.array_equal(followed.weights, solve(gram, cross, 2**12).weights)


def test_few_graphs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has memory of its own, and the number of classes may change for ever."""
    torch = pytest.importorskip("torch")
    from neverseen.hardware.torch_small_changes import Replayed

    class Graph:
        def replay(self) -> None:
            pass

    monkeypatch.setattr(Replayed, "_captured", lambda self, number, given: (Graph(), list(given), given))
    replayed = Replayed(lambda number, *given: given, 0)
    for size in range(50):
        replayed(2, torch.zeros(size))
    assert len(replayed._graphs) <= 8
