"""What does a forgetting service carry? ``python -m benchmarks.service``.

A real service, ``neverseen serve`` in a process of its own on loopback, and clients in others, on the same cores.

predictions
    predictions a second and their latency, by the number of connections and the samples of a request: while nothing
    else happens, and while others forget one sample after the other.
bare
    predictions a second on one connection, beside a bare FastAPI route around a float32 product of the same size
    (`benchmarks.service_bare`), in turn. The ratio is the median of the ratios: above 1, the service is faster.
forgets
    requests of one receipt each, acknowledged durable, a second.
fragments
    seconds until the published model excludes 1,000 samples: asked for in one request, and in 1,000, in turn. The ratio
    is of the medians.
soak (with ``--soak MINUTES``)
    a mixed load, and a SIGKILL each minute: nothing acknowledged may be lost (`benchmarks.service_soak`).
"""

from __future__ import annotations

import argparse
import base64
import math
import multiprocessing
import os
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib import metadata
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np

from benchmarks import service_bare
from benchmarks.provenance import provenance, write_json
from benchmarks.service_http import load, prepare, request_bytes, until_published
from benchmarks.service_process import Samples, Served
from benchmarks.service_soak import soak
from neverseen.client import Client, LearnResult

_SENT_APART = 500  # samples in one request, where what is measured is something else


class Bench:
    """A service that holds some samples, a client that prepares things, and processes that send what is measured."""

    def __init__(
        self,
        served: Served,
        samples: Samples,
        client: Client,
        senders: ProcessPoolExecutor,
        barrier: Callable[[], Barrier],
    ) -> None:
        self.served, self.samples, self.client, self.senders, self.barrier = served, samples, client, senders, barrier
        self._made = 0

    def learn(self, count: int) -> list[bytes]:
        """Learn new samples, of all classes in turn; return their receipts once they are published."""
        receipts: list[bytes] = []
        for start in range(0, count, _SENT_APART):
            names = []
            for _ in range(min(_SENT_APART, count - start)):
                names.append(f"b-{self._made % self.samples.classes}-{self._made}")
                self._made += 1
            result = learn_named(self.client, self.samples, names)
            receipts += result.receipts
        self.client.wait(result)
        return receipts

    def forgets(self, receipts: Sequence[bytes], at_a_time: int = 1) -> list[bytes]:
        """Return requests that forget the samples of these receipts."""
        tokens = [base64.urlsafe_b64encode(receipt).decode() for receipt in receipts]
        parts = [tokens[start : start + at_a_time] for start in range(0, len(tokens), at_a_time)]
        token = self.served.token
        return [request_bytes("POST", "/v1/forget", token, {"receipts": part}, secrets.token_hex(8)) for part in parts]

    def questions(self, count: int, at_a_time: int) -> list[bytes]:
        """Return requests for predictions of samples that were never learned."""
        names = [f"asked-{number % self.samples.classes}-{number}" for number in range(count)]
        rows = [{"features": self.samples.row(name)} for name in names]
        return [
            request_bytes("POST", "/v1/predict", self.served.token, {"samples": rows[start : start + at_a_time]})
            for start in range(0, count, at_a_time)
        ]


def learn_named(client: Client, samples: Samples, names: Sequence[str]) -> LearnResult:
    """Learn samples by their names."""
    rows = np.array([samples.row(name) for name in names])
    return client.learn(rows, [samples.label(name) for name in names], names)


