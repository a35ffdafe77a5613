"""Promise: clients cannot take what the store needs, or all of what other clients need, by holding connections open."""

from __future__ import annotations

import errno
import http.client
import json
import os
import select
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from neverseen.errors import ConfigurationError
from neverseen.service import Settings
from neverseen.service.edge.connections import Connections, allowed
from neverseen.service.reception.requests import KEY
from tests.services import Process, bearer, hold, new_store, running, samples, token
from tests.tls import certificate
from tests.waiting import eventually

FILES = "resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))"
SEALING = "Settings(max_delay=0, quiet=0, seal_after=0)"


class Good:
    """A client that keeps one connection, and never makes another."""

    def __init__(self, port: int, secret: str, context: ssl.SSLContext | None = None) -> None:
        if context is None:
            self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        else:
            self._connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=context)
        self._connection.connect()
        self._connection.auto_open = 0
        self._headers = bearer(secret) | {"Content-Type": "application/json"}

    def ask(self, method: str, path: str, content: Any = None) -> Any:
        self._connection.request(method, path, None if content is None else json.dumps(content), self._headers)
        answer = self._connection.getresponse()
        body = answer.read()
        assert answer.status < 300, body
        return body

    def goes_on(self, row: int) -> None:
        """Learn, forget, publish and seal: all of it opens files."""
        receipts = json.loads(self.ask("POST", "/v1/samples", {"samples": samples([row])}))["receipts"]
        self.ask("POST", "/v1/forget", {"receipts": receipts})
        self.ask("POST", "/v1/seal")
        self.ask("GET", "/readyz")

    def close(self) -> None:
        self._connection.close()


@pytest.fixture(scope="module", params=["http", "https"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Process, str, ssl.SSLContext | None]]:
    """A service that may open 300 files."""
    tmp_path = tmp_path_factory.mktemp("served")
    folder = new_store(tmp_path / "s")
    secret = token(folder, "good", "admin")
    if request.param == "https":
        chain, key = certificate(tmp_path)
        context = ssl.create_default_context(cafile=chain)
        process = Process(folder, SEALING, chain, key, first=FILES)
    else:
        context, process = None, Process(folder, SEALING, first=FILES)
    yield process, secret, context
    assert process.stop() in (0, -15)


