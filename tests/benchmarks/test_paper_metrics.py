"""The metrics and attacks of `benchmarks.paper` against values worked out by hand."""

from __future__ import annotations

import doctest
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from benchmarks.paper import attacks, memory, metrics  # noqa: E402
from benchmarks.paper.attacks import Answers, Attack  # noqa: E402
from benchmarks.paper.methods.head import ridge  # noqa: E402
from benchmarks.paper.methods.interface import Samples  # noqa: E402
from tests.samples import codes, uniform_bytes  # noqa: E402

NAN = float("nan")


def log_odds(p: Any) -> Any:
    """Scores whose softmax is p."""
    return torch.tensor(p, dtype=torch.float64).log()


@pytest.mark.parametrize("module", [metrics, memory])
def test_examples(module: Any) -> None:
    assert doctest.testmod(module).failed == 0


# -- metrics -------------------------------------------------------------------------------------------


def test_parameter_gap() -> None:
    assert metrics.parameter_gap(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 4.0, 4.0])) == math.sqrt(5)
    assert math.isnan(metrics.parameter_gap(torch.tensor([NAN, 1.0]), torch.zeros(2)))
    assert math.isnan(metrics.parameter_gap(torch.tensor([float("inf"), 1.0]), torch.zeros(2)))
    with pytest.raises(ValueError, match="parameters have 2 entries and the reference 3: a gap is between models"):
        metrics.parameter_gap(torch.zeros(2), torch.zeros(3))


def test_accuracy() -> None:
    scores = torch.tensor([[0.0, 1.0], [1.0, 0.0], [NAN, 0.0], [float("-inf"), 0.5]])
    assert metrics.accuracy(scores, torch.tensor([1, 1, 0, 1])) == 50.0
    assert metrics.accuracy(torch.tensor([[1.0, 1.0]]), torch.tensor([0])) == 100.0
    assert math.isnan(metrics.accuracy(torch.zeros((0, 2)), torch.zeros(0, dtype=torch.int64)))


class Fixed:
    """A method that gives its inputs back as scores."""

    def scores(self, inputs: Any) -> Any:
        return inputs


def test_accuracies_and_gaps() -> None:
    right, wrong = torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 0.0]])
    one, none = torch.tensor([1]), torch.zeros(0, dtype=torch.int64)
    method: Any = Fixed()
    found = metrics.accuracies(method, Samples(right, one), Samples(wrong, one), Samples(right[:0], none))
    assert (found["retained"], found["forgotten"]) == (100.0, 0.0)
    assert math.isnan(found["test"])
    assert metrics.gaps({"retained": 90.0, "test": 60.0}, {"retained": 91.5, "test": 58.0}) == {
        "retained": 1.5,
        "test": 2.0,
    }


def test_summary() -> None:
    assert metrics.summary([2.0]) == {"mean": 2.0, "std": None, "count": 1}
    assert metrics.summary([1.0, 3.0]) == {"mean": 2.0, "std": math.sqrt(2), "count": 2}
    with pytest.raises(ValueError, match="no values"):
        metrics.summary([])


# -- the confidence attack -----------------------------------------------------------------------------


def test_entropies_by_hand() -> None:
    p = torch.tensor([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 0])
    np.testing.assert_allclose(attacks.entropy(p).numpy(), [1.5 * math.log(2), 0, 0], atol=1e-12)
    # -(1 - 1/2) log 1/2 - 2 * 1/4 log(1 - 1/4); right and certain: 0; wrong and certain: as large as can be
    first = 0.5 * math.log(2) - 0.5 * math.log(0.75)
    got = attacks.modified_entropy(p, labels).numpy()
    np.testing.assert_allclose(got[:2], [first, 0], atol=1e-12)
    assert got[2] > 100
    falling = torch.tensor([[0.9, 0.1], [0.5, 0.5], [0.1, 0.9]], dtype=torch.float64)
    assert np.all(np.diff(attacks.modified_entropy(falling, labels).numpy()) > 0)  # in the chance of the true class


def test_modified_entropy_of_each_label() -> None:
    p = torch.tensor([[0.2, 0.3, 0.5]] * 3, dtype=torch.float64)
    wanted = []
    for y in range(3):
        row = [0.2, 0.3, 0.5]
        true = row.pop(y)
        wanted.append(-(1 - true) * math.log(true) - sum(q * math.log(1 - q) for q in row))
    np.testing.assert_allclose(attacks.modified_entropy(p, torch.arange(3)).numpy(), wanted, rtol=1e-12)


def test_attack_features_are_the_three() -> None:
    answers = Answers(log_odds([[0.5, 0.25, 0.25]]), torch.tensor([1]))
    modified = -0.75 * math.log(0.25) - 0.5 * math.log(0.5) - 0.25 * math.log(0.75)
    np.testing.assert_allclose(attacks.attack_features(answers), [[0.25, 1.5 * math.log(2), modified]], rtol=1e-12)


