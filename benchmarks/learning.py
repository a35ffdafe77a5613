"""How fast is learning? ``python -m benchmarks.learning``.

The same float32 features are learned in batches, hot, each method in a process of its own; the processes take turns.

exact
    `neverseen.AnalyticClassifier.partial_fit`: reading, quantising, projecting, membership digests, checked int8 sums.
float32
    what RanPAC accumulates, in PyTorch: a random projection, ReLU, ``H'H`` and ``H'Y``, without digests or checks.

Times are medians of all rounds; the ratio is the median of the ratios of the rounds. Above 1, exact is faster.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.provenance import provenance, write_json
from neverseen import AnalyticClassifier, RandomProjection
from neverseen.hardware import choose

METHODS = ("exact", "float32")


def features(options: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Return clustered features and labels."""
    rng = np.random.default_rng(options.seed)
    labels = rng.integers(0, options.classes, options.samples)
    rows = rng.standard_normal((options.samples, options.width), dtype=np.float32)
    rows += rng.standard_normal((options.classes, options.width), dtype=np.float32)[labels]
    return rows, labels


def exact(rows: np.ndarray, labels: np.ndarray, options: argparse.Namespace) -> float:
    """Return the seconds that this library takes."""
    model = AnalyticClassifier(RandomProjection(options.size), hardware=options.hardware)
    model.partial_fit(rows[: options.batch], labels[: options.batch])
    began = time.perf_counter()
    for start in range(options.batch, len(rows), options.batch):
        model.partial_fit(rows[start : start + options.batch], labels[start : start + options.batch])
    model.exact.statistics.settle()  # type: ignore[union-attr]
    _wait(options)
    return time.perf_counter() - began


def float32(rows: np.ndarray, labels: np.ndarray, options: argparse.Namespace) -> float:
    """Return the seconds that float32 sums take in PyTorch."""
    import torch

    device = "cuda" if options.hardware == "cuda" else "cpu"
    drawn = torch.Generator().manual_seed(options.seed)
    projection = torch.randn(options.width, options.size, generator=drawn).to(device)
    gram = torch.zeros(options.size, options.size, device=device)
    cross = torch.zeros(options.size, options.classes, device=device)

    def learn(start: int) -> None:
        some = torch.from_numpy(rows[start : start + options.batch]).to(device)
        targets = torch.from_numpy(labels[start : start + options.batch]).to(device)
        hidden = torch.relu(some @ projection)  # (n, d)
        gram.addmm_(hidden.T, hidden)
        cross.addmm_(hidden.T, torch.nn.functional.one_hot(targets, options.classes).float())

    learn(0)
    _wait(options)
    began = time.perf_counter()
    for start in range(options.batch, len(rows), options.batch):
        learn(start)
    _wait(options)
    return time.perf_counter() - began


def _wait(options: argparse.Namespace) -> None:
    if options.hardware == "cuda":
        import torch

        torch.cuda.synchronize()


def main(arguments: list[str] | None = None) -> None:
    """Measure, print, and write the JSON file if asked to."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning", description=__doc__.splitlines()[0])
    numbers = {"samples": 50_000, "width": 1280, "size": 8192, "classes": 100, "batch": 5000, "seed": 0, "rounds": 3}
    for name, value in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=value, help="(%(default)s)")
    parser.add_argument("--hardware", default="auto")
    parser.add_argument("--of", choices=METHODS, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    options = parser.parse_args(arguments)
    options.hardware = choose(options.hardware).name
    if options.of:
        rows, labels = features(options)
        print((exact if options.of == "exact" else float32)(rows, labels, options))
        return
    settings = {name: getattr(options, name) for name in numbers}
    command = [sys.executable, "-m", "benchmarks.learning", "--hardware", options.hardware]
    for name, value in settings.items():
        command += [f"--{name}", str(value)]
    spent: dict[str, list[float]] = {method: [] for method in METHODS}
    for _ in range(options.rounds):
        for method in METHODS:
            done = subprocess.run([*command, "--of", method], stdout=subprocess.PIPE, text=True, check=True)
            spent[method].append(float(done.stdout))
    results = provenance("learning", hardware=options.hardware, **settings)
    results["seconds"] = {method: statistics.median(seconds) for method, seconds in spent.items()}
    results["float32 / exact"] = statistics.median(b / a for a, b in zip(*spent.values(), strict=True))
    timed = options.samples - options.batch
    for method, seconds in results["seconds"].items():
        print(f"{method:8} {seconds:8.2f} s, {timed / seconds:9,.0f} samples a second")
    print(f"float32 / exact: {results['float32 / exact']:.2f}")
    if options.json:
        write_json(options.json, results)


if __name__ == "__main__":
    main()
