"""`Reception`: receives the bodies of requests and reads them, and counts them while they are held."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

from starlette.requests import Request

from neverseen.backbones import Backbone
from neverseen.backbones.recipes import kind_of, reduction_of
from neverseen.service.operations.settings import Settings
from neverseen.service.reception import messages
from neverseen.service.reception.access import ApiKey
from neverseen.service.reception.bodies import Bodies, content_type
from neverseen.service.reception.callers import Callers
from neverseen.service.reception.contents import FORM, JSON, READERS, Bounds, Given, require_room
from neverseen.service.reception.requests import client_of, header
from neverseen.service.reception.workers import Workers
from neverseen.service.sharing.result_memory import ROWS, ResultMemory, share_of
from neverseen.service.sharing.shares import Shares
from neverseen.service.sharing.turns import Threads

_SMALL, _TINY = 2**15, 2**11  # bytes of a body that may be read at once, and of one that always is
_PARTS, _NUMBERS = 256, 4096  # strings, lists and objects, and values, of one that may: half a millisecond


def bounds_of(backbone: Backbone, settings: Settings, targets: dict[str, Any] | None = None) -> Bounds:
    """Return the limits for one body: samples of the kind that a backbone takes, within the operator's settings."""
    reduction = reduction_of(backbone)
    return Bounds(
        kind_of(backbone),
        backbone.n_features,
        settings.max_batch,
        settings.max_text,
        settings.max_image_bytes,
        settings.max_pixels,
        settings.max_request_pixels,
        None if reduction is None else reduction.configuration(),
        max(1, share_of(ROWS, settings.max_waiting_bytes) // (8 * backbone.n_features)),
        targets,
        0 if targets is None else settings.max_labels,
    )


class Reception:
    """Receives and reads bodies.

    Parameters
    ----------
    bounds : Bounds
        Limits on one body.
    results : ResultMemory
        Counts the rows of features in bodies.
    readers : Workers
        The processes that read large bodies and images.
    admitted : callable
        Waits until a body of so many bytes may be read on the event loop.
    """

    def __init__(
        self,
        settings: Settings,
        bounds: Bounds,
        callers: Callers,
        results: ResultMemory,
        readers: Workers,
        threads: Threads,
        admitted: Callable[[Request, int], Awaitable[None]],
    ) -> None:
        self._settings, self._bounds, self._callers, self._results = settings, bounds, callers, results
        self._readers, self._threads, self._admitted = readers, threads, admitted
        self._bodies = Bodies(settings)
        self._pixels = Shares(settings.max_waiting_pixels, settings.max_waiting_pixels // 2)

    @asynccontextmanager
    async def received(self, request: Request, action: str, key: ApiKey) -> AsyncIterator[tuple[bytearray, Given]]:
        """Yield a body to learn, predict or forget, and its content. Both count until the block ends."""
        settings, bounds = self._settings, self._bounds
        most = settings.max_body
        if content_type(request, JSON, FORM) == JSON:
            most = min(most, settings.max_json)
        self._callers.require_samples(key)  # refused before its body is read
        unpacked, rows, share = 0, 0, share_of(ROWS, settings.max_waiting_bytes)
        take = partial(self._results.take, request.scope, key.name, ROWS)

        def room(amount: int) -> bool:
            nonlocal unpacked, rows
            if bounds.kind != "images":
                rows = amount * (bounds.row_bytes if bounds.kind == "features" else 1)
                return take(min(rows, share))
            if not self._pixels.take(key.name, amount):
                return False
            unpacked += amount
            return True

        async with self.body(request, key, most) as content:
            try:
                given = await self._read(request, action, key, content, room)
                if action != "predict":  # its features wait for the writer, in a byte each
                    rows += len(given.samples) * bounds.n_features
                    require_room(take, min(rows, share))
                yield content, given
            finally:
                self._pixels.give(key.name, unpacked)
                self._results.give(request.scope, ROWS)

    def body(self, request: Request, key: ApiKey | None, most: int) -> AbstractAsyncContextManager[bytearray]:
        """Return a context that yields a body. Its bytes are counted against the key or the address, from now on."""
        count = self._callers.count_body(request, key, most)
        return self._bodies.receiving(request, client_of(request), most, key is None, count)

    async def _read(
        self, request: Request, action: str, key: ApiKey, content: bytearray, room: Callable[[int], bool]
    ) -> Given:
        kind = header(request, b"content-type") or ""
        await self._admitted(request, len(content))  # a body that a worker reads takes time too, and so does its answer
        labelled = self._bounds.targets is not None and action != "predict"  # each label takes longer than a class
        if self._bounds.kind != "images" and reads_fast(content, kind) and not (labelled and len(content) > _TINY):
            return READERS[action](bytes(content), kind, self._bounds, partial(require_room, room))
        about, parts = await self._readers.ask(key.name, {"action": action, "content_type": kind}, content, room)
        return await self._threads.do(client_of(request), messages.unpacked, about, parts)


def reads_fast(content: bytearray, content_type: str) -> bool:
    """Return whether a body can be read on the event loop: it is tiny, or has few values for its size."""
    if len(content) <= _TINY:
        return True
    if len(content) > _SMALL or not content_type.lower().startswith(JSON):
        return False
    # Each value has a byte at least, and a comma: in a short one, commas without values end the reading.
    few = len(content) <= 2 * _NUMBERS or content.count(b",") <= _NUMBERS
    return few and all(content.count(mark) <= _PARTS for mark in (b'"', b"[", b"{"))
