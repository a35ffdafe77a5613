"""Publishes the held samples as a version for readers, with a signed certificate."""

from __future__ import annotations

from pathlib import Path

from neverseen.engine.statistics import Statistics
from neverseen.errors import KeyMissingError, LedgerError, StoreDamagedError
from neverseen.ledger import Writing
from neverseen.model.exact import ExactModel
from neverseen.model.problem import sums_digest
from neverseen.model.versions import Version
from neverseen.proof.certificates import AuditHead, Certificate, State, issue
from neverseen.proof.signing import SigningKey
from neverseen.proof.statements import class_count
from neverseen.store.agreement import require_same
from neverseen.store.description import Description
from neverseen.store.parts import SIGNING_KEY, Parts
from neverseen.store.publications import CERTIFICATES, NEWEST, note_of


def certify(parts: Parts, model: ExactModel, always: bool, audit: AuditHead | None) -> Certificate:
    """Publish the model if it changed, or `always`; see `Store.publish`."""
    ledger, publications, named = parts.ledger, parts.publications, parts.configuration
    with model.locked():
        parts.require_place()
        ledger.require_claim()
        number = publications.number
        previous = None if number == 0 else publications.checked(number)
        before = State.empty(named) if previous is None else previous.after
        pending = ledger.pending()
        require_same(parts, model.statistics)
        version = Version.of(model)
        after = state_of(model.statistics, version, named)
        if previous is not None and after == before and not pending and not always:
            if not publications.version_path(number).exists():  # lost, or removed because it was wrong
                publications.write_version(number, version)
            return previous
        learned = after.samples - before.samples + len(pending)
        bits, key = parts.description.configuration.grid_bits, signing_key(parts.folder, parts.description)
        certificate = issue(
            number + 1, None, named, before, after, learned, len(pending), pending, bits, previous, key, audit
        )
        publications.write_version(number + 1, version)
        _commit(parts, certificate)
        parts.tidy_or_warn()
        return certificate


def state_of(statistics: Statistics, version: Version | ExactModel, configuration: str) -> State:
    """Return the state of sums and their version, for a certificate."""
    if statistics.total == 0:
        return State.empty(configuration)
    sums, classes = sums_digest(statistics, version.configuration), class_count(version.classes, statistics.total)
    return State(sums, version.digest(), statistics.total, classes)


def note_published(writing: Writing, certificate: Certificate) -> None:
    """Note a certificate in the ledger as the newest."""
    writing.set_meta("published", str(certificate.number))
    writing.set_meta(NEWEST, note_of(certificate))
    writing.certify(certificate.number)


def _commit(parts: Parts, certificate: Certificate) -> None:
    """Write a certificate, and note it in the ledger.

    The file is written directly before the commit. If the commit fails, nothing else may change until the store is
    opened again, because the ledger must stay in the signed state.
    """
    number = certificate.number
    try:
        with parts.ledger.writing() as writing:
            note_published(writing, certificate)
            parts.publications.add(certificate)
    except BaseException as error:
        if not parts.publications.certificate_path(number).exists() or getattr(error, "uncertain", False):
            raise
        parts.ledger.stop_writing()
        if not isinstance(error, Exception):
            raise
        raise LedgerError(
            f"certificate {number} is in {parts.folder / CERTIFICATES}, and was not noted in the ledger ({error}): "
            "open the store again, which notes it",
            uncertain=True,
        ) from error


def signing_key(folder: Path, description: Description) -> SigningKey:
    """Return the key that a store signs with, or raise if it is missing, not readable, or another one."""
    path = folder / SIGNING_KEY
    if not path.is_file():
        raise KeyMissingError(
            f"{path}, the key that signs certificates, is missing: restore it from a copy. Nothing was changed"
        )
    found = SigningKey.load(path)
    if found.public != description.public_key:
        raise StoreDamagedError(f"{path} is not the key that this store signs with: restore it from a copy")
    return found
