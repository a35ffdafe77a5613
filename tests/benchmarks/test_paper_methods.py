"""Each unlearning method of `benchmarks.paper` on a small problem where its definition gives a known answer."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from benchmarks.paper.methods import METHODS, Method, Request, Samples, Start, request_for, settings_of  # noqa: E402
from benchmarks.paper.methods.descent import parameters_of, scores_of, shared  # noqa: E402
from benchmarks.paper.methods.head import Head, ridge, sums  # noqa: E402
from benchmarks.paper.methods.interface import generator  # noqa: E402
from benchmarks.paper.methods.random_label import other_labels  # noqa: E402
from benchmarks.paper.methods.scrub import divergence  # noqa: E402
from benchmarks.paper.methods.woodfisher import inverse_fisher  # noqa: E402
from tests.samples import clustered, codes, uniform_bytes  # noqa: E402

D, C, GAMMA = 12, 4, 64
PLAIN = {"epochs": 1, "momentum": 0.0, "weight_decay": 0.0, "batch_size": 1000}
GRADIENT = ["finetune", "l1_sparsity", "neggrad", "neggrad_plus", "scrub", "woodfisher", "random_label"]
LEARNING = ["acu_float32", "acu_float64", "acu_as_written", "neverseen", "neverseen_queued"]


def coded(name: str, rows: int) -> Samples:
    labels = (uniform_bytes(name + ":labels", rows) % C).astype(np.int64)
    inputs = codes(name, rows, D).astype(np.int64) // 4 + 40 * np.eye(C, D, dtype=np.int64)[labels]
    return Samples(torch.from_numpy(inputs.clip(-127, 127).astype(np.int8)), torch.from_numpy(labels))


def pictures(name: str, rows: int) -> Samples:
    labels = (uniform_bytes(name + ":labels", rows) % C).astype(np.int64)
    return Samples(torch.from_numpy(uniform_bytes(name, rows, 3, 8, 8).copy()), torch.from_numpy(labels))


class Cast(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Takes bytes, as the benchmark's network does."""

    def forward(self, inputs: Any) -> Any:
        return inputs.float() / 64 - 2


def network() -> Any:
    torch.manual_seed(0)
    convolution = torch.nn.Conv2d(3, 6, 3, stride=2, bias=False)
    layers = (convolution, torch.nn.BatchNorm2d(6), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(54, C))
    return torch.nn.Sequential(Cast(), *layers).eval()


def flipped(inputs: Any, random: Any) -> Any:
    mirrored = torch.randint(0, 2, (len(inputs), 1, 1, 1), generator=random, device=inputs.device).bool()
    return torch.where(mirrored, inputs.flip(3), inputs)


RETAINED, FORGOTTEN = coded("retained", 60), coded("forgotten", 20)
LEARNED = Samples(*(torch.cat(parts) for parts in zip(RETAINED, FORGOTTEN, strict=True)))


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Problems this small are slower on many."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def head() -> Head:
    return Head(ridge(LEARNED, C, GAMMA))


def prepared(name: str, settings: dict[str, Any] | None = None, **changes: Any) -> Any:
    kind = METHODS[name]
    start: dict[str, Any] = {"n_classes": C, "device": torch.device("cpu"), "seed": 3, "settings": settings or {}}
    start |= {"learned": LEARNED} if kind.learns else {"model": head()}
    method = kind()
    method.prepare(Start(**(start | changes)))
    return method


def ask(method: Method, label: int | None = None) -> Any:
    method.forget(request_for(type(method), FORGOTTEN, lambda: RETAINED, label))
    return method


