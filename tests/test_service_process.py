"""A service as a process: it stops gracefully, loses nothing to a kill, and speaks TLS."""

from __future__ import annotations

import signal
import ssl
import threading
import time
from pathlib import Path

import httpx
import pytest

from neverseen import StoreLockedError, store
from neverseen.proof.certificates import check_chain
from neverseen.service import Settings, audit_key, check_audit, serve
from tests.service import BACKBONE, KEYS, Process, bearer, never, new_store, running, samples, token
from tests.tls import certificate


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
        end = time.monotonic() + 120
        while (model := again.client.get("/v1/model", headers=again.admin).json())["unpublished"] or not model[
            "version"
        ]:
            assert time.monotonic() < end, "what was left unpublished is not published"
            time.sleep(0.05)
        held = model["samples"]
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
                httpx.get(f"{process.url}/readyz")  # who does not know the certificate
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
            time.sleep(0.05)
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


def test_a_store_that_is_in_use_is_not_served(tmp_path: Path) -> None:
    from neverseen.errors import ConfigurationError, StoreLockedError
    from neverseen.service import serve

    folder = new_store(tmp_path / "s")
    first = store.open(folder, backbone=BACKBONE, keys=KEYS, hardware="numpy")
    with first, pytest.raises((StoreLockedError, ConfigurationError, SystemExit)):
        serve(folder, backbone=BACKBONE, keys=KEYS, port=0)
    with pytest.raises(ConfigurationError, match="both"):
        serve(folder, tls_cert=tmp_path / "x")
    with pytest.raises(FileNotFoundError, match="no file"):
        serve(folder, tls_cert=tmp_path / "x", tls_key=tmp_path / "y")


def test_a_second_service_on_a_store_is_told_who_has_it(tmp_path: Path) -> None:
    with running(tmp_path / "s"), pytest.raises(StoreLockedError, match="is being written by process"):
        serve(tmp_path / "s", Settings(), backbone=BACKBONE, keys=KEYS, port=0, hardware="numpy")
