"""`Gate`: the order in which requests use the event loop.

The loop does one thing at a time, and every open connection may bring it work. A client with many connections must not
make others wait longer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from neverseen.service.sharing.limits import is_stranger
from neverseen.service.sharing.usage import Usage

_LOOK = 0.001  # seconds until it is seen that those who had less are served


STRANGERS = ""
"""One name for all clients without a key. No key has this name."""


@dataclass(slots=True, eq=False)
class _Turn:
    begins: asyncio.Future[None]
    cost: float
    task: asyncio.Task[Any] | None


class Gate:
    """Lets one request begin in each round of the event loop: that of the client with the least use lately.

    So a client with few requests comes next, however many requests of others wait. If nobody waits, nobody is delayed.

    Python runs one thread at a time, so a busy event loop slows down the threads that predict, and the requests that
    they serve. So a client also waits while a thread works for a client with much less use.

    Parameters
    ----------
    served : callable
        Returns the clients for whom a thread has just begun work, or is about to.
    """

    def __init__(self, served: Callable[[], Iterable[str]] = tuple) -> None:
        self._served, self._usage, self._strangers = served, Usage(), Usage()
        self._closed = False
        self._begun: asyncio.Task[Any] | None = None  # what began in this round
        self._waiting: dict[str, dict[str, deque[_Turn]]] = {}  # by key or STRANGERS, then by key or address

    async def enter(self, client: str, cost: float) -> bool:
        """Wait until a client's request may begin, or continue, work on the event loop; return whether it had to wait.

        One that has begun in this round, and not waited for anything since, continues.

        Parameters
        ----------
        client : str
            The name of a key, or a stranger. All strangers together count as one key, because addresses are cheap.
        cost : float
            The expected work, in any unit.
        """
        loop, group = asyncio.get_running_loop(), STRANGERS if is_stranger(client) else client
        if self._begun is not None and self._begun is asyncio.current_task():
            self._count(group, client, cost)
            return False
        if not self._closed and not self._gives_way(loop, group):
            self._begin(loop, group, client, cost, asyncio.current_task())
            return False
        turn = _Turn(loop.create_future(), cost, asyncio.current_task())
        self._waiting.setdefault(group, {}).setdefault(client, deque()).append(turn)
        try:
            await turn.begins
        except asyncio.CancelledError:
            with suppress(KeyError, ValueError):  # it may have come at the same moment
                self._waiting[group][client].remove(turn)
                self._tidy(group, client)
            raise
        return True

    def _count(self, group: str, client: str, cost: float) -> None:
        self._usage.add(group, cost)
        if group == STRANGERS:
            self._strangers.add(client, cost)

    def _begin(
        self,
        loop: asyncio.AbstractEventLoop,
        group: str,
        client: str,
        cost: float,
        task: asyncio.Task[Any] | None,
    ) -> None:
        """Close the gate until the request that begins now has run as far as it can."""
        self._count(group, client, cost)
        self._closed, self._begun = True, task
        loop.call_soon(self._open, loop)

    def _gives_way(self, loop: asyncio.AbstractEventLoop, group: str) -> bool:
        """Return whether a client must wait while a thread works for another; if so, close the gate for a moment.

        This client had the least use of all that wait, so the others would have to wait too.
        """
        if not any(self._usage.had_much_less(other, group) for other in self._served()):
            return False
        self._closed = True
        loop.call_later(_LOOK, self._open, loop)
        return True

    def _open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let the next request begin."""
        self._closed, self._begun = False, None
        while self._waiting:
            group = self._usage.least(self._waiting)
            if self._gives_way(loop, group):
                return
            client = self._strangers.least(self._waiting[group])
            turn = self._waiting[group][client].popleft()
            self._tidy(group, client)
            if not turn.begins.done():
                turn.begins.set_result(None)  # it runs in the next round, and then the gate opens again
                self._begin(loop, group, client, turn.cost, turn.task)
                return

    def _tidy(self, group: str, client: str) -> None:
        if not self._waiting[group][client]:
            del self._waiting[group][client]
        if not self._waiting[group]:
            del self._waiting[group]