def cross_entropy_gradient(model: Head, samples: Samples) -> np.ndarray:
    """The gradient of the mean cross-entropy by hand, shape (C, d): ``(softmax - one-hot)' inputs / n``."""
    inputs = samples.inputs.double().numpy() * model.unit
    scores = inputs @ model.weight.detach().double().numpy().T
    p = np.exp(scores - scores.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    gradient: np.ndarray = (p - np.eye(C)[samples.labels.numpy()]).T @ inputs / len(inputs)
    return gradient


def weight(method: Any) -> np.ndarray:
    found: np.ndarray = method.model.weight.detach().double().numpy()
    return found


# -- the interface -------------------------------------------------------------------------------------


def test_the_registry_names_all_methods() -> None:
    assert list(METHODS) == ["original", "retrain", *GRADIENT, *LEARNING]
    assert all(method.name == name for name, method in METHODS.items())
    unread = [name for name, method in METHODS.items() if not method.reads_retained]
    assert unread == ["original", "neggrad", *LEARNING]
    assert [name for name, method in METHODS.items() if method.is_exact] == ["retrain", *LEARNING]


@pytest.mark.parametrize("name", sorted(METHODS))
def test_retained_samples_reach_only_methods_that_declare_them(name: str) -> None:
    def forbidden() -> Samples:
        if not METHODS[name].reads_retained:
            raise AssertionError("gathered for nobody")
        return RETAINED

    request = request_for(METHODS[name], FORGOTTEN, forbidden, 2)
    assert (request.retained is not None) == METHODS[name].reads_retained
    assert request.label == 2


@pytest.mark.parametrize("name", ["neggrad", *LEARNING])
def test_methods_that_do_not_read_retained_samples_work_without(name: str) -> None:
    method = prepared(name, {"codes": 0} if name.startswith("neverseen") else None)
    before = method.parameters()
    method.forget(Request(FORGOTTEN))
    assert method.model is not None
    assert not torch.equal(method.parameters(), before)


@pytest.mark.parametrize("name", [name for name in GRADIENT if name != "neggrad"])
def test_methods_that_read_retained_samples_say_so_if_they_get_none(name: str) -> None:
    with pytest.raises(ValueError, match=r"set Request\.retained"):
        prepared(name).forget(Request(FORGOTTEN))


def test_a_method_says_what_its_start_lacks() -> None:
    with pytest.raises(ValueError, match=r"set Start\.model"):
        prepared("finetune", model=None)
    for name in LEARNING:
        with pytest.raises(ValueError, match=r"set Start\.learned"):
            prepared(name, learned=None)
    with pytest.raises(ValueError, match=r"set Start\.train"):
        ask(prepared("retrain"))
    with pytest.raises(NotImplementedError, match="finetune cannot learn more"):
        prepared("finetune").learn(RETAINED)


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="finetune has no setting speed; it has epochs, learning_rate"):
        settings_of(METHODS["finetune"], {"speed": 1})
    with pytest.raises(ValueError, match='batch_norm must be "train" or "eval"; got \'on\''):
        prepared("finetune", {"batch_norm": "on"})


def test_public_defaults() -> None:
    scrub = settings_of(METHODS["scrub"], {})
    assert (scrub.alpha, scrub.gamma, scrub.temperature, scrub.max_steps, scrub.epochs) == (0.5, 1, 2, 3, 10)
    assert scrub.learning_rate == 5e-4
    neggrad = settings_of(METHODS["neggrad"], {})
    assert (neggrad.epochs, neggrad.learning_rate) == (5, 1e-4)
    assert settings_of(METHODS["random_label"], {}).learning_rate == 0.013
    woodfisher = settings_of(METHODS["woodfisher"], {})
    assert (woodfisher.alpha, woodfisher.gradients) == (0.2, 1000)


def test_a_budget_is_shared_among_requests() -> None:
    assert [shared(10, n) for n in (1, 3, 5, 25)] == [10, 4, 2, 1]
    assert prepared("finetune", {"epochs": 10}, n_requests=5).epochs == 2


@pytest.mark.parametrize("name", GRADIENT)
def test_the_original_is_never_changed(name: str) -> None:
    original = network()
    before = copy.deepcopy(original.state_dict())
    method = prepared(name, {"gradients": 5} if name == "woodfisher" else None, model=original, augment=flipped)
    for _ in range(2):
        method.forget(request_for(METHODS[name], pictures("gone", 9), lambda: pictures("kept", 33)))
    assert all(torch.equal(value, before[key]) for key, value in original.state_dict().items())
    assert not torch.equal(method.parameters(), parameters_of(original))
    assert method.parameters().dtype == torch.float64
    assert method.scores(pictures("test", 7).inputs).shape == (7, C)
    assert not method.model.training


