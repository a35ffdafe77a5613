"""What the gradient methods share: settings, batches, a step loop, and scores of the model that they move.

- SGD with momentum, or Adam, at a constant rate, started afresh at each request. No gradient clipping: a model that
  collapses, to NaN if need be, is a result.
- Batch normalisation is in training mode during descent, as in the public code of these methods (their loops begin
  with ``model.train()``): batch statistics normalise, and running statistics follow the batches. ``batch_norm =
  "eval"`` freezes it instead. It matters most to NegGrad, whose running statistics become those of what is forgotten.
- Images are augmented as in training; codes are not. Mixed precision is the network's own affair (bfloat16 on CUDA).
- A budget of epochs is for all requests together: each request gets ``ceil(epochs / n_requests)``.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from benchmarks.paper.methods.interface import Method, Network, Request, Samples, Start, Tensor, generator, settings_of
from benchmarks.paper.network import forward_of

_EVALUATION_BATCH = 2000


@dataclass(frozen=True)
class Descent:
    """Settings of stochastic gradient descent.

    Attributes
    ----------
    epochs : int
        Over all requests together; at least one is done for each.
    learning_rate, momentum, weight_decay : float
    batch_size : int
    batch_norm : str
        Mode of batch normalisation during descent: "train" or "eval".
    optimiser : str
        "sgd" or "adam"; Adam has its usual moments, and no use for `momentum`.
    """

    epochs: int = 10
    learning_rate: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 5e-4
    batch_size: int = 256
    batch_norm: str = "train"
    optimiser: str = "sgd"

    def __post_init__(self) -> None:
        if self.batch_norm not in ("train", "eval"):
            raise ValueError(f'batch_norm must be "train" or "eval"; got {self.batch_norm!r}')
        if self.optimiser not in ("sgd", "adam"):
            raise ValueError(f'optimiser must be "sgd" or "adam"; got {self.optimiser!r}')


def shared(total: int, n_requests: int) -> int:
    """Return the part of a budget that each request gets, rounded up."""
    return math.ceil(total / n_requests)


def batches(samples: Samples, size: int, random: Any) -> Iterator[Samples]:
    """Yield the samples once, in random order. A last batch of one sample is left out, for batch normalisation."""
    count = len(samples.labels)
    order = torch.randperm(count, generator=random, device=random.device).to(samples.labels.device)
    for first in range(0, count, size):
        rows = order[first : first + size]
        if len(rows) > 1 or count == 1:
            yield Samples(samples.inputs[rows], samples.labels[rows])


def endless(samples: Samples, size: int, random: Any) -> Iterator[Samples]:
    """Yield batches for ever, in a new order each time round; nothing if there are no samples."""
    while len(samples.labels):
        yield from batches(samples, size, random)


def require_retained(request: Request) -> Samples:
    """Return the retained samples of a request."""
    if request.retained is None:
        raise ValueError("this method reads retained samples, and the request has none: set Request.retained")
    return request.retained


class GradientMethod(Method):
    """A method that moves the parameters of a copy of the original."""

    def prepare(self, start: Start) -> None:
        """Copy the original model."""
        if start.model is None:
            raise ValueError(f"{self.name} starts from an original model: set Start.model")
        self.start = start
        self.settings = settings_of(type(self), start.settings)
        self.model: Network = copy.deepcopy(start.model).to(start.device)
        self.forward = forward_of(self.model, getattr(self.settings, "batch_size", 0))  # in training steps
        self.requests_done = self.epochs_done = 0
        self.notes = []

    def forget(self, request: Request) -> None:
        """Move the model as the method does, then count the request."""
        self.update(request)
        self.model.eval()
        self.requests_done += 1

    def update(self, request: Request) -> None:
        """Move the model."""
        raise NotImplementedError

    def random(self, purpose: int = 0) -> Any:
        """Return the generator of this request for a purpose: draws for one do not move those for another."""
        return generator(self.start.device, self.start.seed, self.requests_done, purpose)

    @property
    def epochs(self) -> int:
        """Epochs that each request gets."""
        return shared(self.settings.epochs, self.start.n_requests)

    def optimiser(self) -> Any:
        """Return a new optimiser, and set the modes of the model's layers for descent."""
        chosen, parameters = self.settings, self.model.parameters()
        self.model.train(chosen.batch_norm == "train")
        if chosen.optimiser == "adam":
            return torch.optim.Adam(parameters, chosen.learning_rate, weight_decay=chosen.weight_decay)
        return torch.optim.SGD(parameters, chosen.learning_rate, chosen.momentum, weight_decay=chosen.weight_decay)

    def logits(self, inputs: Tensor, random: Any) -> Tensor:
        """Return logits of a training batch, augmented if the start says so."""
        return self.forward(inputs if self.start.augment is None else self.start.augment(inputs, random))

    def cross_entropy(self, batch: Samples, random: Any) -> Tensor:
        """Return the mean cross-entropy of a training batch."""
        return nn.functional.cross_entropy(self.logits(batch.inputs, random), batch.labels)

    def descend(self, samples: Samples, loss: Callable[[Samples, Any], Tensor]) -> None:
        """Make steps against the gradient of ``loss(batch, random)``, over the samples, for the request's epochs."""
        optimiser, random = self.optimiser(), self.random()
        for _ in range(self.epochs):
            for batch in batches(samples, self.settings.batch_size, random):
                step(optimiser, loss(batch, random))
            self.epochs_done += 1

    def scores(self, inputs: Tensor) -> Tensor:
        """Return logits in evaluation mode, float32 of shape (n, C)."""
        return scores_of(self.model, inputs)

    def parameters(self) -> Tensor:
        """Return the parameters as one float64 vector on the CPU."""
        return parameters_of(self.model)


def step(optimiser: Any, loss: Tensor) -> None:
    """Make one step against the gradient of a loss."""
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    optimiser.step()


def scores_of(model: Network, inputs: Tensor) -> Tensor:
    """Return a model's logits in evaluation mode, a batch at a time."""
    model.eval()
    with torch.no_grad():
        parts = [model(inputs[i : i + _EVALUATION_BATCH]).float() for i in range(0, len(inputs), _EVALUATION_BATCH)]
    return torch.cat(parts)


def parameters_of(model: Network) -> Tensor:
    """Return a model's parameters as one float64 vector on the CPU; those of a `Head` in the units and order of W."""
    unit = getattr(model, "unit", None)
    if unit is not None:
        return model.weight.detach().double().cpu().t().flatten() * unit  # (d, C) flattened, as ACU and neverseen
    return torch.cat([parameter.detach().double().cpu().flatten() for parameter in model.parameters()])
