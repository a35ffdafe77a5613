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

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from neverseen.errors import ConfigurationError, LabelError
from neverseen.labels import Label, as_array, from_private_text, in_class_order, normalise, require_classes, text
from neverseen.registry import Registry

PART = 1024
"""Labels whose rows are made at a time: each may have columns of its own, and then the rows grow with the square."""


class Columns(NamedTuple):
    """The rows of some labels: what a sample with each label adds to the columns."""

    names: list[str]  # of the columns, canonical texts in class order
    values: np.ndarray  # int64 (labels, columns): y
    present: np.ndarray  # bool (labels, columns): whether it counts as a sample of the column
    weights: np.ndarray  # int64 (labels,): how often such a sample counts


class Targets:
    """Base of the kinds of targets.

    Attributes
    ----------
    kind : str
        The name in files.
    one_hot : bool
        Whether each label is a class of its own. Other kinds cannot forget a class as a whole.
    largest : int
        Bound on the magnitude of an entry of y, and on the weight of a sample.
    """

    kind: ClassVar[str] = ""
    one_hot: ClassVar[bool] = False
    largest: int = 1

    def configuration(self) -> dict[str, Any] | None:
        """Return kind and settings as JSON values; None for classes, which files of version 0.1.0 have."""
        return {"kind": self.kind}

    @classmethod
    def from_configuration(cls, settings: dict[str, Any]) -> Targets:
        """Return the targets with this `configuration`. Do not trust it."""
        return cls()

    def label(self, given: Any, any_label: bool = False) -> Label:
        """Return the label that stands for what a caller gives; raise `LabelError` if it cannot be learned.

        With `any_label`, for samples to be forgotten, also labels of earlier versions are allowed.
        """
        raise NotImplementedError

    def labels(self, given: Any, any_label: bool = False) -> list[Label]:
        """Return the label of each sample."""
        return [self.label(each, any_label) for each in given]

    def columns(self, texts: Sequence[str]) -> Columns:
        """Return the rows of labels, given as canonical texts. The columns are those that occur.

        Texts may come from files: raise `LabelError` for a label that `label` never returns.
        """
        raise NotImplementedError

    def fits(self, label: Any) -> bool:
        """Return whether `label` may return this label; needed by `parsed`."""
        raise NotImplementedError

    def parsed(self, canonical: str) -> Any:
        """Return the label with this canonical text, or raise `LabelError` if none of these targets has it."""
        label = from_private_text(canonical)
        if not self.fits(label):
            raise LabelError(f"{canonical[:100]} is no label of {self}")
        return label

    def has_columns(self, counts: Mapping[str, int]) -> bool:
        """Return whether samples can have these columns, in this order, and so many of them each. Do not trust them."""
        return True

    def total(self, counts: Mapping[str, int]) -> int:
        """Return the number of samples, given the number of samples of each column."""
        raise NotImplementedError

    def counted(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Return the number of samples of each column, given that of each label."""
        held: dict[str, int] = {}
        labels = list(counts)
        for at in range(0, len(labels), PART):
            some = labels[at : at + PART]
            rows = self.columns(some)
            sums = rows.present.T.astype(np.int64) @ np.array([counts[each] for each in some], np.int64)
            for name, count in zip(rows.names, sums.tolist(), strict=True):
                held[name] = held.get(name, 0) + count
        return {name: held[name] for name in in_class_order(held) if held[name]}

    def squares(self, counts: Mapping[str, int]) -> int | None:
        """Return ``Σ |y|**2`` over all samples, given the number of samples of each column; None if these do not tell.

        Without it, or where samples have weights, the sums cannot choose gamma.
        """
        return sum(counts.values()) if self.one_hot else None

    def answers(self, scores: np.ndarray, names: Sequence[str], grid_bits: int) -> Any:
        """Return the prediction for each row of scores, int64 of shape (n, C) in grid steps."""
        raise NotImplementedError

    def score(self, answers: Any, labels: Sequence[Label]) -> float:
        """Return how good predictions are: 1 is best."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Targets) and type(self) is type(other) and self.configuration() == other.configuration()
        )

    def __hash__(self) -> int:
        return hash(str(self.configuration()))

    def __repr__(self) -> str:
        settings = {name: value for name, value in (self.configuration() or {}).items() if name != "kind"}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in settings.items())})"


kinds: Registry[type[Targets]] = Registry("kind of targets", "targets", {"rows": "rows:Rows"})
T = TypeVar("T", bound=type[Targets])


