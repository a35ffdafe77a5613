"""The parts that every answer has: an id, safe headers, one form of errors, a count."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from typing import Any

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from neverseen.service.core import Service
from neverseen.service.edge.connections import CUT
from neverseen.service.errors import Refusal
from neverseen.service.operations.log import LOG
from neverseen.service.reception.requests import ANSWERED, KEY, new_id, note_sending

CSP = (
    "default-src 'self'; img-src 'self' blob: data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; "
    "object-src 'none'"
)
_HEADERS = [
    (b"content-security-policy", CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
]
_NO_STORE = (b"cache-control", b"no-store")
_HSTS = (b"strict-transport-security", b"max-age=31536000")
_AUDITED = {"POST"}
_QUERY_BYTES = 1024
_STOPPED = (
    "the service stops before this is answered. A change may have been carried out or not: send it again with the same "
    "idempotency key"
)
_PIECE = 2**15  # bytes
Handler = Callable[[Request], Awaitable[Response]]


class Frame:
    """The outermost layer of the application.

    `direct` has the handlers of the busiest routes, by path. POST requests go straight to them: the framework would
    take longer than they do. `queries` has the query parameters of each path. Others are refused: a misspelt ``dryrun``
    must not cause a real change.
    """

    def __init__(
        self, app: ASGIApp, service: Service, direct: dict[str, Handler], queries: Mapping[str, set[str]]
    ) -> None:
        self._app, self._service, self._direct, self._queries = app, service, direct, queries

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await receive()
                await send({"type": "websocket.close", "code": 1000})
                return
            await self._app(scope, receive, send)
            return
        scope["neverseen.id"] = request_id = new_id()
        request = Request(scope, receive, send)
        ANSWERED.set(request)
        started = time.monotonic()
        status, took = 0, 0.0
        steady = self._steady(scope, receive, send)

        async def framed(message: Message) -> None:
            nonlocal status, took
            if message["type"] == "http.response.start":
                status, took = message["status"], time.monotonic() - started
                note_sending()
                message["headers"] = self._headers(scope, message["headers"], request_id)
            await steady(message)

        try:
            await self._service.admitted(request)
            if scope["method"] != "POST":
                self._service.callers.count_early(request)
            if scope["query_string"] and scope["path"].startswith("/v1/"):
                self._require_query(scope)
            direct = self._direct.get(scope["path"]) if scope["method"] == "POST" else None
            if direct is None:
                await self._app(scope, receive, framed)
            else:
                response = await direct(request)
                await response(scope, receive, framed)
        except Refusal as refusal:
            await self._refuse(scope, receive, framed, refusal)
        except asyncio.CancelledError:  # the server has waited for it long enough
            if status != 0:
                raise
            if (task := asyncio.current_task()) is not None:
                task.uncancel()
            await self._refuse(scope, receive, framed, Refusal("stopping", _STOPPED, wait=5))
        except Exception as error:
            LOG.error("request %s failed", request_id, exc_info=error)
            if status == 0:
                failure = Refusal("internal", f"the service failed: its log has the details under {request_id}")
                await self._refuse(scope, receive, framed, failure)
        finally:
            self._service.results.give(scope)
        name = scope["path"] if scope["path"] in self._direct else getattr(scope.get("route"), "path", "other")
        self._service.metrics.answered(name, status, took)

    def _steady(self, scope: Scope, receive: Receive, send: Send) -> Send:
        """Return a function that sends an answer in pieces, and disconnects a client that reads too slowly."""
        settings, sent, waited = self._service.settings, 0, 0.0

        async def steady(message: Message) -> None:
            nonlocal sent, waited
            for part in (message,) if len(message.get("body", b"")) <= _PIECE else _in_pieces(message):
                before = time.monotonic()
                await send(part)
                waited += time.monotonic() - before
                sent += len(part.get("body", b""))
                if waited > settings.idle_timeout + sent / settings.answer_rate and CUT in scope:
                    scope[CUT]()
                    while (await receive())["type"] != "http.disconnect":
                        continue  # a part of a body that nobody wants any more

        return steady

    def _require_query(self, scope: Scope) -> None:
        """Refuse a query that is long, or has parameters that its path does not know."""
        query, known = scope["query_string"], self._queries.get(scope["path"], set())
        if len(query) > _QUERY_BYTES or not set(QueryParams(query).keys()) <= known:
            self._service.callers.public(Request(scope))
            listed = ", ".join(sorted(known)) or "none"
            words = f"unknown query parameter, or more than {_QUERY_BYTES} bytes; known: {listed}"
            raise Refusal("invalid_request", words)

    def takes(self, scope: Scope) -> bool:
        """Return whether a request goes straight to its handler."""
        return scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in self._direct

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, refusal: Refusal) -> None:
        """Answer with an error. If the request could have changed something, or was denied, tell the audit log."""
        service = self._service
        if service.started and (scope["method"] in _AUDITED or refusal.status in (401, 403)):
            service.refusals.note(scope.get(KEY), self._action(scope), refusal.code, scope["neverseen.id"])
        await refusal.response(close=refusal.code in ("too_large", "timeout", "busy"))(scope, receive, send)

    def _action(self, scope: Scope) -> str:
        handler = self._direct.get(scope["path"])
        named = (
            getattr(scope.get("route"), "name", "other") if handler is None else getattr(handler, "__name__", "other")
        )
        return str(named)

    def _headers(
        self, scope: MutableMapping[str, Any], headers: list[tuple[bytes, bytes]], request_id: str
    ) -> list[tuple[bytes, bytes]]:
        framed = [*headers, *_HEADERS, (b"x-request-id", request_id.encode())]
        if b"cache-control" not in [name for name, _ in headers]:
            framed.append(_NO_STORE)
        if scope.get("scheme") == "https":
            framed.append(_HSTS)
        return framed


def _in_pieces(message: Message) -> Iterator[Message]:
    """Yield a large part of an answer in pieces.

    Before each piece, the server waits until the client has taken most of the previous ones. So a slow reader is
    noticed, and unread answers stay here, where they are counted.
    """
    body, more = message["body"], message.get("more_body", False)
    view = memoryview(body)
    for start in range(0, len(body), _PIECE):
        piece = bytes(view[start : start + _PIECE])
        yield {"type": message["type"], "body": piece, "more_body": more or start + _PIECE < len(body)}


def front(app: ASGIApp, frame: Frame) -> ASGIApp:
    """Return an application that passes the busiest routes to a frame, past the framework's own layers."""

    async def answered(scope: Scope, receive: Receive, send: Send) -> None:
        await (frame if frame.takes(scope) else app)(scope, receive, send)

    return answered
