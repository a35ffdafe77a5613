"""Learners that carry sums from phase to phase, and solve them when asked."""

from __future__ import annotations

import numpy as np

from benchmarks.learners.references.embeddings import Embedding, identity, sigmoid
from benchmarks.learners.references.learner import NothingLearnedError, State, Summed, Weighted, ridge_solution, widened

RIDGES = 10.0 ** np.arange(-8, 9)


class Ridge:
    """Ridge regression with one or several outputs: ``W = (X'X + gamma I)^-1 X'T``. Textbook; no intercept."""

    def __init__(self, embed: Embedding = identity, gamma: float = 1.0) -> None:
        self.embed, self.gamma = embed, gamma
        self.gram: np.ndarray | None = None
        self.cross: np.ndarray | None = None
        self.solved: State | None = None

    def learn(self, features: np.ndarray, targets: np.ndarray) -> None:
        """Add a phase with targets (n, outputs)."""
        X = self.embed(features)
        self.gram = X.T @ X + (0 if self.gram is None else self.gram)
        self.cross = X.T @ targets + (0 if self.cross is None else self.cross)
        self.solved = None

    def predict(self, features: np.ndarray) -> np.ndarray:
        """Return the outputs."""
        outputs: np.ndarray = self.embed(features) @ self.state()[1]
        return outputs

    def state(self) -> State:
        """Return (R, W)."""
        if self.gram is None or self.cross is None:
            raise NothingLearnedError
        if self.solved is None:
            R = np.linalg.inv(self.gram + self.gamma * np.eye(len(self.gram)))
            self.solved = R, R @ self.cross
        return self.solved


class RanPAC(Weighted):
    """RanPAC, its second phase: sums of all tasks, and a ridge chosen anew on a split of each task's own samples.

    ``G += H'H``, ``Q += H'Y``; the ridge is the value of 10^-8 to 10^8 with the least mean squared error on the last
    fifth of the task when trained on the rest of it; ``W = (G + ridge I)^-1 Q``. Codes: 10,000, the ReLU of an N(0, 1)
    projection. So the choice depends on the last task and on the order of its samples.

    Paper: arXiv:2307.02251. Read: RanPAC/RanPAC, ``RanPAC.py`` (``replace_fc``, ``optimise_ridge_parameter``,
    ``setup_RP``). Deviations: float64, not float32; a seed shuffles the split (there a shuffling loader does); all
    ridges by one eigendecomposition instead of seventeen solves. A fixed ``ridge`` turns the choice off.
    """

    def __init__(self, embed: Embedding = identity, ridge: float | None = None, seed: int = 0) -> None:
        super().__init__(embed)
        self.fixed, self.drawn = ridge, np.random.default_rng(seed)
        self.ridges: list[float] = []  # one for each task
        self.G: np.ndarray | None = None
        self.Q: np.ndarray | None = None
        self.W: np.ndarray | None = None

    def learn(self, features: np.ndarray, labels: np.ndarray) -> None:
        """Learn one task."""
        H, Y = self.embed(features), self.targets(labels)
        self.G = H.T @ H + (0 if self.G is None else self.G)
        self.Q = H.T @ Y + widened(self.Q, H.shape[1], Y.shape[1])
        order = self.drawn.permutation(len(H))
        self.ridges.append(chosen_ridge(H[order], Y[order]) if self.fixed is None else self.fixed)
        self.W = ridge_solution(self.G, self.Q, self.ridges[-1])

    @property
    def weights(self) -> np.ndarray:
        """The weights W (d, C)."""
        if self.W is None:
            raise NothingLearnedError
        return self.W

    def state(self) -> State:
        """Return (R, W)."""
        if self.G is None:
            raise NothingLearnedError
        return np.linalg.inv(self.G + self.ridges[-1] * np.eye(len(self.G))), self.weights