def toy(confidence: float, count: int, name: str) -> Answers:
    """Answers near a confidence in the first of two classes, which is the true one."""
    p = np.clip(confidence + (uniform_bytes(name, count) / 255.0 - 0.5) * 0.02, 0, 1)
    return Answers(log_odds(np.stack([p, 1 - p], 1)), torch.zeros(count, dtype=torch.int64))


def test_confidence_attack_on_separable_answers() -> None:
    members, others = toy(0.98, 300, "members"), toy(0.7, 200, "others")
    assert attacks.confidence_attack(members, others, toy(0.98, 50, "gone")) == 1.0
    assert attacks.confidence_attack(members, others, toy(0.7, 50, "gone")) == 0.0
    mixed = [toy(0.98, 30, "a"), toy(0.7, 10, "b")]
    answers = Answers(*(torch.cat(parts) for parts in zip(*mixed, strict=True)))
    assert attacks.confidence_attack(members, others, answers, most=100) == 0.75


def test_confidence_attack_is_the_same_for_the_same_seed() -> None:
    parts = toy(0.9, 300, "x"), toy(0.895, 300, "y"), toy(0.9, 100, "z")
    values = [attacks.confidence_attack(*parts, seed=seed, most=50) for seed in (1, 1, 2)]
    assert values[0] == values[1]


def test_confidence_attack_on_a_collapsed_model_is_nan() -> None:
    good = toy(0.9, 20, "good")
    assert math.isnan(attacks.confidence_attack(good, good, good._replace(scores=good.scores * NAN)))
    assert math.isnan(attacks.confidence_attack(good, good, Answers(good.scores[:0], good.labels[:0])))


def test_confidence_attack_on_a_class_that_is_gone() -> None:
    gone = Answers(torch.tensor([[float("-inf"), 0.0]] * 5), torch.zeros(5, dtype=torch.int64))
    assert attacks.confidence_attack(toy(0.98, 50, "members"), toy(0.7, 50, "others"), gone) in (0.0, 1.0)


# -- the per-example attack ----------------------------------------------------------------------------


def test_scaled_confidence_is_the_log_odds() -> None:
    answers = Answers(log_odds([[0.5, 0.25, 0.25], [0.8, 0.1, 0.1]]), torch.tensor([1, 0]))
    np.testing.assert_allclose(attacks.scaled_confidences(answers), [math.log(1 / 3), math.log(4)], rtol=1e-12)
    sure = Answers(torch.tensor([[1000.0, 0.0]]), torch.tensor([0]))
    np.testing.assert_allclose(attacks.scaled_confidences(sure), [1000.0])


def test_likelihood_ratio_by_hand() -> None:
    # One sample. Seen: 1 and 3, mean 2, variance 2. Unseen: -1 and 1, mean 0, variance 2.
    references, seen = np.array([[1.0], [3.0], [-1.0], [1.0]]), np.array([[True], [True], [False], [False]])
    got = attacks.likelihood_ratios(np.array([2.0]), references, seen)
    np.testing.assert_allclose(got, [1.0])  # 0 - (-(2^2) / (2 * 2))
    # Two samples with few references share the mean variance: (2 + 0) / 2 on both sides.
    both = attacks.likelihood_ratios(
        np.array([2.0, 5.0]), np.hstack([references, np.full((4, 1), 5.0)]), seen.repeat(2, 1)
    )
    np.testing.assert_allclose(both, [2.0, 0.0])


def test_each_sample_has_its_own_variance_with_eight_references() -> None:
    references = np.concatenate([np.tile([[1.0, 10.0]], (8, 1)), np.zeros((8, 2))])
    references[::2] += [0.1, 4.0]
    seen = np.repeat([True, False], 8)[:, None].repeat(2, 1)
    own = attacks.likelihood_ratios(np.array([1.0, 1.0]), references, seen)
    for column in range(2):
        alone = attacks.likelihood_ratios(np.array([1.0]), references[:, [column]], seen[:, [column]])
        np.testing.assert_allclose(own[column], alone[0])


def test_likelihood_ratios_say_what_is_missing() -> None:
    with pytest.raises(ValueError, match=r"must have shape \(m, 2\); got \(3, 1\) and \(3, 1\)"):
        attacks.likelihood_ratios(np.zeros(2), np.zeros((3, 1)), np.ones((3, 1), bool))
    with pytest.raises(ValueError, match="unseen by at least one"):
        attacks.likelihood_ratios(np.zeros(2), np.zeros((3, 2)), np.ones((3, 2), bool))


def test_attack_quality_by_hand() -> None:
    assert attacks.attack_quality(np.array([2.0, 3.0]), np.array([0.0, 1.0])) == Attack(1.0, 1.0)
    assert attacks.attack_quality(np.array([0.0, 1.0]), np.array([2.0, 3.0])) == Attack(0.0, 0.0)
    assert attacks.attack_quality(np.array([0.0, 2.0]), np.array([1.0, 1.0])) == Attack(0.5, 0.5)
    assert attacks.attack_quality(np.array([1.0]), np.array([1.0])) == Attack(0.5, 0.0)
    negatives = np.arange(200.0)
    assert attacks.attack_quality(np.array([197.5, 198.5]), negatives).tpr_at_1_percent == 1.0  # two are above 197
    assert attacks.attack_quality(np.array([196.5, 198.5]), negatives).tpr_at_1_percent == 0.5
    assert math.isnan(attacks.attack_quality(np.array([NAN]), negatives).auc)
    assert math.isnan(attacks.attack_quality(np.array([]), negatives).auc)


