"""Recovers a store when it is opened, even if an earlier process died half-way."""

from __future__ import annotations

from neverseen.errors import KeyMissingError, StoreDamagedError
from neverseen.holdings import owned_number
from neverseen.model.exact import ExactModel
from neverseen.model.versions import Version
from neverseen.proof.certificates import Certificate
from neverseen.proof.keys import Keyring, tidy
from neverseen.proof.statements import class_count
from neverseen.store.agreement import require_held, require_stated
from neverseen.store.certification import note_published, state_of
from neverseen.store.parts import KEYS, Parts
from neverseen.store.publications import CERTIFICATES, NEWEST, note_of
from neverseen.store.sums import changed_meanwhile, read_model, require_read, snapshot_of


def certificate_ahead(parts: Parts) -> Certificate | None:
    """Return the certificate that a process left ahead of the ledger when it died, or None.

    Raises `StoreDamagedError` if certificates are missing, not valid, or newer than the ledger.
    """
    ledger, publications = parts.ledger, parts.publications
    for _ in range(10):  # another process may publish meanwhile
        number = publications.number
        try:
            if ledger.certificate() != number:
                raise StoreDamagedError(
                    f"the ledger of {parts.folder} is damaged: its notes 'published' and 'certificate' differ. Restore "
                    "it from a copy"
                )
            ahead = publications.ahead(number)
            if ahead is not None:
                counts, after, gone = parts.counts(), ahead.after, ledger.pending()
                held, listed = parts.targets.total(counts), [bytes.fromhex(entry) for entry in ahead.commitments]
                if (held, class_count(counts, held), gone) != (after.samples, after.classes, listed):
                    # All that it lists is still noted as forgotten, and no sample is lacking but those forgotten
                    # since: an older ledger would lack either. 0.1.0 went on after a publication that failed.
                    went_on = set(listed) <= set(gone) and held >= after.samples - (len(gone) - len(listed))
                    if ledger.meta(NEWEST) is None and went_on:
                        raise publications.left_behind(number + 1)
                    raise publications.older(number, number + 1, "it is about other samples than the ledger")
        except StoreDamagedError:
            if number == publications.number:
                raise
            continue
        if number == publications.number:
            return ahead
    raise StoreDamagedError(
        f"the certificates in {parts.folder / CERTIFICATES} changed while they were being read: try again"
    )


def recover(
    parts: Parts, keys: Keyring | None, ahead: Certificate | None, standing: tuple[str | None, ...]
) -> ExactModel:
    """Return the model for a writer, from the snapshot and the journal since.

    If the model is the one in the certificate `ahead`, that certificate is noted in the ledger now. `standing` is the
    value of `Parts.standing` before anything was read; it must be the same when this process claims the ledger.
    """
    ledger, publications = parts.ledger, parts.publications
    snapshot = snapshot_of(parts)
    model = read_model(parts, snapshot, None if keys is None else keys.membership)
    require_held(parts, model.statistics)
    if ahead is not None:
        version = Version.of(model)
        if ahead.after != state_of(model.statistics, version, ahead.configuration):
            raise publications.older(ahead.number - 1, ahead.number, "it states other sums than the ledger's")
        publications.write_version(ahead.number, version)
    else:
        require_stated(parts, model.statistics)
    if ledger.is_outdated:  # not before: a refused store stays unchanged
        _migrate(parts, keys)
    with ledger.writing(claim=True) as writing:
        if parts.standing() != standing:
            raise changed_meanwhile(parts)
        require_read(parts, model)
        # Overwrites what a process that died had not committed, so the old state cannot resurface, and no
        # other's files are needed.
        writing.set_meta("snapshot", snapshot)
        if ahead is not None:
            note_published(writing, ahead)
        elif number := publications.number:  # ledgers of 0.1.0 do not have it
            writing.set_meta(NEWEST, note_of(publications.checked(number)))
    publications.remove_unnamed()
    tidy(parts.folder / KEYS)
    parts.tidy_or_warn()
    return model


def _migrate(parts: Parts, keys: Keyring | None) -> None:
    """Bring a ledger of an older format up to date. Samples stay held, and their receipts valid."""
    if keys is None:
        raise KeyMissingError(
            f"the ledger of {parts.folder} is of an older format: open the store once for writing with its keys "
            "(keys=), which brings it up to date"
        )
    key, configuration = keys.membership, parts.description.configuration.digest()
    parts.ledger.migrate(lambda row: owned_number(configuration, key, row.owner, row.id))
