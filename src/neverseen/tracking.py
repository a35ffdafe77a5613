"""The paper's recursion on ``(T, W)``: add forgetting to an analytic continual learner that you already have.

ACIL, RanPAC, DS-AL, GKEAL and their kin end with the Knowledge Tracking Matrix ``T = (F'F + gamma I)^-1``, often called
R, and the weights ``W = T F'Y``. For d features and C classes, T has the shape (d, d) and W the shape (d, C); gamma is
above 0. The functions take this pair, as NumPy arrays or torch tensors on any device, and return the pair after a batch
was learned or forgotten. They change no argument. Results have the kind, dtype (float32 or float64) and device of T;
other arguments are converted to it.

The formulas are the paper's. Their evaluation differs in three ways:

- ``T'F' = TF'(I -+ FTF')^-1``, so W' needs only a k x C residual, never a d x d by d x C product.
- T is symmetric by definition, and is made so after every step.
- The matrix to invert is positive definite if and only if T' exists. If it is not, or is not finite, the call raises
  ``ArithmeticError`` instead of returning noise.

**This is exact on paper only.** Each step rounds, and forgetting magnifies all earlier rounding, most when fewer
samples than features are left. Relative error of W against the exact solution, 6,000 samples learned, d = 512, gamma =
1, then forgotten 20 at a time (``python -m benchmarks.drift``):

    samples left                        4,000    1,000      600      512      300      100
    float64, closed form                1e-13    7e-13    5e-12    3e-10    1e-07    3e-06
    float64, recursion                  6e-12    7e-11    6e-10    4e-08    8e-07    6e-06
    float64, recursion, as written      3e-11    3e-10    3e-09    2e-07    1e-03    9e-02
    float32, closed form                6e-07    3e-05    5e-04    2e-02  refused at 500 left
    float32, recursion                  3e-03    4e-02  refused at 680 left
    float32, recursion, as written      2e-02    2e-01    2e+01    8e+00    2e+07    2e+08

*Closed form*: T and W from the sums over all samples, in float64; *recursion*: by `learn`, 20 at a time. *As written*:
the formulas multiplied from left to right. So work in float64 and start from the closed form. If you need exact
results, keep the sums (`to_sums`), which do not drift.

**It measures itself.** Every call checks its own step on one vector. It warns (`DriftWarning`) if two thirds of the
digits of the dtype are lost: in float32 from an error of 0.5 % on, in float64 from 6e-6. A single step cannot see the
loss of many steps together. For that, pass a `Probe` to the calls. It tracks the right T on four vectors, in float64,
and warns when T as a whole is that far off. Its residual is close to the relative error of W in the table, and mostly a
few times larger.

**It trusts its caller.** T and W do not show which samples are in them. A request to forget samples that were never
learned is refused only if T' does not exist. With a large gamma that is rare: a sample x with ``x T x'`` below 1
passes, and no residual shows it. Keep a list of the learned samples, or use `AnalyticClassifier`, which refuses such
requests.
"""

import sys
import warnings
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

__all__ = [
    "DriftWarning",
    "Probe",
    "forget_class",
    "forget_samples",
    "from_state",
    "from_sums",
    "learn",
    "start",
    "to_sums",
]

Array: TypeAlias = Any  # a numpy.ndarray or a torch.Tensor
Pair: TypeAlias = tuple[Array, Array]
_REBUILD = "rebuild T with from_sums, in float64"


class DriftWarning(RuntimeWarning):
    """T has lost more than two thirds of the digits of its dtype to rounding."""


