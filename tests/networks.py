"""Small networks for the tests of backbones, with weights made from a hash."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.samples import uniform_bytes


def images(name: str, count: int, height: int = 20, width: int = 24) -> np.ndarray:
    """Images of even noise, uint8 of shape (count, height, width, 3)."""
    return uniform_bytes(name, count, height, width, 3)


def convolutions(name: str = "network", n_features: int = 12) -> Any:
    """A convolutional network on images of 16 pixels, its batch normalisation included."""
    import torch
    from torch import nn

    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, n_features, 3),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    with torch.no_grad():
        for key, value in network.state_dict().items():
            if value.is_floating_point():
                raw = uniform_bytes(f"{name} {key}", *value.shape).astype(np.float32) / 256  # in [0, 1)
                value.copy_(torch.from_numpy(raw + 0.5 if "running_var" in key else raw - 0.5))
    return network