@pytest.mark.parametrize("name", GRADIENT)
def test_the_same_seed_gives_the_same_bits(name: str) -> None:
    twice = [ask(prepared(name, None if name == "woodfisher" else {"batch_size": 8})).parameters() for _ in range(2)]
    assert torch.equal(*twice)


@pytest.mark.parametrize("name", GRADIENT)
def test_a_collapse_is_a_result_and_no_error(name: str) -> None:
    broken = head()
    with torch.no_grad():
        broken.weight.fill_(float("nan"))
    method = ask(prepared(name, model=broken))
    assert method.parameters().isnan().all()
    assert method.scores(RETAINED.inputs).isnan().all()


@pytest.mark.parametrize(("mode", "moves"), [("train", True), ("eval", False)])
def test_running_statistics_follow_descent_in_training_mode_alone(mode: str, moves: bool) -> None:
    original = network()
    method = prepared("neggrad", {"batch_norm": mode}, model=original)
    method.forget(Request(pictures("gone", 9)))
    assert torch.equal(method.model[2].running_mean, original[2].running_mean) is not moves


# -- heads ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [None, 1.0, 0.25])
def test_a_head_scores_as_its_weights_do_at_any_scale(scale: float | None) -> None:
    weights = ridge(LEARNED, C, GAMMA)
    model = Head(weights, scale)
    torch.testing.assert_close(scores_of(model, RETAINED.inputs).double(), RETAINED.inputs.double() @ weights)
    torch.testing.assert_close(parameters_of(model), weights.flatten(), rtol=1e-6, atol=1e-9)


def test_ridge_is_the_solution_of_its_normal_equations() -> None:
    F = LEARNED.inputs.double().numpy()
    wanted = np.linalg.solve(F.T @ F + GAMMA * np.eye(D), F.T @ np.eye(C)[LEARNED.labels.numpy()])
    np.testing.assert_allclose(ridge(LEARNED, C, GAMMA).numpy(), wanted, rtol=1e-10, atol=1e-13)
    np.testing.assert_array_equal(sums(LEARNED, C)[0].numpy(), F.T @ F)


# -- gradient methods ----------------------------------------------------------------------------------


def test_finetune_steps_against_the_gradient_of_the_retained() -> None:
    method = ask(prepared("finetune", PLAIN | {"learning_rate": 0.5}))
    wanted = weight(prepared("finetune")) - 0.5 * cross_entropy_gradient(head(), RETAINED)
    np.testing.assert_allclose(weight(method), wanted, rtol=1e-5, atol=1e-6)


def test_neggrad_steps_along_the_gradient_of_the_forgotten() -> None:
    method = ask(prepared("neggrad", PLAIN | {"learning_rate": 0.5}))
    wanted = weight(prepared("neggrad")) + 0.5 * cross_entropy_gradient(head(), FORGOTTEN)
    np.testing.assert_allclose(weight(method), wanted, rtol=1e-5, atol=1e-6)


def test_neggrad_plus_steps_along_both_gradients() -> None:
    method = ask(prepared("neggrad_plus", PLAIN | {"learning_rate": 0.5, "alpha": 0.75}))
    both = 0.75 * cross_entropy_gradient(head(), RETAINED) - 0.25 * cross_entropy_gradient(head(), FORGOTTEN)
    np.testing.assert_allclose(weight(method), weight(prepared("neggrad")) - 0.5 * both, rtol=1e-5, atol=1e-6)


def test_l1_sparsity_steps_against_the_signs() -> None:
    method = ask(prepared("l1_sparsity", PLAIN | {"learning_rate": 0.5, "penalty": 0.125}))
    start = weight(prepared("finetune"))
    wanted = start - 0.5 * (cross_entropy_gradient(head(), RETAINED) + 0.125 * np.sign(start))
    np.testing.assert_allclose(weight(method), wanted, rtol=1e-5, atol=1e-6)


