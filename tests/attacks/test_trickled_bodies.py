"""Nobody can take all the room for bodies, nor keep what they took by sending the rest of a body for ever."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from benchmarks.siege_attacks import head, post, trickle
from neverseen.service import Settings
from neverseen.service.reception.bodies import Deadlines
from neverseen.store import Store
from tests.attacks.siege import besieged, call, features
from tests.services import Running, bearer, running, samples, token
from tests.waiting import HurriedLoop, pause

PREDICT = {"samples": [{"features": features([0])[0]}]}
MEGABYTE = 10**6
# On a fast machine, somebody who sends large bodies in a row is limited by bytes: that is not what is tried here.
LIMITS: dict[str, Any] = {"max_waiting_bytes": 4 * MEGABYTE, "bytes_per_second": 2**40, "bytes_burst": 2**40}


def test_nine_bodies_of_one_key(tmp_path: Path) -> None:
    with besieged(tmp_path / "s", max_delay=0, max_body=MEGABYTE, **LIMITS) as service:
        assert call(service, "/v1/samples", {"samples": samples(range(60))})[0] == 201
        assert call(service, "/v1/publish", {})[0] == 200
        found: list[object] = []

        def attack() -> None:
            token = service.tokens["attacker"]
            found.append(trickle(service.port, token, bodies=9, length=MEGABYTE, sent=950_000, seconds=3))

        attacker = threading.Thread(target=attack)
        attacker.start()
        large = b'{"samples":[]}' + b" " * 900_000
        statuses = set()
        while attacker.is_alive():
            statuses.add(call(service, "/v1/predict", PREDICT)[0])
            statuses.add(post(service.port, "/v1/predict", service.tokens["other"], large))
        attacker.join()
    assert statuses == {200, 422}  # never 503: there is room for others, for large bodies too


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    settings = Settings(quiet=0, max_delay=0, body_timeout=600, body_pause=0.3, body_rate=1000)
    with running(tmp_path_factory.mktemp("impatient") / "s", settings) as service:
        yield service


def sent(service: Running, parts: list[bytes], wait: float, length: int = 1000) -> bytes:
    """Send parts of a body with pauses; return the answer."""
    secret = service.admin["Authorization"].removeprefix("Bearer ")
    port = service.client.base_url.port or 0
    with closing(socket.create_connection(("127.0.0.1", port), timeout=60)) as connection:
        connection.sendall(head("/v1/forget", secret, "application/json", length))
        try:
            for part in parts:
                connection.sendall(part)
                pause(wait)
        except OSError:
            pass
        return connection.recv(4096)


@pytest.mark.parametrize("error", [TimeoutError("the network did not answer"), ClientDisconnect()])
def test_what_fails_behind_a_whole_body_is_not_its_senders_fault(
    impatient: Running, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(Store, "prepare", fails)
    answer = impatient.client.post("/v1/samples", json={"samples": samples([0])}, headers=impatient.admin)
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal"


def test_a_body_that_stops_coming(impatient: Running) -> None:
    answer = sent(impatient, [b"{"], 0)
    assert b" 408 " in answer
    assert b"1000 bytes a second" in answer


def test_a_body_that_comes_byte_by_byte(impatient: Running) -> None:
    assert b" 408 " in sent(impatient, [b" "] * 200, 0.05)


def test_a_pause_after_most_of_a_body(impatient: Running) -> None:
    assert b" 408 " in sent(impatient, [b" " * 90_000], 0, length=100_000)  # what came before does not count


def test_room_comes_back(tmp_path: Path) -> None:
    limits = Settings(quiet=0, max_delay=0, max_body=1000, max_waiting_bytes=4000, body_pause=0.3, body_rate=1000)
    with running(tmp_path / "s", limits) as service:
        other = bearer(token(service.folder, "other", "predict"))
        service.learn(range(5))
        service.client.post("/v1/publish", headers=service.admin)
        secret = service.admin["Authorization"].removeprefix("Bearer ")
        for _ in range(2):
            port = service.client.base_url.port or 0
            assert set(trickle(port, secret, bodies=6, length=1000, sent=900, seconds=60)) <= {0, 408, 503}
            assert service.client.post("/v1/predict", json=PREDICT, headers=service.admin).status_code == 200
            assert service.client.post("/v1/predict", json=PREDICT, headers=other).status_code == 200


def test_who_goes_on_is_waited_for() -> None:
    async def slowly(steps: int) -> None:
        with Deadlines().within(60, 1.5) as go_on:
            for _ in range(steps):
                await asyncio.sleep(0.4)
                go_on()

    async def never() -> None:
        with Deadlines().within(60, 0.1):
            await asyncio.sleep(30)

    async def too_long() -> None:
        with Deadlines().within(0.1, 60) as go_on:
            while True:
                await asyncio.sleep(0.01)
                go_on()

    with asyncio.Runner(loop_factory=HurriedLoop) as runner:
        runner.run(slowly(5))
        for late in (never, too_long):
            with pytest.raises(TimeoutError):
                runner.run(late())
