"""Receives the bodies of requests, within limits on size and speed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from starlette.requests import Request

from neverseen.service.errors import Refusal
from neverseen.service.operations.settings import Settings
from neverseen.service.reception.contents import JSON
from neverseen.service.reception.requests import header
from neverseen.service.sharing.shares import Shares

_DRAIN = 2**20  # bytes that are still read of a body that is refused, so that its sender sees the answer
_DRAIN_SECONDS = 1.0
_PUBLIC_SHARE = 8
_CONTENT_TYPE = 256  # characters
_CHARSETS = {"utf-8", "utf8"}


class Bodies:
    """Receives bodies within limits: on each body, on those of one client, and on all bodies in memory."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._room = Shares(settings.max_waiting_bytes)
        self._public_room = Shares(settings.max_waiting_bytes // _PUBLIC_SHARE)
        self._deadlines = Deadlines()

    @asynccontextmanager
    async def receiving(
        self, request: Request, client: str, most: int, public: bool = False, count: Callable[[int], None] | None = None
    ) -> AsyncIterator[bytearray]:
        """Yield the body of a request. It counts as held until the block ends.

        Parameters
        ----------
        client : str
            The sender, who has a share of the room.
        most : int
            The greatest number of bytes.
        public : bool
            Whether it comes without a key. Such bodies have separate room, so that they do not crowd out others.
        count : callable, optional
            Called with the number of bytes each time some arrive, even for a refused body.
        """
        settings = self._settings
        room = self._public_room if public else self._room
        content = bytearray()
        held = 0
        try:
            try:
                if (declared(request) or 0) > most:
                    raise too_large(most)
                pace = settings.body_rate * settings.body_pause
                due = pace
                with self._deadlines.within(settings.body_timeout, settings.body_pause) as go_on:
                    more = True
                    while more:
                        message = await request.receive()
                        if message["type"] == "http.disconnect":
                            raise Refusal("timeout", "the connection closed before the whole body arrived")
                        part, more = message.get("body", b""), message.get("more_body", False)
                        if count is not None:
                            count(len(part))
                        if held + len(part) > most:
                            raise too_large(most)
                        if not room.take(client, len(part)):
                            raise Refusal("busy", "the service is receiving too much: try again in a moment", wait=1)
                        held += len(part)
                        content += part
                        if held >= due:
                            due = held + pace
                            go_on()
            except TimeoutError:
                rate, time = f"{settings.body_rate:g} bytes a second", f"{settings.body_timeout:g} seconds"
                words = f"at least {rate}, and the whole in {time}"
                raise Refusal("timeout", f"the body arrived too slowly: send {words}") from None
            except Refusal as refusal:
                if refusal.code in ("too_large", "busy"):
                    await _drain(request, count)
                raise
            yield content  # later errors are not about how it arrived
        finally:
            room.give(client, held)


class Deadlines:
    """Cheap time limits for many tasks: one timer for all of them, up to a second late."""

    def __init__(self) -> None:
        self._until: dict[asyncio.Task[Any], float] = {}
        self._late: set[asyncio.Task[Any]] = set()
        self._looking = False

    @contextmanager
    def within(self, seconds: float, pause: float) -> Iterator[Callable[[], None]]:
        """Raise `TimeoutError` in a task that stays inside longer than this, or pauses too long.

        A pause is the time before the first call of the yielded function, and between two calls.
        """
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("this is for tasks")
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds

        def go_on() -> None:
            self._until[task] = min(end, loop.time() + pause)

        go_on()
        if not self._looking:
            self._looking = True
            loop.call_later(min(1.0, seconds, pause), self._look, loop)
        try:
            yield go_on
        except asyncio.CancelledError:
            if task in self._late and task.uncancel() <= 0:
                raise TimeoutError from None
            raise
        finally:
            del self._until[task]
            self._late.discard(task)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for task, until in self._until.items():
            if until <= now and task not in self._late:
                self._late.add(task)
                task.cancel()
        self._looking = bool(self._until)
        if self._looking:
            nearest = min(self._until.values())
            loop.call_later(min(1.0, max(0.01, nearest - now)), self._look, loop)


async def _drain(request: Request, count: Callable[[int], None] | None) -> None:
    """Read a little more, and drop it."""
    size = 0
    try:
        async with asyncio.timeout(_DRAIN_SECONDS):
            while size < _DRAIN:
                message = await request.receive()
                part = len(message.get("body", b""))
                size += part
                if count is not None:
                    count(part)
                if not message.get("more_body"):
                    return
    except TimeoutError:
        return


def declared(request: Request) -> int | None:
    """Return the declared size of a body in bytes; None if there is none."""
    length = header(request, b"content-length")
    if length is None:
        return None
    return int(length[:20]) if length.isascii() and length.isdigit() else 2**64  # no number: too many


def content_type(request: Request, *allowed: str) -> str:
    """Return the content type of a request, one of those allowed, or refuse it."""
    said = header(request, b"content-type") or ""
    if sum(name == b"content-type" for name, _ in request.scope["headers"]) > 1:
        raise Refusal("wrong_content_type", "send one Content-Type, not several")
    found = said.partition(";")[0].strip().lower()
    if len(said) > _CONTENT_TYPE:  # finding the boundary in a long header takes long
        raise Refusal("wrong_content_type", f"the content type is longer than {_CONTENT_TYPE} characters")
    if found not in allowed:
        raise Refusal("wrong_content_type", f"send the body as {' or '.join(allowed)}; got {found[:60] or 'nothing'!r}")
    codings = request.headers.getlist("content-encoding") if header(request, b"content-encoding") is not None else []
    if any(coding.strip().lower() not in ("", "identity") for coding in codings):
        raise Refusal("wrong_content_type", "send the body as it is, without a Content-Encoding")
    if found == JSON and ";" in said and not _CHARSETS.issuperset(_charsets(said)):
        raise Refusal("wrong_content_type", "send JSON in UTF-8, with no other charset")
    return found


def _charsets(content_type: str) -> set[str]:
    """Return the charsets that a content type names."""
    options = (option.partition("=") for option in content_type.lower().split(";")[1:])
    return {value.strip(' "') for name, _, value in options if name.strip() in ("charset", "charset*")}


def too_large(most: int) -> Refusal:
    """Return the refusal of a body that is too large."""
    return Refusal("too_large", f"the body is larger than {most} bytes: send it in parts")
