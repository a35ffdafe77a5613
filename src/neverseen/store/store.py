"""`Store`: a model in a folder, whose changes are on disk before they are acknowledged."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np

from neverseen.backbones import Backbone
from neverseen.backbones.reading import Prepared
from neverseen.engine.statistics import Statistics
from neverseen.errors import ConfigurationError, HardwareError, NotLearnedError, NotPublishedError, StoreDamagedError
from neverseen.hardware import Hardware
from neverseen.holdings import FORGET_CLASS, Change, HeldTicket
from neverseen.labels import normalise, text
from neverseen.ledger import Ledger
from neverseen.model.exact import ExactModel
from neverseen.model.intake import Intake, Shown, Verdict
from neverseen.model.means import ClassMeans, class_means
from neverseen.model.versions import Version
from neverseen.model.without import LeftOut, Without, left_out, what_if
from neverseen.proof.certificates import AuditHead, Certificate
from neverseen.proof.keys import Keyring
from neverseen.store import lookups
from neverseen.store.absent_backbone import checked
from neverseen.store.agreement import check, require_removable
from neverseen.store.certification import certify
from neverseen.store.description import Description
from neverseen.store.lock import WriterLock
from neverseen.store.lookups import Holding
from neverseen.store.parts import KEYS, LOCK, Parts
from neverseen.store.recovery import certificate_ahead, recover
from neverseen.store.sums import fold_if_due, scrub, stored_model


class Store:
    """A model in a folder: every change is on disk before it is acknowledged.

    `neverseen.store.create` makes one, and `neverseen.store.open` opens one. It is a context manager.

    - `learn`, `forget` and `forget_class` are durable when they return. If the process dies during a change, the store
      opens in the state before it or after it.
    - `publish` makes the state visible to readers, with a certificate.
    - `seal` publishes, and clears forgotten samples from the disk.

    You can read its `folder`, `description` and `backbone`.
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
        self._intake = Intake(self.backbone, self.description.configuration, keys, owned=True)
        self._model: ExactModel | None = None
        self._parts: Parts | None = None
        self._process = os.getpid()
        self._lock = WriterLock(folder / LOCK) if write else None
        try:
            parts = self._parts = Parts.open(folder, self.description, hardware, clock)
            if parts.ledger.meta("configuration") != parts.configuration:
                raise StoreDamagedError(f"the ledger of {folder} belongs to another store: its configuration differs")
            standing = parts.standing()
            ahead = certificate_ahead(parts)
            if write:
                if keys is None and (folder / KEYS).is_file():
                    self._intake.keys = Keyring.load(folder / KEYS)
                self._model = recover(parts, parts.require_own(self._intake.keys), ahead, standing)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._parts is None else "for reading" if self._model is None else "for writing"
        return f"<Store {str(self.folder)!r}, {state}>"

    def close(self) -> None:
        """Close the store, after any change that another thread is making. Acknowledged changes are on disk already."""
        with ExitStack() as stack:
            if self._model is not None and self._process == os.getpid():  # no thread of a forked process makes changes
                with suppress(HardwareError):  # a change of it was cut off: it makes no other
                    stack.enter_context(self._model.locked())
            self._model = None
            lock, self._lock = self._lock, None
            if lock is not None:
                stack.callback(lock.release)
            parts, self._parts = self._parts, None
            if parts is not None:
                parts.ledger.close()

    # -- changing ----------------------------------------------------------------------------------

    def prepare(self, samples: Any, labels: Any = None, *, remember: bool = False) -> Prepared:
        """Return samples with their features computed, for `learn` or `forget`; does not wait for other changes.

        With `labels`, their member digests are computed too.
        """
        self._exact()
        return self._intake.prepare(samples, labels, remember=remember)

    def learn(
        self, samples: Any, labels: Any, ids: Iterable[Any] | None = None, owners: Iterable[Any] | None = None
    ) -> list[bytes]:
        """Learn samples; return a receipt for each once they are on disk. See `ForgettingModel.learn`.

        Each owner has their own ids: no two held samples of one owner share an id, and the same id of two owners is two
        samples. Each receipt has a random salt, which the store keeps until the sample is forgotten. So a sample that
        is learned again gets a new receipt, and the old one stays used up.

        If the call is interrupted, by Ctrl-C or a lack of memory, when the samples are or may be on disk, the exception
        has their receipts as the attribute ``receipts``.
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
        """Return whether the samples of a failed `learn` are held, or may be."""
        return lookups.may_be_held(self.ledger, change, error)

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

        If the sample of a receipt was forgotten before, `AlreadyForgottenError` names the certificate that lists it.

        Parameters
        ----------
        given, labels, ids, dry_run
            See `ForgettingModel.forget`.
        owners : iterable, optional
            The owner of each sample, None if it has none. Samples of other owners are not considered. Together with
            `ids`, this names at most one sample. Not for receipts, which name their owner.
        owner : value, optional
            The owner of all samples. Other owners' samples are treated as not held.
        """
        change = self.forgetting(given, labels, ids=ids, owners=owners, owner=owner)
        self.rehearse(change) if dry_run else self.commit(change)

    def forget_class(self, label: Any, *, dry_run: bool = False) -> None:
        """Forget every sample of a class, without receipts. The store must track classes."""
        change = self.forgetting_class(label)
        self.rehearse(change) if dry_run else self.commit(change)

    # -- changing in two steps: for those who write down receipts, or note requests, before the change is made ------

    def learning(
        self, samples: Any, labels: Any, ids: Iterable[Any] | None = None, owners: Iterable[Any] | None = None
    ) -> Change:
        """Return the change that `learn` would make, with its receipts, for `commit`. Ids in use are refused."""
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
        """Return the change that `forget` would make. It also takes opened receipts (`Verdict.shown`)."""
        self._exact()
        return self._intake.forgetting(given, labels, ids, owners, None if owner is None else text(normalise(owner)))

    def forgetting_class(self, label: Any) -> Change:
        """Return the change that `forget_class` would make."""
        return self._intake.forgetting_class(label)

    def commit(self, change: Change) -> None:
        """Make a change; it is on disk when this returns. Its notes are written in the same transaction."""
        model = self._exact()
        with model.locked():  # for which `close` waits
            parts = self._open_parts()
            if change.kind == FORGET_CLASS:
                require_removable(parts, model.statistics, change.name)
            with lookups.answering(parts.ledger, change):
                self._intake.commit(model, change)
            fold_if_due(parts, model)

    def rehearse(self, change: Change) -> None:
        """Raise the error that `commit` would raise; change nothing."""
        with lookups.answering(self.ledger, change):
            self._intake.check(self._exact(), change)

    # -- previews ----------------------------------------------------------------------------------

    def without(
        self,
        given: Any,
        labels: Any = None,
        *,
        ids: Iterable[Any] | None = None,
        owners: Iterable[Any] | None = None,
        owner: Any = None,
    ) -> Without:
        """Return the model of all held samples, published or not, without these: exactly as `forget` would leave it.

        It takes and refuses the same as `forget`, or a change from `forgetting`, and writes nothing. See
        `AnalyticClassifier.without`.
        """
        if not isinstance(given, Change):
            given = self.forgetting(given, labels, ids=ids, owners=owners, owner=owner)
        return what_if(self._exact(), given, self.rehearse, self._intake.read)

    def alike(self, change: Change) -> list[Sequence[HeldTicket]]:
        """Return, for each sample of a change, the tickets of all samples held with its features and label."""
        return self._exact().alike(change)

    def leave_one_out(
        self,
        given: Any,
        labels: Any = None,
        *,
        ids: Iterable[Any] | None = None,
        owners: Iterable[Any] | None = None,
        owner: Any = None,
    ) -> Iterator[LeftOut]:
        """Predict each of these samples with the model without that sample.

        It takes and refuses the same as `forget`, and writes nothing. See `AnalyticClassifier.leave_one_out`.
        """
        change = self.forgetting(given, labels, ids=ids, owners=owners, owner=owner)
        return left_out(self._exact(), change, self.rehearse)

    def verdicts(self, receipts: Sequence[bytes], owners: Sequence[Any] | None = None) -> list[Verdict]:
        """Return the answer of `forget` for each receipt alone; change nothing. See `ForgettingModel.verdicts`.

        `owners` has the required owner of each receipt; None for any. Other owners' receipts are not looked up.
        """
        return lookups.answered(self.ledger, self._intake.verdicts(self._exact(), receipts, owners))

    def receipts_again(
        self, prepared: Prepared, labels: Sequence[Any], ids: Sequence[Any], owner: Any = None
    ) -> list[bytes] | None:
        """Return the receipts of an owner's samples once more; None if one of them is not held."""
        return lookups.receipts_again(self._open_parts(), self._intake, prepared, labels, ids, owner)

    # -- publishing --------------------------------------------------------------------------------

    def publish(self, *, always: bool = False, audit: AuditHead | None = None) -> Certificate:
        """Make the held samples visible to readers as a version, and return its certificate.

        If nothing changed since the last version, its certificate is returned again. With `always`, a new certificate
        says that nothing changed. `audit` is the head of a service's audit log, to be stated in the certificate. That
        line of the log must be on disk.
        """
        return certify(self._open_parts(), self._exact(), always, audit)

    def seal(self, *, audit: AuditHead | None = None) -> Certificate:
        """Publish, and clear forgotten samples from the disk; return the certificate once both are done.

        Afterwards no file of the store holds the features, the code, the id or a digest of a forgotten sample, except
        for the commitments in certificates. The sums and the ledger are those of a store that never learned it. For
        `audit`, see `publish`.
        """
        certificate = self.publish(audit=audit)
        self.scrub()
        return certificate

    def scrub(self) -> None:
        """Clear forgotten samples from the disk, as `seal` does, without publishing.

        The published weights still hold samples that were forgotten later. So the store counts as sealed only up to
        the last certificate.
        """
        scrub(self._open_parts(), self._exact())

    def unpublished(self) -> int:
        """Return how many samples were learned since the published version and are held, or forgotten of it since."""
        return self._open_parts().publications.unpublished()

    @property
    def sealed_number(self) -> int:
        """The number of the certificate up to which the disk is cleared of forgotten samples; 0 if there is none."""
        return self._open_parts().publications.sealed_number

    @property
    def audit_head(self) -> AuditHead | None:
        """The head that a service's audit log must have reached, according to the ledger and the newest certificate."""
        return self._open_parts().publications.audit_head

    @property
    def published_number(self) -> int:
        """The number of the version that readers see; 0 if there is none."""
        return self._open_parts().publications.number

    def version(self) -> Version:
        """Return the published version."""
        return self._open_parts().publications.newest_version()

    def certificate(self, number: int) -> Certificate:
        """Return one certificate."""
        if not 1 <= number <= self.published_number:
            raise NotPublishedError(f"there is no certificate {number}; published so far: {self.published_number}")
        return self._open_parts().publications.certificate(number)

    def certificates(self) -> list[Certificate]:
        """Return all certificates, oldest first."""
        return self._open_parts().publications.certificates()

    # -- answers -----------------------------------------------------------------------------------

    def predict(self, samples: Any) -> np.ndarray:
        """Return the class of each sample, predicted by the published version."""
        return self.version().predict(self._intake.read(samples))

    def predict_held(self, samples: Any) -> np.ndarray:
        """Return the class of each sample, predicted by the present model, published or not.

        What was forgotten has no part in the answer, from the moment that `forget` returns. A few samples after a
        change take no new weights: their classes are proved to be those of the new weights.
        """
        answers = self._exact().predict(self._intake.read(samples))
        if answers is None:
            raise NotLearnedError("the store holds no samples, so it has no classes to choose from")
        return np.asarray(answers)

    def held_labels(self, quantised: np.ndarray) -> tuple[np.ndarray, list[str]]:
        """Return `predict_held` for quantised features: positions in a list of canonical texts, and that list."""
        self.description.configuration.require_classes("the place of a class is asked for")
        return self._exact().labels(quantised)

    def weigh(self) -> None:
        """Compute the weights of the model now, so that `held_labels` need not wait until the next change."""
        if (exact := self._exact()).classes:
            exact.solution()
            exact.ready()

    def score(self, samples: Any, labels: Any) -> float:
        """Return the fraction of samples whose class the published version predicts correctly."""
        return self.version().score(self._intake.read(samples), labels)

    def means(self, by: str = "mean", shrinkage: float | None = None) -> ClassMeans:
        """Return the means of all samples held now, published or not; see `AnalyticClassifier.means`."""
        return class_means(self._held(), self._intake.read, by, shrinkage)

    def digest(self) -> str:
        """Return the digest of the model, published or not; for readers, of the published version."""
        return self.version().digest() if self._model is None else self._exact().digest()

    def statistics(self) -> Statistics:
        """Return the sums. Do not change them. To check a version against them, publish first.

        Readers get them too, as they are now: the writer may be ahead of the published version.
        """
        return self._held().statistics

    def check(self) -> None:
        """Raise an error unless ledger, sums and certificates are complete and agree. This reads everything.

        Use it, also as a reader, for a store that comes from elsewhere or was restored. `neverseen verify retrain`
        checks the sums against the samples.
        """
        check(self._open_parts(), self.statistics)

    def ids_held(self, ids: Sequence[Any], owners: Sequence[Any] | None = None) -> list[bool]:
        """Return, for each id, whether its owner holds a sample under it, so that `learn` would refuse it."""
        self._exact()
        return lookups.ids_held(self._open_parts(), self._intake.require_keys().membership, ids, owners)

    def held_already(self, samples: Any, labels: Sequence[Any], owners: Sequence[Any] | None = None) -> list[bool]:
        """Return, for each sample, whether its owner has the same features and label, held or earlier in this list.

        `learn` accepts such samples, and they count again. Without `owners`, samples have no owner, as for `learn`.
        """
        members = self.prepare(samples, labels).members
        return lookups.held_already(self.ledger, [digest for _, digest in members], owners)

    def holds(self, receipts: Sequence[bytes]) -> list[Holding]:
        """Return, for each receipt, whether its sample is held now, published or not, and what certificates say.

        Readers can use it too. With the keys, it also finds samples that were learned again: under the same id or
        another, with the same content or features, in any class. Without the keys, it looks only for the receipt, and
        nothing is certain while the store holds any sample. While the published version has samples forgotten since,
        nothing is certain at all. A sample that was altered before it was learned again counts as another sample.
        """
        return lookups.holdings(self._open_parts(), receipts, self._intake.keys)

    def read_receipt(self, receipt: bytes) -> dict[str, Any]:
        """Return the id, label and owner in a receipt of this store."""
        return self.opened([receipt])[0].facts()

    def opened(self, receipts: Sequence[bytes]) -> list[Shown]:
        """Return opened receipts, to read and to give to `forget`."""
        self._exact()
        return self._intake.opened(receipts)

    def status(self) -> dict[str, Any]:
        """Return a summary of the store, as JSON values."""
        return self._open_parts().status()

    # -- inside ------------------------------------------------------------------------------------

    def _exact(self) -> ExactModel:
        if self._model is None:
            raise ConfigurationError("this store is closed, or open for reading: open it with write=True to change it")
        self.ledger.require_own_process()  # or it would wait for a lock whose holder is in another process
        return self._model

    def _held(self) -> ExactModel:
        """Return the model; for readers, one that is read now."""
        return stored_model(self._open_parts()) if self._model is None else self._exact()

    def required_keys(self) -> Keyring:
        """Return the store's keys; raise `KeyMissingError` if they were neither given nor found in its folder."""
        return self._intake.require_keys()

    @property
    def ledger(self) -> Ledger:
        """The ledger: rows of samples, requests and notes. Only read it; `commit` changes it."""
        return self._open_parts().ledger

    def _open_parts(self) -> Parts:
        if self._parts is None:
            raise ConfigurationError("this store is closed: open it again")
        return self._parts
