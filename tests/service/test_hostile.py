"""Whatever is sent: a clean answer in the one shape of errors, the same digest, and a service that answers."""

from __future__ import annotations

import base64
import http.client
import io
import json
import re
import socket
import struct
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neverseen.service import Settings
from neverseen.service.errors import Refusal
from neverseen.service.reception.contents import Bounds, images_of
from neverseen.service.sharing.limits import Buckets
from tests.services import Running, bearer, new_store, running, samples, token
from tests.waiting import pause

LIMITED = Settings(max_body=200_000, max_batch=100, body_timeout=2, quiet=0, max_delay=0)
FEATURES = samples([0])[0]["features"]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("hostile") / "s", LIMITED) as found:
        found.learn(range(50))
        found.client.post("/v1/publish", headers=found.admin)
        yield found


@pytest.fixture(autouse=True)
def _unharmed(service: Running) -> Iterator[None]:
    before = service.digest()
    yield
    assert service.digest() == before
    body = {"samples": [{"features": FEATURES}]}
    assert service.client.post("/v1/predict", json=body, headers=service.admin).status_code == 200


def refused(answer: Any, *statuses: int) -> str:
    assert answer.status_code in statuses, (answer.status_code, answer.text)
    problem = answer.json()["error"]
    assert set(problem) <= {"code", "message", "row", "certificate", "reason"}
    assert problem["message"]
    assert answer.headers["x-request-id"].startswith("req_")
    return str(problem["code"])


BODIES: list[tuple[bytes, set[int]]] = [
    (b"", {400}),
    (b"{", {400}),
    (b"null", {422}),
    (b"[]", {422}),
    (b'"x"', {422}),
    (b"\xff\xfe{}", {400}),
    (b'{"receipts": ["\xff"]}', {400}),
    (b'{"receipts": ["\\ud800"]}', {400}),
    (b"[" * 100_000, {400}),
    (b'{"a":' * 30_000, {400, 422}),
    (b'{"samples": [{"features": [NaN], "label": "x"}]}', {400, 422}),
    (b'{"samples": [{"features": [Infinity,1,1,1,1,1], "label": "x"}]}', {400, 422}),
    (b'{"samples": [{"features": [1e999,1,1,1,1,1], "label": "x"}]}', {400, 422}),
    (b'{"samples": [{"features": [1e39,1,1,1,1,1], "label": "x"}]}', {422}),
    (b'{"samples": [{"features": [' + b"9" * 5000 + b',1,1,1,1,1], "label": "x"}]}', {400, 422}),
    (b'{"samples": [{"features": ["1",1,1,1,1,1], "label": "x"}]}', {422}),
    (b'{"samples": [{"features": [true,1,1,1,1,1], "label": "x"}]}', {422}),
    (b'{"samples": [{"features": [1,1,1,1,1], "label": "x"}]}', {422}),
    (b'{"samples": [{"features": [], "label": "x"}]}', {422}),
    (b'{"samples": [{"text": "a", "label": "x"}]}', {422}),
    (b'{"samples": [{"image": "aGFsbG8=", "label": "x"}]}', {422}),
    (b'{"samples": [{"features": [1,1,1,1,1,1], "text": "a", "label": "x"}]}', {422}),
    (b'{"samples": [{"features": [1,1,1,1,1,1], "label": ' + b"9" * 400 + b"}]}", {422}),
    (b'{"samples": [{"features": [1,1,1,1,1,1], "label": 1e400}]}', {400, 422}),
    (b'{"samples": [{"features": [1,1,1,1,1,1], "label": true}]}', {422}),
    (b'{"samples": [{"features": [1,1,1,1,1,1], "label": 0.5}]}', {422}),
    (b'{"samples": [{"features": [1,1,1,1,1,1], "label": {"a": 1}}]}', {422}),
    (b'{"samples": [{"features": [1,1,1,1,1,1], "label": ""}]}', {422}),
    (b'{"samples": [{"features": [1,1,1,1,1,1], "label": "' + b"x" * 1000 + b'"}]}', {422}),
    (b'{"samples": [{"features": [1,1,1,1,1,1], "label": "x", "id": 5}]}', {422}),
    (b'{"samples": [{"features": [1,1,1,1,1,1], "label": "x", "owner": "eve"}]}', {422}),
    (b'{"samples": [], "receipts": []}', {422}),
    (b'{"samples": [' + b",".join([b'{"features":[1,1,1,1,1,1],"label":"x"}'] * 101) + b"]}", {422}),
]


