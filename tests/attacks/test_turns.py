"""Promise: nobody takes all turns where few can be served at a time, and no place is idle while somebody waits alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from neverseen.errors import InputError
from neverseen.service import KeyFile, Settings
from neverseen.service.errors import Refusal
from neverseen.service.reception.workers import Workers
from neverseen.service.sharing.limits import is_stranger, stranger
from neverseen.service.sharing.turns import Turns
from tests.services import bearer, running, token


class Waiting:
    """Requests that are served until they are told to end."""

    def __init__(self, turns: Turns) -> None:
        self.turns, self.served = turns, list[str]()
        self._tasks: dict[str, asyncio.Task[str]] = {}
        self._ends: dict[str, asyncio.Event] = {}

    async def come(self, *names: str) -> None:
        """Requests such as ``ada 1`` come, one after the other."""
        for name in names:
            self._ends[name] = asyncio.Event()
            self._tasks[name] = asyncio.ensure_future(self._serve(name))
            await asyncio.sleep(0)
        await self.settled()

    async def _serve(self, name: str) -> str:
        try:
            async with self.turns.turn(name.partition(" ")[0]):
                self.served.append(name)
                await self._ends[name].wait()
        except Refusal as refusal:
            return refusal.code
        return "done"

    async def end(self, name: str) -> str:
        self._ends[name].set()
        found = await self._tasks[name]
        await self.settled()
        return found

    async def leave(self, name: str) -> None:
        self._tasks[name].cancel()
        await self.settled()

    async def settled(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    def refused(self) -> list[str]:
        done = {name: task for name, task in self._tasks.items() if task.done() and not task.cancelled()}
        return [name for name, task in done.items() if task.result() == "busy"]


def test_a_client_that_is_alone_has_every_place() -> None:
    async def found() -> list[str]:
        waiting = Waiting(Turns(2, 8))
        await waiting.come(*(f"ada {number}" for number in range(10)))
        assert (waiting.served, waiting.refused()) == (["ada 0", "ada 1"], [])
        for number in range(10):
            assert await waiting.end(f"ada {number}") == "done"
        return waiting.served

    assert asyncio.run(found()) == [f"ada {number}" for number in range(10)]


def test_who_asks_as_well_is_next_and_keeps_a_place() -> None:
    async def found() -> list[str]:
        now = [0.0]
        waiting = Waiting(Turns(2, 8, lambda: now[0]))
        await waiting.come(*(f"eve {number}" for number in range(6)), "ada 0")
        assert await waiting.end("eve 0") == "done"
        assert waiting.served == ["eve 0", "eve 1", "ada 0"]
        assert await waiting.end("ada 0") == "done"
        assert waiting.served[3:] == []  # ada asked just now: a place is kept for her
        await waiting.come("ada 1")
        assert waiting.served[3:] == ["ada 1"]
        assert await waiting.end("ada 1") == "done"
        now[0] += 11  # she has gone
        assert await waiting.end("eve 1") == "done"
        return waiting.served[4:]

    assert asyncio.run(found()) == ["eve 2", "eve 3"]


def test_a_full_queue_takes_a_client_that_has_less_in_it() -> None:
    async def found() -> list[str]:
        waiting = Waiting(Turns(1, 4))
        await waiting.come(*(f"eve {number}" for number in range(6)))
        assert waiting.refused() == ["eve 5"]
        await waiting.come("ada 0", "bob 0", "ada 1")
        assert waiting.refused() == ["eve 3", "eve 4", "eve 5", "ada 1"]
        for name in ("eve 0", "eve 1", "ada 0", "bob 0", "eve 2"):
            assert await waiting.end(name) == "done"
        return waiting.served

    assert asyncio.run(found()) == ["eve 0", "eve 1", "ada 0", "bob 0", "eve 2"]


def test_who_leaves_takes_no_place_along() -> None:
    async def found() -> list[str]:
        waiting = Waiting(Turns(1, 4))
        await waiting.come("eve 0", "eve 1", "ada 0", "bob 0")
        await waiting.leave("eve 1")  # while it waits
        waiting._ends["eve 0"].set()
        await waiting.leave("eve 0")  # while it is served
        assert waiting.served == ["eve 0", "ada 0"]
        waiting._ends["ada 0"].set()
        await waiting._tasks["ada 0"]
        await waiting.leave("bob 0")
        await waiting.come("cleo 0")
        assert waiting.turns._waiting == {}
        return waiting.served

    assert asyncio.run(found())[-1] == "cleo 0"


def test_keys_come_before_strangers() -> None:
    async def found() -> list[str]:
        waiting = Waiting(Turns(1, 8))
        await waiting.come(*(f"@10.0.0.{number} 0" for number in range(12)))  # an address each
        assert len(waiting.refused()) == 7  # one is served, and half of the places are taken
        await waiting.come(*(f"{name} {number}" for name in ("ada", "bob", "cleo") for number in range(2)))
        assert not [name for name in waiting.refused() if not name.startswith("@")]
        await waiting.come("dan 0", "@10.0.0.9 1")
        assert [name for name in waiting.refused() if name.startswith("dan")] == []
        assert "@10.0.0.9 1" in waiting.refused()
        for _ in range(8):
            assert await waiting.end(waiting.served[-1]) == "done"
        return waiting.served

    served = asyncio.run(found())
    assert [name.partition(" ")[0] for name in served[1:8]] == ["ada", "bob", "cleo", "dan", "ada", "bob", "cleo"]
    assert all(name.startswith("@") for name in (served[0], *served[8:]))


def test_strangers_leave_a_place_to_keys_and_keep_none_from_them() -> None:
    async def found() -> list[str]:
        waiting = Waiting(Turns(4, 8))
        await waiting.come(*(f"@10.0.0.{number} 0" for number in range(5)))
        assert len(waiting.served) == 3
        await waiting.come("ada 0")
        for name in waiting.served[:3]:
            await waiting.come(f"ada {name}")
            assert await waiting.end(name) == "done"
        return waiting.served

    assert [name.partition(" ")[0] for name in asyncio.run(found())[3:]] == ["ada"] * 4  # all places are hers


def test_a_key_that_is_called_like_an_address_shares_nothing_with_it() -> None:
    assert is_stranger(stranger("10.0.0.1"))
    assert stranger("10.0.0.1") != "10.0.0.1"
    with pytest.raises(InputError, match="a key's name"):
        KeyFile(Path()).add(stranger("10.0.0.1"), ["learn"])


def test_who_is_refused_and_leaves_in_one_moment_frees_no_place() -> None:
    async def found() -> list[str]:
        waiting = Waiting(Turns(1, 2))
        await waiting.come("eve 0", "eve 1", "eve 2")
        ada = asyncio.ensure_future(waiting.come("ada 0"))
        while not waiting._tasks.get("ada 0"):
            await asyncio.sleep(0)
        await asyncio.sleep(0)  # now "eve 2" is refused, and has not run yet
        await waiting.leave("eve 2")
        assert waiting._tasks["eve 2"].cancelled()
        await ada
        return waiting.served

    assert asyncio.run(found()) == ["eve 0"]


def test_a_key_is_a_client_wherever_it_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many keys behind one proxy are many clients, and share neither places nor limits."""
    asked: list[str] = []
    ask = Workers.ask

    async def noted(workers: Workers, client: str, *given: Any) -> Any:
        asked.append(client)
        return await ask(workers, client, *given)

    with running(tmp_path / "s", Settings(public_per_second=1e-6, public_burst=3, quiet=0, max_delay=0)) as service:
        monkeypatch.setattr(Workers, "ask", noted)
        keys = [bearer(token(service.folder, name, "predict")) for name in ("ada", "bob")]
        for headers in keys:  # the service looks for keys that it does not know yet where one is needed
            assert service.client.get("/v1/model", headers=headers).status_code == 200
        for headers in keys * 4:
            assert service.client.get("/v1/certificates", headers=headers).status_code == 200
        assert asked == ["ada", "bob"] * 4
        assert service.client.get("/v1/certificates").status_code == 200
        assert asked[-1] == "@127.0.0.1"  # what no key is called
