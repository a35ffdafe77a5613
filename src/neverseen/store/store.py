"""`Store`: a model in a folder, that outlives its process."""

from __future__ import annotations

import os
import secrets
import shutil
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from neverseen.backbones import Backbone
from neverseen.certificates import Certificate, State, issue
from neverseen.classifier import AnalyticClassifier
from neverseen.encoding import quantise
from neverseen.errors import (
    AlreadyForgottenError,
    ConfigurationError,
    LedgerError,
    NotPublishedError,
    ReceiptRejectedError,
    StoreDamagedError,
)
from neverseen.files import replace_file, sync_folder
from neverseen.forgetting import ForgettingModel, features_of
from neverseen.hardware import Hardware, choose
from neverseen.keys import Keyring
from neverseen.ledger import JournalRow, Ledger, in_file
from neverseen.model import ExactModel
from neverseen.receipts import commitment
from neverseen.signing import SigningKey
from neverseen.statistics import Statistics
from neverseen.store.description import Description
from neverseen.store.held import StoredModel
from neverseen.store.journal import FORGET_CLASS, LEARN, gathered
from neverseen.store.lock import WriterLock
from neverseen.store.snapshots import StoredClassGrams, files_of, read_snapshot, write_snapshot
from neverseen.versions import Version, read_version, write_version

KEYS, SIGNING_KEY, LOCK, LEDGER = "keys.json", "signing.json", "lock", "ledger.sqlite"
SUMS, VERSIONS, CERTIFICATES = "sums", "versions", "certificates"
FOLD_BYTES = 2**26
"""A journal of more bytes is folded into a snapshot."""
FOLD_SECONDS = 3600.0
"""A journal older than this is folded at the next change."""


