"""The client, against answers made up here."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import logging
import pickle
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neverseen.errors import (
    AlreadyForgottenError,
    CertificateRejectedError,
    ConfigurationError,
    InputError,
    NotLearnedError,
    ReceiptRejectedError,
)
from neverseen.proof.certificates import Certificate, State, issue
from neverseen.proof.receipts import commitment
from neverseen.proof.signing import SigningKey

httpx = pytest.importorskip("httpx")

from neverseen.client import (  # noqa: E402
    AsyncClient,
    Client,
    ForgottenAlreadyError,
    NotHeldError,
    ReceiptRefusedError,
    ServiceError,
    UnreachableError,
    WaitedTooLongError,
    conversations,
)

TOKEN = "nsk_" + "s3cret_" * 6 + "x"
HERE = "http://127.0.0.1:9"
REQUEST = {
    "id": "r1",
    "kind": "forget",
    "state": "applied",
    "samples": 1,
    "applied_at": "2026-01-31T12:00:00Z",
    "certificate": None,
    "key": "ada",
}
Answer = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that clients would have slept."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    return slept


class Service:
    """Answers in turn, and what was asked; the last answer stays."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[Any] = []

    def __call__(self, request: Any) -> Any:
        self.asked.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def client(self, **settings: Any) -> Client:
        return Client(HERE, token=TOKEN, transport=httpx.MockTransport(self), **settings)

    def body(self, place: int = -1) -> Any:
        return json.loads(self.asked[place].content)


def answer(body: Any, status: int = 200, **headers: str) -> Any:
    return httpx.Response(status, json=body, headers={name.replace("_", "-"): value for name, value in headers.items()})


def error(code: str, status: int, headers: dict[str, str] | None = None, **more: Any) -> Any:
    return httpx.Response(status, json={"error": {"code": code, "message": "So it is.", **more}}, headers=headers)


APPLIED = answer({"request": REQUEST}, 202)


# -- what is sent ------------------------------------------------------------------------------------


def test_learning_sends_samples_and_reads_receipts() -> None:
    receipts = [b"NSR1\xff\xfe", b"NSR1?>"]
    tokens = [base64.urlsafe_b64encode(receipt).decode() for receipt in receipts]
    service = Service(answer({"request": REQUEST | {"kind": "learn"}, "receipts": tokens}, 201))
    with service.client() as client:
        result = client.learn(np.array([[1, 2.5], [3, 4]]), np.array([1, 2]), ["a", "b"], owner="ada")
    assert result.receipts == receipts
    assert (result.request.id, result.request.kind, result.request.samples) == ("r1", "learn", 1)
    (sent,) = service.asked
    assert (sent.method, sent.url.path) == ("POST", "/v1/samples")
    assert sent.headers["authorization"] == f"Bearer {TOKEN}"
    assert service.body() == {
        "samples": [
            {"features": [1.0, 2.5], "label": 1, "id": "a"},
            {"features": [3.0, 4.0], "label": 2, "id": "b"},
        ],
        "owner": "ada",
    }
    assert "receipts" not in repr(result)


