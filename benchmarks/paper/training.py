"""Training and evaluation with all data on the device: no loader, no copies, augmentation where the images are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

EVALUATION_BATCH = 2000


def quick(device: torch.device) -> torch.device:
    """Allow a CUDA device its shorter products."""
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True
    return device


def augmented(images: Tensor, generator: torch.Generator) -> Tensor:
    """Return uint8 images, each shifted by up to 4 pixels (the border is black) and half of them mirrored.

    Parameters
    ----------
    images : Tensor of shape (n, 32, 32, 3)
    generator : torch.Generator
        On the images' device.
    """
    count, device = len(images), images.device
    padded = nn.functional.pad(images, (0, 0, 4, 4, 4, 4))  # (n, 40, 40, 3)
    top, left = torch.randint(0, 9, (2, count, 1), generator=generator, device=device)
    mirrored = torch.randint(0, 2, (count, 1), generator=generator, device=device).bool()
    across = torch.arange(32, device=device)[None]
    columns = left + torch.where(mirrored, 31 - across, across)  # (n, 32)
    rows = top + across
    who = torch.arange(count, device=device)[:, None, None]
    return padded[who, rows[:, :, None], columns[:, None, :]]


def batches(count: int, size: int, generator: torch.Generator, device: torch.device) -> Iterator[Tensor]:
    """Yield the rows of one epoch in a new order, in whole batches: what is left over waits for another epoch."""
    order = torch.randperm(count, generator=generator, device=device)
    size = min(size, count)
    for first in range(0, count - size + 1, size):
        yield order[first : first + size]


def generator_on(device: torch.device, seed: int) -> torch.Generator:
    """Return a seeded generator on a device."""
    return torch.Generator(device).manual_seed(seed)


def train(
    network: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    epochs: int,
    seed: int,
    lr: float = 0.4,
    batch_size: int = 512,
    momentum: float = 0.9,
    weight_decay: float = 5e-4,
    label_smoothing: float = 0.0,
    augment: bool = True,
) -> None:
    """Train a network where it stands, by SGD with Nesterov momentum and a one-cycle rate. It is left in eval mode.

    Parameters
    ----------
    network : nn.Module
        On the device of the images.
    images : uint8 Tensor of shape (n, 32, 32, 3)
    labels : int64 Tensor of shape (n,)
    epochs, seed : int
    lr : float
        The highest rate, reached after 30 % of the steps.
    """
    device = images.device
    generator = generator_on(device, seed)
    cuda = device.type == "cuda"
    optimiser = torch.optim.SGD(
        network.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=True, fused=cuda
    )
    per_epoch = len(images) // min(batch_size, len(images))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=lr, total_steps=max(2, epochs * per_epoch) + 1)
    network.train()
    torch.backends.cudnn.benchmark = True  # pays here, where all batches have one size, and not where sizes vary
    for _ in range(epochs):
        for rows in batches(len(images), batch_size, generator, device):
            chosen = images[rows]
            logits = network(augmented(chosen, generator) if augment else chosen)
            loss = nn.functional.cross_entropy(logits, labels[rows], label_smoothing=label_smoothing)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            schedule.step()
    torch.backends.cudnn.benchmark = False
    network.eval()


def in_batches(function: Any, inputs: Tensor, size: int = EVALUATION_BATCH) -> Tensor:
    """Return a function's rows for all inputs, a batch at a time, without gradients."""
    with torch.no_grad():
        return torch.cat([function(inputs[first : first + size]) for first in range(0, len(inputs), size)])