def test_l1_sparsity_lets_go_towards_the_last_request() -> None:
    method = prepared("l1_sparsity", PLAIN | {"learning_rate": 0.5, "penalty": 0.125, "epochs": 4}, n_requests=4)
    for number in range(4):
        start, gradient = weight(method).copy(), cross_entropy_gradient(method.model, RETAINED)
        wanted = start - 0.5 * (gradient + 0.125 * (1 - number / 4) * np.sign(start))
        np.testing.assert_allclose(weight(ask(method)), wanted, rtol=1e-5, atol=1e-6)


def test_neggrad_has_all_its_epochs_for_each_request() -> None:
    assert prepared("neggrad", {"epochs": 5}, n_requests=25).epochs == 5
    assert prepared("finetune", {"epochs": 5}, n_requests=25).epochs == 1


def test_adams_first_step_is_the_learning_rate_along_the_signs() -> None:
    method = ask(prepared("finetune", PLAIN | {"learning_rate": 0.25, "optimiser": "adam"}))
    wanted = weight(prepared("finetune")) - 0.25 * np.sign(cross_entropy_gradient(head(), RETAINED))
    np.testing.assert_allclose(weight(method), wanted, rtol=1e-3, atol=1e-3)
    with pytest.raises(ValueError, match="optimiser must be"):
        prepared("finetune", {"optimiser": "lbfgs"})


def test_the_original_stays_as_it_is() -> None:
    assert torch.equal(ask(prepared("original")).model.weight, head().weight)


@pytest.mark.parametrize(
    ("name", "setting"), [("l1_sparsity", {"penalty": 0.0}), ("neggrad_plus", {"alpha": 1.0, "epochs": 10})]
)
def test_methods_that_reduce_to_finetune_do_so_bit_for_bit(name: str, setting: dict[str, float]) -> None:
    for kept, gone, start in (
        (RETAINED, FORGOTTEN, {"model": head()}),
        (pictures("kept", 50), pictures("gone", 9), {"model": network(), "augment": flipped}),
    ):
        pair = [
            prepared(name, {"batch_size": 16} | setting, **start),
            prepared("finetune", {"batch_size": 16}, **start),
        ]
        for method in pair:
            for _ in range(2):
                method.forget(Request(gone, kept))
        states = [method.model.state_dict() for method in pair]
        assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())


def test_scrub_without_max_steps_is_distillation() -> None:
    settings = PLAIN | {"learning_rate": 0.5, "max_steps": 0, "epochs": 2, "optimiser": "sgd"}
    method = ask(prepared("scrub", settings))
    teacher, student = head(), head()
    for _ in range(2):  # by hand: alpha KL + gamma cross-entropy on the retained samples
        p = torch.softmax(teacher(RETAINED.inputs) / 2, 1).detach()
        logits = student(RETAINED.inputs)
        kl = (p * (p.log() - torch.log_softmax(logits / 2, 1))).sum(1).mean() * 4
        truth = -torch.log_softmax(logits, 1)[torch.arange(60), RETAINED.labels].mean()
        (gradient,) = torch.autograd.grad(0.5 * kl + truth, [student.weight])
        with torch.no_grad():
            student.weight -= 0.5 * gradient
    torch.testing.assert_close(method.model.weight, student.weight, rtol=1e-5, atol=1e-6)


def test_scrub_max_steps_move_away_from_the_teacher_on_the_forgotten() -> None:
    settings = {"learning_rate": 0.5, "batch_size": 20, "alpha": 0.0, "gamma": 0.0, "weight_decay": 0.0}
    apart, taught = [], scores_of(head(), FORGOTTEN.inputs)
    for max_steps in (0, 1, 3):
        method = prepared("scrub", settings | {"max_steps": max_steps})
        with torch.no_grad():
            method.model.weight.mul_(0.9)  # away from the teacher, where the divergence has no slope
        apart.append(float(divergence(ask(method).scores(FORGOTTEN.inputs), taught, 2.0)))
    assert 0 < apart[0] < apart[1] < apart[2]


