"""What do the weights before and after a change tell about the samples in it? ``python -m benchmarks.reconstruction``.

An attacker sees the weights W0 of one published version and W1 of the next, and wants the codes of the samples that
were forgotten in between (HRec, arXiv 2405.20272). With A0 = G0 + gamma I and the forgotten rows C, Y, the definition
of the weights gives

    A0 (W0 - W1) = C' (Y - C W1),

a matrix M of rank at most k, whose columns are mixtures of the k forgotten codes. For one sample M is the code itself,
times a number for each class. For more, the attacker has to separate the mixture.

Attackers
    ``sums``        knows A0: an auditor, or a thief of the folder before the change.
    ``estimate``    knows as many samples of the same kind as he likes, none of them learned, and takes their sums,
                    scaled, for A0.
    ``injection``   ``sums``, and all changes of the batch but one are his own (learned by him): he takes their part
                    out of M.
    ``class mean``  sees no weights: guesses the mean code of the sample's class. What he gets is no leak.

Each of the others makes candidates in three ways: the leading singular vector, the column of each class, and
independent components of the columns. Each forgotten sample is scored with the candidate nearest to it. A real attacker
would have to choose, so these figures are in his favour.

Columns
    ``cosine``      between the code and the candidate; the median over samples. Codes are not negative and much alike:
                    compare with ``class mean``.
    ``individual``  the same after the class mean is taken off both: what is the sample's own.
    ``found``       share of the samples that the candidate picks out of a line-up, the sample among others of the same
                    kind that were never learned, by nearest code.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.decomposition import FastICA
from sklearn.exceptions import ConvergenceWarning

from benchmarks.images import digits
from benchmarks.provenance import provenance, write_json
from neverseen import AnalyticClassifier, RandomProjection

Matrix = NDArray[np.float64]
ATTACKERS = ("sums", "estimate", "injection", "class mean")
BATCHES = (1, 2, 10, 100)
_MOST_SOURCES = 20  # independent components; more have never been found


class Data(NamedTuple):
    """Features and labels: to learn, and of the same kind, never learned."""

    about: str
    features: NDArray[np.float32]
    labels: NDArray[np.int64]
    others: NDArray[np.float32]
    other_labels: NDArray[np.int64]


class Scores(NamedTuple):
    """How near an attacker came to each sample."""

    cosine: list[float]
    individual: list[float]
    found: list[bool]


def mnist() -> Data:
    """Return 4,000 MNIST digits and 1,000 others, as EfficientNet-Lite0 sees them."""
    from neverseen.backbones import efficientnet_lite0

    images, network = digits(), efficientnet_lite0()
    train, test = (np.asarray(network.extract(part), np.float32) for part in (images.train, images.test))
    return Data("MNIST digits, EfficientNet-Lite0", train, images.train_labels, test, images.test_labels)


def small() -> Data:
    """Return scikit-learn's digits, pixels as features: no network, for a quick look."""
    bunch = load_digits()
    rows, labels = bunch.data.astype(np.float32), bunch.target
    return Data("scikit-learn digits, pixels", rows[:1300], labels[:1300], rows[1300:], labels[1300:])


DATA: dict[str, Callable[[], Data]] = {"mnist": mnist, "digits": small}


class Target:
    """A model that learned, and what its attackers know beforehand.

    Parameters
    ----------
    data : Data
    codes, gamma : int
        Of the model.
    """

    def __init__(self, data: Data, codes: int, gamma: int) -> None:
        self.data, self.gamma = data, gamma
        self.encoder = RandomProjection(codes, seed=0)
        self.codes = self._encoded(data.features)  # (n, d)
        self.lineup = self._encoded(data.others)
        self.classes = np.unique(data.labels)
        self.means = np.stack([self.lineup[data.other_labels == c].mean(0) for c in self.classes])  # (C, d)
        self.model = AnalyticClassifier(self.encoder, gamma).fit(data.features, data.labels)
        self.before = self.model.weights_  # (d, C)
        self.sums = self.codes.T @ self.codes + gamma * np.eye(codes)
        scale = len(self.codes) / len(self.lineup)
        self.estimate = scale * (self.lineup.T @ self.lineup) + gamma * np.eye(codes)

    def _encoded(self, features: NDArray[np.float32]) -> Matrix:
        return np.asarray(self.encoder.encode(features), np.float64)

    def after(self, forgotten: NDArray[np.intp], learned: NDArray[np.intp]) -> Matrix:
        """Return the weights after a batch, exactly, and bring the model back to where it was."""
        data, model = self.data, self.model
        model.forget(data.features[forgotten], data.labels[forgotten])
        if len(learned):
            model.partial_fit(data.others[learned], data.other_labels[learned])
        weights = np.array(model.weights_)
        if len(learned):
            model.forget(data.others[learned], data.other_labels[learned])
        model.partial_fit(data.features[forgotten], data.labels[forgotten])
        return weights

    def mixture(self, attacker: str, forgotten: NDArray[np.intp], learned: NDArray[np.intp]) -> Matrix:
        """Return what an attacker takes for C'(Y - C W1) of the samples he is after; shape (d, C)."""
        after = self.after(forgotten, learned)
        found: Matrix = (self.estimate if attacker == "estimate" else self.sums) @ (self.before - after)
        own = self.lineup[learned]
        wanted = (self.data.other_labels[learned][:, None] == self.classes).astype(float)
        found += own.T @ (wanted - own @ after)
        return found

    def scored(self, attacker: str, rows: NDArray[np.intp], injected: NDArray[np.intp]) -> Scores:
        """Return how near an attacker comes to the codes of forgotten rows."""
        labels = self.data.labels[rows]
        places = np.searchsorted(self.classes, labels)
        if attacker == "class mean":
            guesses = [[self.means[place]] for place in places]
        else:
            mixed = self.mixture(attacker, rows, injected)
            shared = list(candidates(mixed, len(rows)))
            guesses = [[*shared, mixed[:, place]] for place in places]
        out = Scores([], [], [])
        lineup = np.delete(self.lineup, injected, axis=0)
        for row, place, options in zip(rows, places, guesses, strict=True):
            code, mean = self.codes[row], self.means[place]
            near = [cosine(code, guess) for guess in options]
            best = options[int(np.argmax(near))]
            out.cosine.append(max(near))
            # The attacker knows neither length nor sign; the best multiple for each code is its projection.
            out.individual.append(cosine(code - mean, (best @ code) / (best @ best) * best - mean))
            out.found.append(max(near) > max(cosine(other, best) for other in lineup))
        return out


