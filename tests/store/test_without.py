"""What if, asked of a store: the answer of a forget, and not a byte written."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neverseen import (
    AlreadyForgottenError,
    AmbiguousError,
    AnalyticClassifier,
    ConfigurationError,
    InputError,
    Key,
    Keyring,
    NotLearnedError,
    RandomProjection,
    ReceiptRejectedError,
    store,
)
from neverseen.backbones import Precomputed
from neverseen.store import Store
from tests.samples import clustered

ROWS, LABELS = clustered("store without", 40, 6, 3)
IDS = [f"sample number {row}" for row in range(len(ROWS))]
OWNERS = ["ada" if row % 2 else "bob" for row in range(len(ROWS))]
KEYS = Keyring(Key(bytes([7] * 32)), [Key(bytes([8] * 32))])


def new(folder: Path) -> Store:
    settings = AnalyticClassifier(RandomProjection(64, seed=1), 2**9, track_classes=True, hardware="numpy")
    return store.create(folder, Precomputed(6), settings, keys=KEYS)


def files(folder: Path) -> dict[str, str]:
    """Digests of all files, but for SQLite's index of its journal, which notes who reads."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.endswith("-shm"))
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def test_changes_that_leave_out_no_samples_are_refused(tmp_path: Path) -> None:
    """A class that is forgotten was left in the view, and a sample to be learned was taken away from it."""
    with new(tmp_path / "s") as made:
        made.learn(ROWS[:20], LABELS[:20])
        for change in (made.forgetting_class(LABELS[0]), made.learning(ROWS[20:21], LABELS[20:21])):
            with pytest.raises(InputError, match="only samples can be left out: give samples or receipts"):
                made.without(change)
        rows = [row for row in range(20) if LABELS[row] == LABELS[0]]
        view = made.without(ROWS[rows], LABELS[rows])
        made.forget_class(LABELS[0])
        assert made.digest() == view.digest()


some = st.lists(st.integers(0, len(ROWS) - 1), min_size=1, max_size=8, unique=True)


@given(st.lists(st.tuples(st.sampled_from(["ask", "forget", "publish", "seal"]), some), min_size=1, max_size=6))
@settings(max_examples=5, deadline=None)
def test_any_history_answers_as_a_forget_and_writes_nothing(history: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as place, new(Path(place) / "s") as made, new(Path(place) / "other") as other:
        ours, theirs = (each.learn(ROWS, LABELS, IDS, OWNERS) for each in (made, other))
        held = set(range(len(ROWS)))
        for verb, drawn in history:
            rows = [row for row in drawn if row in held]
            if verb == "forget" and rows:
                made.forget([ours[row] for row in rows])
                other.forget([theirs[row] for row in rows])
                held -= set(rows)
            elif verb == "publish":
                made.publish()
            elif verb == "seal":
                made.seal()
            elif verb == "ask" and rows:
                before, digest = files(made.folder), made.digest()
                view = made.without([ours[row] for row in rows])
                by_sample = made.without(ROWS[rows], LABELS[rows], owners=[OWNERS[row] for row in rows])
                left = list(made.leave_one_out([ours[row] for row in rows]))
                assert files(made.folder) == before
                assert made.digest() == digest
                other.forget([theirs[row] for row in rows])
                assert view.digest() == by_sample.digest() == other.digest()
                again = other.learn(ROWS[rows], LABELS[rows], [IDS[row] for row in rows], [OWNERS[row] for row in rows])
                theirs = [dict(zip(rows, again, strict=True)).get(row, token) for row, token in enumerate(theirs)]
                other.forget([theirs[rows[0]]])
                other.publish()
                assert left[0].label == other.predict(ROWS[rows[:1]])[0]
                theirs[rows[0]] = other.learn(ROWS[rows[:1]], LABELS[rows[:1]], [IDS[rows[0]]], [OWNERS[rows[0]]])[0]
        assert made.digest() == other.digest()


def test_refusals(tmp_path: Path) -> None:
    with new(tmp_path / "s") as made:
        receipts = made.learn(ROWS, LABELS, IDS, OWNERS)
        made.learn(ROWS[:1], LABELS[:1], ["again"], ["eve"])
        made.forget(receipts[3])
        made.publish()
        before = files(made.folder)
        for ask in (made.without, made.leave_one_out):
            with pytest.raises(AlreadyForgottenError, match="certificate 1 says so"):
                ask(receipts[3])
            with pytest.raises(NotLearnedError):
                ask(ROWS[3:4], LABELS[3:4])
            with pytest.raises(NotLearnedError):
                ask(ROWS[1:2], LABELS[1:2], owner="bob")
            with pytest.raises(ReceiptRejectedError):
                ask([receipts[1]], owner="bob")
            with pytest.raises(AmbiguousError):
                ask(ROWS[:1], LABELS[:1])
            with pytest.raises(ReceiptRejectedError, match="twice"):
                ask([receipts[5], receipts[5]])
        assert files(made.folder) == before
        assert made.without([]).digest() == made.digest()
    reader = store.open(tmp_path / "s", backbone=Precomputed(6), write=False)
    with reader, pytest.raises(ConfigurationError, match="write=True"):
        reader.without(receipts[:1])
    with pytest.raises(ConfigurationError, match="closed"):
        made.leave_one_out(receipts[:1])


def test_answers_are_about_what_is_held_and_not_what_is_published(tmp_path: Path) -> None:
    with new(tmp_path / "s") as made:
        receipts = made.learn(ROWS[:20], LABELS[:20], IDS[:20])
        made.publish()
        made.learn(ROWS[20:], LABELS[20:], IDS[20:])
        view, held = made.without(receipts[:3]), made.without([])
        assert held.digest() == made.digest() != made.version().digest()
        made.forget(receipts[:3])
        made.publish()
        assert np.array_equal(view.predict(ROWS), made.predict(ROWS))
        assert view.score(ROWS, LABELS) == made.score(ROWS, LABELS)
