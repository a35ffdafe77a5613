"""Waiting in tests: until something is so, with a limit. Nothing else in a test sleeps."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable
from typing import Any, TypeVar

Found = TypeVar("Found")
_STEP = 0.005  # seconds


def eventually(
    found: Callable[[], Found | None],
    words: str = "it does not come about",
    seconds: float = 120,
    rest: Callable[[float], object] = time.sleep,
) -> Found:
    """Wait until something is found, and return it; `rest` lets a moment pass."""
    end = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < end, words
        rest(_STEP)
    return value


def on_page(page: Any, found: Callable[[], Found | None], seconds: float = 60) -> Found:
    """Wait until something is found; what a page asks for is answered meanwhile."""
    return eventually(found, seconds=seconds, rest=lambda moment: page.wait_for_timeout(1000 * moment))


async def in_loop(found: Callable[[], Found | None], seconds: float = 120) -> Found:
    """Wait until something is found; the event loop goes on meanwhile."""
    async with asyncio.timeout(seconds):
        while not (value := found()):
            await asyncio.sleep(_STEP)
    return value


def pause(seconds: float) -> None:
    """Take one's time, as a slow client does. Whoever waits for something uses `eventually`."""
    time.sleep(seconds)


class _Ahead(selectors.DefaultSelector):
    """Waits for nothing, and notes how long it would have waited."""

    seconds = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.seconds += timeout or 0.0
        return super().select(0)


class HurriedLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock runs ahead to what is due next: for work that waits for the clock alone."""

    def __init__(self) -> None:
        self._ahead = _Ahead()
        super().__init__(self._ahead)

    def time(self) -> float:
        return super().time() + self._ahead.seconds
