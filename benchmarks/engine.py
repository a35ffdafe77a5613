"""What does exactness cost? ``python -m benchmarks.engine``.

One run, one machine, the same samples for all. The model learns class-clustered codes; then requests of 1, 20 and
400 samples are forgotten, one after another, by

exact
    this library: membership check, exact sums, certified solve, correctly rounded weights;
recursion
    the paper's update of (T, W) in float64, its products associated in the cheapest order;
recursion, as written
    the same formulas multiplied out from left to right;
refit
    scikit-learn's `RidgeClassifier`, fitted again on what is left (which needs the retained data).

and the full solve from the sums is set beside SciPy's float64 Cholesky solve. Times are medians, ratios are medians
of the ratios of neighbouring measurements. Memory is the peak above the samples themselves, in units of d x d
float64 matrices: sums, factors and all temporaries. Errors are the largest against the exact solution, relative to
the largest weight; "differ" counts weights that are not, bit for bit, those of the same method trained anew without
the forgotten samples.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg
from sklearn.linear_model import RidgeClassifier

from benchmarks.provenance import provenance, write_json
from neverseen.encoding import Identity
from neverseen.engine.solver import Solution, solve
from neverseen.hardware import Hardware, choose
from neverseen.holdings import FORGET, LEARN, Change
from neverseen.labels import LabelIndex
from neverseen.model.configuration import Configuration
from neverseen.model.exact import ExactModel
from neverseen.proof.keys import Key

REQUESTS = {1: 9, 20: 7, 400: 3}  # samples a request -> requests measured
GAMMA = 2**16
REST = 0.05
"""Seconds before each call that is timed. Threads of OpenBLAS go on spinning for 2**26 cycles when their work is done,
and who uses PyTorch next would be charged for it. A longer rest would be charged to those that allocate much."""

Array = Any  # of the others: NumPy's or PyTorch's
Pair = tuple[Array, Array]


def class_clustered_codes(samples: int, size: int, classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return int8 codes like those of a random projection of real features, and labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, samples)
    hidden = 0.5 * rng.normal(size=(classes, 256))[labels] + rng.normal(size=(samples, 256))
    projected = hidden @ rng.choice([-1.0, 1.0], size=(256, size))
    return np.clip(np.maximum(projected, 0) * (18 / np.sqrt(256 * 1.25)), 0, 127).astype(np.int8), labels


def recursion(T: Array, W: Array, F: Array, Y: Array) -> Pair:
    """Algorithm 1 of the paper in the cheapest order: no product larger than (d, d) by (d, k)."""
    TF = T @ F.T  # (d, k)
    inner = _eye(len(F), T) - F @ TF  # (k, k)
    T = T + TF @ _linalg(T).solve(inner, TF.T)  # (d, d)
    return T, W + (T @ F.T) @ (F @ W - Y)  # (d, C)


def recursion_as_written(T: Array, W: Array, F: Array, Y: Array) -> Pair:
    """Algorithm 1 of the paper, multiplied out from left to right."""
    T = T + T @ F.T @ _linalg(T).inv(_eye(len(F), T) - F @ T @ F.T) @ F @ T
    return T, (_eye(len(T), T) + T @ F.T @ F) @ W - T @ F.T @ Y


def _linalg(array: Array) -> Any:
    if isinstance(array, np.ndarray):
        return np.linalg
    import torch

    return torch.linalg


def _eye(size: int, like: Array) -> Array:
    if isinstance(like, np.ndarray):
        return np.eye(size)
    import torch

    return torch.eye(size, dtype=like.dtype, device=like.device)


class Clock:
    """Wall time of calls on CPU or GPU."""

    def __init__(self, hardware: Hardware) -> None:
        self._wait: Callable[[], None] = _synchronize if hardware.name == "cuda" else lambda: None

    def seconds(self, call: Callable[[], Any]) -> float:
        """Return how long a call takes."""
        self._wait()
        time.sleep(REST)
        began = time.perf_counter()
        call()
        self._wait()
        return time.perf_counter() - began


def _synchronize() -> None:
    import torch

    torch.cuda.synchronize()


class Bench:
    """The same samples in an exact model and in plain float64 arrays."""

    def __init__(self, samples: int, size: int, classes: int, seed: int, hardware: Hardware) -> None:
        self.hardware, self.clock = hardware, Clock(hardware)
        self.codes, self.labels = class_clustered_codes(samples, size, classes, seed)
        self.size, self.classes = size, classes
        self.features: Array = hardware.float64(hardware.array(self.codes))  # (n, d)
        self.targets: Array = hardware.array(np.eye(classes)[self.labels])  # (n, C)
        self.model = self.exact_model(slice(None))
        self.gone = 0

    def exact_model(self, rows: slice) -> ExactModel:
        """Return a model that has learned some rows."""
        configuration = Configuration(Identity(), GAMMA, 40)
        model = ExactModel.in_memory(configuration, self.size, Key(bytes(32)), self.hardware)
        model.apply(Change(LEARN, self.codes[rows], LabelIndex(self.labels[rows].tolist())))
        return model

    def float_system(self, rows: slice) -> Pair:
        """Return ``F'F + gamma I`` and ``F'Y`` in float64."""
        features = self.features[rows]
        return features.T @ features + GAMMA * _eye(self.size, features), features.T @ self.targets[rows]

    def float_model(self, rows: slice) -> Pair:
        """Return T and W in closed form."""
        matrix, cross = self.float_system(rows)
        T = _linalg(matrix).inv(matrix)
        return (T + T.T) / 2, _linalg(matrix).solve(matrix, cross)

    def next_request(self, count: int) -> slice:
        """Return the next samples to forget."""
        request = slice(self.gone, self.gone + count)
        self.gone += count
        return request

    def exact_forget(self, request: slice) -> np.ndarray:
        """Forget, and have the new weights."""
        self.model.apply(Change(FORGET, self.codes[request], LabelIndex(self.labels[request].tolist())))
        return self.model.weights()

    def full_solve(self) -> Solution:
        """Solve from the sums, with no hint."""
        sums = self.model.statistics
        return solve(sums.gram, sums.cross_here(), GAMMA, hardware=self.hardware)

    def refit(self) -> np.ndarray:
        """Return the coefficients of scikit-learn's classifier fitted on what is left."""
        features = self.hardware.numpy(self.features)[self.gone :]
        ridge = RidgeClassifier(alpha=GAMMA, fit_intercept=False).fit(features, self.labels[self.gone :])
        return np.asarray(ridge.coef_.T)


