"""The paper's recursion with its formulas multiplied out as they are printed, on torch tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from benchmarks.paper.methods.interface import Tensor


class Tracked(NamedTuple):
    """The Knowledge Tracking Matrix, (d, d), and the weights, (d, C): all that the recursion keeps."""

    T: Tensor
    W: Tensor


def learn_as_written(T: Tensor, W: Tensor, F: Tensor, Y: Tensor) -> tuple[Tensor, Tensor]:
    """Appendix D, with every product in the order in which the formula is written."""
    T = T - T @ F.t() @ torch.linalg.inv(torch.eye(len(F)).to(F) + F @ T @ F.t()) @ F @ T
    return T, W + T @ F.t() @ (Y - F @ W)


def forget_as_written(T: Tensor, W: Tensor, F: Tensor, Y: Tensor) -> tuple[Tensor, Tensor]:
    """Algorithm 1, with every product in the order in which the formulas are written."""
    T = T + T @ F.t() @ torch.linalg.inv(torch.eye(len(F)).to(F) - F @ T @ F.t()) @ F @ T
    return T, (torch.eye(len(T)).to(T) + T @ (F.t() @ F)) @ W - T @ (F.t() @ Y)


@contextmanager
def full_precision() -> Iterator[None]:
    """Keep CUDA from shortening float32 products to TensorFloat-32, which network training may have turned on."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
