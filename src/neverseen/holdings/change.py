"""`Change`: one change of the samples of a model. It is made once and passed on unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from neverseen.holdings.digests import Member, Origin, Ticket
from neverseen.labels import LabelIndex, from_private_text, from_text

LEARN = "learn"
"""Samples to learn."""
FORGET = "forget"
"""Samples to forget."""
FORGET_CLASS = "forget_class"
"""A class to forget."""
_NO_ROWS = np.empty((0, 0), np.int8)


@dataclass(frozen=True, eq=False)
class Change:
    """Samples to learn or to forget, or a class to forget.

    The tickets and member digests of its samples are made once, with the change. Checking and committing it use the
    same ones, even if it is checked again because the model has changed since.

    Attributes
    ----------
    kind : str
        `LEARN`, `FORGET` or `FORGET_CLASS`.
    quantised : int8 ndarray of shape (n, d0)
        Or of shape (rows, d0), sample by sample, if samples have many rows.
    lengths : tuple of int, or None
        The number of rows of each sample; None if each is one row.
    labels : LabelIndex
        Of n samples.
    tickets : tuple of Ticket, or None
        None if the samples have no ids, or are found only by their features and labels.
    members : tuple of Member
        Class and digest of each sample.
    origin : Origin or None
        The key and configuration of its tickets and members. Only a model with the same ones makes the change.
        None if there are no members yet: the model makes them itself.
    owner : str or None
        Canonical text of the owner whose samples may be forgotten; None for any.
    name : str
        Canonical text of the class to forget.
    receipts : tuple of bytes
        The new receipts of a learn, or the receipts given to a forget; empty if there are none.
    fingerprints : tuple of bytes
        Fingerprints of the raw samples that a cache of features must drop.
    contents : tuple of bytes
        Keyed digests of the raw samples, to recognise one that is held with other features; empty for receipts.
    features : float32 ndarray of shape (n, d0), or None
        The features for a cache to keep once the samples are learned.
    seen_at : object
        The state of the model in which the ids were new (`ExactModel.check_new`), or the samples of all receipts were
        held (`ExactModel.standing`).
    request : object
        Notes for the ledger (`neverseen.ledger.Notes`). Holdings in memory ignore it.
    """

    kind: str
    quantised: np.ndarray = field(default_factory=lambda: _NO_ROWS)
    labels: LabelIndex = field(default_factory=lambda: LabelIndex([]))
    tickets: tuple[Ticket, ...] | None = None
    members: tuple[Member, ...] = ()
    origin: Origin | None = None
    owner: str | None = None
    name: str = ""
    receipts: tuple[bytes, ...] = ()
    fingerprints: tuple[bytes, ...] = ()
    contents: tuple[bytes, ...] = ()
    features: np.ndarray | None = None
    seen_at: object = None
    request: Any = None
    lengths: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        fixed = self.quantised.view()
        fixed.flags.writeable = False
        object.__setattr__(self, "quantised", fixed)

    def __len__(self) -> int:
        return len(self.labels)

    def sample(self, place: int) -> np.ndarray:
        """Return the rows of one sample: int8 of shape (1, d0), or of more rows if it has more."""
        if self.lengths is None:
            return self.quantised[place : place + 1]
        start = sum(self.lengths[:place])
        return self.quantised[start : start + self.lengths[place]]

    @property
    def classes(self) -> list[str]:
        """Canonical text of each sample's class."""
        return [self.labels.texts[position] for position in self.labels.positions]

    def facts(self) -> Iterator[dict[str, Any]]:
        """Yield id, label and owner of each sample, as they were given; for samples with tickets."""
        for ticket, name in zip(self.tickets or (), self.classes, strict=True):
            id_, owner = from_private_text(ticket.id), from_private_text(ticket.owner)
            yield {"id": id_, "label": from_text(name), "owner": owner}

    def noting(self, request: Any) -> Change:
        """Return the same change with a note, which the ledger writes in the same transaction."""
        return replace(self, request=request)