def cholesky_solve(matrix: Array, cross: Array, hardware: Hardware) -> Array:
    """SciPy's (on a GPU: PyTorch's) float64 Cholesky solve."""
    if hardware.name == "cuda":
        import torch

        return torch.cholesky_solve(cross, torch.linalg.cholesky(matrix))
    return scipy.linalg.cho_solve(
        scipy.linalg.cho_factor(matrix, lower=True, check_finite=False), cross, check_finite=False
    )


def measure_times(bench: Bench, repeats: dict[int, int]) -> dict[str, Any]:
    """Return medians in milliseconds and ratios of neighbouring measurements."""
    clock, rest = bench.clock, slice(None)
    matrix, cross = bench.float_system(rest)
    bench.full_solve()
    cholesky_solve(matrix, cross, bench.hardware)
    floats = partial(cholesky_solve, matrix, cross, bench.hardware)
    pairs = [(clock.seconds(bench.full_solve), clock.seconds(floats)) for _ in range(5)]
    times: dict[str, Any] = {
        "full solve": _summary({"exact": [p[0] for p in pairs], "Cholesky": [p[1] for p in pairs]})
    }
    del matrix, cross, floats
    T, W = written = bench.float_model(rest)
    bench.model.weights()
    refits = []
    for count, number in repeats.items():
        spent: dict[str, list[float]] = {"exact": [], "recursion": [], "recursion, as written": []}
        for turn in range(number + 1):
            request = bench.next_request(count)
            F, Y = bench.features[request], bench.targets[request]
            exact = clock.seconds(partial(bench.exact_forget, request))
            fast = clock.seconds(partial(recursion, T, W, F, Y))
            literal = clock.seconds(partial(recursion_as_written, *written, F, Y))
            (T, W), written = recursion(T, W, F, Y), recursion_as_written(*written, F, Y)
            if turn:  # the first is a warm-up
                for name, value in zip(spent, (exact, fast, literal), strict=True):
                    spent[name].append(value)
        refits.append(clock.seconds(bench.refit))
        times[f"forget {count}"] = _summary(spent)
    times["refit"] = {"ms": {"refit": statistics.median(refits) * 1e3}}
    times["errors"] = measure_errors(bench, {"recursion": W, "recursion, as written": written[1]})
    return times


def _summary(spent: dict[str, list[float]]) -> dict[str, Any]:
    first = next(iter(spent.values()))
    ratios = {
        name: statistics.median(a / b for a, b in zip(first, values, strict=True))
        for name, values in list(spent.items())[1:]
    }
    return {"ms": {name: statistics.median(values) * 1e3 for name, values in spent.items()}, "exact / other": ratios}


def measure_errors(bench: Bench, recursive: dict[str, Array]) -> dict[str, Any]:
    """Return each method's largest relative error after all requests, and how many weights differ from retraining."""
    hardware, rest = bench.hardware, slice(bench.gone, None)
    sums = bench.model.statistics
    exact = bench.full_solve()
    wanted = _nearest_floats(exact)
    scratch = bench.exact_model(rest).weights()
    refitted = _nearest_floats(
        solve(
            sums.gram,
            hardware.array(2 * sums.cross() - sums.cross().sum(axis=1, keepdims=True)),  # its targets are +1 and -1
            GAMMA,
            hardware=hardware,
        )
    )
    refit = bench.refit()
    again = hardware.numpy(bench.float_model(rest)[1])
    return {
        "exact": {
            "error": _relative(np.ldexp(bench.model.weights().astype(np.float64), -40), wanted),
            "differ": int((bench.model.weights() != scratch).sum()),
        },
        **{
            name: {"error": _relative(found, wanted), "differ": int((found != again).sum())}
            for name, found in ((name, hardware.numpy(W)) for name, W in recursive.items())
        },
        "refit": {"error": _relative(refit, refitted), "differ": None},
        "weights": int(wanted.size),
    }


