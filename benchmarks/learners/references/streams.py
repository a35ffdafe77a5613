"""Learners of two streams: the second fits what the first leaves over."""

from __future__ import annotations

import numpy as np

from benchmarks.learners.references.embeddings import Embedding
from benchmarks.learners.references.learner import Learner, NothingLearnedError, State, ridge_solution, widened
from benchmarks.learners.references.recursive import updated


class DSAL(Learner):
    """DS-AL: a main stream, a compensation stream with the residuals of the phase's new classes, and their sum.

    Each stream is the recursion of (R, W). Main: codes X, targets Y. Compensation: codes Z, targets ``Y - X W`` after
    the main update, columns of earlier classes set to 0. Scores: ``X W + ratio Z V``. X is the ReLU and Z the tanh of
    one projection. Defaults: 8192 codes, gamma 0.1 for both, ratio 0.6 on CIFAR-100 and 1.5 on ImageNet-1k.

    Paper: arXiv:2403.17503. Read: ZHUANGHP/Analytic-continual-learning, ``analytic/DSAL.py``. Deviations: one update a
    phase (the paper); the code updates in batches, so there a residual depends on the order of batches too. Either way
    the targets of the second stream depend on history: it is no function of the samples alone.
    """

    def __init__(
        self,
        main: Embedding,
        compensation: Embedding,
        gamma: float = 0.1,
        gamma_compensation: float = 0.1,
        ratio: float = 0.6,
    ) -> None:
        super().__init__(main)
        self.compensate, self.ratio = compensation, ratio
        self.gamma, self.gamma_compensation = gamma, gamma_compensation
        self.streams: tuple[State, State] | None = None

    def learn(self, features: np.ndarray, labels: np.ndarray) -> None:
        """Learn one phase."""
        known, X, Z = len(self.classes), self.embed(features), self.compensate(features)
        Y = self.targets(labels)
        begun = [
            (np.eye(codes.shape[1]) / g, np.zeros((codes.shape[1], 0)))
            for codes, g in ((X, self.gamma), (Z, self.gamma_compensation))
        ]
        main, compensation = self.streams or begun
        main = stepped(main, X, Y)
        residual = Y - X @ main[1]
        residual[:, :known] = 0
        self.streams = main, stepped(compensation, Z, residual)

    def scores(self, features: np.ndarray) -> np.ndarray:
        """Return the fused scores."""
        (_, W), (_, V) = self.state()
        scores: np.ndarray = self.embed(features) @ W + self.ratio * self.compensate(features) @ V
        return scores

    def state(self) -> tuple[State, State]:
        """Return (R, W) of the main stream and of the compensation stream."""
        if self.streams is None:
            raise NothingLearnedError
        return self.streams


def stepped(stream: State, X: np.ndarray, T: np.ndarray) -> State:
    """Return (R, W) of a stream after rows X with targets T."""
    R, W = updated(stream[0], X), widened(stream[1], X.shape[1], T.shape[1])
    return R, W + R @ X.T @ (T - X @ W)


class FinalResidual(Learner):
    """Two streams without history: the second fits the residuals of the final main weights, on all samples.

    ``W = (G_mm + gamma I)^-1 B_m`` and ``V = (G_cc + gamma_c I)^-1 (B_c - G_cm W)``, from five sums. Not published: it
    is DS-AL without the cleansing of earlier labels, made a function of the samples alone. Defaults as DS-AL.
    """

    def __init__(
        self,
        main: Embedding,
        compensation: Embedding,
        gamma: float = 0.1,
        gamma_compensation: float = 0.1,
        ratio: float = 0.6,
    ) -> None:
        super().__init__(main)
        self.compensate, self.ratio = compensation, ratio
        self.gamma, self.gamma_compensation = gamma, gamma_compensation
        self.gram: np.ndarray | None = None  # of the codes of both streams, side by side
        self.cross: np.ndarray | None = None
        self.solved: State | None = None  # the weights of both streams

    def learn(self, features: np.ndarray, labels: np.ndarray) -> None:
        """Add one phase to the sums."""
        both, Y = np.hstack([self.embed(features), self.compensate(features)]), self.targets(labels)
        self.gram = both.T @ both + (0 if self.gram is None else self.gram)
        self.cross = both.T @ Y + widened(self.cross, both.shape[1], Y.shape[1])
        self.solved = None

    def scores(self, features: np.ndarray) -> np.ndarray:
        """Return the fused scores."""
        X, Z = self.embed(features), self.compensate(features)
        if self.gram is None or self.cross is None:
            raise NothingLearnedError
        if self.solved is None:
            d, G, B = X.shape[1], self.gram, self.cross
            W = ridge_solution(G[:d, :d], B[:d], self.gamma)
            V = ridge_solution(G[d:, d:], B[d:] - G[d:, :d] @ W, self.gamma_compensation)
            self.solved = W, V
        scores: np.ndarray = X @ self.solved[0] + self.ratio * Z @ self.solved[1]
        return scores
