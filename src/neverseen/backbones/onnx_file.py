"""Checks an ONNX file before a library reads it.

A file may refer to other files, or places in memory, for its weights. A digest of the file would not cover such
*external data*, and it could be anywhere. So files with external data are refused. This module reads just enough of the
protocol-buffer encoding to find it, and needs no package.
"""

from __future__ import annotations

from collections.abc import Iterator

# Which fields of a message are messages that can hold a tensor, by the numbers of onnx.proto.
_INSIDE = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
_EXTERNAL_DATA, _DATA_LOCATION = 13, 14  # of a tensor; location 0 is the file itself


def has_external_data(model: bytes) -> bool:
    """Return whether an ONNX model has external data; raise `ValueError` if it cannot be read."""
    waiting = [("model", memoryview(model))]
    while waiting:
        kind, message = waiting.pop()
        inside = _INSIDE[kind]
        for number, value in _numbered_fields(message):
            if kind == "tensor" and (number == _EXTERNAL_DATA or (number == _DATA_LOCATION and value != 0)):
                return True
            if number in inside:
                if isinstance(value, int):
                    raise ValueError("a message was expected, and a number found")
                waiting.append((inside[number], value))
    return False


def _numbered_fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the number and the value of each field: an integer, or bytes."""
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        wire = tag & 7
        if wire == 0:
            value, place = _varint(message, place)
            yield tag >> 3, value
            continue
        if wire == 2:
            size, place = _varint(message, place)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"unknown wire type {wire}")
        if place + size > len(message):
            raise ValueError("cut short")
        yield tag >> 3, message[place : place + size]
        place += size


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(message):
            raise ValueError("cut short")
        byte = message[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
    raise ValueError("a number of more than ten bytes")
