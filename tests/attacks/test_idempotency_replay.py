"""The promise: no 2xx is sent for something that is not done, whatever an idempotency key was used for before.

A key replayed with another body is refused, for every kind of request, at every stage. Replayed with its own body it is
answered as before, as far as that can be known without keeping what was forgotten; else it is refused as well.
"""

from __future__ import annotations

import asyncio
import base64
import faulthandler
import json
import os
import signal
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from neverseen import store
from neverseen.client import Client, ServiceError
from neverseen.holdings import FORGET
from neverseen.ledger import LASTING, RequestRow
from neverseen.proof.keys import Key, Keyring
from neverseen.service import Settings
from neverseen.service.errors import Refusal
from neverseen.service.writer.applying import apply
from neverseen.service.writer.idempotency import Repetitions, to_keep, told_apart
from neverseen.service.writer.jobs import Applied, Job
from tests.services import (
    BACKBONE,
    KEYS,
    LABELS,
    ROWS,
    Process,
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

STILL = Settings(quiet=10**6, max_delay=10**6, seal_after=10**6)
HELD = range(30)
KINDS = ("learn", "forget by receipt", "forget by sample", "forget by class")
STAGES = ("before publishing", "after publishing", "after a seal", "after two seals")
KEY = {kind: kind.replace(" ", "-") for kind in KINDS}
USED = ("idempotency_conflict", "idempotency_expired")


@dataclass
class Attacked:
    """A service on which one request was made under the idempotency key ``k``."""

    folder: Path
    secret: dict[str, str]
    bodies: dict[str, tuple[str, dict[str, Any], dict[str, Any]]]  # of each kind: path, own body, another body
    salted: bool

    def send(self, service: Running, path: str, body: Any, key: str = "k", **query: Any) -> httpx.Response:
        headers = self.secret | {"Idempotency-Key": key}
        return service.client.post(path, json=body, headers=headers, params=query)


def prepared(service: Running) -> Attacked:
    secret = bearer(token(service.folder, "shop", "learn", "forget"))
    receipts = service.learn(HELD)
    bodies: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
        "learn": ("/v1/samples", {"samples": samples([50, 51])}, {"samples": samples([52, 53])}),
        "forget by receipt": ("/v1/forget", {"receipts": receipts[:1]}, {"receipts": receipts[1:2]}),
        "forget by sample": ("/v1/forget", {"samples": samples([2])}, {"samples": samples([3])}),
        "forget by class": ("/v1/forget/class", {"label": "emu"}, {"label": "cat"}),
    }
    salted = base64.urlsafe_b64decode(receipts[0]).startswith(b"NSR2")
    return Attacked(service.folder, secret, bodies, salted)


def brought(service: Running, stage: str) -> None:
    verbs = {"after publishing": ["publish"], "after a seal": ["seal"], "after two seals": ["seal", "seal"]}
    for verb in verbs.get(stage, []):
        assert service.client.post(f"/v1/{verb}", headers=service.admin).status_code == 200


@contextmanager
def held_up(service: Running) -> Iterator[threading.Event]:
    """The writer waits, and takes nothing more, until the event is set."""
    gate = hold(service.service.writer)
    try:
        yield gate
    finally:
        gate.set()


def require_that_other_bodies_are_refused(service: Running, attacked: Attacked, first: dict[str, Any]) -> None:
    before = service.digest()
    for kind in KINDS:
        for other, (path, own, another) in attacked.bodies.items():
            for body in (another,) if other == kind else (own, another):
                for query in ({},) if path == "/v1/samples" else ({}, {"dry_run": "true"}):
                    answer = attacked.send(service, path, body, key=KEY[kind], **query)
                    assert answer.status_code == 409, (kind, other, query, answer.text)
                    error = answer.json()["error"]
                    assert error["code"] in USED, (kind, other, error)
                    assert error["request"] == first[kind]["request"]["id"]
    assert service.digest() == before


