"""The promise: whoever can write to the audit log, but has no key, cannot change, drop, add or cut off a line unseen.

A cut end shows up to the last change or certificate, whichever came later. The log's files are bounded; what the
service itself has removed is told apart from what somebody else has.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from typer.testing import CliRunner

from neverseen import Key, store
from neverseen.cli.program import app
from neverseen.errors import FileRejectedError, LedgerError
from neverseen.holdings import FORGET
from neverseen.labels import canonical_json
from neverseen.ledger.database import Database
from neverseen.proof.certificates import AuditHead
from neverseen.service import AuditReport, Settings, audit_key, check_audit
from neverseen.service.errors import Refusal
from neverseen.service.operations import audit as audit_module
from neverseen.service.operations import audit_check as audit_check_module
from neverseen.service.operations.audit import AuditLog
from neverseen.service.writer import queue as queue_module
from neverseen.service.writer.jobs import Job
from neverseen.service.writer.queue import Writer
from tests.services import KEYS, Running, hold, never, running, samples
from tests.waiting import eventually

KEY = audit_key(KEYS)
STILL = Settings(quiet=10**6, max_delay=10**6, seal_after=10**6)
Lines = list[bytes]


def written(folder: Path, count: int = 8, size: int = 2**26, files: int = 100) -> Path:
    log = AuditLog(folder, KEY, size, files)
    for number in range(count):
        log.append([{"action": "forget", "key": "shop", "outcome": "applied", "samples": number}])
    log.close()
    return folder / "audit.jsonl"


def unkeyed(folder: Path, count: int) -> Path:
    """A log as version 0.1.0 wrote it."""
    previous, lines = "0" * 64, []
    for number in range(count):
        entry = {"action": "learn", "outcome": "applied", "previous": previous, "samples": number, "time": "t"}
        lines.append(canonical_json(entry).encode() + b"\n")
        previous = hashlib.sha256(lines[-1]).hexdigest()
    path = folder / "audit.jsonl"
    path.write_bytes(b"".join(lines))
    path.chmod(0o600)
    return path


def recoded(lines: Lines, key: Key | None = None, numbered: bool = True) -> Lines:
    """Lines chained anew, by somebody who knows how it is done: without the key, or with another."""
    previous, made = "0" * 64, []
    for number, line in enumerate(lines, 1):
        entry = {name: value for name, value in json.loads(line).items() if name != "mac"}
        entry |= {"previous": previous} | ({"line": number} if numbered else {})
        said = canonical_json(entry).encode()
        secret = key.reveal() if key else b""
        previous = hashlib.blake2b(said, key=secret, digest_size=32, person=b"neverseen:line").hexdigest()
        made.append(canonical_json(entry | {"mac": previous}).encode() + b"\n")
    return made


def without_codes(lines: Lines) -> Lines:
    """Lines as version 0.1.0 chained them, with hashes that anybody can work out."""
    previous, made = "0" * 64, []
    for line in lines:
        entry = {name: value for name, value in json.loads(line).items() if name not in ("mac", "line")}
        made.append(canonical_json(entry | {"previous": previous}).encode() + b"\n")
        previous = hashlib.sha256(made[-1]).hexdigest()
    return made


def changed(lines: Lines) -> Lines:
    return [*lines[:2], lines[2].replace(b'"samples":2', b'"samples":9'), *lines[3:]]


ATTACKS: dict[str, Callable[[Lines], Lines]] = {
    "a line changed": changed,
    "a line dropped": lambda lines: lines[:1] + lines[2:],
    "the first line dropped": lambda lines: lines[1:],
    "two lines swapped": lambda lines: [lines[0], lines[2], lines[1], *lines[3:]],
    "a line repeated": lambda lines: [*lines[:4], lines[3], *lines[4:]],
    "a line put in": lambda lines: [*lines[:4], recoded(lines[:5])[4], *lines[4:]],
    "a line changed, all hashes recomputed": lambda lines: recoded(changed(lines)),
    "a line dropped, all hashes recomputed": lambda lines: recoded(lines[:1] + lines[2:]),
    "recomputed with another key": lambda lines: recoded(lines[:1] + lines[2:], Key(bytes([1] * 32))),
    "recomputed without numbers": lambda lines: recoded(lines[:1] + lines[2:], numbered=False),
    "recomputed as an older version": lambda lines: without_codes(lines[:1] + lines[2:]),
    "an older version's lines at the end": lambda lines: [*lines[:5], *without_codes(lines[6:])],
    "lines reformatted": lambda lines: [line.replace(b",", b", ", 1) for line in lines],
    "another field": lambda lines: [*lines[:3], lines[3].replace(b"{", b'{"a":1,', 1), *lines[4:]],
    "a code that is none": lambda lines: [*lines[:3], lines[3].replace(b'"mac":"', b'"mac":"\\u00e9'), *lines[4:]],
    "no code": lambda lines: [*lines[:3], re.sub(rb'"mac":"[0-9a-f]*",', b"", lines[3]), *lines[4:]],
    "not JSON": lambda lines: [*lines[:3], b"\n", *lines[4:]],
    "the end cut off": lambda lines: lines[:-2],
    "all cut off": lambda lines: [],
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_tampering_without_the_key_shows(tmp_path: Path, attack: str) -> None:
    path = written(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    head = AuditHead(8, json.loads(lines[-1])["mac"])
    assert check_audit(tmp_path, KEY, expected=head) == AuditReport(files=1, first=1, last=8)
    path.write_bytes(b"".join(ATTACKS[attack](lines)))
    with pytest.raises(FileRejectedError):
        check_audit(tmp_path, KEY, expected=head)


def test_the_log_of_another_store_does_not_pass(tmp_path: Path) -> None:
    written(tmp_path)
    with pytest.raises(FileRejectedError, match="written with another key"):
        check_audit(tmp_path, Key(bytes([9] * 32)))


def test_a_line_that_is_not_whole_is_no_damage(tmp_path: Path) -> None:
    path = written(tmp_path)
    with path.open("ab") as file:
        file.write(b'{"action":')
    assert check_audit(tmp_path, KEY) == AuditReport(files=1, first=1, last=8, torn=10)


# -- against a service --------------------------------------------------------------------------------------


def log_of(service: Running | Path) -> Path:
    folder = service if isinstance(service, Path) else service.folder
    return folder / "service"


def checked(folder: Path) -> AuditReport:
    with store.open(folder, write=False) as opened:
        requests = opened.ledger.requests(1000)[::-1]
        return check_audit(log_of(folder), KEY, opened.certificates(), opened.audit_head, requests)


def served(folder: Path, first: int = 0) -> None:
    with running(folder, STILL) as service:
        for row in (first, first + 5):
            service.learn(range(row, row + 5))
            service.client.post("/v1/publish", headers=service.admin)
        service.learn(range(first + 10, first + 15))  # and a change after the last certificate


def cut(folder: Path, keep: int) -> None:
    path = log_of(folder) / "audit.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:keep]))


def test_each_certificate_names_the_head_of_the_log(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    served(folder)
    entries = [json.loads(line) for line in (log_of(folder) / "audit.jsonl").read_bytes().splitlines()]
    with store.open(folder, write=False) as opened:
        heads = [certificate.audit for certificate in opened.certificates()]
        noted = opened.audit_head
    assert [head.lines for head in heads if head] == [3, 6]  # start, learn, asked; applied, learn, asked
    for head in (*heads, noted):
        assert head is not None
        assert entries[head.lines - 1]["mac"] == head.head
    assert noted is not None
    assert noted.lines == 7
    assert checked(folder).certificates == 2


@pytest.mark.parametrize(("keep", "words"), [(1, "certificate 1 names line 3"), (5, "certificate 2 names line 6")])
def test_an_end_cut_before_a_certificate_shows(tmp_path: Path, keep: int, words: str) -> None:
    served(tmp_path / "s")
    cut(tmp_path / "s", keep)
    with pytest.raises(FileRejectedError, match=f"{words}, and the log ends with line {keep}: its end was cut off"):
        checked(tmp_path / "s")


def test_an_end_cut_after_the_last_certificate_shows(tmp_path: Path) -> None:
    served(tmp_path / "s")
    cut(tmp_path / "s", 6)
    with pytest.raises(FileRejectedError, match="^[^;]*the ledger names line 7, and the log ends with line 6"):
        checked(tmp_path / "s")


@pytest.mark.parametrize("how", ["cut", "gone", "replaced by an older copy", "replaced by an unkeyed log"])
def test_a_service_that_starts_on_a_cut_log_says_so_for_good(tmp_path: Path, how: str) -> None:
    folder = tmp_path / "s"
    served(folder)
    older = (log_of(folder) / "audit.jsonl").read_bytes()
    served(folder, 50)
    if how == "gone":
        (log_of(folder) / "audit.jsonl").unlink()
    elif how == "cut":
        cut(folder, 3)
    elif how == "replaced by an older copy":
        (log_of(folder) / "audit.jsonl").write_bytes(older)
    else:
        unkeyed(log_of(folder), 5)
    with running(folder, STILL) as service:
        service.learn([120])
        service.client.post("/v1/publish", headers=service.admin)
    lines = [json.loads(line) for line in (log_of(folder) / "audit.jsonl").read_bytes().splitlines()]
    (told,) = [line for line in lines if line["action"] == "audit_missing"]
    assert told["found"] < told["expected"] < told["line"]
    with pytest.raises(FileRejectedError, match=rf"line {told['expected']} should have been there, and the log ended"):
        checked(folder)


def test_a_log_that_was_tampered_with_is_set_aside_and_not_continued(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    served(folder)
    path = log_of(folder) / "audit.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"action":"stop"', b'"action":"stip"'))
    served(folder, 50)
    with pytest.raises(FileRejectedError, match=r"audit-00000001.jsonl, line [0-9]+: its code is wrong"):
        checked(folder)
    (log_of(folder) / "audit-00000001.jsonl").unlink()
    with pytest.raises(FileRejectedError, match="are missing, and the service did not remove them"):
        checked(folder)


def test_a_whole_log_passes_over_restarts_and_seals(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    for start in range(3):
        with running(folder, STILL) as service:
            receipts = service.learn(range(10 * start, 10 * start + 5))
            service.forget(receipts[:1])
            service.client.post("/v1/seal", headers=service.admin)
            checked(folder)  # while the service runs
    report = checked(folder)
    assert (report.first, report.last, report.certificates) == (1, 18, 3)


# -- files --------------------------------------------------------------------------------------------------


def test_the_log_is_bounded_and_the_chain_goes_on(tmp_path: Path) -> None:
    written(tmp_path, 100, size=1000, files=4)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert len(files) == 5
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 10_000
    report = check_audit(tmp_path, KEY)
    assert report.files == 5
    assert 1 < report.first < report.last
    written(tmp_path, 100, size=1000, files=4)  # after a restart
    assert check_audit(tmp_path, KEY).last > report.last + 100


def test_a_closed_file_that_somebody_removed_shows(tmp_path: Path) -> None:
    written(tmp_path, 60, size=1000, files=50)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert check_audit(tmp_path, KEY).first == 1
    for name, words in (
        (names[0], "are missing, and the service did not remove them"),
        (names[3], "the chain is broken here"),
    ):
        copy = tmp_path / f"without {name}"
        copy.mkdir()
        for other in names:
            if other != name:
                shutil.copy(tmp_path / other, copy / other)
        with pytest.raises(FileRejectedError, match=words):
            check_audit(copy, KEY)
    swapped = tmp_path / "swapped"
    swapped.mkdir()
    for name, other in zip(names, [names[0], names[2], names[1], *names[3:]], strict=True):
        shutil.copy(tmp_path / name, swapped / other)
    with pytest.raises(FileRejectedError, match="the chain is broken here"):
        check_audit(swapped, KEY)


@pytest.mark.parametrize("left", [True, False], ids=["file not made", "line not written"])
def test_killed_while_a_file_is_closed(tmp_path: Path, left: bool) -> None:
    path = written(tmp_path, 10)
    path.rename(tmp_path / "audit-00000001.jsonl")
    if not left:
        path.touch(0o600)
    written(tmp_path, 3)
    assert check_audit(tmp_path, KEY) == AuditReport(files=2, first=1, last=13)


def test_lines_are_put_back_from_the_file_before(tmp_path: Path) -> None:
    """A restart right after a file was closed does not log old changes a second time."""
    folder = tmp_path / "s"
    settings = Settings(quiet=10**6, max_delay=10**6, audit_bytes=1500, audit_files=2)
    for start in range(6):
        with running(folder, settings) as service:
            for row in range(6):
                service.learn([20 * start + row])
    entries = [
        json.loads(line) for path in sorted(log_of(folder).glob("audit*")) for line in path.read_bytes().splitlines()
    ]
    assert not [entry for entry in entries if entry.get("recovered")]
    assert checked(folder).files == 3


# -- logs of version 0.1.0 ----------------------------------------------------------------------------------


def test_an_older_log_is_closed_and_named(tmp_path: Path) -> None:
    unkeyed(tmp_path, 5)
    written(tmp_path, 3)
    assert check_audit(tmp_path, KEY) == AuditReport(files=2, first=1, last=4, unkeyed=5)
    first = json.loads((tmp_path / "audit.jsonl").read_bytes().splitlines()[0])
    assert (first["action"], first["file"]) == ("audit_continued", "audit-00000001.jsonl")
    lines = (tmp_path / "audit-00000001.jsonl").read_bytes().splitlines(keepends=True)
    for attack in (without_codes(lines[1:]), lines[:-1], lines[1:], []):
        (tmp_path / "audit-00000001.jsonl").write_bytes(b"".join(attack))
        with pytest.raises(FileRejectedError):
            check_audit(tmp_path, KEY)
    (tmp_path / "audit-00000001.jsonl").unlink()
    with pytest.raises(FileRejectedError, match=r"audit-00000001.jsonl is missing, and the service did not remove it"):
        check_audit(tmp_path, KEY)


def test_a_service_takes_over_an_older_log(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    with running(folder, STILL) as service:
        service.learn(range(5))
        service.learn(range(5, 10))
    path = log_of(folder) / "audit.jsonl"
    path.write_bytes(b"".join(without_codes(path.read_bytes().splitlines(keepends=True))))
    with sqlite3.connect(folder / "ledger.sqlite") as ledger:  # as version 0.1.0 left it
        ledger.execute("delete from neverseen_meta where key = 'audit'")
    with running(folder, STILL) as service:
        service.learn([20])
    actions = [json.loads(line)["action"] for line in path.read_bytes().splitlines()]
    assert actions == ["audit_continued", "start", "learn", "stop"]  # and nothing is logged a second time
    assert checked(folder) == AuditReport(files=2, first=1, last=4, unkeyed=4)


def test_unkeyed_files_cannot_be_slipped_in(tmp_path: Path) -> None:
    written(tmp_path, 3)
    (tmp_path / "audit.jsonl").rename(tmp_path / "audit-00000002.jsonl")
    unkeyed(tmp_path, 5).rename(tmp_path / "audit-00000001.jsonl")
    with pytest.raises(FileRejectedError, match="no line of the log names audit-00000001.jsonl"):
        check_audit(tmp_path, KEY)


# -- a log that cannot be written ---------------------------------------------------------------------------


def full(*_: object) -> int:
    raise OSError(28, "No space left on device")


def outcomes(folder: Path, action: str) -> list[str]:
    lines = (log_of(folder) / "audit.jsonl").read_bytes().splitlines()
    return [entry["outcome"] for entry in map(json.loads, lines) if entry["action"] == action]


@pytest.mark.parametrize("verb", ["publish", "seal"])
@pytest.mark.parametrize("noticed", [False, True])
def test_an_operator_does_nothing_that_has_no_line(
    tmp_path: Path, verb: str, noticed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path / "s", STILL) as service:
        service.learn(range(20))
        path = f"/v1/{verb}?below_min_batch=true"
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", full)
            if noticed:
                service.service.audit.append([{"action": "any"}])
            answer = service.client.post(path, headers=service.admin)
            assert answer.status_code == 503, answer.text
            assert "audit log" in answer.json()["error"]["message"]
            assert service.service.writer.published.number == 0
        assert service.client.post(path, headers=service.admin).status_code == 200
    assert outcomes(tmp_path / "s", verb)[-2:] == ["asked", "applied"]
    checked(tmp_path / "s")


def test_an_act_whose_end_has_no_line_is_not_called_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path / "s", STILL) as service:
        service.learn(range(20))
        publish = store.Store.publish

        def fills(*given: Any, **named: Any) -> Any:
            monkeypatch.setattr(os, "pwrite", full)
            return publish(*given, **named)

        monkeypatch.setattr(store.Store, "publish", fills)
        answer = service.client.post("/v1/publish", headers=service.admin)
        assert answer.status_code == 503
        assert "certificate 1" in answer.json()["error"]["message"]
        assert outcomes(tmp_path / "s", "publish") == ["asked"]
        monkeypatch.undo()
    assert outcomes(tmp_path / "s", "publish") == ["asked", "applied", "unavailable"]


def test_of_what_waits_together_nothing_is_done_once_the_log_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first change finds the log full, and stands. Those behind it in the queue are refused."""
    with running(tmp_path / "s", STILL) as service:
        writer = service.service.writer
        receipts = service.learn(range(10))
        held = hold(writer)
        with monkeypatch.context() as patched, ThreadPoolExecutor(5) as pool:
            asked = []
            for row, kind in enumerate(("forget", "learn", "forget", "learn", "forget"), 1):
                work = partial(service.forget, receipts[row : row + 1])
                asked.append(pool.submit(work if kind == "forget" else partial(learned, service, row)))
                eventually(partial(waits, writer, row))
            patched.setattr(os, "pwrite", full)
            held.set()
            answers = [each.result(60) for each in asked]
            assert [answer.status_code for answer in answers] == [202, 503, 503, 503, 503]
            assert all("nothing was done" in answer.json()["error"]["message"] for answer in answers[1:])
            assert service.digest() == never([0, *range(2, 10)])
        service.service.audit.append([])
        assert service.forget(receipts[3:4]).status_code == 202
    assert len([each for each in outcomes(tmp_path / "s", "forget") if each == "applied"]) == 2
    checked(tmp_path / "s")


