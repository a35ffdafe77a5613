"""Memory for the results of requests: rows of features, and answers until they are sent.

A small request can have a large result. Numbers of one digit become eight bytes each, and the answer to a few samples
can name thousands of long labels. The answers of a client that does not read stay in memory. So the service counts
these bytes, as it counts bodies, and refuses a request before it makes them where it can.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from neverseen.service.errors import Refusal
from neverseen.service.sharing.shares import Shares

ROWS, ANSWER = "rows", "answer"
_HELD = "neverseen.held"
_SMALL = 2**16
Scope = MutableMapping[str, Any]


def share_of(what: str, whole: int) -> int:
    """Return the bytes of rows, or of answers, that one key may hold, given those for all keys and both."""
    return max(1, whole // (4 if what == ROWS else 8))


class ResultMemory:
    """Counts the bytes of requests' results, by client; all together may hold `whole`.

    Rows and answers have a half each, so that the rows of a request never take the room of its own answer. Of the half
    for answers, a quarter is for those without a key.
    """

    def __init__(self, whole: int) -> None:
        self._rooms = {
            ROWS: Shares(whole // 2, share_of(ROWS, whole)),
            ANSWER: Shares(whole // 2 - whole // 8, share_of(ANSWER, whole)),
        }
        self._public = Shares(whole // 8, whole // 16)

    def held(self, what: str, client: str) -> int:
        """Return how many bytes of rows, or of answers, a key holds."""
        return self._rooms[what].held(client)

    def take(self, scope: Scope, client: str, what: str, size: int, public: bool = False) -> bool:
        """Count the rows of a request, or its answer, as so many bytes at least; return whether there was room."""
        held = scope.setdefault(_HELD, {})
        room, _, before = held.get(what, (self._public if public else self._rooms[what], client, 0))
        if size > before:
            if not room.take(client, size - before):
                return False
            held[what] = room, client, size
        return True

    def require_answer(self, scope: Scope, client: str, size: int, public: bool = False) -> None:
        """Take room for an answer, or refuse. A small one goes to the connection at once, and is not held here."""
        if size <= _SMALL:
            return
        share = (self._public if public else self._rooms[ANSWER]).share
        if size > share:
            words = f"the answer has up to {size} bytes, and a client may have at most {share} unread bytes"
            raise Refusal("too_large", f"{words} (max_waiting_bytes): ask for less at a time")
        if not self.take(scope, client, ANSWER, size, public):
            words = "too many bytes wait for this client to read them"
            raise Refusal("busy", f"{words}: read the answers, and try again in a moment", wait=1)

    def give(self, scope: Scope, *names: str) -> None:
        """Give room back, by default all that a request holds."""
        held = scope.get(_HELD, {})
        for name in names or list(held):
            if name in held:
                room, client, size = held.pop(name)
                room.give(client, size)
