"""The promise: how many connections somebody has does not decide how long others wait for the event loop."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from neverseen.service.predicting import _Waiting
from neverseen.service.sharing.gate import Gate
from neverseen.service.sharing.limits import stranger
from neverseen.service.sharing.usage import Usage
from tests.services import running


def test_whoever_had_least_comes_next() -> None:
    async def story() -> list[str]:
        gate, order = Gate(), list[str]()

        async def request(client: str, cost: float = 1.0) -> None:
            await gate.enter(client, cost)
            order.append(client)

        many = [asyncio.create_task(request("eve", 8)) for _ in range(50)]
        await asyncio.sleep(0)  # the first of them is in, and the others wait
        one = asyncio.create_task(request("ada"))
        await asyncio.gather(*many, one)
        return order

    order = asyncio.run(story())
    assert order.count("eve") == 50
    assert order.index("ada") <= 2


def test_one_begins_in_each_round_and_nobody_waits_alone() -> None:
    async def story() -> None:
        gate = Gate()
        for _ in range(3):  # nobody else is there: no round goes by
            await asyncio.wait_for(gate.enter("ada", 1), 1)
            await asyncio.sleep(0)
        begun: list[int] = []

        async def request(number: int) -> None:
            await gate.enter("ada", 1)
            begun.append(number)

        tasks = [asyncio.create_task(request(number)) for number in range(4)]
        counts = []
        while len(begun) < 4:
            before = len(begun)
            await asyncio.sleep(0)
            counts.append(len(begun) - before)
        assert max(counts) == 1
        assert begun == [0, 1, 2, 3]
        await asyncio.gather(*tasks)

    asyncio.run(story())


def test_one_that_goes_away_leaves_no_trace() -> None:
    async def story() -> None:
        gate = Gate()
        await gate.enter("ada", 1)
        waiting = [asyncio.create_task(gate.enter("eve", 1)) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting[1]
        await asyncio.wait_for(asyncio.gather(waiting[0], waiting[2]), 5)
        assert gate._waiting == {}
        await asyncio.wait_for(gate.enter("ada", 1), 5)

    asyncio.run(story())


def test_what_was_long_ago_counts_little() -> None:
    now = [1e6]
    usage = Usage(lambda: now[0])
    usage.add("eve", 1000)
    now[0] += 20
    usage.add("ada", 1)
    assert usage.least(["ada", "eve"]) == "eve"
    for number in range(3000):
        usage.add(f"client {number}", 1)
    assert len(usage._had) <= 1000


def test_newcomers_save_nothing_up() -> None:
    usage = Usage(lambda: 0.0)
    for _ in range(50):
        usage.add("ada", 1)
    for newcomer in ("eve", "mallory"):  # each is served once, and then ada again
        assert usage.least(["ada", newcomer]) == newcomer
        usage.add(newcomer, 1)
        assert usage.least(["ada", newcomer]) == "ada"


def test_the_loop_waits_for_a_thread_that_serves_who_had_less() -> None:
    async def story() -> list[str]:
        served: list[str] = []
        gate, order = Gate(lambda: served), list[str]()
        for client in ["ada"] + ["eve"] * 8:
            await gate.enter(client, 1)
            await asyncio.sleep(0)

        async def request(client: str) -> None:
            await gate.enter(client, 1)
            order.append(client)

        served.append("ada")
        tasks = [asyncio.create_task(request("eve")) for _ in range(3)]
        for _ in range(20):
            await asyncio.sleep(0)
        order.append("still waiting")
        await request("ada")  # and ada is not held up by herself
        served.clear()
        await asyncio.gather(*tasks)
        return order

    assert asyncio.run(story()) == ["still waiting", "ada", "eve", "eve", "eve"]


def test_many_addresses_have_the_turns_of_one_key() -> None:
    async def story() -> int:
        gate, order = Gate(), list[str]()

        async def request(client: str) -> None:
            await gate.enter(client, 1)
            order.append(client)

        for _ in range(20):  # a key that is busy already
            await gate.enter("ada", 1)
            await asyncio.sleep(0)
        many = [asyncio.create_task(request(stranger(f"192.0.2.{number}"))) for number in range(200)]
        await asyncio.sleep(0)
        await asyncio.gather(request("ada"), *many)
        return order.index("ada")

    assert asyncio.run(story()) <= 2


def test_nobody_waits_for_a_large_prediction_or_an_old_one(tmp_path: Path) -> None:
    with running(tmp_path / "s") as service:
        service.learn(range(4))
        predictor, loop = service.service.predictor, asyncio.new_event_loop()

        async def asked(rows: int, since: float) -> list[str]:
            job = _Waiting([[0.0] * 6] * rows, loop.create_future(), since, "eve", 0)
            predictor._asked["eve"] = {job: None}
            found = predictor.served()
            del predictor._asked["eve"]
            return found

        now = time.monotonic()
        assert loop.run_until_complete(asked(1, now)) == ["eve"]
        assert loop.run_until_complete(asked(800, now)) == []
        assert loop.run_until_complete(asked(1, now - 1)) == []
        loop.close()
