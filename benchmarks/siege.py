"""Does the service go on while it is attacked? ``python -m benchmarks.siege``.

A real service in a process of its own on loopback, and a client that asks for a prediction every 20 milliseconds. One
attack after the other goes on beside it. For each, the table shows how long predictions took while all was quiet and
during the attack, each from the moment it was due; what went wrong for that client; and the memory of the service
before, at most, and after.

Each attack is bounded in count and time. Every service is started for its attack and stopped after it.
"""

from __future__ import annotations

import argparse
import base64
import json
import multiprocessing
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks import siege_attacks as attacks
from benchmarks import siege_service
from benchmarks.provenance import provenance, write_json
from neverseen import AnalyticClassifier, RandomProjection, store
from neverseen.backbones import Precomputed
from neverseen.service.access import KeyFile
from neverseen.service.settings import NAME, service_folder

PERIOD = 0.02
WIDTH = 64
_HEADERS = {"Content-Type": "application/json"}


@dataclass
class Siege:
    """A service that is attacked.

    Attributes
    ----------
    port : int
    tokens : dict
        ``"good"``, ``"bad"`` and ``"narrow"``: keys of the client, of the attacker, and one that may only predict.
    pid : int
        Of the service.
    scale : float
        1 for attacks of full size.
    """

    port: int
    tokens: dict[str, str]
    pid: int
    scale: float

    def many(self, count: int) -> int:
        """Return a count, smaller where the attack is."""
        return max(1, round(count * self.scale))

    def memory(self) -> int:
        """Return the bytes of the service and of the processes that it started."""
        found = 0
        with suppress(psutil.NoSuchProcess):
            service = psutil.Process(self.pid)
            for each in [service, *service.children(recursive=True)]:
                found += each.memory_info().rss
        return found


@dataclass(frozen=True)
class Attack:
    """One attack: what it is called, what it does, and the service that it needs."""

    name: str
    run: Callable[[Siege], Counter[int]]
    images: bool = False
    tracked: bool = False
    files: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)


# -- attacks -----------------------------------------------------------------------------------------


def _verify(siege: Siege) -> Counter[int]:
    body = attacks.odd_certificate(siege.many(600_000))
    return attacks.together(6, lambda _: attacks.post(siege.port, "/v1/verify", "", body))


def _certificates(siege: Siege) -> Counter[int]:
    body = attacks.long_certificate(siege.many(12_000))
    return attacks.together(24, lambda _: attacks.post(siege.port, "/v1/verify", "", body))


def _bombs(siege: Siege) -> Counter[int]:
    body = attacks.form(*[(b"files", attacks.bomb(siege.many(5000)))] * 40)
    send = partial(attacks.post, siege.port, "/v1/predict", siege.tokens["bad"], kind=attacks.FORM)
    return attacks.together(2, lambda _: send(body=body))


def _single_bombs(siege: Siege) -> Counter[int]:
    body = attacks.form((b"files", attacks.bomb(siege.many(5000))))
    send = partial(attacks.post, siege.port, "/v1/predict", siege.tokens["bad"], kind=attacks.FORM)
    return attacks.together(12, lambda _: send(body=body))


def _samples(siege: Siege) -> Counter[int]:
    bodies = [attacks.many_samples(siege.many(mebibytes * 2**20)) for mebibytes in (63, 31)]
    send = partial(attacks.post, siege.port, "/v1/samples", siege.tokens["bad"])
    return attacks.together(4, lambda place: send(bodies[place % 2]))


def _receipts(siege: Siege) -> Counter[int]:
    body = attacks.many_receipts(siege.many(63 * 2**20))
    send = partial(attacks.post, siege.port, "/v1/forget", siege.tokens["bad"], kind=attacks.FORM)
    return attacks.together(3, lambda _: send(body=body))