class Probe:
    """Measures how far rounding has moved T. Pass it to every call; each call updates it and then checks T.

    It keeps the products ``A v`` of ``A = F'F + gamma I`` with four vectors v of signs, in float64: a few vectors of
    memory, and ``8 k d`` operations for k samples. If T is exact, ``T A v`` is v.

    Parameters
    ----------
    T : array of shape (d, d)
        The model's T, for example from `start`. It is assumed to be right. For a model built elsewhere, use `of_sums`
        if you have its sums.

    Examples
    --------
    >>> T, W = start(2, 1, gamma=4)
    >>> probe = Probe(T)
    >>> T, W = learn(T, W, features=[[1, 0], [0, 3]], targets=[[1], [1]], probe=probe)
    >>> probe.residual(T) < 1e-15, round(probe.residual(1.5 * T), 6)
    (True, 0.5)
    """

    def __init__(self, T: Array) -> None:
        square, _ = _pair(T, _convert(np.zeros((len(T), 0)), _floating(T, "T")))
        self._vectors = _signs(len(square), 4)  # (d, 4)
        # A v, to start with, from T itself
        self._images = np.linalg.solve(_float64(square), self._vectors)  # (d, 4)

    @classmethod
    def of_sums(cls, G: Array, gamma: float) -> "Probe":
        """Return the probe of a model with the sums ``G = F'F``, of shape (d, d), whatever its T is."""
        gram = _float64(G)
        probe = cls(np.eye(len(gram)))
        probe._images = gram @ probe._vectors + _positive(gamma) * probe._vectors
        return probe

    def residual(self, T: Array) -> float:
        """Return ``||T A v - v|| / ||v||`` over all four vectors: 0 for an exact T."""
        return self._residual(T, self._images)

    def _residual(self, T: Array, images: Array) -> float:
        difference = _float64(T) @ images - self._vectors  # (d, d) @ (d, 4)
        return float(np.linalg.norm(difference) / np.linalg.norm(self._vectors))

    def _follow(self, T: Array, change: Callable[[Any], Any]) -> None:
        """Update A by `change`, a function of vectors, and warn if T is no longer its inverse."""
        images = self._images + change(self._vectors)
        _warn(self._residual(T, images), T, "T", 4)
        self._images = images  # not before: where warnings are errors, the call fails, and T is still the old one


def start(n_features: int, n_classes: int, gamma: float, like: Array | None = None) -> Pair:
    """Return the model that has learned nothing: ``T = I / gamma`` and ``W = 0``.

    There may be no classes yet: `learn` adds columns. The result has the kind, dtype and device of `like`; without it,
    NumPy float64.

    Examples
    --------
    >>> T, W = start(2, 3, gamma=4)
    >>> T.tolist(), W.shape
    ([[0.25, 0.0], [0.0, 0.25]], (2, 3))
    """
    if n_features < 1 or n_classes < 0:
        raise ValueError(f"need n_features >= 1 and n_classes >= 0, got {n_features} and {n_classes}")
    model = np.empty(0) if like is None else _floating(like, "like")
    return _eye(n_features, model) / _positive(gamma), _convert(np.zeros((n_features, n_classes)), model)


def learn(T: Array, W: Array, features: Array, targets: Array, *, probe: Probe | None = None) -> Pair:
    """Return the model that has also learned a batch (Appendix D).

    Parameters
    ----------
    features : array of shape (k, d)
        Split a batch of more than d samples: the time has a term in k cubed.
    targets : array of shape (k, C'), with C' >= C
        One-hot labels. Columns beyond the first C are new classes.

    Examples
    --------
    >>> T, W = learn(*start(2, 1, gamma=1), features=[[1, 0], [0, 3]], targets=[[1, 0], [0, 1]])
    >>> W.round(6).tolist()
    [[0.5, 0.0], [0.0, 0.3]]
    """
    T, W = _pair(T, W)
    F = _matrix(features, "features", T, "k", len(T))
    Y = _matrix(targets, "targets", T, len(F), "C'")
    if (new_classes := Y.shape[1] - W.shape[1]) < 0:
        raise ValueError(f"targets must have at least the {W.shape[1]} columns of W, got {Y.shape[1]}")
    W = _namespace(T).hstack([W, _convert(np.zeros((len(W), new_classes)), T)])  # (d, C')
    # T' = T - T F' (I + F T F')^-1 F T        W' = W + T' F' (Y - F W)
    FT = F @ T  # (k, d)
    inner = _eye(len(F), T) + FT @ F.T  # (k, k)
    gain = _divide(FT, inner, "I + F T F'", f"T is not a true inverse; {_REBUILD}")  # (k, d) = (T' F')'
    result = _result(T - FT.T @ gain, W + gain.T @ (Y - F @ W))  # (d, k) @ (k, d), (d, k) @ (k, C')
    _measure_step(result[0], F, gain)
    if probe is not None:
        batch = _float64(F)
        probe._follow(result[0], lambda vectors: batch.T @ (batch @ vectors))
    return result


