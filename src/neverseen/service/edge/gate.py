"""`Gate`: in which order requests get the event loop.

The loop does one thing at a time, and every open connection may bring it work. How many connections somebody has must
not decide how long others wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

from neverseen.service.edge.usage import Usage


class Gate:
    """Lets one request begin in each round of the event loop: that of the client who had least of it lately.

    Whoever asks for little is let in next, however many requests of others wait. While nobody waits, nobody is held up.
    """

    def __init__(self) -> None:
        self._usage = Usage()
        self._closed = False
        self._waiting: dict[str, deque[tuple[asyncio.Future[None], float]]] = {}  # with what each costs

    async def enter(self, client: str, cost: float) -> None:
        """Wait until a client's request may begin, or go on, with something that takes the loop's time.

        Parameters
        ----------
        client : str
        cost : float
            What it is likely to take, in any unit.
        """
        loop = asyncio.get_running_loop()
        if not self._closed:
            self._begin(loop, client, cost)
            return
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.setdefault(client, deque()).append((turn, cost))
        try:
            await turn
        except asyncio.CancelledError:
            with suppress(KeyError, ValueError):  # it may have come at the same moment
                self._waiting[client].remove((turn, cost))
                if not self._waiting[client]:
                    del self._waiting[client]
            raise

    def _begin(self, loop: asyncio.AbstractEventLoop, client: str, cost: float) -> None:
        """Close the gate until what begins now has run as far as it can."""
        self._usage.add(client, cost)
        self._closed = True
        loop.call_soon(self._open, loop)

    def _open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let the next one in."""
        self._closed = False
        while self._waiting:
            client = self._usage.least(self._waiting)
            turns = self._waiting[client]
            turn, cost = turns.popleft()
            if not turns:
                del self._waiting[client]
            if not turn.done():
                turn.set_result(None)  # it runs in the next round, and then the gate opens again
                self._begin(loop, client, cost)
                return
