"""Room: how many classes there may be, so that what is learned can also be published.

What publishing takes in memory is known beforehand: it depends on the number of codes and of classes, not on the
samples. A request after which it would not fit is refused when it comes. Forgetting adds nothing, and is never refused.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from neverseen.labels import normalise, text
from neverseen.service.errors import Refusal
from neverseen.service.settings import Settings
from neverseen.statistics import Statistics

# Learning, publishing and showing a version took at most 6.5 Gram matrices and 39 matrices of weights, measured for 256
# to 4,096 codes and 10 to 10,000 classes; here is a quarter more. With tracking, the sums of each class are there
# twice, as they are and as they are added to, in four bytes each.
_FIXED = 2**28
_GRAMS, _WEIGHTS, _TRACKED = 8, 48, 2 * 4
_SHARE = 0.9  # of the machine's memory


def per_class(size: int, tracked: bool) -> int:
    """Return the bytes of memory that one more class takes, at most, for `size` codes."""
    return _WEIGHTS * 8 * size + (_TRACKED * size * (size + 1) // 2 if tracked else 0)


def needed(size: int, classes: int, tracked: bool) -> int:
    """Return the bytes of memory that holding and publishing a model takes, at most.

    Examples
    --------
    >>> [round(needed(2048, classes, tracked) / 2**30, 1) for classes in (10, 1000) for tracked in (False, True)]
    [0.5, 0.7, 1.2, 16.9]
    """
    return _FIXED + _GRAMS * 8 * size * size + classes * per_class(size, tracked)


def texts_of(labels: Sequence[Any]) -> set[str]:
    """Return the canonical texts of labels, texts and integers."""
    return {text(normalise(label)) for label in set(labels)}


class Room:
    """What a service may hold.

    Parameters
    ----------
    settings : Settings
    memory : int
        Bytes that there are for the store.
    """

    def __init__(self, settings: Settings, memory: int) -> None:
        self._settings, self._memory = settings, memory

    def most_classes(self, statistics: Statistics) -> int:
        """Return how many classes can be published, as far as memory goes."""
        size, tracked = statistics.size, statistics.class_grams is not None
        return max(0, (self._memory - needed(size, 0, tracked)) // per_class(size, tracked))

    def new_classes(self, statistics: Statistics, names: Collection[str]) -> int:
        """Return how many of these classes are new, or refuse them.

        Parameters
        ----------
        statistics : Statistics
            Of what is held.
        names : collection of str
            Canonical texts of labels that are to be learned.
        """
        held = statistics.counts
        new = len({name for name in names if name not in held})
        if not new:
            return 0
        settings, total = self._settings, len(held) + new
        if new > settings.max_new_classes:
            raise Refusal(
                "too_many_classes",
                f"the request has {new} new classes; one may have {settings.max_new_classes} (max_new_classes): "
                "send it in parts",
            )
        if total > settings.max_classes:
            raise Refusal(
                "too_many_classes",
                f"the model would have {total} classes; {settings.max_classes} are allowed (max_classes): forget some, "
                "or raise the setting",
            )
        most = self.most_classes(statistics)
        if total > most:
            size, tracked = statistics.size, statistics.class_grams is not None
            raise Refusal(
                "no_room",
                f"the model would have {total} classes, and publishing it would take about "
                f"{needed(size, total, tracked) / 1e9:.1f} GB of memory; {self._memory / 1e9:.1f} GB are there, "
                f"enough for {most} classes: forget some, or give the service more memory (memory)",
            )
        return new


def memory_left(setting: int) -> int:
    """Return how many bytes of memory this process may take, beyond those it has.

    Parameters
    ----------
    setting : int
        Bytes that the process may have in all; 0 for what machine, container and limits of the process allow.
    """
    used = _used()
    resident = used.get("VmRSS", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    left = [(setting or int(_SHARE * whole)) - resident]
    left += [limit - resident for limit in _container_limits()]
    for kind, name in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
        soft, _ = resource.getrlimit(kind)
        if soft != resource.RLIM_INFINITY:
            left.append(soft - used.get(name, resident))
    return max(0, min(left))


def _used() -> dict[str, int]:
    """Return what this process uses, in bytes, where the system tells."""
    try:
        lines = Path("/proc/self/status").read_text("ascii", "replace").splitlines()
    except OSError:
        return {}
    words = [line.split() for line in lines if line.endswith(" kB")]
    return {name.rstrip(":"): int(count) * 1024 for name, count, _ in words}


def _container_limits() -> list[int]:
    """Return the limits of the control groups that this process is in, in bytes."""
    found = []
    try:
        lines = Path("/proc/self/cgroup").read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
    for line in lines:
        _, kinds, place = line.split(":", 2)
        if kinds not in ("", "memory"):
            continue
        root = Path("/sys/fs/cgroup", kinds)
        name = "memory.limit_in_bytes" if kinds else "memory.max"
        folder = root / place.lstrip("/")
        for each in (folder, *folder.parents):
            try:
                words = (each / name).read_text("ascii").strip()
            except (OSError, ValueError):
                words = ""
            if words.isdigit():
                found.append(int(words))
            if each == root:
                break
    return found
