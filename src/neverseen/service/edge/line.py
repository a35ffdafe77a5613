"""A line of what waits, in which clients take turns."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Line(Generic[Item]):
    """What waits, by client. Clients take turns, and what one client has waiting stays in order.

    So whoever has little to be done waits for one thing of each of the others, and not for all that they have waiting.
    Threads that share a line need a lock.

    Examples
    --------
    >>> line = Line()
    >>> for client, item in (("ada", 1), ("ada", 2), ("ada", 3), ("bob", 4)):
    ...     line.put(client, item)
    >>> line.first(), [line.take() for _ in range(len(line))]
    (1, [1, 4, 2, 3])
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Item]] = {}  # in the order of their turns
        self._count = 0

    def put(self, client: str, item: Item) -> None:
        """Add something, behind all that the client has waiting."""
        self._waiting.setdefault(client, deque()).append(item)
        self._count += 1

    def first(self) -> Item:
        """Return what is next, and leave it."""
        return next(iter(self._waiting.values()))[0]

    def take(self) -> Item:
        """Take what is next; its client's next turn comes after those of the others."""
        client = next(iter(self._waiting))
        items = self._waiting.pop(client)
        item = items.popleft()
        if items:
            self._waiting[client] = items
        self._count -= 1
        return item

    def of(self, client: str) -> list[Item]:
        """Return what a client has waiting."""
        return list(self._waiting.get(client, ()))

    def __iter__(self) -> Iterator[Item]:
        return (item for items in self._waiting.values() for item in items)

    def __len__(self) -> int:
        return self._count