def test_scrub_has_no_slope_where_student_and_teacher_agree() -> None:
    settings = {"epochs": 1, "alpha": 0.0, "gamma": 0.0, "weight_decay": 0.0, "optimiser": "sgd"}
    torch.testing.assert_close(ask(prepared("scrub", settings)).model.weight, head().weight, rtol=0, atol=1e-6)


def test_divergence_by_hand() -> None:
    student, teacher = torch.tensor([[0.0, 0.0]]), torch.tensor([[2 * np.log(3.0), 0.0]])
    wanted = 4 * (0.75 * np.log(0.75 / 0.5) + 0.25 * np.log(0.25 / 0.5))  # T = 2: teacher (3/4, 1/4), student even
    assert float(divergence(student, teacher, 2.0)) == pytest.approx(wanted, rel=1e-6)


def test_random_label_never_uses_the_true_label() -> None:
    labels = torch.arange(4000) % C
    others = other_labels(labels, C, generator("cpu", 1))
    assert not (others == labels).any()
    shares = np.bincount(((others - labels) % C).numpy(), minlength=C) / 4000
    np.testing.assert_allclose(shares, [0, 1 / 3, 1 / 3, 1 / 3], atol=0.03)
    with pytest.raises(ValueError, match="at least two classes; got 1"):
        other_labels(labels, 1, generator("cpu", 1))


def test_random_label_descends_on_both_sets() -> None:
    method = prepared("random_label", PLAIN | {"learning_rate": 0.5})
    labels = other_labels(FORGOTTEN.labels, C, method.random(1))
    both = Samples(LEARNED.inputs, torch.cat([RETAINED.labels, labels]))
    wanted = weight(method) - 0.5 * cross_entropy_gradient(head(), both)
    np.testing.assert_allclose(weight(ask(method)), wanted, rtol=1e-5, atol=1e-6)


def sherman_morrison(gradients: np.ndarray, damping: float) -> np.ndarray:
    """WoodFisher's recursion as its paper has it, on the whole matrix."""
    inverse = np.eye(gradients.shape[1]) / damping
    for g in gradients:
        along = inverse @ g
        inverse = inverse - np.outer(along, along) / (len(gradients) + g @ along)
    return inverse


@pytest.mark.parametrize("damping", [1.0, 1e-3])
@pytest.mark.parametrize("count", [3, 30])
def test_woodfisher_inverse_is_the_recursions_and_the_explicit_one(count: int, damping: float) -> None:
    random = np.random.default_rng(0)
    gradients, vector = random.normal(size=(count, 10)), random.normal(size=10)
    explicit = np.linalg.inv(damping * np.eye(10) + gradients.T @ gradients / count)
    np.testing.assert_allclose(sherman_morrison(gradients, damping), explicit, rtol=1e-8, atol=1e-9)
    got = inverse_fisher(torch.from_numpy(gradients), torch.from_numpy(vector), damping).numpy()
    np.testing.assert_allclose(got, explicit @ vector, rtol=1e-8, atol=1e-9)


def test_woodfisher_makes_its_step() -> None:
    method = ask(prepared("woodfisher", {"damping": 0.01, "alpha": 0.2}))
    start = head()
    single = [Samples(RETAINED.inputs[i : i + 1], RETAINED.labels[i : i + 1]) for i in range(60)]
    G = np.stack([cross_entropy_gradient(start, one).ravel() for one in single])  # (60, C d)
    f, r = 20 * cross_entropy_gradient(start, FORGOTTEN).ravel(), 60 * cross_entropy_gradient(start, RETAINED).ravel()
    influence = f / 80 - r * 20 / (80 * 60)
    step = 0.2 * sherman_morrison(G, 0.01) @ influence
    moved = weight(method) - start.weight.detach().double().numpy()
    np.testing.assert_allclose(moved, step.reshape(C, D), rtol=1e-3, atol=1e-6)


