"""ONNX graphs, built node by node and written as one file, without the package onnx.

An ONNX file is one protocol-buffer message (``onnx.proto``); the numbers below are its field numbers. The same graph
gives the same bytes everywhere.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

_IR_VERSION = 8
_KINDS = {"float32": 1, "int8": 3, "int64": 7, "float64": 11}  # TensorProto.DataType

Shape = Sequence[int | str]
"""The shape of an input or output; a text names a variable length."""


class Graph:
    """A graph, built by adding nodes and constants. Values have names.

    Parameters
    ----------
    opset : int
        The version of the operators.

    Examples
    --------
    >>> graph = Graph(17)
    >>> doubled = graph.add("Mul", "x", graph.constant(np.float32(2)), name="y")
    >>> len(graph.model({"x": ("float32", ["n"])}, {"y": ("float32", ["n"])}))
    115
    """

    def __init__(self, opset: int) -> None:
        self._opset = opset
        self._nodes: list[bytes] = []
        self._constants: list[bytes] = []

    def constant(self, values: Any, dtype: Any = None) -> str:
        """Add a constant, with the type of the values unless another is given, and return its name."""
        array = np.asarray(values, dtype)
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        name = f"constant_{len(self._constants)}"
        fields = [(1, length) for length in array.shape]
        self._constants.append(
            _message(*fields, (2, _KINDS[array.dtype.name]), (8, name), (9, np.ascontiguousarray(array).tobytes()))
        )
        return name

    def add(self, kind: str, *inputs: str, name: str | None = None, **settings: Any) -> str:
        """Add a node of one output, called `name` or by a number, and return the output's name."""
        output = name or f"value_{len(self._nodes)}"
        attributes = [(5, _attribute(key, value)) for key, value in settings.items()]
        self._nodes.append(_message(*((1, each) for each in inputs), (2, output), (4, kind), *attributes))
        return output

    def cast(self, value: str, dtype: str) -> str:
        """Add a node that casts a value to a type of NumPy's, and return its output's name."""
        return self.add("Cast", value, to=_KINDS[dtype])

    def model(
        self,
        inputs: Mapping[str, tuple[str, Shape]],
        outputs: Mapping[str, tuple[str, Shape]],
        notes: Mapping[str, str] | None = None,
    ) -> bytes:
        """Return the bytes of the ONNX file.

        Parameters
        ----------
        inputs, outputs : dict
            Type and shape of each, by name.
        notes : dict of str, optional
            The metadata of the file.
        """
        graph = _message(
            *((1, node) for node in self._nodes),
            (2, "neverseen"),
            *((5, constant) for constant in self._constants),
            *((11, _described(name, *about)) for name, about in inputs.items()),
            *((12, _described(name, *about)) for name, about in outputs.items()),
        )
        entries = [(14, _message((1, key), (2, value))) for key, value in sorted((notes or {}).items())]
        opset = _message((1, ""), (2, self._opset))
        return _message((1, _IR_VERSION), (2, "neverseen"), (7, graph), (8, opset), *entries)


def _described(name: str, dtype: str, shape: Shape) -> bytes:
    lengths = [(1, _message((2 if isinstance(length, str) else 1, length))) for length in shape]
    tensor = _message((1, _KINDS[dtype]), (2, _message(*lengths)))
    return _message((1, name), (2, _message((1, tensor))))


def _attribute(name: str, value: Any) -> bytes:
    if isinstance(value, float):
        return _message((1, name), (2, value), (20, 1))
    if isinstance(value, int):
        return _message((1, name), (3, value), (20, 2))
    if isinstance(value, str):
        return _message((1, name), (4, value), (20, 3))
    return _message((1, name), *((8, int(each)) for each in value), (20, 7))


def _message(*fields: tuple[int, int | float | str | bytes]) -> bytes:
    return b"".join(_written(fields))


def _written(fields: Iterable[tuple[int, int | float | str | bytes]]) -> Iterable[bytes]:
    for number, value in fields:
        if isinstance(value, int):
            yield _varint(number << 3) + _varint(value % 2**64)
        elif isinstance(value, float):
            yield _varint(number << 3 | 5) + struct.pack("<f", value)
        else:
            content = value.encode() if isinstance(value, str) else value
            yield _varint(number << 3 | 2) + _varint(len(content))
            yield content


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    parts.append(value)
    return bytes(parts)