def waits(writer: Writer, jobs: int) -> bool:
    return len(writer.waiting()) == jobs


def learned(service: Running, row: int) -> Any:
    return service.client.post("/v1/samples", json={"samples": samples([50 + row])}, headers=service.admin)


def test_a_log_without_memory_is_one_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object) -> str:
        raise MemoryError

    log = AuditLog(tmp_path, KEY)
    with monkeypatch.context() as patched:
        patched.setattr(audit_module, "canonical_json", no_memory)
        assert not log.append([{"action": "one"}])
        assert not log.healthy
    eventually(lambda: log.healthy)  # its own thread goes on
    assert log.append([{"action": "two"}])
    log.close()
    assert check_audit(tmp_path, KEY).last == 2


def test_a_log_that_is_closed_writes_to_no_file(tmp_path: Path) -> None:
    """The number of its file may be another file's by then: a certificate, or the ledger."""
    log = AuditLog(tmp_path, KEY)
    log.append([{"action": "one"}])
    number = log._handle
    log.close()
    log.close()
    (tmp_path / "other").write_bytes(b"other" * 1000)
    opened = [os.open(tmp_path / "other", os.O_RDWR)]
    while opened[-1] < number:
        opened.append(os.open(tmp_path / "other", os.O_RDWR))
    assert number in opened
    try:
        assert not log.append([{"action": "two"}])
        assert not log.healthy
    finally:
        for handle in opened:
            os.close(handle)
    assert (tmp_path / "other").read_bytes() == b"other" * 1000
    assert check_audit(tmp_path, KEY).last == 1


