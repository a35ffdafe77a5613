"""Learners that carry (R, W) from phase to phase: recursive least squares with the inverse Gram matrix R."""

from __future__ import annotations

import numpy as np

from benchmarks.learners.references.embeddings import Embedding, Kernel, identity
from benchmarks.learners.references.learner import NothingLearnedError, State, Weighted, widened


def updated(R: np.ndarray, X: np.ndarray, rows: int = 1024) -> np.ndarray:
    """Return R after rows X, some at a time: ``R - R X' (I + X R X')^-1 X R``."""
    for start in range(0, len(X), rows):
        part = X[start : start + rows]
        R = R - R @ part.T @ np.linalg.solve(np.eye(len(part)) + part @ R @ part.T, part @ R)
    return R


class Recursive(Weighted):
    """Recursive least squares in mini-batches, classes in any order: what the public code shares among its methods.

    ``R <- R - R X' (I + X R X')^-1 X R``, then ``W <- W + R X' (Y - X W)``, from ``R = I / gamma`` and ``W = 0``.

    Read: ZHUANGHP/Analytic-continual-learning, ``analytic/AnalyticLinear.py``, ``RecursiveLinear``. Deviations: a
    linear solve for the inverse of I + X R X'; columns in the order of appearance.
    """

    def __init__(self, embed: Embedding = identity, gamma: float = 0.1, batch: int = 1024) -> None:
        super().__init__(embed)
        self.gamma, self.batch = gamma, batch
        self.R: np.ndarray | None = None  # (d, d)
        self.W: np.ndarray | None = None  # (d, C)

    def learn(self, features: np.ndarray, labels: np.ndarray) -> None:
        """Learn one phase, in mini-batches in the order given."""
        X, Y = self.embed(features), self.targets(labels)
        R, W = self.begun(X.shape[1])
        for start in range(0, len(X), self.batch):
            x, y = X[start : start + self.batch], Y[start : start + self.batch]
            R = updated(R, x, len(x))
            W = W + R @ x.T @ (y - x @ W)
        self.R, self.W = R, W

    def begun(self, width: int) -> State:
        """Return R, and W with a column for each class."""
        R = np.eye(width) / self.gamma if self.R is None else self.R
        return R, widened(self.W, width, len(self.classes))

    @property
    def weights(self) -> np.ndarray:
        """The weights W (d, C)."""
        return self.state()[1]

    def state(self) -> State:
        """Return (R, W)."""
        if self.R is None or self.W is None:
            raise NothingLearnedError
        return self.R, self.W


class ACIL(Recursive):
    """ACIL as its paper writes it: each class in one phase only.

    The first phase: ``R = (X'X + gamma I)^-1``, ``W = R X'Y`` (equations 4, 8). Then R by Woodbury (10), and
    ``W <- [W - R X'X W, R X'Y]`` with columns for the new classes (9). Defaults of the code: 8192 codes of a ReLU
    projection, gamma 0.1.

    Paper: arXiv:2205.14922. Read: ZHUANGHP/Analytic-continual-learning, ``analytic/ACIL.py``, ``analytic/Buffer.py``.
    Deviations: the public code runs G-ACIL's mini-batches for ACIL too (`Recursive`); here the equations of the paper.
    """

    def learn(self, features: np.ndarray, labels: np.ndarray) -> None:
        """Learn one phase of new classes."""
        X, known = self.embed(features), len(self.classes)
        if np.isin(labels, self.classes).any():
            raise ValueError("ACIL takes each class in one phase only; use GACL for classes that come again")
        Y = self.targets(labels)[:, known:]
        if self.R is None or self.W is None:
            self.R = np.linalg.inv(X.T @ X + self.gamma * np.eye(X.shape[1]))
            self.W = self.R @ X.T @ Y
            return
        self.R = updated(self.R, X)
        self.W = np.hstack([self.W - self.R @ X.T @ (X @ self.W), self.R @ X.T @ Y])


class GACL(Recursive):
    """GACL, also called G-ACIL: classes may come again, and bring their label gain.

    With the labels split into exposed (seen before, ``Ybar``) and unexposed (``Ytilde``), after R by Woodbury (9):
    ``W <- [W - R X'X W, R X' Ytilde] + [R X' Ybar, 0]`` (equations 10 to 12). Defaults: 5000 codes, gamma 100 (paper
    and ``scripts/gacl.sh``); gamma 0.1 with 8192 codes in the other repository.

    Paper: arXiv:2403.15706. Read: CHEN-YIZHU/GACL, ``methods/GACL.py``; ZHUANGHP/Analytic-continual-learning,
    ``analytic/AnalyticLinear.py``. Deviations: one update a phase instead of batches of 64, each learned three times by
    ``online_iter=3`` in that script, which triples the Gram matrix against gamma.
    """

    def learn(self, features: np.ndarray, labels: np.ndarray) -> None:
        """Learn one phase."""
        X, exposed = self.embed(features), len(self.classes)
        Y = self.targets(labels)
        R, W = self.begun(X.shape[1])
        R = updated(R, X)
        unexposed = np.hstack([(W - R @ X.T @ (X @ W))[:, :exposed], R @ X.T @ Y[:, exposed:]])
        gain = widened(R @ X.T @ Y[:, :exposed], len(R), len(self.classes))
        self.R, self.W = R, unexposed + gain


