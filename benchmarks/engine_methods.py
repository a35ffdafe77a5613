"""The methods that `benchmarks.engine` compares, each measured in a process of its own.

A process of its own is the best setting for each: nobody else's threads spin on its cores.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg
from sklearn.linear_model import RidgeClassifier

from neverseen import AnalyticClassifier, RandomProjection
from neverseen.encoding import Identity, quantise
from neverseen.engine.solver import Solution, solve
from neverseen.hardware import Hardware, choose
from neverseen.holdings import FORGET, LEARN, Change
from neverseen.labels import LabelIndex
from neverseen.model.configuration import Configuration
from neverseen.model.exact import ExactModel
from neverseen.proof.keys import Key

GAMMA = 2**16
REST = 0.05
"""Seconds before each full solve. Threads of OpenBLAS go on spinning for 2**26 cycles when their work is done."""
WARM = 2
"""Requests before those that are timed."""

Array = Any  # of the others: NumPy's or PyTorch's
Pair = tuple[Array, Array]


# -- samples -----------------------------------------------------------------------------------------


def class_clustered_codes(samples: int, size: int, classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return int8 codes like those of a random projection of real features, and labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, samples)
    hidden = 0.5 * rng.normal(size=(classes, 256))[labels] + rng.normal(size=(samples, 256))
    projected = hidden @ rng.choice([-1.0, 1.0], size=(256, size))
    return np.clip(np.maximum(projected, 0) * (18 / np.sqrt(256 * 1.25)), 0, 127).astype(np.int8), labels


class Samples:
    """What all methods learn: codes and labels, and features where they go through the public classifier."""

    def __init__(self, options: argparse.Namespace, size: int) -> None:
        self.size = size
        self.features: np.ndarray | None = None
        if options.features is None:
            self.codes, self.labels = class_clustered_codes(options.samples, size, options.classes, options.seed)
        else:
            with np.load(options.features, allow_pickle=False) as stored:
                self.features = stored["train"][: options.samples]
                self.labels = stored["train_labels"][: options.samples]
            encoder, hardware = RandomProjection(size, seed=options.seed), choose("numpy")
            self.codes = hardware.numpy(encoder.expand(quantise(self.features), hardware))
        self.classes = int(self.labels.max()) + 1
        self.gone = 0

    def next(self, count: int) -> slice:
        """Return the next samples to forget."""
        request = slice(self.gone, self.gone + count)
        self.gone += count
        if self.gone >= len(self.codes):  # the last one is asked about
            raise SystemExit(f"{len(self.codes)} samples are too few for these requests: raise --samples")
        return request


# -- methods: each forgets a request, and has the new weights ----------------------------------------------


class Exact:
    """The library: membership check, exact sums, certified and correctly rounded weights."""

    def __init__(self, samples: Samples, hardware: Hardware) -> None:
        self.samples, self.hardware = samples, hardware
        self.classifier = None
        if samples.features is None:
            self.model = self.learned(slice(None))
        else:
            encoder = RandomProjection(samples.size, seed=0)
            self.classifier = AnalyticClassifier(encoder, GAMMA, key=Key(bytes(32)), hardware=hardware.name)
            self.classifier.fit(samples.features, samples.labels)
            found = self.classifier.exact
            assert found is not None  # noqa: S101
            self.model = found
        self.model.weights()

    def learned(self, rows: slice) -> ExactModel:
        """Return a model that has learned some rows."""
        configuration = Configuration(Identity(), GAMMA, 40)
        model = ExactModel.in_memory(configuration, self.samples.size, Key(bytes(32)), self.hardware)
        model.apply(Change(LEARN, self.samples.codes[rows], LabelIndex(self.samples.labels[rows].tolist())))
        return model

    def forget(self, request: slice) -> None:
        """Forget a request."""
        samples = self.samples
        if self.classifier is not None and samples.features is not None:
            self.classifier.forget(samples.features[request], samples.labels[request])
        else:
            self.model.apply(Change(FORGET, samples.codes[request], LabelIndex(samples.labels[request].tolist())))

    def weights(self) -> np.ndarray:
        """Return the weights in grid steps."""
        return self.model.weights()

    def label(self) -> None:
        """Answer about the last sample, which nothing forgets."""
        if self.classifier is not None and self.samples.features is not None:
            self.classifier.predict(self.samples.features[-1:])
        else:
            self.model.labels(self.samples.codes[-1:])


class Recursion:
    """The paper's update of (T, W) in float64."""

    def __init__(self, samples: Samples, library: str, hardware: Hardware, *, written: bool = False) -> None:
        self.samples, self._written = samples, written
        if library == "numpy":
            self.features: Array = samples.codes.astype(np.float64)  # (n, d)
            self.targets: Array = np.eye(samples.classes)[samples.labels]  # (n, C)
            self._linalg: Any = np.linalg
            self._eye: Callable[[int], Array] = np.eye
        else:
            import torch

            device = "cuda" if hardware.name == "cuda" else "cpu"
            self.features = torch.from_numpy(samples.codes).to(device, torch.float64)
            self.targets = torch.from_numpy(np.eye(samples.classes)[samples.labels]).to(device)
            self._linalg = torch.linalg
            self._eye = lambda size: torch.eye(size, dtype=torch.float64, device=device)
        self.T, self.W = self.trained(slice(None))

    def trained(self, rows: slice) -> Pair:
        """Return T and W of some rows in closed form."""
        matrix, cross = self.system(rows)
        T = self._linalg.inv(matrix)
        return (T + T.T) / 2, self._linalg.solve(matrix, cross)

    def system(self, rows: slice) -> Pair:
        """Return ``F'F + gamma I`` and ``F'Y``."""
        features = self.features[rows]
        return features.T @ features + GAMMA * self._eye(features.shape[1]), features.T @ self.targets[rows]

    def forget(self, request: slice) -> None:
        """Algorithm 1 of the paper, in the cheapest order or multiplied out from left to right."""
        T, W, F, Y = self.T, self.W, self.features[request], self.targets[request]
        if self._written:
            inner = self._eye(len(F)) - F @ T @ F.T
            self.T = T = T + T @ F.T @ self._linalg.inv(inner) @ F @ T
            self.W = (self._eye(len(T)) + T @ F.T @ F) @ W - T @ F.T @ Y
            return
        TF = T @ F.T  # (d, k): no product is larger than (d, d) by (d, k)
        self.T = T = T + TF @ self._linalg.solve(self._eye(len(F)) - F @ TF, TF.T)  # (d, d)
        self.W = W + (T @ F.T) @ (F @ W - Y)  # (d, C)

    def weights(self) -> Array:
        """Return W."""
        return self.W


