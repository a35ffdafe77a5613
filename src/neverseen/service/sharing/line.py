"""A queue in which the client with the least recent use comes next."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from neverseen.service.sharing.usage import Usage

Item = TypeVar("Item")


class Line(Generic[Item]):
    """Waiting items, by client. The items of one client stay in order.

    The client with the least recent use comes next (`neverseen.service.sharing.usage`). So a client with few items
    waits for the running work, and not for everything that others have waiting. Threads that share a line need a lock.
    `cost` returns the weight of an item.

    Examples
    --------
    >>> line = Line()
    >>> for client, item in (("ada", 1), ("ada", 2), ("ada", 3), ("bob", 4)):
    ...     line.put(client, item)
    >>> line.first(), [line.take() for _ in range(len(line))]
    (1, [1, 4, 2, 3])
    """

    def __init__(self, cost: Callable[[Item], float] = lambda item: 1.0) -> None:
        self._cost, self._usage = cost, Usage()
        self._waiting: dict[str, deque[Item]] = {}  # in the order of their turns, which counts among equals
        self._count = 0

    def put(self, client: str, item: Item) -> None:
        """Add an item, behind all others of the client."""
        self._waiting.setdefault(client, deque()).append(item)
        self._count += 1

    def first(self) -> Item:
        """Return the next item without removing it."""
        return self._waiting[self._usage.least(self._waiting)][0]

    def take(self) -> Item:
        """Remove and return the next item."""
        client = self._usage.least(self._waiting)
        items = self._waiting.pop(client)
        item = items.popleft()
        self._usage.add(client, max(1.0, self._cost(item)))
        if items:
            self._waiting[client] = items
        self._count -= 1
        return item

    def charge(self, client: str, amount: float) -> None:
        """Count more for a client's items than their cost: they were harder than it said."""
        self._usage.add(client, amount)

    def of(self, client: str) -> list[Item]:
        """Return the waiting items of a client."""
        return list(self._waiting.get(client, ()))

    def __iter__(self) -> Iterator[Item]:
        return (item for items in self._waiting.values() for item in items)

    def __len__(self) -> int:
        return self._count
