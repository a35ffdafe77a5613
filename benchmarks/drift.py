"""How far does the paper's recursion drift from the model it stands for? ``python -m benchmarks.drift``.

Learns class-clustered integer features, forgets them again in small requests by the recursion on (T, W), and
prints the relative error of W (Frobenius norm) against the exact solution for the samples left. The rows:

precision
    float64 or float32.
start
    T and W before the first request: in *closed form*, computed in float64 from the sums over all samples, or
    by the *recursion*, learned in the same small batches as they are forgotten.
update
    *tracking*, by `neverseen.tracking`, or *as written*, by the paper's formulas multiplied out from left to
    right, with T left as asymmetric as rounding makes it and nothing refused.

The last row solves the sums over the samples left anew in float64: what the conditioning of the problem alone
costs. The exact solution is found in Python integers, with a proven bound on its error, which is printed too.
Takes two to four minutes on two cores. The last digit of a figure depends on the BLAS and its threads.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.provenance import provenance, write_json
from neverseen import tracking

SAMPLES, FEATURES, CLASSES, GAMMA, REQUEST = 6_000, 512, 20, 1, 20
LEFT = (6_000, 4_000, 1_000, 600, 512, 300, 100)

Matrix = NDArray[Any]
Update = Callable[[Matrix, Matrix, Matrix, Matrix], tuple[Matrix, Matrix]]


def class_clustered_codes(seed: int) -> tuple[Matrix, Matrix]:
    """Return codes, integers in 0..127 of spread about that of `neverseen.encoding`, and one-hot targets."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, SAMPLES)
    hidden = rng.normal(size=(CLASSES, 64))[labels] + rng.normal(size=(SAMPLES, 64))
    projected = hidden @ rng.normal(size=(64, FEATURES))
    return np.clip(np.rint(2 * projected), 0, 127), np.eye(CLASSES)[labels]


def sums(codes: Matrix, targets: Matrix) -> tuple[Matrix, Matrix]:
    """Return the Gram and the cross matrix. Exact: every sum is an integer far below 2^53."""
    return codes.T @ codes, codes.T @ targets


def exact_weights(codes: Matrix, targets: Matrix, bits: int = 120) -> tuple[Matrix, float]:
    """Return the exact solution rounded to float64, and a bound on its relative error before that rounding.

    Iterative refinement on integers, in units of 2^-bits. The residual has no rounding, and the matrix is at
    least gamma I, so that ``|residual| / gamma`` bounds the error.
    """
    gram, cross = sums(codes, targets)
    matrix = gram + GAMMA * np.eye(FEATURES)
    inverse = np.linalg.inv(matrix)
    exact_matrix = matrix.astype(np.int64).astype(object)  # of Python integers, which do not overflow
    right = cross.astype(np.int64).astype(object) * (1 << bits)
    weights, residual = np.zeros_like(right), right
    bound = np.inf
    while bound > 1e-18:
        step = inverse @ residual.astype(np.float64)
        weights = weights + np.frompyfunc(int, 1, 1)(step)
        residual = right - exact_matrix @ weights
        previous, bound = bound, _norm(residual) / GAMMA / _norm(weights)
        if bound >= previous:
            raise ArithmeticError(f"the refinement stalls at a relative error of {bound:.1e}")
    return weights.astype(np.float64) / 2.0**bits, bound


def learn_as_written(T: Matrix, W: Matrix, F: Matrix, Y: Matrix) -> tuple[Matrix, Matrix]:
    """Appendix D, with every product in the order in which the formula is written."""
    T = T - T @ F.T @ np.linalg.inv(np.eye(len(F), dtype=T.dtype) + F @ T @ F.T) @ F @ T
    return T, W + T @ F.T @ (Y - F @ W)


def forget_as_written(T: Matrix, W: Matrix, F: Matrix, Y: Matrix) -> tuple[Matrix, Matrix]:
    """Algorithm 1, with every product in the order in which the formulas are written."""
    T = T + T @ F.T @ np.linalg.inv(np.eye(len(F), dtype=T.dtype) - F @ T @ F.T) @ F @ T
    return T, (np.eye(len(T), dtype=T.dtype) + T @ (F.T @ F)) @ W - T @ (F.T @ Y)


UPDATES: dict[str, tuple[Update, Update]] = {
    "as written": (learn_as_written, forget_as_written),
    "tracking": (tracking.learn, tracking.forget_samples),
}