def _classes(siege: Siege) -> Counter[int]:
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(siege.many(3000), WIDTH)).round(3).tolist()
    given = [{"features": row, "label": f"class {number}"} for number, row in enumerate(rows)]
    found: Counter[int] = Counter()
    third = -(-len(given) // 3)
    for some in (given, given[:third], given[third : 2 * third], given[2 * third :]):  # at once, and in parts
        body = json.dumps({"samples": some}).encode()
        found[attacks.post(siege.port, "/v1/samples", siege.tokens["bad"], body)] += 1
    time.sleep(10 * siege.scale)  # for the publication
    return found


def _sockets(siege: Siege) -> Counter[int]:
    return attacks.idle(siege.port, 320, 8 * siege.scale)


def _scopes(siege: Siege) -> Counter[int]:
    return attacks.repeated(siege.port, "/v1/samples", [siege.tokens["narrow"]], siege.many(600))


def _trickle(siege: Siege) -> Counter[int]:
    length = siege.many(2**25 - 2**10)
    return attacks.trickle(siege.port, siege.tokens["bad"], 9, length, length - 2**10, 15 * siege.scale)


ATTACKS = {
    "verify": Attack("6 certificates of 600,000 keys, no key", _verify),
    "certificates": Attack("24 certificates of 12,000 commitments, no key", _certificates),
    "bombs": Attack("40 images of 25 megapixels in one request", _bombs, images=True),
    "single-bombs": Attack("12 requests of one such image", _single_bombs, images=True),
    "samples": Attack("5.5 million samples in one body", _samples),
    "receipts": Attack("3.9 million receipts in one file", _receipts),
    "classes": Attack("3,000 classes of one sample, at once and by thousands", _classes, tracked=True),
    "sockets": Attack("320 idle connections, 300 files", _sockets, files=300),
    "scopes": Attack("600 requests of the wrong scope", _scopes),
    "trickle": Attack("9 bodies that never end", _trickle),
}


# -- the service, and who uses it --------------------------------------------------------------------


@contextmanager
def besieged(folder: Path, attack: Attack, scale: float) -> Iterator[Siege]:
    """Start a service that has learned a little, and stop it in the end."""
    place = folder / "store"
    if attack.images:
        siege_service.create(place)
    else:
        recipe = {"kind": "features", "n_features": WIDTH, "name": "precomputed"}
        classifier = AnalyticClassifier(RandomProjection(256, seed=1), 2**12, track_classes=attack.tracked)
        store.create(place, Precomputed(WIDTH), classifier, recipe=recipe).close()
    keys = KeyFile(service_folder(place))
    tokens = {name: keys.add(name, ["admin"]) for name in ("good", "bad")}
    tokens["narrow"] = keys.add("narrow", ["predict"])
    lines = [f"{name} = {value!r}" for name, value in ({"max_delay": 1.0} | attack.settings).items()]
    (service_folder(place) / NAME).write_text("\n".join(lines) + "\n", "utf-8")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "neverseen.cli", "serve", str(place), "--host", "127.0.0.1", "--port", str(port)]
    if attack.images:
        command = [sys.executable, "-m", "benchmarks.siege_service", str(place), str(port)]
    with (folder / "service.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env=os.environ | {"NO_COLOR": "1"}, cwd=Path(__file__).parents[1]
        )
    try:
        if attack.files is not None:
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (attack.files, attack.files))
        _wait(process, port)
        siege = Siege(port, tokens, process.pid, scale)
        _call(siege, "/v1/samples", {"samples": _taught(attack)})
        _call(siege, "/v1/publish", {})
        yield siege
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _taught(attack: Attack) -> list[dict[str, Any]]:
    if attack.images:
        images = [base64.b64encode(attacks.bomb(side)).decode() for side in (8, 9)]
        return [{"image": image, "label": number} for number, image in enumerate(images)]
    rng = np.random.default_rng(0)
    return [{"features": rng.normal(size=WIDTH).round(3).tolist(), "label": row % 4} for row in range(80)]


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5):
                return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError("the service does not start: see service.log in its folder")


def _call(siege: Siege, path: str, body: dict[str, Any]) -> None:
    headers = _HEADERS | {"Authorization": f"Bearer {siege.tokens['good']}"}
    url = f"http://127.0.0.1:{siege.port}{path}"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=120):  # noqa: S310
        pass


