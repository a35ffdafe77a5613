"""Targets that are sets of labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from neverseen.errors import LabelError
from neverseen.labels import (
    Label,
    from_private_text,
    in_class_order,
    normalise,
    order_key,
    plain,
    require_classes,
    text,
)
from neverseen.targets.kind import Columns, Targets, register


@register
class LabelSets(Targets):
    """Each sample has any number of labels, and every label with at least half the score of a certain one is predicted.

    One column more stands for the sample itself: its target is 1 for all samples, and its name is ``null``. A label is
    predicted if twice its score is at least the score of that column, so a large gamma, which shrinks all scores
    alike, does not empty the predictions.

    Examples
    --------
    >>> sets = LabelSets()
    >>> sets.label(["red", "round"]) == frozenset({"red", "round"})
    True
    >>> sets.columns([text(sets.label(["red"])), text(sets.label([]))]).values.tolist()
    [[1, 1], [1, 0]]
    """

    kind = "label-sets"
    measure = "mean-jaccard"

    def label(self, given: Any, any_label: bool = False) -> Label:
        if not isinstance(given, list | tuple | set | frozenset | np.ndarray):
            raise LabelError(f"the labels of a sample are a list or a set of labels; got {given!r}")
        members = [normalise(each) for each in given]
        if None in members:
            raise LabelError("None cannot be one of the labels of a sample: its column stands for the sample itself")
        if not any_label:
            require_classes(members)
        if len({text(each) for each in members}) != len(frozenset(members)):
            raise LabelError(f"Python takes True and 1 for one member of a set: use other labels than {given!r}")
        return frozenset(members)

    def labels(self, given: Any, any_label: bool = False) -> list[Label]:
        if getattr(given, "ndim", 1) != 1:
            raise LabelError(
                "an array of two dimensions may hold labels, or a 0 or 1 for each label there is: give a list of the "
                "labels of each sample"
            )
        return super().labels(given, any_label)

    def fits(self, label: Any) -> bool:
        return type(label) is frozenset and None not in label

    def columns(self, texts: Sequence[str]) -> Columns:
        sets = [[text(None), *map(text, self.parsed(each))] for each in texts]
        names = in_class_order({name for each in sets for name in each})
        place = {name: position for position, name in enumerate(names)}
        values = np.zeros((len(texts), len(names)), np.int64)
        for row, each in zip(values, sets, strict=True):
            row[[place[name] for name in each]] = 1
        return Columns(names, values, values != 0, np.ones(len(texts), np.int64))

    def has_columns(self, counts: Mapping[str, int]) -> bool:
        return not counts or counts.get(text(None)) == max(counts.values())

    def total(self, counts: Mapping[str, int]) -> int:
        return counts.get(text(None), 0)

    def squares(self, counts: Mapping[str, int]) -> int:
        return sum(counts.values())  # y is 1 where a sample counts, and 0 elsewhere

    def answers(self, scores: np.ndarray, names: Sequence[str], grid_bits: int) -> list[frozenset[Label]]:
        labels = [from_private_text(name) for name in names[1:]]  # null is the first in class order
        certain = 2 * scores[:, 1:] >= scores[:, :1]  # both sides are below 2**63
        return [frozenset(labels[place] for place in np.flatnonzero(row)) for row in certain]

    def score(self, answers: Any, labels: Sequence[Label]) -> float:
        """Return the mean of the shares of common labels: those in both sets, of those in either."""
        pairs = [(frozenset(said), label) for said, label in zip(answers, labels, strict=True)]
        return float(np.mean([len(a & b) / len(a | b) if a | b else 1.0 for a, b in pairs]))  # type: ignore[operator]

    def given(self, label: Label) -> list[Any]:
        return [plain(each) for each in sorted(label, key=order_key)]  # type: ignore[call-overload]

    def said(self, answers: Any) -> list[Any]:
        return [self.given(answer) for answer in answers]

    def classes(self, counts: Mapping[str, int]) -> dict[str, int]:
        return {name: count for name, count in counts.items() if name != text(None)}