def predictions(bench: Bench, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield rates and latencies of predictions, for each load, alone and while others forget."""
    port, seconds = bench.served.port, options.seconds
    for connections, batch in options.loads:
        questions = bench.questions(32 * batch, batch)
        alone = bench.senders.submit(load, port, questions, connections, seconds, True).result()
        forgets = bench.forgets(bench.learn(options.forgets))
        before = bench.client.model().version
        together = bench.barrier()
        asking = bench.senders.submit(load, port, questions, connections, seconds, True, together)
        changing = bench.senders.submit(load, port, forgets, options.forget_connections, seconds, False, together)
        asked, changed = asking.result(), changing.result()
        # Only while both were at it: the forgets may have run out.
        begin, end = max(asked["began"][0], changed["began"][0]), min(asked["ended"][-1], changed["ended"][-1])
        yield {
            "connections": connections,
            "samples_a_request": batch,
            "alone": _rates(alone, batch),
            "while_forgetting": _rates(asked, batch, begin, end),
            "forgets_a_second": _rates(changed, 1, begin, end)["a_second"],
            "versions_published": bench.client.model().version - before,
        }


def bare(bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    """Return predictions a second of the service and of a bare route, in turn."""
    found: dict[str, list[float]] = {"service": [], "bare": []}
    questions = bench.questions(32, 1)
    with service_bare.served(options.features, options.size, options.classes) as port:
        for _ in range(options.repeats):
            for name, where in (("service", bench.served.port), ("bare", port)):
                spent = bench.senders.submit(load, where, questions, 1, options.seconds, True).result()
                found[name].append(_rates(spent, 1)["a_second"])
    ratio = statistics.median(ours / theirs for ours, theirs in zip(*found.values(), strict=True))
    return {name: statistics.median(rates) for name, rates in found.items()} | {"ratio": ratio}


def forgets(bench: Bench, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield how many forgets a second are acknowledged durable, by the number of connections."""
    for connections in options.connections:
        requests = bench.forgets(bench.learn(options.forgets))
        found = bench.senders.submit(load, bench.served.port, requests, connections, options.seconds).result()
        yield {"connections": connections} | _rates(found, 1)


def fragments(bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    """Return the seconds to published of one large request, and of as many small ones."""
    seconds: dict[str, dict[str, list[float]]] = {}
    for repeat in range(options.repeats):
        sizes = [options.batch, 1]
        for size in sizes if repeat % 2 == 0 else reversed(sizes):
            requests = bench.forgets(bench.learn(options.batch), size)
            time.sleep(options.rest)  # whatever learning left to do is done
            found = bench.senders.submit(
                until_published, bench.served.port, bench.served.token, requests, options.fragment_connections
            ).result()
            kept = seconds.setdefault("whole" if size == options.batch else "fragments", {})
            for name, value in found.items():
                kept.setdefault(name, []).append(value)
    middle = {kind: statistics.median(found["published"]) for kind, found in seconds.items()}
    return {
        "samples": options.batch,
        "connections": options.fragment_connections,
        "seconds": seconds,
        "whole_published": middle["whole"],
        "fragments_published": middle["fragments"],
        "ratio": middle["fragments"] / middle["whole"],
        "fragments_acknowledged_a_second": options.batch / statistics.median(seconds["fragments"]["acknowledged"]),
    }


def soaked(folder: Path, samples: Samples, options: argparse.Namespace) -> dict[str, Any]:
    """Return how a soak went, on a store of its own; the first thing wrong is an error."""
    names = [f"b-{number % options.classes}-{number}" for number in range(options.samples)]
    with Served(folder, options.size, samples, options.track_classes, **_policy(options)) as served:
        with Client(served.url, served.token) as client:
            for start in range(0, len(names), _SENT_APART):
                client.wait(learn_named(client, samples, names[start : start + _SENT_APART]))
        return soak(
            served,
            samples,
            set(names),
            seconds=60 * options.soak,
            kill_every=options.kill_every,
            clients=options.clients,
            tracked=options.track_classes,
            seed=options.seed,
            say=lambda words: print(f"  {words}", file=sys.stderr),
        )


def _rates(
    found: dict[str, list[float]], samples: int, begin: float = -math.inf, end: float = math.inf
) -> dict[str, Any]:
    """Return what came out of a load: of the requests that were under way in a window of time."""
    pairs = [
        (began, ended)
        for began, ended in zip(found["began"], found["ended"], strict=True)
        if began < end and ended > begin
    ]
    if not pairs:
        raise RuntimeError("no request was under way in the time that is measured: raise --seconds or --forgets")
    latencies = np.array([ended - began for began, ended in pairs])
    took = max(ended for _, ended in pairs) - min(began for began, _ in pairs)
    return {
        "requests": len(pairs),
        "seconds": took,
        "a_second": len(pairs) * samples / took,
        "p50": float(np.percentile(latencies, 50)),
        "p99": float(np.percentile(latencies, 99)),
        "slowest": float(latencies.max()),
    }


def _policy(options: argparse.Namespace) -> dict[str, Any]:
    many = 2 * options.fragment_connections  # all clients have one address here
    connections = {"max_connections": many, "connections_per_address": many}
    return {"min_batch": 1, "max_delay": options.max_delay} | connections


def report(results: dict[str, Any]) -> Iterator[str]:
    """Yield the lines for a terminal."""
    settings = results["settings"]
    yield (
        f"d = {settings['size']:,}, {settings['classes']} classes, {settings['features']} features, "
        f"{settings['samples']:,} samples; publishing at the latest after {settings['max_delay']:g} s"
    )
    if "predictions" in results:
        yield "predictions              a second      p50      p99    while forgets run      p50      p99   forgets/s"
    for row in results.get("predictions", ()):
        alone, busy = row["alone"], row["while_forgetting"]
        yield (
            f"  {row['connections']:3} x {row['samples_a_request']:3} samples {alone['a_second']:12,.0f}"
            f"{_ms(alone['p50'])}{_ms(alone['p99'])}{busy['a_second']:21,.0f}{_ms(busy['p50'])}{_ms(busy['p99'])}"
            f"{row['forgets_a_second']:12,.0f}"
        )
    if "bare" in results:
        row = results["bare"]
        rates = f"{row['service']:,.0f} a second, a bare route {row['bare']:,.0f}"
        yield f"predictions on one connection: {rates}, ratio {row['ratio']:.2f}"
    if "forgets" in results:
        yield "forgets, acknowledged durable   a second      p50      p99"
    for row in results.get("forgets", ()):
        yield f"  {row['connections']:3} connections {row['a_second']:24,.0f}{_ms(row['p50'])}{_ms(row['p99'])}"
    if "fragments" in results:
        found = results["fragments"]
        count = found["samples"]
        yield f"to published, 1 x {count:,}: {1e3 * found['whole_published']:8.0f} ms"
        yield f"to published, {count:,} x 1: {1e3 * found['fragments_published']:8.0f} ms, ratio {found['ratio']:.2f}"
    if "soak" in results:
        found = results["soak"]
        yield (
            f"soak: {found['seconds']:.0f} s, {found['kills']} kills, {found['requests_acknowledged']:,} changes "
            f"acknowledged, {found['lost']} lost, {found['left_alone']} left alone, of which "
            f"{found['left_alone_and_done']} were done; ready again after {found['slowest_restart']:.1f} s at most"
        )
        yield f"soak: digest           {found['digest']}"
        yield f"soak: offline replay   {found['replayed_digest']}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:6.1f} ms"


@contextmanager
def _bench(folder: Path, samples: Samples, options: argparse.Namespace) -> Iterator[Bench]:
    """Yield a service that holds its first samples, and two processes to send from."""
    spawn = multiprocessing.get_context("spawn")  # what sends holds nothing that it does not need
    with (
        ProcessPoolExecutor(2, mp_context=spawn) as senders,
        spawn.Manager() as shared,
        Served(folder, options.size, samples, **_policy(options)) as served,
        Client(served.url, served.token, timeout=120) as client,
    ):
        for started in [senders.submit(prepare) for _ in range(2)]:
            started.result()
        bench = Bench(served, samples, client, senders, partial(shared.Barrier, 2, timeout=60))
        bench.learn(options.samples)
        yield bench


def _measure(options: argparse.Namespace, results: dict[str, Any]) -> None:
    samples = Samples(options.features, options.classes, options.seed)
    parts = {"predictions": predictions, "bare": bare, "forgets": forgets, "fragments": fragments}
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="neverseen-benchmark-") as place:
        folder = Path(place)
        chosen = [name for name in parts if name in options.parts]
        if chosen:
            (folder / "bench").mkdir()
            with _bench(folder / "bench", samples, options) as bench:
                for name in chosen:
                    print(f"  measuring {name}", file=sys.stderr)
                    found = parts[name](bench, options)
                    results[name] = found if isinstance(found, dict) else list(found)
                results["stop_seconds"] = bench.served.stop()
        if options.soak:
            (folder / "soak").mkdir()
            results["soak"] = soaked(folder / "soak", samples, options)


def _load(words: str) -> tuple[int, int]:
    connections, _, batch = words.partition("x")
    return int(connections), int(batch)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write the JSON file if asked to."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.service", description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="*", default=["predictions", "bare", "forgets", "fragments"])
    parser.add_argument("--size", type=int, default=2048, help="codes of the random projection (d)")
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--samples", type=int, default=5000, help="samples held from the start")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load")
    parser.add_argument(
        "--loads", type=_load, nargs="*", default=[(1, 1), (8, 1), (2, 64)], metavar="CxS",
        help="of predictions: connections x samples in a request",
    )  # fmt: skip
    parser.add_argument("--forgets", type=int, default=3000, help="requests of a load of forgets, at most")
    parser.add_argument("--forget-connections", type=int, default=4, help="that forget while others predict")
    parser.add_argument("--connections", type=int, nargs="*", default=[1, 8, 64], help="of loads of forgets alone")
    parser.add_argument("--batch", type=int, default=1000, help="samples to forget in one request, and in fragments")
    parser.add_argument("--fragment-connections", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rest", type=float, default=0.5, help="seconds between learning and measuring")
    parser.add_argument("--max-delay", type=float, default=5.0, help="of the publishing policy, in seconds")
    parser.add_argument("--soak", type=float, nargs="?", const=10.0, default=0.0, metavar="MINUTES")
    parser.add_argument("--kill-every", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--clients", type=int, default=8, help="threads of the soak")
    parser.add_argument("--track-classes", action="store_true", help="in the soak, also forget classes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where to write: the disk that is measured (default: temporary)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    options = parser.parse_args(arguments)
    settings = {name: value for name, value in vars(options).items() if name not in ("json", "folder", "seed")}
    results = provenance("service", options.seed, **settings)
    results["versions"] |= {name: metadata.version(name) for name in ("fastapi", "httptools", "uvicorn", "uvloop")}
    results["load_before"] = os.getloadavg()
    _measure(options, results)
    print("\n".join(report(results)))
    if options.json:
        write_json(options.json, results)


if __name__ == "__main__":
    main()