def require_that_nothing_is_done_twice(
    service: Running, attacked: Attacked, first: dict[str, Any], stage: str, statuses: dict[str, int]
) -> None:
    before = service.digest()
    for kind in KINDS:
        request = first[kind]["request"]["id"]
        path, own, _ = attacked.bodies[kind]
        again = attacked.send(service, path, own, key=KEY[kind])
        lasts = attacked.salted and kind in ("learn", "forget by receipt")
        if "seal" not in stage or lasts:  # answered as before
            assert again.status_code == statuses[kind], again.text
            assert again.json()["request"]["id"] == request
            assert again.json().get("receipts") == first[kind].get("receipts")
        else:
            error = again.json()["error"]
            assert (again.status_code, error["code"], error["request"]) == (409, "idempotency_expired", request)
            assert f"GET /v1/requests/{request}" in error["message"]
            assert "nothing was done" in error["message"]
            assert service.state(request) == "sealed"  # what became of it can be asked for
    assert service.digest() == before


@pytest.mark.parametrize("stage", STAGES)
def test_a_used_key(tmp_path: Path, stage: str) -> None:
    """With another body it is refused; with its own, nothing is done twice. So it is in the same run, and in the next."""
    with running(tmp_path / "s", STILL) as service:
        attacked = prepared(service)
        answers = {kind: attacked.send(service, *attacked.bodies[kind][:2], key=KEY[kind]) for kind in KINDS}
        assert all(answer.is_success for answer in answers.values()), answers
        statuses = {kind: answer.status_code for kind, answer in answers.items()}
        first = {kind: answer.json() for kind, answer in answers.items()}
        brought(service, stage)
        require_that_other_bodies_are_refused(service, attacked, first)
        require_that_nothing_is_done_twice(service, attacked, first, stage, statuses)
    with running(tmp_path / "s", STILL) as service:
        require_that_other_bodies_are_refused(service, attacked, first)
        require_that_nothing_is_done_twice(service, attacked, first, stage, statuses)
        for kind in KINDS:  # under keys of their own, the same bodies are good
            path, _, another = attacked.bodies[kind]
            before = service.digest()
            assert attacked.send(service, path, another, key=f"new-{KEY[kind]}").is_success
            assert service.digest() != before


def test_a_forget_of_what_is_held_is_not_acknowledged_for_another(tmp_path: Path) -> None:
    """The shortest way: forget A, seal, forget B under the same key. B was acknowledged, and stayed."""
    with running(tmp_path / "s", STILL) as service:
        receipts = service.learn(range(4))
        headers = service.admin | {"Idempotency-Key": "k"}
        assert service.client.post("/v1/forget", json={"receipts": receipts[:1]}, headers=headers).status_code == 202
        assert service.client.post("/v1/seal", headers=service.admin).status_code == 200
        answer = service.client.post("/v1/forget", json={"receipts": receipts[1:2]}, headers=headers)
        assert answer.status_code == 409, "B was acknowledged"
        assert service.digest() == never(range(1, 4))
        assert service.forget(receipts[1:2]).status_code == 202
        assert service.digest() == never(range(2, 4))


