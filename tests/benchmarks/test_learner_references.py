"""Each recursion of the published learners against its closed form, and each learner on clusters that can be told apart.

The closed forms here are least squares by SVD on the samples themselves, with the ridge as further rows.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from benchmarks.learners import references
from benchmarks.learners.references import (
    ACIL,
    AFL,
    AIR,
    DSAL,
    FOAL,
    GACL,
    GKEAL,
    L3A,
    LDA,
    TSACL,
    CFSSeg,
    FinalResidual,
    Kernel,
    Learner,
    Mahalanobis,
    NearestMean,
    NothingLearnedError,
    Projection,
    RanPAC,
    Recursive,
    Ridge,
    Weighted,
)
from benchmarks.learners.references.embeddings import relu, sigmoid
from benchmarks.learners.references.sums import RIDGES, chosen_ridge
from tests.samples import features, uniform_bytes

WIDTH, SIZE, CLASSES, GAMMA = 12, 40, 6, 0.7
Phases = list[tuple[np.ndarray, np.ndarray]]
LABELS = uniform_bytes("learner-references:labels", 600) % CLASSES
X = features("learner-references:centres", CLASSES, WIDTH)[LABELS] + 0.6 * features("learner-references", 600, WIDTH)
TEST, TEST_LABELS = X[480:], LABELS[480:]
X, LABELS = X[:480], LABELS[:480]


def expansion(**settings: Any) -> Projection:
    return Projection(WIDTH, SIZE, **settings)


def by_class() -> Phases:
    """Three phases of two new classes each."""
    return [(X[phase == LABELS // 2], LABELS[phase == LABELS // 2]) for phase in range(CLASSES // 2)]


def mixed() -> Phases:
    """Four phases; each has earlier classes and new ones, in very different numbers."""
    chosen = [LABELS % 3 == 0, LABELS < 2, (LABELS > 3) & (np.arange(len(X)) % 3 > 0), np.ones(len(X), bool)]
    return [(X[rows], LABELS[rows]) for rows in chosen]


def learned(learner: Any, phases: Phases) -> Any:
    for rows, labels in phases:
        learner.learn(rows, labels)
    return learner


def joined(learner: Learner, phases: Phases) -> tuple[np.ndarray, np.ndarray]:
    """All codes and one-hot targets, in the learner's columns."""
    labels = np.concatenate([labels for _, labels in phases])
    return learner.embed(np.concatenate([rows for rows, _ in phases])), learner.targets(labels)


def closed_form(codes: np.ndarray, targets: np.ndarray, gamma: float, weights: np.ndarray | float = 1.0) -> np.ndarray:
    """Weighted ridge by SVD on the samples; the ridge is d further rows."""
    roots = np.sqrt(np.broadcast_to(weights, len(codes)))[:, None]
    d = codes.shape[1]
    stacked = np.vstack([roots * codes, np.sqrt(gamma) * np.eye(d)])
    found: np.ndarray = np.linalg.lstsq(
        stacked, np.vstack([roots * targets, np.zeros((d, targets.shape[1]))]), rcond=None
    )[0]
    return found


