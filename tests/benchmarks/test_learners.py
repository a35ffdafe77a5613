"""The comparison of learners in short: every row runs, is close to its published formula, and forgets exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.learners import streams
from benchmarks.learners.__main__ import main
from benchmarks.learners.comparison import forgets_exactly
from benchmarks.learners.contestants import Exact
from benchmarks.learners.data import Features, load
from benchmarks.learners.entries import ENTRIES, Shape, embedding
from neverseen import AnalyticClassifier, Identity, RandomProjection

DIGITS = load("digits", Path()).reduced(400, 200)


def test_all_learners_in_short(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    about = ["--codes", "96", "--gamma", "4096", "--phases", "2", "--train", "400", "--test", "200"]
    assert main([*about, "--json", str(tmp_path / "results.json")]) == 0
    found = json.loads((tmp_path / "results.json").read_text())
    printed = capsys.readouterr().out
    assert [row["name"] for row in found["rows"]] == [entry.name for entry in ENTRIES]
    for row in found["rows"]:
        assert row["digest equal"]
        assert f"{row['name']} " in printed
        assert row["ours"]["last"] > row["float"]["last"] - 0.08, row["name"]
        assert row["float"]["last"] > 0.5, row["name"]
        assert row["ours"]["bytes"] > 0 < row["float"]["bytes"]


def test_rows_of_an_earlier_file_stay(tmp_path: Path) -> None:
    about = [
        "--codes",
        "32",
        "--phases",
        "2",
        "--train",
        "200",
        "--test",
        "50",
        "--json",
        str(tmp_path / "results.json"),
    ]

    def rows(*more: str) -> dict[str, Any]:
        assert main([*about, *more]) == 0
        return {row["name"]: row for row in json.loads((tmp_path / "results.json").read_text())["rows"]}

    first = rows("--learners", "NCM", "ridge")
    second = rows("--learners", "NCM", "tanh")
    assert list(second) == ["ridge", "tanh", "NCM"]
    assert second["ridge"] == first["ridge"]
    assert second["ridge"]["commit"]
    assert list(rows("--learners", "tanh", "--gamma", "64")) == ["tanh"]  # other settings


def test_the_data_must_be_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--data-set", "cifar100", "--data", str(tmp_path)]) == 1
    assert "no cifar100 found" in capsys.readouterr().err


def test_a_side_that_keeps_something_is_found_out() -> None:
    class Forgetful(Exact):
        def forget(self, rows: np.ndarray, labels: np.ndarray, part: int = 0) -> None:
            self.model.forget(rows[:-1], labels[:-1])

    def new() -> AnalyticClassifier:
        return AnalyticClassifier(Identity(), hardware="numpy")

    assert forgets_exactly(lambda: Exact(new), DIGITS)
    assert not forgets_exactly(lambda: Forgetful(new), DIGITS)


def test_float_codes_have_the_spread_of_the_integer_codes() -> None:
    ours = RandomProjection(500).encode(DIGITS.train).astype(np.float64)
    for normal in (False, True):
        theirs = embedding(Shape(64, 500, 1, 10, 2, DIGITS.train[:0]), normal=normal)(DIGITS.train)
        assert np.mean(theirs**2) == pytest.approx(np.mean(ours**2), rel=0.2)
    raw = embedding(Shape(64, 0, 1, 10, 2, DIGITS.train[:0]))(DIGITS.train)
    np.testing.assert_allclose(raw, Identity().encode(DIGITS.train), atol=0.51)


def rows_of(parts: list[streams.Part]) -> list[tuple[bytes, int]]:
    return sorted(
        (row.tobytes(), int(label)) for rows, labels in parts for row, label in zip(rows, labels, strict=True)
    )


@pytest.mark.parametrize("streamer", [streams.by_class, streams.blurry, streams.mixed])
def test_a_stream_has_each_sample_once(streamer: streams.Streamer) -> None:
    stream = streamer(DIGITS, 4)
    assert rows_of(stream.phases) == rows_of([(DIGITS.train, DIGITS.train_labels)])
    assert len(stream.phases) == len(stream.tests) == 4
    assert rows_of(stream.tests[-1:]) == rows_of([(DIGITS.test, DIGITS.test_labels)])


def test_a_base_set_is_not_learned() -> None:
    base = streams.base_set(DIGITS)
    assert len(base) == 100
    learned = rows_of(streams.beside_base(DIGITS, 4).phases)
    assert sorted(learned + rows_of([(base, DIGITS.train_labels[:100])])) == rows_of(
        [(DIGITS.train, DIGITS.train_labels)]
    )


def test_rows_of_unit_length() -> None:
    stream = streams.unit_length(DIGITS, 4)
    for rows, _ in (*stream.phases, *stream.tests):
        np.testing.assert_allclose(np.mean(np.square(rows), axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize("name", ["tanh", "GELU", "sign"])
def test_activations_have_the_same_codes(name: str) -> None:
    (entry,) = [entry for entry in ENTRIES if entry.name == name]
    shape = Shape(64, 500, 2**16, 10, 2, DIGITS.train[:0])
    ours, theirs = entry.ours(shape).model, entry.theirs(shape).learner
    exact = ours.configuration().encoder.encode(DIGITS.train).astype(np.float64)
    assert np.mean(theirs.embed(DIGITS.train) ** 2) == pytest.approx(np.mean(exact**2), rel=0.2)
    assert ours.gamma == theirs.gamma


def test_phases_of_classes_and_a_long_tail() -> None:
    stream = streams.by_class(DIGITS, 5)
    seen: set[int] = set()
    for (_, labels), (_, asked) in zip(*stream, strict=True):
        assert not seen & set(labels.tolist())
        seen |= set(labels.tolist())
        assert set(asked.tolist()) == seen
    tail = np.concatenate([labels for _, labels in streams.long_tailed(DIGITS, 5, 20.0).phases])
    counts = np.sort(np.bincount(tail))
    assert counts[-1] > 15 * counts[0] > 0


def test_unknown_classes_are_not_learned() -> None:
    ((rows, labels),), ((_, new),) = streams.partly_unknown(DIGITS, 5, tests=40)
    assert len(set(labels.tolist())) == 8
    assert len(rows) == len(labels)
    assert new.sum() == 20 == (~new).sum()


def test_features_are_told_apart() -> None:
    other = Features(*DIGITS[:-1], DIGITS.test_labels + 1)
    assert DIGITS.digest() != other.digest()
    assert DIGITS.digest() == load("digits", Path()).reduced(400, 200).digest()
