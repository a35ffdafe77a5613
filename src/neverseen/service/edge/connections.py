"""Connections: how many may be open, and which one is closed to make room for another.

A process may hold only so many files and sockets open. If clients could take them all, the store could not open its own
files. So a part is kept for the store, and connections share the rest. When all are in use, a new connection replaces
an idle one. A connection that is still sending a body is replaced too, unless its request has a key: otherwise
strangers could keep connections busy forever. A key protects only so many: see `Connections.admit`.
"""

from __future__ import annotations

import resource
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from neverseen.errors import ConfigurationError
from neverseen.service.reception.requests import KEY

RESERVED = 64
"""File descriptors reserved for the store: the ledger's database, sums, versions, certificates, logs."""
CUT = "neverseen.cut"
"""Key in the scope of a request: a function that ends its connection at once."""
_LEAST = 8


def allowed(wanted: int) -> int:
    """Return the number of connections allowed, at most those wanted; raise the limit on open files if possible.

    Raises
    ------
    ConfigurationError
        If the limit leaves no room for connections.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):  # some systems promise more than they give
            pass
    if soft == resource.RLIM_INFINITY:
        return wanted
    room = soft - _open_now() - RESERVED
    if room < min(wanted, _LEAST):
        raise ConfigurationError(
            f"this process may open {soft} files, which leaves no room for connections: raise the limit (ulimit -n) to "
            f"{soft + wanted - room}"
        )
    return min(wanted, room)


def _open_now() -> int:
    for place in ("/proc/self/fd", "/dev/fd"):
        if Path(place).is_dir():
            return sum(1 for _ in Path(place).iterdir())
    return 32


class Connection:
    """One connection, from the moment it is accepted.

    Attributes
    ----------
    address : str
        The client's address.
    cut : callable
        Ends it at once, even in the middle of an answer.
    since : float
        The time at which it began to wait: for its handshake, for the next request, or for a client that does not read.
    coming : mapping or None
        The scope of the request whose body is arriving. It shows whether there is a key.
    used : bool
        Whether a request was answered on it, or an answer has begun.
    unsent : callable
        Returns the bytes of its answers that wait here for the client.
    """

    __slots__ = ("_clock", "_ended", "address", "coming", "cut", "since", "unsent", "used", "waits")

    def __init__(
        self, address: str, cut: Callable[[], None], ended: Callable[[Connection], None], clock: Callable[[], float]
    ) -> None:
        self.address, self.cut, self._ended, self._clock = address, cut, ended, clock
        self.since, self.waits, self.used = clock(), True, False
        self.unsent: Callable[[], int] = lambda: 0
        self.coming: Mapping[str, Any] | None = None

    def works(self) -> None:
        """Note that a request is being answered."""
        self.waits, self.coming = False, None

    def receives(self, scope: Mapping[str, Any]) -> None:
        """Note that a request's body is arriving; its scope says whether it has a key."""
        self.waits, self.coming, self.since = False, scope, self._clock()

    def rests(self) -> None:
        """Note that a request was answered."""
        self.waits, self.coming, self.used, self.since = True, None, True, self._clock()

    def stalls(self) -> None:
        """Note that the client does not read its answer, or reads it too slowly."""
        self.waits, self.coming, self.used, self.since = True, None, True, self._clock()

    def ended(self) -> None:
        """Note that it has ended."""
        self._ended(self)


class Connections:
    """All connections of a server. Only the event loop's thread may use this.

    Parameters
    ----------
    most, most_of_one : int
        Limits on all connections, and on those of one address.
    patience : float
        Seconds that a connection may wait.
    clock : callable
        Seconds, from any start.
    most_unsent : int
        Bytes of answers that may wait for clients.

    Examples
    --------
    >>> connections = Connections(2, 2, 30)
    >>> gone = []
    >>> idle, at_work = (connections.admit("ada", lambda name=name: gone.append(name)) for name in ("idle", "at work"))
    >>> at_work.works()
    >>> connections.admit("bob", print) is not None, gone
    (True, ['idle'])
    """

    def __init__(
        self,
        most: int,
        most_of_one: int,
        patience: float,
        clock: Callable[[], float] = time.monotonic,
        most_unsent: int = 2**53,
    ) -> None:
        self.most, self.most_of_one, self.patience = most, min(most_of_one, most), patience
        self._clock, self._most_unsent = clock, most_unsent
        self._open: set[Connection] = set()
        self._by_address: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, address: str, cut: Callable[[], None]) -> Connection | None:
        """Return a new connection, which may replace another; None if none can be replaced.

        Bodies of one key may arrive on a quarter of all connections; on fewer if there are many such keys, so that a
        few keys together cannot keep everybody else out. Connections beyond that can be replaced.
        """
        own = self._by_address[address] >= self.most_of_one
        if own or len(self._open) >= self.most:
            keys = Counter[Any](
                each.coming[KEY] for each in self._open if each.coming is not None and KEY in each.coming
            )
            share = max(1, self.most // max(4, len(keys) + 1))
            beyond = {None, *(key for key, count in keys.items() if count > share)}
            found = [
                each
                for each in self._open
                if (each.waits or (each.coming is not None and each.coming.get(KEY) in beyond))
                and (not own or each.address == address)
            ]
            if not found:
                return None
            self._cut(max(found, key=partial(self._rank, keys)))
        connection = Connection(address, cut, self._drop, self._clock)
        self._open.add(connection)
        self._by_address[address] += 1
        return connection

    def tidy(self) -> None:
        """Cut connections that have waited too long and, if too many bytes wait for clients, those with the most."""
        late = self._clock() - self.patience
        for connection in [each for each in self._open if each.waits and each.since <= late]:
            self._cut(connection)
        unsent = {each: each.unsent() for each in self._open}
        left, of = sum(unsent.values()), Counter[str]()
        for each, size in unsent.items():
            of[each.address] += size
        for each in sorted(unsent, key=lambda each: (of[each.address], unsent[each]), reverse=True):
            if left <= self._most_unsent:
                break
            self._cut(each)
            left -= unsent[each]

    def _rank(self, keys: Counter[Any], each: Connection) -> tuple[int, bool, float]:
        """Return the sort key for replacement: the address, or key with bodies, with the most connections loses one.

        Of its connections, an unused one is cut first, then the one that has waited longest.
        """
        bodies = 0 if each.coming is None else keys[each.coming.get(KEY)]
        return max(self._by_address[each.address], bodies), not each.used, -each.since

    def _drop(self, connection: Connection) -> None:
        if connection in self._open:
            self._open.remove(connection)
            self._by_address[connection.address] -= 1
            if not self._by_address[connection.address]:
                del self._by_address[connection.address]

    def _cut(self, connection: Connection) -> None:
        self._drop(connection)
        connection.cut()
