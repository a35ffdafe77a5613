"""The recursion on (T, W), held against ridge regression from scratch."""

import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.learners.references import Recursive
from neverseen import tracking

Matrix = NDArray[Any]
Make = Callable[[Any], Any]

GAMMA = 2.0
D = 12


def ridge(features: Matrix, targets: Matrix, gamma: float = GAMMA) -> tuple[Matrix, Matrix]:
    """The oracle: Lemma 1, solved from the samples themselves."""
    matrix = features.T @ features + gamma * np.eye(features.shape[1])
    return np.linalg.solve(matrix, np.eye(len(matrix))), np.linalg.solve(matrix, features.T @ targets)


def samples(n: int, n_classes: int, seed: int = 0) -> tuple[Matrix, Matrix]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, D)), np.eye(n_classes)[rng.integers(0, n_classes, n)]


def check(got: tuple[Any, Any], wanted: tuple[Matrix, Matrix], tolerance: float = 1e-10) -> None:
    for array, oracle in zip(got, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(array), oracle, rtol=tolerance, atol=tolerance)


def learned(make: Make, features: Matrix, targets: Matrix, gamma: float = GAMMA) -> tuple[Any, Any]:
    T, W = ridge(features, targets, gamma)
    return make(T), make(W)


@pytest.fixture(params=["numpy", "torch"])
def make(request: pytest.FixtureRequest) -> Make:
    """What turns a matrix into an array of the kind under test, float64."""
    if request.param == "numpy":
        return lambda values: np.array(values, dtype=np.float64)
    torch = pytest.importorskip("torch")
    return lambda values: torch.tensor(np.asarray(values), dtype=torch.float64)


def test_start_is_ridge_over_no_samples(make: Make) -> None:
    T, W = tracking.start(D, 3, GAMMA, like=make([0]))
    assert type(T) is type(W) is type(make([0]))
    check((T, W), ridge(np.zeros((0, D)), np.zeros((0, 3))))


def test_start_is_numpy_float64_by_default() -> None:
    T, W = tracking.start(2, 0, 1)
    assert (T.dtype, W.dtype, W.shape) == (np.float64, np.float64, (2, 0))


@pytest.mark.parametrize("n", [0, 1, 7, D, 40])
def test_learn(make: Make, n: int) -> None:
    (F, Y), (F2, Y2) = samples(30, 4), samples(n, 4, seed=1)
    got = tracking.learn(*learned(make, F, Y), make(F2), make(Y2))
    check(got, ridge(np.vstack([F, F2]), np.vstack([Y, Y2])))


@pytest.mark.parametrize("n", [0, 1, 7, D, 25, 30])
def test_forget_samples(make: Make, n: int) -> None:
    F, Y = samples(30, 4)
    got = tracking.forget_samples(*learned(make, F, Y), make(F[:n]), make(Y[:n]))
    check(got, ridge(F[n:], Y[n:]))


def test_learning_and_forgetting_alternate_and_new_classes_appear(make: Make) -> None:
    F, Y = samples(90, 6)
    T, W = tracking.start(D, 0, GAMMA, like=make([0]))
    held: list[int] = []
    rng = np.random.default_rng(7)
    for stage in range(9):
        new = list(range(10 * stage, 10 * stage + 10))
        Y[new, min(6, 2 + stage) :] = 0  # a class has no samples before its column exists
        T, W = tracking.learn(T, W, make(F[new]), make(Y[new, : min(6, 2 + stage)]))
        held += new
        gone = [int(i) for i in rng.choice(held, size=4, replace=False)]
        T, W = tracking.forget_samples(T, W, make(F[gone]), make(Y[gone, : W.shape[1]]))
        held = [i for i in held if i not in gone]
        assert tuple(W.shape) == (D, min(6, 2 + stage))
        check((T, W), ridge(F[held], Y[held, : W.shape[1]]), tolerance=1e-9)


