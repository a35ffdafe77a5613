"""Bodies are counted before they are parsed, and parsed apart: a huge one costs its sender, and nobody else."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import httpx
import pytest

from benchmarks.siege_attacks import BOUNDARY, FORM, form, head, many_receipts, many_samples, post
from neverseen.service import Settings
from neverseen.service.errors import Refusal
from neverseen.service.reception import contents
from neverseen.service.reception.contents import Bounds
from neverseen.service.reception.schemas import ForgetBody, PredictBody
from neverseen.service.sharing.limits import stranger
from tests.attacks.siege import Besieged, besieged, call, features
from tests.services import Running, bearer, hold, never, running, samples, token
from tests.waiting import eventually

PREDICT = {"samples": [{"features": features([0])[0]}]}
HUGE = 63 * 2**20
BOUNDS = Bounds("features", 6, 100, 1000, 2**20, 10**6, 10**7)
LOTS = 1_500_000_000  # bytes of memory


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Besieged]:
    with besieged(tmp_path_factory.mktemp("huge") / "s", quiet=0, max_delay=0, bytes_burst=2**50) as found:
        assert call(found, "/v1/samples", {"samples": samples(range(60))})[0] == 201
        assert call(found, "/v1/publish", {})[0] == 200
        yield found


def attack(service: Besieged, path: str, body: bytes, kind: str = "application/json") -> int:
    """Send a body; meanwhile others are answered, and the memory stays small."""
    with service.watched(PREDICT) as watch:
        status = post(service.port, path, service.tokens["attacker"], body, kind)
    assert set(watch.statuses) == {200}
    assert watch.peak < LOTS, f"{watch.peak / 2**20:.0f} MiB"
    return status


@pytest.mark.parametrize("path", ["/v1/samples", "/v1/predict", "/v1/forget", "/v1/forget?dry_run=true"])
def test_millions_of_samples(service: Besieged, path: str) -> None:
    assert attack(service, path, many_samples(HUGE)) == 413
    body = many_samples(31 * 2**20)
    assert body.count(b"{") > 2_700_000
    assert attack(service, path, body) == 422


@pytest.mark.parametrize("path", ["/v1/forget", "/v1/forget?dry_run=true"])
def test_millions_of_lines(service: Besieged, path: str) -> None:
    body = many_receipts(HUGE)
    assert body.count(b"\n") > 3_800_000
    assert attack(service, path, body, FORM) == 422


ODD = {
    "samples that are none": b'{"samples":[' + b"{}," * 9_000_000 + b"{}]}",
    "receipts that are none": b'{"receipts":[' + b'"",' * 9_000_000 + b'""]}',
    "numbers": b'{"samples":[{"features":[' + b"0," * 9_000_000 + b'0],"label":"x"}]}',
    "lists": b'{"samples":[{"features":[' + b"[]," * 9_000_000 + b'0],"label":"x"}]}',
    "backslashes": b'{"samples":["' + b'\\\\","' * 4_000_000 + b'"]}',
    "one long text": b'{"samples":[{"text":"' + b"{" * 30_000_000 + b'","label":"x"}]}',
    "many keys": b"{" + b",".join(b'"%d":0' % number for number in range(2_000_000)) + b"}",
}


PATHS = cycle(["/v1/samples", "/v1/predict", "/v1/forget"])


@pytest.mark.parametrize(("name", "path"), [(name, next(PATHS)) for name in ODD])
def test_odd_bodies(service: Besieged, name: str, path: str) -> None:
    assert attack(service, path, ODD[name]) in (400, 413, 422)


def test_forms_that_are_nearly_at_an_end(service: Besieged) -> None:
    near = b"\r\n--" + BOUNDARY[:-1]
    for content in (b"\r" * HUGE, near * (HUGE // len(near)), b"\r\n" * (HUGE // 2)):
        assert attack(service, "/v1/forget", form((b"receipts", content)), FORM) in (404, 422)


def test_forms_of_many_parts(service: Besieged) -> None:
    part = b'--%s\r\nContent-Disposition: form-data; name="files"; filename="x"\r\n\r\n\r\n' % BOUNDARY
    body = part * (HUGE // len(part)) + b"--%s--\r\n" % BOUNDARY
    for path in ("/v1/samples", "/v1/predict"):
        assert attack(service, path, body, FORM) == 422


def test_counts_come_before_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """More samples than are taken are refused before there is an object of any of them."""
    monkeypatch.setattr(PredictBody, "model_validate_json", None)
    monkeypatch.setattr(ForgetBody, "model_validate_json", None)
    many = {
        "predict": json.dumps({"samples": [{"features": [0] * 6}] * 102}),
        "forget": json.dumps({"receipts": ["AA"] * 1700}),
    }
    for action, body in many.items():
        with pytest.raises(Refusal, match="at most 100 samples at a time"):
            contents.READERS[action](body.encode(), "application/json", BOUNDS, lambda pixels: None)
    monkeypatch.setattr("neverseen.service.reception.contents.receipt_of", None)
    with pytest.raises(Refusal, match="too many lines"):
        contents.receipts_in(b'{"receipt":"AA"}\n' * 101, BOUNDS)


def test_braces_and_quotes_in_texts_are_no_samples() -> None:
    texts = Bounds("texts", 6, 3, 10_000, 2**20, 10**6, 10**7)
    words = ['{"a": [' * 500, '"' * 5000, "\\" * 5000]
    body = json.dumps({"samples": [{"text": text} for text in words]}).encode()
    given = contents.READERS["predict"](body, "application/json", texts, lambda pixels: None)
    assert given.samples == words


@pytest.mark.parametrize("end", [b"", b"\\"])
@pytest.mark.parametrize("begin", [b"", b"{" * 200])
def test_texts_without_an_end_are_read_once(begin: bytes, end: bytes) -> None:
    """The time to count grows with the body, and not with its square."""
    body = begin + b'"' + b'\\"' * 50_000 + b"{" * 200 + end
    started = time.process_time()
    with pytest.raises(Refusal, match="at most 100 samples at a time" if begin else "not valid JSON"):
        contents.READERS["predict"](body, "application/json", BOUNDS, lambda pixels: None)
    assert time.process_time() - started < 2  # half a minute, where each quote was tried


def test_a_large_body_is_read_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read in another process is what would be read here."""
    with running(tmp_path / "s", Settings(quiet=0, max_delay=0)) as service:

        def none_here(*_: object) -> None:
            raise AssertionError("a large body was parsed in the service")

        monkeypatch.setattr("neverseen.service.reception.reception.READERS", dict.fromkeys(contents.READERS, none_here))
        rows = range(190)
        padding = " " * 2**16
        body = json.dumps({"samples": samples(rows)}) + padding
        headers = service.admin | {"Content-Type": "application/json", "Idempotency-Key": "once"}
        learned = service.client.post("/v1/samples", content=body, headers=headers)
        assert learned.status_code == 201, learned.text
        again = service.client.post("/v1/samples", content=body, headers=headers)
        assert again.json()["receipts"] == learned.json()["receipts"]
        other = service.client.post("/v1/samples", content=body + " ", headers=headers)
        assert other.status_code == 409
        assert service.digest() == never(rows)
        receipts = learned.json()["receipts"]
        lines = "".join(json.dumps({"receipt": token, "note": "x" * 1000}) + "\n" for token in receipts[100:])
        answer = service.client.post("/v1/forget", files={"receipts": lines.encode()}, headers=service.admin)
        assert answer.status_code == 202, answer.text
        assert service.digest() == never(range(100))
        body = json.dumps({"receipts": receipts[50:100]}) + padding
        answer = service.client.post(
            "/v1/forget", content=body, headers=service.admin | {"Content-Type": "application/json"}
        )
        assert answer.status_code == 202, answer.text
        assert service.digest() == never(range(50))
        wrong = service.client.post(
            "/v1/forget",
            content=json.dumps({"receipts": [base64.b64encode(b"NSR1" + bytes(100)).decode()]}) + padding,
            headers=service.admin | {"Content-Type": "application/json"},
        )
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (404, "receipt_rejected")


