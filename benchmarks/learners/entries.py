"""The rows of the comparison. A learner more is one `Entry` more.

Both sides of a row see the same rows of features. The float side divides a row by its root mean square, as the encoders
do, and scales the result so that its codes have the spread of the integer codes: one gamma then means one strength for
both. It rounds nothing, and its projection is the one that its own public code draws. GKEAL and F-OAL have the gammas
of their public code, and features as their code has them: as they are, or with a root mean square of 1 in each row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks.learners import contestants as side
from benchmarks.learners import references as published
from benchmarks.learners import streams, two_streams
from benchmarks.learners.contestants import Exact, Published
from benchmarks.learners.pictures import PARTS, Maps, Pictures
from benchmarks.learners.references.embeddings import sigmoid
from neverseen import AnalyticClassifier, Encoder, GaussianKernel, Identity, Key, RandomProjection
from neverseen.encoding import projection_shift
from neverseen.targets import LabelSets, Numbers, Rows, WeightedClasses

SHRINKAGE = 2.0**-6
CENTRES = 1024  # of GKEAL, at most; they are the base set
SIGMA, KERNEL_GAMMA = 20.0, 0.1  # gamma of its public code; sigma for features of 64 to 1280 numbers
FOAL_CODES, FOAL_SCALE = 1000, 3**0.5  # its weights have a variance of 1 / (3 width)
CODE = 127  # what 1 is in codes of a kernel or a sigmoid


class Shape(NamedTuple):
    """How large a row is."""

    width: int  # features
    codes: int
    gamma: int
    classes: int
    phases: int
    base: np.ndarray  # rows that are learned by nobody, if the stream leaves them out


class Entry(NamedTuple):
    """One row: a learner of this library, and the published formula in float64."""

    name: str
    ours: Callable[[Shape], Exact]
    theirs: Callable[[Shape], Published]
    stream: streams.Streamer = streams.by_class
    measure: str = "accuracy"  # a name in `benchmarks.learners.comparison.MEASURES`
    codes: int | None = None  # at most so many; the features themselves for 0
    figure: str = ""  # in percent, of the published code on CIFAR-100, with its own network


# -- this library --------------------------------------------------------------------------------------


def model(shape: Shape, **settings: Any) -> AnalyticClassifier:
    """Return a classifier that holds nothing, and has the key of all these models."""
    encoder: Encoder = RandomProjection(shape.codes) if shape.codes else Identity()
    given: dict[str, Any] = {"encoder": encoder, "gamma": shape.gamma, "key": Key(bytes(32))}
    return AnalyticClassifier(**given | settings)


def exact(asked: side.Asked = side.classes, **settings: Any) -> Callable[[Shape], Exact]:
    """Return a maker of an exact side."""
    return lambda shape: Exact(lambda: model(shape, **settings), asked)


def means(by: str, shrinkage: float | None = None, *, novel: bool = False) -> Callable[[Shape], Exact]:
    """Return a maker of an exact side that predicts by means."""
    return lambda shape: side.Means(lambda: model(shape), by, shrinkage, novel=novel)


def activated(name: str, unit: int) -> Callable[[Shape], Exact]:
    """Return a maker of an exact side with another activation than ReLU, whose codes have that unit."""

    def made(shape: Shape) -> Exact:
        encoder, gamma = RandomProjection(shape.codes, activation=name), strength(shape, unit)
        return Exact(lambda: model(shape, encoder=encoder, gamma=gamma))

    return made


def strength(shape: Shape, unit: int) -> int:
    """Return a gamma that is as strong beside codes of that unit as the row's is beside those of a ReLU."""
    return max(1, round(shape.gamma * (unit / relu_unit(shape.width)) ** 2))


def relu_unit(width: int) -> float:
    """Return what a standard deviation of a projection is in codes of `RandomProjection` with ReLU."""
    return float(16.0 * width**0.5 / 2.0 ** projection_shift(width))


