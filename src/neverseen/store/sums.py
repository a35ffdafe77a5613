"""The sums of a store: a snapshot, and the journal of the changes since."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from neverseen.engine.definiteness import why_impossible
from neverseen.errors import (
    ConfigurationError,
    InputError,
    LimitError,
    NotLearnedError,
    StoreDamagedError,
    StoreLockedError,
    warn_of,
)
from neverseen.holdings import LEARN
from neverseen.ledger import JournalRow
from neverseen.model.exact import ExactModel
from neverseen.proof.keys import Key
from neverseen.store.description import NAME
from neverseen.store.journal import HEAD_SIZE, gathered
from neverseen.store.ledger_holdings import OLDEST, LedgerHoldings
from neverseen.store.parts import SUMS, Parts
from neverseen.store.snapshots import read_snapshot, release_classes, write_snapshot

FOLD_BYTES = 2**26
"""Bytes at which the journal is folded into a snapshot."""
FOLD_SECONDS = 3600.0
"""Seconds. A journal with an older change than this is folded at the next change."""


def snapshot_of(parts: Parts) -> str:
    """Return the name of the snapshot to which the journal applies."""
    name = parts.ledger.meta("snapshot")
    if name is None:
        raise StoreDamagedError(f"the ledger of {parts.folder} names no snapshot: restore it from a copy")
    return name


def read_model(parts: Parts, snapshot: str, key: Key | None) -> ExactModel:
    """Return the model from the snapshot and the journal since."""
    description, folder = parts.description, parts.folder
    statistics = read_snapshot(folder / SUMS, snapshot, parts.hardware, description.configuration.targets)
    size = description.configuration.encoder.code_size(description.n_features)
    if (statistics.size, statistics.class_grams is not None) != (size, description.track_classes):
        raise StoreDamagedError(
            f"the sums in {folder / SUMS} have {statistics.size} codes where {NAME} has {size}, or only one of the two "
            "tracks classes: restore both from one copy"
        )
    holdings = LedgerHoldings(key, parts.ledger, parts.clock)
    holdings.oldest = parts.publications.noted_number(OLDEST)
    model = ExactModel(description.configuration, description.n_features, holdings, parts.hardware, statistics)

    def noted() -> Iterator[JournalRow]:
        for record in parts.ledger.journal(snapshot=snapshot):
            holdings.noted(record)
            yield record

    sums, why, gone = model.statistics, None, False
    try:
        for change in gathered(noted(), model.n_features, description.configuration.targets):
            gone |= change.kind != LEARN
            model.replay(change)
    except (NotLearnedError, LimitError, ConfigurationError, InputError) as error:
        why = str(error)
    if why is None and gone:  # what only adds samples cannot make impossible sums of possible ones
        counts = [sums.counts[each] for each in sums.classes]
        why = why_impossible(sums.packed(), sums.cross().T, counts, sums.total, sums.targets.largest)
    if why is not None:
        raise StoreDamagedError(f"the journal of {folder} does not fit its sums: {why}. Restore both from one copy")
    return model


def require_read(parts: Parts, model: ExactModel) -> None:
    """Raise `StoreLockedError` unless the journal is the one that a model was read from.

    Its numbers do not tell: they begin anew after a seal.
    """
    if hashlib.sha256(parts.ledger.journal_heads(HEAD_SIZE)).digest() != _holdings(model).heads.digest():
        raise changed_meanwhile(parts)


def changed_meanwhile(parts: Parts) -> StoreLockedError:
    """Return the error for a ledger that another process changed while its store was being opened."""
    return StoreLockedError(
        f"another process changed the ledger of {parts.folder} meanwhile. Make sure that only one process writes the "
        "store, and open it again"
    )


def stored_model(parts: Parts) -> ExactModel:
    """Return the model on disk, without its key, even while another process changes it."""
    for _ in range(10):  # the writer may fold, and remove this snapshot, meanwhile
        snapshot = snapshot_of(parts)
        try:
            return read_model(parts, snapshot, None)
        except StoreDamagedError:
            if snapshot == snapshot_of(parts):
                raise
    raise StoreDamagedError(f"the sums in {parts.folder / SUMS} changed while they were being read: try again")


def fold_if_due(parts: Parts, model: ExactModel) -> None:
    """Fold a long or old journal after a change. If that fails, only warn: the change is made."""
    held = _holdings(model)
    age = parts.clock() - held.oldest  # negative if the clock was set back: how old the journal is, nobody knows
    if held.journal_bytes > FOLD_BYTES or (held.journal_bytes and not 0 <= age <= FOLD_SECONDS):
        try:
            fold(parts, model)
        except Exception as error:  # what led here is on disk and stands: who made it must hear that it was made
            why = str(error) or type(error).__name__
            warn_of(f"the journal of {parts.folder} was not folded, and will be with a later change: {why}")


def scrub(parts: Parts, model: ExactModel) -> None:
    """Clear forgotten samples from sums, memory and ledger; see `Store.scrub`."""
    ledger = parts.ledger
    with model.locked():
        fold(parts, model)
        model.discard_hints()
        ledger.scrub()
        unpublished = "yes" if ledger.pending() else None
        with ledger.writing() as writing:
            writing.set_meta("unsealed", unpublished)
            writing.set_meta("sealed", str(parts.publications.number))


def fold(parts: Parts, model: ExactModel) -> None:
    """Write the sums as a snapshot, and drop the journal that led to them."""
    held, folder = _holdings(model), parts.folder / SUMS
    with model.locked():
        parts.require_place()
        parts.ledger.require_claim()
        name = write_snapshot(folder, model.statistics)
        with parts.ledger.writing() as writing:
            writing.set_meta("snapshot", name)
            writing.drop_journal(held.last_record)
            writing.set_meta(OLDEST, None)
        held.journal_bytes = 0
        release_classes(folder, name, model.statistics)
        parts.tidy()


def _holdings(model: ExactModel) -> LedgerHoldings:
    if not isinstance(model.holdings, LedgerHoldings):  # `read_model` made them
        raise TypeError("the holdings of a store are in its ledger")
    return model.holdings
