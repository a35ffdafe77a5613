"""Promise: what small requests become is bounded and counted, and whoever reads an answer steadily gets all of it."""

from __future__ import annotations

import json
import logging
import socket
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from neverseen.service import Settings
from neverseen.service.core import Service
from neverseen.service.edge import server
from neverseen.service.edge.connections import Connections
from neverseen.service.edge.server import Server, connections_of
from neverseen.service.errors import Refusal
from neverseen.service.operations.history import History
from neverseen.service.reception.contents import READERS, Bounds
from neverseen.service.sharing.result_memory import ANSWER, ResultMemory
from neverseen.service.writer.rehearsing import difference
from tests.services import QUICK, ROWS, Running, bearer, classifier, hold, running, samples, token
from tests.waiting import eventually

CLASSES = 20
LONG = ["\U0001f600" * 146 + f"{number:04d}" for number in range(CLASSES)]
SMALL = replace(QUICK, max_waiting_bytes=2**22, max_body=2**20, max_json=2**20)


def learn_long(service: Running) -> None:
    samples = [{"features": ROWS[row].tolist(), "label": label} for row, label in enumerate(LONG)]
    answer = service.client.post("/v1/samples", json={"samples": samples}, headers=service.admin)
    assert answer.status_code == 201
    service.wait(answer.json()["request"]["id"])


def asked(count: int) -> dict[str, Any]:
    return {"samples": [{"features": [1, 1, 1, 1, 1, 1]}] * count}


def predict(service: Running, count: int, headers: dict[str, str]) -> httpx.Response:
    return service.client.post("/v1/predict", json=asked(count), headers=headers)


@contextmanager
def unread(
    service: Running, given: int | dict[str, Any], headers: dict[str, str], path: str = "/v1/predict"
) -> Iterator[socket.socket]:
    """A client that asks for so many predictions, or something else, and reads where the answer begins."""
    body = json.dumps(asked(given) if isinstance(given, int) else given).encode()
    with closing(socket.socket()) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(60)
        client.connect(("127.0.0.1", service.client.base_url.port or 0))
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: {headers['Authorization']}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        assert client.recv(12) == b"HTTP/1.1 200"
        yield client


# -- how large an answer is --------------------------------------------------------------------------


@pytest.mark.parametrize("output", ["labels", "top-k", "scores"])
def test_long_labels_make_no_huge_answers(tmp_path: Path, output: str) -> None:
    with running(tmp_path / "s", replace(SMALL, output=output)) as service:
        learn_long(service)
        refused = predict(service, 1000, service.admin)  # 30 kB, for 1.8 MB or more
        assert (refused.status_code, refused.json()["error"]["code"]) == (413, "too_large")
        words = refused.json()["error"]["message"]
        assert "max_json" in words
        most = int(words.rpartition("send at most ")[2].split()[0])
        taken = predict(service, most, service.admin)
        size = service.service.predictor.answer_size(most, service.service.writer.published)
        assert taken.status_code == 200
        assert 2**19 * 0.8 < len(taken.content) <= size <= 2**19
        assert predict(service, most + 1, service.admin).status_code == 413


def test_one_sample_whose_answer_is_too_large(tmp_path: Path) -> None:
    tiny = replace(SMALL, output="scores", max_json=2**15)
    with running(tmp_path / "s", tiny) as service:
        learn_long(service)
        refused = predict(service, 1, service.admin)
        assert refused.status_code == 413
        assert "choose another output" in refused.json()["error"]["message"]


# -- clients that never read -----------------------------------------------------------------------------


def test_answers_that_are_not_read_count_against_their_key(tmp_path: Path) -> None:
    with running(tmp_path / "s", replace(SMALL, max_waiting_bytes=2**23)) as service:
        learn_long(service)
        deaf, other = (bearer(token(service.folder, name, "predict")) for name in ("deaf", "other"))
        eventually(lambda: predict(service, 1, deaf).status_code == 200)
        with unread(service, 400, deaf):  # 730 kB, of the 1 MB that a key may hold
            refused = predict(service, 400, deaf)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "busy")
            assert "read the answers" in refused.json()["error"]["message"]
            assert predict(service, 400, other).status_code == 200
            assert predict(service, 1, deaf).status_code == 200  # a small one fits
        eventually(lambda: predict(service, 400, deaf).status_code == 200)


