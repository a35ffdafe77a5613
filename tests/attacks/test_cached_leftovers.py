"""The promise: a cache of features holds nothing that was forgotten, and nothing that was never learned.

The attack: have the original forgotten by a copy that differs too little to have other quantised features. Or have
samples refused after their features were taken. Or look for what SQLite leaves in its file: rows that move to another
page leave copies behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from typer.testing import CliRunner

from neverseen import (
    AnalyticClassifier,
    ConfigurationError,
    ForgettingModel,
    IdTakenError,
    LabelError,
    RandomProjection,
    store,
)
from neverseen.backbones import Cached, Precomputed, recipes, register
from neverseen.cli import app
from neverseen.sources.receipts import ReceiptFile
from neverseen.store import Store

ROWS = np.array([[1.0, 2.0, 3.0], [3.0, 1.0, 0.0], [0.0, 5.0, 1.0]])
COPY = ROWS[:1] * 2  # the scale does not count: its features are quantised alike


def classifier() -> AnalyticClassifier:
    return AnalyticClassifier(RandomProjection(16), gamma=64)


@pytest.fixture
def cache(tmp_path: Path) -> Cached:
    return Cached(Precomputed(3), tmp_path / "cache")


@pytest.fixture
def made(tmp_path: Path, cache: Cached) -> Iterator[Store]:
    with store.create(tmp_path / "s", cache, classifier()) as opened:
        yield opened


def test_a_copy_does_not_leave_the_original_behind(cache: Cached, made: Store) -> None:
    for model in (ForgettingModel(cache, classifier()), made):
        for ids in (None, ["one"]):
            model.learn(ROWS, ["a", "b", "b"], ["one", "two", "three"])
            assert len(cache) == 3
            model.forget(COPY, ["a"], ids=ids)
            assert len(cache) == 0  # whose content the original had is not known: all goes
            model.forget(ROWS[1:], ["b", "b"])


def test_the_sample_itself_leaves_the_others(cache: Cached, made: Store) -> None:
    for model in (ForgettingModel(cache, classifier()), made):
        model.learn(ROWS, ["a", "b", "b"])
        model.forget(ROWS[:1], ["a"])
        assert len(cache) == 2
        model.forget(ROWS[1:], ["b", "b"])
        assert len(cache) == 0


def test_what_is_refused_before_the_commit_is_lost(cache: Cached, made: Store) -> None:
    made.learn(ROWS[1:2], ["b"], ["one"])
    for labels, ids, error in ((["a"], ["one"], IdTakenError), ([float("nan")], None, LabelError)):
        prepared = made.prepare(ROWS[:1], remember=True)
        with pytest.raises(error):
            made.learning(prepared, labels, ids)
        assert len(cache) == 1


def test_what_is_never_committed_leaves_nothing(cache: Cached, made: Store) -> None:
    change = made.learning(ROWS, ["a", "b", "b"])
    made.rehearse(change)
    assert len(cache) == 0
    made.commit(made.learning(made.prepare(ROWS[:2], remember=True).only([1]), ["b"]))
    assert len(cache) == 1
    made.commit(change)
    assert len(cache) == 3
    with pytest.raises(IdTakenError):
        made.commit(change)  # what is refused does not take away what is held
    assert len(cache) == 3


def test_an_interrupt_after_the_network_has_worked(cache: Cached, made: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr("neverseen.model.intake.seal", stop)
    with pytest.raises(KeyboardInterrupt):
        made.learning(ROWS, ["a", "b", "b"])
    assert len(cache) == 0


def words(content: bytes) -> np.ndarray:
    return np.unique(np.frombuffer(content, "<u8"))


@pytest.mark.parametrize(("width", "seed"), [(16, 16), (64, 2), (64, 19), (128, 5)])
def test_gaps_between_rows_keep_nothing(width: int, seed: int, tmp_path: Path) -> None:
    """With one table, and its deleted rows overwritten, whole features of forgotten samples stayed in these files."""
    random, cached = np.random.default_rng(seed), Cached(Precomputed(width), tmp_path)
    held: dict[bytes, bytes] = {}
    gone: dict[bytes, bytes] = {}
    for _ in range(12):
        rows = random.normal(size=(int(random.integers(1, 200)), width)).astype(np.float32)
        fingerprints = [random.bytes(16) for _ in rows]
        cached.remember(fingerprints, rows)
        held |= {each: row.tobytes() for each, row in zip(fingerprints, rows, strict=True)}
        order = random.permutation(len(held))[: int(random.integers(0, len(held)))]
        drop = [list(held)[place] for place in order]
        gone |= {each: held.pop(each) for each in drop}
        cached.discard(drop)
        content = cached.path.read_bytes()
        present = np.concatenate([words(content[start : start - 8]) for start in range(8)])
        assert not np.isin(words(b"".join([*gone, *gone.values()])), present).any()
        assert np.isin(words(b"".join([*held, *held.values()])), present).all()
    assert len(cached) == len(held)


class Hoard(Precomputed):
    """Remembers features, and has no way to lose some."""

    def remember(self, *_: object) -> None: ...


@pytest.mark.parametrize("partial", [False, True])
def test_a_recipe_does_not_hide_a_cache(
    tmp_path: Path, cache: Cached, partial: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store did not see that what its recipe made was one: it kept what was predicted and what was forgotten."""
    monkeypatch.setattr(recipes.kinds, "_kinds", dict(recipes.kinds._kinds))
    register("cached_plugin", "features", lambda recipe, folder: Hoard(3) if partial else cache)
    store.create(tmp_path / "s", Precomputed(3), classifier(), recipe={"kind": "cached_plugin"}).close()
    with store.open(tmp_path / "s") as opened:
        for act in (lambda: opened.learn(ROWS, ["a", "b", "b"]), lambda: opened.prepare(ROWS)):
            with pytest.raises(
                ConfigurationError, match="makes a cache of features, .* give the cache yourself as the backbone"
            ):
                act()
    assert len(cache) == 0
    with store.open(tmp_path / "s", backbone=cache) as opened:  # what to do
        receipts = opened.learn(ROWS, ["a", "b", "b"])
        assert len(cache) == 3
        opened.forget(receipts)
        assert len(cache) == 0


