"""Room: how many classes the model may have, so that it can still be published.

The memory for publishing is known in advance: it depends on the number of codes and classes, not on the samples. If
publishing would no longer fit after a request, the request is refused at once. Forgetting is never refused for room.

No refusal reveals which classes are held: the changes of others since the last publication must stay hidden.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from neverseen.engine.statistics import Statistics
from neverseen.errors import ConfigurationError
from neverseen.labels import normalise, text
from neverseen.service.errors import Refusal
from neverseen.service.operations.settings import Settings
from neverseen.targets import Targets

# Learning, publishing and showing a version took at most 6.5 Gram matrices and 39 matrices of weights, measured for 256
# to 4,096 codes and 10 to 10,000 classes; here is a quarter more. With tracking, the sums of each class are there
# twice, as they are and as they are added to, in four bytes each.
# If the sums choose gamma, the system is inverted for several candidates: it took at most 30 Gram matrices and 250
# matrices of weights, measured for 512 and 1,024 codes and 10 to 1,200 classes; here is a quarter more, too.
_FIXED = 2**28
_GRAMS, _WEIGHTS, _TRACKED = 8, 48, 2 * 4
_CHOOSING_GRAMS, _CHOOSING_WEIGHTS = 38, 312
_SHARE = 0.9  # of the machine's memory
_LEAST = 2**26  # bytes for a worker process
_LEAST_BODIES = 2**24  # bytes for all bodies, and for all pixels
PIXEL = 3
"""Bytes for each pixel."""
NOTHING: frozenset[str] = frozenset()


def per_class(size: int, tracked: bool, chosen: bool = False) -> int:
    """Return an upper bound on the memory for one more class, in bytes; `size` and `chosen` are as in `needed`."""
    weights = _CHOOSING_WEIGHTS if chosen else _WEIGHTS
    return weights * 8 * size + (_TRACKED * size * (size + 1) // 2 if tracked else 0)


def needed(size: int, classes: int, tracked: bool, chosen: bool = False) -> int:
    """Return an upper bound on the memory for holding and publishing a model, in bytes.

    `size` is the number of codes. `chosen` says whether the sums choose gamma (``gamma="auto"``).

    Examples
    --------
    >>> [round(needed(2048, classes, tracked) / 2**30, 1) for classes in (10, 1000) for tracked in (False, True)]
    [0.5, 0.7, 1.2, 16.9]
    """
    grams = _CHOOSING_GRAMS if chosen else _GRAMS
    return _FIXED + grams * 8 * size * size + classes * per_class(size, tracked, chosen)


def texts_of(labels: Sequence[Any]) -> set[str]:
    """Return the canonical texts of labels, texts and integers."""
    return {text(normalise(label)) for label in set(labels)}


def columns_of(labels: Sequence[Any], targets: Targets) -> set[str]:
    """Return the canonical texts of the classes that labels bring, or of the labels in sets; numbers bring none."""
    if targets.kind == "numbers":
        return set()
    if targets.kind == "label-sets":
        return {text(None)} | texts_of([name for each in labels for name in each]) if labels else set()
    return texts_of(labels if targets.one_hot else [name for name, _ in labels])


class Room:
    """Limits on classes: `memory` has the bytes for the store; `published` is as for `Brought`."""

    def __init__(
        self, settings: Settings, memory: int, published: Callable[[], frozenset[str]] = lambda: NOTHING
    ) -> None:
        self._settings, self._memory, self._published = settings, memory, published
        self._asked, self._learned = Brought(published), Brought(published)
        self._chosen = False

    def gamma_is_chosen(self) -> None:
        """Note that the sums choose gamma, which takes more memory."""
        self._chosen = True

    def reserve(self, size: int) -> None:
        """Reserve bytes of memory for something else."""
        self._memory = max(0, self._memory - size)

    def require_columns(self, statistics: Statistics, count: int) -> None:
        """Raise `ConfigurationError` if a model with so many numbers to predict could not be published."""
        wanted = needed(statistics.size, count, False)
        if wanted > self._memory:
            raise ConfigurationError(
                f"{count} numbers take {wanted / 1e6:.0f} MB of memory to publish, and {self._memory / 1e6:.0f} MB are "
                "left for the store: give the service more memory (setting memory)"
            )

    def shortage(self, statistics: Statistics) -> str | None:
        """Return a message if there is no memory for another class, else None."""
        classes = len({*statistics.counts, *self._published()})
        wanted = needed(statistics.size, classes + 1, statistics.class_grams is not None, self._chosen)
        if wanted <= self._memory:
            return None
        have = f"{self._memory / 1e6:.0f} MB of memory are left for the store, which needs {wanted / 1e6:.0f} MB"
        return f"new classes will be refused (no_room): {have}. Give the service more memory (setting memory)"

    def most_classes(self, statistics: Statistics) -> int:
        """Return how many classes can be published with this memory."""
        size, tracked = statistics.size, statistics.class_grams is not None
        left = self._memory - needed(size, 0, tracked, self._chosen)
        return max(0, left // per_class(size, tracked, self._chosen))

    def require_few(self, statistics: Statistics, client: str, names: set[str]) -> set[str]:
        """Return the classes that are new to the client, or refuse them.

        Published classes, and those that the client itself has sent since, are not new. Names are canonical texts.
        """
        published, most = self._published(), self._settings.max_new_classes
        new = names - published - self._asked.of(client)
        if len(new) > most:
            words = f"the request has too many new classes (max_new_classes = {most}): send it in parts"
            raise Refusal("too_many_classes", words)
        self._require(statistics, len(published | names), bool(names - published))
        return new

    def asked(self, client: str, names: set[str]) -> None:
        """Note the classes that `require_few` returned, once they count against the client."""
        known = self._asked.of(client)
        if len(known) > self._settings.max_classes:
            known.clear()
        known |= names

    def require_room(self, statistics: Statistics, brought: Sequence[tuple[str, set[str]]]) -> None:
        """Refuse classes if the model would have too many, or could not be published; for the writer's thread.

        Only the number of held classes counts, never which ones. A class that others have brought since the last
        publication counts as new, and one that they have forgotten since counts as held. `brought` has clients, with
        the canonical texts of the labels that they want to learn.
        """
        published = self._published()
        held = {*statistics.counts, *published}.union(*(self._learned.of(client) for client, _ in brought))
        new = set[str]().union(*(names - published - self._learned.of(client) for client, names in brought))
        unpublished = any(names - published for _, names in brought)
        self._require(statistics, len(held) + len(new), unpublished)

    def learned(self, brought: Sequence[tuple[str, set[str]]]) -> None:
        """Note that classes were learned."""
        for client, names in brought:
            self._learned.of(client).update(names - self._published())

    def _require(self, statistics: Statistics, total: int, unpublished: bool) -> None:
        """Refuse this number of classes. Published classes can always be learned."""
        settings, most = self._settings, self.most_classes(statistics)
        after = "forget some and publish, or"
        if unpublished and total > settings.max_classes:
            words = f"the model would have too many classes (max_classes = {settings.max_classes})"
            raise Refusal("too_many_classes", f"{words}: {after} raise the setting")
        if unpublished and total > most:
            words = f"the model would have more than {most} classes, too many to publish in the memory of the service "
            words += f"({self._memory / 1e9:.1f} GB; see the setting memory)"
            raise Refusal("no_room", f"{words}: {after} give the service more memory")


class Brought:
    """The classes that each client has brought since the last publication. It reveals nothing about other clients.

    `published` returns the published classes: the same object until the next publication.
    """

    def __init__(self, published: Callable[[], frozenset[str]]) -> None:
        self._published = published
        self._then: frozenset[str] | None = None
        self._names: dict[str, set[str]] = {}

    def of(self, client: str) -> set[str]:
        """Return the classes of a client."""
        now = self._published()
        if now is not self._then:
            self._then, self._names = now, {}
        return self._names.setdefault(client, set())


def fitted(settings: Settings) -> Settings:
    """Return settings that fit the memory of the service: with little memory, the limits on requests are lower.

    A worker process gets a tenth of the memory. All pixels together get an eighth, and so do all bodies with their
    results, half for each. One request may take as much as one key may hold.
    """
    whole = memory_left(settings.memory)
    waiting = min(settings.max_waiting_bytes, max(_LEAST_BODIES, whole // 16))
    pixels = min(settings.max_waiting_pixels, max(_LEAST_BODIES, whole // 8) // PIXEL)
    body = min(settings.max_body, waiting // 4)
    return replace(
        settings,
        reading_memory=min(settings.reading_memory, max(_LEAST, whole // 10)),
        max_waiting_bytes=waiting,
        max_body=body,
        max_json=min(settings.max_json, body),
        max_waiting_pixels=pixels,
        max_request_pixels=min(settings.max_request_pixels, pixels // 2),
    )


def memory_for_store(settings: Settings) -> int:
    """Return the memory for the store, in bytes, after bodies, their results and other processes."""
    apart = (settings.reading_processes + 1) * settings.reading_memory  # and one that checks certificates
    return max(0, memory_left(settings.memory, apart) - 2 * settings.max_waiting_bytes)


def memory_left(setting: int, apart: int = 0) -> int:
    """Return how many more bytes of memory this process may take.

    All processes of the service together may take `setting` bytes or, if it is 0, as much as the machine, the container
    and the limits of the process allow. The other processes may take `apart` of it.
    """
    used = _used()
    resident = used.get("VmRSS", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    left = [limit - resident - apart for limit in (setting or int(_SHARE * whole), *_container_limits())]
    for kind, name in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
        soft, _ = resource.getrlimit(kind)
        if soft != resource.RLIM_INFINITY:
            left.append(soft - used.get(name, resident))
    return max(0, min(left))


def _used() -> dict[str, int]:
    """Return the memory that this process uses, in bytes, if the system reports it."""
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