def odds(values: np.ndarray) -> Answers:
    """Answers with these scaled confidences."""
    scores = torch.from_numpy(np.stack([values, np.zeros(len(values))], 1))
    return Answers(scores, torch.zeros(len(values), dtype=torch.int64))


@pytest.mark.parametrize("separation", [0.0, 1.0, 2.0])
def test_lira_on_gaussians_of_known_separation(separation: float) -> None:
    """Two Gaussians of one variance whose means are s deviations apart have an AUC of Phi(s / sqrt 2)."""
    random = np.random.default_rng(0)
    n, m = 4000, 64
    easy = random.normal(0, 3, n)  # each sample has its own mean: an attack that is not per-example would be lost
    seen = np.arange(m)[:, None] % 2 == np.zeros((1, n), int)
    references = random.normal(size=(m, n)) + easy + 2.0 * seen
    unlearned = odds(random.normal(size=n) + easy + separation)
    retrained = odds(random.normal(size=n) + easy)
    got = attacks.lira(unlearned, retrained, references, seen)
    phi = (1 + math.erf(separation / 2)) / 2
    assert got.auc == pytest.approx(phi, abs=0.025)
    false_positives = {0.0: 0.01, 1.0: 0.0924, 2.0: 0.3722}  # Phi(s - 2.326)
    assert got.tpr_at_1_percent == pytest.approx(false_positives[separation], abs=0.08)


def test_lira_of_the_retrained_model_is_one_half() -> None:
    random = np.random.default_rng(1)
    references, seen = random.normal(size=(4, 30)), np.repeat([True, False], 2)[:, None].repeat(30, 1)
    same = odds(random.normal(size=30))
    assert attacks.lira(same, same, references, seen).auc == 0.5


@pytest.mark.parametrize("value", [NAN, float("-inf"), 1e200])
def test_lira_on_a_collapsed_model_is_nan(value: float) -> None:
    references, seen = np.zeros((4, 3)), np.repeat([True, False], 2)[:, None].repeat(3, 1)
    attack = attacks.lira(odds(np.array([0.0, value, 0.0])), odds(np.zeros(3)), references, seen)
    assert math.isnan(attack.auc)
    assert math.isnan(attack.tpr_at_1_percent)


def test_analytic_references_tell_a_head_that_saw_from_one_that_did_not() -> None:
    n_classes, d, gamma = 3, 40, 2000.0

    def samples(name: str, rows: int) -> Samples:
        labels = torch.from_numpy((uniform_bytes(name + ":y", rows) % n_classes).astype(np.int64))
        return Samples(torch.from_numpy(codes(name, rows, d)), labels)  # labels at random: only memory can know them

    retained, forgotten = samples("kept", 60), samples("gone", 40)
    references, seen = attacks.analytic_references(retained, forgotten, n_classes, gamma, count=8)
    assert references.shape == seen.shape == (8, 40)
    assert (seen.sum(0) == 4).all()
    assert (seen.sum(1) == 20).all()
    both = Samples(*(torch.cat(parts) for parts in zip(retained, forgotten, strict=True)))
    answers = [
        Answers(forgotten.inputs.double() @ ridge(part, n_classes, gamma), forgotten.labels)
        for part in (both, retained)
    ]
    assert attacks.lira(answers[0], answers[1], references, seen).auc > 0.9
    assert attacks.lira(answers[1], answers[1], references, seen).auc == 0.5
    with pytest.raises(ValueError, match="count must be even and at least 2"):
        attacks.analytic_references(retained, forgotten, n_classes, gamma, count=3)


# -- time and memory -----------------------------------------------------------------------------------


def test_time_is_measured_even_if_the_block_fails() -> None:
    before = time.perf_counter()
    with memory.timed("cpu") as elapsed:
        began = time.perf_counter()
        sum(range(10_000))
        inside = time.perf_counter() - began
    assert inside <= elapsed.seconds <= time.perf_counter() - before
    with pytest.raises(KeyError), memory.timed("cpu") as elapsed:
        raise KeyError
    assert elapsed.seconds > 0


def test_peak_memory_sees_what_was_freed() -> None:
    with memory.peak_memory("cpu") as idle:
        pass
    with memory.peak_memory("cpu") as peak:
        block = np.ones(2**25)  # 256 MiB
        del block
    assert peak.source in ("resident", "resident since the start")
    assert peak.bytes >= idle.bytes
    if peak.source == "resident":
        assert peak.bytes - idle.bytes > 200 * 2**20


def test_peak_memory_without_a_mark_to_set_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "_CLEAR", tmp_path / "none" / "clear_refs")
    with memory.peak_memory("cpu") as peak:
        pass
    assert peak.source == "resident since the start"
    assert peak.bytes > 2**20