def test_an_answer_of_few_values_counts_by_its_bytes(tmp_path: Path) -> None:
    """A rehearsal names the classes: 240 long labels have 425 kB."""
    with running(tmp_path / "s", replace(SMALL, max_waiting_bytes=2**23)) as service:
        receipts: list[str] = []
        for first in range(0, 240, 60):
            numbers = range(first, first + 60)
            given = [
                {"features": [number, 1, 0, 0, 0, 1], "label": f"{LONG[0][:-4]}{number:04d}"} for number in numbers
            ]
            answer = service.client.post("/v1/samples", json={"samples": given}, headers=service.admin)
            receipts += answer.json()["receipts"]
        deaf = bearer(token(service.folder, "deaf", "forget"))
        rehearsal, results = {"receipts": receipts}, service.service.results
        with unread(service, rehearsal, deaf, "/v1/forget?dry_run=true"):
            assert results.held(ANSWER, "deaf") > 400_000
            with unread(service, rehearsal, deaf, "/v1/forget?dry_run=true"):  # of 1 MiB that a key may hold
                refused = service.client.post("/v1/forget?dry_run=true", json=rehearsal, headers=deaf)
                assert (refused.status_code, refused.json()["error"]["code"]) == (503, "busy")
        eventually(lambda: results.held(ANSWER, "deaf") == 0)


def test_receipts_are_counted_before_anything_is_learned(tmp_path: Path) -> None:
    with running(tmp_path / "s", SMALL) as service:
        results = service.service.results
        scope: dict[str, Any] = {}
        assert results.take(scope, "admin 0", ANSWER, 2**19 - 1000)
        content = {"samples": [{"features": ROWS[0].tolist(), "label": "cat"}] * 300}
        refused = service.client.post("/v1/samples", json=content, headers=service.admin)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "busy")
        assert service.service.writer.ask(lambda opened: opened.status()["samples"]).result(30) == 0
        results.give(scope)
        taken = service.client.post("/v1/samples", json=content, headers=service.admin)
        assert taken.status_code == 201
        eventually(lambda: results.held(ANSWER, "admin 0") == 0)


def test_an_answer_larger_than_a_share_is_no_matter_of_time() -> None:
    results = ResultMemory(2**22)
    with pytest.raises(Refusal, match="ask for less at a time"):
        results.require_answer({}, "ada", 2**19 + 1)
    with pytest.raises(Refusal, match="ask for less at a time"):
        results.require_answer({}, "10.0.0.1", 2**18 + 1, public=True)
    scope: dict[str, Any] = {}
    for size in (100_000, 200_000, 70_000):  # what is known better later counts as the larger
        results.require_answer(scope, "ada", size)
    assert results.held(ANSWER, "ada") == 200_000
    results.give(scope)
    results.give(scope)
    assert results.held(ANSWER, "ada") == 0


def test_what_if_does_not_hold_the_scores_of_all_samples_for_all_classes() -> None:
    classes, asked = 3000, np.tile(ROWS, (30, 1))
    model = classifier().set_params(track_classes=False).fit(np.tile(ROWS, (15, 1)), np.arange(classes))
    views = model.without(ROWS[:0], []), model.without(ROWS[:1], [0])
    tracemalloc.start()
    try:
        found = difference(views, asked, [0] * len(asked))  # type: ignore[arg-type]
        assert tracemalloc.get_traced_memory()[1] < 8 * len(asked) * classes
    finally:
        tracemalloc.stop()
    assert found["without"]["samples"] == classes - 1


# -- who reads slowly --------------------------------------------------------------------------------


