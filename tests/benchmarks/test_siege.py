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
from tests.services import WITHOUT_TORCH


@pytest.fixture(autouse=True)
def same_code(monkeypatch: pytest.MonkeyPatch) -> None:
    roots = [WITHOUT_TORCH, str(Path(neverseen.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(roots))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_what_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.json"
    siege.main(["--attacks", "single-bombs", "--seconds", "0.1", "--scale", "0.02", "--json", str(path)])
    found = json.loads(path.read_text("utf-8"))
    assert found["benchmark"] == "siege"
    row = found["attacks"]["single-bombs"]
    assert set(row["answers_to_the_attacker"]) <= {"200", "503"}
    assert row["errors"] == {}
    assert row["under_attack"]["predictions"] > 0
    assert row["ratio_p99"] > 0
    assert "single-bombs" in capsys.readouterr().out


# An answer that each attack must get.
ANSWERS = {
    "verify": 200,
    "certificates": 200,
    "samples": 422,
    "receipts": 422,
    "classes": 201,
    "sockets": 1,
    "scopes": 403,
    "trickle": -1,
    "pipelined": 200,
    "unread": -1,
    "refused": 401,
    "small-bodies": 400,
}


def test_every_attack_on_features(tmp_path: Path) -> None:
    assert {name for name, attack in siege.ATTACKS.items() if not attack.images} == set(ANSWERS)
    with siege.besieged(tmp_path, siege.ATTACKS["scopes"], 0.02) as besieged:
        for name, wanted in ANSWERS.items():
            found = siege.ATTACKS[name].run(besieged)
            assert found[wanted], (name, found)
