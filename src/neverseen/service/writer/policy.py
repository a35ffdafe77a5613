"""When to publish, and when to seal."""

from __future__ import annotations

import math
from collections.abc import Callable

from neverseen.service.operations.settings import Settings

_PATIENCE = 0.2  # share of a publication's time that we wait for stragglers
_RETRY = 5.0  # seconds after a publication that failed
_RETRY_READ = 30.0  # seconds after a seal that somebody who reads is in the way of
_GRACE, _GRACE_TIMES = 60.0, 10  # seconds, and usual times, that one under way may take before it is called late
_NEVER = math.inf


class Policy:
    """What was changed and is not published or sealed, and when that is due.

    A version differs from the one before by at least `min_batch` samples: fewer changes wait, however long, unless the
    operator has set `publish_below_min_batch`. With enough changes, a publication is due when no request has come for
    `quiet` seconds, and `max_delay` seconds after the first change at the latest, so that requests that follow each
    other share one solve. Where a publication takes long, we wait up to a fifth of its time for stragglers.

    Sealing is due `seal_after` seconds after the first forgetting that is not sealed. It comes with or after a
    publication, never before one.

    Examples
    --------
    >>> now = [0.0]
    >>> policy = Policy(Settings(min_batch=2, max_delay=10, quiet=0), lambda: now[0])
    >>> policy.changed(1)
    >>> policy.wait(), policy.to_publish()  # one sample alone is not published, however long it waits
    (None, False)
    >>> policy.changed(1)
    >>> policy.to_publish()
    True
    """

    def __init__(self, settings: Settings, clock: Callable[[], float]) -> None:
        self._settings, self._clock = settings, clock
        self._changes = 0
        self._first = self._last = 0.0
        self._unsealed: float | None = None
        self._not_before = self._no_seal_before = 0.0
        self._quiet = settings.quiet
        self._usual, self._failing = 0.0, False

    @property
    def unpublished(self) -> int:
        """Samples that changed since the last publication; one that came and went may count twice."""
        return self._changes

    @property
    def counts_batches(self) -> bool:
        """Whether it matters how many samples a publication changes."""
        return self._settings.min_batch > 1

    def changed(self, samples: int, forgotten: bool = False) -> None:
        """Note a change."""
        now = self._clock()
        if not self._changes:
            self._first = now
        self._changes += max(1, samples)
        self._last = now
        if forgotten and self._unsealed is None:
            self._unsealed = now

    def recount(self, samples: int) -> None:
        """Put right by how many samples a publication would change the model, before one is made.

        A sample that was learned and forgotten in between changes nothing, and must not fill a batch.
        """
        if self._changes:
            self._changes = max(1, samples)

    def found(self, samples: int) -> None:
        """Note how many samples a store that was opened has not published: what was counted before may be wrong."""
        if samples and not self._changes:
            self._first = self._last = self._clock()
        self._changes = samples
        self._failing = self._failing and self._clock() >= self._due()

    def wait(self) -> float | None:
        """Return the seconds until something may be due; None if nothing is."""
        due = self._due()
        return None if due == _NEVER else max(0.0, max(due, self._not_before) - self._clock())

    def to_publish(self) -> bool:
        """Return whether a publication is due."""
        return self._clock() >= max(self._not_before, self._due_to_publish())

    def to_seal(self) -> bool:
        """Return whether sealing is due."""
        return self._clock() >= max(self._not_before, self._no_seal_before, self._due_to_seal())

    def published(self, seconds: float = 0.0) -> None:
        """Note that all is published, and how long that took."""
        self._changes, self._failing = 0, False
        self.takes(seconds)

    def takes(self, seconds: float) -> None:
        """Note how long a publication takes."""
        self._usual, self._quiet = seconds, max(self._settings.quiet, _PATIENCE * seconds)

    def sealed(self) -> None:
        """Note that all is sealed."""
        self._unsealed, self._failing = None, False

    def unsealed(self) -> None:
        """Note that something is left to be sealed, from an earlier run."""
        if self._unsealed is None:
            self._unsealed = self._clock()

    def failed(self, retry: float = _RETRY) -> None:
        """Note that nothing can be published or sealed now, and that it should be tried again after a while.

        If nothing was due yet, nothing has failed: what comes later has as much time as ever.
        """
        now = self._clock()
        self._not_before, self._failing = now + retry, now >= self._due()

    def put_off_seal(self) -> None:
        """Note that sealing has to wait for a reader of the ledger; publications go on."""
        self._no_seal_before = self._clock() + _RETRY_READ

    def overdue(self) -> float | None:
        """Return for how many seconds what is due has been kept back, beyond `max_delay` or `seal_after`; None if not.

        What is under way, or waits for somebody who reads, has time to end; what failed has none. May be asked by any
        thread.
        """
        publication = self._due_to_publish()
        if self._changes:
            publication = max(publication, self._first + self._settings.max_delay)
        promised = min(publication, self._due_to_seal())
        late = self._clock() - promised - (0.0 if self._failing else _GRACE + _GRACE_TIMES * self._usual)
        return late if late > 0 else None

    def enough(self) -> bool:
        """Return whether what changed may be published: there is something, and no batch is to be filled first."""
        return self._changes > 0 and (
            self._changes >= self._settings.min_batch or self._settings.publish_below_min_batch
        )

    def _due(self) -> float:
        return min(self._due_to_publish(), max(self._no_seal_before, self._due_to_seal()))

    def _due_to_publish(self) -> float:
        if not self.enough():
            return _NEVER
        latest = self._first + self._settings.max_delay
        if self._changes >= self._settings.min_batch:
            return min(latest, self._last + self._quiet)
        return latest

    def _due_to_seal(self) -> float:
        since = self._unsealed  # read once: `overdue` may run in another thread
        # Never before a publication: that something is sealed tells everybody that something was forgotten.
        return _NEVER if since is None or self._changes else since + self._settings.seal_after
