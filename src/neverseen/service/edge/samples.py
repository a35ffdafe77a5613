"""The samples that a service accepts: the kind that its backbone takes, within the operator's limits."""

from __future__ import annotations

from neverseen.backbones import Backbone
from neverseen.backbones.recipes import kind_of, reduction_of
from neverseen.service.edge.contents import Bounds
from neverseen.service.edge.result_memory import ROWS, share_of
from neverseen.service.operations.settings import Settings


def bounds_of(backbone: Backbone, settings: Settings) -> Bounds:
    """Return the limits for one body."""
    reduction = reduction_of(backbone)
    return Bounds(
        kind_of(backbone),
        backbone.n_features,
        settings.max_batch,
        settings.max_text,
        settings.max_image_bytes,
        settings.max_pixels,
        settings.max_request_pixels,
        None if reduction is None else reduction.configuration(),
        max(1, share_of(ROWS, settings.max_waiting_bytes) // (8 * backbone.n_features)),
    )
