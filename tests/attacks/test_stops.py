"""The promise: a stop cuts off no answer that has begun, and ends when it says."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.services import Process, bearer, new_store, samples, token
from tests.waiting import eventually, pause

MANY = 2500


def request(path: str, secret: str, body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


def read_whole(client: socket.socket, first: bytes) -> tuple[int, bytes]:
    """Return the status of an answer and its body, as far as it comes."""
    got = bytearray(first)
    while part := client.recv(2**16):
        got += part
    head, _, body = bytes(got).partition(b"\r\n\r\n")
    (length,) = (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length"))
    assert len(body) == length
    return int(head.split()[1]), body


SLOW = """
import threading
from pathlib import Path
from neverseen.store import Store

def slow(*given):
    Path({mark!r}).touch()
    threading.Event().wait(1.5)
    return plain(*given)

plain, Store.commit = Store.commit, slow
"""


@pytest.mark.parametrize("when", ["while it is answered", "while it is learned"])
def test_who_is_slow_to_read_gets_the_receipts_of_what_was_learned(tmp_path: Path, when: str) -> None:
    folder, mark = new_store(tmp_path / "s"), tmp_path / "mark"
    secret = token(folder, "ada", "admin")
    process = Process(folder, "Settings(stop_timeout=3)", first=SLOW.format(mark=str(mark)))
    learned = [{"features": [row, 1, 0, 0, 0, 1], "label": "cat", "id": f"{'x' * 450}{row}"} for row in range(MANY)]
    try:
        with closing(socket.socket()) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.settimeout(60)
            client.connect(("127.0.0.1", process.port))
            client.sendall(request("/v1/samples", secret, {"samples": learned}))
            first = client.recv(1000) if when == "while it is answered" else b""
            eventually(mark.exists)
            process.process.send_signal(signal.SIGTERM)
            pause(5.0)
            status, body = read_whole(client, first)
        assert status == 201
        assert len(json.loads(body)["receipts"]) == MANY
        assert process.process.wait(60) == 0
    finally:
        process.stop(signal.SIGKILL)


HANGS = """
import threading
from pathlib import Path
from neverseen.model.versions import Version
from neverseen.store import Store

def hang(name):
    Path({folder!r}, name).touch()
    threading.Event().wait()

commit, scores = Store.commit, Version.scores
Store.commit = lambda self, change: hang("forgets") if change.kind == "forget" else commit(self, change)
Version.scores = lambda self, rows: hang("predicts") if len(rows) == 2 else scores(self, rows)
"""


def test_a_stop_has_one_deadline_whatever_hangs(tmp_path: Path) -> None:
    folder = new_store(tmp_path / "s")
    headers = bearer(token(folder, "ada", "admin"))
    settings = "Settings(stop_timeout=4, quiet=0, max_delay=0)"
    process = Process(folder, settings, first=HANGS.format(folder=str(tmp_path)))
    found: dict[str, str] = {}

    def send(path: str, body: dict[str, Any]) -> httpx.Response:
        return httpx.post(f"{process.url}/v1/{path}", json=body, headers=headers, timeout=60)

    def hang(path: str, body: dict[str, Any]) -> None:
        found[path] = send(path, body).json()["error"]["code"]

    try:
        receipts = send("samples", {"samples": samples(range(9))}).json()["receipts"]
        eventually(lambda: httpx.get(f"{process.url}/v1/model", headers=headers).json()["version"])
        rows = [{"features": sample["features"]} for sample in samples(range(2))]
        asked = {"predict": {"samples": rows}, "forget": {"receipts": receipts[:1]}}
        threads = [threading.Thread(target=hang, args=about) for about in asked.items()]
        for thread in threads:
            thread.start()
        for name in ("forgets", "predicts"):
            eventually((tmp_path / name).exists)
        began = time.monotonic()
        assert process.stop() == 0
        took = time.monotonic() - began
        for thread in threads:
            thread.join()
    finally:
        process.stop(signal.SIGKILL)
    assert found == {"predict": "stopping", "forget": "stopping"}
    assert 4 <= took < 12
