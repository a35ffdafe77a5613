"""The benchmark of the engine in short: it runs, and what it compares is the same model."""

from __future__ import annotations

import argparse
import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import engine, engine_methods


def options(**others: object) -> argparse.Namespace:
    about = {"samples": 400, "classes": 3, "seed": 0, "hardware": "numpy", "features": None, "singles": 2, "size": 48}
    return argparse.Namespace(**about | {"repeats": '{"1": 1, "20": 1}', "of": "exact"} | others)


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the commands that measure each method here."""

    def run(command: list[str], **_: object) -> SimpleNamespace:
        assert command[:3] == [sys.executable, "-m", "benchmarks.engine_methods"]
        with redirect_stdout(io.StringIO()) as screen:
            engine_methods.main(command[3:])
        return SimpleNamespace(stdout=screen.getvalue())

    monkeypatch.setattr(engine_methods, "REST", 0.0)
    monkeypatch.setattr(engine, "subprocess", SimpleNamespace(run=run, PIPE=None))


@pytest.mark.usefixtures("in_this_process")
def test_a_short_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--sizes", "48", "--samples", "900", "--classes", "3", "--rounds", "1", "--singles", "2"]
    file = tmp_path / "engine.json"
    engine.main([*small, "--hardware", "numpy", "--requests", '{"1": 1, "20": 1}', "--json", str(file)])
    times = json.loads(file.read_text())["sizes"]["48"]["times"]
    assert {"full solve", "forget 1", "label 20", "mean of singles"} <= set(times)
    assert times["forget 20"]["exact / other"]["recursion"] > 0
    screen = capsys.readouterr().out
    assert "mean of singles" in screen
    assert "differ from retraining: exact 0" in screen


def test_the_exact_model_differs_from_retraining_in_no_weight() -> None:
    found = engine_methods.measured(options(of="differences"))
    assert found["exact"]["differ"] == 0
    assert found["recursion"]["differ"] > 0
    assert found["recursion"]["error"] < 1e-9
    assert found["refit"]["error"] < 1e-9


def test_real_features_go_through_the_classifier(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(300, 12)).astype(np.float32), rng.integers(0, 3, 300)
    np.savez(tmp_path / "features.npz", train=rows, train_labels=labels)
    found = engine_methods.measured(options(features=tmp_path / "features.npz"))
    assert len(found["forget 20"]) == len(found["label 1"]) == 1


def test_too_few_samples_are_told() -> None:
    with pytest.raises(SystemExit, match="too few"):
        engine_methods.measured(options(samples=30))
