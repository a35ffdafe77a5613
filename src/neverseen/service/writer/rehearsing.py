"""Rehearsals and previews: the effect of a forget, without any change."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from neverseen.backbones.reading import Prepared
from neverseen.errors import NeverseenError
from neverseen.labels import Label, in_class_order, normalise, text
from neverseen.model.intake import Verdict
from neverseen.model.without import Without, compared
from neverseen.service.answers import labels_of
from neverseen.service.errors import Refusal, not_tracked
from neverseen.service.writer.applying import class_refusal, forgetting, refusal_for
from neverseen.service.writer.jobs import SampleList
from neverseen.store import Store
from neverseen.targets import Classes, Targets

CLASSES = Classes()


def effect_of_receipts(opened: Store, receipts: list[bytes], owner: str | None) -> dict[str, Any]:
    """Return the effect of forgetting these receipts, or refuse."""
    return _effect_of(opened, [verdict.label for verdict in _verdicts(opened, receipts, owner)])


def _verdicts(opened: Store, receipts: list[bytes], owner: str | None) -> list[Verdict]:
    """Return the verdicts on receipts; refuse unless all are good."""
    verdicts = opened.verdicts(receipts, [owner] * len(receipts))
    refusal = refusal_for(receipts, verdicts, owner)
    if refusal is not None:
        raise refusal
    return verdicts


def effect_of_samples(opened: Store, given: SampleList, owner: str | None) -> dict[str, Any]:
    """Return the effect of forgetting these samples, or refuse."""
    opened.rehearse(forgetting(opened, given, owner))
    targets = opened.description.configuration.targets
    return _effect_of(opened, [targets.label(label, any_label=True) for label in given.labels])


def without(opened: Store, given: list[bytes] | SampleList, owner: str | None) -> tuple[Without, Without]:
    """Return views of the model now, and without receipts or samples; or refuse."""
    if isinstance(given, SampleList):
        change = forgetting(opened, given, owner)
    else:
        change = opened.forgetting([verdict.shown for verdict in _verdicts(opened, given, owner)])
    return opened.without([]), opened.without(change)


def difference(
    views: tuple[Without, Without], test: Prepared, labels: list[Any], targets: Targets = CLASSES
) -> dict[str, Any]:
    """Compare the two views, as JSON values; `test` are samples with labels, if any."""
    found = compared(*views, test, labels)
    score = "accuracy" if targets.one_hot else "score"
    now, then = (
        _effect(targets.classes(view.held), len(view)) | {"digest": view.digest(), score: share}
        for view, share in zip(views, found.shares, strict=True)
    )
    measure = {} if targets.one_hot else {"measure": targets.measure}
    return {"now": now, "without": then, "changed": found.changed if len(test) else None} | measure


def effect_of_class(opened: Store, label: Any, published: Set[str] | None = None) -> dict[str, Any]:
    """Return the effect of forgetting a class, or refuse.

    If published classes are given, the answer is about these, without counts. So a client that asks repeatedly does not
    see a change by somebody else before a batch hides it.
    """
    name = text(normalise(label))
    if published is not None:
        if name not in published:
            raise Refusal("not_learned", "the published version has no sample of this class")
        if not opened.description.track_classes:
            raise not_tracked()
        [label] = labels_of((name,))
        return {"samples": None, "classes": [{"label": label, "samples": None}]}
    try:
        opened.rehearse(opened.forgetting_class(label))
    except NeverseenError as error:
        refusal = class_refusal(error)
        if refusal is None:
            raise
        raise refusal from None
    count = opened.ledger.counts()[name]
    return _effect({name: count}, count)


def _effect_of(opened: Store, labels: list[Label]) -> dict[str, Any]:
    return _effect(opened.description.configuration.targets.per_class(labels), len(labels))


def _effect(counts: Mapping[str, int], samples: int) -> dict[str, Any]:
    names = in_class_order(counts)
    classes = [
        {"label": label, "samples": counts[name]} for label, name in zip(labels_of(tuple(names)), names, strict=True)
    ]
    return {"samples": samples, "classes": classes}