def test_samples_of_every_kind(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    picture = image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    written = io.BytesIO()
    picture.save(written, "PNG")
    (tmp_path / "a.png").write_bytes(written.getvalue())
    service = Service(answer({"version": 1, "predictions": [{"label": "x"}]}))
    client = service.client()

    def pixels(given: Any) -> list[list[int]]:
        client.predict(given)
        sent = [base64.b64decode(entry["image"]) for entry in service.body()["samples"]]
        return [np.asarray(image.open(io.BytesIO(raw))).ravel().tolist() for raw in sent]

    whole = [list(range(48))]
    assert pixels(picture) == pixels([picture]) == whole
    assert pixels(written.getvalue()) == pixels([tmp_path / "a.png"]) == pixels(tmp_path / "a.png") == whole
    assert pixels(np.arange(48, dtype=np.uint8).reshape(1, 4, 4, 3)) == whole
    assert pixels(np.arange(32, dtype=np.uint8).reshape(2, 4, 4)) == [list(range(16)), list(range(16, 32))]
    client.predict(["a text", "ü"])
    assert service.body() == {"samples": [{"text": "a text"}, {"text": "ü"}]}
    client.predict("one")
    assert service.body() == {"samples": [{"text": "one"}]}
    client.predict([[1, 2], (0.5, 3), np.array([4, 5.5])])
    assert [entry["features"] for entry in service.body()["samples"]] == [[1, 2], [0.5, 3], [4, 5.5]]
    with pytest.raises(InputError, match="sample 0: cannot write mode CMYK"):
        client.predict(picture.convert("CMYK"))


@pytest.mark.parametrize(
    ("samples", "labels", "ids", "why"),
    [
        ([], [], None, "there are no samples"),
        (np.array([[1.0], [np.nan]]), [1, 2], None, "sample 1 has a feature that is not finite"),
        ([[1.0], [float("inf")]], [1, 2], None, "sample 1 has a feature that is not finite"),
        ([[1.0]], [1, 2], None, "1 samples and 2 labels"),
        ([[1.0], [2.0]], [1, 2], ["a"], "2 samples and 1 ids"),
        ([[1.0]], [1], [1], "ids are texts"),
        ([[1.0]], [0.5], None, "a label is of type float"),
        ([[1.0]], [True], None, "a label is of type bool"),
        ([{"a": 1}], [1], None, "sample 0 is of type dict"),
        ([[]], [1], None, "sample 0 is of type list"),
        (np.zeros(3), [1], None, r"float64 of shape \(3,\)"),
    ],
)
def test_what_cannot_be_sent(samples: Any, labels: Any, ids: Any, why: str) -> None:
    service = Service(answer({}))
    with pytest.raises(InputError, match=why):
        service.client().learn(samples, labels, ids)
    assert not service.asked


def test_labels_are_texts_and_integers() -> None:
    service = Service(answer({"request": REQUEST, "receipts": []}, 201))
    service.client().learn([[0]] * 4, [np.int64(3), "three", 3.0, np.str_("x")])
    assert [entry["label"] for entry in service.body()["samples"]] == [3, "three", 3, "x"]


def test_forgetting_in_each_way() -> None:
    service = Service(APPLIED)
    client = service.client()
    assert client.forget(b"NSR1").state == "applied"
    assert service.body() == {"receipts": ["TlNSMQ=="]}
    client.forget(receipts=[b"NSR1", "TlNSMQ=="])
    assert service.body() == {"receipts": ["TlNSMQ==", "TlNSMQ=="]}
    client.forget(samples=[[1.0]], labels=["a"], ids=["i"])
    assert service.body() == {"samples": [{"features": [1.0], "label": "a", "id": "i"}]}
    client.forget(samples=[[1.0]], labels=["a"], ids=["i"], owner="ada")
    assert service.body() == {"samples": [{"features": [1.0], "label": "a", "id": "i"}], "owner": "ada"}
    client.forget_class(np.int8(7))  # type: ignore[call-overload]
    assert (service.asked[-1].url.path, service.body()) == ("/v1/forget/class", {"label": 7})
    keys = {sent.headers["idempotency-key"] for sent in service.asked}
    assert len(keys) == 5
    client.forget(b"NSR1", idempotency_key="mine")
    assert service.asked[-1].headers["idempotency-key"] == "mine"


def test_rehearsals_change_nothing() -> None:
    service = Service(answer({"effect": {"samples": 3, "classes": {"a": 3}}}))
    client = service.client()
    assert client.forget(b"NSR1", dry_run=True).samples == 3
    assert client.forget_class("a", dry_run=True).raw["classes"] == {"a": 3}
    assert [str(sent.url.query, "ascii") for sent in service.asked] == ["dry_run=true"] * 2
    assert not any("idempotency-key" in sent.headers for sent in service.asked)


def test_a_rehearsal_is_made_under_the_key_that_is_given() -> None:
    service = Service(answer({"effect": {"samples": 3, "classes": {"a": 3}}}))
    client = service.client()
    client.forget(b"NSR1", dry_run=True, idempotency_key="k")
    client.forget_class("a", dry_run=True, idempotency_key="k")
    assert [sent.headers["idempotency-key"] for sent in service.asked] == ["k", "k"]
    for trouble in (httpx.ReadError("cut off"), error("internal", 500), answer({"odd": 1})):
        with pytest.raises(ServiceError) as caught:
            Service(trouble).client(retries=0).forget(b"NSR1", dry_run=True, idempotency_key="k")
        assert caught.value.idempotency_key is None  # nothing may have been carried out


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "either receipts or samples"),
        ({"receipts": b"a", "samples": [[1]]}, "either receipts or samples"),
        ({"receipts": b"a", "labels": [1]}, "receipts hold their labels"),
        ({"samples": [[1]]}, "give the labels"),
        ({"receipts": []}, "there are no receipts"),
    ],
)
def test_what_cannot_be_forgotten(given: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        Service(APPLIED).client().forget(**given)


# -- what is answered --------------------------------------------------------------------------------


def test_predictions_in_each_mode() -> None:
    rows: list[Any] = [
        {"label": 3},
        {"top": [{"label": "a", "score": 0.5}, {"label": "b", "score": -1}]},
        {"scores": {"a": -1, "b": 2}},
    ]
    found = Service(answer({"version": 4, "predictions": rows})).client().predict([[0]] * 3)
    assert found.version == 4
    assert found.labels == [3, "a", "b"]
    assert [row.scores for row in found.rows] == [None, {"a": 0.5, "b": -1}, {"b": 2, "a": -1}]


def test_looking() -> None:
    said = {"samples": 5, "classes": 2, "version": 3, "digest": "ab", "queue": 0}
    model = Service(answer(said)).client().model()
    assert (model.samples, model.classes, model.version, model.digest, model.raw["queue"]) == (5, 2, 3, "ab", 0)
    service = Service(answer({"requests": [REQUEST]}))
    assert [entry.key for entry in service.client().requests(5, before="r9")] == ["ada"]
    assert str(service.asked[0].url.query, "ascii") == "limit=5&before=r9"
    assert Service(answer(REQUEST)).client().request("r1").applied_at == "2026-01-31T12:00:00Z"
    listed = {"certificates": [{"number": 1, "time": "t", "learned": 2, "forgotten": 0}]}
    assert [entry.number for entry in Service(answer(listed)).client().certificates()] == [1]
    for bad in ("", "../keys", "a b", "ü", "a/b"):
        with pytest.raises(InputError, match="request's id"):
            Service(answer(REQUEST)).client().request(bad)


def test_waiting(waits: list[float]) -> None:
    applied, sealed = answer(REQUEST), answer(REQUEST | {"state": "sealed", "certificate": 2})
    client = Service(applied, applied, applied, sealed).client()
    assert client.wait("r1").certificate == 2
    assert waits == pytest.approx([0.05, 0.075, 0.1125])
    with pytest.raises(InputError, match="no state 'done'"):
        client.wait("r1", state="done")
    with pytest.raises(WaitedTooLongError, match="r1 is applied and not published after 0 seconds") as caught:
        Service(applied).client().wait("r1", timeout=0)
    assert isinstance(caught.value, TimeoutError)


def busy(seconds: str) -> Any:
    return error("unavailable", 503, {"Retry-After": seconds})


@pytest.mark.parametrize(
    ("outcome", "cause"),
    [(busy("15"), "unavailable"), (busy("0"), "unavailable"), (httpx.ConnectError("refused"), "unreachable")],
)
def test_waiting_ends_when_it_was_told_to(outcome: Any, cause: str) -> None:
    now = [100.0]

    def wait() -> None:
        talk = conversations.wait(conversations.Retries(count=50), "r1", "published", 1.0, lambda: now[0])
        step = next(talk)
        while True:
            if isinstance(step, conversations.Pause):
                now[0] += step.seconds
                step = next(talk)
            else:
                assert step.timeout == 1.0  # seconds, at most and at least
                now[0] += 0.01
                step = talk.send(outcome)

    with pytest.raises(WaitedTooLongError, match=r"r1 .* after 1 seconds.*wait again") as caught:
        wait()
    assert now[0] <= 101.0
    assert isinstance(caught.value.__cause__, ServiceError)
    assert caught.value.__cause__.code == cause


def test_waiting_for_a_service_that_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        client, began = Client(f"http://127.0.0.1:{deaf.getsockname()[1]}", token=TOKEN), time.monotonic()
        with client, pytest.raises(WaitedTooLongError) as caught:
            client.wait("r1", timeout=0.2)
    assert time.monotonic() - began < 10
    assert isinstance(caught.value.__cause__, UnreachableError)


def test_waiting_tells_at_once_what_waiting_does_not_mend() -> None:
    for code, status in (("not_found", 404), ("unauthorized", 401)):
        with pytest.raises(ServiceError) as caught:
            Service(error(code, status)).client().wait("r1", timeout=1)
        assert caught.value.code == code
    with pytest.raises(ServiceError, match="unavailable"):  # for longer than the client is patient
        Service(busy("60")).client().wait("r1", timeout=600)


def certificates() -> tuple[SigningKey, Certificate]:
    key, configuration = SigningKey.generate(), "ab" * 32
    after = State("01" * 32, "02" * 32, samples=3, classes=2)
    forgotten = [commitment(b"NSR1mine")]
    return key, issue(1, None, configuration, State.empty(configuration), after, 4, 1, forgotten, 40, None, key)


def test_certificates_are_checked_here() -> None:
    key, certificate = certificates()
    service = Service(httpx.Response(200, content=certificate.to_json()))
    got = service.client().certificate(1)
    assert got == certificate
    assert Client.check(got, public_key=key.public, receipt=b"NSR1mine") == certificate
    assert AsyncClient.check(certificate.to_json(), public_key=key.public) == certificate
    with pytest.raises(CertificateRejectedError, match="not with the key given"):
        Client.check(got, public_key="00" * 32)
    with pytest.raises(CertificateRejectedError, match="does not list this receipt as forgotten"):
        Client.check(got, public_key=key.public, receipt=b"NSR1another")
    bent = httpx.Response(200, content=certificate.to_json().replace(b'"learned":4', b'"learned":5'))
    with pytest.raises(CertificateRejectedError):
        Service(bent).client().certificate(1)


def test_verifying_at_the_service() -> None:
    _, certificate = certificates()
    check = {"name": "signature", "passed": True, "message": "signed", "seconds": 0.1}
    service = Service(answer({"checks": [check]}))
    client = service.client()
    assert client.verify(1, b"NSR1", ["mine"])[0].passed
    assert service.body() == {"certificate": 1, "checks": ["mine"], "receipt": "TlNSMQ=="}
    client.verify(certificate)
    assert service.body()["certificate"] == json.loads(certificate.to_json())


def test_errors_say_what_the_service_said() -> None:
    def raised(answered: Any) -> Any:
        with pytest.raises(ServiceError) as caught:
            Service(answered).client(retries=0).forget(b"NSR1")
        return caught.value

    found = raised(error("receipt_rejected", 409, {"x-request-id": "x1"}, row=2, reason="altered"))
    assert isinstance(found, ReceiptRefusedError)
    assert isinstance(found, ReceiptRejectedError)
    assert (found.code, found.message, found.status, found.row) == ("receipt_rejected", "So it is.", 409, 2)
    assert (found.reason, found.request_id, str(found)) == ("altered", "x1", "So it is. (receipt_rejected)")
    found = raised(error("already_forgotten", 409, row=0, certificate=7))
    assert isinstance(found, ForgottenAlreadyError)
    assert isinstance(found, AlreadyForgottenError)
    assert (found.certificate, found.reason, found.row) == (7, "used", 0)
    found = raised(error("already_forgotten", 409))
    assert type(found) is ReceiptRefusedError
    found = raised(error("not_found", 404, row=1))
    assert isinstance(found, NotHeldError)
    assert isinstance(found, NotLearnedError)
    assert (found.rows, found.row) == ((1,), 1)
    found = raised(error("not_found", 404))
    assert type(found) is ServiceError
    found = raised(error("rate_limited", 429, {"retry-after": "7"}))
    assert (found.code, found.retry_after) == ("rate_limited", 7.0)
    for odd in (httpx.Response(500, text="<html>"), answer(["error"], 500), answer({"error": "x"}, 400)):
        assert "not by this service" in str(raised(odd))


@pytest.mark.parametrize("odd", [{}, [], {"request": 1}, {"request": REQUEST | {"state": "lost"}}])
def test_answers_of_another_form(odd: Any) -> None:
    with pytest.raises(ServiceError, match="does not have the expected form"):
        Service(answer(odd)).client().forget(b"NSR1")


# -- trying again ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "trouble",
    [httpx.ConnectError("no"), httpx.ReadTimeout("slow"), httpx.RemoteProtocolError("cut"), httpx.DecodingError("bad")]
    + [error("x", status) for status in (429, 502, 503, 504)],
)
def test_changes_are_sent_again_under_one_key(trouble: Any, waits: list[float]) -> None:
    service = Service(trouble, trouble, APPLIED)
    assert service.client().forget(b"NSR1").id == "r1"
    assert len(service.asked) == 3
    assert len({sent.headers["idempotency-key"] for sent in service.asked}) == 1
    assert 0.1 <= waits[0] <= 0.2 <= waits[1] <= 0.4


