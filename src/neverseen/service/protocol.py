"""HTTP as it comes in, with limits on what comes before a body: the server itself has none."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from neverseen.service.contents import JSON
from neverseen.service.errors import Refusal

HEAD_BYTES = 2**16
HEAD_SECONDS = 20.0


class LimitedProtocol(HttpToolsProtocol):
    """A connection that is cut if the head of a request has no end, or does not come in time."""

    _in_head = False
    _head_bytes = 0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin: the first request must come soon."""
        super().connection_made(transport)
        self._in_head = True
        self._timer = self.loop.call_later(HEAD_SECONDS, self._too_late)

    def data_received(self, data: bytes) -> None:
        """Take in bytes."""
        super().data_received(data)
        if not self._in_head:
            return
        self._head_bytes += len(data)
        if self._head_bytes > HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too long.")
        elif self._timer is None:
            self._timer = self.loop.call_later(HEAD_SECONDS, self._too_late)

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, in the one shape of errors, and cut the connection."""
        refusal = Refusal("invalid_request", f"the request cannot be understood: {msg}")
        content = bytes(refusal.response().body)
        head = f"HTTP/1.1 400 Bad Request\r\ncontent-type: {JSON}\r\ncontent-length: {len(content)}\r\n"
        self.transport.write(head.encode() + b"connection: close\r\n\r\n" + content)
        self.transport.close()

    def on_message_begin(self) -> None:
        """Note that a head begins."""
        super().on_message_begin()
        self._in_head = True

    def on_headers_complete(self) -> None:
        """Note that a head has ended."""
        self._in_head, self._head_bytes = False, 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        super().connection_lost(exc)

    def _too_late(self) -> None:
        self._timer = None
        if self._in_head and not self.transport.is_closing():
            self.transport.close()
