"""Promise: what comes at once on a connection is not parsed and answered at once: nobody waits for strangers' floods."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path

import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from neverseen.service import Settings
from neverseen.service.edge.protocol import HEADERS, WAITING, LimitedProtocol
from neverseen.service.predicting import Predictor
from tests.services import Running, hold, running, samples
from tests.waiting import eventually

ASKED = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED = b"POST /v1/verify HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


def told(service: Running, sent: bytes) -> bytes:
    """Send bytes; return all that comes until the service closes the connection."""
    with closing(socket.create_connection(("127.0.0.1", service.client.base_url.port or 0), 60)) as connection:
        found = b""
        with suppress(ConnectionError):
            connection.sendall(sent)
        with suppress(ConnectionError):
            while part := connection.recv(2**16):
                found += part
    return found


def test_one_request_too_many_ends_the_connection_with_the_answers(tmp_path: Path) -> None:
    with running(tmp_path / "s") as service:
        answers = told(service, ASKED * (WAITING + 1)).split(b"HTTP/1.1 ")[1:]
        assert [answer[:3] for answer in answers] == [b"200"] * WAITING
        assert [b"connection: close" in answer.lower() for answer in answers] == [False] * (WAITING - 1) + [True]


def test_thousands_of_requests_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = Counter[str]()
    was = HttpToolsProtocol.on_headers_complete

    def counted(protocol: HttpToolsProtocol) -> None:
        parsed["requests"] += 1
        was(protocol)

    monkeypatch.setattr(HttpToolsProtocol, "on_headers_complete", counted)
    with running(tmp_path / "s", Settings(health_burst=1e6)) as service:
        assert told(service, ASKED * 5000).count(b"HTTP/1.1 200") < 200
        assert parsed["requests"] < 200  # and not all that came
        assert service.client.get("/healthz").status_code == 200


@pytest.mark.parametrize("rubbish", [b"\0\1\2 rubbish\r\n\r\n", ASKED[:-2] + b"a:b\r\n" * 5000, CHUNKED + b"x\r\n"])
def test_rubbish_behind_a_learn_is_no_answer_to_it(tmp_path: Path, rubbish: bytes) -> None:
    with running(tmp_path / "s", Settings(quiet=10**6, max_delay=10**6)) as service:
        writer = service.service.writer
        gate = hold(writer)
        body = json.dumps({"samples": samples([0])}).encode()
        head = f"POST /v1/samples HTTP/1.1\r\nHost: x\r\nAuthorization: {service.admin['Authorization']}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"

        def until_it_waits() -> None:
            eventually(writer.waiting)
            gate.set()

        opening = threading.Thread(target=until_it_waits)
        opening.start()
        answers = told(service, head.encode() + body + rubbish).split(b"HTTP/1.1 ")[1:]
        opening.join()
        assert [answer[:3] for answer in answers] == [b"201"]  # and then the connection is closed


def test_nothing_is_published_for_a_request_that_is_cut_off(tmp_path: Path) -> None:
    with running(tmp_path / "s", Settings(quiet=10**6, max_delay=10**6)) as service:
        service.learn([0])
        head = f"POST /v1/publish HTTP/1.1\r\nHost: x\r\nAuthorization: {service.admin['Authorization']}\r\n"
        answer = told(service, head.encode() + b"Transfer-Encoding: chunked\r\n\r\nx\r\n")
        assert answer.startswith(b"HTTP/1.1 400 ")
        service.service.writer.ask(lambda _: None).result(30)  # what came before it is done
        assert service.service.writer.published.number == 0


def test_thousands_of_header_lines(tmp_path: Path) -> None:
    with running(tmp_path / "s") as service:
        answer = told(service, ASKED[:-2] + b"a:b\r\n" * 5000 + b"\r\n")
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"more than %d header lines" % HEADERS in answer


def test_header_lines_without_an_end_after_a_body(tmp_path: Path) -> None:
    with running(tmp_path / "s", Settings(body_timeout=600, body_pause=600)) as service:
        answer = told(service, CHUNKED + b"2\r\n{}\r\n0\r\n" + b"a:b\r\n" * 300)
        assert answer.startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("before", [ASKED[:-2], CHUNKED + b"2\r\n{}\r\n0\r\n", CHUNKED])
def test_a_line_without_an_end(tmp_path: Path, before: bytes) -> None:
    """In the head, after a body, and behind the size of a chunk: the parser would copy it for each piece that comes."""
    with (
        running(tmp_path / "s", Settings(body_timeout=600, body_pause=600)) as service,
        closing(socket.create_connection(("127.0.0.1", service.client.base_url.port or 0), 60)) as connection,
    ):
        connection.sendall(before + (b"2;" if before == CHUNKED else b"X: "))
        taken = 0
        with suppress(OSError):
            while taken < 2**25:
                taken += connection.send(b"a" * 2**16)
        assert taken < 2**25


@pytest.mark.parametrize("line", [b"Authorization: %b", b"Content-Type: application/json"])
def test_header_lines_after_a_body_are_not_heeded(tmp_path: Path, line: bytes) -> None:
    """Else it would depend on when they come."""
    with running(tmp_path / "s") as service:
        token = service.admin["Authorization"].encode()
        body = json.dumps({"receipts": service.learn([0])}).encode()
        head = [b"POST /v1/forget HTTP/1.1", b"Host: x", b"Transfer-Encoding: chunked", b"Connection: close"]
        before = [b"Authorization: %b" % token, b"Content-Type: application/json"]
        late = line % token if b"%" in line else line
        before.remove(late)
        sent = b"\r\n".join([*head, *before, b"", b"%x" % len(body), body, b"0", late, b"", b""])
        answer = told(service, sent)
        assert answer.startswith(b"HTTP/1.1 401 " if b"%" in line else b"HTTP/1.1 415 ")


def test_a_target_with_a_fragment(tmp_path: Path) -> None:
    with running(tmp_path / "s") as service:
        answer = told(service, b"GET /healthz#?dry_run=true HTTP/1.1\r\nHost: x\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"%23" in answer


def test_a_body_in_thousands_of_chunks(tmp_path: Path) -> None:
    with running(tmp_path / "s") as service:
        answer = told(service, CHUNKED + b"1\r\n \r\n" * 5000)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"too many chunks" in answer
        large = CHUNKED.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + b"100\r\n" + b" " * 256 + b"\r\n"
        answer = told(service, large + (b"100\r\n" + b" " * 256 + b"\r\n") * 2000 + b"2\r\n{}\r\n0\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 422 ")


@pytest.mark.parametrize(
    "path",
    ["/", "/console/app.js", "/certificates/1", "/nothing", "/v1/nothing", "/v1/certificates", "/healthz", "/readyz"],
)
def test_whatever_is_asked_for_counts_against_its_address(tmp_path: Path, path: str) -> None:
    slow = Settings(public_per_second=1e-6, public_burst=5, health_per_second=1e-6, health_burst=5)  # never refill
    with running(tmp_path / "s", slow) as service:
        codes = Counter(service.client.get(path).status_code for _ in range(20))
        assert codes[429] == 15
        assert service.client.get(path, headers={"Authorization": "Bearer nsk_guess"}).status_code == 429
        assert service.client.get("/v1/model", headers=service.admin).status_code == 200
        other = "/" if path in ("/healthz", "/readyz") else "/healthz"
        assert service.client.get(other).status_code == 200  # two buckets: a flood leaves probes alone


@pytest.mark.parametrize("method", ["POST", "OPTIONS", "HEAD"])
def test_no_method_is_free(tmp_path: Path, method: str) -> None:
    with running(tmp_path / "s", Settings(public_per_second=1e-6, public_burst=5)) as service:
        codes = Counter(service.client.request(method, "/").status_code for _ in range(20))
        assert codes[429] == 15


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the bytes that connections hand over."""
    found = Counter[str]()
    was = LimitedProtocol.data_received

    def counted(protocol: LimitedProtocol, data: bytes) -> None:
        found["bytes"] += len(data)
        was(protocol, data)

    monkeypatch.setattr(LimitedProtocol, "data_received", counted)
    return found


