"""What if, over HTTP: the answer of a forget, for those who may audit, and nothing changes but the audit log."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from neverseen.client import AsyncClient, Client, ForgottenAlreadyError, NotHeldError, ServiceError
from neverseen.encoding import quantise
from neverseen.errors import InputError
from neverseen.service import Settings
from neverseen.service.errors import Refusal
from neverseen.service.operations.settings import service_folder
from neverseen.service.reception.contents import Given, from_base64
from neverseen.service.reception.messages import packed, unpacked
from neverseen.service.writer.rehearsing import without
from tests.services import LABELS, QUICK, ROWS, Running, bearer, hold, never, running, samples, token
from tests.waiting import eventually

TEST = [{"features": ROWS[row].tolist(), "label": LABELS[row]} for row in range(100, 140)]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("what-if") / "s") as found:
        found.receipts = found.learn(range(60))  # type: ignore[attr-defined]
        found.client.post("/v1/publish", headers=found.admin)
        found.auditor = bearer(token(found.folder, "auditor", "audit"))  # type: ignore[attr-defined]
        yield found


def receipts(service: Running) -> list[str]:
    found: list[str] = service.receipts  # type: ignore[attr-defined]
    return found


def ask(service: Running, body: dict[str, Any], headers: dict[str, str] | None = None) -> httpx.Response:
    return service.client.post("/v1/what-if", json=body, headers=headers or getattr(service, "auditor", service.admin))


def held(service: Running) -> Any:
    """All that the store holds and shows."""
    return service.service.writer.ask(
        lambda opened: (
            opened.digest(),
            list(opened.ledger.samples()),
            list(opened.ledger.journal()),
            opened.ledger.requests(100),
            opened.published_number,
        )
    ).result(30)


def lines(folder: Path) -> list[dict[str, Any]]:
    content = (service_folder(folder) / "audit.jsonl").read_text("utf-8")
    return [json.loads(line) for line in content.splitlines()]


def refused(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert error["code"] == code
    return error


# -- answers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["receipts", "samples", "ids"])
@pytest.mark.parametrize("count", [1, 7])
def test_the_answer_is_that_of_a_forget(service: Running, by: str, count: int) -> None:
    gone = list(range(3, 3 + count))
    given = {"receipts": [receipts(service)[row] for row in gone]}
    before = held(service)
    found = ask(service, given if by == "receipts" else {"samples": samples(gone, by == "ids")}).json()
    assert held(service) == before
    assert (found["now"]["digest"], found["without"]["digest"]) == (
        never(range(60)),
        never([row for row in range(60) if row not in gone]),
    )
    assert (found["now"]["samples"], found["without"]["samples"], found["changed"]) == (60, 60 - count, None)
    assert found["without"]["accuracy"] is None
    counts = {entry["label"]: entry["samples"] for entry in found["without"]["classes"]}
    assert counts == {
        name: sum(LABELS[row] == name for row in range(60) if row not in gone) for name in ("cat", "dog", "emu")
    }


def test_predictions_with_and_without(service: Running) -> None:
    rows = [row for row in range(60) if LABELS[row] == "cat"][:-1]
    found = ask(service, {"receipts": [receipts(service)[row] for row in rows], "test": TEST}).json()
    apart = ask(service, {"samples": samples(rows), "test": TEST * 3}).json()  # in a process apart
    assert apart["without"]["accuracy"] == found["without"]["accuracy"]
    assert apart["changed"] == 3 * found["changed"]
    views = service.service.writer.ask(
        lambda opened: (opened.without([]), opened.without(ROWS[rows], [LABELS[row] for row in rows]))
    ).result(30)
    now, then = (view.predict(ROWS[100:140]) for view in views)
    assert found["changed"] == np.count_nonzero(now != then) > 0
    assert found["now"]["accuracy"] == np.mean(now == LABELS[100:140])
    assert found["without"]["accuracy"] == np.mean(then == LABELS[100:140])


def test_without_all(service: Running) -> None:
    found = ask(service, {"receipts": receipts(service), "test": TEST}).json()
    assert found["without"] == {"samples": 0, "classes": [], "digest": never([]), "accuracy": 0.0}
    assert found["changed"] == len(TEST)


def test_what_is_asked_and_what_is_predicted_travel_together() -> None:
    for rows in ([], list(quantise(ROWS[:2]).astype(np.float64)), ["ab", "c"]):
        given = Given(rows, [b"one", b"", b"three"], ["x"] * len(rows), [None], tested=len(rows))
        about, parts = packed(given)
        found = unpacked(json.loads(json.dumps(about)), [memoryview(bytes(part)) for part in parts])
        assert (found.receipts, found.labels, found.tested) == (given.receipts, given.labels, len(rows))
        assert [np.asarray(row).tolist() for row in found.samples] == [np.asarray(row).tolist() for row in rows]
        assert len(found) == 3 + len(rows)


# -- who may ask, and what is told -------------------------------------------------------------------


def test_only_for_those_who_may_audit(service: Running) -> None:
    body = {"receipts": receipts(service)[:1]}
    others = token(service.folder, "others", "learn", "predict", "forget")
    ada = token(service.folder, "ada", "forget", "learn", owner="ada")
    for headers, status, code in (
        (bearer(others), 403, "forbidden"),
        (bearer(ada), 403, "forbidden"),
        ({"Authorization": "Bearer nsk_" + "x" * 43}, 401, "unauthorized"),
    ):
        refused(ask(service, body, headers), status, code)
    assert ask(service, body, service.admin).status_code == 200


def test_an_owner_asks_about_their_own_samples_alone(service: Running) -> None:
    """No key with an owner has the scope audit. If one had, it would be told what a forget tells it."""
    other = service.learn([90], owner="ada")
    tokens = [from_base64(word, "receipt", 0) for word in (*other, receipts(service)[0])]
    ask = service.service.writer.ask
    assert len(ask(lambda opened: without(opened, tokens[:1], "ada")).result(30)) == 2
    for owner, given in (("bob", tokens[:1]), ("ada", tokens[1:])):
        with pytest.raises(Refusal) as refusal:
            ask(partial(without, given=given, owner=owner)).result(30)
        assert refusal.value.code == "not_found"
    service.wait(service.forget(other).json()["request"]["id"])


def test_the_audit_log_has_a_line(service: Running) -> None:
    answer = ask(service, {"receipts": receipts(service)[:4], "test": TEST[:3]})
    line = lines(service.folder)[-1]
    assert {name: line[name] for name in ("action", "key", "outcome", "request", "samples")} == {
        "action": "what_if",
        "key": "auditor",
        "outcome": "answered",
        "request": answer.headers["x-request-id"],
        "samples": 4,
    }
    assert not any(word in json.dumps(line) for word in ("cat", "dog", "emu", receipts(service)[0][:20]))


def test_nothing_is_answered_that_has_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path / "s", Settings(quiet=1000, max_delay=1000)) as service:
        given = service.learn(range(6))
        audit = service.service.audit
        with monkeypatch.context() as patched:
            patched.setattr("neverseen.service.operations.audit.os.fsync", full)
            error = refused(ask(service, {"receipts": given[:1]}), 503, "unavailable")
            assert "nothing is answered" in error["message"]
            assert not audit.healthy
        eventually(lambda: audit.healthy)
        assert audit.append([])
        assert (
            b'"outcome":"answered"' not in audit.path.read_bytes()
        )  # nor does a line follow that says that it was answered
        service.learn([6])
        assert ask(service, {"receipts": given[:1]}).status_code == 200


def full(_: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_refusals(tmp_path: Path) -> None:
    with running(tmp_path / "s") as service:
        given = service.learn(range(20))
        service.wait(service.forget(given[:1]).json()["request"]["id"])
        before = held(service)
        for body, status, code in (
            ({"receipts": given[:2]}, 409, "already_forgotten"),
            ({"receipts": [given[3], given[3]]}, 422, "invalid_request"),
            ({"receipts": ["AAAA"]}, 404, "receipt_rejected"),
            ({"samples": samples([40])}, 404, "not_learned"),
            ({"samples": [samples([3])[0], samples([4], ids=False)[0]]}, 409, "ambiguous"),
            ({"receipts": given[3:4], "samples": samples([4])}, 422, "invalid_request"),
            ({"test": TEST}, 422, "invalid_request"),
            ({"receipts": given[3:4], "test": []}, 422, "invalid_request"),
            ({"receipts": given[3:4], "test": [TEST[0] | {"id": "x"}]}, 422, "invalid_request"),
            ({"receipts": given[3:4], "test": [{"features": TEST[0]["features"]}]}, 422, "invalid_request"),
            ({"receipts": given[3:4], "test": [{"text": "a", "label": "cat"}]}, 422, "invalid_request"),
        ):
            refused(ask(service, body), status, code)
        form = {"receipts": ("r.jsonl", b'{"receipt": "AAAA"}')}
        refused(service.client.post("/v1/what-if", files=form, headers=service.admin), 415, "wrong_content_type")
        twice = b'{"receipts": ["AAAA"], "receipts": ["AAAA"]}'
        headers = service.admin | {"Content-Type": "application/json"}
        refused(service.client.post("/v1/what-if", content=twice, headers=headers), 422, "invalid_request")
        refused(service.client.post("/v1/what-if?dry_run=true", content=twice, headers=headers), 422, "invalid_request")
        assert held(service) == before
    told = [(line["action"], line["outcome"]) for line in lines(tmp_path / "s") if line["action"] == "what_if"]
    assert ("what_if", "not_learned") in told
    assert ("what_if", "answered") not in told


# -- limits ------------------------------------------------------------------------------------------


def test_sizes_and_rates(tmp_path: Path) -> None:
    settings = Settings(quiet=0, max_delay=0, max_batch=10, samples_per_second=1e-9, sample_burst=30)
    with running(tmp_path / "s", settings) as service:
        given = service.learn(range(10))  # 20 are left
        error = refused(ask(service, {"receipts": given[:5], "test": TEST[:6]}), 422, "invalid_request")
        assert "at most 10" in error["message"]
        for _ in range(2):
            assert ask(service, {"receipts": given[:5], "test": TEST[:5]}).status_code == 200
        answer = ask(service, {"receipts": given[:1]})
        refused(answer, 429, "rate_limited")
        assert int(answer.headers["retry-after"]) >= 1


def test_few_wait_and_predictions_do_not(tmp_path: Path) -> None:
    """One is answered at a time. However many ask, the writer has one question of this kind."""
    with running(tmp_path / "s", Settings(quiet=0, max_delay=0, verify_waiting=3)) as service:
        given = service.learn(range(10))
        service.client.post("/v1/publish", headers=service.admin)
        go_on = hold(service.service.writer)
        with ThreadPoolExecutor(8) as pool:
            answers = [pool.submit(ask, service, {"receipts": given[:1]}) for _ in range(8)]
            body = {"samples": [{"features": ROWS[0].tolist()}]}
            assert service.client.post("/v1/predict", json=body, headers=service.admin).status_code == 200
            eventually(lambda: sum(answer.done() for answer in answers) == 5)  # one is asked, two wait
            assert len(service.service.writer) <= 2
            go_on.set()
            codes = sorted(answer.result(60).status_code for answer in answers)
        assert codes == [200] * 3 + [503] * 5


# -- the client --------------------------------------------------------------------------------------


def test_the_client_asks(service: Running) -> None:
    secret = service.auditor["Authorization"].removeprefix("Bearer ")  # type: ignore[attr-defined]
    test: dict[str, Any] = {"test": ROWS[100:140], "test_labels": LABELS[100:140]}
    with Client(service.url, secret) as client:
        found = client.what_if(receipts(service)[:2], **test)
        assert found.without.digest == never(range(2, 60))
        assert (found.now.samples, found.without.samples) == (60, 58)
        assert found.raw["without"]["accuracy"] == found.without.accuracy is not None
        same = client.what_if(samples=ROWS[:2], labels=LABELS[:2], ids=["s0", "s1"])
        assert (same.without.digest, same.without.accuracy, same.changed) == (found.without.digest, None, None)
        with pytest.raises(NotHeldError):
            client.what_if(samples=ROWS[70:71], labels=LABELS[70:71])
        bad: list[dict[str, Any]] = [{}, {"receipts": b"x", "samples": ROWS[:1]}, {"receipts": b"x", "test": ROWS[:1]}]
        for wrong in bad:
            with pytest.raises(InputError):
                client.what_if(**wrong)

    async def asked() -> Any:
        async with AsyncClient(service.url, secret) as client:
            return await client.what_if(receipts(service)[:2], **test)

    assert asyncio.run(asked()) == found
    with (
        Client(service.url, token(service.folder, "plain", "forget")) as client,
        pytest.raises(ServiceError, match="audit"),
    ):
        client.what_if(receipts(service)[:1])


def test_what_was_forgotten_is_told(tmp_path: Path) -> None:
    with running(tmp_path / "s", QUICK) as service:
        given = service.learn(range(4))
        service.wait(service.forget(given[:1]).json()["request"]["id"])
        secret = service.admin["Authorization"].removeprefix("Bearer ")
        with Client(service.url, secret) as client, pytest.raises(ForgottenAlreadyError):
            client.what_if(given[0])