def close(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


def accuracy(learner: Any) -> float:
    return float(np.mean(learner.predict(TEST) == TEST_LABELS))


# -- recursions --------------------------------------------------------------------------------------

ONE_WEIGHT: dict[str, tuple[Callable[[], Weighted], Callable[[], Phases]]] = {
    "acil": (lambda: ACIL(expansion(), GAMMA), by_class),
    "gacl of new classes": (lambda: GACL(expansion(), GAMMA), by_class),
    "gacl": (lambda: GACL(expansion(), GAMMA), mixed),
    "recursion": (lambda: Recursive(expansion(), GAMMA, batch=7), mixed),
    "ts-acl": (lambda: TSACL(expansion(), GAMMA), mixed),
    "f-oal": (lambda: FOAL(expansion(activation=sigmoid)), mixed),
    "gkeal": (lambda: GKEAL(SIZE, sigma=3.0, gamma=GAMMA), by_class),
    "gkeal with public centres": (lambda: GKEAL(features("centres", 30, WIDTH), sigma=3.0, gamma=GAMMA), mixed),
    "afl with its ridges": (lambda: AFL(expansion(), GAMMA, clean=False), mixed),
    "ranpac with a fixed ridge": (lambda: RanPAC(expansion(normal=True), ridge=GAMMA), mixed),
}


@pytest.mark.parametrize("name", ONE_WEIGHT)
def test_phase_by_phase_is_the_ridge_solution_of_all_samples(name: str) -> None:
    make, phases = ONE_WEIGHT[name]
    learner = learned(make(), phases())
    codes, targets = joined(learner, phases())
    gamma = getattr(learner, "gamma", GAMMA) * (len(phases()) if isinstance(learner, AFL) else 1)
    R, W = learner.state()
    close(W, closed_form(codes, targets, gamma))
    close(R, np.linalg.inv(codes.T @ codes + gamma * np.eye(codes.shape[1])))
    assert accuracy(learner) > 0.9


def test_acil_refuses_a_class_that_comes_again() -> None:
    learner = learned(ACIL(expansion(), GAMMA), by_class()[:1])
    with pytest.raises(ValueError, match="use GACL"):
        learner.learn(*by_class()[0])


def test_afl_without_ridges_is_least_squares_of_all_clients() -> None:
    clients = [(X[start::20], LABELS[start::20]) for start in range(20)]
    learner = learned(AFL(gamma=1.0), clients)
    codes, targets = joined(learner, clients)
    close(learner.weights, np.linalg.lstsq(codes, targets, rcond=None)[0])
    others = learned(AFL(gamma=100.0), [(X[label == LABELS], LABELS[label == LABELS]) for label in range(CLASSES)])
    close(others.weights, learner.weights)


def test_afl_of_one_client() -> None:
    learner = learned(AFL(), [(X, LABELS)])
    close(learner.weights, np.linalg.lstsq(*joined(learner, [(X, LABELS)]), rcond=None)[0])


def test_pixels_are_samples() -> None:
    labels = LABELS.reshape(10, 6, 8).astype(np.int64)
    maps, labels[:, 0] = X.reshape(10, 6, 8, WIDTH), CFSSeg.ignored
    learner = learned(CFSSeg(expansion(), GAMMA), [(maps[:4], labels[:4]), (maps[4:], labels[4:])])
    kept = (labels != CFSSeg.ignored).ravel()
    flat = [(X[kept], labels.ravel()[kept])]
    close(learner.weights, closed_form(*joined(learner, flat), GAMMA))
    assert learner.predict(maps).shape == labels.shape
    assert accuracy(learner) > 0.9


def test_label_maps_are_brought_to_the_size_of_the_feature_maps() -> None:
    maps, labels = X.reshape(10, 6, 8, WIDTH), LABELS.reshape(10, 6, 8)
    fine = labels.repeat(3, axis=1).repeat(2, axis=2)
    same = [learned(CFSSeg(gamma=GAMMA), [(maps, each)]).weights for each in (labels, fine)]
    close(*same)


def test_background_takes_the_old_label_where_the_model_is_sure() -> None:
    maps, labels = X.reshape(10, 6, 8, WIDTH), LABELS.reshape(10, 6, 8)
    hidden = np.where(labels < 5, CFSSeg.background, labels)  # earlier classes are background in the second phase
    first = (maps[:5], np.where(labels[:5] < 5, labels[:5], CFSSeg.ignored))
    plain, filled = (learned(CFSSeg(expansion(), GAMMA, each), [first]) for each in (None, 0.6))
    for learner in (plain, filled):
        learner.learn(maps[5:], hidden[5:])
    assert accuracy(filled) > accuracy(plain) + 0.05


# -- sums --------------------------------------------------------------------------------------------


def test_regression_with_several_outputs() -> None:
    targets = X @ features("slopes", WIDTH, 3) + 0.1 * features("noise", len(X), 3)
    learner = learned(Ridge(gamma=GAMMA), [(X[:100], targets[:100]), (X[100:], targets[100:])])
    close(learner.state()[1], closed_form(X, targets, GAMMA))
    assert np.mean((learner.predict(X) - targets) ** 2) < 0.05 * np.var(targets)
    learner.learn(X, targets)
    close(learner.state()[1], closed_form(X, targets, GAMMA / 2))


@pytest.mark.parametrize("rows", [30, 400])
def test_ranpac_chooses_the_ridge_of_the_least_error_on_the_last_fifth(rows: int) -> None:
    codes, split = expansion(normal=True)(X[:rows]), int(rows * 0.8)
    targets = (LABELS[:rows, None] == np.arange(CLASSES)).astype(float)
    losses = [
        np.mean((codes[split:] @ closed_form(codes[:split], targets[:split], ridge) - targets[split:]) ** 2)
        for ridge in RIDGES
    ]
    assert chosen_ridge(codes, targets) == RIDGES[np.argmin(losses)]


def test_ranpac_solves_all_tasks_with_the_ridge_of_the_last() -> None:
    learner = learned(RanPAC(expansion(normal=True)), by_class())
    assert len(learner.ridges) == 3
    assert set(learner.ridges) <= set(RIDGES)
    close(learner.weights, closed_form(*joined(learner, by_class()), learner.ridges[-1]))
    assert accuracy(learner) > 0.9


@pytest.mark.parametrize("scaled", [True, False])
def test_air_gives_every_class_the_same_weight(scaled: bool) -> None:
    learner = learned(AIR(expansion(), GAMMA, scaled=scaled), mixed())
    codes, targets = joined(learner, mixed())
    shares = 1 / targets.sum(axis=0)
    if scaled:
        shares *= len(shares) / shares.sum()
    close(learner.weights, closed_form(codes, targets, GAMMA, targets @ shares))
    assert accuracy(learner) > 0.9


def test_air_finds_the_rare_classes_that_others_miss() -> None:
    rare = (LABELS < 3) | (np.arange(len(X)) % 40 == 0)
    phases = [(X[rare], LABELS[rare])]
    air, plain = learned(AIR(gamma=1e-3), phases), learned(Recursive(gamma=1e-3), phases)
    recalls = [np.mean(each.predict(TEST)[TEST_LABELS > 2] == TEST_LABELS[TEST_LABELS > 2]) for each in (air, plain)]
    assert recalls[0] > recalls[1] + 0.1


def test_l3a_weighs_samples_by_the_counts_of_their_phase() -> None:
    several = np.stack([X @ direction > 1.5 for direction in features("labels", 4, WIDTH)], axis=1).astype(float)
    learner = learned(L3A(expansion(), GAMMA, pseudo=None), [(X[:200], several[:200, :2]), (X[200:], several[200:])])
    first, second = several[:200, :2].sum(axis=0), several[200:].sum(axis=0)
    weights = []
    for targets, counts in ((several[:200, :2], first), (several[200:], second + np.pad(first, (0, 2)))):
        shares = counts**-0.5 * len(counts) / np.sum(counts**-0.5)
        weights.append((targets @ shares) / np.maximum(targets.sum(axis=1), 1))
    known = several.copy()
    known[:200, 2:] = 0
    close(learner.weights, closed_form(learner.embed(X), known, GAMMA, np.concatenate(weights)))


def test_l3a_fills_in_the_labels_of_earlier_classes() -> None:
    centres = 3 * features("several:centres", 4, WIDTH)
    several = (features("several", 800, 4) > 0).astype(float)
    several[~several.any(axis=1), 0] = 1
    rows = several @ centres + 0.5 * features("several:noise", 800, WIDTH)
    hidden = np.hstack([np.zeros((350, 2)), several[350:700, 2:]])
    found = {}
    for pseudo in (0.7, None):
        learner = learned(L3A(expansion(), 1e-3, pseudo), [(rows[:350], several[:350, :2]), (rows[350:700], hidden)])
        found[pseudo] = np.mean(learner.predict(rows[700:]) == several[700:])
    assert found[0.7] > 0.85
    assert found[0.7] > found[None] + 0.02


# -- streams -----------------------------------------------------------------------------------------


def two_streams(kind: type[Any], **settings: float) -> Any:
    return kind(expansion(), expansion(activation=np.tanh), GAMMA, 0.3, **settings)


def test_ds_al_fits_the_residuals_of_the_new_classes() -> None:
    learner = learned(two_streams(DSAL), by_class())
    codes, targets = joined(learner, by_class())
    second, residuals, seen = learner.compensate(np.concatenate([rows for rows, _ in by_class()])), [], 0
    for phase in range(3):
        known, seen_before = 2 * (phase + 1), seen
        seen += len(by_class()[phase][0])
        W = closed_form(codes[:seen], targets[:seen, :known], GAMMA)
        residual = np.zeros((seen - seen_before, CLASSES))
        residual[:, known - 2 : known] = (targets[seen_before:seen, :known] - codes[seen_before:seen] @ W)[:, -2:]
        residuals.append(residual)
    (_, main), (R, compensation) = learner.state()
    close(main, closed_form(codes, targets, GAMMA))
    close(compensation, closed_form(second, np.concatenate(residuals), 0.3))
    close(R, np.linalg.inv(second.T @ second + 0.3 * np.eye(SIZE)))
    assert accuracy(learner) > 0.9


def test_the_targets_of_ds_al_depend_on_history() -> None:
    ways = [learned(two_streams(DSAL), phases) for phases in (by_class(), by_class()[::-1])]
    columns = np.argsort(ways[1].classes)
    close(ways[1].state()[0][1][:, columns], ways[0].state()[0][1])
    assert not np.allclose(ways[1].state()[1][1][:, columns], ways[0].state()[1][1], atol=1e-3)


def test_final_residuals_do_not() -> None:
    ways = [learned(two_streams(FinalResidual), phases) for phases in (by_class(), by_class()[::-1])]
    close(ways[1].scores(TEST)[:, np.argsort(ways[1].classes)], ways[0].scores(TEST))
    codes, targets = joined(ways[0], by_class())
    second = ways[0].compensate(np.concatenate([rows for rows, _ in by_class()]))
    W = closed_form(codes, targets, GAMMA)
    V = closed_form(second, targets - codes @ W, 0.3)
    close(ways[0].scores(TEST), ways[0].embed(TEST) @ W + 0.6 * ways[0].compensate(TEST) @ V)
    assert accuracy(ways[0]) > 0.9


# -- means and covariances ---------------------------------------------------------------------------


@pytest.mark.parametrize("cosine", [False, True])
def test_nearest_mean(cosine: bool) -> None:
    learner = learned(NearestMean(cosine=cosine), mixed())
    rows, labels = (np.concatenate(parts) for parts in zip(*mixed(), strict=True))
    means = np.stack([rows[labels == label].mean(axis=0) for label in learner.classes])
    close(learner.means, means)
    if not cosine:
        close(-learner.scores(TEST), ((TEST[:, None] - means) ** 2).sum(axis=-1))
    assert accuracy(learner) > 0.9


def test_lda_is_that_of_scikit_learn() -> None:
    learner = learned(LDA(shrinkage=0.1), mixed())
    rows, labels = (np.concatenate(parts) for parts in zip(*mixed(), strict=True))
    theirs = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.1).fit(rows, labels)
    ours = learner.scores(TEST)[:, np.argsort(learner.classes)]
    close(
        ours - ours.mean(axis=1, keepdims=True),
        (expected := theirs.decision_function(TEST)) - expected.mean(axis=1, keepdims=True),
    )
    assert accuracy(learner) > 0.9