def kernel(shape: Shape) -> Exact:
    """Return GKEAL on fixed centres, with distances as they are."""
    scale = float(np.sqrt(np.mean(np.asarray(shape.base, np.float64) ** 2)))
    encoder = GaussianKernel(shape.base, SIGMA / (scale * shape.width**0.5), scale=scale)
    return Exact(lambda: model(shape, encoder=encoder, gamma=round(KERNEL_GAMMA * CODE**2)))


def foal(shape: Shape) -> Exact:
    """Return F-OAL."""
    encoder = RandomProjection(shape.codes, activation="sigmoid", scale=FOAL_SCALE)
    return Exact(lambda: model(shape, encoder=encoder, gamma=CODE**2))


# -- published formulas --------------------------------------------------------------------------------


def scaled(rows: np.ndarray) -> np.ndarray:
    """Return rows with a root mean square of 16."""
    wide = np.asarray(rows, np.float64)
    lengths = np.sqrt(np.mean(wide**2, axis=1, keepdims=True))
    found: np.ndarray = 16 * wide / np.where(lengths > 0, lengths, 1)
    return found


def embedding(shape: Shape, *, normal: bool = False) -> Callable[[np.ndarray], np.ndarray]:
    """Return the ReLU of a random projection, with the spread of `RandomProjection`; the features for no codes."""
    if not shape.codes:
        return scaled
    # Entries of the projection have a variance of 1, or of 1 / (3 width) where they are uniform.
    factor = (1.0 if normal else (3.0 * shape.width) ** 0.5) / 2.0 ** projection_shift(shape.width)
    projection = published.Projection(shape.width, shape.codes, normal=normal)
    return lambda rows: projection(scaled(rows) * factor)


def learner(kind: Callable[..., Any], **settings: Any) -> Callable[[Shape], Published]:
    """Return a maker of a float side that learns classes, with the gamma of the row."""
    return lambda shape: Published(kind(embedding(shape), gamma=shape.gamma, **settings))


def curved(curve: Callable[[np.ndarray], np.ndarray], unit: int) -> Callable[[Shape], Published]:
    """Return a maker of plain ridge regression with another activation than ReLU."""

    def made(shape: Shape) -> Published:
        drawn = published.Projection(shape.width, shape.codes, curve, normal=True)
        drawn.matrix /= 16.0 * shape.width**0.5  # a projection has a standard deviation of 1

        def embed(rows: np.ndarray) -> np.ndarray:
            return unit * drawn(scaled(rows))

        learner = published.Ridge(embed, strength(shape, unit))
        return Published(learner, side.one_hot(shape.classes), answers=side.greatest)

    return made


def gkeal(shape: Shape) -> Published:
    """Return GKEAL on the same centres."""
    return Published(published.GKEAL(shape.base, SIGMA, KERNEL_GAMMA))


def published_foal(shape: Shape) -> Published:
    """Return F-OAL, in batches of ten samples."""
    return Published(published.FOAL(published.Projection(shape.width, shape.codes, sigmoid)))


def ridge(shape: Shape) -> Published:
    """Return plain ridge regression on one-hot targets."""
    return Published(published.Ridge(embedding(shape), shape.gamma), side.one_hot(shape.classes), answers=side.greatest)


