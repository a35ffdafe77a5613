"""Requests that are sent again are done once, and answered each time: concurrently, later, after a restart."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from neverseen import store
from neverseen.holdings import FORGET, LEARN
from neverseen.service import Settings
from neverseen.service.writer.applying import apply
from neverseen.service.writer.idempotency import Repetitions
from neverseen.service.writer.jobs import Applied, Job, LearnSamples
from tests.services import (
    BACKBONE,
    KEYS,
    LABELS,
    ROWS,
    Running,
    bearer,
    hold,
    never,
    new_store,
    running,
    samples,
    token,
)
from tests.waiting import eventually

STILL = Settings(quiet=10**6, max_delay=10**6)


def send(service: Running, path: str, body: Any, key: str, headers: dict[str, str] | None = None) -> httpx.Response:
    return service.client.post(path, json=body, headers=(headers or service.admin) | {"Idempotency-Key": key})


def test_a_repetition_is_done_once(tmp_path: Path) -> None:
    with running(tmp_path / "s", STILL) as service:
        learn = {"samples": samples(range(10), ids=False)}
        first, again = (send(service, "/v1/samples", learn, "one") for _ in range(2))
        assert first.status_code == again.status_code == 201
        assert first.json() == again.json()  # the same receipts, of the same request
        receipts = first.json()["receipts"]
        assert service.digest() == never(range(10))
        forget = {"receipts": receipts[:2]}
        first, again = (send(service, "/v1/forget", forget, "two") for _ in range(2))
        assert first.status_code == again.status_code == 202
        assert first.json() == again.json()
        by_sample = {"samples": samples([2], ids=False)}
        first, again = (send(service, "/v1/forget", by_sample, "three") for _ in range(2))
        assert first.json() == again.json()
        assert first.status_code == 202
        assert service.digest() == never(range(3, 10))


def test_a_key_is_for_one_request(tmp_path: Path) -> None:
    with running(tmp_path / "s", STILL) as service:
        receipts = service.learn(range(10))
        assert send(service, "/v1/forget", {"receipts": receipts[:1]}, "k").status_code == 202
        for path, body in (
            ("/v1/forget", {"receipts": receipts[1:2]}),
            ("/v1/forget", {"receipts": receipts[:2]}),
            ("/v1/samples", {"samples": samples([50])}),
            ("/v1/forget/class", {"label": "cat"}),
        ):
            answer = send(service, path, body, "k")
            assert answer.status_code == 409, (path, answer.text)
            assert answer.json()["error"]["code"] == "idempotency_conflict"
        other = bearer(token(service.folder, "another", "forget"))  # its keys are its own
        assert send(service, "/v1/forget", {"receipts": receipts[1:2]}, "k", other).status_code == 202
        assert service.digest() == never(range(2, 10))


def test_a_refusal_is_not_remembered(tmp_path: Path) -> None:
    with running(tmp_path / "s", STILL) as service:
        body = {"samples": samples([0])}
        assert send(service, "/v1/forget", body, "k").status_code == 404
        service.learn([0, 1])
        assert send(service, "/v1/forget", body, "k").status_code == 202
        assert service.digest() == never([1])


def test_repetitions_after_relearning(tmp_path: Path) -> None:
    with running(tmp_path / "s", STILL) as service:
        receipts = service.learn(range(10))
        assert send(service, "/v1/forget", {"receipts": receipts[:1]}, "a").status_code == 202
        assert send(service, "/v1/forget/class", {"label": "dog"}, "b").status_code == 202
        service.learn([0])  # which gives another receipt
        digest = service.digest()
        assert send(service, "/v1/forget", {"receipts": receipts[:1]}, "a").status_code == 202
        assert service.digest() == digest
        service.learn(range(60, 70))
        digest = service.digest()
        assert send(service, "/v1/forget/class", {"label": "dog"}, "b").status_code == 202
        assert service.digest() == digest


def test_receipts_of_what_is_gone_are_not_given_again(tmp_path: Path) -> None:
    with running(tmp_path / "s", STILL) as service:
        learn = {"samples": samples(range(4))}
        receipts = send(service, "/v1/samples", learn, "k").json()["receipts"]
        service.forget(receipts[:1])
        answer = send(service, "/v1/samples", learn, "k")
        assert answer.status_code == 409
        assert answer.json()["error"]["code"] == "receipts_gone"
        assert service.digest() == never(range(1, 4))


def test_repetitions_among_new_requests(tmp_path: Path) -> None:
    def learn(row: int, number: int, tag: bytes) -> Job:
        payload = LearnSamples(opened.prepare(ROWS[row : row + 1]), LABELS[row : row + 1], [None], None)
        return Job(LEARN, f"req {number}", "key", None, 1, payload, tag=tag, body=bytes([row]) * 32)

    def forget(token: bytes, number: int, tag: bytes) -> Job:
        return Job(FORGET, f"req {number}", "key", None, 1, [token], tag=tag, body=token[:32])

    with store.open(new_store(tmp_path / "s"), backbone=BACKBONE, keys=KEYS, hardware="numpy") as opened:
        first = list(apply(opened, [learn(row, row, bytes([row]) * 32) for row in range(3)]))
        again = list(apply(opened, [learn(row, 10 + row, bytes([row]) * 32) for row in range(5)]))
        assert all(isinstance(found, Applied) for _, found in first + again)
        given = {job.id: found.receipts for job, found in first + again if isinstance(found, Applied)}
        assert [given[f"req {row}"] == given[f"req {10 + row}"] for row in range(3)] == [True] * 3
        assert opened.digest() == never(range(5))
        tokens = [(given[f"req {10 + row}"] or [b""])[0] for row in range(5)]
        list(apply(opened, [forget(tokens[0], 20, b"x" * 32)]))
        opened.learn(ROWS[:1], LABELS[:1], ["req 0-0"])  # which gives another receipt
        found = list(apply(opened, [forget(tokens[0], 21, b"x" * 32), forget(tokens[1], 22, b"y" * 32)]))
        assert [(job.id, outcome.replayed) for job, outcome in found if isinstance(outcome, Applied)] == [
            ("req 21", True),
            ("req 22", False),
        ]
        assert opened.digest() == never([0, 2, 3, 4])


def test_after_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    learn = {"samples": samples(range(10))}
    with running(folder, STILL) as service:
        secret = bearer(token(folder, "shop", "learn", "forget"))
        learned = send(service, "/v1/samples", learn, "one", secret)
        forget = {"receipts": learned.json()["receipts"][:2]}
        forgot = send(service, "/v1/forget", forget, "two", secret)
    with running(folder, STILL) as service:
        assert (
            send(service, "/v1/forget", forget, "two", secret).json()["request"]["id"] == forgot.json()["request"]["id"]
        )
        again = send(service, "/v1/samples", learn, "one", secret)
        assert again.json()["error"]["code"] == "receipts_gone"
        assert service.digest() == never(range(2, 10))
        assert service.state(forgot.json()["request"]["id"]) == "applied"


def test_learned_receipts_come_again_after_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    learn = {"samples": samples(range(5), ids=False), "owner": "ada"}
    with running(folder) as service:
        secret = bearer(token(folder, "shop", "learn"))
        first = send(service, "/v1/samples", learn, "one", secret).json()
    with running(folder) as service:
        assert send(service, "/v1/samples", learn, "one", secret).json()["receipts"] == first["receipts"]
        assert service.digest() == never(range(5))


def test_concurrent_duplicates_share_one_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    came, once = list[bytes | None](), Repetitions.once

    async def noted(self: Repetitions, tag: bytes | None, body: bytes, work: Any) -> Any:
        came.append(tag)
        return await once(self, tag, body, work)

    with running(tmp_path / "s", STILL) as service:
        receipts = service.learn(range(30))
        monkeypatch.setattr(Repetitions, "once", noted)
        gate = hold(service.service.writer)
        body = {"receipts": receipts[:3]}
        with ThreadPoolExecutor(12) as pool:
            same = [pool.submit(send, service, "/v1/forget", body, "same")]
            eventually(service.service.writer.waiting)
            same += [pool.submit(send, service, "/v1/forget", body, "same") for _ in range(7)]
            other = pool.submit(send, service, "/v1/forget", {"receipts": receipts[3:4]}, "same")
            eventually(lambda: len(came) == 9)
            assert len(service.service.writer.waiting()) == 1
            gate.set()
            answers = [future.result() for future in same]
            assert {answer.status_code for answer in answers} == {202}
            assert len({json.dumps(answer.json()) for answer in answers}) == 1
            assert other.result().json()["error"]["code"] == "idempotency_conflict"
        assert service.digest() == never(range(3, 30))


def test_who_hangs_up_does_not_spoil_it_for_others(tmp_path: Path) -> None:
    with running(tmp_path / "s", STILL) as service:
        receipts = service.learn(range(10))
        gate = hold(service.service.writer)
        body = {"receipts": receipts[:1]}
        with pytest.raises(httpx.ReadTimeout):
            service.client.post("/v1/forget", json=body, headers=service.admin | {"Idempotency-Key": "k"}, timeout=0.3)
        gate.set()
        assert send(service, "/v1/forget", body, "k").status_code == 202
        assert service.digest() == never(range(1, 10))


def test_odd_keys_are_refused(tmp_path: Path) -> None:
    with running(tmp_path / "s") as service:
        for key in ("", "a b", "x" * 201, "\u00e9".encode(), "a\tb"):
            headers: Any = service.admin | {"Idempotency-Key": key}
            answer = service.client.post("/v1/forget", json={"receipts": ["TlNSMQAB"]}, headers=headers)
            assert answer.status_code == 422, key
            assert answer.json()["error"]["code"] == "invalid_request"
