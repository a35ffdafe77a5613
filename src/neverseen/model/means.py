"""Predictions from the means of the classes, and how new a sample is: from the sums that a model holds already.

Let n_k and s_k be the number and the sum of the codes of class k, and c the code of a sample. Section 6.1 of
``docs/specification.md`` has three rules:

- ``"mean"``: the class whose mean ``s_k / n_k`` is nearest;
- ``"cosine"``: the class whose mean has the smallest angle to c;
- ``"lda"``: linear discriminants. Distances are measured by one covariance for all classes, so the nearest mean is the
  one with the smallest Mahalanobis distance.

The covariance comes from ``G_w``, the sum of ``(c - q)'(c - q)`` over all samples, where q is the mean of the sample's
class, rounded to integers. It is a Gram matrix of integers, so the certified solve applies to ``A_w = G_w + gamma_w I``
as it does to G. Rounding the means adds at most ``n / 4`` to a diagonal entry, where the codes' own spread of about 18
adds ``324 n``.

With ``u_k = s_k``, or ``u_k`` the correctly rounded solution of ``A_w u = 2**p s_k``, two rules are one formula: the
class with the greatest ``(2 n_k (c.u_k) - s_k.u_k) / n_k**2`` is the nearest. These are fractions of integers, and
compared as such.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable
from fractions import Fraction
from operator import mul
from typing import Any

import numpy as np

from neverseen.engine.arithmetic import GridWeights, wide_matmul
from neverseen.engine.packing import pack_triangle
from neverseen.engine.solver import Solution, solve
from neverseen.engine.statistics import Statistics
from neverseen.errors import ConfigurationError, InputError, NotLearnedError
from neverseen.hardware import Array
from neverseen.labels import as_array, from_text
from neverseen.model.configuration import Configuration
from neverseen.model.exact import ExactModel
from neverseen.model.frozen import by_parts, share_right
from neverseen.model.problem import strength

__all__ = ["ClassMeans"]

RULES = ("mean", "cosine", "lda")
_PART = 2**20  # codes or scores of samples at a time: 8 MiB of each
_COLUMNS = 256  # samples whose distances take a solve, at a time
_ROUNDING = 2.0**-50


class ClassMeans:
    """The means of the classes of a model at one moment. They predict, and never change.

    The method `means` of `AnalyticClassifier`, `ForgettingModel` and `Store` makes them. They depend on the settings
    and the held samples alone. They are a copy of sums: after a forget, make new ones, and throw the old ones away.

    Attributes
    ----------
    classes_ : ndarray of shape (C,)
        Classes, sorted.
    counts : int64 ndarray of shape (C,)
        Number of samples of each class.

    Examples
    --------
    >>> import numpy as np
    >>> from neverseen import AnalyticClassifier, Identity
    >>> X = np.array([[1.0, 0.2], [1.0, 0.3], [0.2, 1.0]])
    >>> means = AnalyticClassifier(Identity()).fit(X, ["cat", "cat", "dog"]).means()
    >>> means.predict([[3.0, 1.0], [1.0, 9.0]]).tolist()
    ['cat', 'dog']
    >>> means.novelty([[1.0, 0.2], [-1.0, -1.0]]).round(1).tolist()
    [2.2, 1844.0]
    """

    def __init__(
        self,
        configuration: Configuration,
        n_features: int,
        statistics: Statistics,
        read: Callable[[Any], np.ndarray],
        by: str = "mean",
        shrinkage: float | None = None,
    ) -> None:
        if by not in RULES:
            raise InputError(f"by must be one of {', '.join(RULES)}; got {by!r}")
        if shrinkage is not None and by != "lda":
            raise InputError(f"shrinkage is for by='lda'; got by={by!r}")
        if not configuration.targets.one_hot:
            raise ConfigurationError(f"means need a class for each sample, and {configuration.targets} has none")
        if not statistics.counts:
            raise NotLearnedError("the model holds no samples, so it has no means")
        self.configuration, self.n_features, self.by = configuration, n_features, by
        self._read, self._hardware, self._names = read, statistics.hardware, statistics.classes
        self._counts = [statistics.counts[name] for name in self._names]
        sums = np.ascontiguousarray(statistics.cross().T)  # (C, d)
        self._spread = None if by != "lda" else _Spread(configuration, statistics, sums, self._counts, shrinkage)
        images = sums if self._spread is None else self._spread.solution.weights.T  # u_k, (C, d)
        self._products = GridWeights(np.ascontiguousarray(images.T), self._hardware)
        self._sizes = [sum(map(mul, s.tolist(), u.tolist())) for s, u in zip(sums, images, strict=True)]  # s_k.u_k
        self._sums = sums
        self.classes_ = as_array([from_text(name) for name in self._names])
        self.counts = np.array(self._counts, np.int64)
        for array in (self.classes_, self.counts, self._sums):
            array.flags.writeable = False

    def __repr__(self) -> str:
        return f"<ClassMeans by {self.by!r}: {sum(self._counts)} samples of {len(self._counts)} classes>"

    def predict(self, samples: Any) -> np.ndarray:
        """Return the class of the nearest mean for each sample, the first in class order among equals."""
        labels: np.ndarray = self.classes_[self._placed(self._read(samples))]
        return labels

    def score(self, samples: Any, labels: Any) -> float:
        """Return the share of correct predictions."""
        return share_right(self._placed(self._read(samples)), self._names, labels)

    def novelty(self, samples: Any) -> np.ndarray:
        """Return how far each sample is from the nearest mean, float64 of shape (n,): large for "none of these".

        By ``"mean"`` it is the squared distance, by ``"cosine"`` one less the cosine, and by ``"lda"`` the squared
        Mahalanobis distance, on average at most d over the learned samples. The bits are the same on every machine.

        Which value is too far is for you to say. Choose it on a base set: a limit that was fitted on samples would
        still know of them after they are forgotten.
        """
        return by_parts(self._new, self._read(samples), _COLUMNS)

    def digest(self) -> str:
        """Return the SHA-256, in hex, of what predictions and `novelty` follow from."""
        words = self.by.encode()
        head = struct.pack("<QQQQ", len(words), self.n_features, *self._sums.shape[::-1])
        hasher = hashlib.sha256(b"neverseen:means:1" + self.configuration.digest() + head + words)
        for name, count, row in zip(self._names, self._counts, self._sums, strict=True):
            hasher.update(struct.pack("<Q", len(name)) + name.encode() + struct.pack("<Q", count))
            hasher.update(row.astype("<i8").tobytes())
        if self._spread is not None:
            hasher.update(struct.pack("<Q", self._spread.gamma))
            hasher.update(pack_triangle(self._hardware.numpy(self._spread.gram)).astype("<i8").tobytes())
        return hasher.hexdigest()

    # -- inside ------------------------------------------------------------------------------------

    def _placed(self, quantised: np.ndarray) -> np.ndarray:
        """Return the position of the nearest mean of each sample."""
        rows = max(1, _PART // max(self._sums.shape))
        return by_parts(lambda part: self._leading(self._products.scores(self._codes(part))), quantised, rows)

    def _codes(self, quantised: np.ndarray) -> Array:
        if quantised.ndim != 2 or quantised.shape[1] != self.n_features:
            raise InputError(f"samples must have {self.n_features} features; got an array of shape {quantised.shape}")
        return self.configuration.encoder.expand(quantised, self._hardware)

    def _leading(self, products: np.ndarray) -> np.ndarray:
        """Return the position of the greatest score in each row, given ``c.u_k``, (n, C).

        A score is estimated in a dozen operations, each right to 2**-53 of the magnitudes that it adds up. So an
        estimate is off by less than 2**-50 of these, and only rows where that leaves a choice are compared exactly.
        """
        counts = np.array(self._counts, np.float64)
        if self.by == "cosine":
            roots = np.sqrt([float(max(1, size)) for size in self._sizes])
            estimates = products / roots
            errors = np.abs(estimates) * _ROUNDING
        else:
            offsets = np.array([size / (n * n) for size, n in zip(self._sizes, self._counts, strict=True)])
            slopes = 2.0 * products / counts
            estimates, errors = slopes - offsets, (np.abs(slopes) + np.abs(offsets)) * _ROUNDING
        possible = estimates + errors >= (estimates - errors).max(axis=1, keepdims=True)
        leading: np.ndarray = possible.argmax(axis=1)
        for row in np.flatnonzero(possible.sum(axis=1) > 1):
            among = np.flatnonzero(possible[row]).tolist()
            scores = [self._exactly(int(products[row, place]), place) for place in among]
            leading[row] = among[scores.index(max(scores))]
        return leading

    def _exactly(self, product: int, place: int) -> Fraction:
        """Return the score of a class; by cosine, its square with its sign, less the length of the sample."""
        size, count = self._sizes[place], self._counts[place]
        if self.by == "cosine":
            return Fraction(product * abs(product), max(1, size))
        return Fraction(2 * count * product - size, count * count)

    def _new(self, quantised: np.ndarray) -> np.ndarray:
        codes = self._codes(quantised)
        products = self._products.scores(codes)
        leading = self._leading(products)
        values = np.empty(len(leading))
        own = self._own(codes)
        for row, place in enumerate(leading.tolist()):
            product = int(products[row, place])
            if self.by == "cosine":
                length = math.sqrt(float(own[row] * self._sizes[place]))
                values[row] = max(0.0, 1.0 - product / length) if length else 1.0
                continue
            scale = 1 if self._spread is None else Fraction(sum(self._counts), 2**self.configuration.grid_bits)
            distance = scale * (own[row] - self._exactly(product, place))
            values[row] = max(0.0, distance.numerator / distance.denominator)  # of integers: rounded once
        return values

    def _own(self, codes: Array) -> list[int]:
        """Return ``c.c`` of each sample, or ``c.u`` for the rounded solution of ``A_w u = 2**p c``."""
        rows = self._hardware.numpy(codes).astype(np.int64)  # (n, d)
        if self._spread is None:
            own: list[int] = (rows * rows).sum(axis=1).tolist()
            return own
        images = self._spread.solved(self._hardware.int64(codes).T).T  # (n, d), below 2**61
        # In two halves, of 31 bits each: 127 * 2**31 * 2**20 codes is below 2**62.
        high, low = images >> 31, images & (2**31 - 1)
        pairs = zip((rows * high).sum(axis=1).tolist(), (rows * low).sum(axis=1).tolist(), strict=True)
        return [(upper << 31) + lower for upper, lower in pairs]


class _Spread:
    """The scatter of the codes about the means of their classes, and the solution for these.

    Attributes
    ----------
    gram : int64 array of shape (d, d)
        G_w.
    gamma : int
        gamma_w.
    """

    def __init__(
        self,
        configuration: Configuration,
        statistics: Statistics,
        sums: np.ndarray,
        counts: list[int],
        shrinkage: float | None,
    ) -> None:
        self._hardware, self._grid_bits = statistics.hardware, configuration.grid_bits
        numbers = np.array(counts, np.int64)[:, None]
        centres = _rounded_quotients(sums, numbers)  # q_k, (C, d)
        # S'Q + Q'S - Q'nQ is the mean of H = Q'(2 S - n Q) and its transpose. Each entry of it is below
        # 127 * 128 n <= 2**62, because S - n Q is at most n / 2.
        block = self._hardware.array(2 * sums - numbers * centres)
        left = self._hardware.contiguous(self._hardware.int8(self._hardware.array(centres)).T)
        product = wide_matmul(left, block, self._hardware)  # (d, C) @ (C, d)
        self.gram = statistics.gram - ((product + product.T) >> 1)
        trace = sum(self._hardware.numpy(self.gram.diagonal()).tolist())
        if shrinkage is None:
            self.gamma = strength(statistics, configuration).gamma
        else:
            self.gamma = _ridge(trace, statistics.size, shrinkage)
        right = self._hardware.contiguous(self._hardware.array(sums).T)
        self.solution: Solution = solve(self.gram, right, self.gamma, self._grid_bits, hardware=self._hardware)

    def solved(self, right: Array) -> np.ndarray:
        """Return ``round(2**p A_w**-1 right)``."""
        hint = self.solution.preconditioner
        block = self._hardware.contiguous(right)
        return solve(self.gram, block, self.gamma, self._grid_bits, hint, self._hardware).weights


def _rounded_quotients(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return integers divided by positive ones, rounded to nearest, ties to even."""
    whole, rest = np.divmod(values, counts)
    up = (2 * rest > counts) | ((2 * rest == counts) & (whole % 2 == 1))
    rounded: np.ndarray = whole + up
    return rounded


def _ridge(trace: int, size: int, shrinkage: float) -> int:
    """Return the ridge that makes up a share of the covariance: ``s / (1 - s)`` of the mean of the diagonal."""
    if isinstance(shrinkage, bool) or not isinstance(shrinkage, float) or not 0 < shrinkage < 1:
        raise InputError(f"shrinkage must be a number between 0 and 1, or None; got {shrinkage!r}")
    share = Fraction(shrinkage)
    return max(1, round(share / (1 - share) * trace / size))


def class_means(
    model: ExactModel, read: Callable[[Any], np.ndarray], by: str, shrinkage: float | None = None
) -> ClassMeans:
    """Return the means of a model as it is now."""
    with model.locked():
        return ClassMeans(model.configuration, model.n_features, model.statistics, read, by, shrinkage)
