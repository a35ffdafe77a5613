"""Use a PyTorch network of your own as the backbone, and keep it in a store.

Needs PyTorch. The network has random weights, so there is nothing to download: the example shows exact forgetting, not
accuracy. For a pre-trained network from timm, use this backbone instead:

    backbone = TorchBackbone.from_timm("mobilenetv3_small_100")
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from neverseen import AnalyticClassifier, ForgettingModel, RandomProjection, store
from neverseen.backbones import Images, TorchBackbone


def network() -> nn.Module:
    """Return a network that ends in features: a batch of images in, an array of shape (n, 32) out."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )


# The module is copied and frozen. Its weights and its preprocessing are part of the model's digest.
backbone = TorchBackbone(network(), Images(size=16), name="tiny-convolutions", device="cpu")
print(backbone)

digits = load_digits()
images, labels = (digits.images[:200] * 15).astype(np.uint8), digits.target[:200]
settings = AnalyticClassifier(RandomProjection(256), gamma=2**12)

folder = Path(tempfile.mkdtemp()) / "digits"
with store.create(folder, backbone, settings) as made:
    receipts = made.learn(images, labels)
    made.publish()

# A store keeps no code, so give it the network again. It refuses any other network.
with store.open(folder, backbone=TorchBackbone(network(), Images(size=16), name="tiny-convolutions")) as opened:
    opened.forget(receipts[:50])
    certificate = opened.seal()
    print(f"certificate {certificate.number} is signed")
    digest = opened.digest()

never = ForgettingModel(backbone, settings)
never.learn(images[50:], labels[50:])
assert digest == never.digest()
print(f"equal to the model that never saw them: {digest}")