def test_a_change_that_outlasts_a_stop_has_its_line_after_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, held, entered = Database._commit, Event(), Event()

    def slow(self: Database, connection: Any, purpose: str) -> None:
        if purpose == "write":
            entered.set()
            held.wait(60)
        commit(self, connection, purpose)

    settings = Settings(quiet=10**6, max_delay=10**6, seal_after=10**6, stop_timeout=0.05)
    with running(tmp_path / "s", settings) as service:
        receipts = service.learn(range(10))
        writer = service.service.writer
        jobs = [Job(FORGET, f"req_{row}", "shop", None, 1, [uncoded(receipts[row])]) for row in (0, 1)]
        with monkeypatch.context() as patched:
            patched.setattr(Database, "_commit", slow)
            writer.submit(jobs[0])
            assert entered.wait(60)
            assert not service.service.stop()
            held.set()
            eventually(lambda: not writer._thread.is_alive())
        assert jobs[0].future.result(60).row.id == "req_0"
    assert outcomes(tmp_path / "s", "forget") == []
    with running(tmp_path / "s", STILL):
        pass
    assert lines_of(tmp_path / "s", "req_0") == [("applied", True)]
    checked(tmp_path / "s")


# -- a writer that fails after a change was made -----------------------------------------------------------


def uncoded(receipt: str) -> bytes:
    return base64.urlsafe_b64decode(receipt)


