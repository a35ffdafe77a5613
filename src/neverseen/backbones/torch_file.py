"""Reads weights that PyTorch saved, without PyTorch and without running code from the file.

Before PyTorch 1.6 a file was five pickles (a magic number, the version of the format, facts about the machine, the
names and shapes of the tensors, the order of their storages), then each storage: its length, and little-endian numbers.
A pickle is a program for a stack machine that can call any function. The machine below calls none. It makes texts,
whole numbers, tuples, lists and dicts, records each tensor, and refuses everything else.
"""

from __future__ import annotations

import io
import math
import pickletools
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from neverseen.errors import FileRejectedError

_MAGIC, _VERSION = 0x1950A86A20F9469CFC6C, 1001
_SIZE_LIMIT = 2**30  # bytes of a file
_DICT, _TENSOR = "collections OrderedDict", "torch._utils _rebuild_tensor_v2"
_STORAGES = {"torch FloatStorage": "<f4", "torch LongStorage": "<i8"}
_PLAIN: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
}
_TAKES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "APPEND": 1, "SETITEM": 2}  # values from the stack; others: to a mark


class _Name(NamedTuple):
    """A name that the file wants to look up. It is never looked up."""

    name: str


class _Storage(NamedTuple):
    dtype: str
    key: str
    length: int


class _Tensor(NamedTuple):
    storage: _Storage
    first: int
    shape: tuple[int, ...]
    steps: tuple[int, ...]


def read_state(path: Path) -> dict[str, np.ndarray]:
    """Return the tensors of a file, float32 and int64, by name."""
    if path.stat().st_size > _SIZE_LIMIT:
        raise FileRejectedError(f"{path} is too large: at most {_SIZE_LIMIT} bytes are read")
    content = path.read_bytes()
    try:
        return _state(content)
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, struct.error) as error:
        raise FileRejectedError(f"{path} does not hold weights that can be read: {error}") from error


def _state(content: bytes) -> dict[str, np.ndarray]:
    file = io.BytesIO(content)
    if _value(file) != _MAGIC or _value(file) != _VERSION:
        raise ValueError("it is not in the format that PyTorch wrote before version 1.6")
    _value(file)  # about the machine
    tensors, keys = _value(file), _value(file)
    storages = {tensor.storage.key: tensor.storage for tensor in tensors.values()}
    if [*map(type, keys)] != [str] * len(storages) or {*keys} != {*storages}:
        raise ValueError("its storages are not those of its tensors")
    if sum(math.prod(tensor.shape) for tensor in tensors.values()) > len(content):
        raise ValueError("its tensors hold more than the file does")
    starts: dict[str, int] = {}
    for key in keys:
        (length,) = struct.unpack("<q", file.read(8))
        if length != storages[key].length:
            raise ValueError(f"the storage {key:.80} is not as long as it should be")
        starts[key] = file.tell()
        file.seek(length * np.dtype(storages[key].dtype).itemsize, io.SEEK_CUR)
    if file.tell() != len(content):
        raise ValueError("it is cut short, or too long")
    arrays = {}
    for name, (storage, first, shape, steps) in tensors.items():
        last = first + sum((length - 1) * step for length, step in zip(shape, steps, strict=True))
        if storage != storages[storage.key] or max(math.prod(shape), last + 1) > storage.length:
            raise ValueError(f"the tensor {name:.80} lies outside its storage")
        dtype = np.dtype(storage.dtype)
        place, strides = starts[storage.key] + first * dtype.itemsize, [step * dtype.itemsize for step in steps]
        arrays[name] = np.ndarray(shape, dtype, content, place, strides).copy()
    return arrays


def _value(file: io.BytesIO) -> Any:
    """Return the value of the next pickle: plain values, and a `_Tensor` for each tensor."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[Any, Any] = {}

    def taken(name: str) -> list[Any]:
        start = len(stack) - _TAKES[name] if name in _TAKES else marks.pop()
        values = stack[start:]
        del stack[start:]
        return values

    for operation, argument, _ in pickletools.genops(file):
        name = operation.name
        match name:
            case "PROTO":
                pass
            case "STOP":
                return stack.pop()
            case "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINUNICODE":
                stack.append(argument)
            case _ if name in _PLAIN:
                stack.append(_PLAIN[name]())
            case "MARK":
                marks.append(len(stack))
            case "TUPLE" | "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple(taken(name)))
            case "APPEND" | "APPENDS":
                values = taken(name)
                stack[-1].extend(values)
            case "SETITEM" | "SETITEMS":
                values = taken(name)
                _put(stack[-1], values)
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "GLOBAL" if argument in (_DICT, _TENSOR, *_STORAGES):
                stack.append(_Name(argument))
            case "BINPERSID":
                stack.append(_storage(stack.pop()))
            case "REDUCE":
                arguments, function = stack.pop(), stack.pop()
                stack.append(_made(function, arguments))
            case "BUILD":
                stack.pop()  # what PyTorch notes about its modules
            case _:
                raise ValueError(f"it has the operation {name}({argument!r:.80}), which weights do not need")
    raise ValueError("it is cut short")


def _put(target: dict[str, Any], pairs: list[Any]) -> None:
    if type(target) is not dict or any(type(key) is not str for key in pairs[::2]):  # hashing another may not end
        raise ValueError("it has names that are not texts")
    target.update(zip(pairs[::2], pairs[1::2], strict=True))


def _storage(noted: Any) -> _Storage:
    match noted:
        case ("storage", _Name(kind), str(key), str(), int(length), None) if kind in _STORAGES and length >= 0:
            return _Storage(_STORAGES[kind], key, length)
    raise ValueError("it has a storage of a kind that is not read")


def _made(function: Any, arguments: Any) -> Any:
    """Return a stand-in for the result of a call: an empty dict, or a `_Tensor`."""
    match function, arguments:
        case _Name(name), () if name == _DICT:
            return {}
        case _Name(name), (_Storage() as storage, first, tuple(shape), tuple(steps), *_) if name == _TENSOR:
            numbers = (first, *shape, *steps)
            if len(numbers) < 18 and all(type(each) is int and 0 <= each <= _SIZE_LIMIT for each in numbers):
                return _Tensor(storage, first, shape, steps)
    raise ValueError("it makes something that is not a tensor")
