"""The benchmark of learning in short."""

from __future__ import annotations

import argparse

import pytest

from benchmarks import learning


@pytest.mark.parametrize("method", ["exact", "float32"])
def test_a_short_run(method: str) -> None:
    if method == "float32":
        pytest.importorskip("torch")
    about = {"samples": 60, "width": 6, "size": 16, "classes": 3, "batch": 20, "seed": 0, "hardware": "numpy"}
    options = argparse.Namespace(**about)
    assert getattr(learning, method)(*learning.features(options), options) > 0
