"""The benchmark of growth in short."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import growth

POINT = {"size": 32, "classes": 3, "request": 2, "samples": 200}


def test_one_setting() -> None:
    found = growth.measured(POINT, "numpy")
    assert min(found[what] for what in growth.TIMED) > 0
    assert found["digest"] == growth.measured(POINT, "numpy")["digest"]


def test_exponents_tables_and_figures(tmp_path: Path) -> None:
    points = [
        POINT | {"size": size, "forget": size**2, "solve": size**3, "recursion": 7.0, "held_bytes": 1, "peak_bytes": 2}
        for size in (8, 16, 32, 64)
    ]
    assert growth.exponent(points, "size", "forget") == pytest.approx(2)
    assert growth.exponent(points, "size", "solve") == pytest.approx(3)
    exponents = {what: growth.exponent(points, "size", what) for what in growth.TIMED}
    results = {"axes": dict.fromkeys(growth.AXES, points), "exponents": dict.fromkeys(growth.AXES, exponents)}
    assert "exponent" in growth.report(results)
    pytest.importorskip("matplotlib")
    growth.draw(results, tmp_path / "growth.svg")
    assert "codes d" in (tmp_path / "growth.svg").read_text()


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    done = SimpleNamespace(stdout=json.dumps(growth.measured(POINT, "numpy")))
    monkeypatch.setattr(growth, "subprocess", SimpleNamespace(run=lambda *_, **ways: done, PIPE=None))
    values = json.dumps({"size": [8, 16, 32]})
    growth.main(["--axes", "size", "--values", values, "--base", json.dumps(POINT), "--hardware", "numpy"])
    assert "exponent" in capsys.readouterr().out
