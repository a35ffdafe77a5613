"""The smallest setting, as users run it: every experiment and every method, on synthetic images, and its report."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from benchmarks.paper.__main__ import main  # noqa: E402
from benchmarks.paper.experiments import EXPERIMENTS, keys  # noqa: E402
from benchmarks.paper.methods import METHODS  # noqa: E402
from benchmarks.paper.results import read_runs  # noqa: E402
from benchmarks.paper.settings import read  # noqa: E402

SMALLER = f"""
based_on = "{Path(__file__).with_name("paper_small.toml")}"

[experiments.stress_singles]
requests = [20]
"""


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Networks this small are faster so."""
    before = torch.get_num_threads()
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    yield
    torch.set_num_threads(before)


def test_smoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In this process, and on fewer samples; `test_paper_runner` has processes side by side."""
    monkeypatch.chdir(tmp_path)
    Path("smaller.toml").write_text(SMALLER)
    command = ["run", "smaller.toml", "--work", "work", "--device", "cpu", "--workers", "0"]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "tables and figures: python -m benchmarks.paper report build/paper" in said
    wanted = keys(read("smaller.toml"))
    assert len(wanted) == len(keys(read("smoke")))
    assert {key.experiment for key in wanted} == set(EXPERIMENTS)
    assert {key.method for key in wanted} == set(METHODS)
    results = read_runs(Path("build/paper/smaller.jsonl"))
    assert len(results) == len(wanted)
    assert not [result["failed"] for result in results if result["failed"]]
    exact = [result["digest"]["equal"] for result in results if result["method"].startswith("neverseen")]
    assert exact
    assert all(exact)
    assert main(command) == 0
    assert "0 runs done, 0 left" in capsys.readouterr().out
    assert main(["report", "build/paper"]) == 0
    report = Path("build/paper/smaller/report.md").read_text()
    assert f"The digest was that of the retrained model in {len(exact)} of {len(exact)} runs" in report
