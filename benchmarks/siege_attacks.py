"""Hostile requests, each of which once stalled, filled or stopped the service: for `benchmarks.siege` and for tests.

Each is bounded in count and time, and goes to this machine alone.
"""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from functools import lru_cache
from typing import Any

BOUNDARY = b"siege"
JSON = "application/json"
_ANSWER = re.compile(rb"HTTP/1\.1 ([0-9]{3})")
FORM = f"multipart/form-data; boundary={BOUNDARY.decode()}"


# -- bodies ------------------------------------------------------------------------------------------


@lru_cache(maxsize=2)
def odd_certificate(keys: int) -> bytes:
    """Return a body that has a certificate checked which is none, with so many keys."""
    entries = ",".join(f'"{number:07d}":1' for number in range(keys))
    return b'{"certificate":{%s},"checks":["signature","chain","mine"],"receipt":"TlNSMQAB"}' % entries.encode()


@lru_cache(maxsize=2)
def long_certificate(commitments: int) -> bytes:
    """Return a body with a certificate that looks like one, with so many commitments."""
    state = {"statistics": "0" * 64, "model": "0" * 64, "samples": 1, "classes": 1}
    about = {
        "format": "neverseen-certificate-1",
        "number": 1,
        "time": "2026-01-31T12:00:00Z",
        "configuration": "0" * 64,
        "before": state,
        "after": state,
        "learned": 0,
        "forgotten": commitments,
        "commitments": [f"{number:064x}" for number in range(commitments)],
        "error_bound": (2.0**-41).hex(),
        "previous": None,
        "key": "0" * 64,
        "signature": "0" * 128,
    }
    return json.dumps({"certificate": about, "checks": ["signature", "chain"]}).encode()