def test_waits_as_long_as_the_service_asks(waits: list[float]) -> None:
    Service(error("rate_limited", 429, {"retry-after": "3"}), APPLIED).client().forget(b"NSR1")
    assert 3 <= waits.pop() <= 3.1
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=18), usegmt=True)
    Service(error("rate_limited", 429, {"retry-after": soon}), APPLIED).client().forget(b"NSR1")
    assert 3 <= waits.pop() <= 18.1
    Service(error("rate_limited", 429, {"retry-after": "soon"}), APPLIED).client().forget(b"NSR1")
    assert waits.pop() <= 0.2
    service = Service(error("rate_limited", 429, {"retry-after": "3600"}), APPLIED)
    with pytest.raises(ServiceError) as caught:  # that long nobody waits: the caller decides
        service.client().forget(b"NSR1")
    assert (caught.value.retry_after, waits) == (3600.0, [])


def test_gives_up_at_last(waits: list[float]) -> None:
    service = Service(httpx.ConnectError("refused"))
    with pytest.raises(UnreachableError, match="POST /v1/forget got no answer in 6 tries: refused") as caught:
        service.client().forget(b"NSR1")
    assert issubclass(UnreachableError, ConnectionError)
    assert (len(service.asked), len(waits), caught.value.status) == (6, 5, None)
    service = Service(error("queue_full", 429))
    with pytest.raises(ServiceError, match="queue_full"):
        service.client(retries=2).forget(b"NSR1")
    assert len(service.asked) == 3


