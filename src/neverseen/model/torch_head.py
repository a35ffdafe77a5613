"""The head of a model as a PyTorch module: float features in, exact scores out.

The module carries out the operations of `neverseen.model.onnx_graph` one by one. Each of them has only one possible
result: integers below 2**53 in float64, and single IEEE operations where floats are rounded. This file needs PyTorch,
and no other imports it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from neverseen.errors import ConfigurationError, InputError, NotLearnedError
from neverseen.labels import from_text
from neverseen.model.frozen import FrozenWeights
from neverseen.model.onnx_graph import add_scores

__all__ = ["TorchHead"]

_OPERATIONS: dict[str, Callable[..., torch.Tensor]] = {  # of ONNX
    "Add": torch.add,
    "Cast": lambda values, to: values.to(to),
    "Clip": torch.clamp,
    "Concat": lambda *parts, axis: torch.cat(parts, axis),
    "Div": torch.div,
    "Floor": torch.floor,
    "Gather": lambda table, places: table[places],
    "LessOrEqual": torch.le,
    "MatMul": torch.matmul,
    "Max": torch.maximum,
    "Mul": torch.mul,
    "Pad": lambda values, ends, fill: torch.nn.functional.pad(values, (ends[1], ends[3]), value=float(fill)),
    "ReduceSum": lambda values, axes, keepdims: values.sum(dim=axes, keepdim=bool(keepdims)),
    "Round": torch.round,  # halves to even
    "Slice": lambda values, start, end, axis: values.narrow(axis[0], start[0], end[0] - start[0]),
    "Sqrt": torch.sqrt,
}
_SHAPED = ("Pad", "ReduceSum", "Slice")  # operations whose integer constants are places, not values
_TYPES = {"DOUBLE": torch.float64, "int64": torch.int64, "float64": torch.float64}


class _Program:
    """A graph that is kept as a list of operations, to be run; see `neverseen.encoding.encoder.Graph`."""

    def __init__(self) -> None:
        self.constants: dict[str, np.ndarray] = {}
        self.steps: list[tuple[str, str, tuple[Any, ...], dict[str, Any]]] = []  # result, kind, inputs, settings

    def constant(self, values: Any, dtype: type = np.float64) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants[name] = np.array(values, dtype)
        return name

    def add(self, kind: str, *inputs: str, **settings: Any) -> str:
        if kind not in _OPERATIONS:
            raise ConfigurationError(
                f"the encoder has the operation {kind}, which a TorchHead does not: export to .onnx"
            )
        given = tuple(self._places(each) if kind in _SHAPED else each for each in inputs)
        self.steps.append((f"value_{len(self.steps)}", kind, given, settings))
        return self.steps[-1][0]

    def cast(self, value: str, dtype: str) -> str:
        return self.add("Cast", value, to=_TYPES[dtype])

    def _places(self, name: str) -> Any:
        """Return the places that a constant has, as a tuple; otherwise its name."""
        found = self.constants.get(name)
        return name if found is None or found.dtype != np.int64 else tuple(found.tolist())


class TorchHead(torch.nn.Module):  # type: ignore[misc]
    """The head of a model as a module of PyTorch: it takes a network's features, and returns scores.

    `scores` returns the integers of the model itself, bit for bit, on any device with float64. The module returns them
    as float64, each rounded once. All its numbers are kept as integers, so that ``half()`` or ``to(torch.bfloat16)`` of
    a network around it change nothing here. It is frozen: it has no parameters, and lets no gradient through.

    The promise holds for PyTorch as it runs by itself. ``torch.compile`` may fuse roundings: leave the head out of it.
    The head is a copy: it knows nothing of what the model learns or forgets later, so make a new one after a forget.

    Parameters
    ----------
    weights : FrozenWeights
        Such as a published version (`Store.version`), or ``Version.of(classifier.exact)``.

    Attributes
    ----------
    labels : list
        The class of each column of the scores.
    grid_bits : int
        Scores are multiples of ``2**-grid_bits``.
    """

    def __init__(self, weights: FrozenWeights) -> None:
        super().__init__()
        if not weights.classes:
            raise NotLearnedError("this model holds no samples, so it has no scores: learn something first")
        self.labels = [from_text(name) for name in weights.classes]
        self.grid_bits, self.n_features = weights.configuration.grid_bits, weights.n_features
        program = _Program()
        self._result = add_scores(program, weights)
        self._steps = program.steps
        self._floats = {name for name, values in program.constants.items() if values.dtype == np.float64}
        for name, values in program.constants.items():
            bits = values.view(np.int64) if name in self._floats else values
            self.register_buffer(name, torch.from_numpy(bits.copy()))
        last = {each: row for row, (_, _, inputs, _) in enumerate(self._steps) for each in inputs}
        self._done = [[each for each, at in last.items() if at == row] for row in range(len(self._steps))]

    def scores(self, features: torch.Tensor) -> torch.Tensor:
        """Return exact scores in grid steps, int64 of shape (n, C).

        Parameters
        ----------
        features : tensor of shape (n, n_features), float32, float16 or bfloat16; finite
        """
        narrow = (torch.float32, torch.float16, torch.bfloat16)  # squares of these neither overflow nor underflow
        if features.ndim != 2 or features.shape[1] != self.n_features or features.dtype not in narrow:
            raise InputError(
                f"features must be float32, or narrower, of shape (n, {self.n_features}); "
                f"got {features.dtype} of shape {tuple(features.shape)}"
            )
        if not bool(torch.isfinite(features).all()):
            raise InputError("features contain NaN or infinity")
        with torch.no_grad():
            values = {"features": features}
            for (result, kind, inputs, settings), done in zip(self._steps, self._done, strict=True):
                given = [self._value(each, values) if isinstance(each, str) else each for each in inputs]
                values[result] = _OPERATIONS[kind](*given, **settings)
                for each in done:
                    values.pop(each, None)
            return values[self._result]

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return scores in float64, of shape (n, C); see `scores`."""
        return self.scores(features).double() * 2.0**-self.grid_bits

    def _value(self, name: str, values: dict[str, torch.Tensor]) -> torch.Tensor:
        if name in values:
            return values[name]
        constant = self.get_buffer(name)
        return constant.view(torch.float64) if name in self._floats else constant