def lines_of(folder: Path, request: str) -> list[tuple[str, bool]]:
    lines = map(json.loads, (log_of(folder) / "audit.jsonl").read_bytes().splitlines())
    return [(line["outcome"], "recovered" in line) for line in lines if line.get("request") == request]


def fold_without_memory(patched: pytest.MonkeyPatch) -> None:
    def fold(*_: object) -> None:
        patched.undo()
        raise MemoryError("no room to fold")

    patched.setattr("neverseen.store.store.fold_if_due", fold)


def commit_that_is_uncertain(patched: pytest.MonkeyPatch) -> None:
    commit = Database._commit

    def lost(self: Database, connection: Any, purpose: str) -> None:
        commit(self, connection, purpose)
        if purpose == "write":
            patched.undo()
            raise LedgerError("the connection was lost", uncertain=True)

    patched.setattr(Database, "_commit", lost)


def line_that_is_not_made(patched: pytest.MonkeyPatch) -> None:
    def nothing(_: object) -> list[Any]:
        patched.undo()
        raise MemoryError("no room for a line")

    patched.setattr(queue_module, "audited", nothing)


@pytest.mark.parametrize("fails", [fold_without_memory, commit_that_is_uncertain, line_that_is_not_made])
@pytest.mark.parametrize("first", [True, False], ids=["first change", "later change"])
def test_a_change_that_was_made_has_its_line_before_the_next(
    tmp_path: Path, fails: Callable[[pytest.MonkeyPatch], None], first: bool
) -> None:
    """The store is opened again in the same process. Then the line is made up for, with the name of the key."""
    with running(tmp_path / "s", STILL) as service:
        if not first:
            service.learn(range(10))
        with pytest.MonkeyPatch.context() as patched:
            fails(patched)
            answer = learned(service, 0)
        assert answer.status_code == 503, answer.text
        request = answer.headers["x-request-id"]
        eventually(lambda: service.client.get("/readyz").status_code == 200)
        assert service.state(request) == "applied"
        service.learn([60])
        service.client.post("/v1/seal", headers=service.admin)
        service.service.refusals.write()
        service.service.audit.append([])
        assert lines_of(tmp_path / "s", request) in (
            [("unavailable", False), ("applied", True)],
            [("applied", True), ("unavailable", False)],
        )
    with running(tmp_path / "s", STILL):
        pass
    assert len(lines_of(tmp_path / "s", request)) == 2  # once
    made_up = [line for line in entries_of(tmp_path / "s") if line.get("recovered")]
    assert [line["key"] for line in made_up] == ["admin 0"]
    checked(tmp_path / "s")


