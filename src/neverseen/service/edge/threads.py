"""Threads beside the event loop; clients take turns at them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from neverseen.service.edge.turns import Turns

Result = TypeVar("Result")
_FEW = 256  # samples or receipts that are looked at while everybody waits


class Threads:
    """Threads that do what takes long. Clients take turns, and so many requests may wait: see `Turns`."""

    def __init__(self, name: str, count: int, waiting: int) -> None:
        self._pool, self._turns = ThreadPoolExecutor(count, name), Turns(count, waiting)

    async def do(self, client: str, work: Callable[..., Result], *arguments: Any) -> Result:
        """Do some work for a client when it is its turn."""
        async with self._turns.turn(client):
            return await asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)

    async def for_many(self, count: int, client: str, work: Callable[..., Result], *arguments: Any) -> Result:
        """Do work on so many samples: at once if they are few, and else in a thread."""
        return work(*arguments) if count <= _FEW else await self.do(client, work, *arguments)

    def stop(self) -> None:
        """Begin nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)
