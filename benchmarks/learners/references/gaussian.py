"""Classifiers and a novelty score from the mean of each class and one covariance for all."""

from __future__ import annotations

import numpy as np

from benchmarks.learners.references.embeddings import Embedding, identity
from benchmarks.learners.references.learner import Learner, NothingLearnedError, widened


class NearestMean(Learner):
    """The class of the nearest mean: by squared distance, or by cosine.

    By cosine it is SimpleCIL (arXiv:2303.07338) and the NCM rows of RanPAC's tables. Read: RanPAC/RanPAC, ``RanPAC.py``
    (``replace_fc``, the branch without a projection). Deviations: classes may come again (sums and counts).
    """

    def __init__(self, embed: Embedding = identity, *, cosine: bool = False) -> None:
        super().__init__(embed)
        self.cosine = cosine
        self.counts = np.zeros(0)
        self.sums: np.ndarray | None = None  # (d, C)

    def learn(self, features: np.ndarray, labels: np.ndarray) -> None:
        """Add one phase to the sums of its classes."""
        X, Y = self.embed(features), self.targets(labels)
        self.counts = np.pad(self.counts, (0, Y.shape[1] - len(self.counts))) + Y.sum(axis=0)
        self.sums = X.T @ Y + widened(self.sums, X.shape[1], Y.shape[1])

    def scores(self, features: np.ndarray) -> np.ndarray:
        """Return the cosine with each mean, or minus the squared distance to it."""
        X, means = self.embed(features), self.means
        if self.cosine:
            scores: np.ndarray = (X / np.linalg.norm(X, axis=1, keepdims=True)) @ (
                means / np.linalg.norm(means, axis=1, keepdims=True)
            ).T
            return scores
        return -_squares(X, means, np.eye(X.shape[1]))

    @property
    def means(self) -> np.ndarray:
        """The means (C, d)."""
        if self.sums is None:
            raise NothingLearnedError
        means: np.ndarray = (self.sums / self.counts).T
        return means


class LDA(NearestMean):
    """Linear discriminants: one shrunk covariance for all classes.

    ``S = (sum x'x - sum n_c m_c'm_c) / n``, shrunk to ``(1 - s) S + s t I``; the score of class c is
    ``x S^-1 m_c' - m_c S^-1 m_c' / 2 + log(n_c / n)``. With ``scaled``, t is the mean variance tr(S) / d and it is
    scikit-learn's ``LinearDiscriminantAnalysis(solver="lsqr", shrinkage=s)``; without it t is 1, and without ``priors``
    it is Deep SLDA, whose default is s = 0.0001.

    Paper: arXiv:1909.01520. Read: tyler-hayes/Deep_SLDA, ``SLDA_Model.py``. Deviations: S from sums, so exact and of
    any order; the code starts it from a matrix of ones, streams it sample by sample, and counts a class's first sample
    against a mean of 0.
    """

    def __init__(
        self, embed: Embedding = identity, shrinkage: float = 1e-4, *, scaled: bool = True, priors: bool = True
    ) -> None:
        super().__init__(embed)
        self.shrinkage, self.scaled, self.priors = shrinkage, scaled, priors
        self.gram: np.ndarray | None = None

    def learn(self, features: np.ndarray, labels: np.ndarray) -> None:
        """Add one phase to the sums."""
        X = self.embed(features)
        self.gram = X.T @ X + (0 if self.gram is None else self.gram)
        super().learn(features, labels)

    def scores(self, features: np.ndarray) -> np.ndarray:
        """Return the discriminants."""
        means = self.means
        W = np.linalg.solve(self.covariance(), means.T)  # (d, C)
        bias = -0.5 * (means.T * W).sum(axis=0)
        scores: np.ndarray = self.embed(features) @ W + bias
        return scores + np.log(self.counts / self.counts.sum()) if self.priors else scores

    def covariance(self) -> np.ndarray:
        """Return the shrunk covariance within classes."""
        if self.gram is None:
            raise NothingLearnedError
        within = (self.gram - (self.means.T * self.counts) @ self.means) / self.counts.sum()
        return self.shrunk(within)

    def shrunk(self, covariance: np.ndarray) -> np.ndarray:
        """Return a covariance drawn towards a multiple of one."""
        target = np.trace(covariance) / len(covariance) if self.scaled else 1.0
        drawn: np.ndarray = (1 - self.shrinkage) * covariance + self.shrinkage * target * np.eye(len(covariance))
        return drawn


class Mahalanobis(LDA):
    """A score for "none of these": the least Mahalanobis distance to a class mean. Large is new.

    ``min_c (x - m_c) S^-1 (x - m_c)'`` with the covariance of `LDA`; ``relative`` subtracts the distance to the mean of
    all samples under their own covariance.

    Papers: arXiv:1807.03888 (score, on the last layer), arXiv:2106.09022 (relative). Textbook formulas; no code was
    read. Deviations: one layer, no input noise; S is shrunk.
    """

    def __init__(self, embed: Embedding = identity, shrinkage: float = 1e-4, *, relative: bool = False) -> None:
        super().__init__(embed, shrinkage)
        self.relative = relative

    def scores(self, features: np.ndarray) -> np.ndarray:
        """Return minus the squared distance to each mean."""
        negative: np.ndarray = -_squares(self.embed(features), self.means, self.covariance())
        return negative

    def novelty(self, features: np.ndarray) -> np.ndarray:
        """Return one score per sample."""
        least: np.ndarray = _squares(self.embed(features), self.means, self.covariance()).min(axis=1)
        if not self.relative or self.gram is None or self.sums is None:
            return least
        n = self.counts.sum()
        centre = self.sums.sum(axis=1)[None] / n
        overall = self.gram / n - centre.T @ centre
        least -= _squares(self.embed(features), centre, self.shrunk(overall))[:, 0]
        return least


def _squares(X: np.ndarray, means: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    whitening = np.linalg.inv(np.linalg.cholesky(covariance)).T
    rows, centres = (X - means.mean(axis=0)) @ whitening, (means - means.mean(axis=0)) @ whitening
    squares: np.ndarray = (rows**2).sum(axis=1)[:, None] - 2 * rows @ centres.T + (centres**2).sum(axis=1)
    return squares
