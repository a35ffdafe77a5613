"""Promise: what hangs is ended after a while, and readyz names it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from neverseen.service import Settings, predicting
from neverseen.service.errors import Refusal
from neverseen.service.reception import workers as workers_module
from neverseen.service.reception.contents import Bounds
from neverseen.service.reception.workers import Workers
from neverseen.service.writer import queue
from neverseen.service.writer.policy import Policy
from neverseen.store import Store
from tests.services import ROWS, Process, Running, bearer, new_store, running, samples, token
from tests.waiting import eventually, in_loop

QUESTION = {"action": "predict", "content_type": "application/json"}
LONG = 600.0


def stopped(workers: Workers) -> subprocess.Popen[bytes]:
    """Return the process of `workers`, which is idle, after it was stopped: it lives, and does nothing."""
    process = workers._idle.get()
    workers._idle.put(process)
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    return process


def test_a_process_that_hangs_is_replaced() -> None:
    async def asked() -> None:
        bounds = Bounds("features", 2, 100, 1000, 1000, 1000, 1000)
        workers = Workers({"memory": 2**28, "seconds": LONG, "bounds": bounds.as_json()}, 1, 8)
        body = json.dumps({"samples": [{"features": [1, 2]}]}).encode()
        try:
            await workers.ask("ada", QUESTION, body)
            process = stopped(workers)
            workers._patience = 0.2
            with pytest.raises(Refusal, match="not read in time") as refused:
                await asyncio.wait_for(workers.ask("ada", QUESTION, body), 60)
            assert refused.value.code == "busy"
            assert process.poll() == -signal.SIGKILL
            workers._patience = LONG
            await asyncio.wait_for(workers.ask("bob", QUESTION, body), 60)
            assert not workers.stalled()
        finally:
            workers.stop()

    asyncio.run(asked())


def test_who_asks_does_not_wait_for_a_process_that_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    may_start = threading.Event()

    def late(about: dict[str, Any]) -> subprocess.Popen[bytes]:
        may_start.wait(LONG)
        return started(about)

    async def asked() -> None:
        bounds = Bounds("features", 2, 100, 1000, 1000, 1000, 1000)
        workers = Workers({"memory": 2**28, "seconds": LONG, "bounds": bounds.as_json()}, 2, 8)
        body = json.dumps({"samples": [{"features": [1, 2]}]}).encode()
        try:
            await workers.ask("ada", QUESTION, body)
            monkeypatch.setattr(workers_module, "_started", late)
            process = stopped(workers)
            both = [asyncio.ensure_future(workers.ask(name, QUESTION, body)) for name in ("ada", "bob")]
            await in_loop(lambda: workers._starters)  # one has the process that does nothing, and a second starts
            os.kill(process.pid, signal.SIGCONT)
            await asyncio.wait_for(asyncio.gather(*both), 60)
            assert not may_start.is_set()
        finally:
            may_start.set()
            workers.stop()

    started = workers_module._started
    asyncio.run(asked())


BODY = json.dumps({"samples": [{"features": [1, 2]}]}).encode()


async def works(workers: Workers) -> None:
    await asyncio.wait_for(workers.ask("ada", QUESTION, BODY), 60)


def at_rest(workers: Workers) -> bool:
    """Whether no process is being started, and what became of all that were is noted."""
    with workers._lock:
        return not workers._starters


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    """Two processes, if they are needed."""
    monkeypatch.setattr(workers_module, "_PAUSE", 0.05)
    bounds = Bounds("features", 2, 100, 1000, 1000, 1000, 1000)
    made = Workers({"memory": 2**28, "seconds": LONG, "bounds": bounds.as_json()}, 2, 8)
    yield made
    made.stop()


def _no_process(about: dict[str, Any]) -> subprocess.Popen[bytes]:
    raise OSError("no more processes")


def test_all_processes_can_be_started_ahead() -> None:
    bounds = Bounds("features", 2, 100, 1000, 1000, 1000, 1000)
    workers = Workers({"memory": 2**28, "seconds": LONG, "bounds": bounds.as_json()}, 2, 8)
    try:
        workers.prepare_all()
        eventually(lambda: workers._idle.qsize() == 2)
    finally:
        workers.stop()


def test_a_process_that_does_not_start_is_told(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    async def asked() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(workers_module, "_started", _no_process)
            many = [workers.ask(name, QUESTION, BODY) for name in ("ada", "bob", "eve")]
            found = await asyncio.wait_for(asyncio.gather(*many, return_exceptions=True), 60)
            assert [getattr(error, "code", error) for error in found] == ["busy"] * 3
            assert workers.stalled()
        await works(workers)  # and the next one starts
        assert not workers.stalled()

    asyncio.run(asked())


def test_nobody_pays_for_a_process_that_did_not_start_earlier(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def asked() -> None:
        await works(workers)
        with monkeypatch.context() as patched:
            patched.setattr(workers_module, "_started", _no_process)
            workers.prepare()
            await in_loop(lambda: at_rest(workers))
        assert not workers.stalled()  # the other process is there
        for _ in range(2):
            await works(workers)

    asyncio.run(asked())


def test_a_process_that_ends_while_it_starts_is_not_said_to_take_memory(
    workers: Workers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def ends(about: dict[str, Any]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"]
        return subprocess.Popen(command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    monkeypatch.setattr(workers_module, "_started", ends)
    with pytest.raises(Refusal) as refused:
        asyncio.run(works(workers))
    assert refused.value.code == "busy"
    assert "did not start: it ended with -9" in caplog.text
    assert "memory" not in caplog.text


@pytest.mark.parametrize("kind", ["starter", "clock"])
def test_a_moment_without_threads(workers: Workers, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    start = threading.Thread.start

    def fails(thread: threading.Thread) -> None:
        if thread.name == "worker-start" if kind == "starter" else isinstance(thread, threading.Timer):
            raise RuntimeError("can't start new thread")
        start(thread)

    async def asked() -> None:
        if kind == "clock":
            await works(workers)
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", fails)
            with pytest.raises((Refusal, RuntimeError)):
                await works(workers)
        await in_loop(lambda: at_rest(workers))
        assert not workers._running
        await works(workers)
        assert not workers.stalled()

    asyncio.run(asked())


def test_a_service_does_not_look_for_cycles_in_all_that_was_imported(tmp_path: Path) -> None:
    new_store(tmp_path / "s")
    noted = tmp_path / "frozen"
    first = f"import atexit, gc; atexit.register(lambda: open({str(noted)!r}, 'w').write(str(gc.get_freeze_count())))"
    Process(tmp_path / "s", first=first).stop()
    assert int(noted.read_text("ascii")) > 100_000


def predict(service: Running, count: int = 200) -> httpx.Response:
    body = {"samples": [{"features": row.tolist()} for row in ROWS[:count]]}
    return service.client.post("/v1/predict", json=body, headers=service.admin, timeout=120)


def ready(service: Running) -> str:
    answer = service.client.get("/readyz")
    return "" if answer.status_code == 200 else str(answer.json()["error"]["message"])


def test_readyz_names_a_process_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path / "s", Settings(reading_processes=1, quiet=0, max_delay=0)) as service:
        service.learn(range(40))
        service.client.post("/v1/publish", headers=service.admin)
        readers, checker = service.service.readers, service.service.checker
        assert predict(service).status_code == 200
        assert service.client.get("/v1/certificates").status_code == 200
        monkeypatch.setattr(threading, "Timer", NoTimer)
        for workers, words, ask in (
            (readers, "a process that reads bodies does not answer", lambda: predict(service)),
            (checker, "the process that checks certificates", lambda: service.client.get("/v1/certificates")),
        ):
            process = stopped(workers)
            workers._patience = 0.0
            with ThreadPoolExecutor(1) as pool:
                asked = pool.submit(ask)
                eventually(lambda words=words: words in ready(service))  # type: ignore[misc]
                os.kill(process.pid, signal.SIGCONT)
                assert asked.result().status_code == 200
            assert ready(service) == ""


class NoTimer:
    """A clock that never comes to its end."""

    daemon = False

    def __init__(self, *given: Any) -> None:
        self.given = given

    def start(self) -> None: ...

    def cancel(self) -> None: ...


HANGS = """
import threading
from pathlib import Path
from neverseen.store import Store

