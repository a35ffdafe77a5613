"""NumPy and SciPy on the CPU: always available, and the reference for the other kinds."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from threadpoolctl import ThreadpoolController

from neverseen.hardware import few_rows, kernels
from neverseen.hardware.protocol import FLOAT32_ROWS, HardwareOf, Moved

_SMALL = 2**13  # multiplications: of fewer, NumPy is done sooner
_NEAR = 2**10  # entries near a half that are noted one by one
SUM_ROWS = 2**14  # codes turned to int64 at a time


class NumpyHardware(HardwareOf[np.ndarray]):
    """NumPy and SciPy on the CPU: always available, and the reference for the other kinds."""

    name = "numpy"
    cholesky_keeps = False
    integers = kernels.available()

    @contextmanager
    def alone(self) -> Iterator[None]:
        if not kernels.available():
            yield
            return
        with _one_blas_thread(), kernels.team():
            yield

    def few_rows(self, matrix: np.ndarray) -> Callable[[np.ndarray], np.ndarray] | None:
        return few_rows.Factor(matrix).after if kernels.available() else None

    def rectified(self, sums: np.ndarray, shift: int) -> np.ndarray:
        if len(sums) <= few_rows.FEW and sums.dtype == np.int32 and kernels.available():
            return few_rows.rectified(np.ascontiguousarray(sums), shift)
        return super().rectified(sums, shift)

    # -- arrays ------------------------------------------------------------------------------------

    def array(self, values: np.ndarray) -> np.ndarray:
        return values

    def numpy(self, array: np.ndarray) -> np.ndarray:
        return np.asarray(array)

    def zeros(self, *shape: int) -> np.ndarray:
        return np.zeros(shape, dtype=np.int64)

    def float64(self, array: np.ndarray) -> np.ndarray:
        return array.astype(np.float64)

    def limb(self, matrix: np.ndarray, shift: int, bits: int | None) -> np.ndarray:
        limb = np.empty(matrix.shape)
        for part in blocks(matrix):
            taken = matrix[part].astype(np.int64, copy=False) >> shift  # narrower ones could not be shifted as far
            limb[part] = taken if bits is None else np.bitwise_and(taken, (1 << bits) - 1, out=taken)
        return limb

    def int64(self, array: np.ndarray) -> np.ndarray:
        return array.astype(np.int64, copy=False)

    def int8(self, array: np.ndarray) -> np.ndarray:
        return array.astype(np.int8)

    def rint(self, array: np.ndarray) -> np.ndarray:
        return np.rint(array)

    def concatenate(self, arrays: list[np.ndarray], axis: int) -> np.ndarray:
        return np.concatenate(arrays, axis=axis)

    def contiguous(self, array: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(array)

    def copied(self, array: np.ndarray) -> np.ndarray:
        return array.copy()

    def max_abs(self, array: np.ndarray) -> float:
        return float(np.abs(array).max(initial=0.0))

    def row_sums(self, matrix: np.ndarray) -> np.ndarray:
        sums = np.empty(len(matrix))
        for part in blocks(matrix):
            sums[part] = np.abs(matrix[part].astype(np.float64)).sum(axis=1)
        return sums

    def row_moments(self, matrix: np.ndarray) -> np.ndarray:
        return kernels.row_moments(np.ascontiguousarray(matrix))

    def add_in_place(self, target: np.ndarray, change: np.ndarray, sign: int) -> None:
        (np.add if sign > 0 else np.subtract)(target, change, out=target)

    def add_to_rows(self, target: np.ndarray, rows: list[int], change: np.ndarray, sign: int) -> None:
        target[rows] += sign * change

    def add_to_diagonal(self, matrix: np.ndarray, value: float | np.ndarray) -> None:
        matrix.flat[:: len(matrix) + 1] += value

    # -- products ----------------------------------------------------------------------------------

    def matmul(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        if left.size * right.shape[1] < _SMALL or not kernels.quick():
            return left @ right
        return kernels.product(left, np.ascontiguousarray(right))

    def int8_matmul(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        if kernels.available():
            return kernels.times_codes(np.ascontiguousarray(left), np.ascontiguousarray(right))
        inner = left.shape[1]
        total = None
        for start in range(0, inner, FLOAT32_ROWS):
            a = left[:, start : start + FLOAT32_ROWS].astype(np.float32)
            b = right[start : start + FLOAT32_ROWS].astype(np.float32)
            part = (a @ b).astype(np.int32)
            total = part if total is None else np.add(total, part, out=total)
        return np.zeros((left.shape[0], right.shape[1]), np.int32) if total is None else total

    def int8_gram(self, codes: np.ndarray) -> np.ndarray:
        if len(codes) == 1:
            row = codes[0].astype(np.int16)
            return np.multiply.outer(row, row)  # 127 * 127 < 2**15
        if kernels.available():
            sums = np.zeros((codes.shape[1], codes.shape[1]), np.int32)
            kernels.add_codes(sums, np.ascontiguousarray(codes), np.ones(len(codes), np.int8))
            return sums
        total = None
        for start in range(0, len(codes), FLOAT32_ROWS):
            a = codes[start : start + FLOAT32_ROWS].astype(np.float32)
            part = (a.T @ a).astype(np.int32)  # NumPy sees the symmetry and computes half
            total = part if total is None else np.add(total, part, out=total)
        return np.zeros((codes.shape[1], codes.shape[1]), np.int32) if total is None else total

    def class_sums(self, codes: np.ndarray, positions: np.ndarray, classes: int) -> np.ndarray:
        sums = np.zeros((classes, codes.shape[1]), np.int64)
        order = np.argsort(positions, kind="stable")
        bounds = np.searchsorted(positions[order], np.arange(classes + 1))
        for place in range(classes):
            rows = order[bounds[place] : bounds[place + 1]]
            for start in range(0, len(rows), SUM_ROWS):
                sums[place] += codes[rows[start : start + SUM_ROWS]].sum(axis=0, dtype=np.int64)
        return sums

    def where(self, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows, columns = np.nonzero(mask)
        return rows, columns

    def wrapping_matvec(self, matrix: np.ndarray, vector: np.ndarray) -> np.ndarray:
        if matrix.dtype == np.int64:
            return np.einsum("ij,j->i", matrix, vector)  # quick in either memory order, unlike integer `@`
        parts = [np.einsum("ij,j->i", matrix[part].astype(np.int64), vector) for part in blocks(matrix)]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def symmetric_product(self, matrix: np.ndarray, block: np.ndarray, narrow: bool = False) -> np.ndarray:
        if not kernels.available() or matrix.dtype != np.int64 or not matrix.flags.c_contiguous:
            return super().symmetric_product(matrix, block)
        return kernels.times_block(matrix, np.ascontiguousarray(block), narrow=narrow)

    def approximate_product(self, matrix: np.ndarray, block: np.ndarray) -> np.ndarray:
        if kernels.available() and matrix.dtype == np.int64 and matrix.flags.c_contiguous:
            return kernels.times_block(matrix, np.ascontiguousarray(block))
        parts = [self.matmul(matrix[part].astype(np.float64), block) for part in blocks(matrix)]
        return np.concatenate(parts) if parts else block

    def symmetric_matmul(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        if not kernels.available():
            return left @ right
        return kernels.times_block(left, np.ascontiguousarray(right))

    def less_product(
        self, matrix: np.ndarray, left: np.ndarray, right: np.ndarray, *, overwrite: bool = False
    ) -> np.ndarray:
        if not kernels.available():
            return super().less_product(matrix, left, right)
        result = matrix if overwrite else matrix.copy()
        kernels.add_low_rank(result, np.ascontiguousarray(left.T), np.ascontiguousarray(right), -1.0)
        return result

    def int8_int64_matmul(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        return kernels.product(left, np.ascontiguousarray(right))

    def move(
        self,
        steps: np.ndarray,
        rests: np.ndarray,
        left: tuple[np.ndarray, np.ndarray, np.ndarray],
        right: tuple[np.ndarray, np.ndarray, np.ndarray],
        doubts: np.ndarray,
    ) -> Moved[np.ndarray]:
        if not kernels.available():
            return super().move(steps, rests, left, right, doubts)
        steps, rests, near = steps.copy(), rests.copy(), np.empty(_NEAR, np.int64)
        count = kernels.move(steps, rests, left, right, doubts, near)
        if count > _NEAR:
            return steps, rests, self.near_half(rests, doubts)
        return steps, rests, sorted(set((near[:count] % len(doubts)).tolist()))

    # -- factors -----------------------------------------------------------------------------------

    def cholesky(self, matrix: np.ndarray) -> np.ndarray | None:
        from scipy.linalg import lapack  # takes long to import, and a command that only reads a store solves nothing

        factor, info = lapack.dpotrf(matrix.T, lower=0, overwrite_a=1, clean=0)  # .T: LAPACK's order, no copy
        return factor if info == 0 and np.isfinite(factor[-1, -1]) else None

    def cholesky_solve(self, factor: np.ndarray, right: np.ndarray) -> np.ndarray:
        from scipy.linalg import lapack

        solution, _ = lapack.dpotrs(factor, right, lower=0)
        return np.ascontiguousarray(solution)

    def cholesky_inverse(self, factor: np.ndarray) -> np.ndarray:
        from scipy.linalg import lapack

        inverse, _ = lapack.dpotri(factor, lower=0)
        upper = np.triu(inverse)  # in LAPACK's order: the transpose is contiguous
        return np.ascontiguousarray((upper + np.triu(upper, 1).T).T)

    def triangle(self, factor: np.ndarray) -> np.ndarray:
        return np.tril(factor.T)

    def inverse(self, matrix: np.ndarray) -> np.ndarray:
        return np.linalg.inv(matrix)


_alone = threading.Lock()


@contextmanager
def _one_blas_thread() -> Iterator[None]:
    """Limit the library to one thread, unless another thread does so already: the second would restore its limit."""
    if not _alone.acquire(blocking=False):
        yield
        return
    try:
        with _blas().limit(limits=1, user_api="blas"):
            yield
    finally:
        _alone.release()


@functools.cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


def blocks(matrix: np.ndarray) -> list[slice]:
    """Return slices of rows, so small that an int64 or float64 copy of each stays in a processor's cache."""
    rows = max(1, 2**18 // max(1, matrix.shape[1]))
    return [slice(start, start + rows) for start in range(0, len(matrix), rows)]
