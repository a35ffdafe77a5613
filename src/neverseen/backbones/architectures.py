"""The networks of `neverseen.backbones.named` as ONNX graphs, made from their published weights."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from neverseen.io.onnx_graph import Graph, Shape

State = Mapping[str, np.ndarray]

OPSET = 17
# EfficientNet-Lite0, stage by stage: blocks, stride of the first of them, and by how much they expand the channels.
_STAGES = [(1, 1, 1), (2, 2, 6), (2, 2, 6), (3, 2, 6), (3, 1, 6), (4, 2, 6), (1, 1, 6)]
_LITE0_EPSILON = 1e-3
_MINILM_WIDTH, _MINILM_HEADS, _MINILM_EPSILON = 384, 12, 1e-12


def lite0_graph(state: State, resolution: int) -> bytes:
    """Return EfficientNet-Lite0 without its last layer, images of shape (n, 3, resolution, resolution) in."""
    graph = Graph(OPSET)
    zero, six = graph.constant(np.float32(0)), graph.constant(np.float32(6))
    size = resolution

    def convolved(value: str, layer: str, norm: str, *, stride: int = 1, clip: bool = True) -> str:
        """Add a convolution with the normalisation after it, which is folded into its weights."""
        nonlocal size
        weight = state[f"{layer}.weight"]  # (channels out, channels in of a group, k, k)
        scale, shift, mean, variance = (
            state[f"{norm}.{part}"] for part in ("weight", "bias", "running_mean", "running_var")
        )
        factor = scale / np.sqrt(variance + np.float32(_LITE0_EPSILON))
        padding = max((-(-size // stride) - 1) * stride + weight.shape[2] - size, 0)  # what is odd goes below and right
        size = -(-size // stride)
        value = graph.add(
            "Conv",
            value,
            graph.constant(weight * factor[:, None, None, None]),
            graph.constant(shift - mean * factor),
            group=weight.shape[0] if weight.shape[1] == 1 else 1,
            pads=[padding // 2] * 2 + [padding - padding // 2] * 2,
            strides=[stride] * 2,
        )
        return graph.add("Clip", value, zero, six) if clip else value

    value = convolved("samples", "_conv_stem", "_bn0", stride=2)
    block = 0
    for repeats, first, expansion in _STAGES:
        for repeat in range(repeats):
            path, before = f"_blocks.{block}", value
            if expansion > 1:
                value = convolved(value, f"{path}._expand_conv", f"{path}._bn0")
            value = convolved(value, f"{path}._depthwise_conv", f"{path}._bn1", stride=first if repeat == 0 else 1)
            value = convolved(value, f"{path}._project_conv", f"{path}._bn2", clip=False)
            if repeat > 0:
                value = graph.add("Add", value, before)
            block += 1
    value = convolved(value, "_conv_head", "_bn1")
    graph.add("ReduceMean", value, name="features", axes=[2, 3], keepdims=0)
    return graph.model(
        {"samples": ("float32", ["rows", 3, resolution, resolution])}, {"features": ("float32", ["rows", 1280])}
    )


def minilm_graph(state: State) -> bytes:
    """Return all-MiniLM-L6-v2 with the mean over a text's tokens, scaled to length 1; (n, tokens) in."""
    graph = Graph(OPSET)
    constant = graph.constant
    layers = 1 + max(int(key.split(".")[3]) for key in state if key.startswith("model.encoder.layer."))
    width = _MINILM_WIDTH

    def whole(*numbers: int) -> str:
        return constant(np.array(numbers, np.int64))

    def single(number: float) -> str:
        return constant(np.float32(number))

    def dense(value: str, path: str) -> str:
        return graph.add("Gemm", value, constant(state[f"{path}.weight"]), constant(state[f"{path}.bias"]), transB=1)

    def normed(value: str, path: str) -> str:
        parts = constant(state[f"{path}.weight"]), constant(state[f"{path}.bias"])
        return graph.add("LayerNormalization", value, *parts, epsilon=_MINILM_EPSILON)

    shape = graph.add("Shape", "input_ids")  # n, tokens
    tokens = graph.add("Slice", shape, whole(1), whole(2))
    by_head = graph.add("Concat", shape, whole(_MINILM_HEADS, width // _MINILM_HEADS), axis=0)
    mask = graph.cast("attention_mask", "float32")  # (n, tokens): 1 for a token of the text, 0 for what fills it up
    hidden = graph.add("Mul", graph.add("Sub", mask, single(1)), single(float(np.finfo(np.float32).max)))
    hidden = graph.add("Unsqueeze", hidden, whole(1, 2))  # (n, 1, 1, tokens), added to the scores of attention

    path = "model.embeddings"
    words = graph.add("Gather", constant(state[f"{path}.word_embeddings.weight"]), "input_ids")
    places = graph.add("Slice", constant(state[f"{path}.position_embeddings.weight"]), whole(0), tokens, whole(0))
    value = graph.add("Add", words, constant(state[f"{path}.token_type_embeddings.weight"][0]))
    value = normed(graph.add("Add", value, places), f"{path}.LayerNorm")
    value = graph.add("Reshape", value, whole(-1, width))  # (n tokens, width), so that one product does for all
    for layer in range(layers):
        path = f"model.encoder.layer.{layer}"

        def heads(part: str, order: list[int], value: str = value, path: str = path) -> str:
            split = graph.add("Reshape", dense(value, f"{path}.attention.self.{part}"), by_head)
            return graph.add("Transpose", split, perm=order)

        query, keys = heads("query", [0, 2, 1, 3]), heads("key", [0, 2, 3, 1])
        scores = graph.add("Mul", graph.add("MatMul", query, keys), single((width // _MINILM_HEADS) ** -0.5))
        shares = graph.add("Softmax", graph.add("Add", scores, hidden), axis=-1)  # (n, heads, tokens, tokens)
        seen = graph.add("MatMul", shares, heads("value", [0, 2, 1, 3]))
        seen = graph.add("Reshape", graph.add("Transpose", seen, perm=[0, 2, 1, 3]), whole(-1, width))
        value = graph.add("Add", dense(seen, f"{path}.attention.output.dense"), value)
        value = normed(value, f"{path}.attention.output.LayerNorm")
        inner = dense(value, f"{path}.intermediate.dense")
        error = graph.add("Erf", graph.add("Div", inner, single(2**0.5)))
        inner = graph.add("Mul", graph.add("Mul", inner, graph.add("Add", error, single(1))), single(0.5))  # GELU
        value = normed(graph.add("Add", dense(inner, f"{path}.output.dense"), value), f"{path}.output.LayerNorm")

    value = graph.add("Reshape", value, graph.add("Concat", shape, whole(width), axis=0))
    mask = graph.add("Unsqueeze", mask, whole(2))
    total = graph.add("ReduceSum", graph.add("Mul", value, mask), whole(1), keepdims=0)
    count = graph.add("Max", graph.add("ReduceSum", mask, whole(1), keepdims=0), single(1))  # rows that only fill up: 0
    mean = graph.add("Div", total, count)
    length = graph.add("Max", graph.add("ReduceL2", mean, axes=[1]), single(1e-12))
    graph.add("Div", mean, length, name="features")
    inputs: dict[str, tuple[str, Shape]] = {
        name: ("int64", ["rows", "tokens"]) for name in ("input_ids", "attention_mask")
    }
    return graph.model(inputs, {"features": ("float32", ["rows", width])})
