"""Long requests: others come between their parts, and what takes long is done beside the event loop."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from neverseen.errors import InputError
from neverseen.service import Settings, core, predicting
from neverseen.service.answers import is_long, written
from neverseen.service.edge import routes_changing
from neverseen.service.predicting import Predictor
from neverseen.service.reception import messages
from tests.services import BACKBONE, ROWS, SIZE, Running, coded, running
from tests.waiting import eventually

TOGETHER = predicting._TOGETHER
MANY = 2 * TOGETHER + 40


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("predicting") / "s") as found:
        found.learn(range(60))
        assert found.client.post("/v1/publish", headers=found.admin).status_code == 200
        yield found


def rows(count: int) -> list[int]:
    return [row % len(ROWS) for row in range(count)]


def predict(service: Running, count: int) -> httpx.Response:
    body = {"samples": [{"features": ROWS[row].tolist()} for row in rows(count)]}
    return service.client.post("/v1/predict", json=body, headers=service.admin)


class Held:
    """Stands for `features_of`: notes how many samples each call has, and holds the first call up."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.begun, self.gate = threading.Event(), threading.Event()

    def __call__(self, backbone: Any, samples: list[Any]) -> np.ndarray:
        self.calls.append(len(samples))
        self.begun.set()
        assert self.gate.wait(120)
        found: np.ndarray = np.asarray(backbone.extract(samples))
        return found


