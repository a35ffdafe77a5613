"""Targets that are classes, and classes with a weight for each sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from neverseen.errors import LabelError
from neverseen.labels import (
    Label,
    as_array,
    from_private_text,
    in_class_order,
    normalise,
    plain,
    require_classes,
    text,
)
from neverseen.targets.kind import Columns, Targets, kinds, register


@register
class Classes(Targets):
    """Each sample has one class, and the class with the greatest score is predicted.

    Examples
    --------
    >>> Classes().columns(['"cat"', '"dog"']).values.tolist()
    [[1, 0], [0, 1]]
    """

    kind = "classes"
    one_hot = True
    measure = "accuracy"

    def configuration(self) -> None:
        return None

    def label(self, given: Any, any_label: bool = False) -> Label:
        if not any_label:
            require_classes([given])
        return normalise(given)

    def columns(self, texts: Sequence[str]) -> Columns:
        names = in_class_order(set(texts))
        values = np.zeros((len(texts), len(names)), np.int64)
        place = {name: position for position, name in enumerate(names)}
        values[np.arange(len(texts)), [place[name] for name in texts]] = 1
        return Columns(names, values, values != 0, np.ones(len(texts), np.int64))

    def total(self, counts: Mapping[str, int]) -> int:
        return sum(counts.values())

    def answers(self, scores: np.ndarray, names: Sequence[str], grid_bits: int) -> np.ndarray:
        chosen: np.ndarray = as_array([from_private_text(name) for name in names])[scores.argmax(axis=1)]
        return chosen

    def score(self, answers: Any, labels: Sequence[Label]) -> float:
        return float(np.mean([normalise(said) == label for said, label in zip(answers, labels, strict=True)]))


@register
class WeightedClasses(Classes):
    """Each sample has one class and a weight: a label is a pair ``(class, weight)``.

    A sample of weight 3 counts like three equal samples. Weights are whole numbers from 1 to 1000, and part of the
    label: to forget the sample itself, give the same pair.

    Examples
    --------
    >>> WeightedClasses().columns([text(("cat", 3)), text(("cat", 1))])[1:]
    (array([[1],
           [1]]), array([[ True],
           [ True]]), array([3, 1]))
    """

    kind = "weighted-classes"
    one_hot = False
    measure = "weighted-accuracy"
    largest = 1000

    def configuration(self) -> dict[str, Any]:  # type: ignore[override]
        return {"kind": self.kind}

    def label(self, given: Any, any_label: bool = False) -> Label:
        pair = tuple(given) if isinstance(given, list | tuple) else ()
        weight = normalise(pair[1]) if len(pair) == 2 else None
        if type(weight) is not int or not 1 <= weight <= self.largest:
            raise LabelError(
                f"the label of a weighted sample is a pair (class, weight), where the weight is a whole number from 1 "
                f"to {self.largest}; got {given!r}"
            )
        return super().label(pair[0], any_label), weight

    def fits(self, label: Any) -> bool:
        return type(label) is tuple and len(label) == 2 and type(label[1]) is int and 1 <= label[1] <= self.largest

    def columns(self, texts: Sequence[str]) -> Columns:
        pairs = [self.parsed(each) for each in texts]
        rows = super().columns([text(name) for name, _ in pairs])
        return rows._replace(weights=np.array([weight for _, weight in pairs], np.int64))

    def score(self, answers: Any, labels: Sequence[Label]) -> float:
        right = [normalise(said) == label[0] for said, label in zip(answers, labels, strict=True)]  # type: ignore[index]
        return float(np.average(right, weights=[label[1] for label in labels]))  # type: ignore[index]

    def given(self, label: Label) -> list[Any]:
        pair: Any = label
        return [plain(pair[0]), pair[1]]


def targets_of(settings: dict[str, Any] | None) -> Targets:
    """Return the targets that have this `Targets.configuration`."""
    return Classes() if settings is None else kinds[settings["kind"]].from_configuration(settings)
