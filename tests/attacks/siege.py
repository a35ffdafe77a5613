"""What attacks have in common: a service in a process of its own, its memory, and a client that goes on meanwhile."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks import siege_service
from neverseen.service.operations.settings import NAME, service_folder
from neverseen.service.reception.access import KeyFile
from tests.services import ROWS, Process, new_store
from tests.waiting import pause


class Besieged:
    """A service in a process of its own, with keys by name."""

    def __init__(self, service: Process, tokens: dict[str, str]) -> None:
        self.port, self.tokens = service.port, tokens
        self._process = psutil.Process(service.process.pid)
        self._peak = 0

    def memory(self) -> int:
        """Bytes of the service and of the processes that it started."""
        found = 0
        for each in [self._process, *self._process.children(recursive=True)]:
            try:
                found += each.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        return found

    @contextmanager
    def watched(self, body: dict[str, Any]) -> Iterator[Watch]:
        """Have somebody else predict all the while, and measure the memory."""
        watch = Watch(self, body)
        thread = threading.Thread(target=watch.run)
        thread.start()
        try:
            yield watch
        finally:
            watch.done.set()
            thread.join()


class Watch:
    """Another client: what it was answered, and the most memory that it saw in use."""

    def __init__(self, besieged: Besieged, body: dict[str, Any]) -> None:
        self.done = threading.Event()
        self.statuses: Counter[int] = Counter()
        self.peak = 0
        self._besieged, self._body = besieged, json.dumps(body).encode()

    def run(self) -> None:
        while not self.done.is_set():
            headers = {"Authorization": f"Bearer {self._besieged.tokens['other']}", "Content-Type": "application/json"}
            url = f"http://127.0.0.1:{self._besieged.port}/v1/predict"
            request = urllib.request.Request(url, self._body, headers)
            try:
                with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310
                    self.statuses[answer.status] += 1
            except urllib.error.HTTPError as error:
                self.statuses[error.code] += 1
                error.close()
            self.peak = max(self.peak, self._besieged.memory())
            pause(0.02)


@contextmanager
def besieged(folder: Path, kind: str = "features", **settings: Any) -> Iterator[Besieged]:
    """Start a service for features, as in `tests.services`, or for images, as in `benchmarks.siege_service`."""
    (siege_service.create if kind == "images" else new_store)(folder)
    keys = KeyFile(service_folder(folder))
    tokens = {name: keys.add(name, ["admin"]) for name in ("attacker", "other")}
    lines = [f"{name} = {value!r}" for name, value in settings.items()]
    (service_folder(folder) / NAME).write_text("\n".join(lines) + "\n", "utf-8")
    process = Process(folder, "None", module="benchmarks.siege_service" if kind == "images" else "")
    try:
        yield Besieged(process, tokens)
    finally:
        process.stop()


def call(besieged: Besieged, path: str, body: dict[str, Any], key: str = "other") -> tuple[int, dict[str, Any]]:
    """Send JSON; return status and answer."""
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {besieged.tokens[key]}"
    url = f"http://127.0.0.1:{besieged.port}{path}"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def features(rows: Sequence[int]) -> list[list[float]]:
    return [ROWS[row].tolist() for row in rows]