def weighted_ridge(shape: Shape) -> Published:
    """Return the same, with each row as often as its weight says."""

    def asked(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.eye(shape.classes)[labels], side.weights(labels)

    return side.Repeated(published.Ridge(embedding(shape), shape.gamma), asked, side.greatest)


def afl(shape: Shape) -> Published:
    """Return AFL with a gamma for each client that makes the row's gamma in all.

    Its last step, which takes the gammas away, needs more samples than codes from the first client on: left out.
    """
    return Published(published.AFL(embedding(shape), shape.gamma / shape.phases, clean=False))


def ranpac(shape: Shape) -> Published:
    """Return RanPAC, which chooses its ridge anew for each task."""
    return Published(published.RanPAC(embedding(shape, normal=True)))


def air(shape: Shape) -> Published:
    """Return AIR. Beside its weights, which have a mean of 1, a gamma counts for more than beside ours."""
    return Published(published.AIR(embedding(shape), shape.gamma))


# From README.md of ZHUANGHP/Analytic-continual-learning (0afd6bf), from paper_tables of RanPAC/RanPAC (012927f), and
# from the second version of F-OAL's paper, whose code publishes no figures.
_ACIL = "average 71.0, last 63.4 (ResNet-32, trained on 50 classes; 25 phases)"
_RANPAC = "last 75.5 (ResNet-50), 89.0 (ViT-B/16)"
_GKEAL = "average 70.4, last 62.3 (ResNet-32, trained on 50 classes; 25 phases)"
_FOAL = "86.5 in its paper (ViT-B/16)"
_NCM = "last 61.5 (ResNet-50), 83.4 (ViT-B/16)"

ENTRIES = [
    Entry("ridge", exact(), ridge),
    Entry("ACIL", exact(), learner(published.ACIL), figure=_ACIL),
    Entry("GACL", exact(), learner(published.GACL), streams.blurry),
    Entry("TS-ACL", exact(), learner(published.TSACL)),
    Entry("RanPAC", exact(), ranpac, figure=_RANPAC),
    Entry(
        "DS-AL",
        two_streams.ours,
        lambda shape: two_streams.theirs(shape, embedding(two_streams.half(shape)), scaled),
        figure=two_streams.FIGURE,
    ),
    Entry("RanPAC auto", exact(gamma="auto"), ranpac, figure=_RANPAC),
    Entry("GKEAL", kernel, gkeal, streams.beside_base, codes=CENTRES, figure=_GKEAL),
    Entry("F-OAL", foal, published_foal, streams.unit_length, codes=FOAL_CODES, figure=_FOAL),
    Entry("tanh", activated("tanh", CODE), curved(np.tanh, CODE)),
    Entry("GELU", activated("gelu", 32), curved(lambda x: x * sigmoid(1.702 * x), 32)),
    Entry("sign", activated("sign", CODE), curved(np.sign, CODE)),
    Entry("AFL", lambda shape: side.Clients(lambda: model(shape)), afl, codes=0),
    Entry("AIR", exact(track_classes=True, class_weight="balanced"), air, streams.long_tailed, codes=1024),
    Entry("weights", exact(side.weighted, targets=WeightedClasses()), weighted_ridge),
    Entry(
        "L3A",
        lambda shape: side.Sets(lambda: model(shape, targets=LabelSets()), shape.classes),
        lambda shape: Published(
            published.L3A(embedding(shape), shape.gamma, pseudo=None),
            side.multi_hot(shape.classes),
            side.scores,
        ),
        measure="precision",
    ),
    Entry(
        "regression",
        exact(side.numbers, targets=Numbers(outputs=2)),
        lambda shape: Published(published.Ridge(embedding(shape), shape.gamma), side.numbers),
        streams.mixed,
        "explained",
    ),
    Entry(
        "CFSSeg",
        lambda shape: Pictures(model(shape, targets=Rows(most=PARTS)), shape.width),
        lambda shape: Maps(published.CFSSeg(embedding(shape), gamma=shape.gamma)),
    ),
    Entry(
        "NCM",
        means("cosine"),
        lambda shape: Published(published.NearestMean(embedding(shape), cosine=True)),
        codes=0,
        figure=_NCM,
    ),
    Entry(
        "LDA",
        means("lda", SHRINKAGE),
        lambda shape: Published(published.LDA(embedding(shape), SHRINKAGE, priors=False)),
        codes=0,
    ),
    Entry(
        "Mahalanobis",
        means("lda", SHRINKAGE, novel=True),
        lambda shape: Published(published.Mahalanobis(embedding(shape), SHRINKAGE), answers=side.novelty),
        streams.partly_unknown,
        "separation",
        codes=0,
    ),
]