def forget_samples(T: Array, W: Array, features: Array, targets: Array, *, probe: Probe | None = None) -> Pair:
    """Return the model that never learned a batch (Algorithm 1). The inverse of `learn`.

    Parameters
    ----------
    features : array of shape (k, d)
        The features as they were learned. Split a request of more than d samples.
    targets : array of shape (k, C)
        Their one-hot labels. A class that loses its last sample keeps its column, which is zero except for rounding.

    Examples
    --------
    >>> T, W = learn(*start(2, 2, gamma=1), features=[[1, 0], [0, 3]], targets=[[1, 0], [0, 1]])
    >>> T, W = forget_samples(T, W, features=[[0, 3]], targets=[[0, 1]])
    >>> abs(W.round(6)).tolist()
    [[0.5, 0.0], [0.0, 0.0]]
    """
    T, W = _pair(T, W)
    F = _matrix(features, "features", T, "k", len(T))
    Y = _matrix(targets, "targets", T, len(F), W.shape[1])
    # T' = T + T F' (I - F T F')^-1 F T        W' = (I + T' F' F) W - T' F' Y = W + T' F' (F W - Y)
    FT = F @ T  # (k, d)
    inner = _eye(len(F), T) - FT @ F.T  # (k, k)
    cause = f"the samples are not all in T, or rounding has used T up; check the request, or {_REBUILD}"
    gain = _divide(FT, inner, "I - F T F'", cause)  # (k, d) = (T' F')'
    result = _result(T + FT.T @ gain, W + gain.T @ (F @ W - Y))  # (d, k) @ (k, d), (d, k) @ (k, C)
    _measure_step(result[0], F, gain)
    if probe is not None:
        batch = _float64(F)
        probe._follow(result[0], lambda vectors: -(batch.T @ (batch @ vectors)))
    return result


def forget_class(
    T: Array, W: Array, class_gram: Array, class_cross: Array | None, column: int, *, probe: Probe | None = None
) -> Pair:
    """Return the model that never learned a class, given sums over its samples (Algorithm 2).

    Parameters
    ----------
    class_gram : array of shape (d, d)
        ``F'F`` over the samples of the class.
    class_cross : array of shape (d, C), or None
        ``F'Y`` over them. It affects only the columns of their targets. With one-hot labels that is the dropped column,
        so you need not keep this sum: give None.
    column : int
        The column of the class in W. It is dropped.

    Examples
    --------
    >>> T, W = learn(*start(2, 2, gamma=1), features=[[1, 1], [0, 3]], targets=[[1, 0], [0, 1]])
    >>> T, W = forget_class(T, W, class_gram=[[0, 0], [0, 9]], class_cross=[[0, 0], [0, 3]], column=1)
    >>> W.round(6).tolist()
    [[0.333333], [0.333333]]
    """
    T, W = _pair(T, W)
    d, n_classes = W.shape
    gram = _matrix(class_gram, "class_gram", T, d, d)
    cross = 0 if class_cross is None else _matrix(class_cross, "class_cross", T, d, n_classes)
    if not 0 <= column < n_classes:
        raise ValueError(f"column must be a column of W, at least 0 and below {n_classes}, got {column}")
    # T' = (T^-1 - G_c)^-1        W' = (I + T' G_c) W - T' A_c = W + T' (G_c W - A_c), less column c
    whole = _divide(None, T, "T", f"it is not a true inverse; {_REBUILD}")  # (d, d)
    _measure_inverse(whole, T)
    cause = f"class_gram is not a sum over samples in T, or rounding has used T up; check it, or {_REBUILD}"
    remainder = whole - gram
    T = _divide(None, remainder, "T^-1 - class_gram", cause)  # (d, d)
    _measure_inverse(T, remainder)
    W = W + T @ (gram @ W - cross)  # (d, d) @ (d, C)
    result = _result(T, _namespace(T).hstack([W[:, :column], W[:, column + 1 :]]))
    if probe is not None:
        lost = _float64(gram)
        probe._follow(result[0], lambda vectors: -(lost @ vectors))
    return result


def to_sums(T: Array, W: Array, gamma: float) -> Pair:
    """Return the sums ``G = F'F`` and ``B = F'Y`` over the held samples: ``T^-1 - gamma I`` and ``T^-1 W``.

    Integer features have integer sums, so rounding G and B recovers them exactly while T is accurate.

    Examples
    --------
    >>> T, W = learn(*start(2, 2, gamma=1), features=[[1, 2], [0, 3]], targets=[[1, 0], [0, 1]])
    >>> G, B = to_sums(T, W, gamma=1)
    >>> np.rint(G).astype(int).tolist(), np.rint(B).astype(int).tolist()
    ([[1, 2], [2, 13]], [[1, 0], [2, 3]])
    """
    T, W = _pair(T, W)
    A = _divide(None, T, "T", "it is not a true inverse; rebuild it from the samples")  # (d, d)
    _measure_inverse(A, T)
    return _result(A - _positive(gamma) * _eye(len(T), T), A @ W)