class Client(threading.Thread):
    """Asks for a prediction every 20 milliseconds, or as soon as the one before is answered.

    Attributes
    ----------
    seconds : list of float
        That each took. One that was due while the one before took its time counts from when it was due.
    errors : Counter
        Of answers that were none: their status, or 0.
    """

    def __init__(self, siege: Siege, body: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self.seconds: list[float] = []
        self.errors: Counter[int] = Counter()
        self._siege, self._body, self._done = siege, json.dumps(body).encode(), threading.Event()

    def run(self) -> None:
        """Ask until told to stop."""
        headers = _HEADERS | {"Authorization": f"Bearer {self._siege.tokens['good']}"}
        connection = HTTPConnection("127.0.0.1", self._siege.port, timeout=60)
        due = time.perf_counter()
        while not self._done.is_set():
            try:
                connection.request("POST", "/v1/predict", self._body, headers)
                answer = connection.getresponse()
                answer.read()
                status = answer.status
            except (OSError, HTTPException):
                connection.close()
                status = 0
            ended = time.perf_counter()
            self.seconds.append(ended - due)
            if status != 200:
                self.errors[status] += 1
            due += PERIOD
            if status == 0 or ended - due > 5:  # do not send what was missed in a bunch
                due = time.perf_counter() + PERIOD
            time.sleep(max(0.0, due - time.perf_counter()))
        connection.close()

    def stop(self) -> None:
        """Stop, and wait for the last answer."""
        self._done.set()
        self.join()


def _while(siege: Siege, body: dict[str, Any], work: Callable[[], Any]) -> tuple[Client, Any]:
    client = Client(siege, body)
    client.start()
    try:
        return client, work()
    finally:
        client.stop()


def _attack(name: str, siege: Siege, seconds: float) -> Counter[int]:
    """Attack, again and again for some seconds, or once if that takes longer."""
    end = time.monotonic() + seconds
    found = ATTACKS[name].run(siege)
    while time.monotonic() < end:
        found += ATTACKS[name].run(siege)
    return found


def measured(name: str, folder: Path, seconds: float, scale: float) -> dict[str, Any]:
    """Return what became of a service and its client in an attack, as JSON values."""
    attack = ATTACKS[name]
    with besieged(folder, attack, scale) as siege:
        sample = {name: value for name, value in _taught(attack)[0].items() if name != "label"}
        body = {"samples": [sample]}
        _while(siege, body, lambda: time.sleep(min(1.0, seconds)))  # the first calls prepare
        quiet, _ = _while(siege, body, lambda: time.sleep(seconds))
        before = siege.memory()
        spawning = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, spawning) as attacker:  # the client must not wait for what the attacker computes
            attacker.submit(time.sleep, 0).result()
            peaks: list[int] = []
            began = time.perf_counter()

            def work() -> Counter[int]:
                going = attacker.submit(_attack, name, siege, seconds)
                while not going.done():
                    peaks.append(siege.memory())
                    time.sleep(0.1)
                time.sleep(min(1.0, seconds))
                return going.result()

            besetting, statuses = _while(siege, body, work)
        lasted = time.perf_counter() - began
        end = time.monotonic() + 20
        while siege.memory() > 1.2 * before and time.monotonic() < end:
            time.sleep(0.2)
        after = siege.memory()
    return {
        "attack": attack.name,
        "seconds": lasted,
        "answers_to_the_attacker": {str(status): count for status, count in sorted(statuses.items())},
        "quiet": _latency(quiet),
        "under_attack": _latency(besetting),
        "ratio_p99": _percentile(besetting, 99) / _percentile(quiet, 99),
        "errors": {str(status): count for status, count in sorted(besetting.errors.items())},
        "memory": {"before": before, "peak": max(before, *peaks), "after": after},
    }


def _percentile(client: Client, percent: float) -> float:
    return float(np.percentile(client.seconds, percent))


def _latency(client: Client) -> dict[str, float]:
    about = {f"p{percent}": _percentile(client, percent) for percent in (50, 99)}
    return about | {"most": max(client.seconds), "predictions": len(client.seconds)}


def _line(name: str, row: dict[str, Any]) -> str:
    quiet, under, memory = row["quiet"], row["under_attack"], row["memory"]
    times = f"{1000 * quiet['p50']:8.1f} {1000 * quiet['p99']:8.1f} {1000 * under['p99']:9.1f} {row['ratio_p99']:6.1f}"
    sizes = " ".join(f"{memory[moment] / 2**20:7.0f}" for moment in ("before", "peak", "after"))
    errors = ", ".join(f"{count} x {status}" for status, count in row["errors"].items()) or "none"
    return f"{name:<14}{times}  {sizes}  {errors}"


def main(words: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--attacks", nargs="+", choices=list(ATTACKS), default=list(ATTACKS))
    parser.add_argument("--seconds", type=float, default=10.0, help="of quiet, and of each attack, at least")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the attacks; smaller for a first look")
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args(words)
    print("attack         quiet ms: p50   p99   attack p99  ratio  MiB before    peak   after  errors")
    rows: dict[str, dict[str, Any]] = {}
    for name in options.attacks:
        with tempfile.TemporaryDirectory() as folder:
            rows[name] = measured(name, Path(folder), options.seconds, options.scale)
        print(_line(name, rows[name]), flush=True)
    if options.json is not None:
        about = provenance("siege", seconds=options.seconds, scale=options.scale, period=PERIOD)
        write_json(options.json, about | {"attacks": rows})


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # whoever stops it stops the service too
    main()
