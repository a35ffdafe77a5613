"""Rehearsals: the store says what forgetting would do, and nothing changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from typing import Any

from neverseen.errors import NeverseenError
from neverseen.labels import in_class_order, normalise, text
from neverseen.service.edge.errors import Refusal
from neverseen.service.predicting import labels_of
from neverseen.service.writer.applying import class_refusal, refusal_for
from neverseen.service.writer.jobs import SampleList
from neverseen.store import Store


def effect_of_receipts(opened: Store, tokens: list[bytes], owner: str | None) -> dict[str, Any]:
    """Return the effect of forgetting these receipts, or refuse."""
    verdicts = opened.verdicts(tokens, [owner] * len(tokens))
    refusal = refusal_for(tokens, verdicts, owner)
    if refusal is not None:
        raise refusal
    return _effect(Counter(text(normalise(verdict.label)) for verdict in verdicts))


def effect_of_samples(opened: Store, given: SampleList, owner: str | None) -> dict[str, Any]:
    """Return the effect of forgetting these samples, or refuse."""
    ids = given.ids if given.ids is None or owner is None else [f"{owner}/{name}" for name in given.ids]
    opened.rehearse(opened.forgetting(given.prepared, given.labels, ids=ids, owner=owner))
    return _effect(Counter(text(normalise(label)) for label in given.labels))


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
