"""The recent use of each client, which decides whose turn it is."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable

_HALF = 1.0  # seconds after which what somebody had counts half
_REMEMBERED = 1000  # clients; of more, the one that had least is forgotten


class Usage:
    """The recent use of something by each client. The client with the least use comes first.

    So a client that asks for little is served next, however much of others waits, and heavy clients share equally. A
    newcomer is served at once, but with no credit: it starts with the least use of the recent clients. Otherwise many
    new clients would come before a client that asks for a little all the time.

    Examples
    --------
    >>> usage = Usage(clock=lambda: 0.0)
    >>> usage.add("ada", 10)
    >>> usage.add("bob", 1)
    >>> usage.add("ada", 10)
    >>> usage.least(["ada", "bob"]), usage.least(["ada", "bob", "eve"])
    ('bob', 'eve')
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._had: dict[str, float] = {}

    def add(self, client: str, amount: float) -> None:
        """Add an amount, a number above 0, to the use of a client.

        It keeps the logarithm of the sum of all amounts, each times ``2 ** (its time / _HALF)``: later amounts weigh
        more, so earlier ones need not be reduced.
        """
        now, before = self._clock() / _HALF, self._had.get(client, -math.inf)
        if before < now:  # that is less than 1
            before = min((had for had in self._had.values() if had >= now), default=before)
        new = math.log2(amount) + now
        most = max(new, before)
        self._had[client] = most + math.log2(2.0 ** (new - most) + 2.0 ** (before - most))
        if len(self._had) > _REMEMBERED:
            del self._had[min(self._had, key=self._had.__getitem__)]

    def had_much_less(self, client: str, other: str) -> bool:
        """Return whether a client had less than half of the use of another."""
        return self._had.get(client, -math.inf) < self._had.get(other, -math.inf) - 1

    def least(self, clients: Iterable[str]) -> str:
        """Return the client with the least use, of one or more; among equals, the first."""
        return min(clients, key=lambda client: self._had.get(client, -math.inf))
