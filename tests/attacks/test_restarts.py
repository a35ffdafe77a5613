"""The promise: a restart puts nothing off. What was changed before it is published and sealed when it was due."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from neverseen import store
from neverseen.service import Settings
from neverseen.service.writer.policy import Policy
from tests.services import BACKBONE, KEYS, LABELS, ROWS, Running, never, running
from tests.waiting import eventually

HOUR = 3600.0


def passes(folder: Path, seconds: float) -> None:
    """Let time pass between two runs of a service, as far as the ledger tells."""
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as ledger, ledger:
        ledger.execute("UPDATE neverseen_requests SET applied = applied - ?", (int(1000 * seconds),))


def settings(**given: object) -> Settings:
    return Settings(**{"quiet": 0.0, "max_delay": 0.0, "seal_after": HOUR} | given)  # type: ignore[arg-type]


def forgotten(folder: Path, policy: Settings, state: str) -> str:
    """Forget a sample in a first run of a service; return the request."""
    with running(folder, policy, clock=lambda: 0.0) as service:
        receipts = service.learn(range(20))
        eventually(lambda: service.service.writer.published.number == 1)
        request: str = service.forget(receipts[:1]).json()["request"]["id"]
        service.wait(request, state)
        return request


def left(service: Running) -> float | None:
    """Seconds until the service has something to do."""
    service.digest()  # the writer has been round
    return service.service.writer.policy.wait()


@pytest.mark.parametrize("runs", [1, 3])
def test_a_seal_comes_when_it_was_due_however_often_the_service_is_restarted(tmp_path: Path, runs: int) -> None:
    request = forgotten(tmp_path / "s", settings(), "published")
    for run in range(1, runs):
        passes(tmp_path / "s", HOUR / runs)
        with running(tmp_path / "s", settings(), clock=lambda: 0.0) as service:
            assert left(service) == pytest.approx(HOUR - HOUR * run / runs, abs=60)
            assert service.state(request) == "published"
    passes(tmp_path / "s", HOUR / runs)
    with running(tmp_path / "s", settings(), clock=lambda: 0.0) as service:
        service.wait(request, "sealed")
        assert service.client.get("/readyz").status_code == 200
        assert service.digest() == never(range(1, 20))


def test_readyz_names_a_seal_that_restarts_have_put_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten(tmp_path / "s", settings(), "published")
    passes(tmp_path / "s", 2 * HOUR)
    monkeypatch.setattr("neverseen.service.writer.publishing.Publisher.keep_up", lambda *_: None)  # it cannot be made
    with running(tmp_path / "s", settings(), clock=lambda: 0.0) as service:
        answer = service.client.get("/readyz")
        assert (answer.status_code, "a seal is later than seal_after" in answer.text) == (503, True)


def test_a_small_batch_is_published_when_it_was_due(tmp_path: Path) -> None:
    policy = settings(min_batch=10, max_delay=HOUR, publish_below_min_batch=True)
    request = forgotten(tmp_path / "s", policy, "applied")
    passes(tmp_path / "s", HOUR / 2)
    with running(tmp_path / "s", policy, clock=lambda: 0.0) as service:
        assert left(service) == pytest.approx(HOUR / 2, abs=60)
        assert service.state(request) == "applied"
    passes(tmp_path / "s", HOUR / 2)
    with running(tmp_path / "s", policy, clock=lambda: 0.0) as service:
        service.wait(request, "sealed")


@pytest.mark.parametrize("case", ["by another program", "the clock was wrong"])
def test_what_was_forgotten_nobody_knows_when_is_sealed_at_once(tmp_path: Path, case: str) -> None:
    folder = tmp_path / "s"
    if case == "by another program":
        with running(folder, settings()) as service:
            service.learn(range(20))
        with store.open(folder, backbone=BACKBONE, keys=KEYS, hardware="numpy") as opened:
            opened.forget(ROWS[:1], LABELS[:1])
            opened.publish()
    else:
        forgotten(folder, settings(), "published")
        passes(folder, -24 * HOUR)  # it is said to be of tomorrow
    with running(folder, settings(), clock=lambda: 0.0) as service:
        eventually(lambda: service.service.writer.published.clean)
        assert service.client.get("/readyz").status_code == 200


# -- readyz ------------------------------------------------------------------------------------------


def test_a_publication_is_late_from_when_its_batch_was_full() -> None:
    now = [0.0]
    policy = Policy(Settings(min_batch=3, max_delay=10, quiet=1), lambda: now[0])
    policy.changed(1)
    now[0] = HOUR
    policy.changed(2)
    assert policy.overdue() is None
    policy.failed()
    now[0] = HOUR + 9
    assert policy.overdue() is None
    now[0] = HOUR + 20
    assert policy.overdue() == 10


def test_a_seal_that_waited_for_a_publication_is_late_from_then_on() -> None:
    now = [0.0]
    policy = Policy(Settings(min_batch=3, max_delay=0, quiet=0, seal_after=100), lambda: now[0])
    policy.changed(1, forgotten=True)
    now[0] = HOUR
    policy.changed(2)
    policy.published()
    assert policy.to_seal()
    assert policy.overdue() is None  # it is being made
    now[0] = HOUR + 70
    assert policy.overdue() == 10


def test_an_age_is_never_negative() -> None:
    policy = Policy(settings(), lambda: 1000.0)
    policy.unsealed(None)
    assert policy.wait() == 0
    assert policy.overdue() is None
    policy.sealed()
    policy.unsealed(HOUR - 10)
    assert policy.wait() == 10
