"""Networks by name, from timm, torchvision and transformers, if these are installed.

Each function returns the module, its preprocessing, and the name of its architecture for the digest. That is the name
in the library, not the names of its classes, which a library may change between versions.
"""

from __future__ import annotations

import hashlib
import math
import os
from pathlib import Path
from typing import Any

from neverseen.backbones.images import Images
from neverseen.backbones.packages import imported
from neverseen.backbones.texts import Texts
from neverseen.errors import ConfigurationError

Parts = tuple[Any, Any, dict[str, Any]]

INSTALL_TORCH = "pip install torch"
INSTALL_TRANSFORMERS = "pip install transformers"
_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # mean and standard deviation


def timm_parts(name: str, pretrained: bool) -> Parts:
    """Return a network of timm without its head, in timm's own resolution and normalisation."""
    timm = imported("timm", "from_timm", "pip install timm")
    imported("timm.data", "from_timm", "pip install timm")
    try:
        module = timm.create_model(name, pretrained=pretrained, num_classes=0)
    except Exception as error:  # an unknown name, no network, no weights: the library's message says which
        raise ConfigurationError(f"timm gives no network {name!r}: {error}") from error
    config = timm.data.resolve_model_data_config(module)
    _, height, width = config["input_size"]
    if height != width or config.get("crop_mode", "center") != "center" or config["interpolation"] == "random":
        raise ConfigurationError(
            f"timm's preprocessing of {name} cannot be done with Images ({config}): use "
            "TorchBackbone(module, PerSample(timm.data.create_transform(**config)), name=...)"
        )
    preprocess = Images(
        height,
        config["mean"],
        config["std"],
        divisor=255,
        resize=math.floor(height / config["crop_pct"]),
        resample=config["interpolation"],
    )
    return module, preprocess, {"library": "timm", "model": name}


def torchvision_parts(name: str, weights: str | None) -> Parts:
    """Return a network of torchvision without its last linear layer, with the preprocessing of its weights."""
    torch = imported("torch", "from_torchvision", INSTALL_TORCH)
    models = imported("torchvision.models", "from_torchvision", "pip install torchvision")
    try:
        chosen = None if weights is None else getattr(models.get_model_weights(name), weights)
        module = models.get_model(name, weights=chosen)
    except Exception as error:  # an unknown name, no network, no weights: the library's message says which
        raise ConfigurationError(f"torchvision gives no network {name!r} with weights {weights!r}: {error}") from error
    linear = [path for path, part in module.named_modules() if isinstance(part, torch.nn.Linear)]
    if not linear:
        raise ConfigurationError(
            f"{name} has no linear layer to leave out: make a module that ends in features and use TorchBackbone"
        )
    owner, _, last = linear[-1].rpartition(".")
    setattr(module.get_submodule(owner), last, torch.nn.Identity())
    return module, torchvision_images(chosen), {"library": "torchvision", "model": name}


def torchvision_images(weights: Any) -> Images:
    """Return the preprocessing of weights of torchvision, or the usual one for None."""
    if weights is None:
        return Images(224, *_IMAGENET, divisor=255, resize=256)
    preset = weights.transforms()
    (size,), (resize,) = preset.crop_size, preset.resize_size
    return Images(size, preset.mean, preset.std, divisor=255, resize=resize, resample=preset.interpolation.value)


def transformers_parts(
    name_or_path: str | os.PathLike[str], pooling: str, normalise: bool, max_length: int, local_files_only: bool
) -> Parts:
    """Return a text network of transformers whose last hidden states are pooled."""
    if pooling not in ("mean", "cls"):
        raise ConfigurationError(f"pooling must be 'mean' or 'cls'; got {pooling!r}")
    torch = imported("torch", "from_transformers", INSTALL_TORCH)
    transformers = imported("transformers", "from_transformers", INSTALL_TRANSFORMERS)
    hub = imported("transformers.utils", "from_transformers", INSTALL_TRANSFORMERS)
    source = os.fspath(name_or_path)
    bars = hub.logging.is_progress_bar_enabled()
    hub.logging.disable_progress_bar()
    try:
        settings = {"local_files_only": local_files_only}
        module = transformers.AutoModel.from_pretrained(source, use_safetensors=True, **settings)
        tokenizer = hub.cached_file(source, "tokenizer.json", **settings)
        config = hub.cached_file(source, "config.json", **settings)
    except Exception as error:  # an unknown name, no network, a damaged file: the library's message says which
        raise ConfigurationError(
            f"transformers gives no network {source!r} with safetensors weights and a tokenizer.json: {error}"
        ) from error
    finally:
        if bars:
            hub.logging.enable_progress_bar()
    longest = getattr(module.config, "max_position_embeddings", None) or max_length
    texts = Texts(tokenizer, min(max_length, longest), getattr(module.config, "pad_token_id", None) or 0)
    architecture = {
        "library": "transformers",
        "config": hashlib.sha256(Path(config).read_bytes()).hexdigest(),
        "pooling": pooling,
        "normalise": normalise,
    }
    return _pooled(torch, module.float(), pooling, normalise), texts, architecture


def _pooled(torch: Any, model: Any, pooling: str, normalise: bool) -> Any:
    class Pooled(torch.nn.Module):  # type: ignore[misc]
        """A text network whose hidden states are reduced to one vector a text."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            states = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state  # (n, tokens, d0)
            if pooling == "cls":
                features = states[:, 0]
            else:
                mask = attention_mask.unsqueeze(-1).to(states.dtype)  # (n, tokens, 1)
                features = (states * mask).sum(1) / mask.sum(1).clamp(min=1)  # rows that only fill up have no token
            return torch.nn.functional.normalize(features, dim=1) if normalise else features

    return Pooled()
