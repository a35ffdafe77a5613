"""A published version as an ONNX graph: float32 features in, exact integer scores out.

The graph computes the same as `neverseen.encoding` and `neverseen.engine.arithmetic`, with operations that have only
one possible result: where floats are rounded, single IEEE operations in a fixed order; everywhere else, integers below
2**53 in float64, whose products and sums are exact in any order.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from neverseen.encoding import fixed_scale
from neverseen.encoding.encoder import Graph
from neverseen.engine.arithmetic import require_scores_fit
from neverseen.errors import NotLearnedError
from neverseen.io.onnx_graph import Graph as File
from neverseen.io.onnx_graph import Shape
from neverseen.labels import canonical_json
from neverseen.model.frozen import FrozenWeights
from neverseen.model.versions import Version
from neverseen.targets import Classes

OPSET = 17
_LEAST = 1e-300  # stands for the root of a row of zeros, whose codes are zeros whatever it is divided by


class _Graph(File):
    """A graph whose numbers are float64 unless said otherwise."""

    def constant(self, values: Any, dtype: Any = np.float64) -> str:
        return super().constant(np.ascontiguousarray(values, dtype))

    def cast(self, value: str, dtype: str) -> str:
        return super().cast(value, {"DOUBLE": "float64"}.get(dtype, dtype))  # ONNX's own name, as encoders have it


def graph_of(version: Version) -> bytes:
    """Return an ONNX model with the input ``features`` and the outputs ``scores`` and, for classes, ``best``.

    ``features`` is float32 of shape (n, n_features), finite. ``scores`` is int64 of shape (n, C), in grid steps: the
    same integers as `Version.scores`. ``best`` is int64 of shape (n,): the position of the greatest score, or of the
    first among equals. Where labels are sets or numbers, the greatest score is no answer, and it is left out. It refers
    to ``labels`` in the metadata, a JSON list of the labels (texts, numbers, true, false,
    null; others as in the specification). The metadata also has ``classes``, their canonical texts, and the digest of
    the model.
    """
    if not version.classes:
        raise NotLearnedError("the published version holds no samples, so it has no scores: learn something first")
    graph = _Graph(OPSET)
    scores = add_scores(graph, version)
    graph.add("Identity", scores, name="scores")
    outputs: dict[str, tuple[str, Shape]] = {"scores": ("int64", ["n", len(version.classes)])}
    if isinstance(version.configuration.targets, Classes):
        graph.add("ArgMax", scores, name="best", axis=1, keepdims=0)
        outputs["best"] = ("int64", ["n"])
    return graph.model(
        {"features": ("float32", ["n", version.n_features])},
        outputs,
        {
            "classes": canonical_json(version.classes),
            "configuration": canonical_json(version.configuration.as_json()),
            "labels": canonical_json([json.loads(name) for name in version.classes]),
            "model": version.digest(),
        },
    )


def add_scores(graph: Graph, frozen: FrozenWeights) -> str:
    """Add everything from ``features`` to scores, int64 in grid steps, and return their name."""
    encoder, width = frozen.configuration.encoder, frozen.n_features
    codes = encoder.add_to(graph, _quantised(graph, width, encoder.scale), width)
    return _scored(graph, codes, frozen.weights)


def _quantised(graph: Graph, width: int, scale: float | None) -> str:
    """Add `neverseen.encoding.quantise`; the result is float64 with integers in -127..127.

    `quantise` first scales rows by a power of two, so that nothing overflows or underflows. Squares of float32 do
    neither in float64, and then the scaling changes no rounding. So it is left out here.
    """
    features = graph.cast("features", "float64")
    factor = _own_factor(graph, features, width) if scale is None else graph.constant(16.0 / fixed_scale(scale))
    rounded = graph.add("Round", graph.add("Mul", features, factor))  # halves to even, as numpy.rint
    return graph.add("Clip", rounded, graph.constant(-127.0), graph.constant(127.0))


def _own_factor(graph: Graph, features: str, width: int) -> str:
    """Add what features are multiplied by: 16 over the root mean square of their row."""
    squares = graph.add("Mul", features, features)
    size = 1 << (width - 1).bit_length()
    if size > width:
        ends = graph.constant([0, 0, 0, size - width], np.int64)
        squares = graph.add("Pad", squares, ends, graph.constant(0.0))
    axis = graph.constant([1], np.int64)
    while size > 1:  # the sums of a tree, in its order
        half = size // 2
        start, middle, end = (graph.constant([place], np.int64) for place in (0, half, size))
        left = graph.add("Slice", squares, start, middle, axis)
        right = graph.add("Slice", squares, middle, end, axis)
        squares, size = graph.add("Add", left, right), half
    root = graph.add("Sqrt", graph.add("Div", squares, graph.constant(float(width))))
    return graph.add("Div", graph.constant(16.0), graph.add("Max", root, graph.constant(_LEAST)))


def _scored(graph: Graph, codes: str, weights: np.ndarray) -> str:
    """Add the product with the weights, cut into limbs with ``127 * d * 2**limb_bits <= 2**53``, as `GridWeights`."""
    require_scores_fit(weights)
    limb_bits = 53 - 7 - max(0, len(weights) - 1).bit_length()
    bits = max(1, int(np.abs(weights).max(initial=0)).bit_length())
    total = None
    for shift in range(0, bits, limb_bits):
        limb = weights >> shift
        if shift + limb_bits < bits:
            limb = limb & ((1 << limb_bits) - 1)  # not negative; the top limb keeps the sign
        part = graph.cast(graph.add("MatMul", codes, graph.constant(limb)), "int64")
        if shift:
            part = graph.add("Mul", part, graph.constant(1 << shift, np.int64))
        total = part if total is None else graph.add("Add", total, part)
    if total is None:  # there is always a limb
        raise ValueError("no weights")
    return total