def test_woodfisher_points_where_retraining_would_go() -> None:
    """On an optimum of all samples, the step lowers the loss of the retained and raises that of the forgotten."""
    full = PLAIN | {"learning_rate": 2.0, "epochs": 500}
    original = prepared("finetune", full)
    original.forget(Request(FORGOTTEN, LEARNED))
    method = ask(prepared("woodfisher", {"damping": 0.1, "alpha": 1.0}, model=original.model))

    def losses(model: Any) -> list[float]:
        parts = (RETAINED, FORGOTTEN)
        return [float(torch.nn.functional.cross_entropy(scores_of(model, part.inputs), part.labels)) for part in parts]

    before, after = losses(original.model), losses(method.model)
    assert after[0] < before[0]
    assert after[1] > before[1]


def test_woodfisher_uses_no_more_gradients_than_it_may() -> None:
    few = ask(prepared("woodfisher", {"gradients": 2, "damping": 0.01}))
    all_of_them = ask(prepared("woodfisher", {"gradients": 60, "damping": 0.01}))
    assert not torch.equal(few.parameters(), all_of_them.parameters())
    np.testing.assert_array_equal(inverse_fisher(torch.zeros((0, 3)), torch.ones(3), 0.5).numpy(), [2, 2, 2])


def test_retrain_puts_the_retrained_model_in_place() -> None:
    method = ask(prepared("retrain", train=lambda samples: Head(ridge(samples, C, GAMMA))))
    torch.testing.assert_close(method.parameters(), ridge(RETAINED, C, GAMMA).flatten(), rtol=1e-6, atol=1e-9)


# -- methods that learn for themselves -----------------------------------------------------------------


def whole_class(label: int, samples: Samples = LEARNED) -> tuple[Samples, Samples]:
    rows = samples.labels == label
    return Samples(samples.inputs[rows], samples.labels[rows]), Samples(samples.inputs[~rows], samples.labels[~rows])