def from_sums(G: Array, B: Array, gamma: float) -> Pair:
    """Return the model of the sums ``G = F'F`` and ``B = F'Y``: ``T = (G + gamma I)^-1`` and ``W = T B`` (Lemma 1).

    If G holds integers, the result is float64.

    Examples
    --------
    >>> T, W = from_sums(np.array([[3, 0], [0, 1]]), np.array([[2], [0]]), gamma=1)
    >>> T.tolist(), W.tolist()
    ([[0.25, 0.0], [0.0, 0.5]], [[0.5], [0.0]])
    """
    if "int" in str(getattr(G, "dtype", "")):
        G = _convert(G, G, _namespace(G).float64)
    G, B = _pair(G, B, "G", "B")
    A = G + _positive(gamma) * _eye(len(G), G)  # (d, d)
    T = _divide(None, A, "G + gamma I", "G is not a sum F'F, or gamma is too small for this dtype")
    _measure_inverse(T, A)
    return _result(T, _namespace(A).linalg.solve(A, B))


def from_state(R: Array, W: Array, gamma: float) -> Pair:
    """Return the model in the state of another program, such as the buffers ``R`` and ``weight`` of a RecursiveLinear.

    T and W are copies in float64, and T is made symmetric. Rounding that R and W carry stays in them.

    But for rounding, R must be symmetric and positive definite, and have no eigenvalue above ``1 / gamma``: no inverse
    of ``F'F + gamma I`` has one. Nothing more can be checked. To any such R, every W belongs to some targets.

    Parameters
    ----------
    R : array of shape (d, d)
    W : array of shape (d, C)
        One column for each class. With a bias, d counts the feature that is always 1.
    gamma : float
        The regularisation that the model started with.

    Examples
    --------
    >>> R = np.linalg.inv(np.array([[3.0, 0.0], [0.0, 1.0]]) + 0.5 * np.eye(2))
    >>> T, W = from_state(R, R @ np.array([[2.0], [0.0]]), gamma=0.5)
    >>> G, B = to_sums(T, W, gamma=0.5)
    >>> G.round(9).tolist(), B.round(9).tolist()
    ([[3.0, 0.0], [0.0, 1.0]], [[2.0], [0.0]])
    """
    R, W = _pair(R, W, "R")
    limit = float(_namespace(R).finfo(R.dtype).eps) ** (1 / 3)  # two thirds of the digits, as in `_warn`
    T, W = (_convert(each, R, _namespace(R).float64) for each in (R, W))
    uneven = float(abs(T - T.T).max()) / float(abs(T).max() + 1e-300)
    if uneven > limit:
        raise ValueError(
            f"R is not symmetric, by {uneven:.0e} of its largest entry: it is another matrix, or badly rounded"
        )
    T = (T + T.T) / 2
    if not _is_positive_definite(T):
        raise ArithmeticError(f"R is not positive definite: it is no inverse, or rounding has used it up; {_REBUILD}")
    if not _is_positive_definite((1 + limit) / _positive(gamma) * _eye(len(T), T) - T):
        raise ValueError(
            f"R has an eigenvalue above 1 / gamma: its gamma is below {gamma:g}, or rounding has used it up"
        )
    return T, W + 0


def _is_positive_definite(matrix: Array) -> bool:
    linalg = _namespace(matrix).linalg
    try:
        linalg.cholesky(matrix)
    except linalg.LinAlgError:
        return False
    return True


