"""`Store`: a model in a folder, that outlives its process."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from neverseen.backbones import Backbone
from neverseen.backbones.reading import Prepared, features_of
from neverseen.encoding import quantise
from neverseen.engine.definiteness import why_impossible
from neverseen.engine.packing import pack_triangle
from neverseen.engine.statistics import Statistics
from neverseen.errors import (
    AlreadyForgottenError,
    ConfigurationError,
    HardwareError,
    KeyMissingError,
    LedgerError,
    LimitError,
    NeverseenError,
    NotLearnedError,
    NotPublishedError,
    ReceiptRejectedError,
    StoreDamagedError,
    StoreLockedError,
)
from neverseen.hardware import Hardware, choose
from neverseen.holdings import LEARN, Change, owned_number
from neverseen.labels import LabelIndex, normalise, parse_json, text
from neverseen.ledger import JournalRow, Ledger, Writing, in_file
from neverseen.model.exact import ExactModel
from neverseen.model.intake import Intake, Shown, Verdict
from neverseen.model.versions import Version
from neverseen.proof.certificates import AuditHead, Certificate, State, check_chain, issue
from neverseen.proof.keys import Key, Keyring, tidy
from neverseen.proof.receipts import Receipt, commitment, seal
from neverseen.proof.signing import SigningKey
from neverseen.store.absent import checked
from neverseen.store.description import NAME, Description
from neverseen.store.held import LedgerHoldings
from neverseen.store.holding import Holding, holdings
from neverseen.store.journal import gathered
from neverseen.store.lock import WriterLock
from neverseen.store.publications import CERTIFICATES, VERSIONS, Publications, files_in, note_of
from neverseen.store.snapshots import files_of, read_snapshot, release_classes, write_snapshot

KEYS, SIGNING_KEY, LOCK, LEDGER = "keys.json", "signing.json", "lock", "ledger.sqlite"
SUMS = "sums"
NEWEST = "newest"
"""Key of the ledger's notes: number and digest of the certificate that was published last."""
AUDIT = "audit"
"""Key of the ledger's notes: the head of a service's audit log, as canonical JSON."""
FOLD_BYTES = 2**26
"""A journal of more bytes is folded into a snapshot."""
FOLD_SECONDS = 3600.0
"""A journal older than this is folded at the next change."""


def open_store(
    folder: str | os.PathLike[str],
    *,
    backbone: Backbone | None = None,
    keys: Keyring | None = None,
    write: bool = True,
    hardware: str = "auto",
    clock: Callable[[], float] = time.time,
) -> Store:
    """Open a store.

    Parameters
    ----------
    folder : path
    backbone : Backbone, optional
        The one it was made with, told by its digest. Without it, it is made from the store's recipe when raw samples
        come. Where there is no recipe, rows of its features or receipts can be given.
    keys : Keyring, optional
        Where they are not in the folder.
    write : bool
        Whether to change it. One process at a time may; those that only read see what is published.
    """
    return Store(Path(folder), backbone, keys, write, choose(hardware), clock)


