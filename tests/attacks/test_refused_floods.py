"""Promise: a request that is refused counts against its sender's limit, and floods of them do not fill the disk."""

from __future__ import annotations

import json
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from neverseen.service import Settings, audit_key, check_audit
from tests.services import KEYS, bearer, new_store, running, token

SLOW = Settings(requests_per_second=1e-6, request_burst=5, public_per_second=1e-6, public_burst=5)  # never refills
MANY = 60


def refused_lines(folder: Path) -> list[dict[str, Any]]:
    path = folder / "service" / "audit.jsonl"
    check_audit(path.parent, audit_key(KEYS))
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    return [line for line in lines if line.get("outcome") not in (None, "applied")]


def told(lines: list[dict[str, Any]]) -> Counter[str]:
    """How many refusals the lines tell of, by outcome."""
    counts: Counter[str] = Counter()
    for line in lines:
        counts[line["outcome"]] += line.get("count", 1)
    return counts


def test_wrong_scopes_are_limited(tmp_path: Path) -> None:
    with running(tmp_path / "s", SLOW) as service:
        key = bearer(token(service.folder, "nosy", "predict"))
        answers = [service.client.post("/v1/forget", json={"receipts": ["AAAA"]}, headers=key) for _ in range(MANY)]
        assert Counter(answer.status_code for answer in answers) == {403: 5, 429: MANY - 5}
    lines = refused_lines(tmp_path / "s")
    assert len(lines) <= 4  # of each outcome the first, and a count of the others
    assert told(lines) == {"forbidden": 5, "rate_limited": MANY - 5}
    assert {line["key"] for line in lines} == {"nosy"}


@pytest.mark.parametrize("path", ["/v1/model", "/v1/history", "/v1/requests"])
def test_wrong_scopes_are_limited_where_nothing_changes(tmp_path: Path, path: str) -> None:
    with running(tmp_path / "s", SLOW) as service:
        key = bearer(token(service.folder, "nosy", "predict"))
        codes = Counter(service.client.get(path, headers=key).status_code for _ in range(MANY))
        assert codes == {200 if path == "/v1/model" else 403: 5, 429: MANY - 5}
    assert len(refused_lines(tmp_path / "s")) <= 4


def test_guessed_tokens_are_limited(tmp_path: Path) -> None:
    with running(tmp_path / "s", SLOW) as service:
        guesses = [bearer(f"nsk_{number:043d}") for number in range(MANY)]
        codes = Counter(service.client.get("/v1/model", headers=guess).status_code for guess in guesses)
        assert codes == {401: 5, 429: MANY - 5}
        assert service.client.get("/v1/model", headers=service.admin).status_code == 200
    lines = refused_lines(tmp_path / "s")
    assert len(lines) <= 2
    assert told(lines) == {"unauthorized": 5}


def test_a_flood_that_is_within_the_limit_is_few_lines(tmp_path: Path) -> None:
    with running(tmp_path / "s") as service:
        key = bearer(token(service.folder, "nosy", "predict"))
        for _ in range(MANY):
            assert service.client.post("/v1/publish", headers=key).status_code == 403
            assert service.client.post("/v1/forget", json={"receipts": ["AAAA"]}, headers=service.admin).is_error
            assert service.client.post("/v1/samples", content=b"{", headers=service.admin).is_error
    lines = refused_lines(tmp_path / "s")
    assert len(lines) <= 6
    assert sorted(told(lines).values()) == [MANY] * 3  # and yet none is untold


def test_questions_that_nobody_asks_need_no_key_and_fill_no_disk(tmp_path: Path) -> None:
    with running(tmp_path / "s") as service:
        for number in range(MANY):
            assert service.client.post(f"/v1/forget?x{number}=1", json={}).status_code == 422
            assert service.client.delete(f"/v1/x{number}").status_code == 404
        text = service.client.get("/metrics", headers=service.admin).text
        assert not any(f"x{number}" in text for number in range(MANY))  # a label for each would fill memory
    assert len(refused_lines(tmp_path / "s")) <= 2


def test_who_is_refused_waits_for_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path / "s") as service, monkeypatch.context() as patched:
        audit, writers = service.service.audit, list[str]()
        append = audit.append

        def noted(entries: Any) -> bool:
            writers.append(threading.current_thread().name)
            return append(entries)

        patched.setattr(audit, "append", noted)
        key = bearer(token(service.folder, "nosy", "predict"))
        assert service.client.post("/v1/seal", headers=key).status_code == 403
        assert service.client.get("/v1/model").status_code == 401
        assert set(writers) <= {"audit"}  # the log's own thread, which nobody waits for


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_odd_queries_are_limited_and_short(tmp_path: Path, method: str) -> None:
    with running(tmp_path / "s", SLOW) as service:
        codes = Counter(service.client.request(method, f"/v1/forget?x{number}=1").status_code for number in range(MANY))
        assert set(codes) == {422, 429}
        assert codes[422] <= 5


def test_a_query_has_an_end(tmp_path: Path) -> None:
    with running(tmp_path / "s") as service:
        long = service.client.get("/v1/requests?" + "a&" * 600, headers=service.admin)
        assert (long.status_code, long.json()["error"]["code"]) == (422, "invalid_request")


def test_a_target_has_an_end(tmp_path: Path) -> None:
    with running(tmp_path / "s") as service:
        assert service.client.get("/v1/requests?" + "a" * 10_000).status_code == 400
        assert service.client.get("/readyz").status_code == 200


@pytest.mark.parametrize("path", ["/v1/certificates/key", "/openapi.json", "/healthz", "/nowhere", "/v1/nowhere", "/"])
def test_a_good_key_counts_for_itself_and_not_for_its_address(tmp_path: Path, path: str) -> None:
    slow = replace(SLOW, health_per_second=1e-6, health_burst=5)
    folder = new_store(tmp_path / "s")
    tokens = [token(folder, name, "predict") for name in ("ada", "bob")]  # known from the start
    with running(folder, slow) as service:
        for headers in map(bearer, tokens):
            codes = [service.client.get(path, headers=headers).status_code for _ in range(7)]
            assert [code == 429 for code in codes] == [False] * 5 + [True] * 2
        guesses = [bearer(f"nsk_{number:043d}") for number in range(7)]
        codes = [service.client.get(path, headers=guess).status_code for guess in guesses]
        assert [code == 429 for code in codes] == [False] * 5 + [True] * 2  # who guesses is slowed down
        assert service.client.get(path).status_code == 429
