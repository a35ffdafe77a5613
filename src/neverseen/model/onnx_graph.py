"""A published version as an ONNX graph: float32 features in, exact integer scores out.

The graph does what `neverseen.encoding` and `neverseen.engine.arithmetic` do, with operations whose results leave no
choice: single IEEE operations in a fixed order where floats are rounded, and integers below 2**53 in float64 everywhere
else, whose products and sums are exact in any order.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from neverseen.encoding import (
    GaussianKernel,
    Identity,
    RandomProjection,
    kernel_thresholds,
    projection_shift,
    projection_signs,
)
from neverseen.errors import ConfigurationError, NotLearnedError
from neverseen.io.onnx_graph import Graph
from neverseen.labels import canonical_json
from neverseen.model.versions import Version

OPSET = 17
_LEAST = 1e-300  # stands for the root of a row of zeros, whose codes are zeros whatever it is divided by


def graph_of(version: Version) -> bytes:
    """Return an ONNX model with the input ``features`` and the outputs ``scores`` and ``best``.

    ``features`` is float32 of shape (n, n_features), finite. ``scores`` is int64 of shape (n, C), in grid steps: the
    same integers as `Version.scores`. ``best`` is int64 of shape (n,): the position of the greatest, and of the first
    among equals, in ``labels``, which stands with the digest of the model in the metadata: a JSON list of the labels
    as they are (texts, numbers, true, false, null; others as in the specification). ``classes`` has their canonical
    texts.
    """
    if not version.classes:
        raise NotLearnedError("the published version holds no samples, and so has no scores: learn something first")
    graph = Graph(OPSET)
    codes = _expanded(graph, _quantised(graph, version.n_features), version)
    scores = _scored(graph, codes, version.weights)
    graph.add("Identity", scores, name="scores")
    graph.add("ArgMax", scores, name="best", axis=1, keepdims=0)
    return graph.model(
        {"features": ("float32", ["n", version.n_features])},
        {"scores": ("int64", ["n", len(version.classes)]), "best": ("int64", ["n"])},
        {
            "classes": canonical_json(version.classes),
            "configuration": canonical_json(version.configuration.as_json()),
            "labels": canonical_json([json.loads(name) for name in version.classes]),
            "model": version.digest(),
        },
    )


def _double(graph: Graph, values: Any) -> str:
    return graph.constant(values, np.float64)


def _quantised(graph: Graph, width: int) -> str:
    """Add `neverseen.encoding.quantise`; the result is float64 with integers in -127..127.

    It scales rows by a power of two first, so that nothing overflows or underflows. Squares of float32 do neither in
    float64, and without that such a scaling changes no rounding: it can be left out.
    """
    features = graph.cast("features", "float64")
    squares = graph.add("Mul", features, features)
    size = 1 << (width - 1).bit_length()
    if size > width:
        ends = graph.constant([0, 0, 0, size - width], np.int64)
        squares = graph.add("Pad", squares, ends, _double(graph, 0.0))
    axis = graph.constant([1], np.int64)
    while size > 1:  # the sums of a tree, in its order
        half = size // 2
        start, middle, end = (graph.constant([place], np.int64) for place in (0, half, size))
        left = graph.add("Slice", squares, start, middle, axis)
        right = graph.add("Slice", squares, middle, end, axis)
        squares, size = graph.add("Add", left, right), half
    root = graph.add("Sqrt", graph.add("Div", squares, _double(graph, float(width))))
    factor = graph.add("Div", _double(graph, 16.0), graph.add("Max", root, _double(graph, _LEAST)))
    rounded = graph.add("Round", graph.add("Mul", features, factor))  # halves to even, as numpy.rint
    return graph.add("Clip", rounded, _double(graph, -127.0), _double(graph, 127.0))


def _expanded(graph: Graph, quantised: str, version: Version) -> str:
    encoder = version.configuration.encoder
    if isinstance(encoder, Identity):
        return quantised
    if isinstance(encoder, GaussianKernel):
        return _kernel(graph, quantised, encoder)
    if not isinstance(encoder, RandomProjection):
        raise ConfigurationError(
            f"a model with the encoder {type(encoder).__name__} cannot be exported to .onnx; use .safetensors"
        )
    signs = projection_signs(int(encoder.seed), version.n_features, int(encoder.n_codes))
    matrix = graph.cast(graph.constant(signs, np.int8), "float64")
    projected = graph.add("MatMul", quantised, matrix)  # (n, d), integers of at most 127 d0
    step = _double(graph, 2.0 ** -projection_shift(version.n_features))
    shifted = graph.add("Floor", graph.add("Mul", projected, step))  # a shift to the right
    return graph.add("Clip", shifted, _double(graph, 0.0), _double(graph, 127.0))


def _kernel(graph: Graph, quantised: str, encoder: GaussianKernel) -> str:
    """Add the codes of a `GaussianKernel`: how many thresholds are at least the squared distance to each centre."""
    centres = encoder.quantised_centres().astype(np.float64)  # (d, d0)
    thresholds = np.unique(kernel_thresholds(float(encoder.bandwidth), centres.shape[1]), return_counts=True)
    squares = graph.add("Mul", quantised, quantised)
    own = graph.add("ReduceSum", squares, graph.constant([1], np.int64), keepdims=1)  # (n, 1)
    inner = graph.add("MatMul", quantised, _double(graph, -2.0 * centres.T))  # (n, d)
    distances = graph.add("Add", graph.add("Add", inner, own), _double(graph, (centres**2).sum(axis=1)))
    codes = _double(graph, 0.0)
    for threshold, count in zip(*thresholds, strict=True):
        # A distance is at most 254**2 d0, so a threshold beyond 2**53 is as good as that.
        reached = graph.add("LessOrEqual", distances, _double(graph, min(int(threshold), 2**53)))
        codes = graph.add("Add", codes, graph.add("Mul", graph.cast(reached, "float64"), _double(graph, int(count))))
    return codes


def _scored(graph: Graph, codes: str, weights: np.ndarray) -> str:
    """Add the product with the weights, cut into limbs with ``127 * d * 2**limb_bits <= 2**53``, as `GridWeights`."""
    limb_bits = 53 - 7 - max(0, len(weights) - 1).bit_length()
    bits = max(1, int(np.abs(weights).max(initial=0)).bit_length())
    total = None
    for shift in range(0, bits, limb_bits):
        limb = weights >> shift
        if shift + limb_bits < bits:
            limb = limb & ((1 << limb_bits) - 1)  # not negative; the top limb keeps the sign
        part = graph.cast(graph.add("MatMul", codes, _double(graph, limb)), "int64")
        if shift:
            part = graph.add("Mul", part, graph.constant(1 << shift, np.int64))
        total = part if total is None else graph.add("Add", total, part)
    if total is None:  # there is always a limb
        raise ValueError("no weights")
    return total