@pytest.mark.parametrize("as_written", [False, True])
@pytest.mark.parametrize("by_recursion", [False, True])
def test_acu_in_float64_is_the_ridge_solution_on_the_retained(by_recursion: bool, as_written: bool) -> None:
    settings = {"gamma": GAMMA, "by_recursion": by_recursion, "rows": 7, "as_written": as_written}
    method = prepared("acu_float64", settings)
    torch.testing.assert_close(method.parameters(), ridge(LEARNED, C, GAMMA).flatten(), rtol=1e-8, atol=1e-8)
    ask(method)
    weights = ridge(RETAINED, C, GAMMA)
    torch.testing.assert_close(method.parameters(), weights.flatten(), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(method.scores(RETAINED.inputs), RETAINED.inputs.double() @ weights)
    method.learn(FORGOTTEN)
    torch.testing.assert_close(method.parameters(), ridge(LEARNED, C, GAMMA).flatten(), rtol=1e-8, atol=1e-8)
    assert method.notes == []
    assert method.digest() is None


def test_acu_in_float32_is_near_it() -> None:
    method = ask(prepared("acu_float32", {"gamma": GAMMA}))
    assert method.model.T.dtype == torch.float32
    torch.testing.assert_close(method.parameters(), ridge(RETAINED, C, GAMMA).flatten(), rtol=1e-2, atol=1e-5)


@pytest.mark.parametrize("track_classes", [False, True])
def test_acu_forgets_a_class_by_its_sums_or_by_its_samples(track_classes: bool) -> None:
    method = prepared("acu_float64", {"gamma": GAMMA, "track_classes": track_classes})
    gone, kept = whole_class(1)
    nothing = Samples(gone.inputs[:0], gone.labels[:0])
    method.forget(Request(nothing if track_classes else gone, label=1))
    wanted = ridge(kept, C, GAMMA)
    assert not wanted[:, 1].any()
    torch.testing.assert_close(method.parameters(), wanted.flatten(), rtol=1e-8, atol=1e-8)
    assert (method.scores(gone.inputs)[:, 1] == float("-inf")).all()
    method.learn(gone)  # and back
    torch.testing.assert_close(method.parameters(), ridge(LEARNED, C, GAMMA).flatten(), rtol=1e-8, atol=1e-8)
    method.forget(Request(gone, label=1))
    torch.testing.assert_close(method.parameters(), wanted.flatten(), rtol=1e-8, atol=1e-8)


def test_acu_notes_a_refusal_and_goes_on_with_nan() -> None:
    method = prepared("acu_float64", {"gamma": 1.0, "rows": 50})
    for _ in range(2):
        method.forget(Request(Samples(torch.full((50, D), 100, dtype=torch.int8), torch.zeros(50, dtype=torch.int64))))
    assert method.parameters().isnan().all()
    assert len(method.notes) == 1
    assert "no model after step 1 of the recursion: I - F T F', the matrix to invert" in method.notes[0]


def features(n: int, n_classes: int = C) -> Samples:
    rows, labels = clustered("paper", n, 10, n_classes)
    return Samples(torch.from_numpy(rows).float(), torch.from_numpy(labels.astype(np.int64)))


@pytest.mark.parametrize("width", [0, 32])
def test_neverseen_is_retraining_by_its_digest(width: int) -> None:
    learned = features(90)
    gone, kept = (Samples(learned.inputs[rows], learned.labels[rows]) for rows in (slice(0, 30), slice(30, 90)))
    settings = {"codes": width, "gamma": 256, "hardware": "numpy", "batch": 25}
    method = prepared("neverseen", settings, learned=learned)
    whole = method.digest()
    for first in range(0, 30, 10):
        method.forget(Request(Samples(gone.inputs[first : first + 10], gone.labels[first : first + 10])))
    fresh = prepared("neverseen", settings, learned=kept)
    assert method.digest() == method.retrained_digest(kept) == fresh.digest() != whole
    assert torch.equal(method.parameters(), fresh.parameters())
    assert torch.equal(method.scores(gone.inputs), fresh.scores(gone.inputs))
    assert len(method.parameters()) == (width or 10) * C
    method.learn(gone)
    assert method.digest() == whole


def test_neverseen_queued_reads_the_weights_after_the_last_request() -> None:
    learned = features(90)
    settings = {"codes": 16, "gamma": 256, "hardware": "numpy"}
    method = prepared("neverseen_queued", settings, learned=learned, n_requests=3)
    before = method.parameters()
    for first in range(0, 30, 10):
        assert torch.equal(method.parameters(), before)
        method.forget(Request(Samples(learned.inputs[first : first + 10], learned.labels[first : first + 10])))
    kept = Samples(learned.inputs[30:], learned.labels[30:])
    fresh = prepared("neverseen", settings, learned=kept)
    assert method.digest() == fresh.digest()
    assert torch.equal(method.parameters(), fresh.parameters())


def test_neverseen_forgets_a_class_without_its_samples() -> None:
    learned = features(90)
    gone, kept = whole_class(2, learned)
    method = prepared("neverseen", {"codes": 16, "track_classes": True, "hardware": "numpy"}, learned=learned)
    method.forget(Request(Samples(gone.inputs[:0], gone.labels[:0]), label=2))
    assert method.digest() == method.retrained_digest(kept)
    assert (method.scores(gone.inputs)[:, 2] == float("-inf")).all()
    assert not method.parameters().reshape(16, C)[:, 2].any()


def test_neverseen_scores_two_classes_and_none() -> None:
    learned = features(40, 2)
    method = prepared("neverseen", {"codes": 0, "hardware": "numpy"}, learned=learned)
    scores = method.scores(learned.inputs)
    assert scores.shape == (40, C)
    assert torch.equal(scores.argmax(1), torch.from_numpy(method.model.predict(learned.inputs.numpy())))
    method.forget(Request(learned))
    assert (method.scores(learned.inputs) == float("-inf")).all()
    assert method.digest() == method.retrained_digest(Samples(learned.inputs[:0], learned.labels[:0]))