def test_others_come_between_the_parts_of_a_long_request(service: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    held, predictor = Held(), service.service.predictor
    expected = predict(service, 200).json()["predictions"]
    real, looks = predictor._published, iter(range(100, 200))
    monkeypatch.setattr(predictor, "_published", lambda: replace(real(), number=next(looks)))
    monkeypatch.setattr(predicting, "features_of", held)
    with ThreadPoolExecutor(2) as pool:
        long = pool.submit(predict, service, MANY)
        assert held.begun.wait(60)
        short = pool.submit(predict, service, 2)
        eventually(lambda: len(predictor._jobs) == 1)
        assert predictor._room.held("admin 0") == MANY - TOGETHER + 2  # what is being predicted does not wait
        held.gate.set()
        assert short.result().json()["predictions"] == expected[:2]
        found = long.result().json()
    assert held.calls == [TOGETHER, 2, TOGETHER, MANY - 2 * TOGETHER]
    assert found["version"] == 100  # one version for all parts, although there were others meanwhile
    assert found["predictions"] == [expected[row] for row in rows(MANY)]
    assert predictor._room.held("admin 0") == 0


def test_a_long_request_that_nobody_waits_for_is_given_up(service: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held()
    monkeypatch.setattr(predicting, "features_of", held)
    predictor = service.service.predictor

    async def left() -> None:
        task = asyncio.ensure_future(predictor.predict(list(ROWS[rows(MANY)])))
        await asyncio.to_thread(held.begun.wait, 60)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        held.gate.set()

    asyncio.run(left())
    eventually(lambda: not predictor._room.held(""))
    assert held.calls == [TOGETHER]


def test_a_long_request_fails_as_a_whole(service: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def fails(backbone: Any, samples: list[Any]) -> Any:
        calls.append(len(samples))
        if len(calls) == 2:
            raise InputError("sample 3 cannot be used")
        return backbone.extract(samples)

    with monkeypatch.context() as patched:
        patched.setattr(predicting, "features_of", fails)
        answer = predict(service, MANY)
    assert answer.status_code == 422
    assert answer.json()["error"]["message"] == (
        f"in a part of the request, with {TOGETHER} samples: sample 3 cannot be used"
    )
    assert (calls, service.service.predictor._room.held("admin 0")) == ([TOGETHER, TOGETHER], 0)
    assert predict(service, 3).status_code == 200


class Letters:
    """A backbone: the features of a text are those of the row that it names. Notes the lengths of each call."""

    name, n_features, takes = "letters", SIZE, "texts"

    def __init__(self) -> None:
        self.calls = list[list[int]]()

    def extract(self, samples: list[str]) -> np.ndarray:
        self.calls.append([len(text) for text in samples])
        found: np.ndarray = BACKBONE.extract(ROWS[[int(text) for text in samples]])
        return found

    def digest(self) -> str:
        return "0" * 64


def test_texts_of_one_length_are_predicted_together(service: Running) -> None:
    backbone, whole = Letters(), service.service
    answering = (lambda: whole.writer.published), whole.opened().held_labels
    predictor = Predictor(backbone, *answering, whole.settings, whole.metrics, whole.history)
    texts = [str(row).rjust(1 + row % 5, "0") for row in rows(150)]

    async def asked() -> tuple[dict[str, Any], dict[str, Any]]:
        return await predictor.predict(list(texts)), await whole.predictor.predict(list(ROWS[rows(150)]))

    try:
        found, expected = asyncio.run(asked())
    finally:
        predictor.stop(30)
    assert found == expected  # in the order in which they were sent
    assert [len(call) for call in backbone.calls] == [64, 64, 22]
    lengths = [length for call in backbone.calls for length in call]
    assert lengths == sorted(lengths)


# -- beside the event loop -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        {"version": 3, "predictions": [{"scores": {"é": 0.1, '"': -1e-9}}] * 5000},
        {"request": {"id": "req_1", "key": None}, "receipts": ["TlNS" * 30] * 2000},
        {"effect": {"samples": 1, "classes": [{"label": 7, "samples": 1}, {"label": "7", "samples": 2}] * 900}},
        {"points": [], "latency": [], "more": {}},
        {"predictions": [{"scores": {str(number): number / 7 for number in range(9000)}}]},
    ],
)
def test_long_answers_are_written_as_short_ones(content: dict[str, Any]) -> None:
    assert written(content) == json.dumps(content, separators=(",", ":")).encode()
    assert is_long(content) is ("points" not in content)


def test_what_takes_long_is_not_done_on_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: dict[str, str] = {}

    def noted(place: Any, name: str) -> None:
        work = getattr(place, name)

        def called(*given: Any) -> Any:
            done[name] = threading.current_thread().name
            return work(*given)

        monkeypatch.setattr(place, name, called)

    with running(tmp_path / "s", Settings(quiet=0, max_delay=0, output="scores")) as service:
        for place, name in (
            (core, "columns_of"),
            (core, "written"),
            (core, "_prepared"),
            (core.Service, "_digest"),
            (routes_changing, "_learned"),
            (messages, "unpacked"),
        ):
            noted(place, name)
        given = [{"features": ROWS[row % 200].tolist(), "label": f"class {row % 50}"} for row in range(300)]
        learned = service.client.post("/v1/samples", json={"samples": given}, headers=service.admin)
        assert learned.status_code == 201, learned.text
        assert set(done) == {"columns_of", "_prepared", "_digest", "_learned", "unpacked"}
        assert {name.rpartition("_")[0] for name in done.values()} == {"service", "prepare"}
        service.wait(learned.json()["request"]["id"])
        done.clear()
        answer = predict(service, 100)
        assert len(answer.json()["predictions"][0]["scores"]) == 50
        assert done["written"].startswith("service")
        done.clear()
        receipts = learned.json()["receipts"]
        assert service.forget(receipts, dry_run="true").json()["effect"]["samples"] == 300
        assert done["unpacked"].startswith("service")
        assert done["_digest"].startswith("service")
        assert service.forget([coded(b"none")]).status_code == 404


def test_a_network_that_takes_long_holds_up_nothing_but_learning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    prepared = core._prepared

    def slow(*given: Any) -> Any:
        assert gate.wait(120)
        return prepared(*given)

    with running(tmp_path / "s") as service:
        monkeypatch.setattr(core, "_prepared", slow)
        with ThreadPoolExecutor(6) as pool:
            learning = [pool.submit(service.learn, [row]) for row in range(6)]
            turns = service.service._network_threads._turns
            eventually(lambda: len(turns._waiting.get("admin 0", ())) == 2)
            request = service.client.get("/v1/requests", headers=service.admin)
            gate.set()
            assert request.status_code == 200
            assert all(len(each.result()) == 1 for each in learning)