@pytest.mark.parametrize(("body", "statuses"), BODIES, ids=range(len(BODIES)))
def test_bodies_that_are_none(service: Running, body: bytes, statuses: set[int]) -> None:
    headers = service.admin | {"Content-Type": "application/json"}
    for path in ("/v1/samples", "/v1/forget", "/v1/predict", "/v1/forget/class", "/v1/verify"):
        answer = service.client.post(path, content=body, headers=headers)
        refused(answer, *(statuses if path == "/v1/samples" else {400, 413, 422}))


def test_receipts_that_are_none(service: Running) -> None:
    odd: list[Any] = [["", "TlNS"], ["="], ["a"], ["*&^%"], ["TlNSMQ==="], ["é"], [5], [None], [["x"]], "x", [], {}]
    for words in odd:
        refused(service.client.post("/v1/forget", json={"receipts": words}, headers=service.admin), 422)
    for raw in (b"x", b"NSR1", b"NSR1" + bytes(100), b"NSR1\xff\xff\xff\xff" + bytes(300), bytes(50_000)):
        word = base64.b64encode(raw).decode()
        assert refused(service.forget([word]), 404) == "receipt_rejected"


@pytest.mark.parametrize("label", [2**53 + 1, -(2**53) - 1, 10**30, 1e300])
def test_labels_out_of_range(service: Running, label: float) -> None:
    for path, body in (
        ("/v1/samples", {"samples": [{"features": [0] * 6, "label": label}]}),
        ("/v1/forget/class", {"label": label}),
    ):
        answer = service.client.post(path, json=body, headers=service.admin)
        assert re.search(r"label: Input should be .* -?9007199254740992", answer.json()["error"]["message"])
        assert answer.status_code == 422


def test_content_types(service: Running) -> None:
    for kind in ("", "text/plain", "application/xml", "application/x-www-form-urlencoded", "application/jsonx"):
        headers = service.admin | {"Content-Type": kind}
        for path in ("/v1/samples", "/v1/forget", "/v1/predict", "/v1/forget/class", "/v1/verify"):
            refused(service.client.post(path, content=b"{}", headers=headers), 415)


def form(*parts: tuple[bytes, bytes]) -> bytes:
    return b"".join(b"--b\r\n" + head + b"\r\n\r\n" + content + b"\r\n" for head, content in parts) + b"--b--\r\n"


_FIELD = b'Content-Disposition: form-data; name="%s"'
_FILE = b'Content-Disposition: form-data; name="%s"; filename="%s"'


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--b",
        b"--b--\r\n",
        b"nothing of the kind",
        form((b"No-Disposition: x", b"1")),
        form((b"Content-Disposition: form-data", b"1")),
        form((_FILE % (b"receipts", b"a"), b"{}"), (_FILE % (b"receipts", b"b"), b"{}")),
        form((_FIELD % b"labels", b"[]"), (_FIELD % b"labels", b"[]")),
        form((_FIELD % b"labels", b"[" * 50_000)),
        form((_FIELD % b"labels", b"\xff\xfe"), (_FILE % (b"files", b"../../etc/passwd"), b"x")),
        form((_FIELD % b"other", b"1")),
        form((_FILE % (b"files", b"x"), b"x"), (_FIELD % b"labels", b'["a","b"]')),
        form(*[(_FIELD % b"labels", b"[]")] * 50),
        form(*[(_FILE % (b"files", b"x"), b"")] * 200),
        form((b"A: b\r\n" * 3000 + _FIELD % b"labels", b"1")),
    ],
    ids=range(15),
)
def test_forms_that_are_none(service: Running, body: bytes) -> None:
    for kind in ("multipart/form-data; boundary=b", "multipart/form-data", "multipart/form-data; boundary=\xe9"):
        headers: Any = service.admin | {"Content-Type": kind.encode("latin-1")}
        for path in ("/v1/samples", "/v1/forget", "/v1/predict"):
            refused(service.client.post(path, content=body, headers=headers), 404, 422)


def test_bodies_without_end(service: Running) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(200):
            yield b" " * 10_000

    headers = service.admin | {"Content-Type": "application/json"}
    for content in (b" " * 200_001, endless()):
        answer = service.client.post("/v1/forget", content=content, headers=headers)
        assert refused(answer, 413) == "too_large"
        assert answer.headers["connection"] == "close"


def raw(service: Running, head: str, body: bytes = b"", wait: float = 60) -> bytes:
    """Send bytes as they are, and return the answer."""
    host, port = service.client.base_url.host, service.client.base_url.port or 0
    with closing(socket.create_connection((host, port), timeout=wait)) as connection:
        connection.sendall(head.replace("\n", "\r\n").encode("latin-1") + body)
        found = b""
        try:
            while part := connection.recv(65536):
                found += part
        except OSError:
            pass
        return found