def refit(samples: Samples) -> np.ndarray:
    """Return the coefficients of scikit-learn's classifier fitted on what is left."""
    features = samples.codes[samples.gone :].astype(np.float64)
    ridge = RidgeClassifier(alpha=GAMMA, fit_intercept=False).fit(features, samples.labels[samples.gone :])
    return np.asarray(ridge.coef_.T)


# -- measuring ---------------------------------------------------------------------------------------


class Clock:
    """Wall time of calls on CPU or GPU."""

    def __init__(self, hardware: Hardware) -> None:
        self._wait: Callable[[], None] = lambda: None
        if hardware.name == "cuda":
            import torch

            self._wait = torch.cuda.synchronize

    def seconds(self, *calls: Callable[[], Any], rest: float = 0.0) -> float:
        """Return how long some calls take, one after the other."""
        self._wait()
        time.sleep(rest)
        began = time.perf_counter()
        for call in calls:
            call()
        self._wait()
        return time.perf_counter() - began


def requests(method: Exact | Recursion, clock: Clock, repeats: dict[int, int], singles: int) -> dict[str, Any]:
    """Return how long each request takes until there are new weights, and the mean over many of one sample."""
    found: dict[str, Any] = {}
    for count, number in repeats.items():
        spent = [
            clock.seconds(lambda: method.forget(method.samples.next(count)), method.weights)  # noqa: B023
            for _ in range(WARM + number)
        ]
        found[f"forget {count}"] = spent[WARM:]
    if singles:
        spent = [clock.seconds(lambda: method.forget(method.samples.next(1)), method.weights) for _ in range(singles)]
        found["mean of singles"] = [sum(spent) / len(spent)]
    return found


def labels(method: Exact, clock: Clock, repeats: dict[int, int]) -> dict[str, Any]:
    """Return how long each request takes until the label of a sample is proved."""
    found: dict[str, Any] = {}
    for count, number in repeats.items():
        spent = []
        for _ in range(WARM + number):
            spent.append(clock.seconds(lambda: method.forget(method.samples.next(count)), method.label))  # noqa: B023
            method.weights()
        found[f"label {count}"] = spent[WARM:]
    return found


def solves(samples: Samples, hardware: Hardware, clock: Clock) -> dict[str, Any]:
    """Return how long a full solve from the sums takes, beside a float64 Cholesky solve."""
    method = Exact(samples, hardware)
    sums = method.model.statistics
    library = "torch" if hardware.name == "cuda" else "numpy"
    floats = Recursion(samples, library, hardware)
    matrix, cross = floats.system(slice(None))

    def exact() -> Solution:
        return solve(sums.gram, sums.cross_here(), GAMMA, hardware=hardware)

    def cholesky() -> Array:
        if hardware.name == "cuda":
            import torch

            return torch.cholesky_solve(cross, torch.linalg.cholesky(matrix))
        factor = scipy.linalg.cho_factor(matrix, lower=True, check_finite=False)
        return scipy.linalg.cho_solve(factor, cross, check_finite=False)

    exact(), cholesky()
    pairs = [(clock.seconds(exact, rest=REST), clock.seconds(cholesky, rest=REST)) for _ in range(5)]
    return {"full solve": [pair[0] for pair in pairs], "Cholesky": [pair[1] for pair in pairs]}


