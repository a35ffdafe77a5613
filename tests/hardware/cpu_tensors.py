"""The code for a GPU, on tensors in main memory: so it is tested on machines without one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from neverseen.hardware.torch_cuda import CudaHardware
from neverseen.hardware.torch_small_changes import small_change


class CpuTensors(CudaHardware):
    """`CudaHardware` without a GPU."""

    name = "cpu tensors"

    def __init__(self) -> None:
        self._torch = torch

    def __reduce__(self) -> tuple[Any, ...]:
        return CpuTensors, ()

    def small_changes(self) -> Any:
        return small_change

    def array(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.array(values))

    def zeros(self, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.int64)
