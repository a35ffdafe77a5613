"""A service as a process: it stops gracefully, loses nothing to a kill, and speaks TLS."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from cryptography.hazmat.primitives import serialization

from neverseen import StoreLockedError, store
from neverseen.errors import ConfigurationError
from neverseen.proof.certificates import check_chain
from neverseen.service import Settings, audit_key, check_audit, serve
from neverseen.service.core import Service
from neverseen.service.edge import server as server_module
from neverseen.service.edge.connections import Connections
from neverseen.service.edge.server import Server, require_tls
from tests.services import BACKBONE, KEYS, Process, bearer, never, new_store, running, samples, token
from tests.tls import certificate
from tests.waiting import eventually, in_loop


def digest_of(folder: Path) -> str:
    with store.open(folder, backbone=BACKBONE, keys=KEYS, hardware="numpy") as opened:  # the lock is free again
        check_chain(opened.certificates(), opened.description.public_key)
        return opened.digest()


def test_a_kill_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    folder = new_store(tmp_path / "s")
    headers = bearer(token(folder, "shop", "admin"))
    process = Process(folder, "Settings(quiet=10**6, max_delay=10**6)")
    try:
        with httpx.Client(base_url=process.url, headers=headers, timeout=30) as client:
            learned = client.post("/v1/samples", json={"samples": samples(range(60))}).json()["receipts"]
            acknowledged: list[int] = []
            started = threading.Event()

            def forget_all() -> None:
                for row in range(60):
                    try:
                        body = {"receipts": [learned[row]]}
                        answer = client.post("/v1/forget", json=body, headers={"Idempotency-Key": f"k{row}"})
                    except httpx.HTTPError:
                        return
                    if answer.status_code == 202:
                        acknowledged.append(row)
                    if row == 5:
                        started.set()

            thread = threading.Thread(target=forget_all)
            thread.start()
            assert started.wait(30)
            assert process.stop(signal.SIGKILL) == -signal.SIGKILL
            thread.join(30)
    finally:
        process.stop(signal.SIGKILL)
    assert 6 <= len(acknowledged) < 60
    with running(folder, Settings(quiet=0, max_delay=0.2)) as again:
        for row in acknowledged:  # repeated: answered, and done once
            answer = again.forget([learned[row]], headers | {"Idempotency-Key": f"k{row}"})
            assert answer.status_code == 202

        def published() -> dict[str, Any] | None:
            model: dict[str, Any] = again.client.get("/v1/model", headers=again.admin).json()
            return model if model["version"] and not model["unpublished"] else None

        held = eventually(published, "what was left unpublished is not published")["samples"]
    gone = 60 - held
    assert gone in (len(acknowledged), len(acknowledged) + 1)  # one may have been on disk, and its answer not sent
    assert digest_of(folder) == never(range(gone, 60))
    with store.open(folder, write=False) as opened:
        check_audit(folder / "service", audit_key(KEYS), opened.certificates(), opened.audit_head)


def test_tls_and_a_graceful_stop_that_finishes_what_waits(tmp_path: Path) -> None:
    folder = new_store(tmp_path / "s")
    headers = bearer(token(folder, "shop", "admin"))
    cert, key = certificate(tmp_path)
    process = Process(folder, "Settings(quiet=0.0, max_delay=0.0)", cert, key)
    trusting = ssl.create_default_context(cafile=str(cert))
    try:
        with httpx.Client(base_url=process.url, headers=headers, timeout=30, verify=trusting) as client:
            ready = client.get("/readyz")
            assert ready.status_code == 200
            assert ready.headers["strict-transport-security"].startswith("max-age=")
            with pytest.raises(httpx.ConnectError):
                httpx.get(f"{process.url}/readyz")  # a client that does not trust the certificate
            with pytest.raises(httpx.HTTPError):
                httpx.get(process.url.replace("https", "http") + "/readyz")
            learned = client.post("/v1/samples", json={"samples": samples(range(40))}).json()["receipts"]
            found: list[int] = []

            def forget(row: int) -> None:
                try:
                    answer = client.post("/v1/forget", json={"receipts": [learned[row]]})
                except httpx.HTTPError:
                    return
                if answer.status_code == 202:
                    found.append(row)

            threads = [threading.Thread(target=forget, args=(row,)) for row in range(20)]
            for thread in threads:
                thread.start()
            eventually(lambda: found)  # some are done, and others under way
            assert process.stop() == 0
            for thread in threads:
                thread.join(30)
    finally:
        process.stop(signal.SIGKILL)
    with store.open(folder, backbone=BACKBONE, keys=KEYS, hardware="numpy") as opened:
        held = opened.status()["samples"]
    assert held == 40 - len(found)
    assert digest_of(folder) == never(row for row in range(40) if row not in found)
    lines = (folder / "service" / "audit.jsonl").read_text().splitlines()
    assert '"action":"stop","finished":true' in lines[-1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_store_is_opened_stops_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    folder, start, said = new_store(tmp_path / "s"), Service.start, list[str]()

    def signalled(service: Service) -> None:
        start(service)
        signal.raise_signal(number)

    monkeypatch.setattr(Service, "start", signalled)
    monkeypatch.setattr(Server, "run", lambda *_: pytest.fail("it serves, and nobody tells it again to stop"))
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        serve(folder, Settings(), backbone=BACKBONE, keys=KEYS, port=0, hardware="numpy", ready=said.append)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert not said
    store.open(folder, backbone=BACKBONE, keys=KEYS, hardware="numpy").close()  # the lock is free again


def test_a_store_that_is_in_use_is_not_served(tmp_path: Path) -> None:
    folder = new_store(tmp_path / "s")
    first = store.open(folder, backbone=BACKBONE, keys=KEYS, hardware="numpy")
    with first, pytest.raises((StoreLockedError, ConfigurationError, SystemExit)):
        serve(folder, backbone=BACKBONE, keys=KEYS, port=0)
    with pytest.raises(ConfigurationError, match="both"):
        serve(folder, tls_cert=tmp_path / "x")
    with pytest.raises(FileNotFoundError, match="no file"):
        serve(folder, tls_cert=tmp_path / "x", tls_key=tmp_path / "y")


def test_bad_files_for_tls_are_named(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    (tmp_path / "other").mkdir()
    other, odd, sealed = tmp_path / "other", tmp_path / "odd.pem", tmp_path / "sealed.pem"
    _, another = certificate(other)
    odd.write_bytes(b"-----BEGIN NOTHING-----")
    loaded = serialization.load_pem_private_key(key.read_bytes(), None)
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    sealed.write_bytes(loaded.private_bytes(*form, serialization.BestAvailableEncryption(b"secret")))
    for files, words in (
        ((odd, key), f"{odd} is not a certificate in PEM: give"),
        ((key, key), f"{key} is not a certificate in PEM: give"),
        ((cert, odd), f"{odd} is not a private key in PEM"),
        ((cert, cert), f"{cert} is not a private key in PEM"),
        ((cert, another), f"{another} is not the key of {cert}: give"),
        ((cert, sealed), f"{sealed} is protected by a passphrase: write it without one"),
    ):
        with pytest.raises(ConfigurationError, match=re.escape(words)):
            serve(tmp_path / "s", Settings(), tls_cert=files[0], tls_key=files[1])
    require_tls(cert, key)


class Sent:
    """A connection with so many bytes that the client has not got: written here, and taken by the system."""

    def __init__(self, written: int, taken: int) -> None:
        self.transport, self.written, self.cut, self.answering = self, written, False, False
        self._here, self.there = socket.socketpair()
        self._here.sendall(bytes(taken))

    def close(self) -> None:
        self._here.close()
        self.there.close()

    def get_write_buffer_size(self) -> int:
        return self.written

    def get_extra_info(self, name: str) -> socket.socket:
        return {"socket": self._here}[name]

    def abort(self) -> None:
        self.cut = True


def test_a_stop_cuts_nobody_who_has_not_got_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def found() -> list[list[bool]]:
        server = Server(uvicorn.Config("x:y"), Connections(1, 1, 1))
        connections = [Sent(0, 0), Sent(10, 0), Sent(0, 10)]
        state: Any = server.server_state
        state.connections.update(connections)
        seen, cutting = list[list[bool]](), asyncio.ensure_future(server._cut(30))

        async def until(first: Sent) -> None:
            await in_loop(lambda: first.cut or cutting.done())
            assert not cutting.done()
            seen.append([each.cut for each in connections])

        await until(connections[0])
        connections[1].written = 0
        await until(connections[1])
        connections[2].there.recv(10)
        await until(connections[2])
        cutting.cancel()
        monkeypatch.setattr(server_module, "_FLUSH", 0.0)  # and who never takes it is not waited for
        deaf = Sent(10, 10)
        state.connections = {deaf}
        cutting = asyncio.ensure_future(server._cut(30))
        await until(deaf)
        cutting.cancel()
        for each in (*connections, deaf):
            each.close()
        return seen[:3]

    assert asyncio.run(found()) == [[True, False, False], [True, True, False], [True, True, True]]


def test_a_second_service_on_a_store_is_told_who_has_it(tmp_path: Path) -> None:
    with running(tmp_path / "s"), pytest.raises(StoreLockedError, match="is being written by process"):
        serve(tmp_path / "s", Settings(), backbone=BACKBONE, keys=KEYS, port=0, hardware="numpy")
