"""Promise: one key that has a great deal to do does not keep others from what they have to do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from starlette.requests import Request

from neverseen import store
from neverseen.backbones.reading import Prepared
from neverseen.holdings import LEARN
from neverseen.ledger import Ledger, RequestRow, in_file
from neverseen.ledger import ledger as ledgers
from neverseen.service import Settings, answers, core
from neverseen.service.edge import routes_reading
from neverseen.service.errors import Refusal
from neverseen.service.reception.requests import ANSWERED, KEY
from neverseen.service.writer import queue
from neverseen.service.writer.applying import apply
from neverseen.service.writer.jobs import ASK, Job, LearnSamples
from neverseen.store import Store
from neverseen.store.ledger_holdings import LedgerHoldings
from tests.services import BACKBONE, KEYS, ROWS, Running, bearer, hold, new_store, running, samples, token
from tests.waiting import eventually

QUICK = Settings(quiet=0, max_delay=0)


def key(service: Running, name: str, *scopes: str) -> dict[str, str]:
    return bearer(token(service.folder, name, *scopes))


# -- the network ---------------------------------------------------------------------------------------


def as_texts(service: Running, monkeypatch: pytest.MonkeyPatch, work: Callable[..., Prepared]) -> core.Service:
    """Have samples prepared by something, two at a time, as if the service took texts."""
    found = service.service
    monkeypatch.setattr(found, "bounds", replace(found.bounds, kind="texts"))
    monkeypatch.setattr(core, "THROUGH_NETWORK", 2)
    monkeypatch.setattr(core, "_prepared", work)
    return found


def noted(texts: list[str]) -> Prepared:
    return Prepared(np.array([[len(text)] for text in texts], np.int8), [text.encode() for text in texts])


def test_many_samples_of_one_key_go_through_the_network_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: list[list[str]] = []
    gate = threading.Event()

    def work(opened: Any, texts: list[str], where: str = "") -> Prepared:
        assert gate.wait(120)
        parts.append(texts)
        return noted(texts)

    async def learn(service: core.Service, client: str, texts: list[str]) -> Prepared:
        ANSWERED.set(Request({"type": "http", KEY: client}))
        return await service.prepared(texts)

    async def both(service: core.Service) -> list[Prepared]:
        eve = [asyncio.ensure_future(learn(service, "eve", ["eve"] * 20)) for _ in range(8)]
        await asyncio.sleep(0)
        ada = asyncio.ensure_future(learn(service, "ada", ["ada"]))
        await asyncio.sleep(0)
        gate.set()
        return await asyncio.wait_for(asyncio.gather(ada, *eve), 60)

    with running(tmp_path / "s", QUICK) as service:
        found = asyncio.run(both(as_texts(service, monkeypatch, work)))
    assert [len(each) for each in found] == [1, *[20] * 8]
    assert len(parts) == 81
    assert parts.index(["ada"]) <= 8  # four were being done, and perhaps four more before the loop knew


def test_samples_that_are_prepared_in_parts_stay_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def work(opened: Any, texts: list[str], where: str = "") -> Prepared:
        calls.append(len(texts))
        return noted(texts)

    texts = ["ccc", "a", "bb", "e", "dddddd", "ff", "g"]
    with running(tmp_path / "s", QUICK) as service:
        found = asyncio.run(as_texts(service, monkeypatch, work).prepared(texts))
    assert found.fingerprints == [text.encode() for text in texts]
    assert found.quantised[:, 0].tolist() == [len(text) for text in texts]
    assert calls == [2, 2, 2, 1]


# -- the ledger ----------------------------------------------------------------------------------------


def test_a_slow_ledger_holds_up_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, real = threading.Event(), Ledger.requests
    begun: list[int] = []

    def slow(self: Ledger, *given: Any) -> Any:
        begun.append(1)
        assert gate.wait(120)
        return real(self, *given)

    with running(tmp_path / "s", QUICK) as service:
        eve, ada = key(service, "eve", "learn"), key(service, "ada", "learn", "predict")
        answer = service.client.post("/v1/samples", json={"samples": samples(range(40))}, headers=ada)
        request = f"/v1/requests/{answer.json()['request']['id']}"
        service.client.post("/v1/publish", headers=service.admin)
        assert service.client.get(request, headers=ada).status_code == 200  # she is here
        monkeypatch.setattr(Ledger, "requests", slow)
        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(service.client.get, "/v1/requests", headers=eve) for _ in range(8)]
            try:
                eventually(lambda: len(begun) == 2)
                body = {"samples": [{"features": row.tolist()} for row in ROWS]}
                assert service.client.get("/v1/certificates/1").status_code == 200
                assert service.client.get(request, headers=ada).status_code == 200
                assert service.client.post("/v1/predict", json=body, headers=ada).status_code == 200
                assert len(begun) == 2
            finally:
                gate.set()
            assert {each.result().status_code for each in asked} == {200}


def test_long_lists_are_made_beside_the_event_loop_and_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python runs one thread at a time: with four at lists of a thousand requests, predictions took 20 times as long."""
    at_work, most, where, lock = 0, 0, set[str](), threading.Lock()
    real = answers.written

    def written(content: Any) -> bytes:
        nonlocal at_work, most
        with lock:
            at_work, most = at_work + 1, max(most, at_work + 1)
            where.add(threading.current_thread().name.partition("_")[0])
        made = b"".join(real(content) for _ in range(3000))[: len(real(content))]
        with lock:
            at_work -= 1
        return made

    with running(tmp_path / "s", QUICK) as service:
        service.learn(range(40))
        monkeypatch.setattr(routes_reading, "written", written)
        monkeypatch.setattr(routes_reading, "in_class_order", lambda names: [*names, *where_am_i(where)])
        monkeypatch.setattr(service.service, "view", lambda row, _: {"id": row.id, "at": where_am_i(where)})
        with ThreadPoolExecutor(8) as pool:
            asked = ["/v1/requests", "/v1/model"] * 4
            found = list(pool.map(lambda path: service.client.get(path, headers=service.admin), asked))
    assert {answer.status_code for answer in found} == {200}
    assert (most, where) == (2, {"ledger"})