@pytest.mark.parametrize(
    "answers",
    [
        [httpx.ReadTimeout("slow")],
        [error("internal", 500)],
        [httpx.ReadTimeout("slow"), httpx.ConnectError("refused")],
        [httpx.RemoteProtocolError("cut"), error("rate_limited", 429)],
        [error("unavailable", 503), error("id_taken", 409)],
        [answer({"request": REQUEST}, 201)],  # without receipts
        [httpx.Response(201, text='{"request": {"id": "r1", ')],
        [httpx.Response(201, text="[" * 100_000)],
    ],
)
def test_what_may_have_been_done_can_be_repeated(answers: list[Any]) -> None:
    service = Service(*answers)
    with pytest.raises(ServiceError, match="It may have been carried out") as caught:
        service.client().learn([[1.0]], ["cat"])
    (key,) = {sent.headers["idempotency-key"] for sent in service.asked}
    assert caught.value.idempotency_key == key
    assert repr(key) in str(caught.value)
    service = Service(answer({"request": REQUEST, "receipts": ["TlNSMQ=="]}, 201))
    assert service.client().learn([[1.0]], ["cat"], idempotency_key=key).receipts == [b"NSR1"]
    assert service.asked[0].headers["idempotency-key"] == key


@pytest.mark.parametrize("trouble", [httpx.ConnectError("refused"), error("rate_limited", 429), error("id_taken", 409)])
def test_what_was_not_done_has_no_key_to_repeat_it(trouble: Any) -> None:
    with pytest.raises(ServiceError) as caught:
        Service(trouble).client().learn([[1.0]], ["cat"])
    assert caught.value.idempotency_key is None
    assert "carried out" not in str(caught.value)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422, 500])
