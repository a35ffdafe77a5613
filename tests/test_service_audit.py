"""The audit log: a chain that shows what was changed, and mends what a kill has torn."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from neverseen import store
from neverseen.service import Settings, audit_key, check_audit
from neverseen.service.audit import AuditLog
from tests.service import KEYS, Running, running

KEY = audit_key(KEYS)


def full(handle: int, content: bytes, offset: int) -> int:
    raise OSError(28, "No space left on device")


def written(folder: Path, count: int) -> Path:
    log = AuditLog(folder, KEY)
    log.append([{"action": "learn", "samples": number} for number in range(count)])
    log.close()
    return folder / "audit.jsonl"


def lines_of(folder: Path) -> int:
    report = check_audit(folder, KEY)
    assert (report.first, report.torn) == (1, 0)
    return report.last


def test_the_chain_goes_on_after_a_restart(tmp_path: Path) -> None:
    path = written(tmp_path, 3)
    written(tmp_path, 2)
    assert lines_of(tmp_path) == 5
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("torn", [b'{"action":"le', b"\0\0\0", b"x" * 5000])
def test_a_torn_line_is_mended(tmp_path: Path, torn: bytes) -> None:
    path = written(tmp_path, 3)
    with path.open("ab") as file:
        file.write(torn)
    AuditLog(tmp_path, KEY).close()
    assert lines_of(tmp_path) == 4
    assert json.loads(path.read_bytes().splitlines()[-1])["action"] == "audit_mended"
    assert json.loads(path.read_bytes().splitlines()[-1])["bytes"] == len(torn)


def test_a_log_of_one_torn_line(tmp_path: Path) -> None:
    (tmp_path / "audit.jsonl").write_bytes(b'{"act')
    (tmp_path / "audit.jsonl").chmod(0o600)
    AuditLog(tmp_path, KEY).close()
    assert lines_of(tmp_path) == 1


def test_a_full_disk_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = AuditLog(tmp_path, KEY)
    log.append([{"action": "one"}])

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        log.append([{"action": "two"}])
        assert not log.healthy
    log.append([{"action": "three"}])
    assert log.healthy
    log.close()
    assert lines_of(tmp_path) == 3


def entries(service: Running) -> list[dict[str, Any]]:
    lines = (service.folder / "service" / "audit.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_what_is_in_the_log_and_what_is_not(tmp_path: Path) -> None:
    with running(tmp_path / "s") as service:
        receipts = service.learn(range(5))
        request = service.forget(receipts[:1]).json()["request"]["id"]
        service.forget(["TlNSMQAB"])
        service.client.get("/v1/model", headers={"Authorization": "Bearer nsk_" + "a" * 43})
        service.client.post("/v1/publish", headers=service.admin)
        found = entries(service)
        actions = [(entry["action"], entry.get("outcome")) for entry in found]
        assert actions == [
            ("start", None),
            ("learn", "applied"),
            ("forget", "applied"),
            ("forget", "receipt_rejected"),
            ("model", "unauthorized"),
            ("publish", "asked"),
            ("publish", "applied"),
        ]
        assert found[2] | {"request": request, "samples": 1, "key": "admin 0"} == found[2]
        content = (service.folder / "service" / "audit.jsonl").read_text()
        secrets = [*receipts, "s0", "cat", "dog", "emu", service.admin["Authorization"].partition(" ")[2]]
        assert not [word for word in secrets if f'"{word}"' in content or (len(word) > 8 and word in content)]
    assert lines_of(tmp_path / "s" / "service") == 8
    with running(tmp_path / "s") as service:
        assert [entry["action"] for entry in entries(service)][-2:] == ["stop", "start"]


def test_lines_lost_in_a_kill_are_put_back(tmp_path: Path) -> None:
    with running(tmp_path / "s", Settings(quiet=10**6, max_delay=10**6)) as service:
        receipts = service.learn(range(5))
        request = service.forget(receipts[:1]).json()["request"]["id"]
    path = tmp_path / "s" / "service" / "audit.jsonl"
    kept = path.read_bytes().splitlines(keepends=True)[:2]  # the change was on disk, its line was not
    with sqlite3.connect(tmp_path / "s" / "ledger.sqlite") as ledger:  # nor was there a publication yet
        assert json.loads(ledger.execute("select value from neverseen_meta where key='audit'").fetchone()[0]) == {
            "head": json.loads(kept[-1])["mac"],
            "lines": 2,
        }
    path.write_bytes(b"".join(kept))
    with running(tmp_path / "s") as service:
        found = entries(service)
    assert [entry["action"] for entry in found] == ["start", "learn", "forget", "start"]
    assert (found[2]["request"], found[2]["recovered"]) == (request, True)
    with store.open(tmp_path / "s", write=False) as opened:
        check_audit(path.parent, KEY, opened.certificates(), opened.audit_head)


def test_nothing_is_changed_while_the_log_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path / "s") as service:
        receipts = service.learn(range(5))
        log = service.service.audit
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", full)
            log.append([{"action": "waits"}])
            answer = service.forget(receipts[:1])
            assert answer.status_code == 503
            assert service.client.get("/readyz").status_code == 503
        end = time.monotonic() + 120
        while service.client.get("/readyz").status_code != 200:
            assert time.monotonic() < end
            time.sleep(0.02)
        assert service.forget(receipts[:1]).status_code == 202
