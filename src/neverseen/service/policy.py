"""When to publish, and when to seal."""

from __future__ import annotations

from collections.abc import Callable

from neverseen.service.settings import Settings

_PATIENCE = 0.2  # share of the time of a publication that it is waited for stragglers
_RETRY = 5.0  # seconds after a publication that failed
_GRACE, _GRACE_TIMES = 60.0, 10  # seconds, and usual times, that one under way may take before it is called late


class Policy:
    """What was changed and is not published or sealed, and when that is due.

    A publication is due when at least `min_batch` samples have changed and no request has come for `quiet` seconds,
    or `max_delay` seconds after the first change: what comes one after the other shares one solve. Where a publication
    takes long, it is waited for a fifth of that, so that stragglers do not cost a second one. Sealing is due
    `seal_after` seconds after the first change that is not sealed, and comes with a publication, never before one.

    Parameters
    ----------
    settings : Settings
    clock : callable
        Seconds, from any start.

    Examples
    --------
    >>> now = [0.0]
    >>> policy = Policy(Settings(min_batch=2, max_delay=10, quiet=0), lambda: now[0])
    >>> policy.changed(1)
    >>> policy.wait(), policy.to_publish()
    (10.0, False)
    >>> policy.changed(1)
    >>> policy.to_publish()
    True
    """

    def __init__(self, settings: Settings, clock: Callable[[], float]) -> None:
        self._settings, self._clock = settings, clock
        self._changes = 0
        self._first = self._last = 0.0
        self._unsealed: float | None = None
        self._not_before = 0.0
        self._quiet = settings.quiet
        self._usual, self._failing = 0.0, False

    @property
    def unpublished(self) -> int:
        """Samples that changed since the last publication."""
        return self._changes

    def changed(self, samples: int, forgotten: bool = False) -> None:
        """Note a change."""
        now = self._clock()
        if not self._changes:
            self._first = now
        self._changes += max(1, samples)
        self._last = now
        if forgotten:
            self.unsealed()

    def wait(self) -> float | None:
        """Return the seconds until something may be due; None if nothing is."""
        due = [self._due_to_publish()] if self._changes else []
        if self._unsealed is not None and not self._changes:
            due.append(self._unsealed + self._settings.seal_after)
        return max(0.0, max(min(due), self._not_before) - self._clock()) if due else None

    def to_publish(self) -> bool:
        """Return whether a publication is due."""
        now = self._clock()
        return bool(self._changes) and now >= self._not_before and now >= self._due_to_publish()

    def to_seal(self) -> bool:
        """Return whether sealing is due: only while all is published."""
        if self._unsealed is None or self._changes:
            return False
        now = self._clock()
        return now >= self._not_before and now >= self._unsealed + self._settings.seal_after

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
        """Note that it did not work, and should be tried again after a while."""
        self._not_before, self._failing = self._clock() + retry, True

    def overdue(self) -> float | None:
        """Return for how many seconds what is due has been kept back, beyond `max_delay` or `seal_after`; None if not.

        What is under way has time to end; what failed has none. May be asked by any thread.
        """
        unsealed, now = self._unsealed, self._clock()
        if self._changes:
            promised = max(self._due_to_publish(), self._first + self._settings.max_delay)
        elif unsealed is not None:
            promised = unsealed + self._settings.seal_after
        else:
            return None
        late = now - promised - (0.0 if self._failing else _GRACE + _GRACE_TIMES * self._usual)
        return late if late > 0 else None

    def _due_to_publish(self) -> float:
        latest = self._first + self._settings.max_delay
        if self._changes >= self._settings.min_batch:
            return min(latest, self._last + self._quiet)
        return latest