def entries_of(folder: Path) -> list[dict[str, Any]]:
    return list(map(json.loads, (log_of(folder) / "audit.jsonl").read_bytes().splitlines()))


def test_lines_that_wait_for_the_disk_are_not_made_up_for_as_well(tmp_path: Path) -> None:
    with running(tmp_path / "s", STILL) as service:
        receipts = service.learn(range(10))
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(os, "pwrite", full)
            request = service.forget(receipts[:1]).json()["request"]["id"]
            writer = service.service.writer
            opened = writer.store
            with pytest.raises(Refusal):
                writer.ask(fail).result(60)
            eventually(lambda: writer.store not in (None, opened))
            service.digest()
        service.service.audit.append([])
        assert lines_of(tmp_path / "s", request) == [("applied", False)]


def fail(_: store.Store) -> None:
    raise OSError("the disk has failed")


def test_a_line_that_is_missing_between_others_is_made_up_for(tmp_path: Path) -> None:
    """As after a writer of version 0.1.0 had failed."""
    with running(tmp_path / "s", STILL) as service:
        service.learn(range(5))
        append = AuditLog.append
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(AuditLog, "append", lambda self, entries: append(self, []))
            answer = learned(service, 0)
        service.learn([60])
    with running(tmp_path / "s", STILL):
        pass
    assert lines_of(tmp_path / "s", answer.json()["request"]["id"]) == [("applied", True)]
    assert [line["action"] for line in entries_of(tmp_path / "s")] == [
        "start",
        "learn",
        "learn",
        "stop",
        "learn",
        "start",
        "stop",
    ]
    checked(tmp_path / "s")


