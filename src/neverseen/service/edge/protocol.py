"""The HTTP parser, with limits on everything before a body. The server itself has no limits."""

from __future__ import annotations

import asyncio
from collections import deque
from http import HTTPStatus
from typing import Any, cast

from httptools import HttpParserError, HttpParserUpgrade
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from neverseen.service.edge.connections import CUT, Connection
from neverseen.service.errors import Refusal
from neverseen.service.reception.requests import new_id

HEAD_BYTES, URL_BYTES = 2**16, 2**13
HEADERS = 200
"""Most header lines of a request, including those after its body."""
WAITING = 8
"""Most unanswered requests of a connection."""
_UNSENT = 2**16  # bytes of an answer that wait for the system to take them
_DROPPED = 2**18  # bytes that are taken of a body after its request was answered, so that its sender sees the answer
_SHORT = 2**12  # bytes of a write that waits for the next one
_CHUNKS, _CHUNK_BYTES = 1024, 256  # a body may come in so many pieces, and in more if they are not smaller than this


class _TooMuch(Exception):  # noqa: N818
    """Ends the parsing of the input at once."""


class _Flow(FlowControl):
    """Flow control that reads nothing from a client while `held`, even on request."""

    held = False

    def hold(self, held: bool) -> None:
        """Stop reading, or go on."""
        self.held = held
        (self.pause_reading if held else self.resume_reading)()

    def resume_reading(self) -> None:
        """Read on."""
        if not self.held:
            super().resume_reading()


class _Joining:
    """A transport that sends the head of an answer together with its body.

    Each write is a call of the system, and wakes the client, which would find half an answer. So a short write waits
    for the next one, until the event loop comes round.
    """

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop, self._held = transport, loop, b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send bytes, or hold them for a moment."""
        if self._held:
            data, self._held = self._held + data, b""
        elif len(data) <= _SHORT:
            self._held = data
            self._loop.call_soon(self.flush)
            return
        self._transport.write(data)

    def flush(self) -> None:
        """Send what is held."""
        held, self._held = self._held, b""
        if held and not self._transport.is_closing():
            self._transport.write(held)

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that are not sent yet."""
        return len(self._held) + int(self._transport.get_write_buffer_size())

    def close(self) -> None:
        """Send what is held, and close."""
        self.flush()
        self._transport.close()