@pytest.mark.parametrize("column", [0, 2, 3])
@pytest.mark.parametrize("keeps_cross", [True, False])
def test_forget_class(make: Make, column: int, keeps_cross: bool) -> None:
    F, Y = samples(50, 4)
    of_class = Y[:, column] == 1
    gram = make(F[of_class].T @ F[of_class])
    cross = make(F[of_class].T @ Y[of_class]) if keeps_cross else None
    got = tracking.forget_class(*learned(make, F, Y), gram, cross, column)
    check(got, ridge(F[~of_class], np.delete(Y[~of_class], column, axis=1)))


def test_forget_class_uses_the_cross_sum_where_a_sample_has_several_labels(make: Make) -> None:
    F, Y = samples(50, 4)
    Y[::3, 0] = 1
    of_class = Y[:, 2] == 1
    gram, cross = F[of_class].T @ F[of_class], F[of_class].T @ Y[of_class]
    got = tracking.forget_class(*learned(make, F, Y), make(gram), make(cross), 2)
    check(got, ridge(F[~of_class], np.delete(Y[~of_class], 2, axis=1)))


def test_every_class_forgotten_leaves_the_start(make: Make) -> None:
    F, Y = samples(50, 3)
    T, W = learned(make, F, Y)
    for column in reversed(range(3)):
        of_class = F[Y[:, column] == 1]
        T, W = tracking.forget_class(T, W, make(of_class.T @ of_class), None, column)
    check((T, W), tracking.start(D, 0, GAMMA))


def test_sums_and_back(make: Make) -> None:
    F, Y = samples(30, 4)
    G, B = tracking.to_sums(*learned(make, F, Y), gamma=GAMMA)
    check((G, B), (F.T @ F, F.T @ Y))
    check(tracking.from_sums(G, B, GAMMA), ridge(F, Y))


def test_integer_sums_come_back_exactly_and_are_solved_in_float64(make: Make) -> None:
    rng = np.random.default_rng(0)
    codes, targets = rng.integers(0, 128, (40, D)), np.eye(3, dtype=np.int64)[rng.integers(0, 3, 40)]
    G, B = codes.T @ codes, codes.T @ targets
    asarray: Make = np.asarray if isinstance(make(G), np.ndarray) else sys.modules["torch"].asarray
    T, W = tracking.from_sums(asarray(G), asarray(B), gamma=1)
    assert T.dtype == make(G).dtype
    for array, exact in zip(tracking.to_sums(T, W, gamma=1), (G, B), strict=True):
        np.testing.assert_array_equal(np.rint(np.asarray(array)), exact)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_state_of_another_program_goes_on_here(make: Make, dtype: str) -> None:
    """The state of a recursion in mini-batches, as ACIL's public code has it."""
    F, Y = samples(90, 4)
    other = Recursive(gamma=GAMMA, batch=20)
    other.learn(F, Y.argmax(axis=1))
    assert other.classes == [0, 1, 2, 3]
    library = np if type(make([0])) is np.ndarray else pytest.importorskip("torch")
    R, W = (library.asarray(make(each), dtype=getattr(library, dtype)) for each in other.state())
    T, W = tracking.from_state(R, W, GAMMA)
    assert str(T.dtype).endswith("float64")
    tolerance = 1e-10 if dtype == "float64" else 1e-5
    check((T, W), ridge(F, Y), tolerance)
    check(tracking.forget_samples(T, W, make(F[:30]), make(Y[:30])), ridge(F[30:], Y[30:]), 5 * tolerance)
    check(tracking.to_sums(T, W, GAMMA), (F.T @ F, F.T @ Y), 100 * tolerance)


