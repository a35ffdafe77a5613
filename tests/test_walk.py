"""The walk of a sample and of a receipt: each is decoded, opened, digested and looked up once, on every way in."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from neverseen import AnalyticClassifier, ForgettingModel, Identity, store
from neverseen.backbones import Cached, contents
from neverseen.cli import app
from neverseen.holdings import content_digest, deciding, digests
from neverseen.ledger import Ledger
from neverseen.proof import receipts as proof
from tests.networks_for_stores import Brightness
from tests.samples import uniform_bytes
from tests.services import KEYS, QUICK, ROWS, Running, new_store, running, samples

TRACED = Path(__file__).parent / "traced"


class Steps:
    """How often each step was taken, in this process and in worker processes."""

    def __init__(self, traced: Path) -> None:
        self.counts: Counter[str] = Counter()
        self.traced = traced

    def here(self, monkeypatch: pytest.MonkeyPatch, step: str, function: Any, weight: Callable[..., int]) -> None:
        """Count a function of a module, wherever it was imported to, or a method, as so many steps a call."""

        def counted(*arguments: Any, **options: Any) -> Any:
            given = tuple(list(each) if hasattr(each, "__next__") else each for each in arguments)
            self.counts[step] += weight(*given)
            return function(*given, **options)

        owner = function.__qualname__.rpartition(".")[0]
        places: list[Any] = [module for name, module in list(sys.modules.items()) if name.startswith("neverseen")]
        if owner:
            places = [getattr(sys.modules[function.__module__], owner)]
        bound = [(place, name) for place in places for name, value in vars(place).items() if value is function]
        assert bound
        for place, name in bound:
            monkeypatch.setattr(place, name, counted)

    def clear(self) -> None:
        self.counts.clear()
        self.traced.write_bytes(b"")

    def __call__(self, **wanted: int) -> None:
        """Have been these, and no others."""
        found = self.counts + Counter(self.traced.read_text().split())
        assert {step: count for step, count in found.items() if count} == {
            step: count for step, count in wanted.items() if count
        }
        self.clear()


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Steps:
    """Counts image files decoded, receipts opened, ids looked up, and all digests of samples and receipts."""
    made = Steps(tmp_path / "traced")
    monkeypatch.setenv("TRACED", str(made.traced))
    monkeypatch.setenv("PYTHONPATH", str(TRACED), prepend=os.pathsep)  # of worker processes that start from here on
    once, of_second = lambda *_: 1, lambda _, values, *more: len(values)
    for step, function, weight in (
        ("decoded", contents._decoded_file, once),
        ("opened", proof.unseal, once),
        ("new", deciding.require_new, of_second),
        ("by_numbers", Ledger.by_numbers, of_second),
        ("by_members", Ledger.by_members, of_second),
        ("members", digests.member_digests, lambda configuration, key, rows, index: len(rows)),
        ("numbers", digests.ticket_number, once),
        ("numbers", digests.owned_number, once),
        ("contents", content_digest, once),
        ("commitments", proof.commitment, once),
    ):
        made.here(monkeypatch, step, function, weight)
    made.clear()
    return made


def learned(count: int, images: bool = False, in_ledger: bool = True) -> dict[str, int]:
    """The steps when samples are learned."""
    looked_up = {"by_numbers": count} if in_ledger else {}
    made = dict.fromkeys(("members", "numbers", "contents", "commitments"), count)
    return {"decoded": count * images, "new": count} | looked_up | made


def forgotten(count: int, in_ledger: bool = True) -> dict[str, int]:
    """The steps when samples are forgotten by their receipts."""
    looked_up = {"by_numbers": count} if in_ledger else {}
    made = dict.fromkeys(("members", "numbers", "contents", "commitments"), count)
    return {"opened": count} | looked_up | made


def pictures(folder: Path, count: int) -> list[Path]:
    """Image files in folders named for their classes."""
    found = []
    for number in range(count):
        path = folder / ("cat", "dog")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(uniform_bytes(f"picture {number}", 8, 8, 3)).save(path)
        found.append(path)
    return found


# -- Python ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cached", [False, True], ids=["plain", "cached"])
def test_in_python(tmp_path: Path, steps: Steps, cached: bool) -> None:
    files = pictures(tmp_path / "pictures", 5)
    labels = [path.parent.name for path in files]
    settings = AnalyticClassifier(Identity(), 2**9)
    backbone = Cached(Brightness(), tmp_path / "cache") if cached else Brightness()
    with store.create(tmp_path / "s", backbone, settings) as stored:
        for model in (ForgettingModel(backbone, settings), stored):
            in_ledger = model is stored
            steps.clear()
            receipts = model.learn(files, labels, range(5))
            steps(**learned(5, images=True, in_ledger=in_ledger))
            model.forget(receipts[:3])
            steps(**forgotten(3, in_ledger))
            model.forget(files[3:4], labels[3:4], ids=[3])  # in a store, ids of any owner: found by what is known
            steps(decoded=1, members=1, contents=1, **({"by_members": 1} if in_ledger else {"numbers": 1}))
            model.forget(files[4:], labels[4:])
            steps(decoded=1, members=1, contents=1, by_members=int(in_ledger))


def test_a_change_that_waits_while_others_are_made_is_looked_up_again(tmp_path: Path, steps: Steps) -> None:
    with store.create(tmp_path / "s", Brightness(), AnalyticClassifier(Identity(), 2**9)) as made:
        files = pictures(tmp_path / "pictures", 5)
        change = made.learning(files[:2], ["cat", "dog"], [0, 1])
        receipts = made.learn(files[2:], ["cat", "dog", "cat"], [2, 3, 4])
        steps(**Counter(learned(2, images=True)) + Counter(learned(3, images=True)))
        made.commit(change)
        steps(new=2, by_numbers=2)  # and what stands for them is not made again
        verdicts = made.verdicts(receipts[:2])
        made.forget(receipts[2:])
        steps(**Counter(forgotten(2)) + Counter(forgotten(1)))
        made.forget([verdict.shown for verdict in verdicts])
        steps(by_numbers=2)


# -- the command line --------------------------------------------------------------------------------


def call(*words: object) -> dict[str, Any]:
    result = CliRunner().invoke(app, [*map(str, words), "--json"])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_on_the_command_line(tmp_path: Path, steps: Steps) -> None:
    rows, folder, written = tmp_path / "rows.jsonl", tmp_path / "s", tmp_path / "receipts.jsonl"
    rows.write_text(
        "".join(
            json.dumps({"features": row.tolist(), "label": "cat", "id": str(at)}) + "\n"
            for at, row in enumerate(ROWS[:6])
        )
    )
    call("init", folder, "--backbone", f"features:{ROWS.shape[1]}", "--codes", 16)
    steps.clear()
    assert call("learn", folder, rows, "--receipts", written)["held_already"] == 0
    steps(by_members=6, **learned(6))  # to say which are held already
    assert call("forget", folder, "--receipts", written, "--id", "2")["forgotten"] == 1
    steps(**forgotten(6) | {"by_numbers": 1})  # opened to choose among them
    assert call("learn", folder, rows, "--receipts", tmp_path / "again.jsonl", "--skip-held")["learned"] == 1
    steps(by_members=6, **learned(1) | {"members": 6})  # to leave out those that are held
    assert call("forget", folder, rows)["forgotten"] == 6
    steps(members=6, contents=6, by_members=6)


@pytest.mark.parametrize("skipped", [(), ("--skip-bad",), ("--skip-held",), ("--skip-bad", "--skip-held")])
def test_images_on_the_command_line(tmp_path: Path, steps: Steps, skipped: tuple[str, ...]) -> None:
    pictures(tmp_path / "pictures", 5)
    network = "--backbone", "tests.networks_for_stores:Brightness"
    folder, photos, written = tmp_path / "s", tmp_path / "pictures", tmp_path / "receipts.jsonl"
    call("init", folder, *network, "--codes", 16)
    steps.clear()
    assert call("learn", folder, photos, "--receipts", written, *skipped, *network)["learned"] == 5
    steps(by_members=5, **learned(5, images=True))
    assert len(call("predict", folder, photos, *network)["predictions"]) == 5
    steps(decoded=5)
    assert call("verify", "retrain", folder, photos, *network)["samples"] == 5
    steps(decoded=5, members=5)
    assert call("what-if", folder, "--receipts", written, "--test", photos, *network)["changed"] == 5
    steps(decoded=5, **forgotten(5))
    assert call("forget", folder, photos, *network)["forgotten"] == 5
    steps(decoded=5, members=5, contents=5, by_members=5)


def test_bad_images_on_the_command_line(tmp_path: Path, steps: Steps) -> None:
    bad = pictures(tmp_path / "pictures", 5)[1]
    bad.write_bytes(b"no image")
    network = "--backbone", "tests.networks_for_stores:Brightness"
    folder, photos, written = tmp_path / "s", tmp_path / "pictures", tmp_path / "receipts.jsonl"
    call("init", folder, *network, "--codes", 16)
    steps.clear()
    refused = CliRunner().invoke(app, ["learn", str(folder), str(photos), *network])
    assert "1 of 5 images" in refused.output
    steps(decoded=5, new=5, by_numbers=5, numbers=5)  # all are looked at, to name all that are bad
    assert call("learn", folder, photos, "--receipts", written, "--skip-bad", *network)["learned"] == 4
    steps(by_members=4, **learned(4, images=True) | {"decoded": 5})


# -- HTTP --------------------------------------------------------------------------------------------


def test_over_http(tmp_path: Path, steps: Steps) -> None:
    with running(new_store(tmp_path / "s")) as service:
        steps.clear()
        receipts = service.learn(range(6))
        steps(**learned(6))
        assert service.forget(receipts[:4], dry_run=True).status_code == 200
        steps(**forgotten(4))
        assert service.forget(receipts[:4]).status_code == 202
        steps(**forgotten(4))
        assert service.client.post("/v1/forget", json={"samples": samples([4])}, headers=service.admin).is_success
        steps(members=1, contents=1, by_members=2)  # a key without an owner: whose id it is, then what goes


def test_images_over_http(tmp_path: Path, steps: Steps) -> None:
    files = pictures(tmp_path / "pictures", 5)
    labels = [path.parent.name for path in files]
    store.create(tmp_path / "s", Brightness(), AnalyticClassifier(Identity(), 2**9), keys=KEYS).close()
    settings = replace(QUICK, reading_timeout=31.5)  # like that of no other test, whose processes are not traced
    with running(tmp_path / "s", settings, Brightness()) as service:
        steps.clear()
        received = _posted(service, files, labels)
        assert steps.counts["decoded"] == 0  # here
        steps(**learned(5, images=True))
        assert service.forget(received[:3]).status_code == 202
        steps(**forgotten(3))
        images = [base64.b64encode(path.read_bytes()).decode() for path in files[3:]]
        body = {"samples": [{"image": image, "label": label} for image, label in zip(images, labels[3:], strict=True)]}
        assert service.client.post("/v1/forget", json=body, headers=service.admin).status_code == 202
        steps(decoded=2, members=2, contents=2, by_members=2)


def _posted(service: Running, files: list[Path], labels: list[str]) -> list[str]:
    parts = [("files", (path.name, path.read_bytes(), "image/png")) for path in files]
    answer = service.client.post("/v1/samples", files=parts, data={"labels": json.dumps(labels)}, headers=service.admin)
    assert answer.status_code == 201, answer.text
    found: list[str] = answer.json()["receipts"]
    return found


def test_the_counters_count(tmp_path: Path, steps: Steps) -> None:
    """A step that is taken twice is noticed."""
    (path,) = pictures(tmp_path / "pictures", 1)
    for _ in range(2):
        contents.decoded(path)
    with pytest.raises(AssertionError):
        steps(decoded=1)