def differences(samples: Samples, hardware: Hardware, repeats: dict[int, int]) -> dict[str, Any]:
    """Return each method's largest relative error after all requests, and how many weights differ from retraining."""
    library = "torch" if hardware.name == "cuda" else "numpy"
    exact = Exact(samples, hardware)
    methods = {
        "recursion": Recursion(samples, library, hardware),
        "recursion, as written": Recursion(samples, library, hardware, written=True),
    }
    for count, number in repeats.items():
        for _ in range(number):
            request = samples.next(count)
            exact.forget(request)
            exact.weights()
            for method in methods.values():
                method.forget(request)
    rest, sums = slice(samples.gone, None), exact.model.statistics
    wanted = _nearest_floats(solve(sums.gram, sums.cross_here(), GAMMA, hardware=hardware))
    steps = np.array(exact.weights())
    found: dict[str, Any] = {
        "weights": int(wanted.size),
        "exact": {
            "error": _relative(np.ldexp(steps.astype(np.float64), -40), wanted),
            "differ": int((steps != exact.learned(rest).weights()).sum()),
        },
    }
    for name, method in methods.items():
        now, again = _numpy(method.W), _numpy(method.trained(rest)[1])
        found[name] = {"error": _relative(now, wanted), "differ": int((now != again).sum())}
    both = 2 * sums.cross() - sums.cross().sum(axis=1, keepdims=True)  # scikit-learn's targets are +1 and -1
    refitted = _nearest_floats(solve(sums.gram, hardware.array(both), GAMMA, hardware=hardware))
    found["refit"] = {"error": _relative(refit(samples), refitted), "differ": None}
    return found


def _numpy(array: Array) -> np.ndarray:
    return np.asarray(array.cpu() if hasattr(array, "cpu") else array)


def _nearest_floats(solution: Solution) -> np.ndarray:
    """Return the exact weights to float64 precision: the approximation behind the rounding is good to 2**-66."""
    total = np.zeros(solution.weights.shape)
    for k, limb in reversed(list(enumerate(solution.values.limbs))):
        total += np.ldexp(solution.values.hardware.numpy(limb).astype(np.float64), -22 * k)
    return total


def _relative(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


# -- memory ------------------------------------------------------------------------------------------


def peak_memory(samples: Samples, method: str, hardware: Hardware) -> float:
    """Return the peak of one method for learning all sums, a full solve and a request of 400, in d x d float64."""
    library = "torch" if hardware.name == "cuda" else "numpy"

    def one() -> None:
        request = samples.next(400)
        made: Exact | Recursion
        if method == "refit":
            refit(samples)
            return
        if method == "exact":
            made = Exact(samples, hardware)
        else:
            made = Recursion(samples, library, hardware, written=method != "recursion")
        made.forget(request)
        made.weights()

    return round(_peak(one, hardware) / (8 * samples.size**2), 2)


def _peak(call: Callable[[], Any], hardware: Hardware) -> int:
    """Return by how many bytes memory peaks above its level before a call."""
    gc.collect()
    before = memory_in_use(hardware)[0]
    call()
    return memory_in_use(hardware)[1] - before


def memory_in_use(hardware: Hardware) -> tuple[int, int]:
    """Return the bytes in use now, and the most since this was asked last."""
    if hardware.name == "cuda":
        import torch

        found = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return found
    now, peak = _status("VmRSS"), _status("VmHWM")
    Path("/proc/self/clear_refs").write_text("5")  # Linux: start the high-water mark anew
    return now, peak


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


# -- one process ---------------------------------------------------------------------------------------


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Return what the process for ``--of`` is to measure."""
    samples, hardware = Samples(options, options.size), choose(options.hardware)
    clock, repeats = Clock(hardware), {int(count): number for count, number in json.loads(options.repeats).items()}
    of = options.of
    if of == "exact":
        method = Exact(samples, hardware)
        return requests(method, clock, repeats, options.singles) | labels(method, clock, repeats)
    if of.startswith("recursion"):
        library = "torch" if "PyTorch" in of else "numpy"
        written = "as written" in of
        paper = Recursion(samples, library, hardware, written=written)
        return requests(paper, clock, repeats, 0 if written else options.singles)
    if of == "solve":
        return solves(samples, hardware, clock)
    if of == "refit":
        return {"refit": [clock.seconds(lambda: refit(samples))]}
    if of == "differences":
        return differences(samples, hardware, repeats)
    return {"memory": peak_memory(samples, of.removeprefix("memory of "), hardware)}


def main(arguments: list[str] | None = None) -> None:
    """Measure one method, and print the result as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine_methods")
    parser.add_argument("--of", required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--samples", type=int, required=True)
    parser.add_argument("--classes", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hardware", default="auto")
    parser.add_argument("--features", type=Path)
    parser.add_argument("--repeats", required=True)
    parser.add_argument("--singles", type=int, default=0)
    json.dump(measured(parser.parse_args(arguments)), sys.stdout)


if __name__ == "__main__":
    main()
