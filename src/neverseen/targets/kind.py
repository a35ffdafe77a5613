"""The base of all kinds of targets, and their registry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from neverseen.errors import LabelError
from neverseen.labels import (
    Label,
    from_private_text,
    in_class_order,
    plain,
    text,
)
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
    measure : str
        What `score` measures.
    """

    kind: ClassVar[str] = ""
    one_hot: ClassVar[bool] = False
    measure: ClassVar[str] = "score"
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

    def per_class(self, labels: Sequence[Label]) -> dict[str, int]:
        """Return the number of samples of each class, or of each label in sets, given the label of each sample."""
        counts = Counter(map(text, labels))
        return dict(counts) if self.one_hot else self.classes(self.counted(counts))

    def answers(self, scores: np.ndarray, names: Sequence[str], grid_bits: int) -> Any:
        """Return the prediction for each row of scores, int64 of shape (n, C) in grid steps."""
        raise NotImplementedError

    def score(self, answers: Any, labels: Sequence[Label]) -> float:
        """Return how good predictions are: 1 is best."""
        raise NotImplementedError

    def given(self, label: Label) -> Any:
        """Return the JSON value of a label: `label` returns the same label for it, if each part is a text or a number.

        Where the label is a class, this is the class as `neverseen.labels.plain` writes it.
        """
        return plain(label)

    def said(self, answers: Any) -> list[Any]:
        """Return predictions as JSON values, written as `given` writes labels."""
        return [plain(answer) for answer in answers]

    def classes(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Return the numbers of samples of those columns that are classes, or labels of samples."""
        return dict(counts)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Targets) and type(self) is type(other) and self.configuration() == other.configuration()
        )

    def __hash__(self) -> int:
        return hash(str(self.configuration()))

    def __repr__(self) -> str:
        settings = {name: value for name, value in (self.configuration() or {}).items() if name != "kind"}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in settings.items())})"


kinds: Registry[type[Targets]] = Registry("kind of targets", "targets", {})
T = TypeVar("T", bound=type[Targets])


def register(kind: T) -> T:
    """Add a kind of targets. Use it as a decorator."""
    kinds.add(kind.kind, kind)
    return kind