def test_what_would_fail_again_is_not_sent_again(status: int) -> None:
    service = Service(error("x", status))
    with pytest.raises(ServiceError):
        service.client().forget(b"NSR1")
    assert len(service.asked) == 1


def test_what_is_not_safe_is_not_sent_again() -> None:
    for trouble in (httpx.ReadTimeout("slow"), error("x", 503)):
        service = Service(trouble, answer({}))
        with pytest.raises(ServiceError):
            service.client().publish()
        assert len(service.asked) == 1
    service = Service(httpx.ConnectError("no"), error("x", 429), answer({"certificate": 1}))
    assert service.client().seal() == {"certificate": 1}  # these two never began
    assert len(service.asked) == 3


def test_waits_double_up_to_the_longest() -> None:
    retries = conversations.Retries(10, 1.0, 5.0)
    for tries, most in ((1, 1), (2, 2), (3, 4), (4, 5), (9, 5)):
        drawn = [retries.wait(tries, None) for _ in range(50)]
        assert most / 2 <= min(drawn) < max(drawn) <= most


# -- the token ---------------------------------------------------------------------------------------


def test_the_token_goes_nowhere_else(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    service = Service(httpx.ReadTimeout("slow"))
    client = service.client(retries=0)
    with pytest.raises(ServiceError) as caught:
        client.forget(b"NSR1")
    shown = [repr(client), str(client), repr(vars(client)), repr(client._http), caplog.text]
    shown += traceback.format_exception(caught.value)
    shown += [repr(caught.value.__cause__.request.headers), repr(service.asked[0])]  # type: ignore[union-attr]
    assert not any("s3cret" in text for text in shown)
    assert repr(client) == "Client('http://127.0.0.1:9')"
    assert b"s3cret" not in pickle.dumps(str(caught.value))


@pytest.mark.parametrize("url", ["http://example.org", "http://10.0.0.1:8080", "http://localhost.example.org"])
def test_without_tls_only_to_this_machine(url: str) -> None:
    with pytest.raises(ConfigurationError, match="has no TLS"):
        Client(url, token=TOKEN)
    with pytest.raises(ConfigurationError, match="has no TLS"):
        AsyncClient(url, token=TOKEN)
    Client(url, token=TOKEN, insecure=True).close()
    Client(url).close()  # there is nothing to lose


@pytest.mark.parametrize("url", ["http://localhost:1", "http://127.0.0.2", "http://[::1]:1", "https://example.org"])
def test_addresses_that_are_fine(url: str) -> None:
    Client(url, token=TOKEN).close()


@pytest.mark.parametrize(
    "url", ["example.org", "ftp://example.org", "http://", "https://a:b@example.org", "https://a?b"]
)
def test_addresses_that_are_not(url: str) -> None:
    with pytest.raises(ConfigurationError, match="address"):
        Client(url, token=TOKEN)


@pytest.mark.parametrize("token", ["", "nsk_a\nb", "nsk_ü", b"nsk_"])
def test_tokens_that_are_not(token: Any) -> None:
    with pytest.raises(ConfigurationError, match="not an API key") as caught:
        Client(HERE, token=token)
    assert "ü" not in str(caught.value)


def test_redirects_are_not_followed() -> None:
    service = Service(httpx.Response(307, headers={"location": "https://elsewhere.example.org/"}))
    with pytest.raises(ServiceError, match="status 307, but not by this service"):
        service.client().model()
    assert len(service.asked) == 1


# -- asynchronous ------------------------------------------------------------------------------------


def test_the_asynchronous_client_does_the_same(waits: list[float]) -> None:
    tokens = ["TlNSMQ=="]
    key, certificate = certificates()

    def serve(request: Any) -> Any:
        asked.append(request)
        if len(asked) == 1:
            raise httpx.ConnectError("not yet")
        return {
            "/v1/samples": answer({"request": REQUEST, "receipts": tokens}, 201),
            "/v1/forget": answer({"effect": {"samples": 1}, "request": REQUEST}),
            "/v1/forget/class": answer({"request": REQUEST}),
            "/v1/predict": answer({"version": 1, "predictions": [{"label": 1}]}),
            "/v1/model": answer({"samples": 5, "classes": 2, "version": 3, "digest": "ab"}),
            "/v1/requests": answer({"requests": [REQUEST]}),
            "/v1/requests/r1": answer(REQUEST | {"state": "published" if len(asked) > 9 else "applied"}),
            "/v1/certificates": answer({"certificates": []}),
            "/v1/certificates/1": httpx.Response(200, content=certificate.to_json()),
            "/v1/verify": answer({"checks": []}),
            "/v1/publish": answer({"certificate": 1}),
            "/v1/seal": answer({"certificate": 1}),
        }[request.url.path]

    asked: list[Any] = []

    async def talk() -> None:
        async with AsyncClient(HERE, token=TOKEN, transport=httpx.MockTransport(serve)) as client:
            learned = await client.learn([[1.0]], [1])
            assert learned.receipts == [b"NSR1"]
            assert (await client.forget(learned.receipts, dry_run=True)).samples == 1
            assert (await client.forget(learned.receipts)).state == "applied"
            assert (await client.forget_class(1)).id == "r1"
            assert (await client.predict([[1.0]])).labels == [1]
            assert (await client.model()).classes == 2
            assert (await client.request(learned)).id == "r1"
            assert (await client.wait(learned)).state == "published"
            assert len(await client.requests()) == 1
            assert await client.certificates() == []
            assert client.check(await client.certificate(1), public_key=key.public)
            assert await client.verify(1) == []
            assert await client.publish() == await client.seal() == {"certificate": 1}
            assert repr(client) == "AsyncClient('http://127.0.0.1:9')"

    asyncio.run(talk())
    assert asked[0].headers["idempotency-key"] == asked[1].headers["idempotency-key"]
    assert waits


def test_both_clients_have_the_same_verbs() -> None:
    import inspect

    def verbs(kind: type) -> dict[str, list[str]]:
        found = {name: value for name, value in vars(kind).items() if not name.startswith("_")}
        return {
            name: [str(entry) for entry in inspect.signature(value).parameters.values()]
            for name, value in found.items()
        }

    assert verbs(Client) == verbs(AsyncClient)


def test_a_call_that_is_cut_off_tells_its_idempotency_key() -> None:
    """Cancelled, timed out or interrupted: the change may have been made, and only its key makes it count once."""
    keys: list[str] = []

    async def hang(request: Any) -> Any:
        keys.append(request.headers["idempotency-key"])
        arrived.set()
        if len(keys) < 3:
            await asyncio.Event().wait()
        return answer({"request": REQUEST}, 202)

    async def talk() -> None:
        async with AsyncClient(HERE, token=TOKEN, transport=httpx.MockTransport(hang)) as client:
            task = asyncio.create_task(client.forget(b"NSR1"))
            await arrived.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError) as cancelled:
                await task
            key = vars(cancelled.value)["idempotency_key"]
            with pytest.raises(TimeoutError) as late:
                await asyncio.wait_for(client.forget(b"NSR1", idempotency_key=key), 0.01)
            assert vars(late.value.__cause__)["idempotency_key"] == key
            await client.forget(b"NSR1", idempotency_key=key)
            assert keys == [key] * 3

    arrived = asyncio.Event()
    asyncio.run(talk())

    def interrupt(request: Any) -> Any:
        keys.append(request.headers["idempotency-key"])
        raise KeyboardInterrupt

    with (
        Client(HERE, token=TOKEN, transport=httpx.MockTransport(interrupt)) as client,
        pytest.raises(KeyboardInterrupt) as interrupted,
    ):
        client.learn([[1.0]], ["x"])
    assert vars(interrupted.value)["idempotency_key"] == keys[-1]


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_call_that_is_cut_off_while_its_answer_is_read(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """The change was made, and a learn's receipts are in the answer: with the key they can be had again."""

    def cut_off(_: Any) -> Any:
        raise error

    monkeypatch.setattr(httpx.Response, "json", cut_off)
    transport = httpx.MockTransport(lambda _: answer({"request": REQUEST}, 202))
    calls: list[Callable[[Client], Any]] = [
        lambda client: client.learn([[1.0]], ["x"], idempotency_key="mine"),
        lambda client: client.forget(b"NSR1", idempotency_key="mine"),
        lambda client: client.forget_class("x", idempotency_key="mine"),
    ]
    with Client(HERE, token=TOKEN, transport=transport) as client:
        for call in calls:
            with pytest.raises(error) as caught:
                call(client)
            assert vars(caught.value)["idempotency_key"] == "mine"


def test_the_package_does_without_the_client() -> None:
    code = "import sys, neverseen, neverseen.store; print([name for name in sys.modules if name.startswith('httpx')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
    code = (
        "import sys; sys.modules['httpx'] = None\n"
        "try:\n    import neverseen.client\n"
        "except ImportError as error:\n    print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "MissingPackageError the client needs httpx: pip install 'neverseen[client]'\n"
