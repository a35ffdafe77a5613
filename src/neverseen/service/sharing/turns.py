"""Turns: the order of clients when only a few can be served at a time."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from queue import SimpleQueue
from typing import Any, TypeVar

from neverseen.service.errors import Refusal
from neverseen.service.sharing.limits import is_stranger

Result = TypeVar("Result")
_LATELY = 10.0  # seconds
_FEW = 256  # samples or receipts that are looked at while everybody waits


class Turns:
    """Serves a few requests at a time. Clients take turns, and no place stays idle for an absent client.

    A single client may use every place. While others ask too, one place stays free for them, because a running request
    cannot be interrupted. When too many requests wait, the client with the most of them loses its newest one.

    Strangers come after all keys. Together they have at most half of the places to wait, and all but one of the places
    to be served. When too many wait, a stranger is refused before any key.

    Parameters
    ----------
    at_once : int
        Number of requests served at a time.
    waiting : int
        Number of requests that may wait; more are refused.
    clock : callable
        Seconds, from any start.
    """

    def __init__(self, at_once: int, waiting: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._at_once, self._most, self._clock = at_once, waiting, clock
        self._served: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # by client, in the order of their turns
        self._last = self._other = ("", -math.inf)  # who asked last, and who else did last; and when

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[None]:
        """Wait for a client's turn, which lasts until the block ends; refuse if too many wait."""
        if not is_stranger(client):
            if client != self._last[0]:
                self._other = self._last
            self._last = client, self._clock()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(turn)
        self._serve()
        self._require_few(client)
        try:
            await turn
            yield
        finally:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._end(client)
            else:
                self._leave(client, turn)

    def _may(self, client: str) -> bool:
        """Return whether a client may have one more place."""
        less = max(1, self._at_once - 1)
        if is_stranger(client):
            return sum(count for name, count in self._served.items() if is_stranger(name)) < less
        _, asked = self._other if client == self._last[0] else self._last
        return self._served[client] < (self._at_once if self._clock() - asked > _LATELY else less)

    def _serve(self) -> None:
        """Give places to the clients whose turn it is."""
        while self._served.total() < self._at_once:
            order = (name for last in (False, True) for name in self._waiting if is_stranger(name) == last)
            client = next(filter(self._may, order), None)
            if client is None:
                return
            turns = self._waiting.pop(client)
            turn = turns.popleft()
            if turns:
                self._waiting[client] = turns  # behind the others
            if not turn.done():
                self._served[client] += 1
                turn.set_result(None)

    def _end(self, client: str) -> None:
        self._served[client] -= 1
        self._served += Counter()  # without those that have none
        self._serve()

    def _leave(self, client: str, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(client, deque())
        with suppress(ValueError):
            turns.remove(turn)
        if not turns:
            self._waiting.pop(client, None)

    def _require_few(self, client: str) -> None:
        """If too many wait, refuse the newest request of the client with the most; of this client if it has as many."""
        counts = {name: len(turns) for name, turns in self._waiting.items()}
        strangers = {name: count for name, count in counts.items() if is_stranger(name)}
        if sum(counts.values()) <= self._most and sum(strangers.values()) <= (self._most + 1) // 2:
            return
        crowd = strangers or counts
        most = max(crowd, key=lambda name: (crowd[name], name == client))
        turn = self._waiting[most][-1]
        self._leave(most, turn)
        if not turn.done():
            words = "too many requests of this kind are waiting: try again in a moment"
            turn.set_exception(Refusal("busy", words, wait=1))


class Threads:
    """Threads for long work. Clients take turns, and a limited number of requests may wait: see `Turns`.

    A network or a database may never answer. Python would wait for threads of its own pools before it exits, even
    forever; it does not wait for these.
    """

    def __init__(self, name: str, count: int, waiting: int) -> None:
        self._turns, self._count, self._stopped = Turns(count, waiting), count, False
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        for number in range(count):
            threading.Thread(target=self._run, name=f"{name}_{number}", daemon=True).start()

    async def do(self, client: str, work: Callable[..., Result], *arguments: Any) -> Result:
        """Do some work for a client at its turn."""
        async with self._turns.turn(client):
            if self._stopped:
                raise Refusal("stopping", "the service is stopping: try again in a moment", wait=5)
            return await self._done(work, *arguments)

    async def for_many(self, count: int, client: str, work: Callable[..., Result], *arguments: Any) -> Result:
        """Do work on so many samples: at once if they are few, and else in a thread."""
        return work(*arguments) if count <= _FEW else await self.do(client, work, *arguments)

    async def for_made(self, count: int, work: Callable[..., Result], *arguments: Any) -> Result:
        """Do work on so many samples, as `for_many` does, whose change is made: whoever made it must be answered.

        It waits for no turn, and so is never refused. There is no more of it than was let through before the change.
        """
        return work(*arguments) if count <= _FEW or self._stopped else await self._done(work, *arguments)

    async def _done(self, work: Callable[..., Result], *arguments: Any) -> Result:
        done: Future[Result] = Future()
        self._work.put((done, lambda: work(*arguments)))
        return await asyncio.wrap_future(done)

    def stop(self) -> None:
        """Begin no more work."""
        self._stopped = True
        for _ in range(self._count):
            self._work.put(None)

    def _run(self) -> None:
        while (given := self._work.get()) is not None:
            done, work = given
            if self._stopped:
                done.cancel()
            if done.set_running_or_notify_cancel():
                try:
                    done.set_result(work())
                except BaseException as error:
                    done.set_exception(error)
            del given, done, work  # or it would be kept until there is more to do
