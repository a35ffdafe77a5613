"""Shares: how much of something all clients together, and each one, may hold at a time."""

from __future__ import annotations

import threading

_SHARE = 4


class Shares:
    """Counts what clients hold. No client may hold more than a share, so that nobody can take everything.

    All clients together may hold `whole`, and one may hold `share`, a quarter by default.

    Examples
    --------
    >>> shares = Shares(8)
    >>> shares.take("ada", 2), shares.take("ada", 1), shares.take("bob", 2)
    (True, False, True)
    >>> shares.give("ada", 2)
    >>> shares.take("ada", 1)
    True
    """

    def __init__(self, whole: int, share: int | None = None) -> None:
        self.whole = whole
        self.share = max(1, whole // _SHARE) if share is None else share
        self._lock = threading.Lock()
        self._held: dict[str, int] = {}
        self._sum = 0

    def take(self, name: str, amount: int) -> bool:
        """Take room; return whether there was enough."""
        with self._lock:
            held = self._held.get(name, 0) + amount
            if held > self.share or self._sum + amount > self.whole:
                return False
            self._held[name] = held
            self._sum += amount
            return True

    def give(self, name: str, amount: int) -> None:
        """Give room back."""
        with self._lock:
            self._sum -= amount
            left = self._held.get(name, 0) - amount
            if left > 0:
                self._held[name] = left
            else:
                self._held.pop(name, None)

    def held(self, name: str) -> int:
        """Return how much a client holds."""
        with self._lock:
            return self._held.get(name, 0)