def test_a_replay_among_overlapping_requests_is_told(tmp_path: Path) -> None:
    """Requests that list each other's receipts in turns are taken one by one; a replay among them is still one."""
    with store.open(new_store(tmp_path / "s"), backbone=BACKBONE, keys=KEYS, hardware="numpy") as opened:
        receipts = opened.learn(ROWS[:12], LABELS[:12], [f"s{row}" for row in range(12)])

        def forget(number: int, tokens: list[bytes], tag: bytes | None = None, body: bytes = b"b" * 32) -> Job:
            return Job(FORGET, f"req {number}", "key", None, len(tokens), tokens, tag=tag, body=body if tag else None)

        tag = b"t" * 32
        assert [type(found) for _, found in apply(opened, [forget(0, receipts[:1], tag)])] == [Applied]
        crowd = [forget(1 + row, receipts[row : row + 2]) for row in range(1, 9)]
        replay, other = forget(98, receipts[:1], tag), forget(99, receipts[11:12], tag, b"o" * 32)
        found = {job.id: outcome for job, outcome in apply(opened, [*crowd, replay, other])}
        assert isinstance(found["req 98"], Applied)
        assert found["req 98"].replayed
        assert getattr(found["req 99"], "code", None) == "idempotency_conflict"
        # Two new requests with one tag, in one change: the second is told like any other.
        tag = b"u" * 32
        pair = [forget(200, receipts[10:11], tag), forget(201, receipts[11:12], tag, b"o" * 32)]
        found = {job.id: outcome for job, outcome in apply(opened, pair)}
        assert isinstance(found["req 200"], Applied)
        assert getattr(found["req 201"], "code", None) == "idempotency_conflict"


def test_two_bodies_race_under_one_key(tmp_path: Path) -> None:
    with running(tmp_path / "s", STILL) as service:
        attacked = prepared(service)
        for kind in KINDS:
            require_that_one_body_wins(service, attacked, kind)


def require_that_one_body_wins(service: Running, attacked: Attacked, kind: str) -> None:
    path, own, another = attacked.bodies[kind]
    with held_up(service) as gate, ThreadPoolExecutor(8) as pool:
        both = [pool.submit(attacked.send, service, path, body, key=KEY[kind]) for body in [own, another] * 4]
        gate.set()
        answers = [future.result() for future in both]
    won = {answer.json()["request"]["id"] for answer in answers if answer.is_success}
    assert len(won) == 1
    sides = [{answer.is_success for answer in answers[side::2]} for side in (0, 1)]
    assert sorted(map(sorted, sides)) == [[False], [True]]  # all of one body, none of the other
    refused = [answer.json()["error"] for answer in answers if not answer.is_success]
    assert {(error["code"], error["request"]) for error in refused} == {("idempotency_conflict", won.pop())}
    mine = own if sides[0] == {True} else another
    once = service.digest()
    assert attacked.send(service, path, mine, key=KEY[kind]).is_success
    assert service.digest() == once
    rest = another if mine is own else own  # it was not done: under a key of its own it can be
    assert attacked.send(service, path, rest, key=f"new-{KEY[kind]}").is_success
    assert service.digest() != once


def test_a_key_whose_request_was_refused_is_free_again(tmp_path: Path) -> None:
    with running(tmp_path / "s", STILL) as service:
        attacked = prepared(service)
        path, own, _ = attacked.bodies["forget by receipt"]
        with held_up(service) as gate, ThreadPoolExecutor(2) as pool:
            bad = pool.submit(attacked.send, service, path, {"receipts": ["TlNSMQAB"]})
            eventually(service.service.writer.waiting)
            good = pool.submit(attacked.send, service, path, own)
            gate.set()
            assert bad.result().status_code == 404
            assert good.result().status_code == 202
        assert service.digest() == never(range(1, 30))


