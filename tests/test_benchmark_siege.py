"""The siege, small: attacks are made against a real service, and its client is answered."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import neverseen

pytest.importorskip("PIL")
pytest.importorskip("neverseen.service", exc_type=ImportError)

from benchmarks import siege


def test_small(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    roots = [str(Path(neverseen.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(roots))
    path = tmp_path / "a.json"
    names = ["verify", "bombs", "single-bombs", "samples", "classes", "sockets", "scopes", "trickle"]
    siege.main(["--attacks", *names, "--seconds", "0.5", "--scale", "0.02", "--json", str(path)])
    found = json.loads(path.read_text("utf-8"))
    assert found["benchmark"] == "siege"
    assert list(found["attacks"]) == names
    for row in found["attacks"].values():
        assert row["errors"] == {}
        assert row["under_attack"]["predictions"] > 0
        assert row["ratio_p99"] > 0
    assert "bombs" in capsys.readouterr().out
