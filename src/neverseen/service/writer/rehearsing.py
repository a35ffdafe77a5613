"""Rehearsals and what-if: the store says what forgetting would do, and nothing changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from typing import Any

from neverseen.backbones.reading import Prepared
from neverseen.errors import NeverseenError
from neverseen.labels import in_class_order, normalise, text
from neverseen.model.intake import Verdict
from neverseen.model.without import Without, compared
from neverseen.service.edge.errors import Refusal
from neverseen.service.predicting import labels_of
from neverseen.service.writer.applying import class_refusal, refusal_for
from neverseen.service.writer.jobs import SampleList
from neverseen.store import Store


def effect_of_receipts(opened: Store, tokens: list[bytes], owner: str | None) -> dict[str, Any]:
    """Return the effect of forgetting these receipts, or refuse."""
    return _effect(Counter(text(normalise(verdict.label)) for verdict in _verdicts(opened, tokens, owner)))


def _verdicts(opened: Store, tokens: list[bytes], owner: str | None) -> list[Verdict]:
    """Return the verdicts on receipts, all of them good, or refuse."""
    verdicts = opened.verdicts(tokens, [owner] * len(tokens))
    refusal = refusal_for(tokens, verdicts, owner)
    if refusal is not None:
        raise refusal
    return verdicts


def effect_of_samples(opened: Store, given: SampleList, owner: str | None) -> dict[str, Any]:
    """Return the effect of forgetting these samples, or refuse."""
    opened.rehearse(opened.forgetting(given.prepared, given.labels, ids=_ids(given, owner), owner=owner))
    return _effect(Counter(text(normalise(label)) for label in given.labels))


def _ids(given: SampleList, owner: str | None) -> list[str] | None:
    return given.ids if given.ids is None or owner is None else [f"{owner}/{name}" for name in given.ids]


def without(opened: Store, given: list[bytes] | SampleList, owner: str | None) -> tuple[Without, Without]:
    """Return what is held, and what would be without receipts or samples, or refuse."""
    if isinstance(given, SampleList):
        left = opened.without(given.prepared, given.labels, ids=_ids(given, owner), owner=owner)
    else:
        left = opened.without([verdict.shown for verdict in _verdicts(opened, given, owner)])
    return opened.without([]), left


def difference(views: tuple[Without, Without], test: Prepared, labels: list[Any]) -> dict[str, Any]:
    """Return how what is held differs from what would be, as JSON values; `test` are samples with labels, if any."""
    found = compared(*views, test, labels)
    now, then = (
        _effect(Counter(view.held)) | {"digest": view.digest(), "accuracy": share}
        for view, share in zip(views, found.shares, strict=True)
    )
    return {"now": now, "without": then, "changed": found.changed if len(test) else None}


def effect_of_class(opened: Store, label: Any, published: Set[str] | None = None) -> dict[str, Any]:
    """Return the effect of forgetting a class, or refuse.

    Given the published classes, the answer is about these and has no counts. So a client that asks again and again
    does not see that somebody else's sample was learned or forgotten before a batch hides it among others.
    """
    name = text(normalise(label))
    if published is not None:
        if name not in published:
            raise Refusal("not_learned", "the published version has no sample of this class")
        if not opened.description.track_classes:
            raise Refusal("not_tracked", "the store does not keep sums for each class: forget the class's samples")
        [label] = labels_of((name,))
        return {"samples": None, "classes": [{"label": label, "samples": None}]}
    try:
        opened.rehearse(opened.forgetting_class(label))
    except NeverseenError as error:
        refusal = class_refusal(error)
        if refusal is None:
            raise
        raise refusal from None
    return _effect(Counter({name: opened.ledger.counts()[name]}))


def _effect(counts: Counter[str]) -> dict[str, Any]:
    names = in_class_order(counts)
    classes = [
        {"label": label, "samples": counts[name]} for label, name in zip(labels_of(tuple(names)), names, strict=True)
    ]
    return {"samples": counts.total(), "classes": classes}
