"""The one writer: a thread that owns the store and works through the queue; keys take turns."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import groupby
from typing import Any, TypeVar

from neverseen.errors import LedgerError
from neverseen.holdings import LEARN
from neverseen.ledger import RequestRow
from neverseen.service.errors import Refusal, refusal_of
from neverseen.service.operations.audit import TURN, AuditLog, without_line
from neverseen.service.operations.log import LOG
from neverseen.service.operations.metrics import Metrics
from neverseen.service.operations.settings import Settings
from neverseen.service.sharing.line import Line
from neverseen.service.sharing.shares import Shares
from neverseen.service.writer.applying import apply
from neverseen.service.writer.jobs import ASK, Job, new_future, settle
from neverseen.service.writer.policy import Policy
from neverseen.service.writer.publishing import Published, Publisher, passes
from neverseen.service.writer.room import Room
from neverseen.store import Store

Result = TypeVar("Result")
Settled = list[tuple[Job, Any]]
_REOPEN = 1.0  # seconds between attempts to open a store that failed
_GATHER, _GATHER_MOST = 0.003, 0.1  # seconds without a new request, and altogether, before a change is made
_NICE = 5  # a third of the share of others, where they compete
_LAST = 1.0  # seconds that a change has to end at a stop whose time is over
_TOGETHER = 1000  # most requests in one change
_LATE = 300.0  # seconds after which changes that are being made are called late


def _line() -> Line[Job]:
    return Line(lambda job: job.samples)


class Writer:
    """Applies requests. Those that wait together become one change, and share one publication.

    The requests of a key are applied in order, and keys take turns. A turn is one change, or one question: a small one
    may take seconds, if many samples are equal, and others would wait for all of them. Each key has a share of the
    queue. Requests to learn have separate room: however many wait, a forget is accepted.

    Parameters
    ----------
    open_store : callable
        Opens the store for writing.
    clock : callable
        Seconds, from any start: for the policy.

    Attributes
    ----------
    store : Store or None
        None while it is not open.
    """

    def __init__(
        self,
        open_store: Callable[[], Store],
        settings: Settings,
        metrics: Metrics,
        publisher: Publisher,
        room: Room,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open, self._settings, self._metrics = open_store, settings, metrics
        self._publisher, self._room = publisher, room
        self._audit: AuditLog
        self.policy = Policy(settings, clock)
        self.store: Store | None = None
        self._jobs = _line()
        self._running: list[Job] = []
        self._learning, self._others = (
            (Shares(settings.queue_requests), Shares(settings.queue_samples)) for _ in range(2)
        )
        self._wake = threading.Condition()
        self._idle = self._poked = self._stopping = self._abandoned = self._more = False
        self._began = math.inf  # when the changes began that are being made
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)

    # -- for everybody -----------------------------------------------------------------------------

    def open(self) -> Store:
        """Open the store. From now on, nobody else can write it."""
        self._open_again()
        return self._opened()

    def start(self, audit: AuditLog) -> None:
        """Start. Every change gets its line in the audit log."""
        self._audit = audit
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether changes can be made."""
        return self.store is not None and self._thread.is_alive() and not self._stopping

    def stalled(self) -> bool:
        """Return whether a change takes far too long: the database does not answer."""
        return time.monotonic() - self._began > _LATE

    @property
    def published(self) -> Published:
        """What readers see."""
        return self._publisher.published

    def is_sealed(self) -> bool:
        """Return whether nothing of what was forgotten is left on disk, published or not."""
        return self.published.clean and not self.policy.has_unsealed

    def submit(self, job: Job) -> Any:
        """Add a job to the queue, behind all others of its client, and return its future."""
        with self._wake:
            if self._stopping:
                raise Refusal("stopping", "the service is stopping: try again in a moment", wait=5)
            if self.store is None or not self._thread.is_alive():
                raise Refusal("unavailable", "the store cannot be written now: try again in a moment", wait=5)
            if job.kind != ASK and not self._audit.healthy:
                raise _unlogged("nothing was done")
            if not self._takes(job):
                words = "too much is waiting, for this key or in total (queue_requests, queue_samples)"
                raise Refusal("queue_full", f"{words}: try again in a moment", wait=1)
            self._jobs.put(job.client, job)
            if self._idle:
                self._wake.notify()
        return job.future

    def ask(self, question: Callable[[Store], Any], client: str = "") -> Any:
        """Ask the store a question between changes."""
        return self.submit(Job(ASK, "", client, None, 0, question, future=new_future()))

    def told(self, store: Store, question: Callable[[Store], Result], entry: dict[str, Any]) -> Result:
        """Answer a question, with its line in the audit log before the answer; for the writer's thread."""
        found = question(store)
        if not self._audit.append([entry], later=False):
            raise _unlogged("nothing is answered")
        return found

    def operate(self, store: Store, verb: str, below_min_batch: bool, entry: dict[str, Any]) -> tuple[int, bool]:
        """Publish or seal now, and return the number of the certificate and whether all is sealed.

        It is for the writer's thread, by way of `ask`.

        Fewer changes than a batch are published only if the operator says so. The audit log gets a line before and a
        line after, so nothing happens without a line. `entry` is the content of the lines, without the outcome.
        """
        if self.policy.counts_batches:
            self.policy.recount(store.unpublished())
        if self.policy.unpublished and not self.policy.enough() and not below_min_batch:
            raise Refusal(
                "batch_too_small",
                f"{self.policy.unpublished} samples have changed, but the policy publishes {self._settings.min_batch} "
                "or more together: wait for more, or add below_min_batch=true to publish them alone",
            )
        if not self._audit.append([entry | {"outcome": "asked"}]):
            raise _unlogged("nothing was done")
        self._publisher.publish(store, self.policy)
        if verb == "seal":
            self._seal(store)
        if not self._audit.append([entry | {"outcome": "applied"}]):
            raise _unlogged(f"this was carried out all the same (certificate {self.published.number})")
        return self.published.number, self.is_sealed()

    def _seal(self, store: Store) -> None:
        try:
            self._publisher.seal(store, self.policy)
        except LedgerError as error:
            if not error.being_read:
                raise
            words = f"certificate {self.published.number} is published but not sealed: another program reads the "
            raise Refusal("unavailable", words + "ledger. Try again when it has finished", wait=30) from error

    def _takes(self, job: Job) -> bool:
        """Take room for a job; return whether there was enough. A job larger than a share counts as the share."""
        requests, samples = self._learning if job.kind == LEARN else self._others
        if not requests.take(job.client, 1):
            return False
        enough = samples.take(job.client, min(job.samples, samples.share))
        if not enough:
            requests.give(job.client, 1)
        return enough

    def _gives(self, job: Job) -> None:
        requests, samples = self._learning if job.kind == LEARN else self._others
        requests.give(job.client, 1)
        samples.give(job.client, min(job.samples, samples.share))

    def waiting(self, client: str | None = None) -> list[Job]:
        """Return the waiting requests, of one client or of all, newest first."""
        with self._wake:
            jobs = [job for job in self._running if client in (None, job.client)]
            jobs += self._jobs if client is None else self._jobs.of(client)
        return sorted((job for job in jobs if job.kind != ASK), key=lambda job: job.queued, reverse=True)

    def __len__(self) -> int:
        return len(self._jobs) + len(self._running)

    def poke(self) -> None:
        """Check the policy again, because the clock was moved."""
        with self._wake:
            self._poked = True
            self._wake.notify()

    def stop(self, timeout: float) -> bool:
        """Accept no more, finish waiting jobs within a time, and close the store; return whether all are done."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.ident is None:
            self._close()
            return True
        self._thread.join(timeout)
        done = not self._thread.is_alive()
        if not done:
            self._abandoned = True
            with self._wake:
                left, self._jobs = list(self._jobs), _line()
            settle([(job, _stopped()) for job in left])
            self._thread.join(_LAST)
        return done

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        yield_to_answers()
        while True:
            jobs = self._take()
            try:
                if jobs:
                    self._began = time.monotonic()
                    self._work(jobs)
                    self._charge(jobs, time.monotonic() - self._began)
                    self._began = math.inf
                if not self._stopping and self._audit.healthy:
                    self._publisher.keep_up(self._opened(), self.policy)
                elif not self._stopping:
                    self.policy.failed()  # a seal would clear whose lines are still to be written
            except BaseException as error:
                self._began = math.inf
                self._failed(error)
            if self.store is None and not self._stopping:
                self._try_again()
            self._running = []
            if self._stopping and (not self._jobs or self._abandoned):
                break
        self._close()

    def _take(self) -> list[Job]:
        """Wait for jobs, or for the policy, and return the jobs to do now."""
        with self._wake:
            if not self._jobs and not self._stopping and not self._poked:
                self._idle = True
                self._wake.wait(_REOPEN if self.store is None else self.policy.wait())
                self._idle = False
            self._poked = False
        if not self._more:
            self._gather()
        with self._wake:
            jobs: list[Job] = []
            samples = 0
            while self._jobs and (not jobs or self._goes_with(jobs, samples)):
                job = self._jobs.take()
                self._gives(job)
                jobs.append(job)
                samples += job.samples
            self._running, self._more = jobs, bool(self._jobs)
            return jobs

    def _goes_with(self, jobs: list[Job], samples: int) -> bool:
        """Return whether the next job goes with others, which have so many samples; without a store, to be refused."""
        following = self._jobs.first()
        alike = following.kind == jobs[0].kind and jobs[0].is_joined and following.is_joined
        return self.store is None or (alike and len(jobs) < _TOGETHER and samples + following.samples <= TURN)

    def _charge(self, jobs: list[Job], seconds: float) -> None:
        """Count requests that were harder than their samples say as the samples that take so long, about.

        A question about one sample may take as long as learning a thousand. Whoever has thousands of such questions
        would always come next, if only their samples counted.
        """
        more = seconds * TURN - sum(job.samples for job in jobs)
        if more > 0:
            with self._wake:
                for client, count in Counter(job.client for job in jobs).items():
                    self._jobs.charge(client, more * count / len(jobs))

    def _gather(self) -> None:
        """Wait a moment while more jobs arrive: jobs that arrive together become one change."""
        before, end = 0, time.monotonic() + _GATHER_MOST
        while before != len(self._jobs) and not self._stopping and time.monotonic() < end:
            before = len(self._jobs)
            time.sleep(_GATHER)

    def _work(self, jobs: list[Job]) -> None:
        for kind, group in groupby(jobs, lambda job: job.kind):
            together = list(group)
            started = time.monotonic()
            if kind == ASK:
                settle([(job, _answered(self._opened(), job)) for job in together])
                continue
            if self._audit.healthy:
                outcomes = self._applied(kind, together)
            else:  # since they were taken
                outcomes = [(job, _unlogged("nothing was done")) for job in together]
            rows = [outcome.row for _, outcome in outcomes if not isinstance(outcome, Refusal) and not outcome.replayed]
            if rows:
                seconds = time.monotonic() - started
                self._audit.append(audited(rows))
                self._publisher.applied(seconds)
                self._metrics.applied(kind, len(rows), sum(row.samples for row in rows), seconds)
            settle(outcomes)
            done = set(map(id, together))
            self._running = [job for job in self._running if id(job) not in done]

    def _applied(self, kind: str, jobs: list[Job]) -> Settled:
        outcomes: Settled = []
        try:
            for job, outcome in apply(self._opened(), jobs, self._audit.head, self._room):
                outcomes.append((job, outcome))
                if not isinstance(outcome, Refusal) and not outcome.replayed:
                    self.policy.changed(outcome.row.samples, forgotten=kind != LEARN)
        except BaseException:
            # What was done before stands, and is answered; the rest is not known.
            self._audit.append(audited(o.row for _, o in outcomes if not isinstance(o, Refusal) and not o.replayed))
            settle(outcomes)
            raise
        return outcomes

    def _opened(self) -> Store:
        if self.store is None:
            raise Refusal("unavailable", "the store cannot be written now: try again in a moment", wait=5)
        return self.store

    def _open_again(self) -> None:
        store = self._open()
        try:
            self._publisher.start(store, self.policy)
        except BaseException:
            store.close()
            raise
        self.store = store

    def _try_again(self) -> None:
        try:
            self._open_again()
            self._audit.append(lines_to_make_up(self._opened(), self._audit))
        except Exception as error:
            self._close()
            LOG.error("the store cannot be opened: %s", error)

    def _failed(self, error: BaseException) -> None:
        """Close the store after a failure. Reopening it shows which jobs were carried out."""
        if self.store is not None:
            LOG.error("the writer failed", exc_info=error)
            self._metrics.writer_failures.inc()
            self._close()
        words = "the store failed, and the request may or may not have been carried out: send it again"
        for job in self._running:
            if not job.future.done():
                same = "" if job.kind == ASK else " with the same idempotency key"
                settle([(job, Refusal("unavailable", words + same, wait=2))])
        self._running = []

    def _close(self) -> None:
        store, self.store = self.store, None
        if store is not None:
            try:
                store.close()
            except Exception as error:
                LOG.error("the store was not closed: %s", error)


def yield_to_answers() -> None:
    """Have the system let other threads run before this one, and before those that it starts.

    A change takes all processors for some milliseconds. A short answer would wait for the end of a time slice.
    """
    if sys.platform == "linux":  # elsewhere, only a whole process has a priority
        with suppress(OSError):
            nice = min(19, os.getpriority(os.PRIO_PROCESS, 0) + _NICE)
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)


def audited(rows: Iterable[RequestRow]) -> list[dict[str, Any]]:
    """Return the lines of the audit log for changes."""
    return [
        {"action": row.kind, "key": row.client, "outcome": "applied", "request": row.id, "samples": row.samples}
        for row in rows
    ]


def lines_to_make_up(store: Store, audit: AuditLog) -> list[dict[str, Any]]:
    """Return lines for changes that have none, because the writer failed or the process died in between.

    Write them before anything else changes: a seal clears the names of their keys.
    """
    rows = store.ledger.requests(TURN)[::-1]
    missing = without_line(rows, audit.logged([row.id for row in rows]), audit.is_complete())
    return [entry | {"recovered": True} for entry in audited(missing)]


def _answered(store: Store, job: Job) -> Any:
    try:
        return job.payload(store)
    except Exception as error:
        refusal = refusal_of(error, job.owner)
        if refusal is not None:
            return refusal
        if not passes(error):
            raise
        LOG.error("a request was refused for lack of room", exc_info=error)
        return Refusal("unavailable", "the service has no room for this request now: try again in a moment", wait=5)


def _unlogged(words: str) -> Refusal:
    return Refusal("unavailable", f"the audit log cannot be written now, and {words}: try again in a moment", wait=5)


def _stopped() -> Refusal:
    return Refusal("stopping", "the service is stopping, and this request was not carried out: send it again", wait=5)