def chosen_ridge(H: np.ndarray, Y: np.ndarray) -> float:
    """Return the ridge of `RIDGES` with the least squared error on the last fifth, trained on the first four."""
    split = int(len(H) * 0.8)
    first, last = H[:split], H[split:]
    values, vectors = np.linalg.eigh(first @ first.T if split < H.shape[1] else first.T @ first)
    values = np.maximum(values, 0.0)
    left = last @ first.T @ vectors if split < H.shape[1] else last @ vectors
    right = vectors.T @ (Y[:split] if split < H.shape[1] else first.T @ Y[:split])
    losses = [np.mean((left / (values + ridge) @ right - Y[split:]) ** 2) for ridge in RIDGES]
    return float(RIDGES[int(np.argmin(losses))])


class AFL(Weighted):
    """AFL: each client's ridge solution, joined one after the other by the absolute aggregation law; then no ridge.

    A client: ``C_u = X'X + gamma I``, ``R_u = C_u^-1``, ``W_u = R_u X'Y``. With client v:
    ``W = (I - R_u C_v + R_u C_v (C_u + C_v)^-1 C_v) W_u + (I - R_v C_u + R_v C_u (C_u + C_v)^-1 C_u) W_v``,
    ``C = C_u + C_v``. At the end the K ridges go: ``W + K gamma (C - K gamma I)^-1 W``. Defaults: features as they are,
    gamma 1, clean.

    Paper: arXiv:2405.16240. Read: ZHUANGHP/Analytic-federated-learning, ``afl.py``, ``run.sh``. Deviations: classes
    that a client lacks become zero columns (there all are known in advance); one client can be asked too.
    """

    def __init__(self, embed: Embedding = identity, gamma: float = 1.0, *, clean: bool = True) -> None:
        super().__init__(embed)
        self.gamma, self.clean, self.clients = gamma, clean, 0
        self.C: np.ndarray | None = None  # (d, d)
        self.W: np.ndarray | None = None  # (d, C)

    def learn(self, features: np.ndarray, labels: np.ndarray) -> None:
        """Train one client, and join it."""
        X, Y = self.embed(features), self.targets(labels)
        one = np.eye(X.shape[1])
        C = X.T @ X + self.gamma * one
        R = np.linalg.inv(C)
        W = R @ X.T @ Y
        self.clients += 1
        if self.C is None or self.W is None:
            self.C, self.W = C, W
            return
        Ru, Cu, Wu = np.linalg.inv(self.C), self.C, widened(self.W, len(C), W.shape[1])
        both = np.linalg.inv(Cu + C)
        self.W = (one - Ru @ C + Ru @ C @ both @ C) @ Wu + (one - R @ Cu + R @ Cu @ both @ Cu) @ W
        self.C = Cu + C

    @property
    def weights(self) -> np.ndarray:
        """The weights W (d, C), without the clients' ridges if they are to be cleaned."""
        if self.C is None or self.W is None:
            raise NothingLearnedError
        ridges = self.clients * self.gamma
        return self.W + ridges * ridge_solution(self.C, self.W, -ridges) if self.clean else self.W

    def state(self) -> State:
        """Return the aggregate (R, W), ridges included."""
        if self.C is None or self.W is None:
            raise NothingLearnedError
        return np.linalg.inv(self.C), self.W


class AIR(Summed):
    """AIR, also G-AIR: every class weighs the same, whatever its number of samples.

    Kept per class c: ``A_c = sum x'x``, ``b_c = sum x'``, ``n_c``. With ``w_c = 1 / n_c``, scaled so that they add up
    to the number of classes: ``W = (sum w_c A_c + gamma I)^-1 [w_1 b_1, w_2 b_2, ...]``. Defaults: 8192 codes, gamma
    0.1.

    Paper: arXiv:2408.10349. Read: ZHUANGHP/Analytic-continual-learning, ``GeneralizedARM`` in
    ``analytic/AnalyticLinear.py``, ``analytic/AIR.py``; fang-d/AIR points there. Deviations: none. The copies in TS-ACL
    and CFSSeg leave the scale out (``scaled=False``).
    """

    def __init__(self, embed: Embedding = identity, gamma: float = 0.1, *, scaled: bool = True) -> None:
        super().__init__(embed)
        self.gamma, self.scaled = gamma, scaled
        self.A: list[np.ndarray] = []  # (d, d) each
        self.b: list[np.ndarray] = []  # (d,) each
        self.counts: list[int] = []

    def learn(self, features: np.ndarray, labels: np.ndarray) -> None:
        """Add one phase to the sums of its classes."""
        X, Y = self.embed(features), self.targets(labels).astype(bool)
        self.solved = None
        for column, members in enumerate(Y.T):
            rows = X[members]
            if column == len(self.A):
                self.A.append(np.zeros((X.shape[1], X.shape[1])))
                self.b.append(np.zeros(X.shape[1]))
                self.counts.append(0)
            self.A[column] += rows.T @ rows
            self.b[column] += rows.sum(axis=0)
            self.counts[column] += len(rows)

    def solution(self) -> State:
        """Return (R, W) of the weighted sums."""
        if not self.counts:
            raise NothingLearnedError
        shares = 1.0 / np.array(self.counts)
        if self.scaled:
            shares *= len(shares) / shares.sum()
        gram = sum(share * A for share, A in zip(shares, self.A, strict=True))
        R = np.linalg.inv(gram + self.gamma * np.eye(len(self.b[0])))
        return R, R @ (np.array(self.b) * shares[:, None]).T


