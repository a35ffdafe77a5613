"""A service on a store whose ledger is in PostgreSQL: the same answers and bits, also when connections are lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from neverseen import store
from tests.services import BACKBONE, KEYS, SIZE, Running, classifier, never, running, samples
from tests.waiting import eventually


@pytest.fixture
def url(schema: str) -> str:
    """PostgreSQL alone."""
    return schema


@pytest.fixture
def folder(tmp_path: Path, url: str) -> Path:
    recipe = {"kind": "features", "n_features": SIZE, "name": "precomputed"}
    store.create(tmp_path / "s", BACKBONE, classifier(), keys=KEYS, recipe=recipe, ledger=url).close()
    return tmp_path / "s"


def cut_connections(url: str) -> int:
    """End the store's connections to the database, as a server that restarts does; return how many there were."""
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        ended = connection.exec_driver_sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'neverseen'"
        ).all()
    engine.dispose()
    return len(ended)


def sent_until_taken(service: Running, path: str, body: dict[str, Any], once: str) -> httpx.Response:
    """Send a request under an idempotency key until the service is there for it."""

    def taken() -> httpx.Response | None:
        answer = service.client.post(path, json=body, headers=service.admin | {"Idempotency-Key": once})
        if answer.status_code != 503:
            return answer
        assert int(answer.headers["Retry-After"]) > 0
        return None

    return eventually(taken)


def test_it_serves_and_lasts(folder: Path) -> None:
    with running(folder) as service:
        receipts = service.learn(range(40))
        request = service.forget(receipts[:3]).json()["request"]["id"]
        service.wait(request)
        assert service.digest() == never(range(3, 40))
        assert service.forget(receipts[:1]).json()["error"]["code"] == "already_forgotten"
    assert not list(folder.glob("ledger*"))
    with running(folder) as service:
        assert service.digest() == never(range(3, 40))
        assert service.state(request) == "published"
        named = service.client.get("/v1/requests", headers=service.admin).json()["requests"]
        assert request in {row["id"] for row in named}
        assert service.client.get("/v1/model", headers=service.admin).json()["samples"] == 37
        service.wait(service.forget(receipts[3:5]).json()["request"]["id"])
        assert service.digest() == never(range(5, 40))


def test_a_lost_connection_costs_no_change(folder: Path, url: str) -> None:
    """A request that meets a lost connection is done, or refused and done when it is sent again: once, in any case."""
    with running(folder) as service:
        receipts = service.learn(range(40))
        for row in range(6):
            assert cut_connections(url) > 0
            answer = sent_until_taken(service, "/v1/forget", {"receipts": receipts[row : row + 1]}, f"forget-{row}")
            assert answer.status_code in (200, 202), answer.text
            service.wait(answer.json()["request"]["id"], seconds=30)
        assert cut_connections(url) > 0
        answer = sent_until_taken(service, "/v1/samples", {"samples": samples([50])}, "learn")
        assert answer.status_code == 201, answer.text
        assert service.digest() == never([*range(6, 40), 50])
    with running(folder) as service:
        assert service.digest() == never([*range(6, 40), 50])
