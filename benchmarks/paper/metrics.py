"""How far a model is from the retrained one: parameters, accuracies, and the gaps between them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from benchmarks.paper.methods.interface import Method, Samples, Tensor

PARTS = ("retained", "forgotten", "test")


def parameter_gap(parameters: Tensor, reference: Tensor) -> float:
    """Return the Euclidean distance between two parameter vectors of the same family; NaN if one is not finite.

    Parameters
    ----------
    parameters, reference : Tensor of shape (P,)
        As `Method.parameters` gives them. Running statistics of batch normalisation are not parameters.

    Examples
    --------
    >>> parameter_gap(torch.tensor([1.0, 2.0]), torch.tensor([4.0, 6.0]))
    5.0
    """
    if parameters.shape != reference.shape:
        raise ValueError(
            f"parameters have {parameters.numel():,} entries and the reference {reference.numel():,}: "
            "a gap is between models of the same family"
        )
    difference = parameters.double().cpu() - reference.double().cpu()
    gap = float(torch.linalg.vector_norm(difference))
    return gap if math.isfinite(gap) else math.nan


def accuracy(scores: Tensor, labels: Tensor) -> float:
    """Return the share of rows whose greatest score is at the label, in percent; NaN if there are no rows.

    A row with a NaN predicts nothing, and is wrong. Of equal scores the first counts.

    Examples
    --------
    >>> accuracy(torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.5, float("nan")], [0.0, 1.0]]), torch.tensor([1, 1, 0, 1]))
    50.0
    """
    if len(labels) == 0:
        return math.nan
    labels = labels.to(scores.device)
    right = (scores.argmax(1) == labels) & ~scores.isnan().any(1)
    return 100 * int(right.sum()) / len(labels)


def accuracies(method: Method, retained: Samples, forgotten: Samples, test: Samples) -> dict[str, float]:
    """Return a method's accuracy on each part, in percent: "retained", "forgotten" and "test"."""
    parts = zip(PARTS, (retained, forgotten, test), strict=True)
    return {
        name: accuracy(method.scores(part.inputs), part.labels) if len(part.labels) else math.nan
        for name, part in parts
    }


def gaps(values: Mapping[str, float], reference: Mapping[str, float]) -> dict[str, float]:
    """Return the distance of each value from the reference's, in the same unit (points, for accuracies).

    Examples
    --------
    >>> gaps({"test": 60.5, "retained": 80.0}, {"test": 62.0, "retained": 79.0})
    {'test': 1.5, 'retained': 1.0}
    """
    return {name: abs(value - reference[name]) for name, value in values.items()}


def summary(values: list[float]) -> dict[str, Any]:
    """Return mean and sample standard deviation over seeds; the deviation of a single value is None.

    Examples
    --------
    >>> summary([1.0, 2.0, 3.0])
    {'mean': 2.0, 'std': 1.0, 'count': 3}
    """
    if not values:
        raise ValueError("there are no values to summarise")
    mean = sum(values) / len(values)
    spread = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1)) if len(values) > 1 else None
    return {"mean": mean, "std": spread, "count": len(values)}
