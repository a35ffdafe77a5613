"""What the service answers: predictions, the model, certificates and their checks, the console, counters."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from neverseen import AnalyticClassifier, RandomProjection, store
from neverseen.errors import ConfigurationError, IdTakenError, InputError, LabelError, NotTrackedError
from neverseen.proof.certificates import Certificate, check_chain
from neverseen.service import Settings
from neverseen.service.edge.bundling import bundle
from neverseen.service.edge.console_files import read_console
from neverseen.service.errors import CODES, refusal_of
from tests.services import (
    BACKBONE,
    KEYS,
    LABELS,
    QUICK,
    ROWS,
    SIZE,
    Running,
    hold,
    never,
    new_store,
    running,
    samples,
)
from tests.waiting import eventually


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("api") / "s") as found:
        found.receipts = found.learn(range(60))  # type: ignore[attr-defined]
        request = found.forget(found.receipts[:3]).json()["request"]["id"]  # type: ignore[attr-defined]
        found.wait(request)
        yield found


def receipts(service: Running) -> list[str]:
    found: list[str] = service.receipts  # type: ignore[attr-defined]
    return found


def predict(service: Running, rows: Any) -> httpx.Response:
    body = {"samples": [{"features": ROWS[row].tolist()} for row in rows]}
    return service.client.post("/v1/predict", json=body, headers=service.admin)


# -- predictions -------------------------------------------------------------------------------------


def test_labels(service: Running) -> None:
    found = predict(service, range(100, 160)).json()
    assert found["version"] == service.service.writer.published.number
    assert all(set(row) == {"label"} for row in found["predictions"])
    right = sum(row["label"] == label for row, label in zip(found["predictions"], LABELS[100:160], strict=True))
    assert right > 40


@pytest.mark.parametrize("output", ["top-k", "scores"])
def test_more_than_labels(tmp_path: Path, output: str) -> None:
    with running(tmp_path / "s", Settings(quiet=0, max_delay=0, output=output, top_k=2)) as service:
        assert predict(service, [0]).json()["error"]["code"] == "nothing_published"
        service.learn(range(40))
        service.client.post("/v1/publish", headers=service.admin)
        (found,) = predict(service, [100]).json()["predictions"]
        version = service.service.writer.published.version
        from neverseen.encoding import quantise

        exact = dict(zip(version.classes, version.scores(quantise(ROWS[100:101]))[0].tolist(), strict=True))
        scale = 2.0**-version.configuration.grid_bits
        if output == "scores":
            assert found["scores"] == {json.loads(name): value * scale for name, value in exact.items()}
        else:
            best = sorted(exact, key=lambda name: -exact[name])[:2]
            assert found["top"] == [{"label": json.loads(name), "score": exact[name] * scale} for name in best]


def test_predictions_do_not_wait_for_the_writer(service: Running) -> None:
    gate = hold(service.service.writer)
    try:
        assert predict(service, [100]).status_code == 200
        assert service.client.get("/v1/model", headers=service.admin).status_code == 200
        assert service.client.get("/v1/certificates").status_code == 200
    finally:
        gate.set()


def test_too_many_predictions_that_wait(tmp_path: Path) -> None:
    import threading
    from concurrent.futures import ThreadPoolExecutor

    with running(tmp_path / "s", Settings(predict_waiting=4, quiet=0, max_delay=0)) as service:
        service.learn(range(40))
        service.client.post("/v1/publish", headers=service.admin)
        gate, predictor = threading.Event(), service.service.predictor
        real, begun = predictor._published, threading.Event()

        def held_up() -> Any:
            begun.set()
            gate.wait()
            return real()

        predictor._published = held_up
        with ThreadPoolExecutor(3) as pool:
            first = pool.submit(predict, service, [0])
            assert begun.wait(60)
            second = pool.submit(predict, service, [0, 1, 2])
            eventually(lambda: predictor._jobs)
            third = predict(service, [0, 1])
            assert third.status_code == 503
            assert third.json()["error"]["code"] == "busy"
            assert "retry-after" in third.headers
            gate.set()
            assert first.result().status_code == second.result().status_code == 200


# -- the model and its requests ----------------------------------------------------------------------


def test_the_model_at_a_glance(service: Running) -> None:
    found = service.client.get("/v1/model", headers=service.admin).json()
    assert found["samples"] == 57
    assert found["classes"] == 3
    assert found["digest"] == never(range(3, 60))
    assert (found["kind"], found["n_features"], found["backbone"]) == ("features", 6, "precomputed")
    assert found["gamma"] == 2**9
    assert found["policy"] == QUICK.policy()
    assert found["key"]["scopes"] == ["admin"]
    assert sum(entry["samples"] for entry in found["class_counts"]) == 57


def test_the_model_says_which_gamma_its_samples_chose(tmp_path: Path) -> None:
    settings = AnalyticClassifier(RandomProjection(24, seed=1), "auto", hardware="numpy")
    recipe = {"kind": "features", "n_features": SIZE, "name": "precomputed"}
    store.create(tmp_path / "s", BACKBONE, settings, keys=KEYS, recipe=recipe).close()
    with running(tmp_path / "s") as service:
        assert service.client.get("/v1/model", headers=service.admin).json()["gamma"] is None
        receipts = service.learn(range(30))
        assert service.forget(receipts[:5]).status_code == 202
        left = AnalyticClassifier(RandomProjection(24, seed=1), "auto").fit(
            ROWS[5:30].astype(np.float32), [LABELS[row] for row in range(5, 30)]
        )

        def shown() -> bool:
            found = service.client.get("/v1/model", headers=service.admin).json()
            return bool(found["samples"] == 25 and found["gamma"] == left.gamma_)

        eventually(shown)


def test_a_list_of_requests_in_pages(service: Running) -> None:
    listed = service.client.get("/v1/requests", headers=service.admin).json()["requests"]
    assert [entry["kind"] for entry in listed] == ["forget", "learn"]
    first = service.client.get("/v1/requests", params={"limit": 1}, headers=service.admin).json()["requests"]
    rest = service.client.get("/v1/requests", params={"before": first[0]["id"]}, headers=service.admin).json()[
        "requests"
    ]
    assert first + rest == listed
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", listed[0]["applied_at"])


def test_forgetting_is_rehearsed(service: Running) -> None:
    before = service.digest()
    found = service.forget(receipts(service)[3:8], dry_run="true")
    assert found.status_code == 200
    effect = found.json()["effect"]
    assert effect["samples"] == 5
    assert {entry["label"]: entry["samples"] for entry in effect["classes"]} == {
        label: LABELS[3:8].count(label) for label in LABELS[3:8]
    }
    body = {"samples": samples(range(3, 8))}
    by_sample = service.client.post("/v1/forget?dry_run=true", json=body, headers=service.admin)
    assert by_sample.json() == found.json()
    label = LABELS[10]
    of_class = service.client.post("/v1/forget/class?dry_run=true", json={"label": label}, headers=service.admin)
    assert of_class.json()["effect"] == {
        "samples": LABELS[3:60].count(label),
        "classes": [{"label": label, "samples": LABELS[3:60].count(label)}],
    }
    assert service.forget(receipts(service)[:1], dry_run="true").json()["error"]["code"] == "already_forgotten"
    nothing = service.client.post("/v1/forget/class?dry_run=true", json={"label": "none"}, headers=service.admin)
    assert nothing.json()["error"]["code"] == "not_learned"
    assert service.digest() == before


def test_forgetting_a_class(tmp_path: Path) -> None:
    def cats(service: Running, of: str = "") -> httpx.Response:
        return service.client.post(f"/v1/forget/class{of}", json={"label": "cat"}, headers=service.admin)

    with running(tmp_path / "s") as service:
        service.learn(range(60))
        answer = cats(service)
        assert answer.status_code == 202
        assert answer.json()["request"]["samples"] == LABELS[:60].count("cat")
        assert service.digest() == never([row for row in range(60) if LABELS[row] != "cat"])
        assert cats(service).json()["error"]["code"] == "not_learned"
    with running(new_store(tmp_path / "untracked", tracked=False)) as service:
        service.learn(range(60))
        before = service.digest()
        refused = [cats(service, of).json()["error"] for of in ("", "?dry_run=true")]
        words = "the store does not keep sums for each class: forget the class's samples"
        assert refused == [{"code": "not_tracked", "message": words}] * 2
        assert service.digest() == before


def test_sealing(tmp_path: Path) -> None:
    with running(tmp_path / "s", Settings(quiet=10**6, max_delay=10**6)) as service:
        words = service.learn(range(10))
        request = service.forget(words[:1]).json()["request"]["id"]
        assert service.client.post("/v1/seal", headers=service.admin).json() == {"certificate": 1, "sealed": True}
        assert service.state(request) == "sealed"
        assert service.client.get("/v1/model", headers=service.admin).json()["sealed"] is True


def test_what_waits_for_a_batch_is_not_sealed(tmp_path: Path) -> None:
    with running(tmp_path / "s", Settings(min_batch=10, quiet=0, max_delay=0, seal_after=0)) as service:
        receipts, writer = service.learn(range(20)), service.service.writer

        def sealed() -> Any:
            return service.client.get("/v1/model", headers=service.admin).json()["sealed"]

        eventually(lambda: writer.published.number == 1, "a full batch is not published")
        assert sealed() is True
        service.forget(receipts[:1])
        assert sealed() is False
        answer = service.client.post("/v1/seal?below_min_batch=true", headers=service.admin)
        assert (answer.json(), sealed()) == ({"certificate": 2, "sealed": True}, True)


def test_an_answer_to_a_seal_is_about_that_seal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is forgotten while the answer is written does not change it."""
    with running(tmp_path / "s", Settings(quiet=10**6, max_delay=10**6)) as service:
        writer = service.service.writer
        service.learn(range(10))
        operate = writer.operate

        def then_forgotten(*given: Any) -> Any:
            found = operate(*given)
            writer.policy.changed(1, forgotten=True)
            return found

        monkeypatch.setattr(writer, "operate", then_forgotten)
        answer = service.client.post("/v1/seal", headers=service.admin).json()
        assert answer == {"certificate": 1, "sealed": True}
        assert not writer.is_sealed()


