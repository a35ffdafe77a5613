"""From a PyTorch module to one ONNX file."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from neverseen.backbones.packages import imported
from neverseen.errors import ConfigurationError

if TYPE_CHECKING:
    import torch

_INSTALL = "pip install onnx onnxscript"


def onnx_model(module: torch.nn.Module, inputs: Any, notes: str = "") -> bytes:
    """Return a module as the bytes of an ONNX file.

    The number of rows is left open, and so is the number of tokens of inputs by name; the output is called
    ``features``. The file holds nothing about the machine it was made on.

    Parameters
    ----------
    module : torch.nn.Module
        In evaluation mode.
    inputs : ndarray, tensor, or dict of them
        Two or more rows of input for the module.
    notes : str
        Kept in the file, under the name ``neverseen``.
    """
    torch = imported("torch", "exporting to ONNX", "pip install torch")
    imported("onnx", "exporting to ONNX", _INSTALL)
    imported("onnxscript", "exporting to ONNX", _INSTALL)
    placed = copy.deepcopy(module).to("cpu")
    rows, tokens = torch.export.Dim("rows"), torch.export.Dim("tokens")
    if isinstance(inputs, dict):
        arguments: dict[str, Any] = {
            "kwargs": {key: _tensor(torch, value) for key, value in inputs.items()},
            "dynamic_shapes": {key: {0: rows, 1: tokens} for key in inputs},
        }
    else:
        arguments = {"args": (_tensor(torch, inputs),), "dynamic_shapes": ({0: rows},), "input_names": ["samples"]}
    try:
        with _quiet():
            program = torch.onnx.export(placed, dynamo=True, verbose=False, output_names=["features"], **arguments)
    except Exception as error:  # whatever the exporter meets in the module
        raise ConfigurationError(f"PyTorch cannot export this module to ONNX: {error}") from error
    model = program.model_proto
    _strip(model)
    if notes:
        entry = model.metadata_props.add()
        entry.key, entry.value = "neverseen", notes
    return bytes(model.SerializeToString())


def _tensor(torch: Any, values: Any) -> Any:
    return torch.from_numpy(values) if isinstance(values, np.ndarray) else values.cpu()


def _strip(model: Any) -> None:
    """Remove the exporter's notes, which include paths of this machine's files."""
    graph = model.graph
    parts = [model, graph, *graph.node, *graph.initializer, *graph.value_info, *graph.input, *graph.output]
    for function in model.functions:
        parts += [function, *function.node, *function.value_info]
    for part in parts:
        part.ClearField("doc_string")
        part.ClearField("metadata_props")


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's warnings about its own deprecations and about optional packages."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
