"""Training and evaluation with all data on the device: no loader, no copies, augmentation where the images are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.paper.network import forward_of

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


def erased(images: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Return images with a square of `size` pixels of each made black, anywhere inside it."""
    top, left = torch.randint(0, 33 - size, (2, len(images), 1), generator=generator, device=images.device)
    along = torch.arange(32, device=images.device)[None]
    rows, columns = (along >= top) & (along < top + size), (along >= left) & (along < left + size)  # (n, 32) each
    return images.masked_fill((rows[:, :, None] & columns[:, None, :])[..., None], 0)


def mixed(images: Tensor, share: float, order: Tensor) -> Tensor:
    """Return each image mixed with another: `share` of its own."""
    return (share * images.float() + (1 - share) * images[order].float()).round().to(torch.uint8)


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
    cutout: int = 0,
    mixup: float = 0.0,
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
    cutout : int
        Pixels of the side of a square that is erased from each image; 0 for none.
    mixup : float
        Images and labels of a batch are mixed with others', the share drawn from Beta(mixup, mixup); 0 for none.
    """
    device = images.device
    generator = generator_on(device, seed)
    shares = np.random.default_rng(seed)
    cuda = device.type == "cuda"
    optimiser = torch.optim.SGD(
        network.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=True, fused=cuda
    )
    per_epoch = len(images) // min(batch_size, len(images))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=lr, total_steps=max(2, epochs * per_epoch) + 1)
    network.train()
    forward = forward_of(network, min(batch_size, len(images)))
    torch.backends.cudnn.benchmark = True  # pays here, where all batches have one size, and not where sizes vary
    for _ in range(epochs):
        for rows in batches(len(images), batch_size, generator, device):
            chosen, wanted = images[rows], labels[rows]
            chosen = augmented(chosen, generator) if augment else chosen
            chosen = erased(chosen, cutout, generator) if cutout else chosen
            share = shares.beta(mixup, mixup) if mixup else 1.0
            order = torch.randperm(len(rows), generator=generator, device=device) if mixup else None
            logits = forward(chosen if order is None else mixed(chosen, share, order))
            loss = share * nn.functional.cross_entropy(logits, wanted, label_smoothing=label_smoothing)
            if order is not None:
                others = nn.functional.cross_entropy(logits, wanted[order], label_smoothing=label_smoothing)
                loss = loss + (1 - share) * others
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
