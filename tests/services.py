"""A service on a small store of features, for tests: in this process, or as a process of its own."""

from __future__ import annotations

import atexit
import base64
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import uvicorn

from neverseen import AnalyticClassifier, ForgettingModel, Key, Keyring, RandomProjection, store
from neverseen.backbones import Backbone, Precomputed
from neverseen.service import KeyFile, Settings, create_app
from neverseen.service.core import Service
from neverseen.service.edge.protocol import LimitedProtocol
from neverseen.service.edge.server import Server, connections_of
from neverseen.service.operations.settings import service_folder
from neverseen.service.reception.workers import Workers, _end
from neverseen.service.writer.queue import Writer
from neverseen.store import Store
from tests.samples import clustered
from tests.waiting import eventually

WITHOUT_TORCH = str(Path(__file__).parent / "without_torch")  # for the path of processes that need none
SIZE = 6
ROWS, NUMBERS = clustered("service", 200, SIZE, 3)
LABELS = [("cat", "dog", "emu")[number] for number in NUMBERS]
KEYS = Keyring(Key(bytes([7] * 32)), [Key(bytes([8] * 32))])
BACKBONE = Precomputed(SIZE)
QUICK = Settings(quiet=0.0, max_delay=0.0, seal_after=1000)


def classifier(tracked: bool = True) -> AnalyticClassifier:
    return AnalyticClassifier(RandomProjection(24, seed=1), 2**9, track_classes=tracked, hardware="numpy")


def never(rows: Any) -> str:
    """The digest of a model that learned these rows and nothing else."""
    model = ForgettingModel(BACKBONE, classifier(), KEYS)
    kept = list(rows)
    model.learn(ROWS[kept], [LABELS[row] for row in kept])
    return model.digest()


def new_store(folder: Path, tracked: bool = True) -> Path:
    recipe = {"kind": "features", "n_features": SIZE, "name": "precomputed"}
    store.create(folder, BACKBONE, classifier(tracked), keys=KEYS, recipe=recipe).close()
    return folder


def token(folder: Path, name: str, *scopes: str, owner: str | None = None) -> str:
    return KeyFile(service_folder(folder)).add(name, scopes, owner)


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def samples(rows: Any, ids: bool = True) -> list[dict[str, Any]]:
    return [{"features": ROWS[row].tolist(), "label": LABELS[row]} | ({"id": f"s{row}"} if ids else {}) for row in rows]


def coded(receipt: bytes) -> str:
    return base64.urlsafe_b64encode(receipt).decode()


class Running:
    """A service in a thread of this process, on loopback."""

    def __init__(self, client: httpx.Client, folder: Path, admin: str, service: Service) -> None:
        self.client, self.folder, self.admin, self.service = client, folder, bearer(admin), service
        self.url = str(client.base_url)

    def learn(self, rows: Any, headers: dict[str, str] | None = None, **extra: Any) -> list[str]:
        answer = self.client.post(
            "/v1/samples", json={"samples": samples(rows), **extra}, headers=headers or self.admin
        )
        assert answer.status_code == 201, answer.text
        receipts: list[str] = answer.json()["receipts"]
        return receipts

    def forget(self, receipts: list[str], headers: dict[str, str] | None = None, **query: Any) -> httpx.Response:
        return self.client.post("/v1/forget", json={"receipts": receipts}, headers=headers or self.admin, params=query)

    def digest(self) -> str:
        """Of all that is held, published or not."""
        found: str = self.service.writer.ask(lambda opened: opened.digest()).result(30)
        return found

    def state(self, request: str) -> str:
        found: str = self.client.get(f"/v1/requests/{request}", headers=self.admin).json()["request"]["state"]
        return found

    def wait(self, request: str, state: str = "published", seconds: float = 120) -> None:
        eventually(lambda: self.state(request) == state, f"{request} is not {state}", seconds)


def hold(writer: Writer) -> threading.Event:
    """Keep the writer from its queue until the event that is returned is set."""
    begun, gate = threading.Event(), threading.Event()

    def wait(_: Store) -> None:
        begun.set()
        gate.wait(120)

    writer.ask(wait)
    assert begun.wait(60)  # it no longer waits itself, and what came before is done
    return gate


