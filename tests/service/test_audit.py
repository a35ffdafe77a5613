"""The audit log: a chain that shows what was changed, and mends what a kill has torn."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
from pathlib import Path
from typing import Any

import pytest

from neverseen import store
from neverseen.service import Settings, audit_key, check_audit
from neverseen.service.operations.audit import AuditLog
from tests.services import KEYS, Running, running
from tests.waiting import eventually

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
        eventually(lambda: service.client.get("/readyz").status_code == 200)
        assert service.forget(receipts[:1]).status_code == 202


def turned(service: Running, times: int = 2) -> None:
    """Let the writer look at its policy: after each question that it answers, it does what is due."""
    for _ in range(times):
        service.service.writer.ask(lambda opened: None).result(60)


def test_nothing_is_published_or_sealed_while_the_log_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A seal clears the names of keys, which the lines that are still to be written need."""
    now = [0.0]
    settings = Settings(quiet=10, max_delay=10, seal_after=50)
    with running(tmp_path / "s", settings, clock=lambda: now[0]) as service:
        receipts = service.learn(range(20))
        assert service.client.post("/v1/publish", headers=service.admin).status_code == 200
        writer, log = service.service.writer, service.service.audit
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", full)
            forgotten = service.forget(receipts[:1])  # the log is found to be full only now
            assert forgotten.status_code == 202
            request = forgotten.json()["request"]["id"]
            assert not log.healthy
            for _ in range(4):
                now[0] += 100
                turned(service)
                assert (writer.published.number, writer.published.sealed) == (1, 0)
            assert service.state(request) == "applied"
            assert not [entry for entry in entries(service) if entry.get("request") == request]
            with store.open(service.folder, write=False) as opened:
                assert [row.client for row in opened.ledger.requests(1)] == ["admin 0"]
        log.append([])
        assert log.healthy
        (line,) = [entry for entry in entries(service) if entry.get("request") == request]
        assert (line["action"], line["key"], line["outcome"]) == ("forget", "admin 0", "applied")
        now[0] += 100
        turned(service)
        assert service.state(request) == "sealed"
    with store.open(tmp_path / "s", write=False) as opened:
        check_audit(tmp_path / "s" / "service", KEY, opened.certificates(), opened.audit_head)


def test_nothing_is_sealed_while_the_log_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    with running(tmp_path / "s", Settings(quiet=10, max_delay=10, seal_after=50), clock=lambda: now[0]) as service:
        request = service.forget(service.learn(range(20))[:1]).json()["request"]["id"]
        assert service.client.post("/v1/publish", headers=service.admin).status_code == 200
        log = service.service.audit
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", full)
            log.append([{"action": "waits"}])
            for _ in range(4):
                now[0] += 100
                turned(service)
                assert service.state(request) == "published"
        log.append([])
        now[0] += 100
        turned(service)
        assert service.state(request) == "sealed"


def test_lines_of_sealed_changes_are_put_back_without_names(tmp_path: Path) -> None:
    with running(tmp_path / "s", Settings(quiet=10**6, max_delay=10**6)) as service:
        receipts = service.learn(range(5))
        requests = [service.forget(receipts[row : row + 1]).json()["request"]["id"] for row in (0, 1)]
        assert service.client.post("/v1/seal", headers=service.admin).status_code == 200
        assert {service.state(request) for request in requests} == {"sealed"}
    path = tmp_path / "s" / "service" / "audit.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))  # up to the learning
    with running(tmp_path / "s") as service:
        found = [entry for entry in entries(service) if entry.get("recovered")]
    assert [(entry["request"], entry["key"], entry["outcome"]) for entry in found] == [
        (request, "", "applied") for request in requests
    ]
    with running(tmp_path / "s") as service:
        assert [entry for entry in entries(service) if entry.get("recovered")] == found  # once


def test_a_full_disk_is_not_tried_again_without_a_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, tries = [0.0], [0]

    def no_space(*given: Any, **named: Any) -> Any:
        tries[0] += 1
        raise OSError(28, "No space left on device")

    with running(tmp_path / "s", Settings(quiet=0, max_delay=0), clock=lambda: now[0]) as service:
        writer = service.service.writer
        with monkeypatch.context() as patched:
            patched.setattr(store.Store, "publish", no_space)
            service.learn(range(10))
            for count in (1, 2, 3):
                eventually(lambda count=count: tries[0] >= count and writer.store is not None)  # type: ignore[misc]
                now[0] += 4.9
                turned(service)
                assert (tries[0], service.service.metrics.writer_failures._value.get()) == (count, count)
                assert "later than max_delay" in service.client.get("/readyz").text
                if count < 3:
                    now[0] += 0.2
                    writer.poke()
        now[0] += 0.2
        writer.poke()
        eventually(lambda: writer.published.number == 1)
        assert service.client.get("/readyz").status_code == 200