def test_a_state_that_is_none_is_refused(make: Make) -> None:
    F, Y = samples(30, 3)
    R, W = ridge(F[:5], Y[:5])
    cases = [
        (
            R + np.triu(R, 1),
            W,
            GAMMA,
            ValueError,
            "R is not symmetric, by 3e-01 of its largest entry: it is another matrix, or badly",
        ),
        (-R, W, GAMMA, ArithmeticError, "R is not positive definite: it is no inverse, or rounding has used it up"),
        (R, W, 1.5 * GAMMA, ValueError, "R has an eigenvalue above 1 / gamma: its gamma is below 3, or rounding"),
        (R, W, 0, ValueError, "gamma must be a finite number above 0, got 0"),
        (R * np.nan, W, GAMMA, ValueError, "R has entries that are not finite"),
        (R, W[:-1], GAMMA, ValueError, r"W must have shape \(12, C\)"),
        (F.T @ F + GAMMA * np.eye(D), W, GAMMA, ValueError, "R has an eigenvalue above 1 / gamma"),  # not inverted
    ]
    for square, columns, gamma, kind, words in cases:
        with pytest.raises(kind, match=f"^{words}"):
            tracking.from_state(make(square), make(columns), gamma)
    tracking.from_state(make(R), make(W), GAMMA)


def test_arguments_are_converted_to_the_kind_and_dtype_of_the_model(make: Make) -> None:
    torch = pytest.importorskip("torch")
    like = make([0])
    like = like.astype(np.float32) if isinstance(like, np.ndarray) else like.float()
    T, W = tracking.start(2, 2, 1, like=like)
    codes, targets = np.array([[1, 2], [3, 4]], dtype=np.int8), [[True, False], [False, True]]
    T, W = tracking.learn(T, W, codes, targets)
    T, W = tracking.forget_samples(T, W, torch.asarray(codes), torch.asarray(targets))
    assert type(T) is type(W) is type(like)
    assert T.dtype == W.dtype == like.dtype
    check((T, W), tracking.start(2, 2, 1), tolerance=1e-4)


def test_results_carry_no_gradients() -> None:
    torch = pytest.importorskip("torch")
    F, Y = samples(5, 2)
    T, W = tracking.start(D, 2, 1, like=torch.zeros(1))
    T, W = tracking.learn(T, torch.nn.Parameter(W), torch.tensor(F, requires_grad=True), Y)
    assert not T.requires_grad
    assert not W.requires_grad


def test_tracking_matrix_stays_symmetric(make: Make) -> None:
    F, Y = samples(60, 3)
    T, W = tracking.learn(*tracking.start(D, 3, GAMMA, like=make([0])), make(F), make(Y))
    T, W = tracking.forget_samples(T, W, make(F[:30]), make(Y[:30]))
    assert bool((T == T.T).all())


def test_inputs_are_unchanged_and_not_shared(make: Make) -> None:
    F, Y = samples(30, 3)
    T, W = learned(make, F, Y)
    of_class = F[Y[:, 0] == 1]
    calls: list[tuple[Callable[..., tuple[Any, Any]], tuple[Any, ...]]] = [
        (tracking.learn, (T, W, make(F[:0]), make(Y[:0]))),
        (tracking.learn, (T, W, make(F), make(np.hstack([Y, Y])))),
        (tracking.forget_samples, (T, W, make(F[:5]), make(Y[:5]))),
        (tracking.forget_class, (T, W, make(of_class.T @ of_class), make(np.zeros((D, 3))), 0)),
        (tracking.to_sums, (T, W, GAMMA)),
        (tracking.from_sums, (make(F.T @ F), make(F.T @ Y), GAMMA)),
        (tracking.from_state, (T, W, GAMMA)),
    ]
    for function, arguments in calls:
        before = [np.asarray(argument).copy() for argument in arguments]
        for result in function(*arguments):
            result[:] = 0  # would show in an argument that shares memory with it
        for argument, copy in zip(arguments, before, strict=True):
            np.testing.assert_array_equal(np.asarray(argument), copy)


def test_importing_the_module_does_not_import_torch() -> None:
    use = "import sys; from neverseen.tracking import *; learn(*start(1, 1, 1), [[1]], [[1]])"
    script = f"{use}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


