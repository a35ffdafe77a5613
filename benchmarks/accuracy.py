"""Does rounding features to int8 cost accuracy? ``python -m benchmarks.accuracy --download``.

Three classifiers learn the same EfficientNet-Lite0 features of CIFAR-10, at the same number of codes:

``gaussian``
    The reference: float64 ridge regression on a random Gaussian projection, rectified.
``signs``
    The same on the library's own projection of +1 and -1: from this to ``int8`` there is rounding alone.
``int8``
    `neverseen.AnalyticClassifier`: features and codes in int8.

Each row of features is divided by its root mean square for all three, and the float codes are on the scale
of the int8 codes, so that one value of `gamma` means one strength. Rows come in pairs: all three with
``--gamma``, untuned; then each float classifier with the value of `GAMMAS` that does best on the last fifth of
its training samples, and int8 with the choice of ``signs``. All then learn every training sample. As many
codes as features (1280) means no projection at all; int8 is then `neverseen.Identity`.

Numbers are the accuracy on the 10,000 test samples in percent, mean and standard deviation over seeds, which
draw the projections. ``difference`` is int8 less the reference, gaussian with its chosen gamma;
``same gamma`` is int8 less gaussian in the same row, ``rounding`` int8 less signs in the same row. The exit
status is 1 if int8 with ``--gamma``, untuned, is anywhere more than ``--tolerance`` points below the reference.
A projection drawn anew moves an accuracy by about 0.2, so three seeds tell differences to 0.2 at best.
"""

import argparse
import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.cifar import CifarError, Samples, add_options, load_features
from benchmarks.provenance import provenance, write_json
from neverseen import AnalyticClassifier, Encoder, Identity, RandomProjection

Matrix = NDArray[np.float64]
Labels = NDArray[np.int64]

GAMMAS = [4**k for k in range(5, 12)]
BATCH = 5000
METHODS = ["gaussian", "signs", "int8"]


def gaussian_projection(n_features: int, n_codes: int, seed: int) -> Matrix:
    """Draw a projection of independent standard normal numbers, shape (n_features, n_codes)."""
    return np.random.default_rng(seed).standard_normal((n_features, n_codes))


