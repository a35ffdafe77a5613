"""The benchmark of reconstruction, on a small scale."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.reconstruction import main


def test_a_lone_deletion_is_rebuilt_and_a_batch_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "lines.json"
    assert main(["--data", "digits", "--codes", "96", "--samples", "4", "--output", str(path)]) == 0
    assert "injection" in capsys.readouterr().out
    lines = {(line["attacker"], line["batch"]): line for line in json.loads(path.read_text())["lines"]}
    assert lines["sums", 1]["cosine"] > 0.999
    assert lines["sums", 1]["found"] == 1
    assert lines["injection", 100]["cosine"] > 0.999  # a batch does not hide a sample from whoever fills it
    assert lines["sums", 100]["found"] < 0.5
    assert lines["sums", 100]["individual"] < lines["sums", 2]["individual"] <= lines["sums", 1]["individual"]
