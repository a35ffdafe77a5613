"""A service in a process of its own, on a port that is free, with a store that is made for the purpose."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from neverseen import AnalyticClassifier, ForgettingModel, RandomProjection, store
from neverseen.backbones import Precomputed
from neverseen.service.operations.settings import NAME, service_folder
from neverseen.service.reception.access import KeyFile

GAMMA = 2**13
_UNLIMITED = {  # the benchmark asks for more than one client may
    "requests_per_second": 1e6,
    "request_burst": 1e6,
    "samples_per_second": 1e7,
    "sample_burst": 1e7,
    "public_per_second": 1e6,
    "public_burst": 1e6,
}


class Samples:
    """Rows of features that follow from their names, so that any of them can be made again.

    Features are sixteenths: they are the same in JSON, float32 and float64.
    """

    def __init__(self, width: int, classes: int, seed: int) -> None:
        self.width, self.classes, self.seed = width, classes, seed
        self._centres = np.random.default_rng(seed).normal(size=(classes, width))

    def label(self, name: str) -> int | str:
        """Return the label: the number before the last dash, or all that is before it."""
        stem = name.rpartition("-")[0]
        return int(stem.rpartition("-")[2]) if not stem.startswith("own") else stem

    def row(self, name: str) -> list[float]:
        """Return the features."""
        label = self.label(name)
        centre = self._centres[label] if isinstance(label, int) else np.zeros(self.width)
        noise = np.random.default_rng([self.seed, *name.encode()]).normal(size=self.width)
        return (np.round(16 * (centre + noise)) / 16).tolist()  # type: ignore[no-any-return]

    def json(self, name: str) -> dict[str, Any]:
        """Return a sample as the service takes it."""
        return {"features": self.row(name), "label": self.label(name), "id": name}


def free_port() -> int:
    """Return a port on loopback that nobody uses."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


class Served:
    """A store in a folder, and the service before it, which can be killed and started again; a context manager.

    Attributes
    ----------
    port : int
    url : str
    token : str
        Of a key that may do everything.
    public_key : str
        That certificates are signed with.
    """

    def __init__(self, folder: Path, size: int, samples: Samples, tracked: bool = False, **settings: Any) -> None:
        self.folder = folder / "store"
        self._size, self._samples, self._tracked = size, samples, tracked
        recipe = {"kind": "features", "n_features": samples.width, "name": "precomputed"}
        with store.create(self.folder, Precomputed(samples.width), self._classifier(), recipe=recipe) as made:
            self.public_key = made.description.public_key
        place = service_folder(self.folder)
        self.token = KeyFile(place).add("benchmark", ["admin"])
        self.settings = _UNLIMITED | settings
        lines = [f"{name} = {value!r}" for name, value in self.settings.items()]
        (place / NAME).write_text("\n".join(lines) + "\n", "utf-8")
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = folder / "service.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Served:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def start(self) -> float:
        """Start the service; return the seconds until it is ready."""
        began = time.perf_counter()
        command = [sys.executable, "-m", "neverseen.cli", "serve", str(self.folder)]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"NO_COLOR": "1"})
        while not self._is_ready():
            if self._process.poll() is not None or time.perf_counter() > began + 120:
                raise RuntimeError(f"the service does not start:\n{self.log()}")
            time.sleep(0.02)
        return time.perf_counter() - began

    def kill(self) -> None:
        """End the service as a power cut would."""
        assert self._process is not None  # noqa: S101
        self._process.kill()
        self._process.wait()

    def stop(self) -> float:
        """Ask the service to stop; return the seconds until it has."""
        assert self._process is not None  # noqa: S101
        began = time.perf_counter()
        self._process.terminate()
        code = self._process.wait(120)
        if code not in (0, -15):
            raise RuntimeError(f"the service stopped with exit code {code}:\n{self.log()}")
        return time.perf_counter() - began

    def log(self) -> str:
        """Return the end of what the service printed."""
        return self._log.read_text("utf-8", "replace")[-3000:]

    def held(self) -> tuple[set[str], str]:
        """Return the ids that a stopped service's store holds, and its digest."""
        with store.open(self.folder, backbone=Precomputed(self._samples.width)) as opened:
            return {json.loads(row.id) for row in opened.ledger.samples()}, opened.digest()

    def replay(self, names: set[str]) -> str:
        """Return the digest of a new model that learns these samples and nothing else, in memory."""
        order = sorted(names)
        rows = np.array([self._samples.row(name) for name in order]).reshape(-1, self._samples.width)
        return self.replay_rows(rows, [self._samples.label(name) for name in order])

    def replay_rows(self, rows: np.ndarray, labels: Sequence[int | str]) -> str:
        """Return the digest of a new model that learns these rows and nothing else, in memory."""
        model = ForgettingModel(Precomputed(self._samples.width), self._classifier())
        for start in range(0, len(rows), 1000):
            model.learn(rows[start : start + 1000], labels[start : start + 1000])
        return model.digest()

    def _classifier(self) -> AnalyticClassifier:
        return AnalyticClassifier(RandomProjection(self._size, seed=1), GAMMA, track_classes=self._tracked)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=5) as answer:  # noqa: S310
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False
