"""Nobody without a key can keep the service busy: checks of certificates are small, few, and made in a worker process."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.siege_attacks import head, long_certificate, odd_certificate, post, together
from neverseen.service import Settings
from neverseen.service.errors import Refusal
from neverseen.service.reception import checks
from neverseen.service.reception.workers import Workers
from tests.attacks.siege import Besieged, besieged, call, features
from tests.services import Running, hold, running, samples
from tests.waiting import eventually

PREDICT = {"samples": [{"features": features([0])[0]}]}
SMALL = 700_000_000  # bytes of memory: three processes of Python take less


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with besieged(tmp_path_factory.mktemp("verify") / "s", quiet=0, max_delay=0) as found:
        assert call(found, "/v1/samples", {"samples": samples(range(60))})[0] == 201
        assert call(found, "/v1/publish", {})[0] == 200
        yield found


def test_certificates_of_megabytes_without_a_key(service: Besieged) -> None:
    body = odd_certificate(400_000)
    assert len(body) > 4_500_000
    with service.watched(PREDICT) as watch:
        statuses = together(6, lambda _: post(service.port, "/v1/verify", "", body))
    assert set(statuses) <= {0, 413, 429}  # 0: cut off while it was still sending
    assert statuses[413]
    assert set(watch.statuses) == {200}
    assert watch.peak < SMALL


def test_a_large_body_is_refused_before_it_is_sent(service: Besieged) -> None:
    import socket
    from contextlib import closing

    with closing(socket.create_connection(("127.0.0.1", service.port), timeout=60)) as connection:
        connection.sendall(head("/v1/verify", "", "application/json", 5_000_000))
        assert b" 413 " in connection.recv(1000)


def test_bytes_are_counted_before_they_are_sent(tmp_path: Path) -> None:
    import socket
    from contextlib import closing

    with running(tmp_path / "s", Settings(public_bytes_per_second=1, public_bytes_burst=1000)) as service:
        port = service.client.base_url.port or 0
        assert post(port, "/v1/verify", "", b" " * 900) != 429
        with closing(socket.create_connection(("127.0.0.1", port), timeout=60)) as connection:
            connection.sendall(head("/v1/verify", "", "application/json", 900))
            assert b" 429 " in connection.recv(1000)  # 408 after a while, when it was waited for


def test_a_flood_of_small_certificates_of_one_address(service: Besieged) -> None:
    body = long_certificate(12_000)
    assert 500_000 < len(body) < 2**20
    with service.watched(PREDICT) as watch:
        statuses = together(24, lambda _: post(service.port, "/v1/verify", "", body))
    assert set(statuses) <= {0, 200, 429, 503}  # 0: cut off while it was still sending
    assert statuses[0] + statuses[429] + statuses[503] >= 10  # by bytes, and by what may wait
    assert set(watch.statuses) == {200}
    assert watch.peak < SMALL
    question = {"certificate": 1, "checks": ["signature"]}
    status, found = call(service, "/v1/verify", question)  # who has a key is not slowed down by strangers
    assert (status, found["checks"][0]["passed"]) == (200, True)


def test_a_certificate_that_would_take_too_much_memory(tmp_path: Path) -> None:
    greedy = '{"certificate":{"a":[' + ",".join(["[]"] * 3_000_000) + ']},"checks":["signature"]}'
    with running(tmp_path / "s", Settings(reading_memory=2**27)) as service:
        headers = service.admin | {"Content-Type": "application/json"}
        assert service.client.post("/v1/verify", content=greedy.encode(), headers=headers).status_code == 413
        assert service.client.post("/v1/certificates/x", json={}, headers=service.admin).status_code in (404, 405)
        asked = {"certificate": 1, "checks": ["signature"]}
        answer = service.client.post("/v1/verify", json=asked, headers=service.admin)
        # It answers again, and nothing is published.
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service in this process, with three certificates."""
    with running(tmp_path_factory.mktemp("published") / "s", Settings(quiet=10**6, max_delay=10**6)) as found:
        for row in range(3):
            found.learn([row])
            assert found.client.post("/v1/publish", headers=found.admin).status_code == 200
        yield found


def test_checks_are_not_made_in_the_service(published: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "certificate_of", None)
    monkeypatch.setattr(checks, "check_signature", None)
    answer = published.client.post("/v1/verify", json={"certificate": 1, "checks": ["signature", "chain"]})
    assert [check["passed"] for check in answer.json()["checks"]] == [True, True]
    listed = published.client.get("/v1/certificates").json()["certificates"]
    assert sorted(entry["number"] for entry in listed) == [1, 2, 3]


