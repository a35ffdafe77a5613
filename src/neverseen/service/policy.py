"""When to publish, and when to seal."""

from __future__ import annotations

from collections.abc import Callable

from neverseen.service.settings import Settings

_PATIENCE = 0.2  # share of the time of a publication that it is waited for stragglers
_RETRY = 5.0  # seconds after a publication that failed


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
        self._changes = 0
        self.takes(seconds)

    def takes(self, seconds: float) -> None:
        """Note how long a publication takes."""
        self._quiet = max(self._settings.quiet, _PATIENCE * seconds)

    def sealed(self) -> None:
        """Note that all is sealed."""
        self._unsealed = None

    def unsealed(self) -> None:
        """Note that something is left to be sealed, from an earlier run."""
        if self._unsealed is None:
            self._unsealed = self._clock()

    def failed(self) -> None:
        """Note that it did not work, and should be tried again after a while."""
        self._not_before = self._clock() + _RETRY

    def _due_to_publish(self) -> float:
        latest = self._first + self._settings.max_delay
        if self._changes >= self._settings.min_batch:
            return min(latest, self._last + self._quiet)
        return latest