def test_a_key_spelled_by_another_content_type_is_still_used(tmp_path: Path) -> None:
    with running(tmp_path / "s", STILL) as service:
        attacked = prepared(service)
        path, own, another = attacked.bodies["forget by receipt"]
        assert attacked.send(service, path, own).status_code == 202
        before = service.digest()
        line = json.dumps({"receipt": another["receipts"][0]}).encode()
        raw = base64.urlsafe_b64decode(another["receipts"][0])
        for content in (line, line + b"\n", raw):
            headers = attacked.secret | {"Idempotency-Key": "k"}
            answer = service.client.post(path, files={"receipts": ("r", content)}, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (409, "idempotency_conflict")
        assert service.digest() == before


def test_a_learn_that_is_sent_again_needs_no_room(tmp_path: Path) -> None:
    with running(tmp_path / "s", STILL) as service:
        headers = service.admin | {"Idempotency-Key": "once"}
        body = {"samples": samples(range(5))}
        first = service.client.post("/v1/samples", json=body, headers=headers)
        service.service.room._memory = 0
        again = service.client.post("/v1/samples", json=body, headers=headers)
        assert (again.status_code, again.json()) == (201, first.json())
        other = service.client.post("/v1/samples", json=body, headers=service.admin | {"Idempotency-Key": "other"})
        assert other.status_code == 507


def test_a_rehearsal_does_not_use_up_a_key(tmp_path: Path) -> None:
    with running(tmp_path / "s", STILL) as service:
        attacked = prepared(service)
        service.client.post(
            "/v1/publish", headers=service.admin
        ).raise_for_status()  # rehearsals of classes are of that
        for kind in KINDS[1:]:
            path, own, another = attacked.bodies[kind]
            for body in (another, own):
                assert attacked.send(service, path, body, key=KEY[kind], dry_run="true").status_code == 200
            assert attacked.send(service, path, own, key=KEY[kind]).status_code == 202
            assert attacked.send(service, path, another, key=KEY[kind], dry_run="true").status_code == 409


def test_killed_after_the_answer(tmp_path: Path) -> None:
    folder = new_store(tmp_path / "s")
    secret = bearer(token(folder, "shop", "learn", "forget")) | {"Idempotency-Key": "k"}
    process = Process(folder, "Settings(quiet=10**6, max_delay=10**6)")
    try:
        learned = httpx.post(
            f"{process.url}/v1/samples",
            json={"samples": samples(range(5))},
            headers=secret | {"Idempotency-Key": "l"},
            timeout=60,
        )
        receipts = learned.json()["receipts"]
        first = httpx.post(f"{process.url}/v1/forget", json={"receipts": receipts[:1]}, headers=secret, timeout=60)
        assert first.status_code == 202
    finally:
        process.stop(signal.SIGKILL)
    with running(folder, STILL) as service:
        other = service.client.post("/v1/forget", json={"receipts": receipts[1:2]}, headers=secret)
        assert (other.status_code, other.json()["error"]["code"]) == (409, "idempotency_conflict")
        again = service.client.post("/v1/forget", json={"receipts": receipts[:1]}, headers=secret)
        assert again.json()["request"]["id"] == first.json()["request"]["id"]
        assert service.digest() == never(range(1, 5))


def noted(folder: Path) -> set[str]:
    """The requests that the ledger has on disk, read by somebody else."""
    with sqlite3.connect(f"file:{folder / 'ledger.sqlite'}?mode=ro", uri=True) as connection:
        return {row[0] for row in connection.execute("select id from neverseen_requests")}


def full(handle: int, content: bytes, offset: int) -> int:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("log", ["good", "full"])
def test_every_2xx_of_a_change_is_on_disk(tmp_path: Path, log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "s"
    told: list[str] = []
    with running(folder, STILL) as service:
        attacked = prepared(service)
        for kind in KINDS:
            path, own, another = attacked.bodies[kind]
            for key, body in (("a", own), ("a", own), ("b", another)):
                with monkeypatch.context() as patched:
                    if log == "full":
                        patched.setattr(os, "pwrite", full)
                    answer = attacked.send(service, path, body, key=KEY[kind] + key)
                if answer.is_success:
                    told.append(answer.json()["request"]["id"])
                    assert told[-1] in noted(folder)
                else:
                    assert answer.status_code == 503, answer.text  # the log cannot be written: nothing is taken
        digest = service.digest()
    assert told
    with running(folder, STILL) as service:
        assert service.digest() == digest
        for request in told:
            assert service.state(request) == "applied"


def test_a_stop_that_takes_too_long_acknowledges_nothing(tmp_path: Path) -> None:
    settings = Settings(quiet=10**6, max_delay=10**6, stop_timeout=1)
    with running(tmp_path / "s", settings) as service:
        attacked = prepared(service)
        before = service.digest()
        path, own, _ = attacked.bodies["forget by receipt"]
        with held_up(service) as gate, ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(attacked.send, service, path, own)
            eventually(service.service.writer.waiting)
            stopping = threading.Thread(target=service.service.writer.stop, args=(0.2,))
            stopping.start()
            answer = waiting.result()
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "stopping"
            gate.set()
            stopping.join()
    with running(tmp_path / "s", STILL) as service:
        assert service.digest() == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_stops_before_it_has_answered(tmp_path: Path, kind: str) -> None:
    """It cancels what it does not wait for: the answer says that nobody knows, and the same key tells later."""
    with running(tmp_path / "s", STILL) as service:
        attacked = prepared(service)
        path, own, _ = attacked.bodies[kind]
        with held_up(service), ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(attacked.send, service, path, own, key="once")
            jobs = eventually(service.service.writer.waiting)
            loop = jobs[0].future.get_loop()
            loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks(loop) if _answers(task)])
            answer = waiting.result()
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "stopping")
        assert answer.headers["retry-after"] == "5"
        again = attacked.send(service, path, own, key="once")
        assert again.status_code in (201, 202)
        assert again.json()["request"]["id"] == jobs[0].id  # it was carried out, and is not again