def head(service: Running, *lines: str) -> str:
    first = ["POST /v1/forget HTTP/1.1", "Host: x", f"Authorization: {service.admin['Authorization']}"]
    return "\n".join([*first, "Content-Type: application/json", "Connection: close", *lines, "", ""])


def test_lengths_that_lie(service: Running) -> None:
    assert b" 413 " in raw(service, head(service, "Content-Length: 10737418240"))
    assert b" 413 " in raw(service, head(service, "Content-Length: " + "9" * 18))
    assert b" 408 " in raw(service, head(service, "Content-Length: 1000"), b"{}")  # the rest never comes
    for odd in ("-1", "abc", "1e3", "5, 6"):
        assert b" 400 " in raw(service, head(service, f"Content-Length: {odd}"))[:20]
    assert b" 400 " in raw(service, "NONSENSE\n\n")[:20]


def flood(connection: socket.socket, line: bytes) -> None:
    for _ in range(1000):
        connection.sendall(line)
        pause(0.001)


def test_heads_without_end(service: Running) -> None:
    host, port = service.client.base_url.host, service.client.base_url.port or 0
    for line in (b"X-Odd: %s\r\n" % (b"x" * 10_000), b"x" * 10_000):  # many, and one
        with closing(socket.create_connection((host, port), timeout=60)) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-First: ")
            with pytest.raises(OSError, match="reset|pipe"):
                flood(connection, line)


