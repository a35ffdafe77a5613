"""Encoders: float features in, small integers out, the same on every machine.

An encoder works in two stages. `quantise` divides a row by its own root mean square, or by a fixed scale, and rounds it
to int8. It is the only place where floats are rounded, by single IEEE operations in a fixed order. `Encoder.expand`
turns these integers into the *code*, by integer arithmetic alone. Nothing is fitted: the settings of an encoder are
chosen before the first sample and never depend on data. Sections 1 and 2 of ``docs/specification.md`` define every bit.

`register` adds an encoder: models with it can then be saved, stored and loaded by its `Encoder.kind`.
"""

from neverseen.encoding.encoder import Encoder, encoder_of, kinds, register, require_storable
from neverseen.encoding.encoders import (
    GaussianKernel,
    Identity,
    RandomProjection,
    TwoStreams,
    projection_shift,
    projection_signs,
)
from neverseen.encoding.quantising import as_features, fixed_scale, quantise
from neverseen.encoding.settings import real_number, whole_number
from neverseen.encoding.tables import ACTIVATIONS, activation_table, kernel_thresholds

__all__ = [
    "ACTIVATIONS",
    "Encoder",
    "GaussianKernel",
    "Identity",
    "RandomProjection",
    "TwoStreams",
    "activation_table",
    "as_features",
    "encoder_of",
    "fixed_scale",
    "kernel_thresholds",
    "kinds",
    "projection_shift",
    "projection_signs",
    "quantise",
    "real_number",
    "register",
    "require_storable",
    "whole_number",
]