def where_am_i(where: set[str]) -> list[str]:
    where.add(threading.current_thread().name.partition("_")[0])
    return []


def test_the_requests_of_a_client_are_looked_for_among_recent_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a client that made none has every request of the ledger read, as often as it asks."""
    monkeypatch.setattr(ledgers, "RECENT", 10)
    clients = ["eve", "ada", *["bob"] * 8, "eve", "bob", "eve"]
    with Ledger(in_file(tmp_path / "ledger.sqlite"), create=True) as ledger:
        with ledger.writing() as writing:
            writing.note_requests(
                [RequestRow(f"r{row}", None, client, "learn", 1, None, 1) for row, client in enumerate(clients)]
            )

        def found(*given: Any) -> list[str]:
            return [row.id for row in ledger.requests(*given)]

        assert found(100, None, "eve") == ["r12", "r10"]
        assert found(1, None, "eve") == ["r12"]
        assert found(100, None, "ada") == []
        assert found(100, "r10", "eve") == ["r0"]  # each page goes as far back from where it begins
        assert found(100, "r11", "ada") == ["r1"]
        assert found(100) == [f"r{row}" for row in reversed(range(13))]


# -- the queues ----------------------------------------------------------------------------------------


def test_one_key_has_a_share_of_the_queue_and_learning_leaves_room_to_forget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(QUICK, queue_requests=8, queue_samples=40)
    with running(tmp_path / "s", settings) as service, ThreadPoolExecutor(16) as pool:
        receipts = service.learn(range(5))
        writer = service.service.writer
        names = ["eve", "bob", "cleo", "dora", "fay"]
        keys = {name: key(service, name, "learn") for name in names}
        ada = key(service, "ada", "forget")
        monkeypatch.setattr(queue, "TURN", 1)  # one request at a time
        free = iter(range(10, 200))

        def learn(name: str, count: int = 1) -> Future[httpx.Response]:
            body = {"samples": samples([next(free) for _ in range(count)])}
            return pool.submit(service.client.post, "/v1/samples", json=body, headers=keys[name], timeout=120)

        gate = hold(writer)
        try:
            waiting = [learn("eve", 50)]  # counts as a share: a key that has nothing waiting can always have something
            eventually(lambda: len(writer.waiting()) == 1)
            refused = learn("eve").result()
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
            for name in names[1:4]:
                waiting += [learn(name), learn(name)]
                eventually(lambda name=name: len(writer.waiting(name)) == 2)  # type: ignore[misc]
                refused = learn(name).result()
                assert refused.json()["error"]["code"] == "queue_full"
            waiting += [learn("fay")]
            eventually(lambda: len(writer.waiting()) == 8)
            assert learn("fay").result().status_code == 429  # all of it is taken
            forgotten = pool.submit(service.forget, receipts[:1], ada)
            eventually(lambda: len(writer) == 10)
            rehearsed = pool.submit(service.forget, receipts[1:2], ada, dry_run="true")
            eventually(lambda: len(writer) == 11)
            assert [job.client for job in writer.waiting("ada")] == ["ada"]
        finally:
            gate.set()
        assert (forgotten.result().status_code, rehearsed.result().status_code) == (202, 200)
        assert {each.result().status_code for each in waiting} == {201}
        done = [row.client for row in reversed(service.service.opened().ledger.requests(9))]
        assert done == ["eve", "bob", "cleo", "dora", "fay", "ada", "bob", "cleo", "dora"]
        assert not any(share._held for share in (*writer._learning, *writer._others))


def test_one_key_has_a_share_of_the_predictions_that_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = replace(QUICK, predict_waiting=8)
    with running(tmp_path / "s", settings) as service, ThreadPoolExecutor(8) as pool:
        service.learn(range(40))
        service.client.post("/v1/publish", headers=service.admin)
        predictor, gate, order = service.service.predictor, threading.Event(), list[str]()
        real = predictor._outcomes

        def outcomes(jobs: list[Any]) -> Any:
            assert gate.wait(120)
            order.extend(job.client for job in jobs)
            return real(jobs)

        monkeypatch.setattr(predictor, "_outcomes", outcomes)
        monkeypatch.setattr(predictor, "_together", 1)
        eve, ada = key(service, "eve", "predict"), key(service, "ada", "predict")

        def predict(headers: dict[str, str], count: int = 1) -> httpx.Response:
            body = {"samples": [{"features": row.tolist()} for row in ROWS[:count]]}
            return service.client.post("/v1/predict", json=body, headers=headers, timeout=120)

        try:
            asked = [pool.submit(predict, eve)]
            eventually(lambda: bool(predictor._begun))
            for count in (1, 2):
                asked.append(pool.submit(predict, eve))
                eventually(lambda count=count: len(predictor._jobs) == count)  # type: ignore[misc]
            refused = predict(eve)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "busy")
            asked.append(pool.submit(predict, ada))
            eventually(lambda: len(predictor._jobs) == 3)
        finally:
            gate.set()
        assert {each.result().status_code for each in asked} == {200}
        assert order == ["eve", "ada", "eve", "eve"]  # who had least comes first
        assert predict(ada, 5).status_code == 200  # more than a share, which counts as one
        assert not predictor._room._held


@pytest.mark.parametrize("dry_run", ["false", "true"])
def test_small_requests_that_take_long_are_no_turn_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dry_run: str
) -> None:
    """Of a sample with 100,000 equal ones, each forget took seconds; who came after 200 of them waited for all."""
    asked, plain = list[int](), Store.forgetting
    with running(tmp_path / "s", QUICK) as service, ThreadPoolExecutor(8) as pool:
        eve, ada = key(service, "eve", "forget"), key(service, "ada", "learn")
        writer, wait = service.service.writer, [threading.Event() for _ in range(6)]

        def slow(self: Store, *given: Any, **named: Any) -> Any:
            asked.append(len(asked))
            assert wait[asked[-1]].wait(120)
            return plain(self, *given, **named)

        monkeypatch.setattr(Store, "forgetting", slow)
        body, query = {"samples": samples([0], ids=False)}, {"dry_run": dry_run}
        gate = hold(writer)
        late = [pool.submit(service.client.post, "/v1/forget", json=body, headers=eve, params=query) for _ in range(6)]
        eventually(lambda: len(writer) == 7)
        gate.set()
        eventually(lambda: asked == [0])  # it has begun
        learned = pool.submit(service.client.post, "/v1/samples", json={"samples": samples([1])}, headers=ada)
        eventually(lambda: len(writer.waiting("ada")) == 1)
        wait[0].set()
        try:
            assert learned.result(60).status_code == 201
            assert len(asked) <= 2
        finally:
            for each in wait:
                each.set()
        assert {each.result().status_code for each in late} == {404}


def test_small_requests_that_take_long_do_not_always_come_next(tmp_path: Path) -> None:
    """A question among thousands of equal samples takes as long as learning a thousand, and counted as one sample."""
    with running(tmp_path / "s", QUICK) as service:
        service.learn(range(190), key(service, "ada", "learn"))
        writer = service.service.writer
        for _ in range(2):
            writer._charge([Job(ASK, "", "eve", None, 1, None)], 0.2)
        assert writer._jobs._usage.had_much_less("ada", "eve")


def test_one_bad_request_among_many_does_not_part_them_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits: list[int] = []
    plain = Store.commit

    def counted(self: Store, change: Any) -> None:
        plain(self, change)
        commits.append(len(change))

    monkeypatch.setattr(Store, "commit", counted)
    with store.open(new_store(tmp_path / "s"), backbone=BACKBONE, keys=KEYS) as made:

        def job(number: int, name: str) -> Job:
            payload = LearnSamples(made.prepare(ROWS[number : number + 1]), ["cat"], [name], None)
            return Job(LEARN, f"req_{number}", "ada", None, 1, payload)

        names = [f"s{number}" for number in range(40)]
        jobs = [job(number, name) for number, name in enumerate([*names, "s7", *names[:3]])]
        outcomes = list(apply(made, jobs))
        refused = [job.id for job, outcome in outcomes if isinstance(outcome, Refusal)]
        assert refused == ["req_40", "req_41", "req_42", "req_43"]
        assert commits == [40]


@pytest.mark.parametrize("owner", [None, "eve"])
def test_equal_samples_are_not_gone_through_once_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: str | None
) -> None:
    """10,000 equal samples, forgotten by their ids in one request, kept the writer busy for minutes."""
    read, plain = [0], LedgerHoldings.by_members

    class Tickets(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            for each in super().__iter__():
                read[0] += 1
                yield each

    def counted(self: LedgerHoldings, *given: Any) -> Any:
        return {name: found._replace(tickets=Tickets(found.tickets)) for name, found in plain(self, *given).items()}

    monkeypatch.setattr(LedgerHoldings, "by_members", counted)
    with running(tmp_path / "s", QUICK) as service:
        eve = bearer(token(service.folder, "eve", "learn", "forget", owner=owner))
        (equal,) = samples([0])
        body = {"samples": [equal | {"id": f"i{number}"} for number in range(100)]}
        assert service.client.post("/v1/samples", json=body, headers=eve).status_code == 201
        answer = service.client.post("/v1/forget", params={"dry_run": "true"}, json=body, headers=eve)
        assert answer.json()["effect"]["samples"] == 100
        assert service.client.post("/v1/forget", json=body, headers=eve).status_code == 202
        assert 100 <= read[0] <= 600


@pytest.mark.parametrize("kind", ["multipart/form-data", "application/json"])
def test_a_content_type_has_an_end(tmp_path: Path, kind: str) -> None:
    with running(tmp_path / "s") as service:
        headers = service.admin | {"Content-Type": kind + ";" * 60_000}
        answer = service.client.post("/v1/predict", content=b"{}", headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (415, "wrong_content_type")