def test_heads_that_do_not_come(tmp_path: Path) -> None:
    with running(tmp_path / "s", Settings(idle_timeout=0.2)) as impatient:
        place = (impatient.client.base_url.host, impatient.client.base_url.port or 0)
        unread = b"POST /v1/forget HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"
        for begun in (b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\n", unread):
            with closing(socket.create_connection(place, timeout=60)) as connection:
                connection.sendall(begun)
                received = b""
                while part := connection.recv(1000):
                    received += part  # an answer to what is refused at once, and then the end
                assert received.startswith(b"HTTP/1.1 401 ") == (begun is unread)


def test_what_is_not_http(service: Running) -> None:
    host, port = service.client.base_url.host, service.client.base_url.port or 0
    for line in (b"this is not HTTP\r\n\r\n", b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00"):
        with closing(socket.create_connection((host, port), timeout=60)) as connection:
            connection.sendall(line)
            head, _, body = connection.makefile("rb").read().partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 400 ")
            assert json.loads(body)["error"]["code"] == "invalid_request"
            assert re.search(rb"\r\nx-request-id: req_[0-9a-f]{24}(\r\n|$)", head)
    assert service.client.get("/healthz").status_code == 200


def test_who_hangs_up_in_the_middle(service: Running) -> None:
    host, port = service.client.base_url.host, service.client.base_url.port or 0
    for _ in range(5):
        with closing(socket.create_connection((host, port))) as connection:
            connection.sendall(head(service, "Content-Length: 1000").replace("\n", "\r\n").encode() + b'{"rec')


@pytest.mark.parametrize(
    "path",
    [
        "/console/../core.py",
        "/console/..%2fcore.py",
        "/console/%2e%2e/core.py",
        "/console//etc/passwd",
        "/console/index.html%00.js",
        "/console/",
        "/console/__init__.py",
        "/certificates/../v1/model",
        "/certificates/abc",
        "/v1/certificates/0",
        "/v1/certificates/-1",
        "/v1/certificates/00000001",
        "/v1/certificates/" + "9" * 5000,
        "/v1/certificates/1.json",
        "/certificates/" + "9" * 5000,
        "/certificates/0",
        "/certificates/01",
        "/certificates/%D9%A1",
        "/certificates/x",
        "/certificates/1/2",
        "/console/" + "9" * 5000,
        "/v1/certificates/..%2f..%2fkeys.json",
        "/v1/requests/..%2f..%2fkeys.json",
        "/v1/requests/%00",
        "/v1/requests/" + "x" * 5000,
        "/%ff",
        "/docs",
        "/redoc",
    ],
)
def test_paths_that_lead_nowhere(service: Running, path: str) -> None:
    host, port = service.client.base_url.host, service.client.base_url.port
    with closing(http.client.HTTPConnection(host, port, timeout=10)) as connection:
        connection.request("GET", path, headers=service.admin)  # as it is: no client tidies it up
        answer = connection.getresponse()
        content = answer.read()
    if path == "/v1/certificates/00000001":
        assert answer.status == 200
        return
    assert answer.status == 404, content
    assert json.loads(content)["error"]["code"] == "not_found"


def test_ids_are_not_paths(service: Running) -> None:
    odd = [
        "../../../etc/passwd",
        "/etc/passwd",
        "a\0b",
        "..\\..",
        "ada/../bob/x",
        "%2e%2e",
        "\u202e",
        "x" * 500,
        "'; DROP",
    ]
    given = [samples([100 + row])[0] | {"id": name} for row, name in enumerate(odd)]
    answer = service.client.post("/v1/samples", json={"samples": given}, headers=service.admin)
    assert answer.status_code == 201, answer.text
    assert service.client.post("/v1/forget", json={"samples": given}, headers=service.admin).status_code == 202


def test_query_parameters(service: Running) -> None:
    receipts = service.learn([150])
    for query in ("dryrun=true", "dry_run=yes", "dry_run=1", "dry_run=true&dry_run=true", "x=1", "%ff=1"):
        answer = service.client.post(f"/v1/forget?{query}", json={"receipts": receipts}, headers=service.admin)
        refused(answer, 422)  # and above all nothing is forgotten
    for query in ("limit=0", "limit=1001", "limit=x", "limit=" + "9" * 400, "before=x", "before=req_" + "0" * 23):
        refused(service.client.get(f"/v1/requests?{query}", headers=service.admin), 422)
    refused(service.client.get(f"/v1/requests?before=req_{'0' * 24}", headers=service.admin), 404)
    assert service.forget(receipts).status_code == 202


# -- images ------------------------------------------------------------------------------------------


PICTURES = Bounds("images", 4, 100, 1000, 2**20, 10**6, 10**7)


def png(width: int, height: int, rows: int) -> bytes:
    """A file that says it is of one size, with the pixels of some rows."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    pixels = zlib.compress(bytes((width * 3 + 1) * rows), 9)
    about = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", about) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def test_images_that_are_none() -> None:
    bounds = replace(PICTURES, max_pixels=10_000, max_image_bytes=50_000)
    measured: list[int] = []
    pixels, (image,) = images_of([png(50, 50, 50)], bounds, measured.append)
    assert (pixels, measured, image.shape) == (2500, [2500], (50, 50, 3))
    bomb = png(30_000, 30_000, 1)
    assert len(bomb) < 10_000
    for content in (bomb, png(101, 100, 100), b"", b"\x89PNG\r\n\x1a\n", b"GIF89a", bytes(50_001)):
        with pytest.raises(Refusal, match="image 0") as found:
            images_of([content], bounds, measured.append)
        assert (found.value.status, found.value.row) == (422, 0)


def test_an_image_within_limits_is_taken() -> None:
    pytest.importorskip("PIL")
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.zeros((20, 20, 3), np.uint8)).save(file, "PNG")
    assert images_of([file.getvalue()], PICTURES, lambda pixels: None)[1][0].shape == (20, 20, 3)


# -- buckets -----------------------------------------------------------------------------------------


def test_buckets() -> None:
    now = [0.0]
    buckets = Buckets(2.0, 4.0, lambda: now[0])
    assert [buckets.take("a") for _ in range(5)] == [0, 0, 0, 0, 0.5]
    assert buckets.take("b") == 0
    now[0] = 1.0
    assert buckets.take("a", 2) == 0
    assert buckets.take("a") == 0.5
    now[0] = 100.0
    assert buckets.take("a", 40) == 0  # more than it ever holds: it is in debt then
    assert buckets.take("a") > 10


def test_a_key_that_asks_too_often(tmp_path: Path) -> None:
    slow = Settings(
        requests_per_second=1e-6,  # never fills again
        request_burst=3,
        samples_per_second=1e-6,
        sample_burst=5,
        public_per_second=1e-6,
        public_burst=2,
    )
    folder = new_store(tmp_path / "s")  # with its keys, so that the service knows them from the start
    greedy, other = (bearer(token(folder, name, "learn")) for name in ("greedy", "other"))
    with running(folder, slow) as service:
        answers = [service.client.get("/v1/model", headers=greedy) for _ in range(5)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
        assert answers[-1].json()["error"]["code"] == "rate_limited"
        assert int(answers[-1].headers["retry-after"]) >= 1
        assert service.client.get("/v1/model", headers=other).status_code == 200
        many = {"samples": samples(range(4))}
        assert service.client.post("/v1/samples", json=many, headers=other).status_code == 201
        again = {"samples": samples(range(4, 8))}
        assert service.client.post("/v1/samples", json=again, headers=other).status_code == 429
        codes = [service.client.get("/v1/certificates/key").status_code for _ in range(4)]
        assert codes == [200, 200, 429, 429]
