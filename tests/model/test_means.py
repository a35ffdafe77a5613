"""Predictions by class means: the bits of the specification, whatever the history, for every face and hardware."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.exceptions import NotFittedError

from benchmarks.learners.references.gaussian import LDA, Mahalanobis, NearestMean
from neverseen import (
    AnalyticClassifier,
    ConfigurationError,
    ForgettingModel,
    Identity,
    IllConditionedError,
    InputError,
    Key,
    Keyring,
    LimitError,
    NotLearnedError,
    RandomProjection,
    store,
)
from neverseen.backbones import Precomputed
from neverseen.encoding import quantise
from neverseen.engine.statistics import Statistics
from neverseen.hardware import Hardware, choose
from neverseen.model.configuration import Configuration
from neverseen.model.means import RULES, ClassMeans
from neverseen.targets import LabelSets
from tests import oracle
from tests.samples import clustered

WIDTH = 5
X, NUMBERS = clustered("means", 40, WIDTH, 4)
Y = np.array(["cat", "dog", "emu", "fox"])[NUMBERS]
KEYS = Keyring(Key(bytes([7] * 32)), [Key(bytes([8] * 32))])
RULE = st.sampled_from(RULES)


def new(encoder: Any = None, gamma: Any = 2**6, **more: Any) -> AnalyticClassifier:
    return AnalyticClassifier(encoder or Identity(), gamma, key=KEYS.membership, hardware="numpy", **more)


def oracle_of(model: AnalyticClassifier, rows: list[int], by: str, shrinkage: float | None) -> oracle.ClassMeans:
    codes = model.configuration().encoder.encode(X[rows]).tolist()
    return oracle.class_means(by, codes, Y[rows].tolist(), model.gamma_, model.grid_bits, shrinkage)


# -- histories ---------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.data())
def test_after_any_history_they_are_those_of_the_specification(data: st.DataObject) -> None:
    by = data.draw(RULE)
    shrinkage = data.draw(st.none() | st.floats(0.001, 0.999)) if by == "lda" else None
    encoder = data.draw(st.sampled_from([Identity(), RandomProjection(7, seed=3)]))
    model, held = new(encoder, data.draw(st.sampled_from([1, 2**6, 2**16]))), Counter[int]()
    for _ in range(data.draw(st.integers(1, 4))):
        rows = data.draw(st.lists(st.integers(0, len(X) - 1), min_size=1, max_size=20))
        model.partial_fit(X[rows], Y[rows])
        held.update(rows)
        gone = data.draw(st.lists(st.sampled_from(sorted(held.elements())), unique=True))
        if gone:
            model.forget(X[gone], Y[gone])
            held -= Counter(gone)
    rows = sorted(held.elements())
    if not rows:
        return
    means = model.means(by, shrinkage)
    expected = oracle_of(model, rows, by, shrinkage)
    classes = oracle.class_order(Y[rows].tolist())
    assert means.classes_.tolist() == classes
    assert means.counts.tolist() == expected.counts
    codes = encoder.encode(X).tolist()
    scores = [oracle.mean_scores(expected, code) for code in codes]
    assert means.predict(X).tolist() == [classes[each.index(max(each))] for each in scores]
    assert means.novelty(X[:8]).tolist() == [oracle.novelty(expected, code) for code in codes[:8]]
    digest = model.configuration().digest()
    assert means.digest() == oracle.means_digest(digest, WIDTH, classes, expected).hex()
    assert means.digest() == new(encoder, model.gamma).fit(X[rows[::-1]], Y[rows[::-1]]).means(by, shrinkage).digest()


@pytest.mark.parametrize("by", RULES)
def test_every_hardware_gives_the_same_bits(by: str, hardware: Hardware) -> None:
    encoder = RandomProjection(130, seed=1)
    found = new(encoder).set_params(hardware=hardware.name).fit(X, Y).means(by)
    wanted = new(encoder).fit(X, Y).means(by)
    assert found.digest() == wanted.digest()
    assert np.array_equal(found.novelty(X), wanted.novelty(X))
    assert np.array_equal(found.predict(X), wanted.predict(X))


@pytest.mark.parametrize("by", RULES)
def test_they_are_a_copy_and_no_part_of_a_batch_changes_a_bit(by: str) -> None:
    model = new(RandomProjection(20, seed=1)).fit(X, Y)
    means = model.means(by)
    before = means.digest(), means.novelty(X).tolist(), means.predict(X).tolist()
    model.forget(X[:30], Y[:30])
    assert (means.digest(), means.novelty(X).tolist(), means.predict(X).tolist()) == before
    assert [value for row in X for value in means.novelty(row[None])] == before[1]
    assert model.means(by).digest() != before[0]
    assert means.score(X, Y) == np.mean(means.predict(X) == Y)


# -- exact comparisons -------------------------------------------------------------------------------

HOSTILE = st.integers(-127, 127) | st.sampled_from([-127, 0, 127])


@st.composite
def sums(draw: st.DrawFn) -> tuple[list[int], list[list[int]]]:
    """Counts and class sums of up to 2^40 samples; classes are often alike, or nearly so."""
    size = draw(st.integers(1, 4))
    counts: list[int] = []
    rows: list[list[int]] = []
    for _ in range(draw(st.integers(1, 4))):
        factor = draw(st.integers(0, 3))
        if rows and factor:  # the same mean, or the next one that there is
            counts.append(counts[0] * factor)
            rows.append([value * factor for value in rows[0]])
            rows[-1][0] += draw(st.integers(-1, 1))
        else:
            counts.append(draw(st.sampled_from([1, 2, 3, 10**6, 2**40 - 1])))
            rows.append([value * counts[-1] for value in draw(st.lists(HOSTILE, min_size=size, max_size=size))])
    return counts, rows


def summed(counts: list[int], rows: list[list[int]]) -> Statistics:
    """Sums with these parts; the Gram matrix is that of samples which equal the means of their classes, or larger."""
    found = Statistics(len(rows[0]), choose("numpy"))
    found.counts = {str(place): count for place, count in enumerate(counts)}
    found.sums = {str(place): np.array(row) for place, row in enumerate(rows)}
    means = [[math.ceil(abs(Fraction(value, count))) for value in row] for count, row in zip(counts, rows, strict=True)]
    found.gram = np.diag(
        [2 * sum(n * m[i] ** 2 for n, m in zip(counts, means, strict=True)) + 1 for i in range(found.size)]
    )
    return found


def test_means_say_what_they_are() -> None:
    assert repr(means_of(summed([2, 1], [[4, 2], [1, 0]]), "mean")) == "<ClassMeans by 'mean': 3 samples of 2 classes>"


def means_of(held: Statistics, by: str) -> ClassMeans:
    return ClassMeans(Configuration(Identity(), 2**39, 1), held.size, held, lambda rows: rows, by)


@settings(max_examples=300)
@given(sums(), st.data(), st.sampled_from(["mean", "cosine"]))
def test_near_ties_of_large_sums_are_decided_exactly(
    parts: tuple[list[int], list[list[int]]], data: st.DataObject, by: str
) -> None:
    counts, rows = parts
    size = len(rows[0])
    codes = data.draw(st.lists(st.lists(HOSTILE, min_size=size, max_size=size), min_size=1, max_size=4))
    found = means_of(summed(counts, rows), by)
    expected = oracle.ClassMeans(by, counts, rows, rows, [], 1, 1)
    scores = [oracle.mean_scores(expected, code) for code in codes]
    quantised = np.array(codes, np.int8)
    assert found.predict(quantised).tolist() == [each.index(max(each)) for each in scores]
    assert found.novelty(quantised).tolist() == [oracle.novelty(expected, code) for code in codes]


def test_equal_classes_go_to_the_first() -> None:
    for by in RULES:
        model = new().fit(np.concatenate([X[:5], X[:5], -X[:5]]), ["b"] * 5 + ["a"] * 5 + ["c"] * 5)
        assert set(model.means(by).predict(X[:5])) == {"a"}


def test_a_class_whose_sum_is_zero_is_at_a_right_angle_to_everything() -> None:
    model = new().fit([[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]], ["none", "none", "one"])
    means = model.means("cosine")
    assert means.predict([[1.0, -0.5], [-1.0, 1.0], [0.0, 0.0]]).tolist() == ["one", "none", "none"]
    assert means.novelty([[1.0, -1.0], [-1.0, 1.0], [0.0, 0.0]]).tolist() == [0.0, 1.0, 1.0]


def test_sums_that_are_too_large_are_refused() -> None:
    large = summed([2**48 - 1], [[127 * (2**48 - 1), 127 * (2**48 - 1)]])
    for by in RULES:
        with pytest.raises(LimitError):
            means_of(large, by)


# -- what they are for -------------------------------------------------------------------------------


def test_they_predict_as_the_published_formulas_do() -> None:
    samples, labels = clustered("means in floats", 400, 8, 5)
    encoder = RandomProjection(40, seed=2)
    model = new(encoder).fit(samples[:300], labels[:300])
    codes = encoder.encode(samples).astype(np.float64)
    for by, reference in (
        ("mean", NearestMean()),
        ("cosine", NearestMean(cosine=True)),
        ("lda", LDA(shrinkage=0.1, priors=False)),
    ):
        reference.learn(codes[:300], labels[:300])
        means = model.means(by, 0.1 if by == "lda" else None)
        assert np.mean(means.predict(samples) == reference.predict(codes)) > 0.98  # the rounded means alone differ
        assert means.score(samples[300:], labels[300:]) > 0.6
    measured = Mahalanobis(shrinkage=0.1)
    measured.learn(codes[:300], labels[:300])
    ours = model.means("lda", 0.1).novelty(samples)
    theirs = 0.9 * measured.novelty(codes)  # there, the covariance less its share s counts as 1 - s of itself
    assert np.abs(ours / theirs - 1).max() < 0.02


def test_samples_of_none_of_the_classes_are_farther() -> None:
    samples, labels = clustered("none of these", 400, 8, 8)
    known = labels < 6
    model = new(RandomProjection(40, seed=2)).fit(samples[known][:200], labels[known][:200])
    for by in RULES:
        novelty = model.means(by).novelty
        inside, outside = novelty(samples[known][200:]), novelty(samples[~known])
        assert np.mean(inside[:, None] < outside[None, :]) > 0.7


# -- faces and refusals ------------------------------------------------------------------------------


@pytest.mark.parametrize("by", RULES)
def test_every_face_gives_the_same(by: str, tmp_path: Path) -> None:
    backbone = Precomputed(WIDTH)
    inside = new(RandomProjection(20, seed=1), track_classes=True)
    model = ForgettingModel(backbone, inside, KEYS)
    model.forget(model.learn(X, Y)[:7])
    plain = new(RandomProjection(20, seed=1), backbone=backbone.digest()).fit(X[7:], Y[7:])
    wanted = plain.means(by)
    with store.create(tmp_path / "s", backbone, inside, keys=KEYS) as made:
        made.forget(made.learn(X, Y)[:7])  # not published
        with store.open(tmp_path / "s", write=False) as opened:
            for each in (model.means(by), made.means(by), opened.means(by)):
                assert each.digest() == wanted.digest()
                assert np.array_equal(each.novelty(X), wanted.novelty(X))
                assert np.array_equal(each.predict(X), wanted.predict(X))


def test_what_cannot_be_asked_is_refused() -> None:
    model = new().fit(X, Y)
    with pytest.raises(InputError, match="by must be one of mean, cosine, lda; got 'nearest'"):
        model.means("nearest")
    with pytest.raises(InputError, match="shrinkage is for by='lda'; got by='mean'"):
        model.means(shrinkage=0.1)
    for shrinkage in (0.0, 1.0, -0.5, float("nan"), True, "0.1", 1):
        with pytest.raises(InputError, match="shrinkage must be a number between 0 and 1, or None; got"):
            model.means("lda", shrinkage)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="5 features"):
        model.means().predict(X[:, :3])
    with pytest.raises(InputError, match=r"samples must have 5 features; got an array of shape \(2, 4\)"):
        means_of(summed([1], [[1] * 5]), "mean").predict(np.zeros((2, 4), np.int8))
    with pytest.raises(ConfigurationError, match="means need a class for each sample"):
        AnalyticClassifier(targets=LabelSets()).fit(X, [[name] for name in Y]).means()
    with pytest.raises(NotLearnedError, match="the model holds no samples, so it has no means"):
        ForgettingModel(Precomputed(WIDTH), new()).means()
    with pytest.raises(NotFittedError):
        new().means()


def test_a_system_that_no_float_can_factor_is_refused() -> None:
    size = 120  # up to 96, it is solved in fractions
    held = summed([2**40], [[1] * size])
    row = np.array([2**25 - place for place in range(size)])
    held.gram = np.outer(row, row)  # eigenvalues of 1 and 2^57, with gamma
    with pytest.raises(IllConditionedError, match="raise gamma|Raise gamma"):
        ClassMeans(Configuration(Identity(), 1, 40), size, held, lambda rows: rows, "lda")


def test_classes_that_count_alike_have_the_same_means() -> None:
    """A weight by class changes neither a mean nor the covariance, in which every sample counts once."""
    plain, balanced = new().fit(X, Y), new(track_classes=True, class_weight="balanced").fit(X, Y)
    for by in RULES:
        assert np.array_equal(plain.means(by).novelty(X), balanced.means(by).novelty(X))


def test_quantised_rows_are_read_as_the_model_reads_them() -> None:
    model = new().fit(X, Y)
    direct = ClassMeans(model.configuration(), WIDTH, model.exact.statistics, lambda rows: rows)  # type: ignore[union-attr]
    assert np.array_equal(direct.novelty(quantise(X)), model.means().novelty(X))
    none = quantise(X)[:0]
    assert direct.predict(none).shape == direct.novelty(none).shape == (0,)