def candidates(mixed: Matrix, samples: int) -> Iterator[Matrix]:
    """Yield guesses at the codes that a mixture is made of; shape (d,) each."""
    left, sizes, _ = np.linalg.svd(mixed, full_matrices=False)
    yield left[:, 0]
    rank = min(samples, int((sizes > 1e-9 * sizes[0]).sum()), _MOST_SOURCES)
    if rank > 1:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            unmixing = FastICA(rank, whiten="unit-variance", random_state=0, max_iter=500)
            unmixing.fit(left[:, :rank] * sizes[:rank])
        yield from (left[:, :rank] * sizes[:rank] @ unmixing.components_.T).T  # means are kept: codes have one


def cosine(first: Matrix, second: Matrix) -> float:
    """Return the cosine of the angle between two vectors, whatever their sign; 0 for a vector of zeros."""
    lengths = float(np.linalg.norm(first) * np.linalg.norm(second))
    return abs(float(first @ second)) / lengths if lengths else 0.0


def attack(target: Target, attacker: str, batch: int, samples: int, rng: np.random.Generator) -> dict[str, Any]:
    """Attack batches until so many samples were aimed at; return a line of the table."""
    out = Scores([], [], [])
    while len(out.cosine) < samples:
        victims = 1 if attacker == "injection" else batch
        rows = rng.choice(len(target.codes), victims, replace=False)
        injected = rng.choice(len(target.lineup), batch - victims, replace=False)
        scores = target.scored(attacker, rows, injected)
        out = Scores(out.cosine + scores.cosine, out.individual + scores.individual, out.found + scores.found)
    return {
        "attacker": attacker,
        "batch": batch,
        "samples": len(out.cosine),
        "cosine": float(np.median(out.cosine)),
        "individual": float(np.median(out.individual)),
        "found": float(np.mean(out.found)),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the attacks, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=sorted(DATA), default="mnist")
    parser.add_argument("--codes", type=int, default=1024)
    parser.add_argument("--gamma", type=int, default=2**16)
    parser.add_argument("--samples", type=int, default=100, help="samples aimed at in each line, at least")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("build/reconstruction.json"))
    options = parser.parse_args(arguments)
    data = DATA[options.data]()
    target = Target(data, options.codes, options.gamma)
    print(
        f"{data.about}; {len(data.labels):,} samples learned, {options.codes} codes; a line-up of {len(data.others):,}"
    )
    print(f"\n{'attacker':<12}{'batch':>6}{'cosine':>9}{'individual':>12}{'found':>9}")
    lines = []
    for attacker in ATTACKERS:
        for batch in BATCHES if attacker != "class mean" else BATCHES[:1]:
            rng = np.random.default_rng([options.seed, batch])
            lines.append(attack(target, attacker, batch, options.samples, rng))
            line = lines[-1]
            print(
                f"{attacker:<12}{batch:>6}{line['cosine']:>9.4f}{line['individual']:>12.3f}{line['found']:>9.1%}",
                flush=True,
            )
    settings = {name: value for name, value in vars(options).items() if name not in ("output", "seed")}
    result = provenance("reconstruction", options.seed, **settings) | {
        "data": data.about,
        "learned": len(data.labels),
        "lineup": len(data.others),
        "lines": lines,
    }
    write_json(options.output, result)
    print(f"\nwritten to {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