def register(kind: T) -> T:
    """Add a kind of targets. Use it as a decorator."""
    kinds.add(kind.kind, kind)
    return kind


def targets_of(settings: dict[str, Any] | None) -> Targets:
    """Return the targets that have this `Targets.configuration`."""
    return Classes() if settings is None else kinds[settings["kind"]].from_configuration(settings)


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


@register
class Numbers(Targets):
    """Each sample has one or more numbers, and numbers are predicted: ridge regression.

    A number is rounded to the nearest multiple of ``2**-bits`` when it is learned, ties to even.

    Parameters
    ----------
    outputs : int
        How many numbers a sample has. With one, a label may be the number itself.
    bits : int
        From -64 to 64. Choose it so that all numbers stay below ``2**(20 - bits)`` in magnitude: others are refused.

    Examples
    --------
    >>> numbers = Numbers(outputs=2, bits=4)
    >>> numbers.label([0.3, -1.0])
    (5, -16)
    >>> numbers.answers(np.array([[5 << 40, -16 << 40]]), ["0", "1"], grid_bits=40)
    array([[ 0.3125, -1.    ]])
    """

    kind = "numbers"
    largest = 2**20

    def __init__(self, outputs: int = 1, bits: int = 8) -> None:
        for name, value, least, most in (("outputs", outputs, 1, 4096), ("bits", bits, -64, 64)):
            if type(value) is not int or not least <= value <= most:
                raise ConfigurationError(f"{name} must be a whole number from {least} to {most}; got {value!r}")
        self.outputs, self.bits = outputs, bits

    def configuration(self) -> dict[str, Any]:
        return {"bits": self.bits, "kind": self.kind, "outputs": self.outputs}

    @classmethod
    def from_configuration(cls, settings: dict[str, Any]) -> Numbers:
        return cls(settings["outputs"], settings["bits"])

    def label(self, given: Any, any_label: bool = False) -> Label:
        listed = given if isinstance(given, list | tuple | np.ndarray) and np.ndim(given) == 1 else [given]
        numbers: list[Any] = [normalise(each) for each in listed]
        if len(numbers) != self.outputs or any(type(each) not in (int, float) for each in numbers):
            raise LabelError(f"a sample has {self.outputs} numbers to predict; got {given!r}")
        steps, limit = [], 2.0 ** (20 - self.bits)
        for each in numbers:
            if not -limit <= each <= limit:
                raise LabelError(
                    f"the number {each!r} is beyond {limit:g}, the limit for {self.bits} bits: use fewer bits, or "
                    "another unit"
                )
            exact = math.ldexp(each, self.bits) if abs(each) < 2**53 else Fraction(each) * Fraction(2) ** self.bits
            steps.append(round(exact))  # once, ties to even
        return tuple(steps)

    def fits(self, label: Any) -> bool:
        return (
            type(label) is tuple
            and len(label) == self.outputs
            and all(type(each) is int and abs(each) <= self.largest for each in label)
        )

    def columns(self, texts: Sequence[str]) -> Columns:
        values = np.array([self.parsed(each) for each in texts], np.int64).reshape(len(texts), self.outputs)
        names = self._names() if texts else []
        values = values[:, : len(names)]
        return Columns(names, values, np.ones(values.shape, bool), np.ones(len(texts), np.int64))

    def has_columns(self, counts: Mapping[str, int]) -> bool:
        return not counts or (list(counts) == self._names() and len(set(counts.values())) == 1)

    def _names(self) -> list[str]:
        return [text(place) for place in range(self.outputs)]

    def total(self, counts: Mapping[str, int]) -> int:
        return counts.get(text(0), 0)

    def answers(self, scores: np.ndarray, names: Sequence[str], grid_bits: int) -> np.ndarray:
        numbers: np.ndarray = np.ldexp(scores.astype(np.float64), -grid_bits - self.bits)
        return numbers[:, 0] if self.outputs == 1 else numbers

    def score(self, answers: Any, labels: Sequence[Label]) -> float:
        """Return the share of the variance that predictions explain, the mean over all outputs (R²)."""
        truth = np.ldexp(np.array(labels, np.float64).reshape(-1, self.outputs), -self.bits)
        left = ((truth - np.asarray(answers).reshape(truth.shape)) ** 2).sum(axis=0)
        spread = ((truth - truth.mean(axis=0)) ** 2).sum(axis=0)
        return float(np.mean(np.where(spread > 0, 1 - left / np.where(spread > 0, spread, 1), left == 0)))