def requests() -> Iterator[slice]:
    """Yield the samples to forget, in order: REQUEST at a time, fewer where a stop in LEFT cuts a request."""
    stops = sorted({*range(0, SAMPLES, REQUEST), *(SAMPLES - left for left in LEFT)})
    stops = [stop for stop in stops if stop <= SAMPLES - min(LEFT)]
    yield from map(slice, stops, stops[1:])


def drift(
    begin: str, update: str, dtype: str, codes: Matrix, targets: Matrix, exact: dict[int, Matrix]
) -> dict[str, Any]:
    """Return the relative error of W at each stop, as far as the recursion gets."""
    learn, forget = UPDATES[update]
    features, labels = codes.astype(dtype), targets.astype(dtype)
    errors: dict[int, float | None] = {}
    end, now = None, "learned 0"
    try:
        if begin == "closed form":
            T, W = (part.astype(dtype) for part in tracking.from_sums(*sums(codes, targets), gamma=GAMMA))
        else:
            T, W = tracking.start(FEATURES, CLASSES, GAMMA, like=features)
            for first in range(0, SAMPLES, REQUEST):
                now = f"learned {first}"
                batch = slice(first, first + REQUEST)
                T, W = learn(T, W, features[batch], labels[batch])
        errors[SAMPLES] = relative_error(W, exact[SAMPLES])
        for batch in requests():
            now = f"{SAMPLES - batch.start} left"
            T, W = forget(T, W, features[batch], labels[batch])
            if (left := SAMPLES - batch.stop) in exact:
                errors[left] = relative_error(W, exact[left])
    except (ArithmeticError, np.linalg.LinAlgError) as error:
        end = {"at": now, "error": f"{type(error).__name__}: {error}"}
    return {"start": begin, "update": update, "dtype": dtype, "errors": errors, "refused": end}


def relative_error(weights: Matrix, exact: Matrix) -> float | None:
    """Return the Frobenius norm of the difference over that of the exact weights; None if not finite."""
    error = _norm(weights.astype(np.float64) - exact) / _norm(exact)
    return error if np.isfinite(error) else None


def _norm(matrix: Matrix) -> float:
    return float(np.linalg.norm(matrix.astype(np.float64)))


def measure(seed: int) -> dict[str, Any]:
    """Run every row and return what was measured."""
    codes, targets = class_clustered_codes(seed)
    exact, bounds, fresh = {}, {}, {}
    for left in LEFT:
        kept = codes[SAMPLES - left :], targets[SAMPLES - left :]
        exact[left], bounds[left] = exact_weights(*kept)
        fresh[left] = relative_error(tracking.from_sums(*sums(*kept), gamma=GAMMA)[1], exact[left])
    with np.errstate(all="ignore"):  # overflow is what some rows are there to show
        rows = [
            drift(begin, update, dtype, codes, targets, exact)
            for dtype in ("float64", "float32")
            for begin in ("closed form", "recursion")
            for update in UPDATES
        ]
    rows.append(
        {
            "start": "closed form",
            "update": "solved anew",
            "dtype": "float64",
            "errors": fresh,
            "refused": None,
        }
    )
    return {"exact_known_to": bounds, "rows": rows}


def table(rows: list[dict[str, Any]]) -> str:
    """Return the figures for a terminal, one row a line."""
    stops = "".join(f"{left:>9,}" for left in LEFT)
    lines = [f"{'precision':10}{'start':13}{'update':13}{stops}  samples left"]
    for row in rows:
        errors = [row["errors"].get(left) for left in LEFT]
        cells = [f"{'-':>9}" if error is None else f"{error:9.1e}" for error in errors]
        note = f"  refused, {row['refused']['at']}" if row["refused"] else ""
        lines.append(f"{row['dtype']:10}{row['start']:13}{row['update']:13}" + "".join(cells) + note)
    return "\n".join(lines)


def main() -> None:
    """Measure, print the table, and write the JSON file if asked to."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drift", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    options = parser.parse_args()
    began = time.perf_counter()
    settings = {"samples": SAMPLES, "features": FEATURES, "classes": CLASSES, "gamma": GAMMA, "request": REQUEST}
    results = provenance("drift", options.seed, **settings) | measure(options.seed)
    results["seconds"] = round(time.perf_counter() - began, 1)
    print(table(results["rows"]))
    print(f"exact solution known to {max(results['exact_known_to'].values()):.0e}; {results['seconds']} s")
    if options.json:
        write_json(options.json, results)


if __name__ == "__main__":
    main()