I3, Z32 = np.eye(3), np.zeros((3, 2))
ONE, TWO = np.ones((1, 3)), np.ones((1, 2))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tracking.start(0, 1, 1), "need n_features >= 1 and n_classes >= 0, got 0 and 1"),
        (lambda: tracking.start(1, -1, 1), "need n_features >= 1 and n_classes >= 0, got 1 and -1"),
        (lambda: tracking.start(1, 1, 0), "gamma must be a finite number above 0, got 0"),
        (lambda: tracking.to_sums(I3, Z32, np.nan), "gamma must be a finite number above 0, got nan"),
        (lambda: tracking.from_sums(I3, Z32, np.inf), "gamma must be a finite number above 0, got inf"),
        (
            lambda: tracking.start(1, 1, 1, like=np.zeros(1, dtype=np.float16)),
            "like must be of dtype float32 or float64, got float16: convert it first",
        ),
        (
            lambda: tracking.learn(I3.astype(int), Z32, ONE, TWO),
            "T must be of dtype float32 or float64, got int64: convert it first",
        ),
        (
            lambda: tracking.learn(np.array(1.0), Z32, ONE, TWO),
            "T must have shape (d, d), one row per feature, got ()",
        ),
        (
            lambda: tracking.learn(Z32, Z32, ONE, TWO),
            "T must have shape (3, 3), one row per feature, got (3, 2)",
        ),
        (
            lambda: tracking.learn(I3, np.zeros(3), ONE, TWO),
            "W must have shape (3, C), one row per feature, got (3,)",
        ),
        (lambda: tracking.from_sums(I3, I3[0], 1), "B must have shape (3, C), one row per feature, got (3,)"),
        (
            lambda: tracking.learn(I3, Z32, ONE[0], TWO),
            "features must have shape (k, 3), one row per sample, got (3,)",
        ),
        (
            lambda: tracking.forget_samples(I3, Z32, TWO, TWO),
            "features must have shape (k, 3), one row per sample, got (1, 2)",
        ),
        (
            lambda: tracking.learn(I3, Z32, ONE, np.ones((2, 2))),
            "targets must have shape (1, C'), one row per sample, got (2, 2)",
        ),
        (lambda: tracking.learn(I3, Z32, ONE, [[1]]), "targets must have at least the 2 columns of W, got 1"),
        (
            lambda: tracking.forget_samples(I3, Z32, ONE, ONE),
            "targets must have shape (1, 2), one row per sample, got (1, 3)",
        ),
        (
            lambda: tracking.learn(I3, Z32, [[1, np.nan, 0]], TWO),
            "features has entries that are not finite: make it again without these samples",
        ),
        (
            lambda: tracking.to_sums(I3, Z32 + np.inf, 1),
            "W has entries that are not finite: make it again without these samples",
        ),
        (
            lambda: tracking.forget_class(I3, Z32, Z32, None, 0),
            "class_gram must have shape (3, 3), one row per feature, got (3, 2)",
        ),
        (
            lambda: tracking.forget_class(I3, Z32, I3, I3, 0),
            "class_cross must have shape (3, 2), one row per feature, got (3, 3)",
        ),
        (
            lambda: tracking.forget_class(I3, Z32, I3, None, 2),
            "column must be a column of W, at least 0 and below 2, got 2",
        ),
        (
            lambda: tracking.forget_class(I3, Z32, I3, None, -1),
            "column must be a column of W, at least 0 and below 2, got -1",
        ),
    ],
)
def test_bad_arguments_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        call()
    assert str(caught.value) == message


def test_lists_cannot_be_a_model() -> None:
    with pytest.raises(TypeError, match=r"^T must be a NumPy array or a torch tensor, got list$"):
        tracking.learn([[1.0]], [[1.0]], [[1]], [[1]])


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(ArithmeticError) as caught:
        call()
    return str(caught.value)


REBUILD = "rebuild T with from_sums, in float64"