def test_lda_of_a_stream() -> None:
    learner = learned(LDA(shrinkage=0.2, scaled=False, priors=False), by_class())
    residuals = np.concatenate([X[label == LABELS] - X[label == LABELS].mean(axis=0) for label in range(CLASSES)])
    close(learner.covariance(), 0.8 * residuals.T @ residuals / len(X) + 0.2 * np.eye(WIDTH))
    assert accuracy(learner) > 0.9


@pytest.mark.parametrize("relative", [False, True])
def test_novelty_is_large_for_classes_never_learned(relative: bool) -> None:
    known = LABELS < 4
    learner = learned(Mahalanobis(relative=relative), [(X[known], LABELS[known])])
    score, new = learner.novelty(TEST), TEST_LABELS >= 4
    assert np.mean(score[new][:, None] > score[~new]) > 0.95  # the area under the ROC curve
    assert np.mean(learner.predict(TEST[~new]) == TEST_LABELS[~new]) > 0.9


def test_the_distance_is_mahalanobis() -> None:
    learner = learned(Mahalanobis(), mixed())
    apart = TEST[:, None] - learner.means
    distances = np.einsum("ncd,de,nce->nc", apart, np.linalg.inv(learner.covariance()), apart)
    close(-learner.scores(TEST), distances)
    close(learner.novelty(TEST), distances.min(axis=1))