def sign_projection(n_features: int, n_codes: int, seed: int) -> Matrix:
    """Draw the projection of +1 and -1 that `RandomProjection` uses (docs/specification.md, 2.2)."""
    signs = np.empty((n_features, n_codes))
    for i in range(n_features):
        name = b"neverseen:projection:1" + seed.to_bytes(8, "little") + i.to_bytes(8, "little")
        stream = np.frombuffer(hashlib.shake_256(name).digest(-(-n_codes // 8)), dtype=np.uint8)
        signs[i] = 1.0 - 2.0 * np.unpackbits(stream, count=n_codes, bitorder="little")
    return signs


def float_codes(features: NDArray[np.float32], projection: Matrix | None) -> Matrix:
    """Encode as the library does, (n, n_features) to (n, n_codes), but never round and never clip."""
    n_features = features.shape[1]
    rows = features.astype(np.float64)
    rows *= 16 / np.sqrt(np.mean(rows**2, axis=1, keepdims=True))
    if projection is None:
        return rows
    shift = 0
    while 81 * 4 ** (shift + 1) <= 128 * n_features:
        shift += 1
    return np.maximum(rows @ projection, 0) / 2.0**shift  # (n, n_features) (n_features, n_codes)


def sums(features: NDArray[np.float32], labels: Labels, projection: Matrix | None) -> tuple[Matrix, Matrix]:
    """Sum the Gram matrix (n_codes, n_codes) and the cross matrix (n_codes, 10) over all samples."""
    n_codes = features.shape[1] if projection is None else projection.shape[1]
    gram, cross = np.zeros((n_codes, n_codes)), np.zeros((n_codes, 10))
    for first in range(0, len(features), BATCH):
        codes = float_codes(features[first : first + BATCH], projection)
        gram += codes.T @ codes
        cross += codes.T @ np.eye(10)[labels[first : first + BATCH]]
    return gram, cross


def ridge(gram: Matrix, cross: Matrix, gamma: int) -> Matrix:
    """Solve for the weights, (n_codes, 10)."""
    return np.asarray(np.linalg.solve(gram + gamma * np.eye(len(gram)), cross), dtype=np.float64)


def float_scores(samples: Samples, projection: Matrix | None, gamma: int) -> tuple[float, float, int]:
    """Learn in float64, with a given gamma and with the one that validates best.

    Returns
    -------
    fixed, chosen : float
        Accuracies on the test samples, with `gamma` and with the chosen one.
    choice : int
        The value of `GAMMAS` chosen on the last fifth of the training samples.
    """
    held_out = len(samples.train) - len(samples.train) // 5
    gram, cross = sums(samples.train[:held_out], samples.train_labels[:held_out], projection)
    codes, labels = float_codes(samples.train[held_out:], projection), samples.train_labels[held_out:]
    validated = [np.mean((codes @ ridge(gram, cross, g)).argmax(axis=1) == labels) for g in GAMMAS]
    choice = GAMMAS[int(np.argmax(validated))]
    gram += codes.T @ codes
    cross += codes.T @ np.eye(10)[labels]
    codes, labels = float_codes(samples.test, projection), samples.test_labels
    fixed, chosen = (float(np.mean((codes @ ridge(gram, cross, g)).argmax(axis=1) == labels)) for g in (gamma, choice))
    return fixed, chosen, choice


def int8_score(samples: Samples, encoder: Encoder, gamma: int) -> float:
    """Learn in batches with the library, and return the accuracy on the test samples."""
    model = AnalyticClassifier(encoder, gamma=gamma)
    for first in range(0, len(samples.train), BATCH):
        batch = slice(first, first + BATCH)
        model.partial_fit(samples.train[batch], samples.train_labels[batch])
    return float(model.score(samples.test, samples.test_labels))


def measure(samples: Samples, n_codes: int, seed: int, gamma: int) -> dict[str, Any]:
    """Score the three classifiers with one seed; accuracies in percent."""
    start = time.monotonic()
    n_features = samples.train.shape[1]
    gaussian: Matrix | None = None
    signs: Matrix | None = None
    encoder: Encoder = Identity()
    if n_codes != n_features:
        gaussian = gaussian_projection(n_features, n_codes, seed)
        signs = sign_projection(n_features, n_codes, seed)
        encoder = RandomProjection(n_codes, seed=seed)
    a = float_scores(samples, gaussian, gamma)
    b = a if signs is None else float_scores(samples, signs, gamma)
    fixed = int8_score(samples, encoder, gamma)
    chosen = fixed if b[2] == gamma else int8_score(samples, encoder, b[2])
    scores = {"fixed": (a[0], b[0], fixed), "chosen": (a[1], b[1], chosen)}
    return {
        "samples": len(samples.train),
        "codes": n_codes,
        "seed": seed,
        "chosen_gamma": {"gaussian": a[2], "signs": b[2], "int8": b[2]},
        "seconds": round(time.monotonic() - start, 1),
        **{
            name: {m: round(100 * s, 2) for m, s in zip(METHODS, triple, strict=True)}
            for name, triple in scores.items()
        },
    }


def summarise(runs: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Reduce the runs of one row of the table, ``fixed`` or ``chosen``, to means and deviations over seeds."""
    columns = {method: [run[name][method] for run in runs] for method in METHODS}
    columns["difference"] = [run[name]["int8"] - run["chosen"]["gaussian"] for run in runs]
    columns["same gamma"] = [run[name]["int8"] - run[name]["gaussian"] for run in runs]
    columns["rounding"] = [run[name]["int8"] - run[name]["signs"] for run in runs]
    row: dict[str, Any] = {"samples": runs[0]["samples"], "codes": runs[0]["codes"], "gamma": name}
    for column, values in columns.items():
        spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
        row[column] = {"mean": round(float(np.mean(values)), 3), "std": round(spread, 3)}
    return row


def features_digest(samples: Samples) -> str:
    """Return the SHA-256 of the features and labels, to tell whether two runs saw the same."""
    digest = hashlib.sha256()
    for array in samples:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def main() -> int:
    """Print the table and, with ``--json``, write the results to a file."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.accuracy", description="Accuracy of int8 codes against float64."
    )
    add_options(parser)
    parser.add_argument("--codes", type=int, nargs="+", default=[1024, 1280, 2048, 4096], help="sizes")
    parser.add_argument("--samples", type=int, nargs="+", default=[50_000], help="samples learned (%(default)s)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--gamma", type=int, default=2**16, help="of the int8 classifier (%(default)s)")
    parser.add_argument("--tolerance", type=float, default=0.3, help="points int8 may lose (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    options = parser.parse_args()
    try:
        everything = load_features(options.data, options.download)
    except CifarError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    runs: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    differences = ["difference", "same gamma", "rounding"]
    print(f"{'samples':>7} {'codes':>6} {'gamma':>7}" + "".join(f"{title:>15}" for title in METHODS + differences))
    for n_samples in options.samples:
        samples = everything._replace(
            train=everything.train[:n_samples], train_labels=everything.train_labels[:n_samples]
        )
        for n_codes in options.codes:
            seeds = options.seeds if n_codes != everything.train.shape[1] else options.seeds[:1]
            of_row = []
            for seed in seeds:
                of_row.append(measure(samples, n_codes, seed, options.gamma))
                print(json.dumps(of_row[-1]), file=sys.stderr)
            runs += of_row
            for name in ("fixed", "chosen"):
                rows.append(row := summarise(of_row, name))
                cells = [f"{row[title]['mean']:.2f} ± {row[title]['std']:.2f}" for title in METHODS]
                cells += [f"{row[title]['mean']:+.2f} ± {row[title]['std']:.2f}" for title in differences]
                gamma = options.gamma if name == "fixed" else name
                print(f"{n_samples:>7} {n_codes:>6} {gamma:>7}" + "".join(f"{cell:>15}" for cell in cells), flush=True)
    worst = {
        name: min(row["difference"]["mean"] for row in rows if row["gamma"] == name) for name in ("fixed", "chosen")
    }
    print(f"\nworst difference: {worst['fixed']:+.2f} points untuned, {worst['chosen']:+.2f} with gamma chosen")
    if options.json:
        settings = {"gamma": options.gamma, "gammas": GAMMAS, "tolerance": options.tolerance, "seeds": options.seeds}
        results = provenance("accuracy", features_sha256=features_digest(everything), **settings)
        write_json(options.json, results | {"rows": rows, "runs": runs})
    return int(worst["fixed"] < -options.tolerance)


if __name__ == "__main__":
    sys.exit(main())