_readers: dict[str, subprocess.Popen[bytes]] = {}  # by what they were told at their start


@atexit.register
def _end_readers() -> None:
    for process in _readers.values():
        _end(process)


def _lend_reader(readers: Workers) -> None:
    """Give a service the process for reading bodies that another left: to start one takes longer than most tests."""
    process = _readers.pop(json.dumps(readers._about), None)
    if process is not None:
        readers._count += 1
        readers._idle.put(process)


def _keep_reader(readers: Workers) -> None:
    """Keep one that waits for work. All others end with their service."""
    waiting = [readers._idle.get() for _ in range(readers._idle.qsize())]
    for process in waiting:
        if process is not None and process.poll() is None and json.dumps(readers._about) not in _readers:
            _readers[json.dumps(readers._about)] = process
        else:
            readers._idle.put(process)


@contextmanager
def running(
    folder: Path,
    settings: Settings = QUICK,
    backbone: Backbone = BACKBONE,
    keyring: Keyring | None = KEYS,
    **options: Any,
) -> Iterator[Running]:
    if not folder.exists():
        new_store(folder)
    keys = KeyFile(service_folder(folder))
    name = f"admin {len(keys.all())}"
    admin = keys.add(name, ["admin"])
    app = create_app(folder, settings, backbone=backbone, keys=keyring, hardware="numpy", **options)
    config = uvicorn.Config(
        app.state.front,
        port=0,
        lifespan="on",
        log_level="error",
        ws="none",
        timeout_graceful_shutdown=5,
        http=LimitedProtocol,
        proxy_headers=False,
    )
    server = Server(config, connections_of(app.state.service.settings))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        eventually(lambda: server.started or not thread.is_alive(), "the service did not get ready")
        assert server.started, "the service did not start"
        _lend_reader(app.state.service.readers)
        port = server.port
        # It verifies nothing: no https, and to read the certificates of all authorities is a quarter of a start.
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120, verify=False) as client:  # noqa: S501
            yield Running(client, folder, admin, app.state.service)
            _keep_reader(app.state.service.readers)
    finally:
        server.should_exit = True
        thread.join(60)


SCRIPT = """
import resource
import sys
exec(sys.argv[6])
from pathlib import Path
from neverseen.service import Settings, serve
from tests.services import BACKBONE, KEYS
folder, port, cert, key = sys.argv[1:5]
options = {"tls_cert": Path(cert), "tls_key": Path(key)} if cert else {}
settings = eval(sys.argv[5], {"Settings": Settings})
serve(folder, settings, backbone=BACKBONE, keys=KEYS, port=int(port), hardware="numpy", **options)
"""


def environment() -> dict[str, str]:
    """What a process needs to run the same code as here: without PyTorch, which takes long to import."""
    here = Path(__file__).parents[1]
    places = [WITHOUT_TORCH, str(here), str(here / "src"), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(places), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


def require_ready(process: subprocess.Popen[Any], url: str) -> None:
    """Wait until a service that was started as a process answers."""

    def answers() -> bool:
        assert process.poll() is None, "the service did not start"
        try:
            return client.get("/readyz").status_code == 200
        except httpx.HTTPError:
            return False

    with httpx.Client(base_url=url, verify=False, timeout=5, trust_env=False) as client:  # noqa: S501
        eventually(answers, "the service did not get ready")


class Process:
    """A service as a process of its own, on loopback.

    `first` is Python that it runs before anything else. With a `module`, the process runs that instead, given the
    folder and the port.
    """

    def __init__(
        self,
        folder: Path,
        settings: str = "Settings()",
        cert: Path | None = None,
        key: Path | None = None,
        first: str = "",
        module: str = "",
    ) -> None:
        self.port = free_port()
        self.url = f"http{'s' if cert else ''}://127.0.0.1:{self.port}"
        place = [str(folder), str(self.port)]
        how = (
            ["-m", module, *place]
            if module
            else ["-c", SCRIPT, *place, str(cert or ""), str(key or ""), settings, first]
        )
        self.process = subprocess.Popen([sys.executable, *how], env=environment(), cwd=Path(__file__).parents[1])
        require_ready(self.process, self.url)

    def stop(self, how: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.process.wait(60)


def rows_of(count: int) -> np.ndarray:
    return ROWS[:count]
