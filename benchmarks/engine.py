"""What does exactness cost? ``python -m benchmarks.engine``.

One run, one machine, the same samples for all. The model learns class-clustered codes; then requests of 1, 20 and
400 samples are forgotten, one after another, by

exact
    this library: membership check, exact sums, certified solve, correctly rounded weights;
label
    the same, but until the label of one sample is proved, before there are new weights;
recursion
    the paper's update of (T, W) in float64, its products in the cheapest order, in NumPy and in PyTorch: the faster
    one counts;
recursion, as written
    the same formulas multiplied out from left to right;
refit
    scikit-learn's `RidgeClassifier`, fitted again on what is left (which needs the retained data).

and the full solve from the sums is set beside SciPy's float64 Cholesky solve. Each method runs hot in a process of its
own, and the processes take turns for several rounds. Times are medians of all rounds. A ratio is the median, over the
rounds, of the ratio of the medians in a round. The mean of singles is over many requests of one sample, with all that
has to be renewed now and then.

With ``--features FILE`` samples are real features, such as those that ``python -m benchmarks.cifar`` stores, and go
through the public classifier: reading, quantising, projecting and hashing are part of its time, and not of the
recursion's.

Memory is the peak above the samples themselves, in units of d x d float64 matrices: sums, factors and all temporaries.
Errors are the largest against the exact solution, relative to the largest weight; "differ" counts weights that are not,
bit for bit, those of the same method trained anew without the forgotten samples.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.engine_methods import GAMMA
from benchmarks.provenance import provenance, write_json
from neverseen.hardware import choose

REQUESTS = {1: 9, 20: 9, 400: 4}  # samples a request -> requests measured
MEMORY = ("exact", "recursion", "recursion, as written", "refit")


class Rounds:
    """Measurements of one size: by method, by what was measured, a list for each round."""

    def __init__(self, options: argparse.Namespace, size: int) -> None:
        self._options, self._size = options, size
        self.found: dict[str, dict[str, list[list[float]]]] = {}

    def process(self, of: str) -> dict[str, Any]:
        """Return what a process of its own measures."""
        options = self._options
        command = [sys.executable, "-m", "benchmarks.engine_methods", "--of", of, "--size", str(self._size)]
        for name in ("samples", "classes", "seed", "hardware", "singles"):
            command += [f"--{name}", str(getattr(options, name))]
        command += ["--repeats", json.dumps(options.requests)]
        if options.features is not None:
            command += ["--features", str(options.features)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        result: dict[str, Any] = json.loads(done.stdout)
        return result

    def measure(self, of: str) -> None:
        """Add a round of one method."""
        for what, spent in self.process(of).items():
            self.found.setdefault(of, {}).setdefault(what, []).append(spent)

    def median(self, of: str, what: str, turn: int | None = None) -> float:
        """Return a median, over one round or all."""
        rounds = self.found[of][what]
        return statistics.median([second for spent in (rounds if turn is None else [rounds[turn]]) for second in spent])

    def times(self, exact: tuple[str, str], others: dict[str, list[tuple[str, str]]]) -> dict[str, Any]:
        """Return medians in milliseconds, and ratios to others; of several settings of another, the fastest counts."""
        ms, ratios = {"exact": 1e3 * self.median(*exact)}, {}
        for name, settings in others.items():
            there = [setting for setting in settings if setting[1] in self.found.get(setting[0], {})]
            if not there:
                continue
            ms[name] = 1e3 * min(self.median(*setting) for setting in there)
            turns = range(min(len(self.found[of][what]) for of, what in (exact, *there)))
            ratios[name] = statistics.median(
                self.median(*exact, turn) / min(self.median(*setting, turn) for setting in there) for turn in turns
            )
        return {"ms": ms, "exact / other": ratios}


def measured(options: argparse.Namespace, size: int) -> dict[str, Any]:
    """Return all about one size, as JSON values."""
    rounds = Rounds(options, size)
    recursions = ["recursion"] if options.hardware != "cuda" else []
    if importlib.util.find_spec("torch") is not None:
        recursions.append("recursion in PyTorch")
    written = "recursion in PyTorch, as written" if options.hardware == "cuda" else "recursion, as written"
    for turn in range(options.rounds):
        for of in ("exact", *recursions, "solve", *([written, "refit"] if turn == 0 else [])):
            print(f"\rd = {size}, round {turn + 1} of {options.rounds}: {of:30}", end="", file=sys.stderr, flush=True)
            rounds.measure(of)
    print(file=sys.stderr)
    times: dict[str, Any] = {"full solve": rounds.times(("solve", "full solve"), {"Cholesky": [("solve", "Cholesky")]})}
    for count in options.requests:
        name = f"forget {count}"
        others = {
            "recursion": [(of, name) for of in recursions],
            "recursion, as written": [(written, name)],
            "refit": [("refit", "refit")],
        }
        times[name] = rounds.times(("exact", name), others)
        times[f"label {count}"] = rounds.times(("exact", f"label {count}"), {"recursion": others["recursion"]})
    if options.singles:
        name = "mean of singles"
        times[name] = rounds.times(("exact", name), {"recursion": [(of, name) for of in recursions]})
    found: dict[str, Any] = {"times": times}
    if options.features is None and not options.short:
        found["errors"] = rounds.process("differences")
        found["memory"] = {method: rounds.process(f"memory of {method}")["memory"] for method in MEMORY}
    return found


def report(results: dict[str, Any]) -> str:
    """Return the results as tables for a terminal."""
    lines, settings = [], results["settings"]
    for size, found in results["sizes"].items():
        lines.append(
            f"d = {size}, {settings['classes']} classes, {settings['samples']} samples, {settings['hardware']}"
            + (f", {settings['features']}" if settings["features"] else "")
        )
        others = ("recursion", "recursion, as written", "Cholesky", "refit")
        lines.append(" " * 18 + f"{'exact':>12}" + "".join(f"{name.partition(', ')[2] or name:>20}" for name in others))
        for name, row in found["times"].items():
            cells = [
                f"{row['ms'][other]:>9.1f} ms {row['exact / other'][other]:>7.2f}" if other in row["ms"] else " " * 20
                for other in others
            ]
            lines.append(f"  {name:16}{row['ms']['exact']:>9.2f} ms" + "".join(cells))
        if "memory" in found:
            memory = ", ".join(f"{name} {value:.1f}" for name, value in found["memory"].items())
            lines.append(f"  memory, d x d matrices: {memory}")
        if "errors" in found:
            errors = found["errors"]
            lines.append(
                "  largest relative error: "
                + ", ".join(f"{name} {errors[name]['error']:.0e}" for name in MEMORY)
                + f"; weights that differ from retraining: exact {errors['exact']['differ']}, "
                f"recursion {errors['recursion']['differ']} of {errors['weights']}"
            )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Measure, print the tables, and write the JSON file if asked to."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1024, 2048, 4096])
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hardware", default="auto")
    parser.add_argument("--features", type=Path, metavar="FILE", help="an .npz file with train and train_labels")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each method (%(default)s)")
    parser.add_argument("--singles", type=int, default=300, help="requests of one sample to average (%(default)s)")
    parser.add_argument("--requests", type=json.loads, default=REQUESTS, help='as {"1": 9, "20": 9, "400": 4}')
    parser.add_argument("--short", action="store_true", help="leave out errors and memory")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    options = parser.parse_args(arguments)
    options.hardware = choose(options.hardware).name
    features = None if options.features is None else options.features.name
    settings = {name: getattr(options, name) for name in ("classes", "samples", "hardware", "rounds", "singles")}
    results = provenance("engine", options.seed, gamma=GAMMA, features=features, **settings)
    results["sizes"] = {size: measured(options, size) for size in options.sizes}
    print(report(results))
    if options.json:
        write_json(options.json, results)


if __name__ == "__main__":
    main()
