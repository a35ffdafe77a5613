"""How does cost grow? ``python -m benchmarks.growth``.

From one point (d codes, C classes, requests of n samples, N samples held) one of the four is varied at a time. For each
setting, in a process of its own: the time of a full solve, of a forget until there are new exact weights, and of the
paper's recursion in its cheapest order; and the memory that the model holds and peaks at.

The *exponent* of an axis is the slope of log time over log size, by least squares over its three largest values. What
the formulas say is beside it in ``docs/costs.md``. Digests do not depend on the machine: those of two result files can
be compared.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.engine_methods import GAMMA, Clock, Exact, Recursion, Samples
from benchmarks.engine_methods import memory_in_use as memory
from benchmarks.figure import save_svg
from benchmarks.provenance import provenance, write_json
from neverseen.engine.solver import solve
from neverseen.hardware import choose

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BASE = {"size": 1024, "classes": 100, "request": 20, "samples": 10_000}
AXES = {
    "size": [256, 512, 1024, 2048, 4096],
    "classes": [10, 30, 100, 300, 1000],
    "request": [1, 4, 16, 64, 256],
    "samples": [5_000, 10_000, 20_000, 40_000],
}
WORDS = {
    "size": "codes d",
    "classes": "classes C",
    "request": "samples in a request n",
    "samples": "samples held N",
}
TIMED = {"forget": "exact forget", "solve": "full solve", "recursion": "recursion"}
REPEATS = 5


def measured(point: dict[str, int], hardware_name: str) -> dict[str, Any]:
    """Return times in seconds, memory in bytes and the digest of one setting."""
    hardware = choose(hardware_name)
    clock = Clock(hardware)
    about = argparse.Namespace(features=None, samples=point["samples"], classes=point["classes"], seed=0)
    samples = Samples(about, point["size"])
    before = memory(hardware)[0]
    exact = Exact(samples, hardware)
    count = point["request"]
    forgets = [clock.seconds(lambda: exact.forget(samples.next(count)), exact.weights) for _ in range(REPEATS + 2)]
    digest = exact.model.digest()
    held, peak = memory(hardware)
    sums = exact.model.statistics
    solves = [clock.seconds(lambda: solve(sums.gram, sums.cross_here(), GAMMA, hardware=hardware)) for _ in range(3)]
    samples.gone = 0
    paper = Recursion(samples, "torch" if hardware.name == "cuda" else "numpy", hardware)
    recursions = [clock.seconds(lambda: paper.forget(samples.next(count))) for _ in range(REPEATS + 2)]
    return {
        "forget": statistics.median(forgets[2:]),
        "solve": statistics.median(solves),
        "recursion": statistics.median(recursions[2:]),
        "held_bytes": held - before,
        "peak_bytes": peak - before,
        "digest": digest,
    }


def exponent(points: list[dict[str, Any]], axis: str, what: str) -> float:
    """Return the slope of log time over log size, over the three largest values of an axis."""
    pairs = [(math.log(point[axis]), math.log(max(point[what], 1e-9))) for point in points[-3:]]
    x, y = ([pair[k] for pair in pairs] for k in range(2))
    slope, _ = statistics.linear_regression(x, y)
    return slope


def draw(results: dict[str, Any], path: Path) -> None:
    """Plot times over each axis as an SVG; `ImportError` without matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6), layout="constrained")
    for panel, (axis, points) in zip(figure.subplots(2, 2).flat, results["axes"].items(), strict=True):
        _panel(panel, axis, points)
    save_svg(figure, path, results)


def _panel(panel: Axes, axis: str, points: list[dict[str, Any]]) -> None:
    for what, words in TIMED.items():
        panel.loglog([point[axis] for point in points], [1e3 * point[what] for point in points], "o-", label=words)
    panel.set_title(f"milliseconds over {WORDS[axis]}", fontsize=10, loc="left")
    panel.grid(visible=True, alpha=0.3)
    panel.legend(fontsize=8)


def report(results: dict[str, Any]) -> str:
    """Return the results for a terminal."""
    lines = [f"from d = {BASE['size']}, C = {BASE['classes']}, n = {BASE['request']}, N = {BASE['samples']:,}"]
    for axis, points in results["axes"].items():
        heads = "".join(f"{words:>14}" for words in TIMED.values())
        lines.append(f"{WORDS[axis]:24}{heads}{'held':>12}{'peak':>12}")
        for point in points:
            times = "".join(f"{1e3 * point[what]:11.2f} ms" for what in TIMED)
            sizes = f"{point['held_bytes'] / 2**20:8.0f} MiB{point['peak_bytes'] / 2**20:8.0f} MiB"
            lines.append(f"{point[axis]:>24,}{times}{sizes}")
        lines.append(f"{'exponent':>24}" + "".join(f"{results['exponents'][axis][what]:14.2f}" for what in TIMED))
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Measure, print, and write the JSON file if asked to."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__.splitlines()[0])
    parser.add_argument("--hardware", default="auto")
    parser.add_argument("--of", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--axes", nargs="+", choices=AXES, default=list(AXES))
    parser.add_argument("--values", type=json.loads, default=AXES, help="values of each axis, as JSON")
    parser.add_argument("--base", type=json.loads, default=BASE, help="where the other three stay, as JSON")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    options = parser.parse_args(arguments)
    hardware = choose(options.hardware).name
    if options.of:
        json.dump(measured(options.of, hardware), sys.stdout)
        return
    results = provenance("growth", 0, gamma=GAMMA, hardware=hardware, base=options.base)
    results["axes"], results["exponents"] = {}, {}
    for axis in options.axes:
        points = results["axes"][axis] = []
        for value in options.values[axis]:
            print(f"\r{WORDS[axis]}: {value:<10,}", end="", file=sys.stderr, flush=True)
            point = options.base | {axis: value}
            command = [sys.executable, "-m", "benchmarks.growth", "--hardware", hardware, "--of", json.dumps(point)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            points.append(point | json.loads(done.stdout))
        results["exponents"][axis] = {what: exponent(points, axis, what) for what in TIMED}
    print(file=sys.stderr)
    print(report(results))
    if options.json:
        write_json(options.json, results)


if __name__ == "__main__":
    main()
