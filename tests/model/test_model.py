"""Histories: whatever is learned, forgotten, merged and saved, the model is the one that learned the remainder."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from neverseen import (
    AnalyticClassifier,
    Encoder,
    GaussianKernel,
    HardwareError,
    Identity,
    Key,
    NotLearnedError,
    RandomProjection,
)
from neverseen.encoding import encoders
from neverseen.engine import preconditioning as preconditioning_module
from neverseen.engine.answering import leading_columns
from neverseen.engine.solver import Solution, solve
from neverseen.engine.systems import IntegerSystem
from neverseen.hardware import Hardware
from neverseen.model import exact as model_module
from neverseen.model import hints as hints_module
from neverseen.model import problem as problem_module
from tests import oracle
from tests.conftest import hardware_here
from tests.samples import clustered, features

WIDTH = 5
X, Y = clustered("histories", 24, WIDTH, 3)
NAMES = np.array(["cat", "dog", "emu"])[Y]
SECRET = bytes(range(32))
ENCODERS: list[Encoder] = [
    RandomProjection(24, seed=3),
    Identity(),
    GaussianKernel(features("centres", 20, WIDTH)),
    RandomProjection(24, seed=3, activation="gelu"),
    RandomProjection(24, seed=3, activation="sign", scale=0.7),
]


NAMED = ["projection", "identity", "kernel", "gelu", "sign"]


def new(encoder: Encoder, hardware: str = "numpy", gamma: int = 2**10) -> AnalyticClassifier:
    return AnalyticClassifier(encoder, gamma, track_classes=True, key=Key(SECRET), hardware=hardware)


def saved(model: AnalyticClassifier) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model")
        return (Path(folder) / "model").read_bytes()


def rows_of(held: Counter[int]) -> list[int]:
    return sorted(held.elements())


class History:
    """A model that lives through requests, beside a plain list of what it should hold."""

    def __init__(self, encoder: Encoder, data: st.DataObject) -> None:
        self.encoder, self.data = encoder, data
        self.hardware = data.draw(st.sampled_from(hardware_here()), label="hardware")
        self.model = new(encoder, self.hardware)
        self.held: Counter[int] = Counter()

    def some_rows(self, most: int = 6) -> list[int]:
        return self.data.draw(st.lists(st.integers(0, len(X) - 1), max_size=most), label="rows")

    def learn(self) -> None:
        rows = self.some_rows()
        self.model.partial_fit(X[rows], NAMES[rows])
        self.held.update(rows)

    def forget(self) -> None:
        held = rows_of(self.held)
        picks = self.data.draw(st.lists(st.integers(0, max(0, len(held) - 1)), unique=True, max_size=5), label="picks")
        rows = [held[pick] for pick in picks if held]
        if rows:
            self.model.forget(X[rows], NAMES[rows])
            self.held -= Counter(rows)

    def forget_class(self) -> None:
        present = sorted({NAMES[row] for row in rows_of(self.held)})
        if present:
            name = self.data.draw(st.sampled_from(present), label="class")
            self.model.forget_class(name)
            self.held = Counter({row: count for row, count in self.held.items() if NAMES[row] != name})

    def merge(self) -> None:
        rows = self.some_rows()
        other = new(self.encoder, self.data.draw(st.sampled_from(hardware_here()), label="other's hardware"))
        if rows:
            other.fit(X[rows], NAMES[rows])
        self.model.merge(other)
        self.held.update(rows)

    def save_and_load(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self.model.save(Path(folder) / "model")
            self.model = AnalyticClassifier.load(Path(folder) / "model", hardware=self.hardware)

    def solve(self) -> None:
        self.model.digest()  # so that the next change is followed from this solution

    def refuse(self) -> None:
        before = saved(self.model)
        row = self.data.draw(st.integers(0, len(X) - 1), label="refused")
        times = self.held[row] + 1
        good = rows_of(self.held)[:2]
        rows = [*good, *([row] * times)]
        if not Counter(rows) <= self.held:
            with pytest.raises(NotLearnedError):
                self.model.forget(X[rows], NAMES[rows])
        with pytest.raises(NotLearnedError):
            self.model.forget_class("never seen")
        assert saved(self.model) == before

    def check(self) -> None:
        rows = rows_of(self.held)
        scratch = new(self.encoder)
        if rows:
            scratch.fit(X[rows], NAMES[rows])
        assert self.model.digest() == scratch.digest()
        assert saved(self.model) == saved(scratch)
        if rows:
            assert np.array_equal(self.model.decision_function(X), scratch.decision_function(X))


REQUESTS = ["learn", "forget", "forget_class", "merge", "save_and_load", "solve", "refuse"]


@pytest.mark.parametrize("encoder", ENCODERS, ids=NAMED)
@given(data=st.data())
@settings(max_examples=60)
def test_any_history_ends_in_the_model_of_the_remainder(encoder: Encoder, data: st.DataObject) -> None:
    history = History(encoder, data)
    history.learn()
    for request in data.draw(st.lists(st.sampled_from(REQUESTS), max_size=10), label="requests"):
        getattr(history, request)()
    history.check()


@pytest.mark.parametrize("encoder", ENCODERS, ids=NAMED)
def test_the_digest_is_the_oracles(encoder: Encoder) -> None:
    rows = list(range(12))
    model = new(encoder).fit(X[rows], NAMES[rows])
    quantised = [oracle.quantise(row, encoder.scale) for row in X[rows].tolist()]
    if isinstance(encoder, RandomProjection):
        settings_ = oracle.random_projection_configuration(24, 3, encoder.activation, encoder.scale)
        codes = [oracle.random_projection(q, 24, 3, encoder.activation) for q in quantised]
    elif isinstance(encoder, GaussianKernel):
        centres = features("centres", 20, WIDTH).tolist()
        settings_ = oracle.gaussian_kernel_configuration(centres, 0.5)
        codes = [oracle.gaussian_kernel(q, centres, 0.5) for q in quantised]
    else:
        settings_, codes = oracle.identity_configuration(), quantised
    sums = oracle.statistics(codes, NAMES[rows].tolist())
    weights = oracle.weights(sums.gram, sums.cross, 2**10, 40)
    configuration = oracle.configuration_digest(settings_, 2**10, 40)
    assert model.digest() == oracle.model_digest(configuration, WIDTH, sums.classes, weights).hex()
    scores = [oracle.scores(code, weights) for code in codes]
    assert model.decision_function(X[rows]).tolist() == [oracle.decision(score, 40) for score in scores]
    assert model.predict(X[rows]).tolist() == [oracle.predict(score, sums.classes) for score in scores]
    expected = np.array([[float(p) for p in oracle.probabilities(score, 40)] for score in scores])
    assert np.allclose(model.predict_proba(X[rows]), expected, atol=1e-14)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("chunk", [1, 3, 1000])
@pytest.mark.parametrize("name", hardware_here())
def test_threads_chunks_and_hardware_change_no_bit(
    threads: int, chunk: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, labels = clustered("threads", 300, 40, 7)
    encoder = RandomProjection(160, seed=1)
    expected = AnalyticClassifier(encoder, key=Key(SECRET), hardware="numpy").fit(rows, labels)
    monkeypatch.setattr(model_module, "CHUNK_ROWS", chunk)
    monkeypatch.setattr(encoders, "_ROWS", chunk)
    with threadpool_limits(threads):
        if name != "numpy":
            import torch

            torch.set_num_threads(threads)
        model = AnalyticClassifier(encoder, key=Key(SECRET), hardware=name)
        for start in range(0, 300, 75):
            model.partial_fit(rows[start : start + 75], labels[start : start + 75])
        assert model.digest() == expected.digest()
        assert saved(model) == saved(expected)
        assert np.array_equal(model.decision_function(rows), expected.decision_function(rows))


def test_following_requests_gives_the_bits_of_full_solves(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, labels = clustered("following", 200, 20, 4)
    encoder = RandomProjection(128, seed=1)
    model = AnalyticClassifier(encoder, key=Key(SECRET), hardware="numpy").fit(rows, labels)
    model.digest()
    full_solves = []

    def counted(*args: Any, **options: Any) -> Solution:
        full_solves.append(1)
        return solve(*args, **options)

    monkeypatch.setattr(problem_module, "solve", counted)
    held = list(range(200))
    for step in range(40):
        row = (step * 37) % 200
        if row in held:
            model.forget(rows[[row]], labels[[row]])
            held.remove(row)
        else:
            model.partial_fit(rows[[row]], labels[[row]])
            held.append(row)
        if step % 4 == 3:
            hinted = model.digest()
            model_without = AnalyticClassifier(encoder, key=Key(SECRET), hardware="numpy")
            before = len(full_solves)
            assert hinted == model_without.fit(rows[held], labels[held]).digest()
            assert len(full_solves) == before + 1
    assert len(full_solves) == 10  # those of the fresh models: every change was followed
    model.discard_hints()
    assert model.digest() == hinted


def test_codes_at_both_ends_stay_within_every_bound(hardware: Hardware, tmp_path: Path) -> None:
    """127 and -127 nearly everywhere: the largest sums that as many samples can have."""
    rows, labels = clustered("both ends", 260, 21, 4)
    encoder = RandomProjection(128, seed=1, activation="sign")
    codes = encoder.encode(rows)
    assert set(np.unique(codes)) == {-127, 0, 127}
    full = rows[codes.all(axis=1)][:1]

    def fitted(first: int) -> AnalyticClassifier:
        return AnalyticClassifier(encoder, key=Key(SECRET), hardware=hardware.name).fit(rows[first:], labels[first:])

    model, first = fitted(0), 0
    model.digest()
    for count in (1, 8, 64, 100):
        model.forget(rows[first : first + count], labels[first : first + count])
        first += count
        proved = model.predict(rows[:3])  # before there are new weights
        assert model.digest() == fitted(first).digest()
        assert np.array_equal(proved, model.predict(rows[:3]))
    same = AnalyticClassifier(encoder, gamma=2**13, key=Key(SECRET), hardware=hardware.name)
    same.fit(np.repeat(full, 3000, axis=0), np.repeat(["one", "another"], 1500))
    same.save(tmp_path / "same")  # sums at the bounds that a file may have
    assert AnalyticClassifier.load(tmp_path / "same").digest() == same.digest()
    for rule in ("mean", "cosine", "lda"):
        assert same.means(rule).predict(full).tolist() == ["another"]


@pytest.mark.parametrize("corrections", [4, 16, 2**8])
def test_changes_are_followed_without_a_new_factor_and_have_the_bits_of_full_solves(
    corrections: int, hardware: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preconditioning_module, "MOST_CORRECTIONS", corrections)
    factor, factors = IntegerSystem.cholesky, []

    def counted(system: IntegerSystem) -> Any:
        factors.append(1)
        return factor(system)

    rows, labels = clustered("correcting", 300, 20, 4)
    encoder = RandomProjection(128, seed=1)

    def fitted(held: list[int]) -> AnalyticClassifier:
        return AnalyticClassifier(encoder, key=Key(SECRET), hardware=hardware.name).fit(rows[held], labels[held])

    held = list(range(260))
    model = fitted(held)
    model.digest()
    monkeypatch.setattr(IntegerSystem, "cholesky", counted)
    for count in (8, 8, 1, 64, 1, 8):
        model.forget(rows[held[:count]], labels[held[:count]])
        held = held[count:]
        digest = model.digest()
        assert not factors
        assert digest == fitted(held).digest()
        factors.clear()
    model.partial_fit(rows[260:300], labels[260:300])
    model.forget(rows[held[:25]], labels[held[:25]])
    held = [*held[25:], *range(260, 300)]
    digest = model.digest()
    assert len(factors) == 1  # 65 samples of 128 codes are too many
    assert digest == fitted(held).digest()


@pytest.mark.parametrize("error", [RuntimeError, ValueError, MemoryError])
@pytest.mark.parametrize("failing", [1, 2], ids=["inverse", "correction"])
def test_a_correction_that_fails_is_passed_over(
    failing: int, error: type[Exception], hardware: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, labels = clustered("failing correction", 200, 20, 4)
    encoder = RandomProjection(128, seed=1)

    def fitted(first: int) -> AnalyticClassifier:
        return AnalyticClassifier(encoder, key=Key(SECRET), hardware=hardware.name).fit(rows[first:], labels[first:])

    model, expected = fitted(0), fitted(8).digest()
    model.digest()
    done = type(hardware).cholesky_inverse
    calls: list[int] = []

    def fails_once(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == failing:
            raise error("out of memory")
        return done(*arguments)

    monkeypatch.setattr(type(hardware), "cholesky_inverse", fails_once)
    model.forget(rows[:8], labels[:8])
    assert model.digest() == expected
    at_once = hardware.small_changes() is not None  # then there is no correction that could fail
    assert len(calls) >= (1 if at_once else failing)


def test_an_interrupt_in_the_middle_of_a_change_cannot_pass_for_a_state(monkeypatch: pytest.MonkeyPatch) -> None:
    model = new(ENCODERS[0]).fit(X, NAMES)
    exact = model._model

    def interrupted(decision: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(exact.holdings, "record", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.forget(X[:1], NAMES[:1])
    for verb in (lambda: model.forget(X[:1], NAMES[:1]), lambda: model.predict(X), model.digest):
        with pytest.raises(HardwareError, match="cut off half-way; load it again"):
            verb()


def test_a_failed_product_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = new(ENCODERS[0]).fit(X, NAMES)
    before = saved(model)
    monkeypatch.setattr(type(model._model.hardware), "int8_gram", lambda self, codes: np.ones((24, 24), np.int64))
    for verb in (model.forget, model.partial_fit):
        with pytest.raises(HardwareError, match="nothing was changed"):
            verb(X[:2], NAMES[:2])
    monkeypatch.undo()
    assert saved(model) == before
    assert model.forget(X[:2], NAMES[:2]).digest() == new(ENCODERS[0]).fit(X[2:], NAMES[2:]).digest()


def test_a_failed_product_while_models_are_merged_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other, whole = (new(ENCODERS[0]).set_params(track_classes=False) for _ in range(3))
    one.fit(X[:10], NAMES[:10])
    other.fit(X[10:20], NAMES[10:20])
    before = saved(one)
    other.partial_fit(X[20:22], NAMES[20:22])  # these wait to be added up
    with monkeypatch.context() as patch:
        patch.setattr(type(one._model.hardware), "int8_gram", lambda self, codes: np.ones((24, 24), np.int64))
        with pytest.raises(HardwareError, match="nothing was changed"):
            one.merge(other)
    assert saved(one) == before
    assert one.merge(other).digest() == whole.fit(X[:22], NAMES[:22]).digest()


# -- answers without weights ---------------------------------------------------------------------------


def test_labels_after_a_change_need_no_weights_and_are_those_of_the_weights(
    hardware: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, names = clustered("labels", 80, WIDTH, 3)
    model = AnalyticClassifier(RandomProjection(64, seed=1), 2**10, key=Key(SECRET), hardware=hardware.name)
    model.fit(rows, names)
    model.predict(rows[:1])
    solved: list[bool] = []
    solution = hints_module.Hints.solution

    def noted(*given: Any) -> Any:
        solved.append(True)
        return solution(*given)

    monkeypatch.setattr(hints_module.Hints, "solution", noted)
    model.forget(rows[:1], names[:1])
    early = model.predict(rows[:4])
    assert not solved
    fresh = AnalyticClassifier(RandomProjection(64, seed=1), 2**10, key=Key(SECRET)).fit(rows[1:], names[1:])
    assert np.array_equal(early, fresh.predict(rows[:4]))
    assert model.digest() == fresh.digest()


def test_many_questions_are_answered_with_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, names = clustered("labels", 80, WIDTH, 3)
    model = new(RandomProjection(64, seed=1)).fit(rows, names)
    model.predict(rows)
    model.forget(rows[:1], names[:1])
    asked: list[int] = []

    def noted(*given: Any) -> np.ndarray:
        asked.append(len(given[3]))
        return leading_columns(*given)

    monkeypatch.setattr(hints_module, "leading_columns", noted)
    for _ in range(3 * model_module.FEW_ANSWERS):
        model.predict(rows[:1])
    assert len(asked) == model_module.FEW_ANSWERS
    model.forget(rows[1:2], names[1:2])
    model.predict(rows)  # too many at once
    assert len(asked) == model_module.FEW_ANSWERS


@pytest.mark.parametrize("tracked", [False, True])
def test_labels_follow_classes_that_come_and_go(tracked: bool) -> None:
    rows, names = clustered("labels", 80, WIDTH, 4)
    model = AnalyticClassifier(RandomProjection(64, seed=1), 2**10, key=Key(SECRET), track_classes=tracked)
    first = np.flatnonzero(names != 3)
    model.fit(rows[first], names[first])
    model.predict(rows[:1])
    last = np.flatnonzero(names == 3)
    model.partial_fit(rows[last], names[last])
    held = list(first) + list(last)
    assert np.array_equal(
        model.predict(rows[last][:4]),
        new(RandomProjection(64, seed=1)).fit(rows[held], names[held]).predict(rows[last][:4]),
    )
    gone = np.flatnonzero(names == 0)
    model.forget(rows[gone], names[gone])
    held = [row for row in held if row not in gone]
    fresh = new(RandomProjection(64, seed=1)).fit(rows[held], names[held])
    assert np.array_equal(model.predict(rows[:4]), fresh.predict(rows[:4]))


def test_a_label_that_cannot_be_proved_comes_from_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, names = clustered("labels", 80, WIDTH, 3)
    model = new(RandomProjection(64, seed=1)).fit(rows, names)
    model.predict(rows)
    model.forget(rows[:1], names[:1])
    monkeypatch.setattr(hints_module, "leading_columns", lambda *given: np.array([1, -1]))
    fresh = new(RandomProjection(64, seed=1)).fit(rows[1:], names[1:])
    assert np.array_equal(model.predict(rows[:2]), fresh.predict(rows[:2]))


@pytest.mark.parametrize("grid_bits", [40, 46])
@pytest.mark.parametrize("seed", range(2))
def test_large_requests_of_ill_conditioned_sums_give_the_bits_of_retraining(
    grid_bits: int, seed: int, hardware: Hardware
) -> None:
    """About as many samples as codes and gamma = 1: the guess that weights are refined from is off by many steps."""
    rng = np.random.default_rng(seed)
    rows, names = rng.normal(size=(258, 256)) ** 5, rng.integers(0, 4, 258)

    def fresh() -> AnalyticClassifier:
        return AnalyticClassifier(Identity(), 1, grid_bits=grid_bits, key=Key(SECRET), hardware=hardware.name)

    model = fresh().fit(rows, names)
    model.digest()
    model.forget(rows[:128], names[:128])
    assert model.digest() == fresh().fit(rows[128:], names[128:]).digest()
    model.forget(rows[128:129], names[128:129])
    assert model.digest() == fresh().fit(rows[129:], names[129:]).digest()