# -- all ---------------------------------------------------------------------------------------------


def test_kernels_and_projections() -> None:
    squares = ((TEST[:, None] - X[:5]) ** 2).sum(axis=-1)
    close(Kernel(X[:5], 2.0)(TEST), np.exp(-squares / 8))
    uniform, normal = expansion().matrix, expansion(normal=True).matrix
    assert np.abs(uniform).max() <= WIDTH**-0.5
    assert 0.8 < normal.std() < 1.2
    assert np.array_equal(expansion(activation=np.tanh).matrix, uniform)
    close(expansion()(TEST), relu(TEST @ uniform))
    close(sigmoid(np.array([-800.0, 0.0, 800.0])), np.array([0.0, 0.5, 1.0]))


@pytest.mark.parametrize(
    "learner",
    [Recursive(), RanPAC(), AFL(), AIR(), L3A(), two_streams(DSAL), two_streams(FinalResidual), NearestMean(), LDA()],
    ids=lambda learner: type(learner).__name__,
)
def test_nothing_learned_is_said(learner: Learner) -> None:
    with pytest.raises(NothingLearnedError, match="call learn first"):
        learner.scores(TEST)
    if hasattr(learner, "state"):
        with pytest.raises(NothingLearnedError):
            learner.state()


def test_nothing_of_neverseen_is_imported() -> None:
    for path in Path(references.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [each.name for each in node.names] if isinstance(node, ast.Import) else []
            assert not any(name.split(".")[0] == "neverseen" for name in names), path