class Store:
    """A model in a folder: every change is on disk before it is acknowledged.

    Made by `create`, opened by `open_store`; a context manager.

    - `learn`, `forget` and `forget_class` are durable when they return. A process that dies at any moment leaves a
      store that opens in the state before or after the change it was about.
    - `publish` makes the state visible to readers, with a certificate.
    - `seal` makes sure that nothing of what was forgotten is left on disk.

    Attributes
    ----------
    folder : Path
    description : Description
    backbone : Backbone
    """

    def __init__(
        self,
        folder: Path,
        backbone: Backbone | None,
        keys: Keyring | None,
        write: bool,
        hardware: Hardware,
        clock: Callable[[], float],
    ) -> None:
        self.folder = folder
        self.description = Description.read(folder)
        self.backbone = checked(backbone, self.description, folder)
        self._hardware, self._clock = hardware, clock
        self._publications = Publications(folder, self.description, lambda: self.ledger.meta(NEWEST))
        self._published: tuple[int, Version] | None = None
        self._model: ExactModel | None = None
        self._intake = Intake(self.backbone, self.description.configuration.digest(), keys, owned=True)
        self._ledger: Ledger | None = None
        self._process = os.getpid()
        self._lock = WriterLock(folder / LOCK) if write else None
        try:
            self._ledger = Ledger(self.description.ledger or in_file(folder / LEDGER))
            if self._ledger.meta("configuration") != self.description.configuration.digest().hex():
                raise StoreDamagedError(f"the ledger of {folder} belongs to another store: its configuration differs")
            standing = self._standing()
            ahead = self._ahead()
            if write:
                self._recover(keys, ahead, standing)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the store, once a change that another thread is making is done.

        What was acknowledged is on disk already.
        """
        with ExitStack() as stack:
            if self._model is not None and self._process == os.getpid():  # no thread of a forked process makes changes
                with suppress(HardwareError):  # a change of it was cut off: it makes no other
                    stack.enter_context(self._model.locked())
            self._model = None
            lock, self._lock = self._lock, None
            if lock is not None:
                stack.callback(lock.release)
            ledger, self._ledger = self._ledger, None
            if ledger is not None:
                ledger.close()

    # -- changing ----------------------------------------------------------------------------------

    def prepare(self, samples: Any, *, remember: bool = False) -> Prepared:
        """Return samples with their features taken, to be given to `learn` or `forget`; waits for no other change."""
        self._exact()
        return self._intake.prepare(samples, remember=remember)

    def learn(
        self, samples: Any, labels: Any, ids: Iterable[Any] | None = None, owners: Iterable[Any] | None = None
    ) -> list[bytes]:
        """Learn samples; return a receipt for each once they are on disk. See `ForgettingModel.learn`.

        Ids are an owner's own: no two samples held of one owner have the same, and the same id of two owners is two
        samples. Each receipt has a random salt, which the store keeps until the sample is forgotten. So a sample that
        is learned again has a new receipt, and its old one is used up.

        If this is cut off, by Ctrl-C or for want of memory, when the samples are on disk already or may be, what it
        raises has their receipts as the attribute ``receipts``.

        Parameters
        ----------
        samples, labels, ids, owners
            As there.
        """
        change = self.learning(samples, labels, ids, owners)
        try:
            self.commit(change)
            return list(change.receipts)
        except BaseException as error:
            if self.may_be_held(change, error):
                error.receipts = list(change.receipts)  # type: ignore[attr-defined]
            raise

    def may_be_held(self, change: Change, error: BaseException) -> bool:
        """Return whether samples are held that were to be learned when an error came, or nobody can tell."""
        if getattr(error, "uncertain", False) or isinstance(error, NeverseenError):
            return getattr(error, "uncertain", False)  # if not, it is a refusal
        try:
            return bool(self.ledger.knows_commitments(map(commitment, change.receipts)))
        except Exception:
            return True

    def forget(
        self,
        given: Any,
        labels: Any = None,
        *,
        ids: Iterable[Any] | None = None,
        owners: Iterable[Any] | None = None,
        owner: Any = None,
        dry_run: bool = False,
    ) -> None:
        """Forget samples, by receipt or by sample; see `ForgettingModel.forget`.

        A receipt whose sample was forgotten before is answered from the certificates: `AlreadyForgottenError` names
        the one that says so.

        Parameters
        ----------
        given, labels, ids, dry_run
            As there.
        owners : iterable, optional
            Whose each sample is, None for nobody's: a sample of another owner is not meant. With `ids` too, one sample
            at most can be. Not for receipts, which say it themselves.
        owner : value, optional
            Whose samples they must be: those of others are as if not there.
        """
        change = self.forgetting(given, labels, ids=ids, owners=owners, owner=owner)
        self.rehearse(change) if dry_run else self.commit(change)

    def forget_class(self, label: Any, *, dry_run: bool = False) -> None:
        """Forget every sample of a class, without receipts; needs a store that tracks classes."""
        change = self.forgetting_class(label)
        self.rehearse(change) if dry_run else self.commit(change)

    # -- changing in two steps: for those who write down receipts, or note requests, before the change is made ------

    def learning(
        self, samples: Any, labels: Any, ids: Iterable[Any] | None = None, owners: Iterable[Any] | None = None
    ) -> Change:
        """Return the change that `learn` makes, with its receipts, for `commit`. Ids that are held are refused."""
        return self._intake.learning(self._exact(), samples, labels, ids, owners)

    def forgetting(
        self,
        given: Any,
        labels: Any = None,
        *,
        ids: Iterable[Any] | None = None,
        owners: Iterable[Any] | None = None,
        owner: Any = None,
    ) -> Change:
        """Return the change that `forget` makes. Receipts that `verdicts` opened may be given as `Verdict.shown`."""
        self._exact()
        return self._intake.forgetting(given, labels, ids, owners, None if owner is None else _text_of(owner))

    def forgetting_class(self, label: Any) -> Change:
        """Return the change that `forget_class` makes."""
        return self._intake.forgetting_class(label)

    def commit(self, change: Change) -> None:
        """Make a change; it is on disk when this returns. What it has to note goes into the same transaction."""
        with self._answering(change):
            self._intake.commit(self._exact(), change)
        self._fold_if_due()

    def rehearse(self, change: Change) -> None:
        """Raise what `commit` would raise; change nothing."""
        with self._answering(change):
            self._intake.check(self._exact(), change)

    @contextmanager
    def _answering(self, change: Change) -> Iterator[None]:
        """Answer a receipt that was used from the certificates, unless it is one of somebody else."""
        try:
            yield
        except ReceiptRejectedError as error:
            tickets = change.tickets or ()
            if error.reason == "used" and change.owner not in (None, tickets[error.row].owner):
                raise
            raise self._answered([error], [change.receipts[error.row]])[0] from error

    def verdicts(self, receipts: Sequence[bytes], owners: Sequence[Any] | None = None) -> list[Verdict]:
        """Return what `forget` would say about each receipt by itself; change nothing. See `ForgettingModel.verdicts`.

        Parameters
        ----------
        receipts : sequence of bytes
        owners : sequence, optional
            Whose each must be; None for anybody's. Nothing is looked up for one that is somebody else's.
        """
        whose = [None] * len(receipts) if owners is None else owners
        limits = [None if owner is None else _text_of(owner) for owner in whose]
        found = self._intake.verdicts(self._exact(), receipts, limits)
        rows = [row for row, verdict in enumerate(found) if verdict.error is not None]
        errors = [error for verdict in found if (error := verdict.error) is not None]
        for row, error in zip(rows, self._answered(errors, [receipts[row] for row in rows]), strict=True):
            found[row] = found[row]._replace(error=error)
        return found

    def receipts_again(
        self, prepared: Prepared, labels: Sequence[Any], ids: Sequence[Any], owner: Any = None
    ) -> list[bytes] | None:
        """Return the receipts that an owner's samples were given when they were learned; None if one is not held."""
        names, owners = [_text_of(label) for label in labels], [_text_of(owner)] * len(labels)
        tickets = self._intake.tickets([_text_of(each) for each in ids], owners, names, prepared.prints)
        held = self.ledger.by_numbers([ticket.number for ticket in tickets])
        configuration, keys = self.description.configuration.digest(), self._intake.require_keys().current()
        receipts: list[bytes] = []
        for ticket, name, fingerprint, quantised in zip(
            tickets, names, prepared.prints, prepared.quantised, strict=True
        ):
            row = held.get(ticket.number)
            if row is None:
                return None
            said = Receipt(ticket.id, ticket.owner, name, fingerprint, quantised, row.salt)
            sealed = (seal(said, key, configuration) for key in keys)
            found = next((token for token in sealed if commitment(token) == row.commitment), None)
            if found is None:
                return None
            receipts.append(found)
        return receipts

    def _answered(
        self, errors: Sequence[ReceiptRejectedError], receipts: Sequence[bytes]
    ) -> list[ReceiptRejectedError]:
        """Return refusals, those of receipts that certificates list with their numbers."""
        used = [
            commitment(token) if error.reason == "used" else b"" for error, token in zip(errors, receipts, strict=True)
        ]
        numbers = self.ledger.certificates_of(value for value in used if value)
        return [
            error
            if number is None
            else AlreadyForgottenError(
                f"receipt {error.row} was used already: its sample was forgotten, and certificate {number} says so. If "
                "the sample was learned again since, only its new receipt is good. Nothing was changed",
                error.row,
                number,
            )
            for error, number in zip(errors, map(numbers.get, used), strict=True)
        ]

    # -- publishing --------------------------------------------------------------------------------

    def publish(self, *, always: bool = False, audit: AuditHead | None = None) -> Certificate:
        """Make what is held now visible to readers, and return the certificate that says what changed.

        If nothing changed since the last version, that one's certificate is returned, unless there must `always` be
        a new one: then it says that nothing did.

        Parameters
        ----------
        always : bool
        audit : AuditHead, optional
            How far the log of a service has come, for the certificate to say. That line must be on disk.
        """
        ledger, exact, publications = self.ledger, self._exact(), self._publications
        with exact.locked():
            ledger.require_claim()
            number = self.published_number
            previous = None if number == 0 else publications.checked(number)
            configuration = self.description.configuration
            before = State.empty(configuration.digest().hex()) if previous is None else previous.after
            pending = ledger.pending()
            self._require_same(exact.statistics)
            version = Version.of(exact)
            after = _state(exact.statistics, version, configuration.digest().hex())
            if previous is not None and after == before and not pending and not always:
                if not publications.version_path(number).exists():  # lost, or removed because it was wrong
                    publications.write_version(number, version)
                return previous
            learned = after.samples - before.samples + len(pending)
            certificate = issue(
                number + 1,
                None,
                configuration.digest().hex(),
                before,
                after,
                learned,
                len(pending),
                pending,
                configuration.grid_bits,
                previous,
                self._signing_key(),
                audit,
            )
            publications.write_version(number + 1, version)
            self._commit(certificate)
            self._tidy()
            return certificate

    def _commit(self, certificate: Certificate) -> None:
        """Write a certificate, and note it in the ledger.

        The file comes last before the commit. If that fails, nothing else may be changed until the store is opened
        again: what is signed must stay what the ledger comes to.
        """
        ledger, number = self.ledger, certificate.number
        try:
            with ledger.writing() as writing:
                _note_published(writing, certificate)
                self._publications.add(certificate)
        except BaseException as error:
            if not self._publications.certificate_path(number).exists() or getattr(error, "uncertain", False):
                raise
            ledger.stop_writing()
            if not isinstance(error, Exception):
                raise
            raise LedgerError(
                f"certificate {number} is in {self.folder / CERTIFICATES}, and was not noted in the ledger ({error}): "
                "open the store again, and that is made up for",
                uncertain=True,
            ) from error

    def _signing_key(self) -> SigningKey:
        path = self.folder / SIGNING_KEY
        found = SigningKey.load(path)
        if found.public != self.description.public_key:
            raise StoreDamagedError(f"{path} is not the key that this store signs with: restore it from a copy")
        return found

    def seal(self, *, audit: AuditHead | None = None) -> Certificate:
        """Publish, and clear the disk of what was forgotten; return the certificate once both are done.

        Afterwards no file of the store holds the features, the code, the id or a digest of a forgotten sample, beyond
        what certificates say. The sums, and the ledger's content, are those of a store that never learned it.

        Parameters
        ----------
        audit : AuditHead, optional
            As for `publish`.
        """
        certificate = self.publish(audit=audit)
        self.scrub()
        return certificate

    def scrub(self) -> None:
        """Clear the disk of what was forgotten, as `seal` does, without publishing.

        The published weights still hold what was forgotten since they were made. So the store counts as sealed up to
        the last certificate, and no further.
        """
        ledger, exact = self.ledger, self._exact()
        with exact.locked():
            ledger.require_claim()
            self._fold()
            exact.discard_hints()
            ledger.scrub()
            unpublished = "yes" if ledger.pending() else None
            with ledger.writing() as writing:
                writing.set_meta("unsealed", unpublished)
                writing.set_meta("sealed", str(self.published_number))

    def unpublished(self) -> int:
        """Return by how many samples what is held differs from the published version.

        Those learned since that are still held, and those of the version that were forgotten since. A sample that was
        learned and forgotten in between does not count.
        """
        number = self.published_number
        before = self.certificate(number).after.samples if number else 0
        learned, held = self.ledger.learned_since_certificate()
        forgotten = before - (held - learned)
        return learned + forgotten

    @property
    def sealed_number(self) -> int:
        """The number of the certificate up to which all that was forgotten is off the disk; 0 if there is none."""
        return self._noted_number("sealed")

    @property
    def audit_head(self) -> AuditHead | None:
        """How far the audit log of a service must have come, as the ledger and the newest certificate say."""
        noted = self.ledger.meta(AUDIT)
        number = self.published_number
        try:
            found = [] if noted is None else [AuditHead(**parse_json(noted))]
            if not all(head.is_sound() for head in found):
                raise ValueError
        except (ValueError, TypeError, RecursionError):
            raise StoreDamagedError(f"the ledger of {self.folder} is damaged: its note {AUDIT!r} is none") from None
        certified = self.certificate(number).audit if number else None
        return max(found + ([] if certified is None else [certified]), key=lambda head: head.lines, default=None)

    @property
    def published_number(self) -> int:
        """The number of the version that readers see; 0 if there is none."""
        return self._noted_number("published")

    def _noted_number(self, key: str) -> int:
        noted = self.ledger.meta(key) or "0"
        if not (noted.isascii() and noted.isdecimal() and len(noted) <= 16):
            raise StoreDamagedError(f"the ledger of {self.folder} is damaged: its note {key!r} is no number")
        return int(noted)

    def version(self) -> Version:
        """Return the published version."""
        number = self.published_number
        if number == 0:
            raise NotPublishedError(
                f"nothing is published in {self.folder} yet: publish it, or wait for the process that writes it"
            )
        for _ in range(10):  # another process may publish, and remove this version, between the two lines
            if self._published is not None and self._published[0] == number:
                return self._published[1]
            try:
                version = self._publications.version(number, self._hardware)
            except FileNotFoundError:
                if number == self.published_number:
                    raise StoreDamagedError(
                        f"version {number} is missing from {self.folder / VERSIONS}: restore it from a copy, or "
                        "publish again"
                    ) from None
                number = self.published_number
                continue
            self._published = (number, version)
        raise StoreDamagedError(f"the versions in {self.folder / VERSIONS} do not hold still")

    def certificate(self, number: int) -> Certificate:
        """Return one certificate."""
        if not 1 <= number <= self.published_number:
            raise NotPublishedError(f"there is no certificate {number}; published so far: {self.published_number}")
        return self._publications.certificate(number)

    def certificates(self) -> list[Certificate]:
        """Return all certificates, oldest first."""
        return [self.certificate(number) for number in range(1, self.published_number + 1)]

    # -- answers -----------------------------------------------------------------------------------

    def predict(self, samples: Any) -> np.ndarray:
        """Return the class of each sample, as the published version has it."""
        return self.version().predict(quantise(features_of(self.backbone, samples)))

    def score(self, samples: Any, labels: Any) -> float:
        """Return the share of samples whose class the published version predicts right."""
        return float(np.mean(self.predict(samples) == np.asarray(labels)))

    def digest(self) -> str:
        """Return the digest of all that is held, published or not; for readers, of the published version."""
        return self.version().digest() if self._model is None else self._model.digest()

    def statistics(self) -> Statistics:
        """Return the sums that are held. Look, and do not change them; to check a version, publish first.

        Readers get them too, read anew: another process may be ahead of what it published.
        """
        if self._model is not None:
            return self._exact().statistics
        for _ in range(10):  # the writer may fold, and remove this snapshot, meanwhile
            snapshot = self._snapshot()
            try:
                stored = self._read_model(snapshot, None)
            except StoreDamagedError:
                if snapshot == self._snapshot():
                    raise
                continue
            if snapshot == self._snapshot():
                return stored.statistics
        raise StoreDamagedError(f"the sums in {self.folder / SUMS} do not hold still: try again")

    def check(self) -> None:
        """Raise unless ledger, sums and certificates are whole, and fit each other. It reads everything.

        For a store that comes from elsewhere, or was restored; for readers too. That the sums are those of the samples,
        `neverseen verify retrain` shows.
        """
        self.ledger.check()
        if certificates := self.certificates():
            check_chain(certificates, self.description.public_key)
        self._require_listed(certificates)
        for _ in range(10):  # another process may change it meanwhile, and remove what is being read
            before = self._standing()
            try:
                sums = self.statistics()
                self._require_held(sums)
                self._require_stated(sums)
                self._require_made_up(sums)
                return
            except StoreDamagedError:
                if before == self._standing():
                    raise
        raise StoreDamagedError(f"{self.folder} does not hold still: try again when it changes less")

    def _require_listed(self, certificates: list[Certificate]) -> None:
        """Raise `StoreDamagedError` unless certificates list just what the ledger says they do."""
        listed = {(bytes.fromhex(each), entry.number) for entry in certificates for each in entry.commitments}
        known = len(certificates)  # another process may publish more meanwhile
        said = [row in listed for row in self.ledger.certified() if row[1] <= known]
        if not all(said) or len(said) != len(listed):
            raise StoreDamagedError(
                f"the ledger of {self.folder} names other receipts as forgotten than its certificates list: restore it "
                "from a copy"
            )

    def _require_made_up(self, sums: Statistics) -> None:
        """Raise `StoreDamagedError` unless the sums of classes, if there are any, make up the sums of all."""
        if sums.class_grams is None:
            return
        left = pack_triangle(sums.hardware.numpy(sums.gram)).astype(np.int64)
        wrong = False
        for name, row in zip(sums.classes, sums.cross().T, strict=True):
            packed = sums.class_grams.packed(name)
            wrong |= why_impossible(packed, row[np.newaxis], [sums.counts[name]]) is not None
            left -= packed
        if wrong or left.any():
            raise StoreDamagedError(
                f"the sums of classes in {self.folder / SUMS} are not those of any samples, or do not make up the sums "
                "of all: restore them from a copy"
            )

    def ids_held(self, ids: Sequence[Any], owners: Sequence[Any] | None = None) -> list[bool]:
        """Return, for each id, whether a sample of its owner is held under it: `learn` would refuse it."""
        self._exact()
        key, configuration = self._intake.require_keys().membership, self.description.configuration.digest()
        whose = [None] * len(ids) if owners is None else owners
        numbers = [
            owned_number(configuration, key, text(normalise(owner)), text(normalise(each)))
            for owner, each in zip(whose, ids, strict=True)
        ]
        held = self.ledger.by_numbers(numbers)
        return [number in held for number in numbers]

    def held_already(self, samples: Any, labels: Sequence[Any], owners: Sequence[Any] | None = None) -> list[bool]:
        """Return, for each sample, whether its owner has one of the same features and label, held or before it here.

        `learn` does not mind: a sample that is learned twice counts twice. This is for those who do. Without owners,
        samples are nobody's, as for `learn`.
        """
        prepared = samples if isinstance(samples, Prepared) else self.prepare(samples)
        members = self._exact().members(prepared.quantised, LabelIndex(list(labels)))
        whose = [text(normalise(owner)) for owner in ([None] * len(members) if owners is None else owners)]
        rows = self.ledger.by_members(digest for _, digest in members)
        seen = {(digest, row.owner) for digest, found in rows.items() for row in found}
        answers = []
        for (_, digest), owner in zip(members, whose, strict=True):
            answers.append((digest, owner) in seen)
            seen.add((digest, owner))
        return answers

    def holds(self, receipts: Sequence[bytes]) -> list[Holding]:
        """Return, for each receipt, whether its sample is held now, published or not, and what certificates say.

        Also for readers. With the keys, given or in the folder, samples are found that were learned again: under the
        same id or another, with the same content or features, in whatever class. Without them only the receipt itself
        is looked for, and nothing is sure while the store holds any sample. A sample that was altered before it was
        learned again is another sample.
        """
        digest = self.description.configuration.digest()
        return holdings(self.ledger, receipts, digest, self._readable_keys())

    def _readable_keys(self) -> Keyring | None:
        """Return the keys, as far as they are there to be read."""
        known = self._intake.keys
        if known is None and os.access(self.folder / KEYS, os.R_OK):
            known = Keyring.load(self.folder / KEYS)
        if known is not None and self.ledger.meta("key_check") not in (None, known.membership.check()):
            raise ConfigurationError("the keys are not those that this store was made with")
        return known

    def read_receipt(self, receipt: bytes) -> dict[str, Any]:
        """Return id, label and owner of a receipt of this store."""
        return self.opened([receipt])[0].facts()

    def opened(self, receipts: Sequence[bytes]) -> list[Shown]:
        """Return receipts with what they say, to look at and to give to `forget`."""
        self._exact()
        return self._intake.opened(receipts)

    def status(self) -> dict[str, Any]:
        """Return how the store stands, as JSON values."""
        ledger = self.ledger
        counts = ledger.counts()
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        return {
            "backbone": self.description.backbone["name"],
            "bytes": sum(path.stat().st_size for path in files),
            "classes": len(counts),
            "configuration": self.description.configuration.digest().hex(),
            "folder": str(self.folder),
            "forgets_to_publish": len(ledger.pending()),
            "published": self.published_number,
            "samples": sum(counts.values()),
            "samples_by_class": counts,
            "sealed": ledger.meta("unsealed") is None,
        }

    # -- inside ------------------------------------------------------------------------------------

    def _exact(self) -> ExactModel:
        if self._model is None:
            raise ConfigurationError("this store is closed, or open for reading: open it with write=True to change it")
        return self._model

    @property
    def _holdings(self) -> LedgerHoldings:
        holdings = self._exact().holdings
        if not isinstance(holdings, LedgerHoldings):  # `_read_model` made them
            raise TypeError("the holdings of a store are in its ledger")
        return holdings

    def required_keys(self) -> Keyring:
        """Return the store's secrets; raise `KeyMissingError` if they were neither given nor in its folder."""
        return self._intake.require_keys()

    @property
    def ledger(self) -> Ledger:
        """The ledger: rows of samples, requests and notes. Look, and let `commit` change it."""
        if self._ledger is None:
            raise ConfigurationError("this store is closed: open it again")
        return self._ledger

    def _ahead(self) -> Certificate | None:
        """Return the certificate that a process which died left ahead of the ledger, or None.

        Raises `StoreDamagedError` if certificates are missing or cannot be relied on, or are newer than the ledger.
        """
        ledger = self.ledger
        for _ in range(10):  # another process may publish meanwhile
            number = self.published_number
            try:
                if ledger.certificate() != number:
                    raise StoreDamagedError(
                        f"the ledger of {self.folder} is damaged: its notes 'published' and 'certificate' differ. "
                        "Restore it from a copy"
                    )
                ahead = self._publications.ahead(number)
                if ahead is not None:
                    counts, after, gone = ledger.counts(), ahead.after, ledger.pending()
                    held, listed = sum(counts.values()), [bytes.fromhex(entry) for entry in ahead.commitments]
                    if (held, len(counts), gone) != (after.samples, after.classes, listed):
                        # All that it lists is still noted as forgotten, and no sample is lacking but those forgotten
                        # since: an older ledger would lack either. 0.1.0 went on after a publication that failed.
                        went_on = set(listed) <= set(gone) and held >= after.samples - (len(gone) - len(listed))
                        if ledger.meta(NEWEST) is None and went_on:
                            raise self._publications.left_behind(number + 1)
                        raise self._publications.older(number, number + 1, "it is about other samples than the ledger")
            except StoreDamagedError:
                if number == self.published_number:
                    raise
                continue
            if number == self.published_number:
                return ahead
        raise StoreDamagedError(f"the certificates in {self.folder / CERTIFICATES} do not hold still: try again")

    def _recover(self, keys: Keyring | None, ahead: Certificate | None, standing: tuple[str | None, ...]) -> None:
        """Bring the model back: the snapshot, and what the journal has happened since.

        Parameters
        ----------
        keys : Keyring or None
        ahead : Certificate or None
            One that a process signed and did not live to note in the ledger. If what is recovered is what it states,
            it is noted now.
        standing : tuple
            What `_standing` returned before anything was read: it must still be so when this process claims the ledger.
        """
        ledger = self.ledger
        known = keys
        if known is None and (self.folder / KEYS).is_file():
            known = Keyring.load(self.folder / KEYS)
        if known is not None and ledger.meta("key_check") not in (None, known.membership.check()):
            raise ConfigurationError("the keys are not those that this store was made with")
        snapshot = self._snapshot()
        stored = self._read_model(snapshot, None if known is None else known.membership)
        self._require_held(stored.statistics)
        if ahead is not None:
            version = Version.of(stored)
            if ahead.after != _state(stored.statistics, version, ahead.configuration):
                raise self._publications.older(ahead.number - 1, ahead.number, "it states other sums than the ledger's")
            self._publications.write_version(ahead.number, version)
        else:
            self._require_stated(stored.statistics)
        if ledger.is_outdated:  # not sooner: a store that is refused stays as it is
            self._migrate(known)
        self._folded = self._clock()
        self._intake.keys = known
        self._model = stored
        with ledger.writing(claim=True) as writing:
            if self._standing() != standing:
                raise StoreLockedError(
                    f"another process changed the ledger of {self.folder} meanwhile. See that one process alone writes "
                    "the store, and open it again"
                )
            # Goes over what a process that died had not committed: no state but this one can come back, and no
            # other's files are needed.
            writing.set_meta("snapshot", snapshot)
            if ahead is not None:
                _note_published(writing, ahead)
            elif number := self.published_number:  # ledgers of 0.1.0 do not have it
                writing.set_meta(NEWEST, note_of(self._publications.checked(number)))
        self._publications.remove_unnamed()
        tidy(self.folder / KEYS)
        self._tidy()

    def _standing(self) -> tuple[str | None, ...]:
        """Return what differs once the ledger has changed."""
        return tuple(map(self.ledger.meta, ("sequence", "snapshot", "published", "writer")))

    def _require_held(self, sums: Statistics) -> None:
        """Raise `StoreDamagedError` unless sums and ledger have as many samples of each class, and none is forgotten.

        Nobody but this process adds to what was forgotten from here on, so publishing need not look again.
        """
        ledger = self.ledger
        self._require_same(sums, ledger.total())
        if not ledger.is_outdated and ledger.holds_pending():
            raise StoreDamagedError(
                f"the ledger of {self.folder} is damaged: a sample that it holds is noted as forgotten. Restore it "
                "from a copy"
            )

    def _require_same(self, sums: Statistics, rows: int | None = None) -> None:
        """Raise `StoreDamagedError` unless the ledger notes as many samples of each class as the sums are of.

        Parameters
        ----------
        sums : Statistics
        rows : int, optional
            How many there are, counted.
        """
        held = self.ledger.counts()
        rows = sum(held.values()) if rows is None else rows
        if held != dict(sums.counts) or rows != sums.total:
            raise StoreDamagedError(
                f"the ledger of {self.folder} and its sums are not of the same samples "
                f"({rows} and {sums.total}): restore both from one copy"
            )

    def _require_stated(self, sums: Statistics) -> None:
        """Raise `StoreDamagedError` unless version and sums are those that the newest certificate states.

        Without the version's file it can be published again. Samples that it states and that are not held must be noted
        as forgotten: the next certificate would deny it otherwise. The sums can be compared if nothing changed since:
        then none is pending, and as many samples are held. Else nobody has signed for them yet.
        """
        number, gone = self.published_number, len(self.ledger.pending())
        if number == 0:
            return
        if self._publications.version_path(number).exists():
            self.version()
        after = self._publications.checked(number).after
        learned, held = self.ledger.learned_since_certificate()
        if not held - learned <= after.samples <= held - learned + gone:
            raise StoreDamagedError(
                f"the ledger of {self.folder} has {held - learned} samples of certificate {number} and {gone} "
                f"forgotten since, and the certificate states {after.samples}: restore ledger and sums from one copy"
            )
        unchanged = gone == 0 and sums.total == after.samples > 0  # without samples the sums are zero
        if unchanged and sums.digest() != after.statistics:
            raise StoreDamagedError(
                f"the sums in {self.folder / SUMS} are not those that certificate {number} states, and the ledger has "
                "no change since: restore ledger and sums from one copy"
            )

    def _migrate(self, keys: Keyring | None) -> None:
        """Bring a ledger of an older format up to date. What was learned before stays held, and its receipts good."""
        if keys is None:
            raise KeyMissingError(
                f"the ledger of {self.folder} is of an older format: open the store once for writing with its keys "
                "(keys=), which brings it up to date"
            )
        key, configuration = keys.membership, self.description.configuration.digest()
        self.ledger.migrate(lambda row: owned_number(configuration, key, row.owner, row.id))

    def _snapshot(self) -> str:
        name = self.ledger.meta("snapshot")
        if name is None:
            raise StoreDamagedError(f"the ledger of {self.folder} names no snapshot: restore it from a copy")
        return name

    def _read_model(self, snapshot: str, key: Key | None) -> ExactModel:
        """Return the model of a snapshot and of the journal since."""
        description = self.description
        statistics = read_snapshot(self.folder / SUMS, snapshot, self._hardware)
        size = description.configuration.encoder.code_size(description.n_features)
        if (statistics.size, statistics.class_grams is not None) != (size, description.track_classes):
            raise StoreDamagedError(
                f"the sums in {self.folder / SUMS} have {statistics.size} codes where {NAME} has {size}, or only one "
                "of the two tracks classes: restore both from one copy"
            )
        holdings = LedgerHoldings(key, self.ledger, self._clock)
        model = ExactModel(description.configuration, description.n_features, holdings, self._hardware, statistics)

        def noted() -> Iterator[JournalRow]:
            for record in self.ledger.journal():
                holdings.noted(record)
                yield record

        sums, why, gone = model.statistics, None, False
        try:
            for change in gathered(noted(), model.n_features):
                gone |= change.kind != LEARN
                model.replay(change)
        except (NotLearnedError, LimitError, ConfigurationError) as error:
            why = str(error)
        if why is None and gone:  # what only adds samples cannot make impossible sums of possible ones
            packed = pack_triangle(sums.hardware.numpy(sums.gram))
            why = why_impossible(packed, sums.cross().T, [sums.counts[each] for each in sums.classes])
        if why is not None:
            raise StoreDamagedError(
                f"the journal of {self.folder} cannot have followed on its sums: {why}. Restore both from one copy"
            )
        return model

    def _fold_if_due(self) -> None:
        waiting = self._holdings.journal_bytes
        if waiting > FOLD_BYTES or (waiting and self._clock() - self._folded > FOLD_SECONDS):
            try:
                self._fold()
            except Exception as error:  # what led here is on disk and stands: who made it must hear that it was made
                why = str(error) or type(error).__name__
                warnings.warn(
                    f"the journal of {self.folder} was not folded, and will be with a later change: {why}",
                    RuntimeWarning,
                    stacklevel=3,
                )

    def _fold(self) -> None:
        """Write the sums as a snapshot, and drop the journal that led to them."""
        stored, ledger = self._exact(), self.ledger
        with stored.locked():
            name = write_snapshot(self.folder / SUMS, stored.statistics)
            with ledger.writing() as writing:
                writing.set_meta("snapshot", name)
                writing.drop_journal(self._holdings.last_record)
            self._holdings.journal_bytes = 0
            release_classes(self.folder / SUMS, name, stored.statistics)
            self._folded = self._clock()
            self._tidy()

    def _tidy(self) -> None:
        """Remove sums and versions that the ledger does not name: left by a process that died, or replaced.

        Certificates are never removed: what is signed stays.
        """
        ledger = self.ledger
        wanted = {
            SUMS: files_of(self.folder / SUMS, ledger.meta("snapshot") or ""),
            VERSIONS: {self._publications.version_path(self.published_number).name},
        }
        for name, keep in wanted.items():
            for path in files_in(self.folder / name):
                if path.name not in keep:
                    path.unlink()


def _text_of(owner: Any) -> str:
    return text(normalise(owner))


def _state(statistics: Statistics, version: Version, configuration: str) -> State:
    if statistics.total == 0:
        return State.empty(configuration)
    return State(statistics.digest(), version.digest(), statistics.total, len(version.classes))


def _note_published(writing: Writing, certificate: Certificate) -> None:
    writing.set_meta("published", str(certificate.number))
    writing.set_meta(NEWEST, note_of(certificate))
    writing.certify(certificate.number)
