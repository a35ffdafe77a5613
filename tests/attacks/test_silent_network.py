"""The promise: nothing about samples, or about their use, leaves the machine by itself.

ONNX Runtime reports its use to its makers unless it is told not to before it is loaded: it writes files into the home
folder, and asks for the address of a server.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime")
SCRIPT = """
import os, sys
import numpy as np
from neverseen.backbones import Images, OnnxBackbone
from neverseen.io.onnx_graph import Graph

class Watching:
    def find_spec(self, name, *_):
        if name == "onnxruntime":
            print("loaded with", os.environ.get("ORT_DISABLE_TELEMETRY"))

sys.meta_path.insert(0, Watching())
graph = Graph(17)
flat = graph.add("Reshape", "x", graph.constant(np.array([-1, 48], np.int64)))
graph.add("MatMul", flat, graph.constant(np.eye(48, 8, dtype=np.float32)), name="features")
model = graph.model({"x": ("float32", ["n", 3, 4, 4])}, {"features": ("float32", ["n", 8])})
made = OnnxBackbone(model, Images(size=4), name="net")
print(made.extract([np.zeros((4, 4, 3), np.uint8)]).shape)
"""


def test_onnx_runtime_is_told_to_be_silent(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    environment |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", SCRIPT]
    run = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=120)
    assert (run.stderr, run.stdout.splitlines()) == ("", ["loaded with 1", "(1, 8)"])
    assert list(tmp_path.rglob("*")) == []