def _namespace(array: Array) -> Any:
    """Return numpy or torch. If there is a tensor, torch is imported already, so this module need not import it."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(array, torch.Tensor) else np


def _convert(values: Array, model: Array, dtype: Any = None) -> Array:
    if _namespace(values) is not np:
        values = values.detach()  # a result must not carry the graph of every step before it
    return _namespace(model).asarray(values, dtype=dtype or model.dtype, device=model.device)


def _eye(n: int, model: Array) -> Array:
    return _namespace(model).eye(n, dtype=model.dtype, device=model.device)


def _finite(array: Array) -> bool:
    return bool((abs(array) < np.inf).all())


def _positive(gamma: float) -> float:
    if not 0 < gamma < np.inf:
        raise ValueError(f"gamma must be a finite number above 0, got {gamma!r}")
    return float(gamma)


def _floating(array: Array, name: str) -> Array:
    if _namespace(array) is np and not isinstance(array, np.ndarray):
        raise TypeError(f"{name} must be a NumPy array or a torch tensor, got {type(array).__name__}")
    if str(array.dtype).removeprefix("torch.") not in ("float32", "float64"):
        raise ValueError(f"{name} must be of dtype float32 or float64, got {array.dtype}: convert it first")
    return array


def _matrix(values: Array, name: str, model: Array, *shape: int | str) -> Array:
    """Return the values as an array like the model. A letter in the shape stands for any size."""
    matrix = _convert(values, model)
    got, row = tuple(matrix.shape), "sample" if name in ("features", "targets") else "feature"
    if len(got) != 2 or any(n != m for n, m in zip(shape, got, strict=True) if isinstance(n, int)):
        raise ValueError(f"{name} must have shape ({shape[0]}, {shape[1]}), one row per {row}, got {got}")
    if not _finite(matrix):
        raise ValueError(f"{name} has entries that are not finite: make it again without these samples")
    return matrix


def _pair(T: Array, W: Array, T_name: str = "T", W_name: str = "W") -> Pair:
    d = (*_floating(T, T_name).shape, "d")[0]  # the letter if T is a scalar
    T = _matrix(T, T_name, T, d, d)
    return T, _matrix(W, W_name, T, d, "C")


def _divide(right: Array | None, matrix: Array, name: str, cause: str) -> Array:
    """Return ``matrix^-1 @ right``, or the inverse for None, if the matrix is positive definite."""
    linalg, fault = _namespace(matrix).linalg, "not finite"
    if _finite(matrix):
        try:
            linalg.cholesky(matrix)
            return linalg.inv(matrix) if right is None else linalg.solve(matrix, right)
        except linalg.LinAlgError:
            fault = "singular or not positive definite"
    raise ArithmeticError(f"{name}, the matrix to invert, is {fault}: {cause}")


def _result(square: Array, columns: Array) -> Pair:
    if not (_finite(square) and _finite(columns)):
        raise ArithmeticError("the result overflows its dtype: scale the features down, or work in float64")
    return (square + square.T) / 2, columns


def _float64(array: Array) -> Any:
    """Return an array of any kind as NumPy's, in float64."""
    if _namespace(array) is not np:
        array = array.detach().cpu()
    return np.asarray(array, dtype=np.float64)


def _signs(n: int, columns: int) -> Any:
    """Return fixed vectors of signs. They need not be secret: nobody builds a model against them."""
    return np.random.default_rng(0).choice([-1.0, 1.0], (n, columns))


def _measure_step(T: Array, F: Array, gain: Array) -> None:
    """Warn if T' and T' F', computed separately, do not agree: ``T' (F' r) = (T' F') r`` for signs r."""
    signs = _convert(_signs(len(F), 1), T)  # (k, 1)
    expected = gain.T @ signs  # (d, 1)
    norm = float((expected * expected).sum()) ** 0.5
    if norm > 0:
        difference = T @ (F.T @ signs) - expected
        _warn(float((difference * difference).sum()) ** 0.5 / norm, T, "this step's part of T", 4)


def _measure_inverse(inverse: Array, matrix: Array) -> None:
    """Warn if an inverse has lost its digits: ``inverse (matrix r) = r`` for signs r."""
    signs = _convert(_signs(len(matrix), 1), matrix)
    difference = inverse @ (matrix @ signs) - signs
    _warn(float((difference * difference).sum()) ** 0.5 / len(matrix) ** 0.5, matrix, "an inverse", 4)


def _warn(residual: float, T: Array, what: str, level: int) -> None:
    limit = float(_namespace(T).finfo(T.dtype).eps) ** (1 / 3)
    if not residual <= limit:  # also of NaN
        warnings.warn(
            f"{what} is off by {residual:.0e}, relative, and has lost two thirds of the digits of "
            f"{str(T.dtype).removeprefix('torch.')}: {_REBUILD}, or raise gamma",
            DriftWarning,
            stacklevel=level,
        )
