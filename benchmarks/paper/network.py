"""ResNet-18 for 32 x 32 images: a 3 x 3 stem and no max-pooling, otherwise as He et al. (2015) describe it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

WIDTHS = (1, 2, 4, 8)  # of the four stages, in units of the network's width


class Block(nn.Module):  # type: ignore[misc]
    """Two 3 x 3 convolutions and a shortcut."""

    def __init__(self, incoming: int, outgoing: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(incoming, outgoing, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outgoing)
        self.second = nn.Conv2d(outgoing, outgoing, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outgoing)
        self.shortcut = nn.Sequential()
        if stride != 1 or incoming != outgoing:
            self.shortcut = nn.Sequential(
                nn.Conv2d(incoming, outgoing, 1, stride, bias=False), nn.BatchNorm2d(outgoing)
            )

    def forward(self, maps: Tensor) -> Tensor:
        """Return the maps of the next layer."""
        inner = torch.relu(self.first_norm(self.first(maps)))
        return torch.relu(self.second_norm(self.second(inner)) + self.shortcut(maps))


class ResNet18(nn.Module):  # type: ignore[misc]
    """Uint8 images in, logits out; bfloat16 inside on CUDA.

    Parameters
    ----------
    n_classes : int
    width : int
        Channels of the first stage: 64 in the usual network, which has 8 * 64 = 512 features.
    """

    def __init__(self, n_classes: int, width: int = 64) -> None:
        super().__init__()
        self.width, self.n_classes, self.n_features = width, n_classes, width * WIDTHS[-1]
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.stages = nn.Sequential(*self._blocks())
        self.head = nn.Linear(self.n_features, n_classes)

    def _blocks(self) -> Iterator[Block]:
        incoming = self.width
        for stage, factor in enumerate(WIDTHS):
            for stride in (1 if stage == 0 else 2, 1):
                yield Block(incoming, self.width * factor, stride)
                incoming = self.width * factor

    def features(self, images: Tensor) -> Tensor:
        """Return pooled features, float32 of shape (n, 8 * width), of uint8 images of shape (n, 32, 32, 3)."""
        pixels = (images.permute(0, 3, 1, 2).float() - 120) / 64  # (n, 3, 32, 32), channels last in memory
        with torch.autocast(images.device.type, torch.bfloat16, enabled=images.is_cuda):
            maps = self.stages(self.stem(pixels))
        return maps.float().mean((2, 3))

    def forward(self, images: Tensor) -> Tensor:
        """Return float32 logits of shape (n, n_classes) of uint8 images of shape (n, 32, 32, 3)."""
        return self.head(self.features(images))


def forward_of(network: Any, batch_size: int) -> Any:
    """Return the network as training steps call it: on CUDA with kernels compiled for batches of one size.

    Batches of another size take the network as it is. The layers are those of the network itself, so what is learned
    is there at once, and copies of a network share their kernels.
    """
    if not isinstance(network, ResNet18) or not next(network.parameters()).is_cuda:
        return network
    compiled = torch.compile(network.features, dynamic=False)

    def forward(images: Tensor) -> Tensor:
        features = compiled if len(images) == batch_size else network.features
        return network.head(features(images))

    return forward


def save_network(network: ResNet18, path: Path) -> None:
    """Write the weights as safetensors."""
    from safetensors.torch import save_file

    about = {"n_classes": str(network.n_classes), "width": str(network.width)}
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}
    save_file(state, path, metadata=about)


def load_network(path: Path, device: torch.device) -> ResNet18:
    """Read what `save_network` wrote."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        about = file.metadata()
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    network = ResNet18(int(about["n_classes"]), int(about["width"]))
    network.load_state_dict(state)
    return placed(network, device)


def placed(network: ResNet18, device: torch.device) -> ResNet18:
    """Return the network on a device, laid out for it."""
    layout = torch.channels_last if device.type == "cuda" else torch.contiguous_format
    network.to(device, memory_format=layout)
    return network