def test_samples_that_cannot_have_been_learned_are_refused(make: Make) -> None:
    F, Y = samples(3, 2)
    model = learned(make, F, Y, gamma=1e-3)
    message = (
        "I - F T F', the matrix to invert, is singular or not positive definite: the samples are not all"
        f" in T, or rounding has used T up; check the request, or {REBUILD}"
    )
    stranger, label = samples(1, 2, seed=1)
    assert refused(lambda: tracking.forget_samples(*model, make(stranger), make(label))) == message
    once = tracking.forget_samples(*model, make(F[:1]), make(Y[:1]))
    assert refused(lambda: tracking.forget_samples(*once, make(F[:1]), make(Y[:1]))) == message
    unit = tracking.start(1, 1, 1, like=make([0]))  # 1 - f T f' is exactly 0
    assert refused(lambda: tracking.forget_samples(*unit, [[1]], [[1]])) == message


def test_a_class_that_cannot_have_been_learned_is_refused(make: Make) -> None:
    assert refused(lambda: tracking.forget_class(make(I3), make(Z32), make(I3), None, 0)) == (
        "T^-1 - class_gram, the matrix to invert, is singular or not positive definite: class_gram is not a"
        f" sum over samples in T, or rounding has used T up; check it, or {REBUILD}"
    )


def test_a_matrix_that_is_no_inverse_is_refused(make: Make) -> None:
    bad, W = make(-I3), make(Z32)
    fault = "the matrix to invert, is singular or not positive definite:"
    assert refused(lambda: tracking.learn(bad, W, ONE, TWO)) == (
        f"I + F T F', {fault} T is not a true inverse; {REBUILD}"
    )
    assert refused(lambda: tracking.forget_class(bad, W, I3, None, 0)) == (
        f"T, {fault} it is not a true inverse; {REBUILD}"
    )
    assert refused(lambda: tracking.to_sums(bad, W, 1)) == (
        f"T, {fault} it is not a true inverse; rebuild it from the samples"
    )
    assert refused(lambda: tracking.from_sums(bad, W, 1)) == (
        f"G + gamma I, {fault} G is not a sum F'F, or gamma is too small for this dtype"
    )


def test_overflow_is_refused(make: Make) -> None:
    T, W, huge = make(I3), make(Z32), make(1e200 * ONE)
    with np.errstate(over="ignore", invalid="ignore"):
        assert refused(lambda: tracking.forget_samples(T, W, huge, TWO)) == (
            "I - F T F', the matrix to invert, is not finite: the samples are not all in T, or rounding has"
            f" used T up; check the request, or {REBUILD}"
        )
        assert refused(lambda: tracking.learn(T, make(Z32 + 1e200), 1e150 * ONE, TWO)) == (
            "the result overflows its dtype: scale the features down, or work in float64"
        )


# -- how far it has drifted ------------------------------------------------------------------------------

TIGHT = 0.1  # gamma: with few samples left, A is nearly singular


def clustered(n: int, d: int, classes: int = 10) -> tuple[Matrix, Matrix]:
    rng = np.random.default_rng(3)
    labels = rng.integers(0, classes, n)
    return rng.normal(size=(n, d)) + rng.normal(size=(classes, d))[labels], np.eye(classes)[labels]


def forgotten_down(make: Make, left: int, dtype: str, probe: bool) -> tuple[float, float | None, list[str]]:
    """Learn 200 samples of 128 features and forget all but some, 20 at a time.

    Returns the relative error of W, the probe's residual, and what was warned of.
    """
    F, Y = clustered(200, 128)
    like = (
        make(F).astype(dtype) if isinstance(make(F), np.ndarray) else make(F).to(getattr(sys.modules["torch"], dtype))
    )
    T, W = tracking.start(128, 10, TIGHT, like=like)
    watch = tracking.Probe(T) if probe else None
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for first in range(0, 200, 20):
            T, W = tracking.learn(T, W, F[first : first + 20], Y[first : first + 20], probe=watch)
        for first in range(0, 200 - left, 20):
            T, W = tracking.forget_samples(T, W, F[first : first + 20], Y[first : first + 20], probe=watch)
    _, exact = ridge(F[200 - left :], Y[200 - left :], TIGHT)
    error = float(np.linalg.norm(np.asarray(W, np.float64) - exact) / np.linalg.norm(exact))
    assert all(issubclass(warning.category, tracking.DriftWarning) for warning in said)
    assert all(warning.filename == __file__ for warning in said)  # it points at the caller
    return error, None if watch is None else watch.residual(T), [str(warning.message) for warning in said]