class L3A(Summed):
    """L3A: several labels a sample. Pseudo labels for earlier classes, then a weighted analytic classifier (WAC).

    Targets (n, C) are 0 and 1, with columns for all classes so far; those of earlier classes are unknown (0) in a new
    phase. (1) Counts n_c add the labels given. (2) PL: an earlier class gets a 1 where the sigmoid of the model's score
    is above ``pseudo``. (3) WAC: ``w_c = C n_c^-0.5 / sum n^-0.5`` (0 for n_c = 0), a sample weighs the mean w_c of its
    labels, ``A += X' Omega X``, ``B += X' Omega Y``, ``W = (A + gamma I)^-1 B``. Defaults: 4096 codes on COCO, 8192 on
    VOC, the ReLU of a projection; gamma 1000 (1 with ViT); pseudo 0.7; predictions at 0.525 of the sigmoid.

    Paper: arXiv:2506.00816. Read: scut-zx/L3A, ``MultiLabelIncremental_L3A.py`` (``weight_cls_align``,
    ``weight_IL_align``), ``normalize_sqrt`` in ``src/helper_functions/helper_functions.py``, ``configs``. Deviations:
    float64 sums (there float32); a sample without labels weighs 0 (there it divides by 0). A sample keeps the weight
    that the counts of its own phase gave it: the sums depend on the order of phases, also without pseudo labels.
    """

    def __init__(self, embed: Embedding = identity, gamma: float = 1000.0, pseudo: float | None = 0.7) -> None:
        super().__init__(embed)
        self.gamma, self.pseudo, self.threshold = gamma, pseudo, 0.525
        self.counts = np.zeros(0)
        self.A: np.ndarray | None = None
        self.B: np.ndarray | None = None

    def learn(self, features: np.ndarray, labels: np.ndarray) -> None:
        """Learn one phase of multi-hot targets (n, C)."""
        X, Y, known = self.embed(features), np.array(labels, dtype=np.float64), len(self.counts)
        self.counts = np.pad(self.counts, (0, Y.shape[1] - known)) + Y.sum(axis=0)
        if self.pseudo is not None and known:
            Y[:, :known][sigmoid(self.scores(features)) > self.pseudo] = 1.0
        shares = np.where(self.counts > 0, np.maximum(self.counts, 1) ** -0.5, 0.0)
        shares *= len(shares) / shares.sum()
        weighted = (Y @ shares / np.maximum(Y.sum(axis=1), 1))[:, None] * X  # Omega X
        self.A = weighted.T @ X + (0 if self.A is None else self.A)
        self.B = weighted.T @ Y + widened(self.B, X.shape[1], Y.shape[1])
        self.solved = None

    def predict(self, features: np.ndarray) -> np.ndarray:
        """Return which labels each sample has."""
        return sigmoid(self.scores(features)) > self.threshold

    def solution(self) -> State:
        """Return (R, W) of the weighted sums."""
        if self.A is None or self.B is None:
            raise NothingLearnedError
        R = np.linalg.inv(self.A + self.gamma * np.eye(len(self.A)))
        return R, R @ self.B