def _answers(task: asyncio.Task[Any]) -> bool:
    """Whether a task of the server answers a request."""
    return "run_asgi" in repr(task.get_coro())


# -- what outlasts a seal -----------------------------------------------------------------------------------


SALTED, PLAIN = [b"NSR2" + bytes([row]) * 40 for row in range(3)], [b"NSR1" + bytes([row]) * 40 for row in range(3)]


def kept(body: bytes, receipts: list[bytes], sealed: bool, kind: str = "forget") -> RequestRow:
    """A row as the ledger has it, before or after a seal."""
    value: bytes | None = to_keep(body, receipts)
    if sealed and value is not None:
        value = value[:LASTING] if len(value) >= LASTING else None
    return RequestRow("req 1", b"t" * 32, "key", kind, 1, value, 0)


@pytest.mark.parametrize("again_by", ["another key", "the same key"])
def test_a_learn_is_not_answered_with_receipts_of_another_request(tmp_path: Path, again_by: str) -> None:
    """Its sample was forgotten, and learned again under the same id. The new receipt is not that of the first."""
    with running(tmp_path / "s", STILL) as service:
        one, two = (bearer(token(service.folder, name, "learn")) for name in ("one", "two"))
        body = {"samples": samples([1, 2])}

        def learn(secret: dict[str, str], key: str) -> httpx.Response:
            return service.client.post("/v1/samples", json=body, headers=secret | {"Idempotency-Key": key})

        first = learn(one, "k").json()
        assert learn(one, "k").json() == first
        assert service.forget(first["receipts"]).status_code == 202
        assert learn(two if again_by == "another key" else one, "z").status_code == 201
        before = service.digest()
        for verb in ("publish", "publish", "seal"):
            error = learn(one, "k").json()["error"]
            assert (error["code"], error["request"]) == ("receipts_gone", first["request"]["id"])
            assert service.client.post(f"/v1/{verb}", headers=service.admin).status_code == 200
        error = learn(one, "k").json()["error"]  # whether this is the same request cannot be told any more
        assert (error["code"], error["request"]) == ("idempotency_expired", first["request"]["id"])
        assert service.digest() == before