@lru_cache(maxsize=2)
def many_samples(size: int) -> bytes:
    """Return a body of so many bytes that holds as many samples as fit, none of which is one."""
    sample = b'{"text":""}'
    return b'{"samples":[' + b",".join([sample] * (size // (len(sample) + 1))) + b"]}"


@lru_cache(maxsize=2)
def many_receipts(size: int) -> bytes:
    """Return a form of so many bytes with a file of as many receipts as fit."""
    line = b'{"receipt":"AA"}\n'
    return form((b"receipts", line * (size // len(line))))


def tiny_samples(samples: int, width: int, **fields: Any) -> bytes:
    """Return a body of small samples that are all the same."""
    sample = {"features": [0.1234] * width} | fields
    return json.dumps({"samples": [sample] * samples}, separators=(",", ":")).encode()


@lru_cache(maxsize=2)
def bomb(side: int) -> bytes:
    """Return a black image, one bit a pixel: a few kilobytes that take much room once they are unpacked."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    row = bytes(1 + (side + 7) // 8)
    packer = zlib.compressobj(9)
    pixels = b"".join([*(packer.compress(row) for _ in range(side)), packer.flush()])
    about = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", about) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def form(*files: tuple[bytes, bytes]) -> bytes:
    """Return a form with files, by the name of the field."""
    head = b'--%s\r\nContent-Disposition: form-data; name="%s"; filename="x"\r\n\r\n'
    parts = [head % (BOUNDARY, name) + content + b"\r\n" for name, content in files]
    return b"".join(parts) + b"--%s--\r\n" % BOUNDARY


# -- senders -----------------------------------------------------------------------------------------


def head(path: str, token: str, kind: str, length: int, close: bool = True) -> bytes:
    """Return the head of a request; without a token, of one that shows no key."""
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Type: {kind}", f"Content-Length: {length}"]
    if token:
        lines.append(f"Authorization: Bearer {token}")
    if close:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "", ""]).encode()


def post(port: int, path: str, token: str, body: bytes, kind: str = JSON, timeout: float = 120) -> int:
    """Send a body; return the status of the answer, or 0 if there was none."""
    answer = b""
    with closing(socket.create_connection(("127.0.0.1", port), timeout=timeout)) as connection:
        with suppress(OSError):  # it may be refused before it is all sent: the answer says why
            connection.sendall(head(path, token, kind, len(body)) + body)
        with suppress(OSError):
            while b"\r\n" not in answer and (part := connection.recv(2**16)):
                answer += part
    return int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0


def requests(path: str, token: str, bodies: Sequence[bytes]) -> bytes:
    """Return requests that follow each other on one connection."""
    return b"".join(head(path, token, JSON, len(body), close=False) + body for body in bodies)


def pipelined(port: int, sent: bytes, awaited: int, seconds: float) -> Counter[int]:
    """Send requests without waiting for answers, then read some answers, again and again on one connection.

    Parameters
    ----------
    port : int
    sent : bytes
        The requests that are sent at a time.
    awaited : int
        Answers to read before the requests are sent again; 0 to read nothing at all.
    seconds : float

    Returns
    -------
    Counter
        The statuses; 0 for each connection that was cut, -1 for one that never read anything and stayed open.
    """
    statuses: Counter[int] = Counter()
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        is_open, patience = True, 60 if awaited else left
        with suppress(TimeoutError), closing(socket.create_connection(("127.0.0.1", port), patience)) as connection:
            # Memory of the sender's system, which is that of the service here, and takes time to give back.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**16)
            while is_open and time.monotonic() < end:
                try:
                    connection.sendall(sent)
                except ConnectionError:
                    is_open = False
                with suppress(ConnectionError):  # what was answered before it was cut can still be read
                    is_open &= _counted(connection, awaited, statuses)
        if not is_open or not awaited:
            statuses[-1 if is_open else 0] += 1
    return statuses


def refused(port: int, seconds: float) -> Counter[int]:
    """Ask without a key, and send on after the answer, in small chunks; again when the connection is cut."""
    asked = b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    statuses: Counter[int] = Counter()
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        with suppress(OSError), closing(socket.create_connection(("127.0.0.1", port), timeout=left)) as connection:
            connection.sendall(asked)
            statuses[int(connection.recv(2**12)[9:12])] += 1
            while time.monotonic() < end:
                connection.sendall((b"40\r\n" + b" " * 64 + b"\r\n") * 2000)
    return statuses


def _counted(connection: socket.socket, awaited: int, statuses: Counter[int]) -> bool:
    """Count the statuses of so many answers; return whether the connection is still open."""
    rest = b""
    while awaited > 0:
        part = connection.recv(2**16)
        if not part:
            return False
        rest += part
        found = list(_ANSWER.finditer(rest))
        statuses.update(int(answer[1]) for answer in found)
        awaited -= len(found)
        rest = rest[found[-1].end() if found else 0 :][-12:]
    return True


def together(times: int, send: Callable[[int], int | Counter[int]]) -> Counter[int]:
    """Call a sender so many times at once; return how often each status came back."""
    statuses: Counter[int] = Counter()
    lock = threading.Lock()

    def one(place: int) -> None:
        try:
            found = send(place)
        except OSError:
            found = 0
        with lock:
            statuses.update([found] if isinstance(found, int) else found)

    threads = [threading.Thread(target=one, args=(place,), daemon=True) for place in range(times)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statuses


def trickle(port: int, token: str, bodies: int, length: int, sent: int, seconds: float) -> Counter[int]:
    """Begin bodies, send most of each at once and the rest a byte at a time; return the statuses that came back."""
    end = time.monotonic() + seconds
    statuses: Counter[int] = Counter()
    with ExitStack() as stack:
        opened: list[socket.socket] = []
        for _ in range(bodies):
            connection = stack.enter_context(closing(socket.create_connection(("127.0.0.1", port), timeout=10)))
            try:
                connection.sendall(head("/v1/forget", token, JSON, length) + b" " * sent)
                opened.append(connection)
            except OSError:
                statuses[0] += 1
        while opened and time.monotonic() < end:
            opened = [each for each in opened if _still_open(each, statuses)]
            time.sleep(0.2)
        statuses[-1] += len(opened)  # of which nothing was heard
    return +statuses


def _still_open(connection: socket.socket, statuses: Counter[int]) -> bool:
    connection.settimeout(0.01)
    try:
        connection.sendall(b" ")
    except TimeoutError:
        pass
    except OSError:
        statuses[_status(connection)] += 1
        return False
    try:
        answer = connection.recv(2**16)
    except TimeoutError:
        return True
    except OSError:
        answer = b""
    statuses[int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0] += 1
    return False


def _status(connection: socket.socket) -> int:
    try:
        answer = connection.recv(2**16)
    except OSError:
        return 0
    return int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0


def idle(port: int, sockets: int, seconds: float) -> Counter[int]:
    """Open connections and say nothing; return how many were opened (1) and refused (0)."""
    statuses: Counter[int] = Counter()
    with ExitStack() as stack:
        for _ in range(sockets):
            try:
                stack.enter_context(closing(socket.create_connection(("127.0.0.1", port), timeout=5)))
                statuses[1] += 1
            except OSError:
                statuses[0] += 1
        time.sleep(seconds)
    return statuses


def repeated(port: int, path: str, tokens: Sequence[str], times: int) -> Counter[int]:
    """Send a small request again and again over a few connections; return the statuses."""

    def some(place: int) -> Counter[int]:
        token = tokens[place % len(tokens)]
        return Counter(post(port, path, token, b"{}", timeout=30) for _ in range(times // 6))

    return together(6, some)
