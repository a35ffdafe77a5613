"""Tensors in a file: what is read is what was written, and each content has one encoding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from neverseen.errors import FileRejectedError
from neverseen.io.tensorfile import pack, unpack

ABOUT: dict[str, Any] = {"format": "mine", "names": ["ü", 1.5, None]}
TENSORS = {
    "b": np.array([[-1, 2**62]]),
    "a": np.arange(6, dtype=np.int8).reshape(2, 3).T,
    "none": np.empty((0, 3), np.uint8),
    "big-endian": np.arange(3, dtype=">i2"),
}
RAW = b"".join(pack(ABOUT, TENSORS))


def read(folder: Path, raw: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    path = folder / "file"
    path.write_bytes(raw)
    return unpack(path, "mine")


def test_round_trip(tmp_path: Path) -> None:
    about, tensors = read(tmp_path, RAW)
    assert about == ABOUT
    assert set(tensors) == set(TENSORS) == set(load_file(tmp_path / "file"))
    for name, wanted in TENSORS.items():
        assert np.array_equal(tensors[name], wanted)
        assert tensors[name].dtype == wanted.dtype.newbyteorder("<")
        assert not tensors[name].flags.writeable
    assert b"".join(pack(about, dict(reversed(tensors.items())))) == RAW


@given(place=st.integers(0, len(RAW) - 1), change=st.integers(1, 255))
@settings(max_examples=200)
def test_any_damaged_byte_is_noticed(tmp_path_factory: pytest.TempPathFactory, place: int, change: int) -> None:
    damaged = bytearray(RAW)
    damaged[place] ^= change
    with pytest.raises(FileRejectedError):
        read(tmp_path_factory.getbasetemp(), bytes(damaged))


@pytest.mark.parametrize("raw", [b"", RAW[:7], RAW[:100], RAW[:-1], RAW + b"\0"], ids=len)
def test_a_file_cut_short_or_grown_is_refused(tmp_path: Path, raw: bytes) -> None:
    with pytest.raises(FileRejectedError):
        read(tmp_path, raw)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other"
    with pytest.raises(FileNotFoundError, match="there is no file"):
        unpack(path, "mine")
    save_file({"a": np.zeros(3)}, path)
    with pytest.raises(FileRejectedError, match="a safetensors file of another program"):
        unpack(path, "mine")
    path.write_bytes(RAW)
    with pytest.raises(FileRejectedError, match="its format is 'mine'; this version reads 'yours'"):
        unpack(path, "yours")
