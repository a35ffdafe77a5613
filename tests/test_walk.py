"""The walk of a sample and of a receipt: each is decoded, opened and looked up once, on every way in."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from neverseen import AnalyticClassifier, ForgettingModel, Identity, store
from neverseen.backbones import contents
from neverseen.cli import app
from neverseen.holdings import deciding
from neverseen.ledger import Ledger
from tests.services import ROWS, new_store, running


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts images decoded, receipts opened, ids looked up to see that they are new, and numbers asked of a ledger."""
    counts: Counter[str] = Counter()

    def counting(module: Any, name: str, weight: Any) -> None:
        plain = getattr(module, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            counts[name] += weight(*arguments)
            return plain(*arguments, **options)

        monkeypatch.setattr(module, name, counted)

    import neverseen.model.exact
    import neverseen.model.intake

    counting(contents, "_decoded_file", lambda *_: 1)
    counting(neverseen.model.intake, "unseal", lambda *_: 1)
    counting(deciding, "require_new", lambda holdings, tickets: len(tickets))
    counting(neverseen.model.exact, "require_new", lambda holdings, tickets: len(tickets))
    counting(Ledger, "by_numbers", lambda ledger, numbers, *_: len(numbers))
    return counts


def expected(counts: Counter[str], **wanted: int) -> None:
    assert {name: count for name, count in counts.items() if count} == {
        name.replace("decoded", "_decoded_file"): count for name, count in wanted.items() if count
    }
    counts.clear()


class Shades:
    """A backbone of images: the means of their three colours."""

    name, n_features, takes = "shades", 3, "images"

    def extract(self, samples: Any) -> np.ndarray:
        return np.array([contents.decoded(sample).mean((0, 1)) / 64 for sample in samples], np.float32)  # type: ignore[union-attr]

    def digest(self) -> str:
        return "5" * 64


def pictures(folder: Path, count: int) -> list[Path]:
    """Image files in folders named for their classes."""
    found = []
    for number in range(count):
        path = folder / ("cat", "dog")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (number * 40, 255 - number * 40, number)).save(path)
        found.append(path)
    return found


def test_in_python(tmp_path: Path, steps: Counter[str]) -> None:
    files = pictures(tmp_path / "pictures", 5)
    labels = [path.parent.name for path in files]
    settings = AnalyticClassifier(Identity(), 2**9)
    with store.create(tmp_path / "s", Shades(), settings) as stored:
        for model in (ForgettingModel(Shades(), settings), stored):
            in_ledger = model is stored
            receipts = model.learn(files, labels, range(5))
            expected(steps, decoded=5, require_new=5, by_numbers=5 * in_ledger)
            model.forget(receipts[:3])
            expected(steps, unseal=3, by_numbers=3 * in_ledger)
            model.forget(files[3:4], labels[3:4])
            expected(steps, decoded=1)


def test_on_the_command_line(tmp_path: Path, steps: Counter[str]) -> None:
    (tmp_path / "rows.jsonl").write_text(
        "".join(
            json.dumps({"features": row.tolist(), "label": "cat", "id": str(at)}) + "\n"
            for at, row in enumerate(ROWS[:6])
        )
    )
    run = CliRunner()

    def call(*words: object) -> None:
        result = run.invoke(app, [str(word) for word in words])
        assert result.exit_code == 0, result.output

    call("init", tmp_path / "s", "--backbone", f"features:{ROWS.shape[1]}", "--codes", 16)
    steps.clear()
    call("learn", tmp_path / "s", tmp_path / "rows.jsonl", "--receipts", tmp_path / "receipts.jsonl")
    expected(steps, require_new=6, by_numbers=6)
    call("forget", tmp_path / "s", "--receipts", tmp_path / "receipts.jsonl", "--id", "2")
    expected(steps, unseal=6, by_numbers=1)  # opened to choose among them


def test_over_http(tmp_path: Path, steps: Counter[str]) -> None:
    with running(new_store(tmp_path / "s")) as service:
        steps.clear()
        receipts = service.learn(range(6))
        expected(steps, require_new=6, by_numbers=6)
        service.forget(receipts[:4])
        expected(steps, unseal=4, by_numbers=4)
