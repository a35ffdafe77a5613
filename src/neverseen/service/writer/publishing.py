"""Publishing: makes the version that readers see."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from neverseen.errors import HardwareError, IllConditionedError, LedgerError, LimitError
from neverseen.model.versions import Version
from neverseen.proof.certificates import AuditHead, Certificate
from neverseen.service.operations.history import History, Probe
from neverseen.service.operations.log import LOG
from neverseen.service.operations.metrics import Metrics
from neverseen.service.writer.policy import Policy
from neverseen.store import Store


@dataclass(frozen=True)
class Published:
    """A published version, with facts about it. It is replaced as a whole, so readers never wait."""

    number: int  # 0 if nothing is published yet; the version is empty then
    version: Version
    names: frozenset[str]  # canonical texts of its classes; the same object as long as the version is the same
    digest: str
    certificate: Certificate | None
    sealed: int  # number of the certificate up to which all is sealed
    clean: bool  # whether nothing was left to be sealed then; `Writer.is_sealed` says whether nothing is now


class Publisher:
    """Publishes and seals when the policy says so. Only the writer's thread uses it, except for `published`.

    `probe` returns the probe set for a number of features, and `audit` the head of the audit log for certificates. If
    answers come from the present model (`immediate`), its weights are computed before a publication or after a seal, so
    that no answer waits for that.
    """

    def __init__(
        self,
        history: History,
        metrics: Metrics,
        probe: Callable[[int], Probe],
        audit: Callable[[], AuditHead],
        immediate: bool = False,
    ) -> None:
        self._immediate = immediate
        self._history, self._metrics, self._probe_of, self._audit = history, metrics, probe, audit
        self._probe: Probe | None = None
        self._published: Published | None = None
        self._apply_seconds = 0.0

    @property
    def published(self) -> Published:
        """What readers see."""
        if self._published is None:
            raise RuntimeError("the store was not opened yet")
        return self._published

    def _seconds(self) -> float:
        """Return the duration of the last publication, in this run or the one before."""
        points = self._history.points()
        return float(points[-1].get("solve_seconds", 0.0)) if points else 0.0

    def start(self, store: Store, policy: Policy) -> None:
        """Load the published version of a store, and tell the policy what is not published yet."""
        if self._probe is None:
            self._probe = self._probe_of(store.description.n_features)
        self._show(store)
        policy.takes(self._seconds())
        self._tell(store, policy)

    def applied(self, seconds: float) -> None:
        """Note the duration of the changes of the next publication."""
        self._apply_seconds += seconds

    def keep_up(self, store: Store, policy: Policy) -> None:
        """Publish and seal if that is due."""
        if policy.to_publish() and policy.counts_batches:
            policy.recount(store.unpublished())
        if policy.to_publish():
            self._try("publication", self.publish, store, policy)
        if policy.to_seal():
            self._try("sealing", self._seal_unless_read, store, policy)

    def _try(self, what: str, work: Callable[[Store, Policy], object], store: Store, policy: Policy) -> None:
        try:
            work(store, policy)
        except BaseException as error:
            if not passes(error):
                policy.failed()  # the writer opens the store again first, and does not try without a pause
                raise
            self._not_done(what, error, policy)

    def publish(self, store: Store, policy: Policy, always: bool = True) -> Certificate:
        """Publish the held samples: one solve for all changes."""
        started = time.monotonic()
        if store.published_number > self.published.number:  # a publication failed after it was signed
            self._show(store)
            self._tell(store, policy)
        before = self.published.number
        if self._immediate:
            store.weigh()
        certificate = store.publish(always=always and policy.unpublished > 0, audit=self._audit())
        seconds = time.monotonic() - started
        if certificate.number > before:
            self._show(store)
        policy.published(seconds)  # from here on it is not tried again
        if certificate.number > before:
            self._metrics.published(certificate.number, certificate.after.samples, seconds)
            LOG.debug("version %d is published: %.3f seconds", certificate.number, seconds)
            self._history.add(
                {
                    "accuracy": self._accuracy(),
                    "apply_seconds": round(self._apply_seconds, 6),
                    "samples": certificate.after.samples,
                    "solve_seconds": round(seconds, 6),
                    "time": certificate.time,
                    "version": certificate.number,
                }
            )
        self._apply_seconds = 0.0
        return certificate

    def seal(self, store: Store, policy: Policy) -> None:
        """Clear forgotten samples from the disk."""
        started = time.monotonic()
        store.scrub()
        if self._immediate:
            store.weigh()
        self._show(store)
        if self.published.clean:
            policy.sealed()
        else:
            self._tell(store, policy)
        seconds = time.monotonic() - started
        self._metrics.seal_seconds.observe(seconds)
        LOG.debug("the store is sealed: %.3f seconds", seconds)

    def _seal_unless_read(self, store: Store, policy: Policy) -> None:
        try:
            self.seal(store, policy)
        except LedgerError as error:
            if not error.being_read:
                raise
            LOG.warning("a seal has to wait, and will be tried again: %s", error)
            policy.put_off_seal()

    def _tell(self, store: Store, policy: Policy) -> None:
        """Tell a policy what remains to be published and sealed, and since when."""
        samples, first = unpublished(store), store.ledger.first_request
        policy.found(samples, waited(first(store.published_number)) if samples else None)
        if not self.published.clean:
            policy.unsealed(waited(first(store.sealed_number, forgotten=True)))

    def _show(self, store: Store) -> None:
        number = store.published_number
        clean = store.ledger.meta("unsealed") is None
        certificate = store.certificate(number) if number else None
        shown = self._published
        if number == 0:
            version = Version.empty(store.description.configuration)
        elif shown is not None and shown.number == number:
            version = shown.version
        else:
            version = store.version()
            if version.classes:  # what the first prediction would have to wait for
                version.scores(np.zeros((1, version.n_features), np.int8))
        names = shown.names if shown is not None and shown.number == number else frozenset(version.classes)
        self._published = Published(number, version, names, version.digest(), certificate, store.sealed_number, clean)

    def _accuracy(self) -> float | None:
        if self._probe is None or self._probe.features is None or not len(self._probe.features):
            return None
        version = self.published.version
        if not version.classes:
            return 0.0
        best = version.places(version.configuration.encoder.quantise(self._probe.features))
        right = sum(version.classes[place] == name for place, name in zip(best, self._probe.labels, strict=True))
        return float(right) / len(self._probe.labels)

    def _not_done(self, what: str, error: BaseException, policy: Policy) -> None:
        LOG.error("a %s failed, and will be tried again", what, exc_info=error)
        self._metrics.publish_failures.inc()
        policy.failed()


def passes(error: BaseException) -> bool:
    """Return whether an error left the store unchanged, so that another attempt may succeed."""
    if isinstance(error, OSError):
        return error.errno in (errno.EMFILE, errno.ENFILE)  # too many files are open
    return isinstance(error, (HardwareError, IllConditionedError, LimitError, MemoryError))


def waited(since: int | None) -> float | None:
    """Return the seconds since a time (Unix time in milliseconds); None if that is unknown.

    Clocks may be set back, so a time in the future counts as unknown.
    """
    seconds = -1.0 if since is None else time.time() - since / 1000
    return seconds if seconds >= 0 else None


def unpublished(store: Store) -> int:
    """Return by how many samples a store differs from its published version.

    It is not 0 if a request is unpublished, or if no certificate lists a forgotten sample yet.
    """
    ledger = store.ledger
    newest = ledger.requests(1)
    waits = bool(ledger.pending()) or (bool(newest) and newest[0].version > store.published_number)
    return max(store.unpublished(), int(waits))
