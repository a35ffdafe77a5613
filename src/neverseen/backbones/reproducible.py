"""Settings of PyTorch with which a network gives the same bits each time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

_settings = threading.RLock()  # they belong to the process: two threads must not restore them under each other


@contextmanager
def reproducible(device: Any) -> Iterator[None]:
    """Run PyTorch in full float32, with deterministic cuDNN kernels and no autocast; then restore its settings."""
    import torch

    with ExitStack() as stack:
        stack.enter_context(_settings)
        cudnn = torch.backends.cudnn
        changes = [(cudnn, "deterministic", True), (cudnn, "benchmark", False)]
        if hasattr(torch.backends, "fp32_precision"):
            changes += _full_precision(torch.backends)
        else:  # before PyTorch 2.9
            changes += [(cudnn, "allow_tf32", False)]
            stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
            torch.set_float32_matmul_precision("highest")
        for place, name, value in changes:
            stack.callback(setattr, place, name, getattr(place, name))
            setattr(place, name, value)
        stack.enter_context(torch.autocast(device.type, enabled=False))
        yield


def _full_precision(backends: Any) -> list[tuple[Any, str, Any]]:
    """Return the settings that keep float32 products from using TF32 or bfloat16."""
    kinds = [backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn]
    kinds += [backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn]
    # What reads as "none" has nothing set above it either, and is float32. Setting it could not be undone.
    return [(kind, "fp32_precision", "ieee") for kind in kinds if kind.fp32_precision not in ("ieee", "none")]