# -- certificates ------------------------------------------------------------------------------------


def test_certificates_are_for_everybody(service: Running) -> None:
    listed = service.client.get("/v1/certificates").json()["certificates"]
    numbers = [entry["number"] for entry in listed]
    assert numbers == list(range(len(numbers), 0, -1))
    whole = [service.client.get(f"/v1/certificates/{number}").content for number in reversed(numbers)]
    key = service.client.get("/v1/certificates/key").json()["key"]
    check_chain([Certificate.from_json(content) for content in whole], key)
    assert service.client.get("/v1/certificates?limit=1&before=2").json()["certificates"][0]["number"] == 1


def verify(service: Running, headers: dict[str, str] | None = None, **body: Any) -> dict[str, bool]:
    answer = service.client.post("/v1/verify", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return {check["name"]: check["passed"] for check in answer.json()["checks"]}


def test_checks(service: Running) -> None:
    newest = service.service.writer.published.number
    mine = receipts(service)[0]
    assert verify(service, certificate=newest, receipt=mine, checks=["signature", "chain", "mine"]) == {
        "signature": True,
        "chain": True,
        "mine": True,
    }
    assert verify(service, certificate=newest, receipt=receipts(service)[9], checks=["mine"]) == {"mine": False}
    assert verify(service, certificate=newest, checks=["mine"]) == {"mine": False}
    assert verify(service, service.admin, certificate=newest, checks=["weights"]) == {"weights": True}
    assert verify(service, service.admin, certificate=1, checks=["weights"]) == {"weights": newest == 1}
    denied = service.client.post("/v1/verify", json={"certificate": newest, "checks": ["weights"]})
    assert denied.status_code == 401
    assert service.client.post("/v1/verify", json={"certificate": 99, "checks": ["chain"]}).status_code == 404


def test_weights_that_cannot_be_checked_are_not_called_wrong(tmp_path: Path) -> None:
    with running(tmp_path / "s", Settings(quiet=10**6, max_delay=10**6)) as service:

        def weights(certificate: Any) -> Any:
            body = {"certificate": certificate, "checks": ["weights"]}
            return service.client.post("/v1/verify", json=body, headers=service.admin).json()["checks"][0]

        held = []
        for row in (0, 1):
            held += service.learn([row])
            service.client.post("/v1/publish", headers=service.admin)
        assert weights(2)["passed"] is True
        assert "undecided" not in weights(2)
        assert (weights(1)["passed"], weights(1)["undecided"]) == (False, True)
        for receipt in held:  # some, and then all samples are forgotten, and that is not published
            assert service.forget([receipt]).status_code == 202
            assert (weights(2)["passed"], weights(2)["undecided"]) == (False, True)
        mine = service.client.get("/v1/certificates/2").json()
        for forged in (mine | {"number": 3}, mine | {"after": mine["after"] | {"model": "0" * 64}}):
            assert weights(forged)["passed"] is False
            assert "undecided" not in weights(forged)


def test_a_certificate_that_was_altered(service: Running) -> None:
    document = service.client.get("/v1/certificates/1").json()
    assert verify(service, certificate=document, checks=["signature", "chain"]) == {"signature": True, "chain": True}
    altered = document | {"learned": document["learned"]}
    altered["time"] = "2031-01-01T00:00:00Z"
    assert verify(service, certificate=altered, checks=["signature", "chain"]) == {"signature": False, "chain": False}
    assert verify(service, certificate={"x": [1]}, checks=["signature"]) == {"signature": False}


def test_a_chain_that_was_altered_on_disk(tmp_path: Path) -> None:
    with running(tmp_path / "s") as service:
        service.wait(service.forget(service.learn(range(10))[:1]).json()["request"]["id"])
        newest = service.service.writer.published.number
        assert verify(service, certificate=newest, checks=["chain"]) == {"chain": True}
        path = service.folder / "certificates" / "00000001.json"
        path.write_bytes(path.read_bytes().replace(b'"learned":10', b'"learned":11'))
        assert verify(service, certificate=newest, checks=["chain"]) == {"chain": False}


@pytest.mark.parametrize("damage", ["cut", "empty", "missing", "folder"])
def test_a_certificate_that_cannot_be_read(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    with running(tmp_path / "s") as service:
        service.wait(service.forget(service.learn(range(10))[:1]).json()["request"]["id"])
        path = service.folder / "certificates" / "00000001.json"
        content = path.read_bytes()
        path.unlink()
        if damage == "folder":
            path.mkdir()
        elif damage != "missing":
            path.write_bytes(content[:100] if damage == "cut" else b"")
        listed = service.client.get("/v1/certificates")
        assert (listed.status_code, listed.json()["error"]["code"]) == (503, "unavailable")
        assert verify(service, certificate=1, checks=["signature", "chain"]) == {"signature": False, "chain": False}
        one = service.client.get("/v1/certificates/1")
        assert one.status_code == (503 if damage in ("missing", "folder") else 200)  # as it is
        said = service.client.post("/v1/verify", json={"certificate": 1, "checks": ["signature"]})
        for answer in (listed, one, said):
            assert str(tmp_path) not in answer.text
    assert "Traceback" not in caplog.text


# -- the console, headers, counters ------------------------------------------------------------------


def test_the_console_is_served(service: Running) -> None:
    for path in ("/", "/certificates/1"):
        answer = service.client.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
    for name, file in read_console().items():
        for coding, content in (("identity", file.content), ("gzip", file.compressed)):
            answer = service.client.get(f"/console/{name}", headers={"Accept-Encoding": coding})
            assert (answer.content, answer.headers["content-type"]) == (file.content, file.kind)
            assert answer.headers["vary"] == "Accept-Encoding"
            assert answer.headers.get("content-encoding", "identity") == coding
            assert int(answer.headers["content-length"]) == len(content)
            unchanged = {"If-None-Match": answer.headers["etag"], "Accept-Encoding": coding}
            again = service.client.get(f"/console/{name}", headers=unchanged)
            assert (again.status_code, again.content) == (304, b"")
            other = {"If-None-Match": answer.headers["etag"], "Accept-Encoding": "br, gzip;q=0"}
            assert service.client.get(f"/console/{name}", headers=other).status_code == (
                304 if coding == "identity" else 200
            )


def test_modules_that_cannot_be_joined_are_refused() -> None:
    for text in ('import "./b.js";', "export default 1;", 'export { b } from "./b.js";', "export let a = 1;"):
        with pytest.raises(ValueError, match="not understood: (import|export)"):
            bundle({"a.js": text, "b.js": "export const b = 1;"}, "a.js")
    circle = {"a.js": 'import { b } from "./b.js";', "b.js": 'import { a } from "./a.js";\nexport const b = 1;'}
    with pytest.raises(ValueError, match=r"a\.js imports itself"):
        bundle(circle, "a.js")


def test_every_answer_is_framed(service: Running) -> None:
    for path in ("/", "/v1/model", "/v1/certificates", "/nowhere", "/healthz"):
        headers = service.client.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'self';")
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
        assert re.fullmatch("req_[0-9a-f]{24}", headers["x-request-id"])
        assert headers["cache-control"] in ("no-store", "no-cache")


def test_methods(service: Running) -> None:
    answer = service.client.delete("/v1/model", headers=service.admin)
    assert answer.status_code == 405
    assert answer.json()["error"]["code"] == "method_not_allowed"
    assert answer.headers["allow"] == "GET"
    assert service.client.get("/v1/forget", headers=service.admin).status_code == 405


def test_counters_tell_nothing_of_samples(service: Running) -> None:
    predict(service, [0])
    text = service.client.get("/metrics", headers=service.admin).text
    assert 'neverseen_http_requests_total{route="/v1/predict",status="200"}' in text
    assert 'neverseen_changes_total{kind="forget"} 1.0' in text
    assert 'neverseen_samples_changed_total{kind="forget"} 3.0' in text
    assert "neverseen_samples 57.0" in text
    for word in ("cat", "dog", "emu", "admin", "req_"):
        assert f'"{word}' not in text


def test_a_mistake_of_ours_is_told_in_the_same_shape(service: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise ZeroDivisionError("secret words")

    monkeypatch.setattr(service.service.history, "written", fails)
    answer = service.client.get("/v1/history", headers=service.admin)
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal"
    assert "secret" not in answer.text
    assert answer.headers["x-request-id"] in answer.text


def test_a_refusal_has_the_code_and_the_row_of_the_error() -> None:
    class OperatorsError(InputError):
        code = "unheard_of"

    for error, code, row in [
        (IdTakenError("taken", 3), "id_taken", 3),
        (LabelError("odd"), "invalid_request", None),
        (OperatorsError("odd"), "invalid_request", None),
        (NotTrackedError("no sums"), "not_tracked", None),
        (ConfigurationError("odd"), "unavailable", None),
    ]:
        refusal = refusal_of(error, None)
        assert refusal is not None
        assert (refusal.code, refusal.row, refusal.status) == (code, row, CODES[code][0])


def test_latency_is_in_the_history(service: Running) -> None:
    predict(service, [0])
    latency = service.client.get("/v1/history", headers=service.admin).json()["latency"]
    assert latency
    assert 0 < latency[-1]["p50"] <= latency[-1]["p99"] < 10


def test_receipts_are_those_of_the_store(service: Running) -> None:
    raw = base64.urlsafe_b64decode(receipts(service)[5])
    said = service.service.writer.ask(lambda opened: opened.read_receipt(raw)).result(10)
    assert said == {"id": "s5", "label": LABELS[5], "owner": None}
