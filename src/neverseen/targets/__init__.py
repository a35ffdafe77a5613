"""Targets: what a label asks the model to predict, as a row of integers.

A ridge model predicts the columns of ``B = Σ c'y``: `y` is the row of a sample's target. For a class, y is one-hot.
For a set of labels it has a 1 for each label, for numbers it has the numbers, as multiples of a fixed step. All are
integers, so learning and forgetting them is exact, whatever the order. Section 3.1 of ``docs/specification.md`` gives
the rules.

The label of a sample is kept as one canonical text (`neverseen.labels`), whatever it stands for: receipts, ledgers and
digests hold that text. `Targets.label` makes the label of what a caller gives, and `Targets.columns` makes rows of
labels. `register` adds a kind of targets.
"""

from __future__ import annotations

from neverseen.targets.classes import Classes, WeightedClasses, targets_of
from neverseen.targets.kind import PART, Columns, Targets, kinds, register
from neverseen.targets.label_sets import LabelSets
from neverseen.targets.numbers import Numbers
from neverseen.targets.rows import Rows

__all__ = [
    "PART",
    "Classes",
    "Columns",
    "LabelSets",
    "Numbers",
    "Rows",
    "Targets",
    "WeightedClasses",
    "kinds",
    "register",
    "targets_of",
]
