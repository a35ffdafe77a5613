"""PyTorch on the CPU: NumPy's arrays, and PyTorch's int8 products (VNNI, AMX) where they pass a self-test."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from neverseen.hardware.numpy_cpu import NumpyHardware

_FEW = 16  # rows; int8 matrix units want as many
_ROWS = 2048  # rows of codes multiplied at a time, which bounds what the kernel copies


class TorchHardware(NumpyHardware):
    """NumPy's arrays and products, but PyTorch's for int8."""

    name = "torch"

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._int8_units_work = _passes_int8_self_test(torch)

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
