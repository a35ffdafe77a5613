"""WoodFisher: take away the estimated influence of the forgotten samples by one Newton step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from benchmarks.paper.methods.descent import GradientMethod, require_retained
from benchmarks.paper.methods.interface import Request, Samples, Tensor

_COLUMNS = 2**18  # parameters whose gradients are turned to float64 at a time
_ROWS = 500  # samples whose summed gradient is taken at a time


class WoodFisher(GradientMethod):
    """Makes the step ``w + alpha * F^-1 * (f / n - r * k / (n * (n - k)))``.

    Of n samples k are forgotten; f and r are the sums of the gradients over the forgotten and the retained. At the
    minimum of the mean loss over all samples ``r = -f``, and the vector is ``f / (n - k)``: with F for the Hessian and
    ``alpha = 1``, the Newton step on the retained samples' mean loss. F is the empirical Fisher matrix of up to
    `gradients` retained samples, ``F = damping * I + (1 / m) sum g g'``, with g the gradient of one sample's
    cross-entropy.

    WoodFisher inverts F by m rank-one steps (Sherman-Morrison). Applied to a vector these add up to one identity
    (Woodbury), ``F^-1 v = (v - G' (m * damping * I + G G')^-1 G v) / damping``, which is how it is computed: G, the m
    gradients, is all that is stored, and no matrix is larger than G or m by m.

    Samples are not augmented, and batch normalisation is in evaluation mode: a gradient of a single sample has no
    batch statistics.
    """

    @dataclass(frozen=True)
    class Settings:
        """Public settings: at most 1000 single-sample gradients, alpha 0.2.

        Attributes
        ----------
        alpha : float
            The length of the step.
        gradients : int
            Single-sample gradients for each request, at most. Their storage is this times the parameters, in float32.
        damping : float
            What is added to the diagonal of the Fisher matrix. Public code begins its recursion at the identity, a
            damping of 1. On a small head that step changed next to nothing, and 1e-4 destroyed the model.
        """

        alpha: float = 0.2
        gradients: int = 1000
        damping: float = 1.0

    name: ClassVar[str] = "woodfisher"
    reads_retained: ClassVar[bool] = True

    def update(self, request: Request) -> None:
        """Make the step."""
        retained, chosen = require_retained(request), self.settings
        self.model.eval()
        random = self.random()
        order = torch.randperm(len(retained.labels), generator=random, device=random.device)
        rows = order[: chosen.gradients].to(retained.labels.device)
        gradients = self._single_gradients(Samples(retained.inputs[rows], retained.labels[rows]))  # (m, P)
        k, left = len(request.forgotten.labels), max(1, len(retained.labels))
        forgotten_sum, retained_sum = (self._gradient_sum(part).double() for part in (request.forgotten, retained))
        influence = (forgotten_sum - retained_sum * (k / left)) / (k + left)  # (P,)
        move = chosen.alpha * inverse_fisher(gradients, influence, chosen.damping)
        with torch.no_grad():
            for parameter, part in zip(self.model.parameters(), self._parts(move), strict=True):
                parameter.add_(part.to(parameter.dtype))

    def _single_gradients(self, samples: Samples) -> Tensor:
        """Return the gradient of each sample's cross-entropy, float32 of shape (m, P)."""
        size = sum(parameter.numel() for parameter in self.model.parameters())
        gradients = torch.empty((len(samples.labels), size), device=samples.labels.device)
        for row in range(len(gradients)):
            one = Samples(samples.inputs[row : row + 1], samples.labels[row : row + 1])
            gradients[row] = self._gradient_sum(one)
        return gradients

    def _gradient_sum(self, samples: Samples) -> Tensor:
        """Return the gradient of the samples' summed cross-entropy, of shape (P,)."""
        parameters = list(self.model.parameters())
        total = [torch.zeros_like(parameter) for parameter in parameters]
        for first in range(0, len(samples.labels), _ROWS):
            logits = self.model(samples.inputs[first : first + _ROWS])
            loss = nn.functional.cross_entropy(logits, samples.labels[first : first + _ROWS], reduction="sum")
            for whole, part in zip(total, torch.autograd.grad(loss, parameters), strict=True):
                whole.add_(part)
        return torch.cat([part.flatten() for part in total])

    def _parts(self, vector: Tensor) -> Iterator[Tensor]:
        """Yield a vector of shape (P,) as parts with the shapes of the parameters."""
        first = 0
        for parameter in self.model.parameters():
            yield vector[first : first + parameter.numel()].reshape(parameter.shape)
            first += parameter.numel()


def inverse_fisher(gradients: Tensor, vector: Tensor, damping: float) -> Tensor:
    """Return ``(damping * I + G'G / m)^-1 v`` in float64, for gradients G of shape (m, P) and v of shape (P,)."""
    count, size = gradients.shape
    vector = vector.double()
    if count == 0:
        return vector / damping
    inner = torch.zeros((count, count), dtype=torch.float64, device=vector.device)
    inner.diagonal().add_(count * damping)
    along = torch.zeros(count, dtype=torch.float64, device=vector.device)
    for first in range(0, size, _COLUMNS):
        part = gradients[:, first : first + _COLUMNS].double()  # (m, columns)
        inner += part @ part.t()
        along += part @ vector[first : first + _COLUMNS]
    with contextlib.suppress(torch.linalg.LinAlgError):  # not finite: the step below is NaN, and is reported as such
        solution = torch.linalg.solve(inner, along)  # (m,)
        result = vector.clone()
        for first in range(0, size, _COLUMNS):
            result[first : first + _COLUMNS] -= solution @ gradients[:, first : first + _COLUMNS].double()
        return result / damping
    return torch.full_like(vector, float("nan"))