def cut_turn(folder: Path) -> int:
    """Cut off the lines of the last changes, which came together; return how many there were."""
    with running(folder, STILL) as service:
        writer = service.service.writer
        service.learn(range(5))
        held = hold(writer)
        with ThreadPoolExecutor(3) as pool:
            asked = [pool.submit(partial(learned, service, row)) for row in range(3)]
            eventually(partial(waits, writer, 3))
            held.set()
            assert [each.result(60).status_code for each in asked] == [201] * 3
    checked(folder)
    cut(folder, 2)
    return 3


@pytest.fixture
def without_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_check_module, "_PAUSE", 0)


@pytest.mark.usefixtures("without_pause")
def test_lines_of_the_last_turn_cannot_be_cut_off_unseen(tmp_path: Path) -> None:
    """The ledger names the line before the turn, which is still there."""
    folder = tmp_path / "s"
    count = cut_turn(folder)
    with pytest.raises(FileRejectedError, match=rf"have no line \({count}, "):
        checked(folder)
    KEYS.save(tmp_path / "keys.json")
    told = verify(folder, "--keys", tmp_path / "keys.json")
    assert told.exit_code == 1
    assert "have no line" in told.stderr


@pytest.mark.usefixtures("without_pause")
@pytest.mark.parametrize("keep", [1, 2])
def test_a_seal_before_the_next_start_does_not_lose_lines_for_good(tmp_path: Path, keep: int) -> None:
    """It clears whose the changes were. That they were made has its line all the same."""
    folder = tmp_path / "s"
    with running(folder, STILL) as service:
        for row in range(keep):
            learned(service, row)
    cut(folder, keep)  # all but the start, and all but the first change
    with store.open(folder, keys=KEYS) as made:
        made.seal()
    with pytest.raises(FileRejectedError, match=r"have no line \(1, "):
        checked(folder)
    with running(folder, STILL):
        pass
    assert [line["key"] for line in entries_of(folder) if line.get("recovered")] == [""]
    checked(folder)


