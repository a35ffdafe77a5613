"""Hardware: arrays, fast products and factors of one machine. Nothing here is trusted to be exact.

Every kind of hardware offers the same small set of operations, `HardwareOf`, so that the exact arithmetic and the
solver are written once:

========  ===================  ==========================================================
name      arrays live in       int8 products by
========  ===================  ==========================================================
numpy     main memory          the compiled kernels, else float32 BLAS in chunks whose sums stay under 2**24
torch     main memory          PyTorch (VNNI, AMX), if it passes a self-test
cuda      GPU memory           int8 tensor cores
========  ===================  ==========================================================

`choose` picks the best kind available, and `register` adds a kind. The choice affects the time a model takes, never its
bits: `neverseen.engine.arithmetic` bounds every product before and checks it after.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any

from neverseen.errors import ConfigurationError
from neverseen.hardware.protocol import (
    FLOAT32_ROWS,
    INT8_PRODUCT,
    INT32_ROWS,
    Array,
    Factor,
    Hardware,
    HardwareOf,
)
from neverseen.registry import Registry

__all__ = [
    "FLOAT32_ROWS",
    "INT8_PRODUCT",
    "INT32_ROWS",
    "Array",
    "Factor",
    "Hardware",
    "HardwareOf",
    "choose",
    "kinds",
    "register",
]

kinds: Registry[Callable[[], HardwareOf[Any]]] = Registry(
    "hardware",
    "hardware",
    {
        "numpy": "hardware.numpy_cpu:NumpyHardware",
        "torch": "hardware.torch_cpu:TorchHardware",
        "cuda": "hardware.torch_cuda:CudaHardware",
    },
)
register = kinds.add
"""``register(name, factory)`` adds a kind of hardware; `choose` calls the factory once, without arguments."""


@cache
def _made(factory: Callable[[], HardwareOf[Any]]) -> Hardware:
    return factory()


def choose(name: str = "auto") -> Hardware:
    """Return the hardware of that name; ``"auto"`` means CUDA if available, else NumPy.

    Without the compiled kernels, PyTorch is faster than NumPy alone, and ``"auto"`` takes it if it is installed.

    Examples
    --------
    >>> choose("numpy").name
    'numpy'
    """
    if name == "auto":
        if importlib.util.find_spec("torch") is None:
            name = "numpy"
        else:
            import torch

            from neverseen.hardware import kernels

            name = "cuda" if torch.cuda.is_available() else "numpy" if kernels.available() else "torch"
    elif name in ("torch", "cuda") and importlib.util.find_spec("torch") is None:
        raise ConfigurationError(
            f"hardware={name!r} needs PyTorch, which is not installed: "
            "pip install 'neverseen[torch]', or use hardware='numpy'"
        )
    return _made(kinds[name])