def test_a_learn_whose_receipt_key_was_dropped(tmp_path: Path) -> None:
    """Its samples are held, and nobody says that they are not."""
    folder, body = tmp_path / "s", {"samples": samples([1])}
    with running(folder, STILL) as service:
        secret = bearer(token(folder, "shop", "learn")) | {"Idempotency-Key": "k"}
        first = service.client.post("/v1/samples", json=body, headers=secret).json()
    with running(folder, STILL, keyring=Keyring(KEYS.membership, [Key(bytes([9] * 32))])) as service:
        error = service.client.post("/v1/samples", json=body, headers=secret).json()["error"]
        assert (error["code"], error["request"]) == ("receipts_gone", first["request"]["id"])
        assert "or their receipt key was dropped" in error["message"]
        assert service.digest() == never([1])


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("given", [SALTED, PLAIN], ids=["salted", "plain"])
def test_receipts_that_were_not_given_are_no_answer(given: list[bytes], sealed: bool) -> None:
    own = b"a" * 32
    row = kept(own, given, sealed, "learn")
    others = [SALTED[::-1], SALTED[:2], [*PLAIN[:2], SALTED[0]], None] + ([PLAIN] if given is SALTED else [SALTED])
    for receipts in others:
        refusal = told_apart(row, own, receipts)
        assert refusal is not None
        assert refusal.code == ("idempotency_expired" if sealed else "receipts_gone")
    refusal = told_apart(row, b"b" * 32, given)
    assert refusal is not None
    assert refusal.code == ("idempotency_expired" if sealed else "idempotency_conflict")
    assert (told_apart(row, own, given) is None) == (given is SALTED or not sealed)


@pytest.mark.parametrize("sealed", [False, True])
def test_salted_receipts_are_told_apart_after_a_seal(sealed: bool) -> None:
    own, other = b"a" * 32, b"b" * 32
    row = kept(own, SALTED, sealed)
    assert told_apart(row, own, SALTED) is None
    attacks: list[tuple[bytes, list[bytes] | None]] = [
        (other, SALTED),
        (other, SALTED[:1]),
        (other, []),
        (other, PLAIN),
        (other, None),
    ]
    attacks += [(own, SALTED[::-1]), (own, SALTED[:2]), (own, [])] if sealed else []
    for body, receipts in attacks:
        refusal = told_apart(row, body, receipts)
        assert refusal is not None
        assert refusal.code in USED


@pytest.mark.parametrize("receipts", [PLAIN, [], [*SALTED, PLAIN[0]]])
def test_what_could_be_guessed_is_cleared_with_a_seal(receipts: list[bytes]) -> None:
    row = kept(b"a" * 32, receipts, sealed=True)
    assert row.body is None
    refusal = told_apart(row, b"a" * 32, receipts)
    assert refusal is not None
    assert refusal.code == "idempotency_expired"


def test_the_client_names_the_request(tmp_path: Path) -> None:
    with running(tmp_path / "s", STILL) as service:
        secret = service.admin["Authorization"].partition(" ")[2]
        service.learn(range(10))
        with Client(service.url, token=secret) as client:

            def ask(row: int) -> Any:
                return client.forget(samples=ROWS[row : row + 1], labels=LABELS[row : row + 1], idempotency_key="k")

            first = ask(0)
            client.seal()
            with pytest.raises(ServiceError, match="idempotency_expired") as caught:
                ask(1)
            assert caught.value.request == first.id
            assert client.request(first.id).state == "sealed"
            assert service.digest() == never(range(1, 10))


def test_a_refusal_just_over_does_not_stop_the_service(tmp_path: Path) -> None:
    """Another body under the key of a request that has just been refused: nobody waits for what is over for ever."""

    async def played() -> list[Any]:
        repetitions, loop = Repetitions(tmp_path), asyncio.get_running_loop()
        under_way = loop.create_future()
        first = asyncio.create_task(repetitions.once(b"tag", b"one", lambda: under_way))
        await asyncio.sleep(0)

        async def work() -> str:
            return "done"

        loop.call_soon(under_way.set_exception, Refusal("not_found", "no"))
        second = asyncio.create_task(repetitions.once(b"tag", b"two", work))
        return list(await asyncio.gather(first, second, return_exceptions=True))

    faulthandler.dump_traceback_later(60, exit=True)  # a loop that never yields cannot be cancelled from inside
    try:
        refused, done = asyncio.run(played())
    finally:
        faulthandler.cancel_dump_traceback_later()
    assert isinstance(refused, Refusal)
    assert done == "done"
