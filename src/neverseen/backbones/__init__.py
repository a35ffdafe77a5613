"""Backbones: frozen networks that turn raw samples into features.

A backbone has a name, a number of features, ``extract(samples)`` and a digest of its weights and preprocessing.
`Backbone` is the protocol. `register` adds a kind of backbone by name. The libraries that run networks are imported
only when a backbone is made.
"""

from neverseen.backbones.base_set import BaseSet
from neverseen.backbones.base_training import base_train
from neverseen.backbones.cache import Cached
from neverseen.backbones.contents import as_list, decoded, fingerprint
from neverseen.backbones.images import Images
from neverseen.backbones.named import efficientnet_lite0, minilm
from neverseen.backbones.network import PerSample
from neverseen.backbones.onnx_runtime import OnnxBackbone
from neverseen.backbones.precomputed import Precomputed
from neverseen.backbones.progress import progress_bar
from neverseen.backbones.protocol import Backbone, FeatureCache, FullBackbone
from neverseen.backbones.pytorch import TorchBackbone
from neverseen.backbones.recipes import Recipe, register
from neverseen.backbones.texts import Texts

__all__ = [
    "Backbone",
    "BaseSet",
    "Cached",
    "FeatureCache",
    "FullBackbone",
    "Images",
    "OnnxBackbone",
    "PerSample",
    "Precomputed",
    "Recipe",
    "Texts",
    "TorchBackbone",
    "as_list",
    "base_train",
    "decoded",
    "efficientnet_lite0",
    "fingerprint",
    "minilm",
    "progress_bar",
    "register",
]
