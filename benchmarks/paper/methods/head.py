"""A linear head on codes that gradient methods can move: it starts as the analytic solution W."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from benchmarks.paper.methods.interface import Samples, Tensor
from benchmarks.paper.methods.recursion import full_precision

_ROWS = 4096  # codes turned to floats at a time, to bound memory


class Head(nn.Module):  # type: ignore[misc]
    """Scores ``codes @ W`` without a bias.

    Parameters
    ----------
    weights : Tensor of shape (d, C)
    scale : float, optional
        What codes are multiplied by before the product. ``1 / (16 * sqrt(d))`` if it is not given, which brings the
        rows of a rectified projection to a length near 1. Unscaled, they are about a thousand long, and any usual
        learning rate makes the first step a collapse.

    Notes
    -----
    The trained parameter is ``W.T / scale``; the scores are the same for every scale. `unit` brings parameters back to
    the units of W.
    """

    def __init__(self, weights: Tensor, scale: float | None = None) -> None:
        super().__init__()
        self.unit = 1 / (16 * math.sqrt(len(weights))) if scale is None else float(scale)
        self.weight = nn.Parameter((weights.double() / self.unit).t().float().contiguous())  # (C, d)

    def forward(self, codes: Tensor) -> Tensor:
        """Return float32 scores of shape (n, C) of codes of shape (n, d)."""
        with full_precision():
            return nn.functional.linear(codes.float() * self.unit, self.weight)


def one_hot(labels: Tensor, n_classes: int, dtype: Any = torch.float64) -> Tensor:
    """Return targets of shape (n, n_classes) on the device of the labels."""
    return nn.functional.one_hot(labels, n_classes).to(dtype)


def sums(samples: Samples, n_classes: int) -> tuple[Tensor, Tensor]:
    """Return ``F'F`` (d, d) and ``F'Y`` (d, C) over samples, in float64 on their device: exact for int8 codes."""
    size = samples.inputs.shape[1]
    device = samples.inputs.device
    gram = torch.zeros((size, size), dtype=torch.float64, device=device)
    cross = torch.zeros((size, n_classes), dtype=torch.float64, device=device)
    for first in range(0, len(samples.labels), _ROWS):
        F = samples.inputs[first : first + _ROWS].double()  # (rows, d)
        gram += F.t() @ F
        cross += F.t() @ one_hot(samples.labels[first : first + _ROWS], n_classes)
    return gram, cross


def solve(gram: Tensor, cross: Tensor, gamma: float) -> Tensor:
    """Return ``(gram + gamma I)^-1 cross`` by Cholesky."""
    system = gram.clone()
    system.diagonal().add_(gamma)
    return torch.cholesky_solve(cross, torch.linalg.cholesky(system))


def ridge(samples: Samples, n_classes: int, gamma: float) -> Tensor:
    """Return the analytic weights of samples, float64 of shape (d, C): ``(F'F + gamma I)^-1 F'Y``."""
    return solve(*sums(samples, n_classes), gamma)
