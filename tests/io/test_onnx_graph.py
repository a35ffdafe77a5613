"""ONNX files written without a package: what the package reads from them is what was put in."""

from __future__ import annotations

import numpy as np
import pytest

from neverseen.io.onnx_graph import Graph, Shape

onnx = pytest.importorskip("onnx")


def test_the_package_reads_what_was_written() -> None:
    graph = Graph(17)
    values = {
        "float32": np.array([[1.5, -2]], np.float32),
        "float64": np.array(1e-300),
        "int64": np.array([-1, 2**62]),
        "int8": np.array([[-128], [127]], np.int8),
        "big-endian": np.arange(6, dtype=">i8").reshape(2, 3).T,
    }
    names = [graph.constant(value) for value in values.values()]
    names.append(graph.constant([1, 2], np.float64))
    settings = {"alpha": 0.25, "axis": -1, "mode": "ümlaut", "pads": [0, 300, -1, 2**40], "none": []}
    graph.add("Own", "x", *names, name="y", **settings)
    assert graph.cast("y", "int8") == "value_1"
    about: dict[str, tuple[str, Shape]] = {"x": ("float32", ["rows", 3]), "z": ("int64", [])}
    model = onnx.load_from_string(graph.model(about, {"y": ("int8", [300])}, {"b": "2", "a": "1" * 200}))
    expected = [*values.values(), np.array([1.0, 2.0])]
    for constant, wanted in zip(model.graph.initializer, expected, strict=True):
        array = onnx.numpy_helper.to_array(constant)
        assert (array.dtype, array.shape) == (wanted.dtype.newbyteorder("="), wanted.shape)
        assert np.array_equal(array, wanted)
    node, cast = model.graph.node
    assert (node.op_type, list(node.input), list(node.output)) == ("Own", ["x", *names], ["y"])
    read = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    assert read == settings | {"mode": "ümlaut".encode()}
    assert cast.attribute[0].i == onnx.TensorProto.INT8
    assert [each.name for each in (*model.graph.input, *model.graph.output)] == ["x", "z", "y"]
    lengths = model.graph.input[0].type.tensor_type.shape.dim
    assert (lengths[0].dim_param, lengths[1].dim_value) == ("rows", 3)
    assert {entry.key: entry.value for entry in model.metadata_props} == {"a": "1" * 200, "b": "2"}
    assert (model.ir_version, model.opset_import[0].version) == (8, 17)


def test_the_same_graph_is_the_same_bytes() -> None:
    def made(notes: dict[str, str]) -> bytes:
        graph = Graph(17)
        graph.add("Mul", "x", graph.constant(np.float32(2)), name="y")
        return graph.model({"x": ("float32", ["n"])}, {"y": ("float32", ["n"])}, notes)

    assert made({"a": "1", "b": "2"}) == made({"b": "2", "a": "1"})