# -- the command --------------------------------------------------------------------------------------------


def verify(*words: object) -> Any:
    return CliRunner().invoke(app, ["verify", "audit", *map(str, words)])


def test_the_command(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    served(folder)
    KEYS.save(tmp_path / "keys.json")
    good = verify(folder, "--keys", tmp_path / "keys.json", "--json")
    assert good.exit_code == 0, good.output
    facts = json.loads(good.output)
    assert (facts["passed"], facts["certificates"], facts["last"]) == (True, 2, 9)
    assert "9 lines in 1 file; 2 certificates found in it" in verify(folder, "--keys", tmp_path / "keys.json").output
    cut(folder, 3)
    bad = verify(folder, "--keys", tmp_path / "keys.json")
    assert bad.exit_code == 1


def test_an_archive_is_whole_with_the_folder_of_the_service_beside_it(tmp_path: Path) -> None:
    """As the guide to backups says."""
    folder, again = tmp_path / "shop", tmp_path / "again"
    served(folder)
    keys = "--keys", tmp_path / "keys.json"
    KEYS.save(tmp_path / "keys.json")
    for words in (["export", folder, tmp_path / "s.tar", *keys], ["import", again, tmp_path / "s.tar", *keys]):
        assert CliRunner().invoke(app, list(map(str, words))).exit_code == 0
    assert verify(again, *keys).exit_code == 1
    shutil.copytree(folder / "service", again / "service")
    assert verify(again, *keys).exit_code == 0


@pytest.mark.parametrize("way", ["removed", "moved", "cut off"])
def test_a_file_that_is_taken_from_the_service_takes_no_lines(tmp_path: Path, way: str) -> None:
    """As programs do that rotate logs. The service would go on in a file that nobody finds, or after a hole."""
    folder = tmp_path / "s"
    with running(folder, STILL) as service:
        receipts = service.learn(range(6))
        path = folder / "service" / "audit.jsonl"
        content = path.read_bytes()
        if way == "removed":
            path.unlink()
        elif way == "moved":
            path.rename(path.with_name("audit.jsonl.1"))
        else:
            os.truncate(path, 0)
        service.forget(receipts[:2])
        assert service.client.get("/readyz").status_code == 503
        for verb in ("publish", "seal"):
            assert service.client.post(f"/v1/{verb}", headers=service.admin).status_code == 503
        assert not path.exists() or not path.read_bytes()
        if way == "moved":
            path.with_name("audit.jsonl.1").rename(path)
            eventually(lambda: service.client.get("/readyz").status_code == 200, "the file that is back is not used")
            assert service.client.post("/v1/seal", headers=service.admin).status_code == 200
            assert path.read_bytes().startswith(content)
    with running(folder, STILL) as service:
        assert service.client.post("/v1/seal", headers=service.admin).status_code == 200
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    made = [(line["action"], line.get("recovered", False)) for line in lines if line.get("outcome") == "applied"]
    assert made[:2] == [("learn", way != "moved"), ("forget", way != "moved")]
    assert any(line["action"] == "audit_missing" for line in lines) == (way != "moved")
