"""Promise: with `min_batch` = k, no published version differs from the one before by fewer than k samples.

Whoever sees the weights before and after a lone deletion can rebuild the sample (`python -m benchmarks.reconstruction`).
So time alone must not publish a small batch, changes that cancel must not fill one, and no counter may tell people
without the scope `audit` that somebody has just asked.
"""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from neverseen import store
from neverseen.client import Client, ServiceError
from neverseen.service import Settings
from tests.services import BACKBONE, KEYS, ROWS, Running, bearer, never, new_store, running, samples, token
from tests.waiting import eventually

BATCHED = Settings(min_batch=10, max_delay=60, quiet=0, seal_after=0)


def version(service: Running) -> int:
    return service.service.writer.published.number


def rounds(service: Running) -> None:
    """Let the writer look at the policy, several times."""
    for _ in range(3):
        service.service.writer.poke()
        service.digest()


def test_time_alone_publishes_no_lone_deletion(tmp_path: Path) -> None:
    now = [0.0]
    with running(tmp_path / "s", BATCHED, clock=lambda: now[0]) as service:
        receipts = service.learn(range(20))
        eventually(lambda: version(service) == 1, "a full batch is not published")
        service.forget(receipts[:1])
        for now[0] in (61.0, 10_000.0, 10_000_000.0):
            rounds(service)
        assert version(service) == 1
        service.forget(receipts[1:10])  # now there are ten
        eventually(lambda: version(service) == 2, "a full batch is not published")
        certificate = service.service.writer.published.certificate
        assert certificate is not None
        assert certificate.forgotten == 10


def test_a_restart_publishes_no_lone_deletion(tmp_path: Path) -> None:
    with running(tmp_path / "s", BATCHED) as service:
        receipts = service.learn(range(20))
        eventually(lambda: version(service) == 1, "a full batch is not published")
        service.forget(receipts[:1])
    now = [0.0]
    with running(tmp_path / "s", BATCHED, clock=lambda: now[0]) as service:
        now[0] = 10_000.0
        rounds(service)
        assert version(service) == 1
        assert service.digest() == never(range(1, 20))


def test_a_sample_that_came_and_went_between_two_runs_is_not_published_alone(tmp_path: Path) -> None:
    """The samples are the same as before. But a certificate would list the forgotten one, and a seal would reveal it."""
    with running(tmp_path / "s", BATCHED) as service:
        answer = service.client.post("/v1/samples", json={"samples": samples(range(20))}, headers=service.admin)
        request = answer.json()["request"]["id"]
        service.wait(request)
    with store.open(tmp_path / "s", backbone=BACKBONE, keys=KEYS) as opened:
        opened.forget(opened.learn(ROWS[100:101], ["cat"], ids=["new"]))
        assert opened.unpublished() == 0
    now = [0.0]
    with running(tmp_path / "s", BATCHED, clock=lambda: now[0]) as service:
        for now[0] in (61.0, 10_000.0):
            rounds(service)
        assert service.state(request) == "published"
        for verb in ("publish", "seal"):
            refused = service.client.post(f"/v1/{verb}", headers=service.admin)
            assert (refused.status_code, refused.json()["error"]["code"]) == (409, "batch_too_small")
        assert (version(service), service.service.writer.published.sealed) == (1, 0)
        service.learn(range(30, 40))
        service.wait(request, "sealed", 60)
        certificate = service.service.writer.published.certificate
        assert certificate is not None
        assert (certificate.number, certificate.forgotten) == (2, 1)


def test_a_seal_that_leaves_something_to_seal_comes_again(tmp_path: Path) -> None:
    """Whoever else forgets in the store, what is pending is published and sealed in the end."""
    settings = Settings(quiet=0, max_delay=0, seal_after=50)
    now = [0.0]
    with running(tmp_path / "s", settings, clock=lambda: now[0]) as service:
        receipts = service.learn(range(20))
        eventually(lambda: version(service) == 1, "it is not published")
        writer = service.service.writer

        def forget_beside(opened: store.Store) -> None:  # of which the policy does not know
            opened.forget([base64.urlsafe_b64decode(receipts[0])])
            writer._publisher.seal(opened, writer.policy)
            assert not writer.published.clean

        writer.ask(forget_beside).result(60)
        eventually(lambda: version(service) == 2, "what is pending is not published")
        now[0] = 100.0
        writer.poke()
        eventually(lambda: writer.published.clean, "it is not sealed")
        assert writer.published.sealed == 2


def test_changes_that_cancel_do_not_fill_a_batch(tmp_path: Path) -> None:
    now = [0.0]
    with running(tmp_path / "s", BATCHED, clock=lambda: now[0]) as service:
        victims = service.learn(range(20))
        eventually(lambda: version(service) == 1, "a full batch is not published")
        service.forget(victims[:1])
        for _ in range(2):  # thirty-two changes, of which nothing is left but the victim's
            own = service.learn(range(100, 108))
            service.forget(own)
        now[0] = 61.0
        rounds(service)
        assert version(service) == 1
        assert service.service.writer.policy.unpublished == 1


@pytest.mark.parametrize("verb", ["publish", "seal"])
def test_an_operator_publishes_a_lone_deletion_by_name_only(tmp_path: Path, verb: str) -> None:
    with running(tmp_path / "s", BATCHED) as service:
        receipts = service.learn(range(20))
        eventually(lambda: version(service) == 1, "a full batch is not published")
        service.forget(receipts[:1])
        answer = service.client.post(f"/v1/{verb}", headers=service.admin)
        assert answer.status_code == 409
        assert answer.json()["error"]["code"] == "batch_too_small"
        assert "below_min_batch=true" in answer.json()["error"]["message"]
        assert version(service) == 1
        with Client(service.url, token=service.admin["Authorization"].removeprefix("Bearer ")) as client:
            with pytest.raises(ServiceError, match="wait for more"):
                getattr(client, verb)()
            assert getattr(client, verb)(below_min_batch=True) == {"certificate": 2, "sealed": verb == "seal"}
        assert version(service) == 2