def _nearest_floats(solution: Solution) -> np.ndarray:
    """Return the exact weights to float64 precision: the approximation behind the rounding is good to 2**-66."""
    total = np.zeros(solution.weights.shape)
    for k, limb in reversed(list(enumerate(solution.values.limbs))):
        total += np.ldexp(solution.values.hardware.numpy(limb).astype(np.float64), -22 * k)
    return total


def _relative(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def measure_memory(options: argparse.Namespace, size: int) -> dict[str, float]:
    """Return peaks above the samples, in d x d float64 matrices, each method in a process of its own."""
    peaks = {}
    for method in ("exact", "recursion", "recursion, as written", "refit"):
        command = [sys.executable, "-m", "benchmarks.engine", "--memory-of", method, "--sizes", str(size)]
        command += [
            "--samples",
            str(options.samples),
            "--classes",
            str(options.classes),
            "--hardware",
            options.hardware,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks[method] = float(done.stdout)
    return peaks


def peak_memory(bench: Bench, method: str) -> float:
    """Return the peak of one method for learning all sums, a full solve and a request of 400."""
    rest = slice(bench.gone, None)
    request = slice(bench.gone, bench.gone + 400)
    F, Y = bench.features[request], bench.targets[request]

    def exact() -> None:
        bench.model = bench.exact_model(rest)
        bench.model.weights()
        bench.exact_forget(request)

    def floats() -> None:
        recursion(*bench.float_model(rest), F, Y)

    def written() -> None:
        recursion_as_written(*bench.float_model(rest), F, Y)

    bench.model.discard_hints()
    del bench.model
    calls = {"exact": exact, "recursion": floats, "recursion, as written": written, "refit": bench.refit}
    return round(_peak(calls[method], bench.hardware) / (8 * bench.size**2), 2)


def _peak(call: Callable[[], Any], hardware: Hardware) -> int:
    """Return by how many bytes memory peaks above its level before a call."""
    gc.collect()
    if hardware.name == "cuda":
        import torch

        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return int(torch.cuda.max_memory_allocated() - before)
    Path("/proc/self/clear_refs").write_text("5")  # Linux: start the high-water mark anew
    before = _status("VmRSS")
    call()
    return _status("VmHWM") - before


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def report(results: dict[str, Any]) -> str:
    """Return the results as tables for a terminal."""
    lines = []
    for size, found in results["sizes"].items():
        settings = results["settings"]
        lines.append(
            f"d = {size}, {settings['classes']} classes, {settings['samples']} samples, {settings['hardware']}"
        )
        heads = {
            "exact": 10,
            "recursion": 12,
            "ratio": 7,
            "as written": 13,
            "ratio ": 7,
            "Cholesky": 11,
            " ratio": 7,
            "refit": 10,
        }
        lines.append(" " * 16 + "".join(f"{head.strip():>{wide}}" for head, wide in heads.items()))
        for name, row in found["times"].items():
            if name in ("refit", "errors"):
                continue
            ms, ratio = row["ms"], row["exact / other"]
            line = f"  {name:14}{ms['exact']:>7.1f} ms"
            for other in ("recursion", "recursion, as written", "Cholesky"):
                wide = {"recursion": 9, "recursion, as written": 10, "Cholesky": 8}[other]
                line += f"{ms[other]:>{wide}.1f} ms{ratio[other]:>7.2f}" if other in ms else " " * (wide + 10)
            line += f"{found['times']['refit']['ms']['refit']:>7.0f} ms" if name.startswith("forget") else ""
            lines.append(line)
        memory, errors = found["memory"], found["times"]["errors"]
        lines.append("  memory, d x d matrices: " + ", ".join(f"{name} {value:.1f}" for name, value in memory.items()))
        lines.append(
            "  largest relative error: "
            + ", ".join(
                f"{name} {errors[name]['error']:.0e}"
                for name in ("exact", "recursion", "recursion, as written", "refit")
            )
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
    parser.add_argument(
        "--repeats", type=int, nargs=3, default=list(REQUESTS.values()), help="requests of 1, 20 and 400"
    )
    parser.add_argument("--memory-of", metavar="METHOD", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    options = parser.parse_args(arguments)
    hardware = choose(options.hardware)
    if options.memory_of:
        print(peak_memory(Bench(options.samples, options.sizes[0], options.classes, 0, hardware), options.memory_of))
        return
    repeats = dict(zip(REQUESTS, options.repeats, strict=True))
    results = provenance(
        "engine", options.seed, classes=options.classes, samples=options.samples, gamma=GAMMA, hardware=hardware.name
    )
    results["sizes"] = {}
    for size in options.sizes:
        bench = Bench(options.samples, size, options.classes, options.seed, hardware)
        times = measure_times(bench, repeats)
        del bench
        results["sizes"][size] = {"times": times, "memory": measure_memory(options, size)}
    print(report(results))
    if options.json:
        write_json(options.json, results)


if __name__ == "__main__":
    main()