def create(
    folder: str | os.PathLike[str],
    backbone: Backbone,
    classifier: AnalyticClassifier | None = None,
    *,
    keys: Keyring | None = None,
    ledger: str | None = None,
    recipe: dict[str, Any] | None = None,
) -> Store:
    """Make a store and open it for writing.

    Parameters
    ----------
    folder : path
        Must not be there, or be empty. It appears whole or not at all.
    backbone : Backbone
    classifier : AnalyticClassifier, optional
        Its settings are used; it must hold no samples.
    keys : Keyring, optional
        Without it new keys are made and kept in the folder. Keys that are given are not stored: keep them safe, and
        give them to `open`.
    ledger : str, optional
        URL of a PostgreSQL database (``postgresql+psycopg://...``) for the ledger; a file in the folder by default.
    recipe : dict, optional
        How to make the backbone again, as JSON values, for `open` without a backbone.
    """
    place = Path(folder)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise FileExistsError(f"{place} is there already: open it with store.open, or choose another folder")
    settings = AnalyticClassifier() if classifier is None else classifier
    known = Keyring.generate(settings.key) if keys is None else keys
    # The facade checks backbone, classifier and keys, and binds the backbone's digest.
    model = ForgettingModel(backbone, settings, known)
    signing = SigningKey.generate()
    partial = place.parent / f".{place.name}.{secrets.token_hex(4)}"
    partial.mkdir(mode=0o700, parents=False)
    try:
        for name in (SUMS, VERSIONS, CERTIFICATES):
            (partial / name).mkdir(mode=0o700)
        if keys is None:
            known.save(partial / KEYS)
        signing.save(partial / SIGNING_KEY)
        configuration = model.classifier._configuration()
        tracked = bool(settings.track_classes)
        about = {"name": backbone.name, "recipe": recipe}
        Description(configuration, backbone.n_features, tracked, about, ledger, signing.public).write(partial)
        size = configuration.encoder.code_size(backbone.n_features)
        snapshot = write_snapshot(partial / SUMS, _empty(size, choose("numpy"), tracked))
        database = Ledger(ledger or in_file(partial / LEDGER), create=True)
        try:
            with database.writing() as writing:
                writing.set_meta("configuration", configuration.digest().hex())
                writing.set_meta("key_check", known.membership.check())
                writing.set_meta("snapshot", snapshot)
        finally:
            database.close()
        if place.exists():
            place.rmdir()
        partial.rename(place)
        sync_folder(place.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return open_store(place, backbone=backbone, keys=keys)


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
        The one it was made with, told by its digest. Without it, features or receipts can be given, not raw samples.
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
        self.backbone = _checked(backbone, self.description)
        self._hardware, self._clock = hardware, clock
        self._published: tuple[int, Version] | None = None
        self._model: ForgettingModel | None = None
        self._ledger: Ledger | None = None
        self._lock = WriterLock(folder / LOCK) if write else None
        try:
            self._ledger = Ledger(self.description.ledger or in_file(folder / LEDGER))
            if self._ledger.meta("configuration") != self.description.configuration.digest().hex():
                raise StoreDamagedError(f"the ledger of {folder} belongs to another store: its configuration differs")
            if write:
                self._recover(keys)
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
        """Let go of the store. What was acknowledged is on disk already."""
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None
        self._model = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # -- changing ----------------------------------------------------------------------------------

    def learn(
        self, samples: Any, labels: Any, ids: Iterable[Any] | None = None, owners: Iterable[Any] | None = None
    ) -> list[bytes]:
        """Learn samples; return a receipt for each once they are on disk. See `ForgettingModel.learn`."""
        receipts = self._writer().learn(samples, labels, ids, owners)
        self._fold_if_due()
        return receipts

    def forget(self, given: Any, labels: Any = None, *, ids: Iterable[Any] | None = None) -> None:
        """Forget samples, by receipt or by sample; see `ForgettingModel.forget`.

        A receipt whose sample was forgotten before is answered from the certificates: `AlreadyForgottenError` names
        the one that says so.
        """
        model = self._writer()
        tokens = [given] if isinstance(given, bytes) else given
        try:
            model.forget(tokens, labels, ids=ids)
        except ReceiptRejectedError as error:
            if error.reason != "used":
                raise
            found = self._open_ledger().certificate_of(commitment(tokens[error.row]))
            if found is None:
                raise
            raise AlreadyForgottenError(
                f"receipt {error.row}: its sample was forgotten already; certificate {found} says so. Nothing was "
                "changed",
                error.row,
                found,
            ) from error
        self._fold_if_due()

    def forget_class(self, label: Any) -> None:
        """Forget every sample of a class, without receipts; needs a store that tracks classes."""
        self._writer().forget_class(label)
        self._fold_if_due()

    # -- publishing --------------------------------------------------------------------------------

    def publish(self) -> Certificate:
        """Make what is held now visible to readers, and return the certificate that says what changed.

        If nothing changed since the last version, that one's certificate is returned.
        """
        ledger, exact = self._open_ledger(), self._exact()
        with exact.locked():
            number = self.published_number
            previous = None if number == 0 else self.certificate(number)
            configuration = self.description.configuration
            before = State.empty(configuration.digest().hex()) if previous is None else previous.after
            pending = ledger.pending()
            version = Version.of(exact)
            after = _state(exact.statistics, version, configuration.digest().hex())
            if previous is not None and after == before and not pending:
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
                SigningKey.load(self.folder / SIGNING_KEY),
            )
            write_version(self.folder / VERSIONS / _numbered(number + 1, "safetensors"), version)
            replace_file(self.folder / CERTIFICATES / _numbered(number + 1, "json"), [certificate.to_json()])
            with ledger.writing() as writing:
                writing.set_meta("published", str(number + 1))
                writing.certify(number + 1)
            self._tidy()
            return certificate

    def seal(self) -> Certificate:
        """Publish, and clear the disk of what was forgotten; return the certificate once both are done.

        Afterwards no file of the store holds the features, the code, the id or a digest of a forgotten sample, beyond
        what certificates say. The sums, and the ledger's content, are those of a store that never learned it.
        """
        certificate = self.publish()
        ledger, exact = self._open_ledger(), self._exact()
        with exact.locked():
            self._fold()
            exact.discard_hints()
            ledger.scrub()
            with ledger.writing() as writing:
                writing.set_meta("unsealed", None)
        return certificate

    @property
    def published_number(self) -> int:
        """The number of the version that readers see; 0 if there is none."""
        return int(self._open_ledger().meta("published") or 0)

    def version(self) -> Version:
        """Return the published version."""
        number = self.published_number
        if number == 0:
            raise NotPublishedError(
                f"nothing is published in {self.folder} yet: call publish, or wait for who writes it"
            )
        for _ in range(10):  # another process may publish, and remove this version, between the two lines
            if self._published is not None and self._published[0] == number:
                return self._published[1]
            try:
                version = read_version(self.folder / VERSIONS / _numbered(number, "safetensors"), self._hardware)
            except FileNotFoundError:
                if number == self.published_number:
                    raise StoreDamagedError(f"version {number} is missing from {self.folder / VERSIONS}") from None
                number = self.published_number
                continue
            if version.digest() != self.certificate(number).after.model:
                raise StoreDamagedError(
                    f"version {number} in {self.folder / VERSIONS} is not what its certificate says"
                )
            self._published = (number, version)
        raise StoreDamagedError(f"the versions in {self.folder / VERSIONS} do not hold still")

    def certificate(self, number: int) -> Certificate:
        """Return one certificate."""
        path = self.folder / CERTIFICATES / _numbered(number, "json")
        if not 1 <= number <= self.published_number:
            raise NotPublishedError(f"there is no certificate {number}: {self.published_number} are published")
        if not path.is_file():
            raise StoreDamagedError(f"{path} is missing: restore it from a copy")
        return Certificate.load(path)

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
        """Return the sums that are held. Look, and do not change them; to check a version, publish first."""
        return self._exact().statistics

    def read_receipt(self, receipt: bytes) -> dict[str, Any]:
        """Return id, label and owner of a receipt of this store."""
        return self._writer().read_receipt(receipt)

    def status(self) -> dict[str, Any]:
        """Return how the store stands, as JSON values."""
        ledger = self._open_ledger()
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

    def _writer(self) -> ForgettingModel:
        if self._model is None:
            raise ConfigurationError("this store is closed, or open for reading: open it with write=True to change it")
        return self._model

    def _exact(self) -> StoredModel:
        classifier = self._writer().classifier
        if not isinstance(classifier, StoredClassifier):  # `_recover` made it
            raise ConfigurationError("this store is closed")
        return classifier._stored

    def _open_ledger(self) -> Ledger:
        if self._ledger is None:
            raise ConfigurationError("this store is closed: open it again")
        return self._ledger

    def _recover(self, keys: Keyring | None) -> None:
        """Bring the model back: the snapshot, and what the journal has happened since."""
        ledger, description = self._open_ledger(), self.description
        known = keys
        if known is None and (self.folder / KEYS).is_file():
            known = Keyring.load(self.folder / KEYS)
        if known is not None and ledger.meta("key_check") not in (None, known.membership.check()):
            raise ConfigurationError("the keys are not those that this store was made with")
        snapshot = ledger.meta("snapshot")
        if snapshot is None:
            raise StoreDamagedError(f"the ledger of {self.folder} names no snapshot: restore it from a copy")
        statistics = read_snapshot(self.folder / SUMS, snapshot, self._hardware)
        stored = StoredModel(
            description.configuration,
            description.n_features,
            None if known is None else known.membership,
            self._hardware,
            statistics,
            ledger,
            self._clock,
        )
        self._replay(stored)
        self._folded = self._clock()
        classifier = StoredClassifier(stored)
        self._model = ForgettingModel._of(self.backbone, classifier, known)
        with ledger.writing() as writing:  # goes over what a process that died had not committed: no state but this
            writing.set_meta("snapshot", snapshot)  # one can come back, and no other's files are needed
        self._tidy()

    def _replay(self, stored: StoredModel) -> None:
        def noted() -> Iterator[JournalRow]:
            for record in self._open_ledger().journal():
                stored._recorded(record.sequence, record.payload)
                yield record

        for kind, quantised, index, name in gathered(noted()):
            if kind == FORGET_CLASS:
                stored.statistics.remove_class(name)
                continue
            batch, _ = stored._batch(quantised, index)
            change = stored.statistics.merge if kind == LEARN else stored.statistics.subtract
            change(batch)

    def _fold_if_due(self) -> None:
        stored = self._exact()
        waiting = stored.journal_bytes
        if waiting > FOLD_BYTES or (waiting and self._clock() - self._folded > FOLD_SECONDS):
            try:
                self._fold()
            except (OSError, LedgerError) as error:  # what led here is on disk and stands
                warnings.warn(
                    f"the journal of {self.folder} was not folded, and will be with a later change: {error}",
                    RuntimeWarning,
                    stacklevel=3,
                )

    def _fold(self) -> None:
        """Write the sums as a snapshot, and drop the journal that led to them."""
        stored, ledger = self._exact(), self._open_ledger()
        with stored.locked():
            name = write_snapshot(self.folder / SUMS, stored.statistics)
            with ledger.writing() as writing:
                writing.set_meta("snapshot", name)
                writing.drop_journal(stored.last_record)
            stored.journal_bytes = 0
            self._folded = self._clock()
            self._tidy()

    def _tidy(self) -> None:
        """Remove files that the ledger does not name: left by a process that died, or replaced by newer ones."""
        ledger = self._open_ledger()
        published = self.published_number
        wanted = {
            SUMS: files_of(self.folder / SUMS, ledger.meta("snapshot") or ""),
            VERSIONS: {_numbered(published, "safetensors")},
            CERTIFICATES: {_numbered(number, "json") for number in range(1, published + 1)},
        }
        for name, keep in wanted.items():
            for path in (self.folder / name).iterdir():
                if path.name not in keep:
                    path.unlink()