class TSACL(Recursive):
    """TS-ACL: the recursion of ACIL on features of time series, in batches of 64, 8192 codes, gamma 1.

    Paper: arXiv:2410.15954. Read: asdasdczxczq/TS-ACL, ``agents/TSACL.py``, ``agents/utils/AnalyticLinear.py``,
    ``main_tune.py``. Deviations: takes features; the fused scales and the ensemble of projections of the paper's third
    version are not in that code and not here.
    """

    def __init__(self, embed: Embedding = identity, gamma: float = 1.0, batch: int = 64) -> None:
        super().__init__(embed, gamma, batch)


class FOAL(Recursive):
    """F-OAL: the recursion in batches of ten, R from I (gamma 1), on a sigmoid of a random projection to 1000 codes.

    Paper: arXiv:2403.15751. Read: liuyuchen-cz/F-OAL (the same in WhereIsYuuka/F-OAL), ``agents/FOAL.py``, ``Encoder``
    in ``models/pretrained.py``, ``general_main.py``. Deviations: takes the fused feature (the mean of the class tokens
    of all ViT blocks, then the last layer norm); the code drops the last incomplete batch of a task, uses a
    pseudo-inverse, and has columns for all classes from the start.
    """

    def __init__(self, embed: Embedding = identity, gamma: float = 1.0, batch: int = 10) -> None:
        super().__init__(embed, gamma, batch)


class GKEAL(Recursive):
    """GKEAL: Gaussian kernels around centres from the first phase, then the recursion.

    Defaults of the code: ``size`` 8192 (its class: 512), sigma 10, gamma 0.1 (its class: 0.001).

    Paper: CVPR 2023, 10.1109/CVPR52729.2023.00748 (not on arXiv). Read: ZHUANGHP/Analytic-continual-learning,
    ``analytic/GKEAL.py``, ``GaussianKernel`` in ``analytic/Buffer.py``. Deviations: centres are drawn from the whole
    first phase without replacement (the code permutes its first ``size`` rows, so it takes the first ones); if there
    are fewer samples than centres, all are centres (the code adds random combinations). Like the code, no augmented
    copies (AFC).
    """

    def __init__(
        self, centres: np.ndarray | int = 512, sigma: float = 10.0, gamma: float = 0.1, batch: int = 1024, seed: int = 0
    ) -> None:
        super().__init__(identity, gamma, batch)
        self.centres, self.sigma, self.seed = centres, sigma, seed

    def learn(self, features: np.ndarray, labels: np.ndarray) -> None:
        """Learn one phase; the first one may choose the centres."""
        if isinstance(self.centres, int):
            drawn = np.random.default_rng(self.seed).permutation(len(features))[: self.centres]
            self.centres = np.asarray(features, dtype=np.float64)[np.sort(drawn)]
        if self.embed is identity:
            self.embed = Kernel(self.centres, self.sigma)
        super().learn(features, labels)


class CFSSeg(Recursive):
    """CFSSeg, also called SegACIL: every pixel is a sample; pixels of the background may take the old model's label.

    Labels are brought to the size of the feature map (nearest), pixels of the label ``ignored`` are left out, and
    ``R <- (R^-1 + X'X)^-1``, ``W <- W + R X' (Y - X W)``. With a ``confidence``, a background pixel takes the class
    that the model before the phase predicts there, if it is no background and the sigmoid of its score reaches that
    value. Defaults: 8196 codes and gamma 1 in its scripts, confidence 0.7 where used (never in the sequential setting).

    Paper: arXiv:2412.10834. Read: qwrawq/SegACIL and Ruiter578/CFSSeg, ``network/AnalyticLinear.py``,
    ``trainer/trainer.py``. Deviations: new columns start at 0, not at 0.001 N(0, 1), so it is the ridge solution;
    pseudo labels at the size of the feature map; the model before a phase gives them, for all of its batches.
    """

    background, ignored = 0, 255

    def __init__(self, embed: Embedding = identity, gamma: float = 1.0, confidence: float | None = None) -> None:
        super().__init__(embed, gamma)
        self.confidence = confidence

    def learn(self, features: np.ndarray, labels: np.ndarray) -> None:
        """Learn feature maps (n, H, W, width) with label maps (n, h, w)."""
        rows, columns = (
            np.arange(size) * old // size for size, old in zip(features.shape[1:3], labels.shape[1:], strict=True)
        )
        pixels = labels[:, rows][:, :, columns]  # (n, H, W)
        if self.confidence is not None and self.classes:
            sure = self.scores(features).max(axis=-1) >= np.log(self.confidence / (1 - self.confidence))
            pixels = np.where((pixels == self.background) & sure, self.predict(features), pixels)
        kept = pixels != self.ignored
        X, Y = self.embed(features[kept]), self.targets(pixels[kept])
        R, W = self.begun(X.shape[1])
        R = np.linalg.inv(np.linalg.inv(R) + X.T @ X)
        self.R, self.W = R, W + R @ X.T @ (Y - X @ W)