class LimitedProtocol(HttpToolsProtocol):
    """A connection with limits on the head of a request, which reports when it is idle.

    If a client sends its next request before the last one is answered, the server stops reading until then. Otherwise
    the loop would spend its time receiving, and discarding, the requests of clients that do not wait.

    The system delivers up to 256 KiB at a time, and the server parses all of it in one go: thousands of requests,
    header lines or pieces of a body, while everybody else waits. So the parser stops when there are too many.

    Offers to change the protocol (``Upgrade``) are ignored. Otherwise the parser would skip the body of the request,
    and then take it for the next request.

    Attributes
    ----------
    connection : Connection or None
        The connection to keep informed. `neverseen.service.edge.connections` cuts those that wait too long.
    """

    connection: Connection | None = None
    _in_head = True
    _full = False
    _why = ""
    _unreported = _header_bytes = _header_lines = _chunks = _chunk_bytes = _dropped = 0

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._unanswered: deque[Any] = deque()  # requests, in order: a client need not wait for one to send the next

    @property
    def answering(self) -> bool:
        """Whether a request is not fully answered yet."""
        return bool(self._unanswered)

    def connection_made(self, transport: Any) -> None:
        """Begin."""
        super().connection_made(transport)
        self.flow: _Flow = _Flow(transport)
        self.transport = cast("asyncio.Transport", _Joining(transport, self.loop))
        transport.set_write_buffer_limits(_UNSENT)  # with TLS it would be 512 KiB: steps too large for slow clients
        if self.connection is not None:
            self.connection.cut, self.connection.unsent = transport.abort, self.transport.get_write_buffer_size
            self.connection.end = self._end

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        if self.connection is not None:
            self.connection.ended()
        super().connection_lost(exc)
        self.pipeline.clear()
        for cycle in self._unanswered:  # the base tells the last alone
            cycle.disconnected = True
            cycle.message_event.set()

    def data_received(self, data: bytes) -> None:
        """Receive bytes."""
        if self._full:
            return
        self._unset_keepalive_if_required()
        self._unreported += len(data)
        try:
            while data:
                data = self._parse(data)
        except HttpParserError:
            self.send_400_response("It is not HTTP/1.1.")
            return
        # The parser keeps a line until it ends, and copies it each time that more of it comes.
        if self._unreported > HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"A line of it has more than {HEAD_BYTES} bytes.")

    def send_400_response(self, msg: str) -> None:
        """Answer input that is not HTTP with an error in the common form, and close the connection.

        If earlier requests are still being carried out, the connection ends with their answers, and this answer is not
        sent: the client would take it for one of theirs.
        """
        if not self._full and (before := [each for each in self._unanswered if _is_whole(each)]):
            self._full, before[-1].keep_alive = True, False
        if self._full:
            return
        refusal = Refusal("invalid_request", f"the request cannot be understood: {self._why or msg}")
        self.transport.write(plainly(refusal, 400))
        self.transport.close()

    def on_message_begin(self) -> None:
        """Note that a head begins, unless too many requests wait: then the connection ends with their answers."""
        if len(self._unanswered) >= WAITING:
            self._full, self.cycle.keep_alive = True, False
            raise _TooMuch
        super().on_message_begin()
        self._unreported = 0
        if self._unanswered:
            self.flow.hold(True)
        self._in_head = True
        self._header_bytes = self._header_lines = self._chunks = self._chunk_bytes = self._dropped = 0

    def on_url(self, url: bytes) -> None:
        """Receive the target of a request, or a part of it."""
        super().on_url(url)
        self._unreported = 0
        if len(self.url) > URL_BYTES:
            self._why = f"Its target has more than {URL_BYTES} bytes."
            raise _TooMuch
        if b"#" in url:  # what follows would be dropped, such as a query
            self._why = "Its target has a #: write it as %23."
            raise _TooMuch

    def on_header(self, name: bytes, value: bytes) -> None:
        """Receive a header line. One after the body counts, and is dropped: a token there would come too late."""
        self._unreported = 0
        self._header_bytes += len(name) + len(value)
        self._header_lines += 1
        if self._header_bytes > HEAD_BYTES:
            self._why = f"Its header lines have more than {HEAD_BYTES} bytes."
            raise _TooMuch
        if self._header_lines > HEADERS:
            self._why = f"It has more than {HEADERS} header lines."
            raise _TooMuch
        if self._in_head:
            super().on_header(name, value)

    def on_chunk_header(self) -> None:
        """Note that a piece of a body begins."""
        self._unreported = 0
        self._chunks += 1
        if self._chunks > _CHUNKS + self._chunk_bytes // _CHUNK_BYTES:
            self._why = f"Its body comes in too many chunks: make them at least {_CHUNK_BYTES} bytes large."
            raise _TooMuch

    def on_body(self, body: bytes) -> None:
        """Receive a part of a body."""
        self._unreported = 0
        self._chunk_bytes += len(body)
        super().on_body(body)
        if self.cycle.response_complete:
            self._dropped += len(body)
            if self._dropped > _DROPPED:
                self.transport.close()

    def on_headers_complete(self) -> None:
        """Note that a head has ended, and a body or work begins."""
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                self._why = "CONNECT is not supported."
                raise _TooMuch
            return  # it is parsed once more: see `_parse`
        self._in_head, self._unreported = False, 0
        self.scope[CUT] = self.transport.abort  # type: ignore[literal-required]
        super().on_headers_complete()
        self._unanswered.append(self.cycle)
        self._tell()

    def on_message_complete(self) -> None:
        """Note that a body has arrived."""
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        self._tell()

    def on_response_complete(self) -> None:
        """Note that an answer has ended, and wait for the next request."""
        self._unanswered.popleft()
        if not self.transport.is_closing():
            self.flow.hold(self._full or len(self._unanswered) > 1)  # of the last one, a part may still have to come
        super().on_response_complete()
        if self.connection is not None and not self._unanswered:
            self.connection.rests()
        self._tell()

    def pause_writing(self) -> None:
        """Note that the client does not read its answer."""
        super().pause_writing()
        if self.connection is not None:
            self.connection.stalls()

    def resume_writing(self) -> None:
        """Note that the client goes on."""
        super().resume_writing()
        self._tell()

    def _parse(self, data: bytes) -> bytes:
        """Parse bytes; return the rest after a request head from which an offer was removed."""
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade as stopped:
            version = self.parser.get_http_version().encode()
            lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
            lines += [b"%b: %b" % line for line in self.headers if line[0] != b"upgrade"]
            return b"\r\n".join([*lines, b"", b""]) + data[stopped.args[0] :]
        return b""

    def _tell(self) -> None:
        """Note the state of the first unanswered request."""
        if self.connection is None or not self._unanswered or self.flow.write_paused:
            return
        first = self._unanswered[0]
        if first.more_body:
            self.connection.receives(first.scope)
        else:
            self.connection.works(first.scope)

    def _end(self) -> None:
        """End the connection after the present answer. Requests behind it were not begun, and are not answered."""
        self._full = True
        if self._unanswered:
            self._unanswered[0].keep_alive = False
        else:
            self.transport.close()


def _is_whole(cycle: Any) -> bool:
    """Return whether a request will be answered, whatever follows it."""
    return not cycle.more_body or bool(cycle.response_started)


def plainly(refusal: Refusal, status: int | None = None) -> bytes:
    """Return a refusal as the bytes of an answer that closes the connection."""
    response = refusal.response(close=True)
    response.headers["X-Request-Id"] = new_id()
    wanted = HTTPStatus(response.status_code if status is None else status)
    headers = "".join(f"{name.decode()}: {value.decode()}\r\n" for name, value in response.raw_headers)
    return f"HTTP/1.1 {wanted.value} {wanted.phrase}\r\n{headers}\r\n".encode() + bytes(response.body)
