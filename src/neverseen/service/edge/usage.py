"""How much each client had lately, which decides whose turn it is."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable

_HALF = 1.0  # seconds after which what somebody had counts half
_REMEMBERED = 1000  # clients; of more, the one that had least is forgotten


class Usage:
    """How much of something each client had lately. Whoever had least comes first.

    So whoever asks for little is served next, however much of others' waits, and those who ask for much share alike.
    A newcomer is served at once, but saves nothing up: it counts as if it had had as much as the least of those who had
    something lately. Otherwise many new clients would come before whoever has asked for a little all the time.

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
        """Note that a client gets an amount, a number above 0.

        Kept is the logarithm of the sum of all amounts, each times ``2 ** (its time / _HALF)``: later ones weigh more,
        so that earlier ones need not be made smaller.
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
        """Return whether a client had less than half of what another one had."""
        return self._had.get(client, -math.inf) < self._had.get(other, -math.inf) - 1

    def least(self, clients: Iterable[str]) -> str:
        """Return the one of these, of which there is at least one, that had least; of equals the first."""
        return min(clients, key=lambda client: self._had.get(client, -math.inf))
