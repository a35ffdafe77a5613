"""Publishing: the version that readers see, and how it gets there."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from neverseen.encoding import quantise
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
    """A version that answers, and what it is. Swapped as a whole, so that readers wait for nobody."""

    number: int  # 0 if nothing is published yet; the version is empty then
    version: Version
    names: frozenset[str]  # canonical texts of its classes; the same object as long as the version is the same
    digest: str
    certificate: Certificate | None
    sealed: int  # number of the certificate up to which all is sealed
    clean: bool  # whether nothing is left to be sealed


class Publisher:
    """Publishes and seals as a policy says; used by the writer's thread alone, but for `published`.

    `probe` returns the probe set for a number of features, and `audit` how far the audit log has come, for certificates
    to say.
    """

    def __init__(
        self, history: History, metrics: Metrics, probe: Callable[[int], Probe], audit: Callable[[], AuditHead]
    ) -> None:
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

    def seconds(self) -> float:
        """Return how long the last publication took, in this run or the one before."""
        points = self._history.points()
        return float(points[-1].get("solve_seconds", 0.0)) if points else 0.0

    def start(self, store: Store) -> int:
        """Take up what a store has published; return by how many samples it differs from that."""
        if self._probe is None:
            self._probe = self._probe_of(store.description.n_features)
        self._show(store)
        return unpublished(store)

    def applied(self, seconds: float) -> None:
        """Note how long the changes of the next publication took."""
        self._apply_seconds += seconds

    def keep_up(self, store: Store, policy: Policy) -> None:
        """Publish and seal if it is due."""
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
        """Publish what is held now: one solve for all that changed."""
        started = time.monotonic()
        before = self.published.number
        certificate = store.publish(always=always and policy.unpublished > 0, audit=self._audit())
        seconds = time.monotonic() - started
        policy.published(seconds)
        if certificate.number > before:
            self._show(store)
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
        """Clear the disk of what was forgotten."""
        started = time.monotonic()
        store.scrub()
        self._show(store)
        if self.published.clean:
            policy.sealed()
        else:
            policy.unsealed()
            policy.found(unpublished(store))  # which comes first
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
        best = version.scores(quantise(self._probe.features)).argmax(axis=1)
        right = sum(version.classes[place] == name for place, name in zip(best, self._probe.labels, strict=True))
        return float(right) / len(self._probe.labels)

    def _not_done(self, what: str, error: BaseException, policy: Policy) -> None:
        LOG.error("a %s failed, and will be tried again", what, exc_info=error)
        self._metrics.publish_failures.inc()
        policy.failed()


def passes(error: BaseException) -> bool:
    """Return whether the store is as it was after an error, and it may work later."""
    if isinstance(error, OSError):
        return error.errno in (errno.EMFILE, errno.ENFILE)  # too many files are open
    return isinstance(error, (HardwareError, IllConditionedError, LimitError, MemoryError))


def unpublished(store: Store) -> int:
    """Return by how many samples a store differs from what it has published.

    Not 0 if a request is not published, or something was forgotten that no certificate lists.
    """
    ledger = store.ledger
    newest = ledger.requests(1)
    waits = bool(ledger.pending()) or (bool(newest) and newest[0].version > store.published_number)
    return max(store.unpublished(), int(waits))
