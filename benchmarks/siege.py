"""Does the service keep working while it is attacked? ``python -m benchmarks.siege``.

A real service runs in its own process on loopback, and a client asks it for a prediction every 20 milliseconds. For
each attack, the table shows how long predictions took without and with the attack, the client's errors, and the
service's memory before, at its peak, and after. The time of a prediction counts from the moment it was due.

Each attack is limited in count and time, and has a service of its own, which is stopped afterwards.
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
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection, HTTPException
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks import siege_attacks as attacks
from benchmarks import siege_service
from benchmarks.provenance import provenance, write_json
from neverseen import AnalyticClassifier, RandomProjection, store
from neverseen.backbones import Precomputed
from neverseen.service.operations.settings import NAME, service_folder
from neverseen.service.reception.access import KeyFile

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["benchmarks.siege"])  # imports are done once
PERIOD = 0.02
WIDTH = 64
FULL = 63  # samples in the largest body that the service reads in its main process
BAD = ("bad", "bad 2", "bad 3", "bad 4")
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
CONSOLE = HEALTH.replace(b"/healthz", b"/console/app.js")
_HEADERS = {"Content-Type": "application/json"}


@dataclass
class Siege:
    """A service under attack.

    Attributes
    ----------
    port : int
    tokens : dict
        API keys by name: ``"good"`` is the client's, those in `BAD` are the attacker's, ``"narrow"`` may only predict.
    pid : int
        Process id of the service.
    scale : float
        Size of the attacks; 1 is full size.
    """

    port: int
    tokens: dict[str, str]
    pid: int
    scale: float

    def many(self, count: int) -> int:
        """Return a count, scaled."""
        return max(1, round(count * self.scale))

    def memory(self) -> int:
        """Return the memory of the service and its child processes, in bytes."""
        found = 0
        with suppress(psutil.NoSuchProcess):
            service = psutil.Process(self.pid)
            for each in [service, *service.children(recursive=True)]:
                found += each.memory_info().rss
        return found


@dataclass(frozen=True)
class Attack:
    """An attack: its description, its code, and the kind of service that it needs."""

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


def _pipelined(siege: Siege) -> Counter[int]:
    one, full, many = attacks.tiny_samples(1, WIDTH), attacks.tiny_samples(FULL, WIDTH), siege.many(2000)

    def send(place: int) -> Counter[int]:
        ask = partial(attacks.requests, "/v1/predict", siege.tokens[BAD[place % 4]])
        kinds = (ask([one] * 8), 8), (ask([full] * 8), 8), (ask([one] * many), many), (HEALTH * many, many)
        return attacks.pipelined(siege.port, *kinds[place // 4 % 4], 5 * siege.scale)

    return attacks.together(32, send)


def _unread(siege: Siege) -> Counter[int]:
    full = attacks.tiny_samples(FULL, WIDTH)
    sent = [attacks.requests("/v1/predict", siege.tokens[name], [full] * 8) for name in BAD] + [CONSOLE * 8]
    send = partial(attacks.pipelined, siege.port, awaited=0, seconds=5 * siege.scale)
    return attacks.together(siege.many(200), lambda place: send(sent=sent[place % 5]))


def _small_bodies(siege: Siege) -> Counter[int]:
    predict, learn = attacks.tiny_samples(FULL, WIDTH), attacks.tiny_samples(FULL, WIDTH, label=0)
    sent = [
        attacks.requests(path, siege.tokens[name], [body])
        for path, good in (("/v1/predict", predict), ("/v1/samples", learn))
        for body in (good, good[:-1], good[:-2] + b",0]}")  # the second and third are wrong at their very end
        for name in BAD
    ]
    send = partial(attacks.pipelined, siege.port, awaited=1, seconds=5 * siege.scale)
    return attacks.together(len(sent), lambda place: send(sent=sent[place]))


def _refused(siege: Siege) -> Counter[int]:
    return attacks.together(32, lambda _: attacks.refused(siege.port, 5 * siege.scale))


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
    "pipelined": Attack("32 connections that do not wait for answers, 4 keys", _pipelined),
    "unread": Attack("200 connections that never read their answers, 4 keys", _unread),
    "refused": Attack("32 connections that send on after they were refused, no key", _refused),
    "small-bodies": Attack("24 connections with full small bodies, good and bad, 4 keys", _small_bodies),
}


# -- the service, and who uses it --------------------------------------------------------------------


@contextmanager
def besieged(folder: Path, attack: Attack, scale: float) -> Iterator[Siege]:
    """Start a service that has learned a few samples; stop it afterwards."""
    place = folder / "store"
    if attack.images:
        siege_service.create(place)
    else:
        recipe = {"kind": "features", "n_features": WIDTH, "name": "precomputed"}
        classifier = AnalyticClassifier(RandomProjection(256, seed=1), 2**12, track_classes=attack.tracked)
        store.create(place, Precomputed(WIDTH), classifier, recipe=recipe).close()
    keys = KeyFile(service_folder(place))
    tokens = {name: keys.add(name, ["admin"]) for name in ("good", *BAD)}
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


class Client:
    """Asks for a prediction every 20 milliseconds, or later if the previous answer is late, in a process of its own.

    Attributes
    ----------
    seconds : list of float
        Time of each prediction, from the moment it was due: waiting for the previous answer counts.
    errors : Counter
        Failed predictions by HTTP status; 0 if there was no answer.
    """

    def __init__(self, siege: Siege, body: dict[str, Any]) -> None:
        self.seconds: list[float] = []
        self.errors: Counter[int] = Counter()
        self._pipe, there = PROCESSES.Pipe()
        self._process = PROCESSES.Process(
            target=_predicting, args=(there, siege.port, siege.tokens["good"], json.dumps(body).encode()), daemon=True
        )
        self._process.start()
        self._pipe.recv()  # it has begun

    def stop(self) -> None:
        """Stop, and wait for the last answer."""
        self._pipe.send(None)
        self.seconds, self.errors = self._pipe.recv()
        self._process.join()


def _predicting(pipe: Connection, port: int, token: str, body: bytes) -> None:
    """Ask until something comes through the pipe; send back what was measured."""
    headers = _HEADERS | {"Authorization": f"Bearer {token}"}
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    seconds: list[float] = []
    errors: Counter[int] = Counter()
    pipe.send(None)
    due = time.perf_counter()
    while not pipe.poll(max(0.0, due - time.perf_counter())):
        try:
            connection.request("POST", "/v1/predict", body, headers)
            answer = connection.getresponse()
            answer.read()
            status = answer.status
        except (OSError, HTTPException):
            connection.close()
            status = 0
        ended = time.perf_counter()
        seconds.append(ended - due)
        if status != 200:
            errors[status] += 1
        due += PERIOD
        if status == 0 or ended - due > 5:  # skip what was missed, rather than send it all at once
            due = time.perf_counter() + PERIOD
    connection.close()
    pipe.send((seconds, errors))


def _while(siege: Siege, body: dict[str, Any], work: Callable[[], Any]) -> tuple[Client, Any]:
    client = Client(siege, body)
    try:
        return client, work()
    finally:
        client.stop()


def _attack(name: str, siege: Siege, seconds: float) -> Counter[int]:
    """Repeat an attack for some seconds; it runs at least once."""
    end = time.monotonic() + seconds
    found = ATTACKS[name].run(siege)
    while time.monotonic() < end:
        found += ATTACKS[name].run(siege)
    return found


def measured(name: str, folder: Path, seconds: float, scale: float) -> dict[str, Any]:
    """Return how a service and its client did under an attack, as JSON values."""
    attack = ATTACKS[name]
    with besieged(folder, attack, scale) as siege:
        sample = {name: value for name, value in _taught(attack)[0].items() if name != "label"}
        body = {"samples": [sample]}
        _while(siege, body, lambda: time.sleep(min(1.0, seconds)))  # warm up
        quiet, _ = _while(siege, body, lambda: time.sleep(seconds))
        before = siege.memory()
        # An attacker has machines of their own; here they get what the service and the client leave of this one.
        with ProcessPoolExecutor(1, PROCESSES, initializer=os.nice, initargs=(19,)) as attacker:
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

            attacked, statuses = _while(siege, body, work)
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
        "under_attack": _latency(attacked),
        "ratio_p99": _percentile(attacked, 99) / _percentile(quiet, 99),
        "errors": {str(status): count for status, count in sorted(attacked.errors.items())},
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
    parser.add_argument("--seconds", type=float, default=10.0, help="of each attack, at least (%(default)g)")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the attacks (%(default)g)")
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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the service is stopped too
    main()
