"""HTTP that costs its sender little: requests made beforehand, on connections that stay open, in a process of its own.

For `benchmarks.service`: what is measured is the service, and on two cores its clients should take as little of them
as they can. HTTP/1.1 with ``Content-Length`` is all that it knows.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from threading import Barrier
from typing import Any

_END = b"\r\n\r\n"
_POLL = 0.01


@dataclass(frozen=True)
class Answer:
    """What came back, and when: seconds of `time.perf_counter`."""

    status: int
    body: bytes
    began: float
    ended: float


def request_bytes(
    method: str, path: str, token: str, body: dict[str, Any] | None = None, key: str | None = None
) -> bytes:
    """Return the bytes of a request."""
    content = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {token}"]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
    if key is not None:
        lines.append(f"Idempotency-Key: {key}")
    return "\r\n".join(lines).encode() + _END + content


class Connection(asyncio.Protocol):
    """One connection, which takes requests from an iterator as long as there are any.

    Parameters
    ----------
    depth : int
        Requests that are under way at a time: with more than one, they are pipelined.
    """

    def __init__(self, depth: int = 1) -> None:
        self._depth = depth
        self._buffer = bytearray()
        self._under_way: deque[float] = deque()
        self._requests: Iterator[bytes] = iter(())
        self._answers: list[Answer] = []
        self._until = float("inf")
        self._done: asyncio.Future[list[Answer]] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way to send."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever waits."""
        if self._done is not None and not self._done.done():
            self._done.set_exception(exc or ConnectionError("the service closed a connection"))

    async def exchange(self, requests: Iterator[bytes], until: float = float("inf")) -> list[Answer]:
        """Send requests until there are no more, or until a time; return the answers."""
        self._requests, self._until, self._answers = requests, until, []
        self._done = asyncio.get_running_loop().create_future()
        for _ in range(self._depth):
            self._next()
        return await self._done

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.close()

    def _next(self) -> None:
        now = time.perf_counter()
        request = next(self._requests, None) if now < self._until else None
        if request is not None and self._transport is not None:
            self._under_way.append(now)
            self._transport.write(request)
        elif not self._under_way and self._done is not None and not self._done.done():
            self._done.set_result(self._answers)

    def data_received(self, data: bytes) -> None:
        """Take whatever answers are whole."""
        self._buffer += data
        while (head := self._buffer.find(_END)) >= 0:
            lines = bytes(self._buffer[:head]).lower().split(b"\r\n")
            sizes = [int(line[15:]) for line in lines if line.startswith(b"content-length:")]
            if not sizes:
                raise ConnectionError("the service answers without a content-length")
            end = head + len(_END) + sizes[0]
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[head + len(_END) : end])
            del self._buffer[:end]
            self._answers.append(Answer(int(lines[0][9:12]), body, self._under_way.popleft(), time.perf_counter()))
            self._next()


async def connect(port: int, count: int, depth: int = 1) -> list[Connection]:
    """Return connections that are open."""
    loop = asyncio.get_running_loop()
    made = [loop.create_connection(lambda: Connection(depth), "127.0.0.1", port) for _ in range(count)]
    return [protocol for _, protocol in await asyncio.gather(*made)]


async def exchange(
    connections: Sequence[Connection], requests: Iterable[bytes], seconds: float = float("inf")
) -> list[Answer]:
    """Send requests over connections, each as soon as one is free; return the answers."""
    shared, until = iter(requests), time.perf_counter() + seconds
    found = await asyncio.gather(*(connection.exchange(shared, until) for connection in connections))
    return [answer for answers in found for answer in answers]


def load(
    port: int,
    requests: Sequence[bytes],
    connections: int,
    seconds: float,
    repeat: bool = False,
    together: Barrier | None = None,
) -> dict[str, list[float]]:
    """Send requests for some seconds, or until there are no more; return when each began and ended.

    Loads with one barrier begin together. An answer that is an error ends it: the figures would mean nothing.
    """

    async def run() -> list[Answer]:
        opened = await connect(port, connections)
        await exchange(opened[:1], requests[:1] if repeat else [])  # the first call prepares
        if together is not None:
            together.wait()
        found = await exchange(opened, _again(requests) if repeat else requests, seconds)
        for connection in opened:
            connection.close()
        return found

    answers = sorted(asyncio.run(run()), key=lambda answer: answer.ended)
    _require_success(answers)
    return {"began": [answer.began for answer in answers], "ended": [answer.ended for answer in answers]}


def until_published(port: int, token: str, requests: Sequence[bytes], connections: int) -> dict[str, float]:
    """Send changes at once; return the seconds until all are acknowledged, and until all are published.

    And those that this process itself was busy until all were acknowledged.
    """

    async def run() -> dict[str, float]:
        opened = await connect(port, min(connections, len(requests)))
        began, own = time.perf_counter(), time.process_time()
        answers = await exchange(opened, requests)
        acknowledged, own = time.perf_counter(), time.process_time() - own
        _require_success(answers)
        # One writer applies in order: as a rule, the last to be acknowledged is the last to be published.
        answers.sort(key=lambda answer: answer.ended)
        published = acknowledged
        for answer in reversed(answers):
            ask = request_bytes("GET", f"/v1/requests/{json.loads(answer.body)['request']['id']}", token)
            asked, moment = await _when_published(opened[0], ask)
            if asked > 1 or answer is answers[-1]:  # the others are looked at later, and were published long before
                published = moment
        for connection in opened:
            connection.close()
        return {"acknowledged": acknowledged - began, "published": published - began, "sender_cpu": own}

    return asyncio.run(run())


async def _when_published(connection: Connection, ask: bytes) -> tuple[int, float]:
    """Return how often a request was asked after until it was published, and when that was answered."""
    asked = 0
    while True:
        (found,) = await exchange([connection], [ask])
        asked += 1
        _require_success([found])
        said = json.loads(found.body)
        if said.get("request", said)["state"] in ("published", "sealed"):
            return asked, found.ended
        await asyncio.sleep(_POLL)


def prepare() -> None:
    """Do nothing: whoever calls this has a process that has imported all it needs."""


def _again(requests: Sequence[bytes]) -> Iterator[bytes]:
    while True:
        yield from requests


def _require_success(answers: Sequence[Answer]) -> None:
    for answer in answers:
        if answer.status >= 300:
            raise RuntimeError(f"the service answered {answer.status}: {answer.body[:300]!r}")
