"""What stands between the features and the linear head: fixed random projections and Gaussian kernels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Embedding = Callable[[np.ndarray], np.ndarray]


def identity(features: np.ndarray) -> np.ndarray:
    """Return the features as float64."""
    return np.asarray(features, dtype=np.float64)


def relu(rows: np.ndarray) -> np.ndarray:
    """Return the positive part."""
    positive: np.ndarray = np.maximum(rows, 0.0)
    return positive


def sigmoid(rows: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + e^-x), without overflow."""
    shares: np.ndarray = 0.5 * (1.0 + np.tanh(0.5 * rows))
    return shares


class Projection:
    """A random linear map without bias, then an activation.

    ``uniform`` draws from [-1/sqrt(width), 1/sqrt(width)], as PyTorch starts a linear layer: so does the public code of
    ACIL, GACL, TS-ACL, DS-AL, AIR, L3A, CFSSeg and F-OAL. ``normal`` draws from N(0, 1), as RanPAC does (and as the
    papers of ACIL and GACL say, of no given variance). With the same seed, two activations share one map (DS-AL).

    Parameters
    ----------
    width, size : int
        Numbers of features and of codes.
    """

    def __init__(
        self, width: int, size: int, activation: Embedding = relu, *, normal: bool = False, seed: int = 0
    ) -> None:
        drawn = np.random.default_rng(seed)
        bound = width**-0.5
        self.activation = activation
        self.matrix = (
            drawn.standard_normal((width, size)) if normal else drawn.uniform(-bound, bound, (width, size))
        )  # (features, codes)

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """Return codes (..., size) of features (..., width)."""
        return self.activation(np.asarray(features, dtype=np.float64) @ self.matrix)


class Kernel:
    """Gaussian kernels around fixed centres: ``exp(-|x - c|^2 / (2 sigma^2))``."""

    def __init__(self, centres: np.ndarray, sigma: float) -> None:
        self.centres = np.asarray(centres, dtype=np.float64)  # (size, features)
        self.sigma = sigma

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """Return one value per centre."""
        rows = np.asarray(features, dtype=np.float64)
        squares = (rows**2).sum(axis=-1)[..., None] - 2 * rows @ self.centres.T + (self.centres**2).sum(axis=1)
        values: np.ndarray = np.exp(-np.maximum(squares, 0.0) / (2 * self.sigma**2))
        return values