def test_float32_that_is_far_off_says_so(make: Make) -> None:
    error, residual, said = forgotten_down(make, 100, "float32", probe=True)
    assert error > 0.1
    assert residual is not None
    assert residual > error / 3
    assert "T is off by" in said[-1]
    assert "lost two thirds of the digits of float32: rebuild T with from_sums, in float64" in said[-1]


def test_a_step_that_loses_its_digits_says_so_without_a_probe(make: Make) -> None:
    error, _, said = forgotten_down(make, 100, "float32", probe=False)
    assert error > 0.1
    assert said
    assert "this step's part of T is off by" in said[-1]


def test_float64_has_nothing_to_say(make: Make) -> None:
    error, residual, said = forgotten_down(make, 100, "float64", probe=True)
    assert said == []
    assert residual is not None
    assert error < 1e-7
    assert residual < 1e-7


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_residual_is_about_the_error_of_the_weights(dtype: str) -> None:
    for left in (180, 140, 120):
        error, residual, _ = forgotten_down(np.array, left, dtype, probe=True)
        assert residual is not None
        assert error / 3 < residual < 100 * error


def test_a_probe_follows_every_kind_of_step(make: Make) -> None:
    F, Y = samples(50, 4)
    T, W = learned(make, F, Y)
    probe = tracking.Probe.of_sums(make(F.T @ F), GAMMA)
    more, targets = samples(9, 4, seed=1)
    T, W = tracking.learn(T, W, make(more), make(targets), probe=probe)
    T, W = tracking.forget_samples(T, W, make(F[:5]), make(Y[:5]), probe=probe)
    of_class = np.vstack([F[5:], more])[np.vstack([Y[5:], targets])[:, 2] == 1]
    T, W = tracking.forget_class(T, W, make(of_class.T @ of_class), None, 2, probe=probe)
    assert probe.residual(T) < 1e-12
    wrong = T + 0
    wrong[0, 0] += 1
    assert probe.residual(wrong) > 0.1


def test_a_call_that_fails_leaves_the_probe_as_it_was() -> None:
    F, Y = clustered(200, 128)
    T, W = tracking.start(128, 10, TIGHT, like=np.empty(0, np.float32))
    probe = tracking.Probe(T)
    T, W = tracking.learn(T, W, F[:100], Y[:100], probe=probe)
    before = probe.residual(T)
    with pytest.raises(ArithmeticError):
        tracking.forget_samples(T, W, 100 * F[100:], Y[100:], probe=probe)
    with pytest.raises(tracking.DriftWarning):  # warnings are errors here
        tracking.learn(T, W, 1e3 * F[100:], Y[100:], probe=probe)
    assert probe.residual(T) == before


def test_an_inverse_that_loses_its_digits_says_so() -> None:
    F, Y = clustered(20, 128)
    gram, cross = (F.T @ F).astype(np.float32), (F.T @ Y).astype(np.float32)
    with pytest.warns(tracking.DriftWarning, match="an inverse is off by .* float32"):
        tracking.from_sums(gram, cross, 1e-3)
    tracking.from_sums(F.T @ F, F.T @ Y, 1e-3)


def test_what_was_never_learned_cannot_be_told_as_the_docstring_says() -> None:
    """T and W hold no list of samples: with a large gamma anything short passes, and nothing can show it."""
    F, Y = samples(30, 4)
    T, W = ridge(F, Y, 100.0)
    probe = tracking.Probe.of_sums(F.T @ F, 100.0)
    stranger, target = samples(1, 4, seed=9)
    T, W = tracking.forget_samples(T, W, stranger, target, probe=probe)
    assert probe.residual(T) < 1e-12
    assert "trusts its caller" in str(tracking.__doc__)