def test_one_check_many_times(published: Running) -> None:
    answer = published.client.post("/v1/verify", json={"certificate": 1, "checks": ["chain"] * 4})
    assert answer.status_code == 422
    assert "each check once" in answer.json()["error"]["message"]


def test_a_certificate_is_sent_in_pieces(published: Running) -> None:
    path = published.folder / "certificates" / "00000001.json"
    answer = published.client.get("/v1/certificates/1")
    assert answer.content == path.read_bytes()
    assert int(answer.headers["content-length"]) == path.stat().st_size


def test_nobody_takes_all_places_in_the_queue(tmp_path: Path) -> None:
    about = {"memory": 2**30, "seconds": 10, "certificates": str(tmp_path), "key": "ab" * 32}
    question, body = {"published": 0, "audit": ""}, json.dumps({"certificate": 1, "checks": ["chain"]}).encode()

    async def outcomes() -> list[str]:
        workers = Workers(about, 1, 8)
        try:
            asked = [workers.ask("attacker", question, body) for _ in range(12)] + [
                workers.ask("other", question, body)
            ]
            found = await asyncio.gather(*asked, return_exceptions=True)
        finally:
            workers.stop()
        return [error.code for error in found if isinstance(error, Refusal)]

    # One is served and eight wait, of which the newest gives way: the process is never idle while somebody wants it.
    assert asyncio.run(outcomes()) == ["not_found"] * 8 + ["busy"] * 4 + ["not_found"]


def test_a_long_chain_is_checked_in_parts(published: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = checks.Chain(published.folder / "certificates", published.service.opened().description.public_key)
    monkeypatch.setattr(checks, "_SECONDS", -1.0)
    with pytest.raises(Refusal, match="0 of 3 certificates are checked so far"):
        chain.check(3)
    monkeypatch.setattr(checks, "_SECONDS", 60.0)
    assert len(chain.check(3)) == 3


def test_a_long_list_is_read_in_parts(published: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    checker = checks.Checker(published.folder / "certificates", published.service.opened().description.public_key)
    listed: dict[str, Any] = {"list": [3, 2]}
    assert [entry["number"] for entry in checker.answer(listed, b"")[0]["certificates"]] == [3, 2]
    monkeypatch.setattr(checks, "_SECONDS", -1.0)
    with pytest.raises(Refusal, match="not all read yet"):
        checker.answer({"list": [3, 2, 1]}, b"")
    assert len(checker.answer(listed, b"")[0]["certificates"]) == 2  # what was read before is there


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the memory of a process is limited where this is")
def test_a_question_that_does_not_fit_the_memory(tmp_path: Path) -> None:
    about = {"memory": 2**24, "seconds": 10, "certificates": str(tmp_path), "key": "ab" * 32}

    async def asked() -> None:
        workers = Workers(about, 1, 8)
        try:
            await workers.ask("attacker", {"published": 0, "audit": ""}, bytes(2**27))
        finally:
            workers.stop()

    with pytest.raises(Refusal) as refused:
        asyncio.run(asked())
    assert refused.value.code == "too_large"


def test_checks_of_weights_do_not_pile_up(tmp_path: Path) -> None:
    with running(tmp_path / "s", Settings(quiet=10**6, max_delay=10**6, verify_waiting=1)) as service:
        publish(service)
        writer = service.service.writer
        gate = hold(writer)
        asked = {"certificate": 1, "checks": ["weights"]}
        found: list[int] = []

        def check() -> None:
            found.append(service.client.post("/v1/verify", json=asked, headers=service.admin, timeout=120).status_code)

        first = threading.Thread(target=check)
        first.start()
        try:
            eventually(lambda: len(writer) >= 2, "the check does not come")
            refused = service.client.post("/v1/verify", json=asked, headers=service.admin)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "busy")
        finally:
            gate.set()
            first.join(120)
        assert found == [200]


def test_a_refusal_from_a_process_apart_is_whole() -> None:
    refusal = Refusal("busy", "no", row=1, certificate=2, reason="cut", wait=3.0, request="req_1")
    assert vars(Refusal(**refusal.as_arguments())) == vars(refusal)


def publish(service: Running) -> None:
    service.learn([0, 1, 2])
    service.client.post("/v1/publish", headers=service.admin)


def test_limits_have_defaults() -> None:
    assert Settings().max_public_body < Settings().max_json < Settings().max_body
