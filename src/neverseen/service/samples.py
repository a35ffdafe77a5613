"""What a service takes: the kind of sample that its backbone sees, within the operator's limits."""

from __future__ import annotations

from typing import Any

from neverseen.backbones import Backbone, Precomputed
from neverseen.service.contents import Bounds
from neverseen.service.settings import Settings


def kind_of(backbone: Backbone) -> str:
    """Return what a backbone takes: ``"features"``, ``"images"`` or ``"texts"``."""
    inner: Any = getattr(backbone, "backbone", backbone)  # of a cache
    if isinstance(inner, Precomputed) or not hasattr(inner, "preprocess"):
        return "features"
    return "texts" if type(inner.preprocess).__name__ == "Texts" else "images"


def bounds_of(backbone: Backbone, settings: Settings) -> Bounds:
    """Return what one body may hold."""
    return Bounds(
        kind_of(backbone),
        backbone.n_features,
        settings.max_batch,
        settings.max_text,
        settings.max_image_bytes,
        settings.max_pixels,
        settings.max_request_pixels,
    )