def test_nothing_is_sealed_while_a_lone_deletion_waits(tmp_path: Path) -> None:
    """That a request of somebody else turns to sealed would tell everybody that something was just forgotten."""
    folder = new_store(tmp_path / "s")
    curious = bearer(token(folder, "curious", "learn", owner="bob"))
    with running(folder, BATCHED) as service:
        receipts = service.learn(range(20))
        eventually(lambda: version(service) == 1, "a full batch is not published")
        answer = service.client.post("/v1/samples", json={"samples": samples(range(30, 40))}, headers=curious)
        request = answer.json()["request"]["id"]
        service.wait(request, "published", 60)
        assert service.forget(receipts[:1]).status_code == 202
        rounds(service)
        shown = service.client.get(f"/v1/requests/{request}", headers=curious).json()["request"]
        assert (shown["state"], shown["key"]) == ("published", "curious")
        service.service.writer.ask(lambda opened: opened.scrub()).result(60)  # a seal without a publication ...
        assert service.service.writer.ask(lambda opened: opened.status()["sealed"]).result(30) is False  # ... is none


def test_no_counter_tells_others_of_a_lone_deletion(tmp_path: Path) -> None:
    folder = new_store(tmp_path / "s")
    curious = bearer(token(folder, "curious", "predict", "learn", "forget"))
    with running(folder, BATCHED) as service:
        receipts = service.learn(range(20))
        eventually(lambda: version(service) == 1, "a full batch is not published")

        def seen() -> dict[str, object]:
            answer = service.client.get("/v1/model", headers=curious)
            return {
                "model": answer.json(),
                "ready": service.client.get("/readyz").json(),
                "requests": service.client.get("/v1/requests", headers=curious).json(),
                "certificates": service.client.get("/v1/certificates").json(),
                "predictions": service.client.post(
                    "/v1/predict", json={"samples": [{"features": samples([0])[0]["features"]}]}, headers=curious
                ).json(),
            }

        before = seen()
        assert service.forget(receipts[:1]).status_code == 202
        rounds(service)
        assert seen() == before
        for headers in ({}, curious):
            assert service.client.get("/metrics", headers=headers).status_code in (401, 403)
        told = service.client.get("/v1/model", headers=service.admin).json()
        assert told["unpublished"] == 1


def test_forgetting_a_class_tells_no_counts_without_audit(tmp_path: Path) -> None:
    """A rehearsal that counts what is held now would tell each lone deletion, and each new sample."""
    folder = new_store(tmp_path / "s")
    curious = bearer(token(folder, "curious", "predict", "learn", "forget"))
    with running(folder, BATCHED) as service:
        lone = service.client.post(
            "/v1/samples", json={"samples": [samples([0])[0] | {"id": "lone", "label": "lone"}]}, headers=service.admin
        ).json()["receipts"]
        receipts = service.learn(range(20))
        eventually(lambda: version(service) == 1, "a full batch is not published")
        labels = ["lone", "new", *{each["label"] for each in samples(range(20))}]

        def seen() -> list[object]:
            path = "/v1/forget/class?dry_run=true"
            answers = [service.client.post(path, json={"label": each}, headers=curious) for each in labels]
            return [(answer.status_code, answer.json()) for answer in answers]

        before = seen()
        assert before[0] == (200, {"effect": {"samples": None, "classes": [{"label": "lone", "samples": None}]}})
        assert before[1] == (404, {"error": before[1][1]["error"] | {"code": "not_learned"}})  # type: ignore[index]
        assert service.forget([receipts[0], *lone]).status_code == 202  # with it goes the last of a class
        new = {"samples": [samples([30])[0] | {"label": "new"}]}
        assert service.client.post("/v1/samples", json=new, headers=service.admin).status_code == 201
        assert version(service) == 1
        assert seen() == before
        label = "cat"  # so few that no batch is full, which would be published and sealed
        held = sum(each["label"] == label for each in samples(range(1, 20)))
        told = service.client.post("/v1/forget/class?dry_run=true", json={"label": label}, headers=service.admin).json()
        assert told["effect"]["samples"] == held
        with Client(service.url, token=curious["Authorization"].removeprefix("Bearer ")) as client:
            assert client.forget_class("lone", dry_run=True).samples is None
            done = client.forget_class(label)
        assert done.samples is None
        path = f"/v1/requests/{done.id}"
        assert service.client.get(path, headers=curious).json()["request"]["samples"] is None
        assert service.client.get("/v1/requests", headers=curious).json()["requests"][0]["samples"] is None
        assert service.client.get(path, headers=service.admin).json()["request"]["samples"] == held


def test_a_reader_of_the_folder_sees_whole_batches(tmp_path: Path) -> None:
    with running(tmp_path / "s", BATCHED) as service:
        receipts = service.learn(range(20))
        eventually(lambda: version(service) == 1, "a full batch is not published")
        service.forget(receipts[:9])
        assert service.service.writer.ask(lambda opened: opened.unpublished()).result(30) == 9
        service.learn(range(50, 51))
        eventually(lambda: version(service) == 2, "nine and one are ten")