@pytest.mark.parametrize("size", [100, 30_000])
def test_nothing_is_read_of_who_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: Counter[str], size: int
) -> None:
    done = threading.Event()

    async def predict(predictor: Predictor, *_: object) -> dict[str, object]:
        await asyncio.to_thread(done.wait)
        return {"version": 1, "predictions": []}

    monkeypatch.setattr(Predictor, "predict", predict)
    with running(tmp_path / "s") as service:
        service.learn(range(4))
        token = service.admin["Authorization"]
        body = b'{"samples":[{"features":[1,2,3,4,5,6]}]' + b" " * size + b"}"
        head = f"POST /v1/predict HTTP/1.1\r\nHost: x\r\nAuthorization: {token}\r\nContent-Type: application/json\r\n"
        asked = head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
        taken.clear()
        with closing(socket.create_connection(("127.0.0.1", service.client.base_url.port or 0), 1)) as connection:
            with suppress(OSError):
                connection.sendall(asked * (2**26 // len(asked)))
            done.set()
            assert taken["bytes"] < 2**21
            assert connection.recv(12) == b"HTTP/1.1 200"


@pytest.mark.parametrize("kind", ["length", "chunks", "no key"])
def test_little_is_read_of_a_body_after_the_answer(tmp_path: Path, taken: Counter[str], kind: str) -> None:
    with running(tmp_path / "s", Settings(requests_per_second=1e-6, request_burst=1)) as service:
        service.client.get("/v1/model", headers=service.admin)
        head = b"POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        if kind != "no key":
            head += f"Authorization: {service.admin['Authorization']}\r\n".encode()
        sent = b" " * 2**26
        head += b"Content-Length: %d\r\n\r\n" % len(sent)
        if kind == "chunks":
            head = head.partition(b"Content-Length")[0] + b"Transfer-Encoding: chunked\r\n\r\n"
            sent = (b"100\r\n" + b" " * 256 + b"\r\n") * 2**18
        with closing(socket.create_connection(("127.0.0.1", service.client.base_url.port or 0), 60)) as connection:
            connection.sendall(head)
            assert connection.recv(12) == (b"HTTP/1.1 401" if kind == "no key" else b"HTTP/1.1 429")
            with pytest.raises(ConnectionError):
                connection.sendall(sent)
        assert taken["bytes"] < 2**22


OFFERS = [
    b"Connection: Upgrade\r\nUpgrade: websocket\r\n",
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
]


@pytest.mark.parametrize("chunked", [True, False])
def test_the_body_of_a_request_that_offers_another_protocol_is_no_request(tmp_path: Path, chunked: bool) -> None:
    start = CHUNKED.partition(b"Transfer-Encoding")[0]
    last = b"GET /v1/nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with running(tmp_path / "s") as service:
        for offer in OFFERS:
            head = start + offer + (b"Transfer-Encoding: chunked\r\n" if chunked else b"Content-Length: 34\r\n")
            rest = (b"22\r\n" + ASKED + b"\r\n0\r\n" + offer + b"\r\n" if chunked else ASKED) + last
            answers = told(service, head + b"\r\n" + rest).split(b"HTTP/1.1 ")[1:]
            assert [answer[:3] for answer in answers] == [b"400", b"404"]
            with closing(socket.create_connection(("127.0.0.1", service.client.base_url.port or 0), 60)) as connection:
                connection.sendall(head + b"Expect: 100-continue\r\n\r\n")
                assert connection.recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n"  # the body is waited for
                connection.sendall(rest)
                found = b"".join(iter(lambda: connection.recv(2**16), b""))
            assert [answer[:3] for answer in found.split(b"HTTP/1.1 ")[1:]] == [b"400", b"404"]


def test_a_client_that_offers_another_protocol_is_answered_as_any(tmp_path: Path) -> None:
    offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAAQAoAAAAAIAAAAA"}
    with running(tmp_path / "s") as service:
        assert len(service.learn(range(4), headers=service.admin | offer)) == 4
        assert service.client.get("/v1/model", headers=service.admin | offer).status_code == 200


def test_no_request_is_taken_behind_connect(tmp_path: Path) -> None:
    with running(tmp_path / "s") as service:
        answers = told(service, b"CONNECT /x HTTP/1.1\r\nHost: x\r\n\r\n" + ASKED).split(b"HTTP/1.1 ")[1:]
        assert [answer[:3] for answer in answers] == [b"400"]
        assert b"CONNECT is not supported" in answers[0]
