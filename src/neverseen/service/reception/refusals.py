"""Refusals in the audit log: few lines, however many there are."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

_Kind = tuple[str | None, str, str]


class Refusals:
    """Passes refusals to the audit log: the first of a kind at once, the others as one line with a count.

    No request waits for these lines, and each kind has at most one line in an interval. There are few kinds, because
    they do not depend on the content of a request. `write` takes a line, like `AuditLog.soon`.

    Examples
    --------
    >>> lines = []
    >>> refusals = Refusals(lines.append, 60)
    >>> for request in ("req_1", "req_2", "req_3"):
    ...     refusals.note("ada", "forget", "forbidden", request)
    >>> refusals.write()
    >>> [(line["outcome"], line.get("count")) for line in lines]
    [('forbidden', None), ('forbidden', 2)]
    """

    def __init__(self, write: Callable[[dict[str, Any]], None], seconds: float) -> None:
        self._write, self._seconds = write, seconds
        self._counts: Counter[_Kind] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def note(self, key: str | None, action: str, outcome: str, request: str) -> None:
        """Note a refused request: the name of its key, its action, the code, and its id."""
        kind = (key, action, outcome)
        if kind in self._counts:
            self._counts[kind] += 1
            return
        self._counts[kind] = 0
        self._write({"action": action, "key": key, "outcome": outcome, "request": request})
        if self._timer is None:
            try:
                self._timer = asyncio.get_running_loop().call_later(self._seconds, self._again)
            except RuntimeError:  # no loop: whoever stops the service writes the rest
                return

    def write(self) -> None:
        """Write the counts, and start again from zero."""
        for (key, action, outcome), count in self._counts.items():
            if count:
                self._write({"action": action, "count": count, "key": key, "outcome": outcome})
        self._counts.clear()

    def _again(self) -> None:
        self._timer = None
        self.write()