# -- bodies that are small, and full -----------------------------------------------------------------


FULL = {
    "receipts": ("/v1/forget", b'{"receipts":[' + b",".join([b'"AA"'] * 6500) + b"]}"),
    "unknown fields": ("/v1/samples", b"{" + b",".join(b'"%d":1' % number for number in range(3600)) + b"}"),
    "samples": ("/v1/samples", b'{"samples":[' + b",".join([b'{"label":1,"text":"}{"}'] * 1300) + b"]}"),
    "lists": ("/v1/predict", b'{"samples":[{"a":[' + b",".join([b"[]"] * 10_000) + b"]}]}"),
    "numbers": ("/v1/predict", b'{"samples":[{"features":[' + b",".join([b"0"] * 16_000) + b"]}]}"),
}


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service in this process that publishes nothing by itself."""
    with running(tmp_path_factory.mktemp("patient") / "s", Settings(quiet=10**6, max_delay=10**6)) as service:
        yield service


@pytest.fixture
def nothing_here(patient: Running, monkeypatch: pytest.MonkeyPatch) -> Running:
    """A service that would make a mistake if it read a body itself."""
    monkeypatch.setattr("neverseen.service.reception.reception.READERS", {})
    return patient


@pytest.mark.parametrize("name", FULL)
def test_a_small_body_of_many_values_is_read_apart(nothing_here: Running, name: str) -> None:
    path, body = FULL[name]
    assert len(body) <= 2**15
    headers = nothing_here.admin | {"Content-Type": "application/json"}
    answer = nothing_here.client.post(path, content=body, headers=headers)
    assert answer.status_code in (404, 422), answer.text


def test_a_small_form_of_many_lines_is_read_apart(nothing_here: Running) -> None:
    lines = b'{"receipt":"AA"}\n' * 1800
    answer = nothing_here.client.post("/v1/forget", files={"receipts": lines}, headers=nothing_here.admin)
    assert answer.status_code == 404, answer.text


def test_bodies_one_after_another_are_read_by_one_process(tmp_path: Path) -> None:
    with running(tmp_path / "s", Settings(reading_processes=2)) as service:
        for start in (0, 80):
            service.learn(range(start, start + 80))
        assert service.service.readers._count == 1


def test_a_simple_body_is_not_read_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path / "s") as service:
        monkeypatch.setattr(service.service.readers, "ask", None)
        service.learn(range(20))
        service.client.post("/v1/publish", headers=service.admin)
        rows = {"samples": [{"features": row} for row in features(range(100))]}
        assert service.client.post("/v1/predict", json=rows, headers=service.admin).status_code == 200
        large = {"samples": [{"features": [0.123456789012345] * 1500}]}
        answer = service.client.post("/v1/predict", json=large, headers=service.admin)
        assert "sample 0 has 1500 features" in answer.json()["error"]["message"]


def test_a_key_without_samples_left_is_refused_before_its_body_is_read(tmp_path: Path) -> None:
    with running(tmp_path / "s", Settings(sample_burst=5, samples_per_second=1e-6)) as service:
        service.learn(range(5))
        headers = service.admin | {"Content-Type": "application/json"}
        for path in ("/v1/samples", "/v1/forget", "/v1/predict"):
            assert service.client.post(path, content=b"no JSON", headers=headers).status_code == 429


def test_the_bytes_of_a_key_are_limited(tmp_path: Path) -> None:
    with running(tmp_path / "s", Settings(bytes_burst=10_000, bytes_per_second=1)) as service:
        headers = service.admin | {"Content-Type": "application/json"}
        for path in ("/v1/samples", "/v1/predict", "/v1/verify"):
            answer = service.client.post(path, content=b" " * 4000, headers=headers)
            assert answer.status_code == (429 if path == "/v1/verify" else 400)
        other = bearer(token(service.folder, "other", "predict")) | {"Content-Type": "application/json"}
        assert service.client.post("/v1/predict", content=b" " * 4000, headers=other).status_code == 400


def test_the_bytes_of_a_key_are_counted_before_they_are_sent(tmp_path: Path) -> None:
    with running(tmp_path / "s", Settings(bytes_burst=10_000, bytes_per_second=1, body_pause=1.0)) as service:
        buckets, secret = service.service.callers._bytes, service.admin["Authorization"].partition(" ")[2]
        at = "127.0.0.1", int(service.url.rpartition(":")[2])
        for path in ("/v1/samples", "/v1/forget", "/v1/predict", "/v1/verify", "/v1/forget/class"):
            buckets._levels["admin 0"] = (1000.0, time.monotonic())
            with closing(socket.create_connection(at, timeout=60)) as connection:
                connection.sendall(head(path, secret, "application/json", 1800))
                assert b" 429 " in connection.recv(1000)  # 408 after a while, when it was waited for
            buckets._levels["admin 0"] = (-5000.0, time.monotonic())  # now it owes some
            with closing(socket.create_connection(at, timeout=60)) as connection:
                lines = f"POST {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {secret}\r\n"
                lines += "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
                connection.sendall(lines.encode())
                assert b" 429 " in connection.recv(1000)


@pytest.mark.parametrize("keyed", [True, False])
def test_bytes_of_a_body_without_a_length_count_as_they_come(tmp_path: Path, keyed: bool) -> None:
    """Also of a body that is refused: who has used up all bytes sends no more for nothing."""
    slow = Settings(bytes_burst=10_000, bytes_per_second=1, public_bytes_burst=10_000, public_bytes_per_second=1)
    settings = replace(slow, max_json=2**18, max_public_body=2**18)
    with running(tmp_path / "s", settings) as service:
        owner = "admin 0" if keyed else stranger("127.0.0.1")
        buckets = service.service.callers._bytes if keyed else service.service.callers._public_bytes
        headers = (service.admin if keyed else {}) | {"Content-Type": "application/json"}
        most = settings.max_json

        def send(size: int) -> int:
            parts = iter([b" " * 5000] * (size // 5000))
            return service.client.post("/v1/verify", content=parts, headers=headers).status_code

        assert send(5000) == 400
        assert send(most + 5000) == 413
        assert buckets.wait(owner) > most - 10_000
        buckets._levels[owner] = (0.5, time.monotonic())
        with closing(socket.create_connection(("127.0.0.1", service.client.base_url.port or 0), timeout=60)) as link:
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            link.sendall(f"POST /v1/verify HTTP/1.1\r\nHost: a\r\n{lines}Transfer-Encoding: chunked\r\n\r\n".encode())
            assert b" 429 " in link.recv(1000)  # nothing of its body was waited for
        buckets._levels[owner] = (10_000.0, time.monotonic())
        large = service.client.post("/v1/verify", content=b" " * (most + 1), headers=headers)
        assert large.status_code == 413
        assert buckets.wait(owner) > most - 10_000  # some is read, so that the answer is seen: that counts too
        with closing(socket.create_connection(("127.0.0.1", service.client.base_url.port or 0), timeout=60)) as link:
            link.sendall(f"POST /v1/verify HTTP/1.1\r\nHost: a\r\n{lines}Content-Length: {most + 1}\r\n\r\n".encode())
            assert b" 413 " in link.recv(1000)  # waiting would not help


BODIES = {
    "receipts": ("/v1/forget", {"receipts": [base64.b64encode(b"NSR1" + bytes(200)).decode()] * 100}, 100),
    "samples": ("/v1/forget", {"samples": samples(range(150), ids=False)}, 150),
    "a class": ("/v1/forget/class", {"label": "cow"}, 1),
}


@pytest.mark.parametrize("query", ["", "?dry_run=true"])
@pytest.mark.parametrize("name", BODIES)
def test_what_waits_for_the_writer_counts(patient: Running, name: str, query: str) -> None:
    """A body counts against its key, and what it lists against the queue, until it is answered."""
    path, body, count = BODIES[name]
    writer, room = patient.service.writer, patient.service.reception._bodies._room
    gate = hold(writer)
    answers: list[int] = []

    def send() -> None:
        answers.append(patient.client.post(path + query, json=body, headers=patient.admin).status_code)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        eventually(lambda: writer._jobs or not sender.is_alive())
        assert sender.is_alive(), f"the request does not come: {answers}"
        assert (room.held("admin 0"), writer._others[1].held("admin 0")) == (len(json_sent(body)), count)
    finally:
        gate.set()
        sender.join(60)
    assert answers == [404]
    assert (room.held("admin 0"), writer._others[1].held("admin 0")) == (0, 0)


def json_sent(body: object) -> bytes:
    return httpx.Request("POST", "http://localhost", json=body).content
