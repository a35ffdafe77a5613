"""How good is the choice of ``gamma="auto"``? ``python -m benchmarks.gamma_choice``.

Learns part of a data set of scikit-learn and prints accuracies in percent on the rest, means over random splits:

default
    `AnalyticClassifier` with gamma 2**16.
auto
    The same with ``gamma="auto"``: its sums choose gamma.
ridge cv
    scikit-learn's `RidgeClassifierCV` on the same codes, which chooses among the same values by leave-one-out.
best
    The best value of the same list, found by looking at the test samples: nobody can do that in earnest.

It also prints the exponents that auto chose. Features but those of digits are standardised. Takes about five minutes on
one core.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.linear_model import RidgeClassifierCV
from sklearn.model_selection import train_test_split

from benchmarks.provenance import provenance, write_json
from neverseen import AnalyticClassifier, RandomProjection
from neverseen.engine.strength import candidates

SETS = {"digits": load_digits, "breast cancer": load_breast_cancer, "wine": load_wine}
SHARES = (0.1, 0.8)
METHODS = ("default", "auto", "ridge cv", "best")


def data(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return features and labels."""
    features, labels = SETS[name](return_X_y=True)
    if name != "digits":
        features = (features - features.mean(axis=0)) / features.std(axis=0)
    return features, labels


def measure(name: str, share: float, codes: int, seed: int) -> dict[str, Any]:
    """Return the accuracies of one split, and the chosen exponents."""
    features, labels = data(name)
    learned, tested, truth, answers = train_test_split(
        features, labels, train_size=share, stratify=labels, random_state=seed
    )
    encoder = RandomProjection(codes, seed=seed)
    rows, others = (encoder.encode(part).astype(np.float64) for part in (learned, tested))
    options = candidates(int((rows * rows).sum()), codes)

    def score(gamma: Any) -> tuple[float, AnalyticClassifier]:
        model = AnalyticClassifier(encoder, gamma, hardware="numpy").fit(learned, truth)
        return 100 * model.score(tested, answers), model

    auto, model = score("auto")
    rival = RidgeClassifierCV(alphas=[float(gamma) for gamma in options]).fit(rows, truth)
    return {
        "learned": len(truth),
        "default": score(2**16)[0],
        "auto": auto,
        "ridge cv": 100 * rival.score(others, answers),
        "best": max(score(gamma)[0] for gamma in options),
        "exponents": [int(np.log2(model.gamma_)), int(np.log2(rival.alpha_))],
    }


def main() -> None:
    """Measure, print the table, and write the JSON file if asked to."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gamma_choice", description=__doc__.splitlines()[0])
    parser.add_argument("--codes", type=int, nargs="+", default=[1024])
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    options = parser.parse_args()
    rows = []
    print(f"{'set':15}{'learned':>8}{'codes':>7}" + "".join(f"{title:>10}" for title in METHODS) + "  exponents")
    for name in SETS:
        for share in SHARES:
            for codes in options.codes:
                found = [measure(name, share, codes, seed) for seed in range(options.splits)]
                means = {title: float(np.mean([each[title] for each in found])) for title in METHODS}
                chosen = [[each["exponents"][place] for each in found] for place in (0, 1)]
                row = {"set": name, "learned": found[0]["learned"], "codes": codes, "exponents": chosen}
                rows.append(row | {"accuracy": means})
                cells = "".join(f"{means[title]:>10.1f}" for title in METHODS)
                print(f"{name:15}{found[0]['learned']:>8}{codes:>7}{cells}  {chosen[0]}", flush=True)
    if options.json:
        settings = {"codes": options.codes, "splits": options.splits, "default": 2**16}
        write_json(options.json, provenance("gamma-choice", 0, **settings) | {"rows": rows})


if __name__ == "__main__":
    main()
