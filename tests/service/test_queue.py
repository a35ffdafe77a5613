"""The queue: requests that wait together are one change, each is answered by itself, and the policy is kept."""

from __future__ import annotations

import base64
import json
import os
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neverseen import store
from neverseen.errors import ConfigurationError, LedgerError
from neverseen.holdings import FORGET, LEARN
from neverseen.ledger import Ledger
from neverseen.ledger import ledger as ledger_module
from neverseen.service import Settings
from neverseen.service.errors import Refusal
from neverseen.service.writer.applying import apply
from neverseen.service.writer.jobs import Applied, Job, LearnSamples
from neverseen.service.writer.policy import Policy
from neverseen.store import Store
from tests.services import BACKBONE, KEYS, LABELS, ROWS, hold, never, new_store, running, samples
from tests.waiting import eventually


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Store]:
    with store.open(new_store(tmp_path / "s"), backbone=BACKBONE, keys=KEYS, hardware="numpy") as found:
        yield found


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that grows by one with each transaction that changes the ledger."""
    made: list[str] = []
    writing = Ledger.writing

    def noted(self: Ledger) -> Any:
        made.append("transaction")
        return writing(self)

    monkeypatch.setattr(Ledger, "writing", noted)
    return made


def forgets(lists: list[list[bytes]], owner: str | None = None) -> list[Job]:
    return [Job(FORGET, f"r{row}", "key", owner, len(tokens), tokens) for row, tokens in enumerate(lists)]


def ended(outcomes: Any) -> dict[str, str]:
    return {job.id: "applied" if isinstance(found, Applied) else found.code for job, found in outcomes}


# -- many as one -------------------------------------------------------------------------------------


def test_fragments_are_one_change_and_equal_the_whole(opened: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    receipts = opened.learn(ROWS, LABELS)
    made = counted(monkeypatch)
    found = ended(apply(opened, forgets([[token] for token in receipts[:150]])))
    assert set(found.values()) == {"applied"}
    assert len(made) == 1
    assert opened.digest() == never(range(150, 200))
    rows = opened.ledger.requests(1000)
    assert [row.id for row in rows] == [f"r{row}" for row in reversed(range(150))]


def test_a_bad_request_does_not_spoil_its_neighbours(opened: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    receipts = opened.learn(ROWS[:20], LABELS[:20])
    opened.forget(receipts[:1])
    forged = receipts[1][:-1] + bytes([receipts[1][-1] ^ 1])
    made = counted(monkeypatch)
    lists = [
        [receipts[2]],
        [receipts[3], forged],  # all or nothing
        [receipts[4]],
        [receipts[0]],  # forgotten before
        [receipts[5], receipts[5]],  # twice in one
        [receipts[6], receipts[7]],
    ]
    found = ended(apply(opened, forgets(lists)))
    assert found == {
        "r0": "applied",
        "r1": "receipt_rejected",
        "r2": "applied",
        "r3": "already_forgotten",
        "r4": "invalid_request",
        "r5": "applied",
    }
    assert len(made) == 1
    assert opened.digest() == never([1, 3, 5, *range(8, 20)])


def test_a_refusal_counts_rows_in_its_own_request(opened: Store) -> None:
    """However many receipts of other requests were looked at with it."""
    receipts = opened.learn(ROWS[:20], LABELS[:20])
    forged = receipts[13][:-1] + bytes([receipts[13][-1] ^ 1])
    used = opened.learn(ROWS[20:21], LABELS[20:21])
    opened.forget(used)
    lists = [receipts[:12], [receipts[12], forged], [receipts[14], receipts[15], *used], [receipts[16], receipts[16]]]
    _, altered, gone, twice = (found for _, found in sorted(apply(opened, forgets(lists)), key=lambda each: each[0].id))
    told = [(found.row, found.message, found.reason) for found in (altered, gone, twice) if isinstance(found, Refusal)]
    assert told == [
        (1, "receipt 1 was altered: its seal is broken", "altered"),
        (
            2,
            "receipt 2 was used already: no sample is held under it. The next certificate will list it, if it was "
            "forgotten just now",
            None,
        ),
        (1, "receipt 1 is listed twice: list each once", "repeated"),
    ]


def test_requests_that_overlap_are_taken_in_order(opened: Store) -> None:
    receipts = opened.learn(ROWS[:12], LABELS[:12])
    bad = b"not a receipt"
    lists = [
        [receipts[0]],
        [receipts[0]],  # the same again
        [receipts[1], bad],
        [receipts[1]],  # good, as the one before is refused
        [receipts[1], receipts[2]],  # not any more
        [receipts[2]],
        *[[receipts[row], receipts[row + 1]] for row in range(3, 10)],  # each overlaps the next
    ]
    found = ended(apply(opened, forgets(lists)))
    assert [found[f"r{row}"] for row in range(6)] == [
        "applied",
        "already_forgotten",
        "receipt_rejected",
        "applied",
        "already_forgotten",
        "applied",
    ]
    assert [found[f"r{row}"] for row in range(6, 13)] == ["applied", "already_forgotten"] * 3 + ["applied"]
    assert opened.digest() == never([11])


def test_learning_together(opened: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def job(row: int, name: str) -> Job:
        payload = LearnSamples(opened.prepare(ROWS[row : row + 1]), LABELS[row : row + 1], [name], None)
        return Job(LEARN, f"r{row}", "key", None, 1, payload)

    made = counted(monkeypatch)
    outcomes = list(apply(opened, [job(row, f"id {row}") for row in range(30)]))
    assert set(ended(outcomes).values()) == {"applied"}
    assert len(made) == 1
    clash = ended(apply(opened, [job(30, "new"), job(31, "id 3"), job(32, "newer")]))
    assert clash == {"r30": "applied", "r31": "id_taken", "r32": "applied"}
    assert opened.digest() == never([*range(31), 32])
    receipts = [token for _, found in outcomes if isinstance(found, Applied) for token in found.receipts or ()]
    opened.forget(receipts)
    assert opened.digest() == never([30, 32])


def test_many_requests_at_a_time_over_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path / "s", Settings(max_delay=600, quiet=600)) as service:
        receipts = service.learn(range(200))
        assert service.client.post("/v1/publish", headers=service.admin).status_code == 200
        writer = service.service.writer
        made = counted(monkeypatch)
        gate = hold(writer)  # all are there before the first is looked at
        with ThreadPoolExecutor(40) as pool:
            waiting = [pool.submit(service.forget, [word]) for word in receipts[:40]]
            eventually(lambda: len(writer.waiting()) == 40)
            queued = service.client.get("/v1/requests", headers=service.admin).json()["requests"]
            assert [entry["state"] for entry in queued].count("queued") == 40
            shown = service.client.get(f"/v1/requests/{queued[0]['id']}", headers=service.admin).json()["request"]
            assert (shown["state"], shown["certificate"]) == ("queued", None)
            gate.set()
            answers = [future.result() for future in waiting]
        assert {answer.status_code for answer in answers} == {202}
        assert len(made) == 1
        ids = {answer.json()["request"]["id"] for answer in answers}
        assert service.client.post("/v1/publish", headers=service.admin).status_code == 200
        versions = {
            service.client.get(f"/v1/requests/{each}", headers=service.admin).json()["request"]["certificate"]
            for each in ids
        }
        assert len(versions) == 1  # one publication for all
        assert service.digest() == never(range(40, 200))


# -- the policy --------------------------------------------------------------------------------------


def test_the_policy_by_the_clock() -> None:
    now = [0.0]
    policy = Policy(Settings(min_batch=3, max_delay=10, quiet=1, seal_after=100), lambda: now[0])
    assert policy.wait() is None
    policy.changed(1, forgotten=True)
    assert (policy.wait(), policy.to_publish()) == (None, False)  # one alone is never due
    now[0] = 4
    policy.changed(2)
    assert (policy.wait(), policy.to_publish()) == (1, False)  # enough; now we wait for quiet
    now[0] = 4.5
    policy.changed(1)
    assert policy.wait() == 1
    now[0] = 5.5
    assert policy.to_publish()
    policy.failed()
    assert not policy.to_publish()
    now[0] = 11
    assert policy.to_publish()
    policy.published()
    assert policy.unpublished == 0
    assert policy.wait() == 89
    now[0] = 100
    assert policy.to_seal()
    policy.changed(1)
    assert not policy.to_seal()  # first this is published
    policy.published()
    policy.sealed()
    assert policy.wait() is None


def test_a_steady_stream_is_published_at_the_latest_after_the_delay() -> None:
    now = [0.0]
    policy = Policy(Settings(min_batch=1, max_delay=5, quiet=1), lambda: now[0])
    for step in range(10):
        now[0] = step * 0.5
        policy.changed(1)
        assert not policy.to_publish()
    now[0] = 5.0
    assert policy.to_publish()


def test_a_publication_that_takes_long_is_waited_with() -> None:
    now = [0.0]
    policy = Policy(Settings(max_delay=5, quiet=0.05), lambda: now[0])
    policy.changed(1)
    assert policy.wait() == pytest.approx(0.05)
    policy.published(3.0)
    policy.changed(1)
    assert policy.wait() == pytest.approx(0.6)
    policy.published(100.0)
    policy.changed(1)
    assert policy.wait() == pytest.approx(5.0)


def test_an_operator_may_have_small_batches_published_after_the_delay(tmp_path: Path) -> None:
    now = [0.0]
    policy = Settings(min_batch=10, max_delay=60, quiet=0, seal_after=0, publish_below_min_batch=True)
    with running(tmp_path / "s", policy, clock=lambda: now[0]) as service:
        receipts = service.learn(range(20))
        eventually(lambda: service.service.writer.published.number)
        request = service.forget(receipts[:2]).json()["request"]
        assert request["state"] == "applied"
        service.service.writer.poke()
        service.digest()  # the writer has been round
        assert service.state(request["id"]) == "applied"
        assert service.client.get("/v1/model", headers=service.admin).json()["version"] == 1
        now[0] = 61.0
        service.service.writer.poke()
        service.wait(request["id"], "sealed")
        assert service.client.get("/v1/model", headers=service.admin).json()["samples"] == 18


def test_the_history_has_the_probe_set(tmp_path: Path) -> None:
    folder = new_store(tmp_path / "s")
    (folder / "service").mkdir(mode=0o700)
    np.savez(folder / "service" / "probe.npz", features=ROWS[100:].astype(np.float32), labels=np.array(LABELS[100:]))
    with running(folder) as service:
        service.learn(range(100))
        points = eventually(lambda: service.client.get("/v1/history", headers=service.admin).json()["points"])
    assert points[0]["samples"] == 100
    assert 0.4 < points[0]["accuracy"] <= 1


# -- when things go wrong ----------------------------------------------------------------------------


def test_a_full_queue_says_when_to_come_again(tmp_path: Path) -> None:
    with running(tmp_path / "s", Settings(queue_requests=2, queue_samples=5)) as service:
        writer = service.service.writer
        gate = hold(writer)
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(service.learn, range(2))
            eventually(lambda: writer._jobs)
            answer = service.client.post("/v1/samples", json={"samples": samples(range(10, 15))}, headers=service.admin)
            assert answer.status_code == 429
            assert answer.json()["error"]["code"] == "queue_full"
            assert int(answer.headers["retry-after"]) >= 1
            gate.set()
            assert len(first.result()) == 2
        assert service.digest() == never(range(2))


def test_a_store_that_fails_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path / "s") as service:
        receipts = service.learn(range(10))

        def fails(*_: Any, **__: Any) -> None:
            raise LedgerError("the disk is gone", uncertain=True)

        with monkeypatch.context() as patched:
            patched.setattr(Store, "commit", fails)
            answer = service.forget(receipts[:1])
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "unavailable"
        assert "retry-after" in answer.headers
        eventually(lambda: service.client.get("/readyz").status_code == 200)
        assert service.forget(receipts[:1]).status_code == 202
        assert service.digest() == never(range(1, 10))


def test_a_seal_waits_for_somebody_who_reads_and_the_writer_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "PATIENCE", 0.02)
    now = [0.0]
    with running(tmp_path / "s", Settings(quiet=0, max_delay=0, seal_after=0), clock=lambda: now[0]) as service:
        writer, metrics = service.service.writer, service.service.metrics
        receipts = service.learn(range(20))

        def published_alone(request: str) -> None:
            service.wait(request)
            service.digest()  # by now a seal was tried
            assert service.client.get("/readyz").status_code == 200

        with closing(sqlite3.connect(tmp_path / "s" / "ledger.sqlite", isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM neverseen_meta").fetchall()
            opened = writer.store
            published_alone(service.forget(receipts[:1]).json()["request"]["id"])
            answer = service.client.post("/v1/samples", json={"samples": samples([50])}, headers=service.admin)
            published_alone(answer.json()["request"]["id"])
            now[0] = 31.0  # it is tried again
            published_alone(service.forget(receipts[1:2]).json()["request"]["id"])
            asked = service.client.post("/v1/seal", headers=service.admin)
            assert asked.status_code == 503
            assert "certificate 4 is published but not sealed" in asked.json()["error"]["message"]
            assert not writer.published.clean
            now[0] = 1000.0  # and one that waits for so long is late
            service.digest()
            assert service.client.get("/readyz").status_code == 503
        now[0] = 1031.0
        writer.poke()
        service.wait(answer.json()["request"]["id"], "sealed")
        assert writer.store is opened  # no time did the writer fail
        assert (metrics.writer_failures._value.get(), metrics.publish_failures._value.get()) == (0, 0)
        assert service.client.get("/readyz").status_code == 200
        assert service.digest() == never([*range(2, 20), 50])


def test_the_queue_refuses_when_it_stops(tmp_path: Path) -> None:
    with running(tmp_path / "s") as service:
        writer = service.service.writer
        assert writer.stop(10)
        with pytest.raises(Refusal, match="is stopping"):
            writer.submit(Job(FORGET, "r", "key", None, 1, [b""]))
        assert service.client.get("/readyz").status_code == 503
        assert service.client.get("/healthz").status_code == 200


def test_settings(tmp_path: Path) -> None:
    (tmp_path / "service").mkdir()
    path = tmp_path / "service" / "service.toml"
    assert Settings.load(tmp_path, min_batch=None) == Settings()
    path.write_text("min_batch = 7\noutput = 'scores'\n")
    assert Settings.load(tmp_path, min_batch=3).min_batch == 3
    assert Settings.load(tmp_path).output == "scores"
    for words, said in (
        ("minbatch = 7", "unknown settings: minbatch"),
        ("min_batch = 0", "at least 1"),
        ("min_batch = 1.5", "whole number"),
        ("max_delay = nan", "max_delay must be"),
        ("output = 'all'", "one of labels"),
        ("x = [", "cannot be read"),
        (f"min_batch = 1{'0' * 400}", "min_batch must be at least 1 and at most 9007199254740992; got 1000"),
        (f"max_delay = 1{'0' * 400}", "max_delay must be not below 0 and at most"),
        (f"min_batch = 1{'0' * 5000}", "cannot be read"),
    ):
        path.write_text(words)
        with pytest.raises(ConfigurationError, match=said):
            Settings.load(tmp_path)
    path.write_text("minbatch = 7")
    with pytest.raises(ConfigurationError, match="Known settings: min_batch, max_delay, .*audit_files"):
        Settings.load(tmp_path)


def test_a_file_of_settings_that_cannot_be_read_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "service").mkdir()
    path = tmp_path / "service" / "service.toml"
    path.symlink_to("elsewhere.toml")
    with pytest.raises(ConfigurationError, match=r"service\.toml is a link that leads nowhere"):
        Settings.load(tmp_path)
    (tmp_path / "service" / "elsewhere.toml").write_text("min_batch = 100\n")
    assert Settings.load(tmp_path).min_batch == 100
    path.unlink()
    path.mkdir()
    with pytest.raises(ConfigurationError, match=r"service\.toml is not a file"):
        Settings.load(tmp_path)
    path.rmdir()
    os.mkfifo(path)
    with pytest.raises(ConfigurationError, match=r"service\.toml is not a file"):
        Settings.load(tmp_path)


def test_settings_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "service").mkdir()
    (tmp_path / "service" / "service.toml").write_text("min_batch = 7\nmax_delay = 3\n")
    given = {"MIN_BATCH": "8", "QUIET": "2", "OUTPUT": "scores", "PUBLISH_BELOW_MIN_BATCH": "true"}
    for name, value in given.items():
        monkeypatch.setenv(f"NEVERSEEN_SERVE_{name}", value)
    monkeypatch.setenv("NEVERSEEN_CACHE", "elsewhere")  # no setting of the service
    expected = Settings(min_batch=8, max_delay=3.0, quiet=2.0, output="scores", publish_below_min_batch=True)
    assert Settings.load(tmp_path) == expected
    assert Settings.load(tmp_path, min_batch=9).min_batch == 9
    for name, value, said in (
        ("MIN_BATCH", "ten", "min_batch must be a whole number; got 'ten' .*in the environment"),
        ("MIN_BATCH", "", "min_batch must be a whole number; got ''"),
        ("MIN_BATCH", "true", "whole number"),
        ("MAX_DELAY", "NaN", "max_delay must be"),
        ("PUBLISH_BELOW_MIN_BATCH", "yes", "true or false; got 'yes'"),
        ("OUTPUT", "all", "one of labels"),
        ("MINBATCH", "7", "the environment .* has unknown settings: minbatch. Known settings: min_batch"),
        ("min_batch", "7", "unknown settings: MIN_BATCH"),
    ):
        with monkeypatch.context() as patched:
            patched.setenv(f"NEVERSEEN_SERVE_{name}", value)
            with pytest.raises(ConfigurationError, match=said):
                Settings.load(tmp_path)


def test_files_of_receipts(tmp_path: Path) -> None:
    """A form takes what the command line takes."""
    with running(tmp_path / "s") as service:
        words = service.learn(range(4))
        line = json.dumps({"receipt": words[0]}).encode()

        def form(content: bytes) -> Any:
            files = {"receipts": ("r", content)}
            return service.client.post("/v1/forget?dry_run=true", files=files, headers=service.admin).json()

        for content, samples in (
            (line, 1),
            (b"\xef\xbb\xbf" + line, 1),
            (words[0].encode(), 1),
            ("\r\n".join(words[:3]).encode() + b"\n\n", 3),
            (line + b"\n" + words[1].encode(), 2),
            (base64.urlsafe_b64decode(words[0]), 1),
        ):
            assert form(content)["effect"]["samples"] == samples
        assert form(b"\n")["error"]["code"] == "invalid_request"
        for content in (b"a,b,c\n1,2,3\n", line.decode().encode("utf-16"), b"AAAA", words[0][3:-9].encode()):
            error = form(line + b"\n" + content)["error"]
            assert (error["code"], error["row"]) == ("receipt_rejected", 1), content
            assert error["message"].startswith("line 2 of the file is not a receipt")


def test_receipts_in_either_alphabet(tmp_path: Path) -> None:
    with running(tmp_path / "s") as service:
        words = service.learn(range(30))
        raw = [base64.urlsafe_b64decode(word) for word in words]
        forms = [
            base64.b64encode(raw[0]).decode(),
            base64.b64encode(raw[1]).decode().rstrip("="),
            base64.urlsafe_b64encode(raw[2]).decode().rstrip("="),
            words[3],
        ]
        assert service.forget(forms).status_code == 202
        assert service.digest() == never(range(4, 30))


def test_a_file_of_receipts(tmp_path: Path) -> None:
    with running(tmp_path / "s") as service:
        words = service.learn(range(10))
        lines = "".join(f'{{"id": "x", "receipt": "{word}"}}\n' for word in words[:3])

        def send(content: bytes) -> int:
            files = {"receipts": ("mine.jsonl", content)}
            return service.client.post("/v1/forget", files=files, headers=service.admin).status_code

        assert send(lines.encode()) == 202
        assert send(base64.urlsafe_b64decode(words[3])) == 202
        assert send(b'{"receipt": 5}\n') == 422
        assert send(b"\xff\xfe") == 404
        assert service.digest() == never(range(4, 10))
