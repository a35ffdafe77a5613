"""The service's benchmark, small: it starts a real service, measures it, kills it, and finds nothing wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import neverseen

pytest.importorskip("httpx")
pytest.importorskip("neverseen.service", exc_type=ImportError)

from benchmarks import service, service_soak
from benchmarks.service_process import Samples, Served
from tests.services import WITHOUT_TORCH

SMALL = ["--size", "32", "--features", "8", "--classes", "3", "--samples", "60"]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the processes that a benchmark starts find the package."""
    roots = [WITHOUT_TORCH, str(Path(neverseen.__file__).parents[1]), str(Path(service.__file__).parents[1])]
    roots.append(os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(roots))


def test_measures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "--seconds 1 --loads 2x4 --forgets 10 --connections 4 --batch 20 --fragment-connections 8 --repeats 1"
    words += " --rest 0 --max-delay 0.1"
    service.main([*SMALL, *words.split(), "--folder", str(tmp_path), "--json", str(tmp_path / "a.json")])
    found = json.loads((tmp_path / "a.json").read_text("utf-8"))
    assert found["benchmark"] == "service"
    assert [(row["connections"], row["samples_a_request"]) for row in found["predictions"]] == [(2, 4)]
    assert all(row[kind]["a_second"] > 0 for row in found["predictions"] for kind in ("alone", "while_forgetting"))
    assert 0 < found["forgets"][0]["requests"] <= 10
    assert found["fragments"]["ratio"] > 0
    printed = capsys.readouterr().out
    assert "predictions" in printed
    assert "20 x 1" in printed


def test_soaks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "--parts --soak 0.025 --kill-every 1.5 --clients 2 --track-classes"
    service.main([*SMALL, *words.split(), "--folder", str(tmp_path), "--json", str(tmp_path / "a.json")])
    found = json.loads((tmp_path / "a.json").read_text("utf-8"))["soak"]
    assert found["kills"] == 1
    assert found["requests_acknowledged"] > 0
    assert found["digest"] == found["replayed_digest"]
    assert "1 kills" in capsys.readouterr().out


def test_a_soak_notices_what_is_wrong(tmp_path: Path) -> None:
    samples = Samples(8, 3, seed=0)
    served = Served(tmp_path, 32, samples)
    assert samples.row("b-1-7") == samples.row("b-1-7") != samples.row("b-1-8")
    assert (samples.label("b-1-7"), samples.label("own-2-9")) == (1, "own-2")
    with pytest.raises(service_soak.WrongStateError, match="1 acknowledged samples are lost, such as .'b-1-7'"):
        service_soak._check_held(served, {"b-1-7"}, [])
    assert service_soak._check_held(served, set(), [])["samples_held"] == 0
