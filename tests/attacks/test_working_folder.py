"""The promise: what is opened stays where it was opened, whatever the working folder of the process is later.

The attack: open a store or a cache by a relative path, and change the working folder to one where something else has
that name. Then sums and certificates go into the other store, or a seal passes over the features it should remove.
"""

from __future__ import annotations

import gc
import shutil
from pathlib import Path

import pytest

from neverseen import AnalyticClassifier, store
from neverseen.backbones import Cached
from neverseen.store.description import Description
from tests.store.test_store import BACKBONE, IDS, KEYS, LABELS, ROWS, classifier, new, opened


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Two folders that each have a store ``s`` of the same samples; the first is the working folder."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    monkeypatch.chdir(here)
    with new(Path("s")) as made:
        made.learn(ROWS[:4], LABELS[:4], IDS[:4])
        made.seal()
    shutil.copytree(here, there)
    return here, there


@pytest.mark.parametrize("make", [False, True])
def test_a_store_stays_in_its_folder(places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, make: bool) -> None:
    here, there = places
    if make:
        shutil.rmtree(here / "s")
    before = {path: path.read_bytes() for path in there.rglob("*") if path.is_file()}
    with new(Path("s")) if make else opened(Path("s")) as made:
        monkeypatch.chdir(there)
        made.learn(ROWS[4:8], LABELS[4:8], IDS[4:8])
        number = made.seal().number
        assert made.status()["folder"] == str(here / "s")
    assert {path: path.read_bytes() for path in there.rglob("*") if path.is_file()} == before
    for place, samples, published in ((here, 4 if make else 8, number), (there, 4, 1)):
        with opened(place / "s") as again:
            again.check()
            assert (again.status()["samples"], again.published_number) == (samples, published)


def test_a_store_finds_a_ledger_that_was_named_by_a_relative_path(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = places
    store.create("t", BACKBONE, classifier(), keys=KEYS, ledger="sqlite:///elsewhere.sqlite").close()
    assert Description.read(here / "t").ledger == f"sqlite:///{here / 'elsewhere.sqlite'}"
    monkeypatch.chdir(there)
    with opened(here / "t") as again:
        assert again.ledger.total() == 0


@pytest.mark.parametrize("by", ["path", "variable"])
def test_what_is_forgotten_leaves_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    (tmp_path / "else").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEVERSEEN_CACHE", "kept")
    cache = Cached(BACKBONE, "kept") if by == "path" else Cached(BACKBONE)
    with store.create(tmp_path / "s", cache, classifier(), keys=KEYS) as made:
        receipts = made.learn(ROWS[:4], LABELS[:4])
        assert len(cache) == 4
        monkeypatch.chdir("else")
        made.forget(receipts[:1])
        made.seal()
    assert not any((tmp_path / "else").iterdir())
    monkeypatch.chdir(tmp_path)
    assert len(cache) == 3
    for path in (tmp_path / "kept").rglob("*"):
        assert path.is_dir() or ROWS[0].astype("<f4").tobytes() not in path.read_bytes()


def test_class_sums_stay_in_their_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "else").mkdir()
    monkeypatch.chdir(tmp_path)
    learner = AnalyticClassifier(track_classes=True, class_folder="sums", hardware="numpy")
    learner.partial_fit(ROWS[:4], LABELS[:4])
    monkeypatch.chdir("else")
    learner.partial_fit(ROWS[4:8], LABELS[4:8])
    learner.forget_class(LABELS[0])
    assert not any((tmp_path / "else").iterdir())
    del learner
    gc.collect()
    assert not any((tmp_path / "sums").iterdir())  # sums of classes tell of samples