def test_idle_connections_do_not_close_the_store(served: tuple[Process, str, ssl.SSLContext | None]) -> None:
    process, secret, context = served
    with ExitStack() as stack:
        good = stack.enter_context(closing(Good(process.port, secret, context)))
        good.goes_on(0)
        for number in range(400):
            idle = socket.create_connection(("127.0.0.1", process.port), timeout=60)
            stack.enter_context(closing(idle))
            if number % 3 == 1:
                with suppress(ConnectionError):
                    idle.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")  # and never more
            if number % 50 == 49:
                good.goes_on(number // 50)
        new = stack.enter_context(closing(Good(process.port, secret, context)))
        new.goes_on(50)
        good.goes_on(51)
        metrics = good.ask("GET", "/metrics").decode()
        assert "neverseen_writer_failures_total 0.0" in metrics
        assert "neverseen_publish_failures_total 0.0" in metrics
    with closing(Good(process.port, secret, context)) as after:
        after.goes_on(52)


def test_connections_that_were_used_once_make_room_too(served: tuple[Process, str, ssl.SSLContext | None]) -> None:
    process, secret, context = served
    with ExitStack() as stack:
        for row in range(3):
            for _ in range(100):
                used = stack.enter_context(closing(Good(process.port, "none", context)))
                used.ask("GET", "/healthz")
            stack.enter_context(closing(Good(process.port, secret, context))).goes_on(row)


def slow_body(port: int, secret: str, address: str, path: str = "/v1/predict") -> socket.socket:
    """A connection that sends a request, and never the end of it."""
    found = socket.create_connection(("127.0.0.1", port), 60, (address, 0))
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    if secret:
        head += f"Authorization: Bearer {secret}\r\n"
    found.sendall(f"{head}Expect: 100-continue\r\nContent-Length: 100\r\n\r\n".encode())
    assert found.recv(1000).startswith(b"HTTP/1.1 100 ")  # it is being read
    found.sendall(b"{")
    return found


def test_one_address_at_work_leaves_room_for_others(tmp_path: Path) -> None:
    busy = Settings(max_connections=40, connections_per_address=10, body_timeout=600)
    with running(tmp_path / "s", busy) as service, ExitStack() as stack:
        port = service.client.base_url.port or 0
        secret = service.admin["Authorization"].split()[1]
        for _ in range(10):
            stack.enter_context(closing(slow_body(port, secret, "127.0.0.9")))
        late = socket.create_connection(("127.0.0.1", port), 60, ("127.0.0.9", 0))
        stack.enter_context(closing(late))
        head, _, body = late.makefile("rb").read().partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nx-request-id: req_" in head
        assert b"retry-after" in head.lower()
        problem = json.loads(body)["error"]
        assert problem["code"] == "busy"
        assert "connections_per_address" in problem["message"]
        with httpx.Client(base_url=service.url, timeout=60) as other:
            assert other.get("/readyz").status_code == 200


def test_strangers_who_promise_bodies_give_way(tmp_path: Path) -> None:
    busy = Settings(max_connections=20, connections_per_address=10, body_timeout=600, body_pause=600)
    with running(tmp_path / "s", busy) as service, ExitStack() as stack:
        port = service.client.base_url.port or 0
        secret = service.admin["Authorization"].split()[1]
        keyed = stack.enter_context(closing(slow_body(port, secret, "127.0.0.7")))
        for number in range(40):
            address = f"127.0.0.{8 + number % 3}"
            stack.enter_context(closing(slow_body(port, "", address, "/v1/verify")))
        for _ in range(5):
            good = stack.enter_context(closing(Good(port, secret)))
            good.ask("GET", "/readyz")
        keyed.sendall(b"}" + b" " * 98)
        assert keyed.recv(1000).startswith(b"HTTP/1.1 4")  # it was not cut: it is answered


def test_a_key_whose_bodies_never_end_leaves_room_for_others(tmp_path: Path) -> None:
    busy = Settings(max_connections=20, connections_per_address=10, body_timeout=600, body_pause=600)
    with running(tmp_path / "s", busy) as service, ExitStack() as stack:
        port = service.client.base_url.port or 0
        others = service.admin["Authorization"].split()[1]
        keyed = stack.enter_context(closing(slow_body(port, others, "127.0.0.7")))
        secret = token(service.folder, "eve", "predict")
        for number in range(19):
            stack.enter_context(closing(slow_body(port, secret, f"127.0.0.{8 + number % 2}")))
        for _ in range(5):
            good = stack.enter_context(closing(Good(port, others)))
            good.ask("GET", "/readyz")
        keyed.sendall(b"}" + b" " * 98)
        assert keyed.recv(1000).startswith(b"HTTP/1.1 4")  # it was not cut: it is answered


@pytest.mark.parametrize("keys", [1, 3, 4, 9])
def test_keys_together_cannot_keep_everybody_else_out(keys: int) -> None:
    gone, connections = list[int](), Connections(20, 20, 30)
    for number in range(20):
        made = connections.admit(f"address {number}", partial(gone.append, number % keys))
        assert made is not None
        made.receives({KEY: f"key {number % keys}"})
    assert connections.admit("ada", print) is not None
    assert gone == [0]  # one that has most


def test_the_bodies_of_a_key_are_safe_up_to_its_share() -> None:
    gone, connections = list[Any](), Connections(20, 20, 30)
    for number in range(20):
        made = connections.admit(f"address {number}", partial(gone.append, number))
        assert made is not None
        made.receives({KEY: "eve"} if number < 8 else {KEY: "ada"} if number < 12 else {})
    for number in range(11):
        assert connections.admit(f"other {number}", partial(gone.append, "other")) is not None
    assert sorted(gone[:3]) == [0, 1, 2]  # those of eve, down to a quarter
    assert not set(gone) & {3, 4, 5, 6, 7, 8, 9, 10, 11}


def test_a_key_that_is_always_at_work_leaves_room_for_others_and_gets_its_answers(tmp_path: Path) -> None:
    """Who sends the next request before the last one is answered is never idle: two addresses kept everybody out."""
    with (
        running(tmp_path / "s", Settings(max_connections=12, connections_per_address=6)) as service,
        ExitStack() as stack,
    ):
        port = service.client.base_url.port or 0
        secret, others = token(service.folder, "eve", "learn"), service.admin["Authorization"].split()[1]
        gate, held = hold(service.service.writer), []
        for row in range(12):
            body = json.dumps({"samples": samples([row])}).encode()
            head = f"POST /v1/samples HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret}\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            made = socket.create_connection(("127.0.0.1", port), 60, (f"127.0.0.{8 + row % 2}", 0))
            held.append(stack.enter_context(closing(made)))
            made.sendall((head.encode() + body) * 2)
            eventually(lambda row=row: len(service.service.writer.waiting("eve")) == row + 1)  # type: ignore[misc]
        for _ in range(3):
            good = stack.enter_context(closing(Good(port, others)))
            good.ask("GET", "/readyz")
        gate.set()
        answers = [each.recv(2**16) for each in held]
        assert all(answer.startswith(b"HTTP/1.1 201 ") for answer in answers)
        assert 1 <= sum(b"connection: close" in answer.lower() for answer in answers) <= 3


def test_connections_at_work_make_room_only_if_nothing_else_does() -> None:
    gone: list[str] = []
    connections = Connections(8, 6, 30, lambda: 0.0)

    def admit(name: str, address: str, key: str | None = None) -> Any:
        made = connections.admit(address, partial(gone.append, name))
        assert made is not None
        made.end = partial(gone.append, f"{name} ends")
        made.works({} if key is None else {KEY: key})
        return made

    made = [admit(f"eve {number}", "eve") for number in range(6)]
    admit("ada", "ada", "ada").rests()
    admit("bob", "bob", "bob")
    admit("cleo", "cleo", "cleo")  # there is ada, who is idle, but eve has far more
    assert [name[:4] for name in gone] == ["eve "]
    left = [each for number, each in enumerate(made) if f"eve {number}" not in gone]
    for each in left[:4]:
        each.ended()
    for number in range(4):
        admit(f"dan {number}", f"dan {number}", f"dan {number}")
    admit("fay", "fay", "fay")  # ada is idle, and nobody has far more
    assert gone[1:] == ["ada"]


def test_strangers_at_one_address_leave_room_for_keys_there() -> None:
    """Clients behind one proxy, or one gateway of a container, have one address: its strangers kept its keys out."""
    gone, connections = list[Any](), Connections(8, 8, 30)
    for number in range(8):
        made = connections.admit("proxy", partial(gone.append, number))
        assert made is not None
        made.works({})  # always: the next request comes before the answer
    keyed = connections.admit("proxy", partial(gone.append, "keyed"))
    assert keyed is not None
    for number in range(20):  # each that is cut comes back
        made = connections.admit("proxy", partial(gone.append, number))
        assert made is not None
        made.works({})
        if number == 5:
            keyed.works({KEY: "ada"})
    assert len(gone) == 21
    assert "keyed" not in gone


def test_who_is_cut_and_comes_back_at_once_does_not_replace_a_new_connection() -> None:
    now, gone = [0.0], list[str]()
    connections = Connections(6, 4, 30, lambda: now[0])

    def admit(name: str, address: str = "eve") -> Any:
        now[0] += 0.01
        made = connections.admit(address, partial(gone.append, name))
        assert made is not None
        return made

    def use(made: Any, scope: dict[str, Any]) -> None:
        made.works(scope)
        made.rests()

    use(admit("keyed"), {KEY: "ada"})
    for number in range(3):
        use(admit(f"eve {number}"), {})
    admit("new")
    for number in range(3, 5):  # each is cut, and comes back
        use(admit(f"eve {number}"), {})
    assert gone == ["eve 0", "eve 1", "eve 2"]
    for made in [each for each in connections._open if each.last is None and each.used]:
        made.works({})  # always
    admit("another")
    assert gone[3:] == ["eve 3"]
    now[0] += 5
    admit("late")
    assert gone[4:] == ["new"]  # it had its time


def test_a_key_keeps_only_so_many_idle_connections() -> None:
    now, gone = [0.0], list[str]()
    connections = Connections(8, 8, 30, lambda: now[0])
    for number in range(7):
        made = connections.admit("eve", partial(gone.append, f"eve {number}"))
        assert made is not None
        made.works({KEY: "eve"})
        made.rests()
    for name in ("new", "another", "third"):
        assert connections.admit("eve", partial(gone.append, name)) is not None
    assert len(set(gone)) == 2
    assert "new" not in gone


def test_who_does_not_read_is_cut(tmp_path: Path) -> None:
    with running(tmp_path / "s", Settings(idle_timeout=0.5, public_burst=1e6)) as service:
        place = ("127.0.0.1", service.client.base_url.port or 0)
        with closing(socket.create_connection(place, 60)) as deaf:
            deaf.setblocking(False)
            poll = select.poll()
            poll.register(deaf, 0)  # errors and hang-ups alone
            asked = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n"
            cut = False
            for _ in range(6000):
                try:
                    deaf.send(asked)
                except BlockingIOError:
                    pass
                except ConnectionError:
                    cut = True
                if cut or poll.poll(10):
                    break
            else:
                pytest.fail("the connection is still open")


def test_no_file_left_for_a_publication(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    with running(tmp_path / "s", Settings(max_delay=0, quiet=0), clock=lambda: now[0]) as service:
        metrics = service.service.metrics
        with monkeypatch.context() as patched:
            patched.setattr("neverseen.store.publications.write_version", _none_left)
            service.learn(range(10))
            eventually(metrics.publish_failures._value.get)
            assert service.forget(service.learn([10])).status_code == 202  # the store is open
        now[0] += 10
        service.service.writer.poke()
        eventually(lambda: service.service.writer.published.number)
        assert metrics.writer_failures._value.get() == 0


def test_no_file_left_for_an_operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path / "s", Settings(max_delay=1000, quiet=1000)) as service:
        service.learn(range(10))
        with monkeypatch.context() as patched:
            patched.setattr("neverseen.store.publications.write_version", _none_left)
            answer = service.client.post("/v1/publish", headers=service.admin)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
            service.learn([10])  # the store is open
        assert service.client.post("/v1/publish", headers=service.admin).status_code == 200
        assert service.service.metrics.writer_failures._value.get() == 0


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the system does not list open files")
def test_who_does_not_read_a_certificate_keeps_no_file_open(tmp_path: Path) -> None:
    with running(tmp_path / "s", Settings(idle_timeout=600)) as service, ExitStack() as stack:
        service.learn(range(10))
        assert service.client.post("/v1/publish", headers=service.admin).status_code == 200
        path = service.folder / "certificates" / "00000001.json"
        size = 2**25  # more than the system takes in for a client that does not read
        os.truncate(path, size)
        for _ in range(20):
            slow = stack.enter_context(closing(socket.socket()))
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.settimeout(60)
            slow.connect(("127.0.0.1", service.client.base_url.port or 0))
            slow.sendall(b"GET /v1/certificates/1 HTTP/1.1\r\nHost: x\r\n\r\n")
            assert slow.recv(1000).startswith(b"HTTP/1.1 200 ")
        eventually(lambda: not _open_files(path), "it stays open")
        assert len(service.client.get("/v1/certificates/1").content) == size


def _open_files(path: Path) -> int:
    found = 0
    for each in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found += each.readlink() == path.resolve()
    return found


def _none_left(*given: Any) -> None:
    raise OSError(errno.EMFILE, "Too many open files")


# -- whom it hits ------------------------------------------------------------------------------------


def test_who_has_most_gives_way() -> None:
    now, gone = [0.0], list[str]()
    connections = Connections(6, 5, 30, lambda: now[0])

    def admit(name: str, address: str) -> Any:
        now[0] += 1
        return connections.admit(address, lambda: gone.append(name))

    others = [admit(f"ada {number}", "ada") for number in range(2)]
    many = [admit(f"eve {number}", "eve") for number in range(4)]
    many[0].works({KEY: "eve"})
    many[1].works()
    many[1].rests()
    assert admit("bob", "bob") is not None
    assert admit("cleo", "cleo") is not None
    assert gone == ["eve 1", "eve 2"]  # the one that had its turn; then the one that has waited longer
    for each in (*others, many[3]):
        each.works({KEY: each.address})
    assert admit("eve 4", "eve") is not None  # bob's or cleo's: eve has none that waits
    assert gone[2:] == ["bob"]
    assert len(connections) == 6


def test_a_body_without_a_key_gives_way() -> None:
    gone: list[str] = []
    connections = Connections(3, 3, 30, lambda: 0.0)
    scopes: list[dict[str, Any]] = [{}, {}]
    for name, scope in zip(("stranger", "friend"), scopes, strict=True):
        made = connections.admit(name, partial(gone.append, name))
        assert made is not None
        made.receives(scope)
    scopes[1]["neverseen.key"] = "friend"
    at_work = connections.admit("bob", partial(gone.append, "bob"))
    assert at_work is not None
    at_work.works({KEY: "bob"})
    connections.tidy()  # how long a body may take is not decided here
    last = connections.admit("cleo", print)
    assert last is not None
    last.works({KEY: "cleo"})
    assert connections.admit("dan", print) is None
    assert gone == ["stranger"]


def test_who_waits_too_long_is_cut() -> None:
    now, gone = [0.0], list[str]()
    connections = Connections(10, 10, 30, lambda: now[0])
    for name in ("waits", "works", "stalls"):
        made = connections.admit("ada", partial(gone.append, name))
        assert made is not None
        if name != "waits":
            made.works()
        if name == "stalls":
            now[0] = 15.0
            made.stalls()
    now[0] = 31.0
    connections.tidy()
    assert gone == ["waits"]
    now[0] = 46.0
    connections.tidy()
    assert gone == ["waits", "stalls"]
    assert len(connections) == 1


def test_too_few_files_are_told_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (40, 40))
    with pytest.raises(ConfigurationError, match=r"may open 40 files.*ulimit -n"):
        allowed(1000)
    monkeypatch.setattr("resource.getrlimit", lambda _: (10**9, 10**9))
    assert allowed(1000) == 1000