def test_half_a_cache_is_refused_wherever_it_is_given(tmp_path: Path) -> None:
    store.create(tmp_path / "s", Precomputed(3), classifier()).close()
    for give in (
        lambda: ForgettingModel(Hoard(3), classifier()),
        lambda: store.create(tmp_path / "t", Hoard(3), classifier()),
        lambda: store.open(tmp_path / "s", backbone=Hoard(3)),
    ):
        with pytest.raises(ConfigurationError, match="has some of remember, discard and clear"):
            give()


CACHED = """
from neverseen.backbones import Cached, Precomputed
def cached():
    return Cached(Precomputed(3), "cache")
"""


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cached:
    """Have a store made of two samples on the command line, with a cache."""
    monkeypatch.chdir(tmp_path)
    Path("leftovers.py").write_text(CACHED)
    Path("two.csv").write_text("id,label,a,b,c\none,a,1,2,3\ntwo,b,3,1,0\n")
    run("init", "s", "--backbone", "leftovers:cached", "--codes", "16", "--track-classes")
    run("learn", "s", "two.csv", "--backbone", "leftovers:cached", "--receipts", "r.jsonl")
    cache = Cached(Precomputed(3), "cache")
    assert len(cache) == 2
    return cache


def run(*words: str) -> None:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output


def test_the_command_forgets_by_receipt(command: Cached) -> None:
    run("forget", "s", "--receipts", "r.jsonl", "--id", "one", "--backbone", "leftovers:cached", "--seal")
    assert len(command) == 1


def test_the_command_forgets_a_class(command: Cached) -> None:
    run("forget-class", "s", "a", "--backbone", "leftovers:cached", "--seal")
    assert len(command) == 0


def test_looking_and_checking_leave_nothing(command: Cached) -> None:
    command.clear()
    for words in (("verify", "retrain"), ("predict",)):
        run(*words, "s", "two.csv", "--backbone", "leftovers:cached")
        assert len(command) == 0


def test_the_command_leaves_nothing_of_what_it_did_not_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(28, "No space left on device")

    monkeypatch.chdir(tmp_path)
    Path("leftovers.py").write_text(CACHED)
    Path("one.csv").write_text("id,label,a,b,c\none,a,1,2,3\n")
    Path("copy.csv").write_text("id,label,a,b,c\ntwo,a,2,4,6\n")
    cache = Cached(Precomputed(3), "cache")
    backbone = "--backbone", "leftovers:cached"
    run = CliRunner().invoke
    assert run(app, ["init", "s", *backbone]).exit_code == 0
    with monkeypatch.context() as patched:
        patched.setattr(ReceiptFile, "write", full)
        assert run(app, ["learn", "s", "one.csv", *backbone]).exit_code == 1
    assert len(cache) == 0
    assert run(app, ["learn", "s", "one.csv", *backbone]).exit_code == 0
    assert len(cache) == 1
    assert run(app, ["learn", "s", "copy.csv", "--skip-held", *backbone]).exit_code == 0
    assert len(cache) == 1
