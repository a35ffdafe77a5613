"""The code for a GPU, on tensors in main memory: so it is tested on machines without one."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch

from neverseen.hardware import fused_small_changes
from neverseen.hardware.torch_cuda import CudaHardware
from neverseen.hardware.torch_small_changes import small_change
from tests.hardware.emulated import emulated


class CpuTensors(CudaHardware):
    """`CudaHardware` without a GPU; `fused` with its kernels, emulated."""

    name = "cpu tensors"

    def __init__(self, fused: bool = False) -> None:
        self._torch, self._fused = torch, fused

    def __reduce__(self) -> tuple[Any, ...]:
        return CpuTensors, (self._fused,)

    def small_changes(self) -> Any:
        return functools.partial(fused_small_changes.small_change, emulated()) if self._fused else small_change

    def array(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.array(values))

    def numpy(self, array: torch.Tensor) -> np.ndarray:
        found: np.ndarray = array.numpy()
        return found

    def zeros(self, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.int64)