def test_who_reads_slowly_but_steadily_gets_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes as the client reads: 100 kB a second. A connection may wait for 10 seconds, and the answer takes 70."""
    read, ticks = [0], threading.Semaphore(0)
    connections = Connections(100, 100, 10.0, lambda: read[0] / 100_000)
    monkeypatch.setattr("tests.services.connections_of", lambda _: connections)
    tick = Server.on_tick

    async def often(self: Server, counter: int) -> bool:
        connections.tidy()
        ticks.release()
        return await tick(self, counter)

    monkeypatch.setattr(Server, "on_tick", often)
    with running(tmp_path / "s", QUICK) as service:
        learn_long(service)
        with unread(service, 4000, service.admin) as client:
            got = bytearray()
            while b"\r\n\r\n" not in got:
                got += client.recv(1000)
            head, _, body = bytes(got).partition(b"\r\n\r\n")
            (length,) = (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length"))
            left = length - len(body)
            assert left > 7_000_000
            looked = 0
            while left and (part := client.recv(2**16)):
                left -= len(part)
                read[0] += len(part)
                if read[0] - looked > 500_000:  # the service looks at its connections
                    looked = read[0]
                    while ticks.acquire(blocking=False):
                        pass
                    assert ticks.acquire(timeout=60)
            assert left == 0


def test_who_takes_an_answer_too_slowly_on_the_whole_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No single wait is too long for the connection, but all together are: here, any time at all is too long."""
    with running(tmp_path / "s", QUICK) as service:
        learn_long(service)
    monkeypatch.setattr("tests.services.connections_of", lambda _: Connections(100, 100, 600.0))
    with running(tmp_path / "s", replace(QUICK, idle_timeout=1e-9, answer_rate=1e15)) as service:
        for count in (1, 4000):  # 7 MB
            with pytest.raises(httpx.TransportError):
                predict(service, count, service.admin)
        results = service.service.results
        eventually(lambda: results.held(ANSWER, "admin 0") == results.held(ANSWER, "admin 1") == 0)
    assert not [entry for entry in caplog.records if entry.levelno > logging.INFO]


def test_unsent_answers_of_all_connections_are_bounded() -> None:
    gone: list[str] = []
    connections = Connections(100, 100, 30, lambda: 0.0, most_unsent=1000)
    for name, address, size in (("a1", "eve", 400), ("a2", "eve", 300), ("b1", "ada", 450), ("c1", "bob", 0)):
        each = connections.admit(address, partial(gone.append, name))
        assert each is not None
        each.works()
        each.unsent = partial(int, size)
    connections.tidy()
    assert gone == ["a1"]  # who has most of it
    connections.tidy()
    assert gone == ["a1"]
    settings = replace(QUICK, max_waiting_bytes=2**29)
    assert connections_of(settings)._most_unsent == 2**26


def test_unsent_answers_are_bounded_by_what_fits_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small, found = Settings(memory=2**30), list[Settings]()
    monkeypatch.setattr(server, "connections_of", found.append)
    monkeypatch.setattr(Service, "start", lambda _: sys.exit("this is enough"))
    with ThreadPoolExecutor(1) as beside, pytest.raises(SystemExit, match="this is enough"):
        beside.submit(server.serve, tmp_path, small, port=0).result()
    assert found[0].max_waiting_bytes <= 2**30 // 16 < small.max_waiting_bytes


def test_who_reads_is_not_the_first_to_give_way() -> None:
    now, gone = [0.0], list[str]()
    connections = Connections(2, 2, 30, lambda: now[0])
    idle = connections.admit("ada", lambda: gone.append("idle"))
    reads = connections.admit("ada", lambda: gone.append("reads"))
    assert idle is not None
    assert reads is not None
    idle.rests()
    reads.works()
    now[0] = 10
    reads.stalls()
    assert connections.admit("bob", print) is not None
    assert gone == ["idle"]


# -- rows of features, and texts ---------------------------------------------------------------------


