"""DS-AL: two streams of half the row's codes each, ours for final residuals, and as published."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from benchmarks.learners import references as published
from benchmarks.learners.contestants import Exact, Published
from benchmarks.learners.references.embeddings import Embedding
from neverseen import AnalyticClassifier, Key, TwoStreams

if TYPE_CHECKING:
    from benchmarks.learners.entries import Shape

RATIO = 0.6
FIGURE = "average 71.3, last 64.0 (ResNet-32, trained on 50 classes; 25 phases)"
"""From README.md of ZHUANGHP/Analytic-continual-learning (0afd6bf); the ratio too."""


class Streams(Published):
    """The published formula, which carries (R, W) of two streams from phase to phase."""

    def size(self) -> int:
        """Return the bytes of these arrays."""
        return sum(array.nbytes for stream in self.learner.state() for array in stream)


def half(shape: Shape) -> Shape:
    """Return the shape of each stream."""
    return shape._replace(codes=shape.codes // 2)


def ours(shape: Shape) -> Exact:
    """Return the exact side."""
    encoder = TwoStreams(half(shape).codes, compensation_ratio=RATIO)
    return Exact(lambda: AnalyticClassifier(encoder, shape.gamma, key=Key(bytes(32))))


def theirs(shape: Shape, main: Embedding, scaled: Embedding) -> Streams:
    """Return the published formula with the spread of our codes.

    Parameters
    ----------
    main : callable
        The codes of the main stream of `half` a shape.
    scaled : callable
        Returns rows with a root mean square of 16: projected on uniform weights, they spread by ``16 / sqrt(3)``.
    """
    tangents = published.Projection(shape.width, half(shape).codes, np.tanh)  # of the same projection as `main`
    learner = published.DSAL(
        main, lambda rows: 127 * tangents(scaled(rows) * 3**0.5 / 16), shape.gamma, shape.gamma, RATIO
    )
    return Streams(learner)
