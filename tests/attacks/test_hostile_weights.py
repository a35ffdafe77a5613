"""Files of weights that want to run code, or to be more than they are: all are refused, and nothing is run."""

from __future__ import annotations

import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neverseen.backbones import torch_file
from neverseen.backbones.torch_file import read_state
from neverseen.errors import FileRejectedError

MAGIC = 0x1950A86A20F9469CFC6C
HEAD = b"".join(pickle.dumps(value, 2) for value in (MAGIC, 1001, {"little_endian": True}))
VALUES = np.arange(6, dtype="<f4")


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def number(value: int) -> bytes:
    return b"\x8a\x10" + value.to_bytes(16, "little", signed=True)


def storage(kind: str = "FloatStorage", length: int = 6, key: str = "0") -> bytes:
    return (
        b"(" + text("storage") + b"ctorch\n" + kind.encode() + b"\n" + text(key) + text("cpu") + number(length) + b"NtQ"
    )


def tensor(of: bytes, first: int = 0, shape: tuple[int, ...] = (2, 3), steps: tuple[int, ...] = (3, 1)) -> bytes:
    def packed(values: tuple[int, ...]) -> bytes:
        return b"(" + b"".join(map(number, values)) + b"t"

    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + of + number(first) + packed(shape) + packed(steps) + b"\x89}tR"


def weights(state: bytes, keys: bytes | None = None, after: bytes | None = None) -> bytes:
    """A whole file, whose fourth pickle makes `state`."""
    keys = pickle.dumps(["0"], 2) if keys is None else keys
    after = struct.pack("<q", 6) + VALUES.tobytes() if after is None else after
    return HEAD + b"\x80\x02" + state + b"." + keys + after


def named(*tensors: bytes) -> bytes:
    entries = b"".join(text(f"w{row}") + each for row, each in enumerate(tensors))
    return b"}(" + entries + b"u"


def read(content: bytes, folder: Path) -> dict[str, np.ndarray]:
    path = folder / "weights.pth"
    path.write_bytes(content)
    return read_state(path)


def test_the_file_that_the_others_are_made_from_is_read(tmp_path: Path) -> None:
    assert np.array_equal(read(weights(named(tensor(storage()))), tmp_path)["w0"], VALUES.reshape(2, 3))


class Hostile:
    """What a pickle of it would run."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("place", range(5))
def test_no_pickle_runs_code(place: int, protocol: int, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    attack = pickle.dumps(Hostile(os.system, f"touch {mark}"), protocol)
    values: tuple[Any, ...] = (MAGIC, 1001, {}, {}, [])
    parts = [pickle.dumps(value, 2) for value in values]
    parts[place] = attack
    with pytest.raises(FileRejectedError, match="does not hold weights that can be read: it has the operation"):
        read(b"".join(parts), tmp_path)
    assert not mark.exists()


@pytest.mark.parametrize(
    "state",
    [
        b"cbuiltins\neval\n(" + text("1/0") + b"tR",
        b"cneverseen.backbones.torch_file\nread_state\n",
        b"(" + text("touch /tmp/x") + b"ios\nsystem\n",  # INST
        text("os") + text("system") + b"\x93",  # STACK_GLOBAL
        b"ctorch\nFloatStorage\n(" + number(2**40) + b"tR",
        b"ccollections\nOrderedDict\n" + b"(}tR",
        b"ccollections\nOrderedDict\n)\x81",  # NEWOBJ
        b"\x82\x01",  # an extension
    ],
)
def test_nothing_but_tensors_is_made(state: bytes, tmp_path: Path) -> None:
    with pytest.raises(FileRejectedError, match="does not hold weights"):
        read(weights(state), tmp_path)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (named(tensor(storage(), shape=(7,), steps=(1,))), "hold more than the file|outside its storage"),
        (named(tensor(storage(), first=1)), "w0 lies outside its storage"),
        (named(tensor(storage(), shape=(2, 3), steps=(4, 1))), "w0 lies outside its storage"),
        (named(tensor(storage(), shape=(2**20, 2**20), steps=(0, 0))), "hold more than the file"),
        (named(tensor(storage(), shape=(-1,), steps=(1,))), "makes something that is not a tensor"),
        (named(tensor(storage(), first=-1)), "makes something that is not a tensor"),
        (named(tensor(storage(), shape=(1,) * 400, steps=(1,) * 400)), "makes something that is not a tensor"),
        (named(tensor(storage(length=7))), "storage 0 is not as long as it should be"),
        (named(tensor(storage(length=-6))), "storage of a kind that is not read"),
        (named(tensor(storage()), tensor(storage("LongStorage"))), "is not as long|outside its storage|cut short"),
        (named(tensor(storage("HalfStorage"))), r"GLOBAL\('torch HalfStorage'\)"),
        (named(tensor(storage(key="1"))), "storages are not those of its tensors"),
        (b"}" + b")" * 2 + b"s", "names that are not texts"),
        (b"}" + b")" + b"\x85" * 200_000 + b"Ns", "names that are not texts"),  # a hash of 200,000 calls
        (b"]", "has no attribute"),
        (b"N", "has no attribute"),
        (b"r\xff\xff\xff\xff", "list index out of range"),  # a place in a table of 32 GiB
        (b"\x8d" + b"\xff" * 8, "does not hold weights"),  # a text of 2**64 bytes
    ],
)
def test_sizes_and_names_are_checked_first(state: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(FileRejectedError, match=message):
        read(weights(state), tmp_path)


def test_what_comes_after_must_fit(tmp_path: Path) -> None:
    state, rest = named(tensor(storage())), struct.pack("<q", 6) + VALUES.tobytes()
    for after in (rest[:-1], rest + b"\0", rest[:4], b"", struct.pack("<q", 2**62) + VALUES.tobytes()):
        with pytest.raises(FileRejectedError, match="does not hold weights"):
            read(weights(state, after=after), tmp_path)
    for keys in (["0", "0"], [], ["1"], [()], 3):
        with pytest.raises(FileRejectedError, match="does not hold weights"):
            read(weights(state, keys=pickle.dumps(keys, 2)), tmp_path)


def test_many_tensors_of_one_storage_take_no_memory(tmp_path: Path) -> None:
    part = tensor(storage(length=10**5), shape=(10**5,), steps=(1,))
    with pytest.raises(FileRejectedError, match="its tensors hold more than the file does"):
        read(weights(named(*[part] * 10), after=struct.pack("<q", 10**5) + bytes(4 * 10**5)), tmp_path)


def test_other_formats_and_large_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for content in (b"", b"PK\x03\x04" + bytes(100), pickle.dumps(1, 2) * 5):
        with pytest.raises(FileRejectedError, match="does not hold weights"):
            read(content, tmp_path)
    monkeypatch.setattr(torch_file, "_SIZE_LIMIT", 100)
    with pytest.raises(FileRejectedError, match="is too large: at most 100 bytes are read"):
        read(weights(named(tensor(storage()))), tmp_path)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_changed_file_is_read_or_refused(changes: list[tuple[int, int]]) -> None:
    content = bytearray(weights(named(tensor(storage()))))
    for place, value in changes:
        content[place % len(content)] = value
    try:
        state = torch_file._state(bytes(content))
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, struct.error):
        return
    assert all(value.dtype in (np.float32, np.int64) and value.nbytes <= len(content) for value in state.values())