def test_rows_count_as_what_they_become(tmp_path: Path) -> None:
    small = replace(SMALL, max_waiting_bytes=2**18, max_body=2**16, max_json=2**16)  # a key may have 2**16 of rows
    with running(tmp_path / "s", small) as service:
        service.learn(range(10))
        service.client.post("/v1/publish", headers=service.admin)
        keys = [bearer(token(service.folder, name, "predict")) for name in ("ada", "bob")]
        eventually(lambda: all(predict(service, 1, key).status_code == 200 for key in keys))
        content = json.dumps(asked(2000), separators=(",", ":"))  # less than is taken of bytes, but 96 kB as rows
        refused = service.client.post(
            "/v1/predict", content=content, headers=keys[0] | {"Content-Type": "application/json"}
        )
        assert refused.status_code == 422
        assert "send at most 1365 at a time" in refused.json()["error"]["message"]
        gate, predictor = threading.Event(), service.service.predictor
        real = predictor._published
        predictor._published = lambda: (gate.wait(60), real())[1]
        found: list[int] = []
        first = threading.Thread(target=lambda: found.append(predict(service, 500, keys[0]).status_code))
        first.start()
        try:
            eventually(lambda: service.service.results.held("rows", "ada") >= 500 * 48)
            busy = predict(service, 900, keys[0])
            assert (busy.status_code, busy.json()["error"]["code"]) == (503, "busy")
        finally:
            gate.set()
            first.join()
        assert found == [200]
        assert predict(service, 500, keys[1]).status_code == 200
        eventually(lambda: service.service.results.held("rows", "ada") == 0)


@pytest.mark.parametrize("path", ["/v1/samples", "/v1/forget"])
def test_features_that_wait_for_the_writer_are_counted(tmp_path: Path, path: str) -> None:
    with running(tmp_path / "s", SMALL) as service:
        service.learn(range(10))
        writer, results = service.service.writer, service.service.results
        gate = hold(writer)
        content = {"samples": samples(range(10))}
        asking = threading.Thread(
            target=lambda: service.client.post(path, json=content, headers=service.admin, timeout=60)
        )
        asking.start()
        try:
            eventually(lambda: bool(writer.waiting()))
            assert results.held("rows", "admin 0") == 10 * 6 * (8 + 1)  # as they are read, and as they wait
        finally:
            gate.set()
            asking.join()
        eventually(lambda: results.held("rows", "admin 0") == 0)


def test_texts_count_as_what_they_become() -> None:
    bounds = Bounds("texts", 8, 100, 100_000, 1, 1, 1)
    content = json.dumps({"samples": [{"text": "a" * 50_000 + "\U0001f600"}] * 2}).encode()
    told: list[int] = []
    given = READERS["predict"](content, "application/json", bounds, told.append)
    assert len(given) == 2
    assert told[0] > 4 * 100_000


# -- charts ------------------------------------------------------------------------------------------


def test_charts_are_not_computed_for_each_who_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = History(tmp_path, 1000)
    for number in range(1000):
        history.add({"version": number})
    now = [0.0]
    with monkeypatch.context() as patched:
        patched.setattr("neverseen.service.operations.history.time.time", lambda: now[0])
        for minute in range(1, 131):
            now[0] = 60.0 * minute
            for each in range(5):
                history.took(each * minute)
    first = json.loads(history.written())
    assert first == {"points": history.points(), "latency": history.latency()}
    assert len(first["latency"]) == 120
    assert first["latency"][-1] == {"time": "1970-01-01T02:10:00Z", "p50": 260.0, "p99": 4 * 130 * 0.99}
    real, calls = np.percentile, list[Any]()

    def counted(*given: Any) -> Any:
        calls.append(given)
        return real(*given)

    monkeypatch.setattr(np, "percentile", counted)
    monkeypatch.setattr(
        "neverseen.service.operations.history.written", lambda content: json.dumps(content[-120:]).encode()
    )
    assert json.loads(history.written()) == first  # the points were written before
    assert len(calls) == 1
    history.add({"version": 1000})
    assert json.loads(history.written())["points"] == history.points()[-120:]