class StoredClassifier(AnalyticClassifier):
    """A classifier over a stored model."""

    def __init__(self, stored: StoredModel) -> None:
        configuration = stored.configuration
        super().__init__(
            configuration.encoder,
            configuration.gamma,
            grid_bits=configuration.grid_bits,
            track_classes=stored.statistics.class_grams is not None,
            key=stored.membership.key,
            hardware=stored.hardware.name,
            backbone=configuration.backbone,
        )
        self._stored = stored
        if stored.statistics.total:
            self._model, self.n_features_in_ = stored, stored.n_features

    def _new_model(self, n_features: int, default_key: Any = None) -> ExactModel:
        return self._stored


class AbsentBackbone:
    """Stands where a store was opened without its backbone: receipts work, raw samples do not."""

    base = None

    def __init__(self, description: Description) -> None:
        self.name = str(description.backbone["name"])
        self.n_features = description.n_features
        self._digest = description.configuration.backbone or ""

    def extract(self, samples: Any) -> np.ndarray:
        """Refuse."""
        raise ConfigurationError(
            f"raw samples need the backbone that this store was made with, {self.name}: open it with backbone="
        )

    def digest(self) -> str:
        """Return the digest of the backbone that is not here."""
        return self._digest


def _checked(backbone: Backbone | None, description: Description) -> Backbone:
    if backbone is None:
        return AbsentBackbone(description)
    if backbone.digest() != description.configuration.backbone:
        raise ConfigurationError(
            f"the store was made with another backbone than {backbone.name}: {description.backbone['name']}, of digest "
            f"{str(description.configuration.backbone)[:16]}..."
        )
    return backbone


def _empty(size: int, hardware: Hardware, tracked: bool) -> Statistics:
    statistics = Statistics(size, hardware)
    if tracked:
        statistics.class_grams = StoredClassGrams(size)
    return statistics


def _state(statistics: Statistics, version: Version, configuration: str) -> State:
    if statistics.total == 0:
        return State.empty(configuration)
    return State(statistics.digest(), version.digest(), statistics.total, len(version.classes))


def _numbered(number: int, ending: str) -> str:
    return f"{number:08d}.{ending}"
