"""Threads beside the event loop; clients take turns at them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

from neverseen.service.edge.errors import Refusal
from neverseen.service.edge.turns import Turns

Result = TypeVar("Result")
_FEW = 256  # samples or receipts that are looked at while everybody waits


class Threads:
    """Threads that do what takes long. Clients take turns, and so many requests may wait: see `Turns`.

    A network or a database may never answer. Python waits for the threads of its own pools before it exits, for ever if
    need be; for these it does not.
    """

    def __init__(self, name: str, count: int, waiting: int) -> None:
        self._turns, self._count, self._stopped = Turns(count, waiting), count, False
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        for number in range(count):
            threading.Thread(target=self._run, name=f"{name}_{number}", daemon=True).start()

    async def do(self, client: str, work: Callable[..., Result], *arguments: Any) -> Result:
        """Do some work for a client when it is its turn."""
        async with self._turns.turn(client):
            if self._stopped:
                raise Refusal("stopping", "the service is stopping: try again in a moment", wait=5)
            done: Future[Result] = Future()
            self._work.put((done, lambda: work(*arguments)))
            return await asyncio.wrap_future(done)

    async def for_many(self, count: int, client: str, work: Callable[..., Result], *arguments: Any) -> Result:
        """Do work on so many samples: at once if they are few, and else in a thread."""
        return work(*arguments) if count <= _FEW else await self.do(client, work, *arguments)

    def stop(self) -> None:
        """Begin nothing more."""
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
