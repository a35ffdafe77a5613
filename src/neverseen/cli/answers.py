"""Labels, predictions and scores in the output of commands, for each kind of targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from neverseen.cli.printing import shown, written
from neverseen.labels import Label, normalise, text
from neverseen.sources.written_labels import SEPARATOR

if TYPE_CHECKING:
    from neverseen.targets import Targets

_LISTS = {"label-sets": "labels", "numbers": "numbers"}
"""The field of predictions that are lists."""
MEASURED = {
    "accuracy": "right",
    "weighted-accuracy": "right, by weight",
    "mean-jaccard": "labels in both, of those in either (mean)",
    "r2": "explained variance (R²)",
}
"""What a score measures, for people."""


def field_of(targets: Targets) -> str:
    """Return the name of a prediction, or of a label, in JSON and above a column."""
    return _LISTS.get(targets.kind, "class")


def class_head(targets: Targets) -> str:
    """Return the head of a column of classes, or of the labels in sets."""
    return "label" if targets.kind == "label-sets" else "class"


def for_people(targets: Targets, answers: Sequence[Any]) -> list[Any]:
    """Return predictions for people. Lists are written as in CSV files."""
    if targets.kind not in _LISTS:
        return written(answers)
    return [
        SEPARATOR.join(f"{each:.6g}" if isinstance(each, float) else shown(each) for each in row)
        for row in targets.said(answers)
    ]


def predicted_as(targets: Targets, labels: Sequence[Label]) -> list[Any]:
    """Return the prediction that would be right for each label."""
    if targets.kind == "weighted-classes":
        return [label[0] for label in labels]  # type: ignore[index]
    return as_given(targets, labels)


def as_given(targets: Targets, labels: Sequence[Label]) -> list[Any]:
    """Return labels in a form that `Targets.label` takes: of numbers, those that it has rounded."""
    return [targets.given(label) for label in labels] if targets.kind == "numbers" else list(labels)


def fields(targets: Targets, label: Label) -> dict[str, Any]:
    """Return a label as fields of a JSON object."""
    if targets.kind == "weighted-classes":
        name, weight = targets.given(label)
        return {"class": name, "weight": weight}
    return {field_of(targets): targets.given(label)}


def score_of(targets: Targets, answers: Sequence[Any], labels: Sequence[Any]) -> float:
    """Return how good predictions are, by the measure of the targets; for classes, the share of correct ones."""
    if not targets.one_hot:
        from neverseen.model.frozen import scored

        return scored(targets, answers, labels)
    right = [text(normalise(said)) == text(normalise(label)) for said, label in zip(answers, labels, strict=True)]
    return sum(right) / len(right)


def score_view(targets: Targets, score: float | None) -> dict[str, Any]:
    """Return a score as fields of a JSON object, with the name of its measure."""
    return {"accuracy": score if targets.one_hot else None, "measure": targets.measure, "score": score}


def measured(targets: Targets) -> str:
    """Return what a score measures, for people."""
    return MEASURED.get(targets.measure, targets.measure)


def score_words(targets: Targets, score: float | None) -> str:
    """Return a score for people."""
    if score is None:
        return "none"
    return f"{score:.3f}" if targets.kind == "numbers" else f"{score:.1%}"


def kind_words(settings: dict[str, Any]) -> str:
    """Return what labels stand for, for people, given `Store.status`."""
    more = [f"{name} {value}" for name, value in settings.items() if name != "kind"]
    return ", ".join([settings["kind"], *more])
