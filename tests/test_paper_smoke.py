"""The smallest setting as users run it: every experiment and every method, on synthetic images, and its report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from benchmarks.paper.experiments import EXPERIMENTS, keys
from benchmarks.paper.methods import METHODS
from benchmarks.paper.settings import read

ROOT = Path(__file__).parents[1]


def paper(*arguments: str, work: Path) -> str:
    command = [sys.executable, "-m", "benchmarks.paper", *arguments]
    places = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    done = subprocess.run(
        command, cwd=work, env=os.environ | places, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_smoke(tmp_path: Path) -> None:
    said = paper("run", "smoke", "--work", str(tmp_path / "work"), "--device", "cpu", work=tmp_path)
    assert "tables and figures: python -m benchmarks.paper report --runs build/paper/smoke" in said
    wanted = keys(read("smoke"))
    assert {key.experiment for key in wanted} == set(EXPERIMENTS)
    assert {key.method for key in wanted} == set(METHODS)
    results = [json.loads(path.read_text()) for path in (tmp_path / "build/paper/smoke").glob("*.json")]
    assert len(results) == len(wanted)
    assert not [result["failed"] for result in results if result["failed"]]
    exact = [result["digest"]["equal"] for result in results if result["method"].startswith("neverseen")]
    assert exact
    assert all(exact)
    assert "0 runs done, 0 left" in paper("run", "smoke", "--device", "cpu", work=tmp_path)
    paper("report", "--runs", "build/paper/smoke", work=tmp_path)
    report = (tmp_path / "build/paper/smoke/report/report.md").read_text()
    assert f"The digest was that of the retrained model in {len(exact)} of {len(exact)} runs" in report
