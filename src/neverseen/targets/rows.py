"""`Rows`: many rows of features make one sample, which is learned and forgotten as one.

A document has many passages, and a picture many pixels. Each row has a label of its own, and the model predicts rows.
A sample with all its rows has one id, one owner and one receipt.

The label of a sample says how many of its rows have each label: a tuple of pairs ``(label, rows)``, in class order. The
rows are kept in that order too, and those of one label in the order in which they were given. So the label and the
quantised features are the whole sample. Section 3.2 of ``docs/specification.md`` gives the rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from neverseen.errors import ConfigurationError, InputError, LabelError
from neverseen.labels import Label, LabelIndex, from_private_text, in_class_order, text
from neverseen.targets.classes import Classes, targets_of
from neverseen.targets.kind import Columns, Targets, register
from neverseen.targets.numbers import Numbers

_MOST = 2**16
_FROM_PYTHON = "samples of many rows are learned and forgotten with a ForgettingModel or a Store, from Python"


@register
class Rows(Targets):
    """Each sample has one or more rows, and each row has a label as the targets `each` take it.

    With classes, one column more stands for the sample itself, as with `LabelSets`: its target is 1 in all rows, and
    its name is ``null``. The number of samples of a column is how many samples have a row of it.

    Parameters
    ----------
    each : Targets, optional
        What the label of a row stands for. By default each is a class.
    most : int
        Most rows of one sample, from 1 to 2**16. A model holds at most ``2**48 / most`` samples; with numbers,
        ``2**28 / most``. Beyond that, sums might not fit 64 bits: each row adds to a sum what a sample could.

    Examples
    --------
    >>> rows = Rows(most=100)
    >>> label, order = rows.gathered(["sky", "tree", "sky"], 3)
    >>> label, order.tolist()
    ((('sky', 2), ('tree', 1)), [0, 2, 1])
    >>> rows.counted({text(label): 1})
    {'null': 1, '"sky"': 1, '"tree"': 1}
    """

    kind = "rows"

    def __init__(self, each: Targets | None = None, most: int = 1024) -> None:
        self.each = Classes() if each is None else each
        if not isinstance(self.each, Targets) or isinstance(self.each, Rows):
            raise ConfigurationError(f"each must be the Targets of a row, such as LabelSets(); got {each!r}")
        if type(most) is not int or not 1 <= most <= _MOST:
            raise ConfigurationError(f"most must be a whole number of rows from 1 to {_MOST}; got {most!r}")
        self.most, self.largest = most, most * self.each.largest

    def configuration(self) -> dict[str, Any]:
        return {"each": self.each.configuration(), "kind": self.kind, "most": self.most}

    @classmethod
    def from_configuration(cls, settings: dict[str, Any]) -> Rows:
        return cls(targets_of(settings["each"]), settings["most"])

    def __repr__(self) -> str:
        return f"Rows({'' if type(self.each) is Classes else f'{self.each}, '}most={self.most})"

    # -- labels ------------------------------------------------------------------------------------

    def label(self, given: Any, any_label: bool = False) -> Label:
        """Raise `LabelError`: a label by itself does not tell how many rows its sample has."""
        raise LabelError(_FROM_PYTHON)

    def labels(self, given: Any, any_label: bool = False) -> list[Label]:
        """Return the label of each row."""
        found = self.each.labels(given, any_label)
        if None in found:
            raise LabelError("None cannot be the label of a row: its column stands for the sample itself")
        return found

    def gathered(self, given: Any, count: int, any_label: bool = False) -> tuple[Label, np.ndarray]:
        """Return the label of a sample of so many rows, and its rows in their order, as places in those given.

        Parameters
        ----------
        given : list or array with a label for each row; anything else is the label of all rows
        """
        by_row = isinstance(given, list) or getattr(given, "ndim", 0) > 0
        found = self.labels(given if by_row else [given], any_label)
        if by_row and len(found) != count:
            raise LabelError(f"a sample has {count} rows and {len(found)} labels: give each row its label")
        index = LabelIndex(found if by_row else found * count)
        counts = np.bincount(index.positions).tolist()
        pairs = zip(map(from_private_text, index.texts), counts, strict=True)
        return tuple(pairs), np.argsort(index.positions, kind="stable")

    def fits(self, label: Any) -> bool:
        if type(label) is not tuple or not label:
            return False
        if not all(type(pair) is tuple and len(pair) == 2 and type(pair[1]) is int and pair[1] > 0 for pair in label):
            return False
        names = [text(name) for name, _ in label]
        return (
            sum(count for _, count in label) <= self.most
            and in_class_order(set(names)) == names
            and all(name is not None for name, _ in label)
            and (type(self.each) is Classes or all(self.each.fits(name) for name, _ in label))
        )

    def parsed(self, canonical: str) -> Any:
        label = from_private_text(canonical)
        if not self.fits(label):
            raise LabelError(f"{canonical[:100]} is no label of a sample of many rows: {_FROM_PYTHON}")
        return label

    def length(self, canonical: str) -> int:
        """Return how many rows the samples with this label have."""
        return sum(count for _, count in self.parsed(canonical))

    def rows(self, index: LabelIndex) -> LabelIndex:
        """Return the labels of the rows of samples, sample by sample."""
        pairs = [self.parsed(name) for name in index.texts]
        found = LabelIndex([label for each in pairs for label, _ in each])
        places = np.split(found.positions, np.cumsum([len(each) for each in pairs])[:-1]) if pairs else []
        each_row = [np.repeat(some, [count for _, count in each]) for some, each in zip(places, pairs, strict=True)]
        found.positions = np.concatenate([np.empty(0, np.intp), *(each_row[at] for at in index.positions)])
        return found

    # -- columns -----------------------------------------------------------------------------------

    def columns(self, texts: Sequence[str]) -> Columns:
        """Return what rows with these labels add to the columns."""
        found = self.each.columns(texts)
        if not isinstance(self.each, Classes):
            return found
        ones = np.ones((len(texts), 1), np.int64)  # `null` is the first in class order
        values, present = np.hstack([ones, found.values]), np.hstack([ones > 0, found.present])
        return Columns([text(None), *found.names], values, present, found.weights)

    def has_columns(self, counts: Mapping[str, int]) -> bool:
        if not counts or not isinstance(self.each, Classes):
            return self.each.has_columns(counts)
        return len(counts) > 1 and counts.get(text(None)) == max(counts.values())

    def total(self, counts: Mapping[str, int]) -> int:
        return counts.get(text(None), 0) if isinstance(self.each, Classes) else self.each.total(counts)

    def counted(self, counts: Mapping[str, int]) -> dict[str, int]:
        held: dict[str, int] = {}
        for name, count in counts.items():
            found = self.columns([text(label) for label, _ in self.parsed(name)])
            for place in np.flatnonzero(found.present.any(axis=0)):
                held[found.names[place]] = held.get(found.names[place], 0) + count
        return {name: held[name] for name in in_class_order(held) if held[name]}

    def classes(self, counts: Mapping[str, int]) -> dict[str, int]:
        return self.each.classes({name: count for name, count in counts.items() if name != text(None)})

    # -- predictions -------------------------------------------------------------------------------

    def answers(self, scores: np.ndarray, names: Sequence[str], grid_bits: int) -> Any:
        """Return the prediction for each row."""
        if isinstance(self.each, Classes):
            scores, names = scores[:, 1:], names[1:]
        return self.each.answers(scores, names, grid_bits)

    def score(self, answers: Any, labels: Sequence[Label]) -> float:
        """Return how good predictions for rows are."""
        return self.each.score(answers, labels)

    def said(self, answers: Any) -> list[Any]:
        return self.each.said(answers)

    def together(
        self, scores: np.ndarray, lengths: Sequence[int], names: Sequence[str], grid_bits: int, by: str = "scores"
    ) -> Any:
        """Return one prediction for each sample, from the scores of its rows: see `predict_together`.

        Parameters
        ----------
        scores : int64 ndarray of shape (rows, C), in grid steps
        lengths : sequence of int
            Number of rows of each sample, at least 1.
        """
        if by not in ("scores", "majority"):
            raise InputError(f"by must be 'scores' or 'majority'; got {by!r}")
        if by == "majority":
            if not isinstance(self.each, Classes):
                raise ConfigurationError(f"a majority needs a class for each row, and {self.each} has none: add scores")
            votes = np.zeros((len(scores), len(names)), np.int64)
            votes[np.arange(len(scores)), 1 + scores[:, 1:].argmax(axis=1)] = 1
            scores = votes
        summed = added(scores, lengths)
        if not isinstance(self.each, Numbers):
            return self.answers(summed, names, grid_bits)
        step = Fraction(2) ** -(grid_bits + self.each.bits)
        means = [[float(each * step / count) for each in row] for row, count in zip(summed, lengths, strict=True)]
        numbers = np.array(means, np.float64).reshape(len(means), len(names))
        return numbers[:, 0] if self.each.outputs == 1 else numbers


def added(scores: np.ndarray, lengths: Sequence[int]) -> np.ndarray:
    """Return the sum of the scores of each sample's rows, exactly: Python integers where 64 bits might not do."""
    if not len(lengths):
        return scores[:0]
    wide = int(np.abs(scores).max(initial=0)) * max(lengths) >= 2**62
    summed: np.ndarray = np.add.reduceat(
        scores.astype(object) if wide else scores, np.cumsum([0, *lengths[:-1]]), axis=0
    )
    return summed
