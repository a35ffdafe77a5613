"""PyTorch on the CPU: NumPy's arrays, and int8 matrix units (VNNI, AMX) where they pass a self-test."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from neverseen.hardware.numpy_cpu import NumpyHardware, blocks

_FEW = 16  # rows; int8 matrix units want as many
_ROWS = 2048  # rows of codes multiplied at a time, which bounds what the kernel copies


class TorchHardware(NumpyHardware):
    """NumPy's arrays, with PyTorch's CPU kernels for the products."""

    name = "torch"
    cholesky_keeps = True

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._int8_units_work = _passes_int8_self_test(torch)

    @contextmanager
    def alone(self) -> Iterator[None]:
        threads = self._torch.get_num_threads()
        self._torch.set_num_threads(1)
        try:
            yield
        finally:
            self._torch.set_num_threads(threads)

    # Two libraries' threads wait for work by spinning, and on the same cores each is several times slower for it. So
    # all floating-point work is PyTorch's, small or large, and NumPy's threads are left asleep.

    def limb(self, matrix: np.ndarray, shift: int, bits: int | None) -> np.ndarray:
        if not matrix.flags.writeable:  # PyTorch would warn that it cannot keep it so
            return super().limb(matrix, shift, bits)
        limb, values = self._torch.empty(matrix.shape, dtype=self._torch.float64), self._torch.from_numpy(matrix)
        for part in blocks(matrix):
            taken = values[part].long() >> shift
            limb[part] = taken if bits is None else taken.bitwise_and_((1 << bits) - 1)
        return limb.numpy()

    def matmul(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        return (self._torch.from_numpy(left) @ self._torch.from_numpy(right)).numpy()

    def cholesky(self, matrix: np.ndarray) -> np.ndarray | None:
        factor, info = self._torch.linalg.cholesky_ex(self._torch.from_numpy(matrix), upper=True)
        return np.asfortranarray(factor.numpy()) if int(info) == 0 else None

    def cholesky_solve(self, factor: np.ndarray, right: np.ndarray) -> np.ndarray:
        upper, solve = self._torch.from_numpy(factor), self._torch.linalg.solve_triangular
        inner = solve(upper.mT, self._torch.from_numpy(right), upper=False)  # twice the pace of torch.cholesky_solve
        return solve(upper, inner, upper=True).contiguous().numpy()

    def inverse(self, matrix: np.ndarray) -> np.ndarray:
        return self._torch.linalg.inv(self._torch.from_numpy(matrix)).numpy()

    def int8_matmul(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        if not self._int8_units_work or len(left) == 0 or min(right.shape) < 2:
            return super().int8_matmul(left, right)
        a, b = (self._torch.from_numpy(part) for part in (_rows(left), np.ascontiguousarray(right)))
        return self._torch._int_mm(a, b)[: len(left)].numpy()

    def int8_gram(self, codes: np.ndarray) -> np.ndarray:
        if not self._int8_units_work or len(codes) <= 1 or codes.shape[1] < _FEW:
            return super().int8_gram(codes)
        parts = (self._torch.from_numpy(_rows(codes[at : at + _ROWS])) for at in range(0, len(codes), _ROWS))
        products = (self._torch._int_mm(rows.t().contiguous(), rows) for rows in parts)
        return functools.reduce(lambda total, part: total.add_(part), products).numpy()


def _rows(array: np.ndarray) -> np.ndarray:
    """Return an int8 matrix row by row, with rows of zeros if it has too few for the matrix units."""
    if len(array) >= _FEW:
        return np.require(array, requirements=["C", "W"])  # of read-only ones PyTorch would warn
    rows = np.zeros((_FEW, array.shape[1]), np.int8)
    rows[: len(array)] = array
    return rows


def _passes_int8_self_test(torch: Any) -> bool:
    """Return whether this build has an int8 product, and whether it is exact on the hardest inputs.

    Without VNNI, some CPUs add pairs of products in 16 bits and saturate. Rows of equal extremes reveal it.
    """
    try:
        left = np.full((32, 512), 127, np.int8)
        left[1::2, ::3] = -127
        right = np.full((512, 32), 127, np.int8)
        right[:, 1::2] = -127
        product = torch._int_mm(torch.from_numpy(left), torch.from_numpy(right)).numpy()
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    return bool(np.array_equal(product, left.astype(np.int32) @ right.astype(np.int32)))