def hang(*given):
    Path({mark!r}).touch()
    threading.Event().wait()

Store.prepare = hang
"""


def test_a_stop_does_not_wait_for_what_never_ends(tmp_path: Path) -> None:
    folder, mark, found = new_store(tmp_path / "s"), tmp_path / "mark", list[httpx.Response]()
    headers = bearer(token(folder, "ada", "admin"))
    process = Process(folder, "Settings(stop_timeout=1)", first=HANGS.format(mark=str(mark)))

    def learn() -> None:
        body = {"samples": samples([0])}
        found.append(httpx.post(f"{process.url}/v1/samples", json=body, headers=headers, timeout=LONG))

    try:
        learning = threading.Thread(target=learn)
        learning.start()
        eventually(mark.exists)
        assert process.stop() == 0
        learning.join()
        assert found[0].json()["error"]["code"] == "stopping"
    finally:
        process.stop(signal.SIGKILL)


def test_readyz_names_predictions_that_do_not_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path / "s", Settings(quiet=0, max_delay=0)) as service:
        service.learn(range(40))
        service.client.post("/v1/publish", headers=service.admin)
        gate, predictor = threading.Event(), service.service.predictor
        real = predictor._published

        def held_up() -> Any:
            assert gate.wait(120)
            return real()

        monkeypatch.setattr(predictor, "_published", held_up)
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(predict, service, 1)
            eventually(lambda: bool(predictor._begun))
            assert ready(service) == ""
            monkeypatch.setattr(predicting, "_LATE", 0.0)
            assert ready(service) == "predictions get no answer"
            gate.set()
            assert asked.result().status_code == 200
        eventually(lambda: not predictor._begun)
        assert ready(service) == ""


def test_a_log_that_failed_while_nothing_was_due_takes_no_time_from_later_publications() -> None:
    now = [0.0]
    policy = Policy(Settings(max_delay=5, seal_after=7200), lambda: now[0])
    policy.takes(8.0)  # seconds that a publication takes
    policy.unsealed(0.0)
    policy.failed()  # the audit log cannot be written
    now[0] = 3600.0
    policy.changed(1)
    now[0] += 9.0  # it is being published for four seconds
    assert policy.overdue() is None
    policy.failed()
    assert policy.overdue() == 4.0  # what was due has failed
    policy.found(0, None)  # but it was on disk: the store was opened again
    now[0] += 3600.0 - 9.0 - 5.0
    policy.changed(1)
    now[0] += 9.0
    assert policy.overdue() is None


def test_a_change_that_does_not_end_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path / "s") as service, ThreadPoolExecutor(1) as pool:
        receipts, gate, plain = service.learn(range(4)), threading.Event(), Store.commit

        def hangs(self: Store, change: Any) -> None:
            gate.wait(100)
            plain(self, change)

        monkeypatch.setattr(Store, "commit", hangs)
        monkeypatch.setattr(queue, "_LATE", 0.01)
        try:
            asked = pool.submit(service.forget, receipts[:1])
            eventually(lambda: service.client.get("/readyz").status_code == 503)
            assert "under way for minutes" in service.client.get("/readyz").text
        finally:
            gate.set()
        assert asked.result().status_code == 202
        eventually(lambda: service.client.get("/readyz").status_code == 200)
