"""What int8 codes cost with other activations and kernels: ``python -m benchmarks.encoders``.

Accuracy on handwritten digits (scikit-learn's, 64 pixels), mean and standard deviation over several draws of samples
and projections: 297 samples are a base set, 1000 are learned, and 500 tested. Each of our codes stands beside ridge
regression in float64 on the published formula (`benchmarks.learners.references`), on the same samples, with the same
gamma in its units.

float
    the activation of a Gaussian random projection, of rows of root mean square 1
signs
    the same of the library's own projection of +1 and -1: it differs from int8 by rounding alone
int8
    `neverseen.AnalyticClassifier`
F-OAL, GKEAL
    as published, on features that are not normalised; ours with a fixed scale
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learners.references import FOAL, GKEAL, Learner, Projection, Recursive
from benchmarks.learners.references.embeddings import relu, sigmoid
from benchmarks.provenance import provenance, write_json
from neverseen import AnalyticClassifier, Encoder, GaussianKernel, RandomProjection
from neverseen.encoding import projection_shift, projection_signs

WIDTH, BASE, LEARNED, TESTED = 64, 297, 1000, 500
CURVES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": relu,
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "gelu": lambda x: x * sigmoid(1.702 * x),
    "sign": np.sign,
}
UNITS = {"relu": 16 * WIDTH**0.5 / 2 ** projection_shift(WIDTH), "tanh": 127, "sigmoid": 127, "gelu": 32, "sign": 127}
SIGMA, KERNEL_GAMMA = 20.0, 0.1  # gamma of GKEAL's public code; its sigma of 10 is for shorter features
FOAL_CODES, FOAL_SCALE = 1000, 3**0.5  # its weights are uniform in +-1/sqrt(d0), of variance 1 / (3 d0)
SCALES = (1.0, 8.0, 32.0, 128.0)  # the root mean square of these features is 7.8


class Draw:
    """One draw of base set, samples to learn, and samples to test."""

    def __init__(self, seed: int) -> None:
        from sklearn.datasets import load_digits

        X, y = load_digits(return_X_y=True)
        order = np.random.default_rng(seed).permutation(len(X))
        X, y = X[order].astype(np.float64), y[order]
        self.seed, self.base = seed, X[:BASE]
        self.X, self.y = X[BASE : BASE + LEARNED], y[BASE : BASE + LEARNED]
        self.test, self.truth = X[-TESTED:], y[-TESTED:]

    def published(self, learner: Learner, *, normalised: bool = False) -> float:
        """Return the accuracy of a learner in floats, in percent."""
        scaled = _normalised if normalised else np.asarray
        learner.learn(scaled(self.X), self.y)
        return 100 * float(np.mean(learner.predict(scaled(self.test)) == self.truth))

    def ours(self, encoder: Encoder, gamma: float) -> float:
        """Return the accuracy of this library, in percent."""
        model = AnalyticClassifier(encoder, max(1, round(gamma)), hardware="numpy").fit(self.X, self.y)
        return 100 * float(model.score(self.test, self.truth))


def activations(draw: Draw, codes: int, gamma: float) -> dict[str, dict[str, float]]:
    """Return accuracies by activation."""
    signs = projection_signs(draw.seed, WIDTH, codes).astype(np.float64)
    found = {}
    for name, curve in CURVES.items():
        drawn = Projection(WIDTH, codes, curve, normal=True, seed=draw.seed)
        drawn.matrix /= WIDTH**0.5  # so that a projection has standard deviation 1

        def own(rows: np.ndarray, curve: Callable[[np.ndarray], np.ndarray] = curve) -> np.ndarray:
            return curve(rows @ signs / WIDTH**0.5)

        encoder = RandomProjection(codes, draw.seed, activation=name)
        found[name] = {
            "float": draw.published(Recursive(drawn, gamma), normalised=True),
            "signs": draw.published(Recursive(own, gamma), normalised=True),
            "int8": draw.ours(encoder, gamma * UNITS[name] ** 2),
        }
    return found


def fixed_scales(draw: Draw) -> dict[str, float]:
    """Return accuracies of F-OAL and GKEAL, published and ours, on features that are not normalised."""
    foal = FOAL(Projection(WIDTH, FOAL_CODES, sigmoid, seed=draw.seed))
    ours = RandomProjection(FOAL_CODES, draw.seed, activation="sigmoid", scale=FOAL_SCALE)
    found = {"F-OAL": draw.published(foal), "F-OAL, int8": draw.ours(ours, 127**2)}
    found["GKEAL"] = draw.published(GKEAL(draw.base, SIGMA, KERNEL_GAMMA))
    for scale in SCALES:
        kernel = GaussianKernel(draw.base, SIGMA / (scale * WIDTH**0.5), scale=scale)
        found[f"GKEAL, int8, scale {scale:g}"] = draw.ours(kernel, KERNEL_GAMMA * 127**2)
    found["normalised kernel, int8"] = draw.ours(GaussianKernel(draw.base, 0.25), KERNEL_GAMMA * 127**2)
    return found


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Return all accuracies, a list over the draws for each."""
    draws = [Draw(seed) for seed in range(options.draws)]
    by_draw = [activations(draw, options.codes, options.gamma) for draw in draws]
    fixed = [fixed_scales(draw) for draw in draws]
    return {
        "activations": {
            name: {way: [each[name][way] for each in by_draw] for way in by_draw[0][name]} for name in CURVES
        },
        "fixed scales": {name: [each[name] for each in fixed] for name in fixed[0]},
    }


def spread(values: list[float]) -> str:
    """Return mean and standard deviation in words."""
    return f"{np.mean(values):.2f} ± {np.std(values):.2f}"


def less(values: list[float], others: list[float]) -> str:
    """Return mean and standard deviation of a difference."""
    differences = np.array(values) - others
    return f"{differences.mean():+.2f} ± {differences.std():.2f}"


def _normalised(rows: np.ndarray) -> np.ndarray:
    scaled: np.ndarray = rows / np.sqrt((rows**2).mean(axis=1, keepdims=True))
    return scaled


def main(arguments: list[str] | None = None) -> None:
    """Measure, print, and write the JSON file if asked to."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.encoders", description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=10, help="(%(default)s)")
    parser.add_argument("--codes", type=int, default=500, help="(%(default)s)")
    parser.add_argument("--gamma", type=float, default=1.0, help="in units of the published activations (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    options = parser.parse_args(arguments)
    results = provenance("encoders", draws=options.draws, codes=options.codes, gamma=options.gamma)
    results |= measured(options)
    for name, row in results["activations"].items():
        cells = [spread(values) for values in row.values()] + [less(row["int8"], row["signs"])]
        print(f"{name:8} {'  '.join(cells)}")
    for name, values in results["fixed scales"].items():
        print(f"{name:28} {spread(values)}")
    if options.json:
        write_json(options.json, results)


if __name__ == "__main__":
    main()
