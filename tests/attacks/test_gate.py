"""The promise: how many connections somebody has does not decide how long others wait for the event loop."""

from __future__ import annotations

import asyncio

import pytest

from neverseen.service.edge.gate import Gate
from neverseen.service.edge.usage import Usage


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
