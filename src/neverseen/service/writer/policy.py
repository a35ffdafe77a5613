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
    """Tracks unpublished and unsealed changes, and decides when to publish and seal.

    A version differs from the one before by at least `min_batch` samples: fewer changes wait, however long, unless the
    operator has set `publish_below_min_batch`. With enough changes, a publication is due when no request has come for
    `quiet` seconds, and `max_delay` seconds after the first change at the latest, so that requests that follow each
    other share one solve. If a publication takes long, we wait up to a fifth of its time for more requests.

    Sealing is due `seal_after` seconds after the first unsealed forget. It comes with or after a publication, never
    before one.

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
        self._first = self._last = self._full = 0.0  # when the first and the last change came, and filled the batch
        self._unsealed: float | None = None
        self._published = -math.inf  # when all was last
        self._not_before = self._no_seal_before = 0.0
        self._quiet = settings.quiet
        self._usual, self._failing = 0.0, False

    @property
    def unpublished(self) -> int:
        """Number of samples changed since the last publication. A sample learned and forgotten may count twice."""
        return self._changes

    @property
    def has_unsealed(self) -> bool:
        """Whether something forgotten is not sealed yet. Any thread may ask."""
        return self._unsealed is not None

    @property
    def counts_batches(self) -> bool:
        """Whether it matters how many samples a publication changes."""
        return self._settings.min_batch > 1

    def changed(self, samples: int, forgotten: bool = False) -> None:
        """Note a change."""
        now = self._clock()
        if not self._changes:
            self._first = now
        was_enough = self.enough()
        self._changes += max(1, samples)
        self._last = now
        if not was_enough:
            self._full = now
        if forgotten and self._unsealed is None:
            self._unsealed = now

    def recount(self, samples: int) -> None:
        """Correct the number of samples that a publication would change, before one is made.

        A sample that was learned and forgotten in between changes nothing, and must not fill a batch.
        """
        if self._changes:
            self._changes = max(1, samples)

    def found(self, samples: int, age: float | None) -> None:
        """Note the number of unpublished samples of a store that was just opened.

        The first of them was changed `age` seconds ago. If that is unknown (None), they are due now.
        """
        if samples and not self._changes:
            self._last = self._clock()
            self._first = self._full = self._last - (self._settings.max_delay if age is None else age)
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
        """Note that everything is published, and how long that took."""
        self._changes, self._failing, self._published = 0, False, self._clock()
        self.takes(seconds)

    def takes(self, seconds: float) -> None:
        """Note how long a publication takes."""
        self._usual, self._quiet = seconds, max(self._settings.quiet, _PATIENCE * seconds)

    def sealed(self) -> None:
        """Note that everything is sealed."""
        self._unsealed, self._failing = None, False

    def unsealed(self, age: float | None) -> None:
        """Note that a forget is not sealed yet, made `age` seconds ago.

        If that is unknown (None), it is due now.
        """
        if self._unsealed is None:
            self._unsealed = self._clock() - (self._settings.seal_after if age is None else age)

    def failed(self, retry: float = _RETRY) -> None:
        """Note that publishing or sealing is impossible now, and should be tried again after a while.

        If nothing was due yet, nothing has failed, and later changes have their full time.
        """
        now = self._clock()
        self._not_before, self._failing = now + retry, now >= self._due()

    def put_off_seal(self) -> None:
        """Note that sealing has to wait for a reader of the ledger; publications go on."""
        self._no_seal_before = self._clock() + _RETRY_READ

    def overdue(self) -> float | None:
        """Return by how many seconds a publication or seal is late (`max_delay`, `seal_after`); None if it is not.

        One that is under way, or waits for a reader, gets extra time; one that failed gets none. The time to fill a
        batch does not count, nor does the time in which a seal waits for its publication. Any thread may call this.
        """
        publication = max(self._due_to_publish(), self._full + self._settings.max_delay)
        promised = min(publication, max(self._due_to_seal(), self._published))
        late = self._clock() - promised - (0.0 if self._failing else _GRACE + _GRACE_TIMES * self._usual)
        return late if late > 0 else None

    def enough(self) -> bool:
        """Return whether there are changes to publish, and enough for a batch."""
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
