"""Connections: how many may be open, and which one is closed to make room for another.

A process may hold only so many files and sockets open. If clients could take them all, the store could not open its own
files. So a part is kept for the store, and connections share the rest. When all are in use, a new connection replaces
an idle one. A connection that is still sending a body is replaced too, unless its request has a key: otherwise
strangers could keep connections busy forever. A key protects only so many: see `Connections.admit`. For the same reason
connections at work make room if nothing else does: whoever sends the next request before the last one is answered is
never idle. And a new connection has a few seconds for its first request: otherwise whoever is cut and comes back at
once would replace it before its request is there.
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
_ENDING = 16  # connections beyond the limit, while as many others end
_NEW = 5.0  # seconds for a handshake and the first request
_MORE = 2  # times as many connections as whoever has an idle one: then one that is at work makes room instead


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


_IS_KEPT, _IS_NEW, _IS_USED, _IS_OLD = range(4)


class Connection:
    """One connection, from the moment it is accepted.

    Attributes
    ----------
    address : str
        The client's address.
    cut : callable
        Ends it at once, even in the middle of an answer.
    end : callable
        Ends it after the answer that is being made.
    since : float
        The time at which it began to wait: for its handshake, for the next request, or for a client that does not read.
    coming : mapping or None
        The scope of the request whose body is arriving. It shows whether there is a key.
    made : mapping or None
        The scope of the request that is being answered.
    ending : bool
        Whether it was told to end.
    used : bool
        Whether a request was answered on it, or an answer has begun.
    last : str or None
        The name of the key of the last such request that had one.
    unsent : callable
        Returns the bytes of its answers that wait here for the client.
    """

    __slots__ = (
        *("_clock", "_ended", "address", "coming", "cut", "end", "ending", "last", "made", "since"),
        *("unsent", "used", "waits"),
    )

    def __init__(
        self, address: str, cut: Callable[[], None], ended: Callable[[Connection], None], clock: Callable[[], float]
    ) -> None:
        self.address, self.cut, self._ended, self._clock = address, cut, ended, clock
        self.since, self.waits, self.used = clock(), True, False
        self.unsent: Callable[[], int] = lambda: 0
        self.end: Callable[[], None] = cut
        self.coming: Mapping[str, Any] | None = None
        self.made: Mapping[str, Any] | None = None
        self.last: Any = None
        self.ending = False

    @property
    def key(self) -> Any:
        """The name of the key of its present request, or None."""
        request = self.coming or self.made or {}
        return request.get(KEY)

    def works(self, scope: Mapping[str, Any] | None = None) -> None:
        """Note that a request is being answered."""
        self.waits, self.coming, self.made = False, None, scope

    def receives(self, scope: Mapping[str, Any]) -> None:
        """Note that a request's body is arriving; its scope says whether it has a key."""
        self.waits, self.coming, self.made, self.since = False, scope, None, self._clock()

    def rests(self) -> None:
        """Note that a request was answered."""
        self.last = self.key or self.last
        self.waits, self.coming, self.made, self.used, self.since = True, None, None, True, self._clock()

    def stalls(self) -> None:
        """Note that the client does not read its answer, or reads it too slowly."""
        self.rests()

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
    >>> idle.works()
    >>> idle.rests()  # and waits for its next request
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

        The requests of one key are safe on a quarter of all connections; on fewer if there are many keys, so that a few
        keys together cannot keep everybody else out. Those beyond that, and those without a key, can be replaced while
        a body arrives; and while they are answered, if nothing else makes room, or if their address or key has far more
        connections than whoever has an idle one. An answer to a key is finished first. Before a new connection is
        replaced, one that is at work without a key is, unless its address has fewer.
        """
        own = self._by_address[address] >= self.most_of_one
        if (own or len(self._open) >= self.most) and not self._makes_room(address if own else None):
            return None
        connection = Connection(address, cut, self._drop, self._clock)
        self._open.add(connection)
        self._by_address[address] += 1
        return connection

    def _makes_room(self, own: str | None) -> bool:
        """Return whether a connection makes room for another; only one of its own address, if that has too many."""
        keys = Counter(each.key for each in self._open)
        del keys[None]
        kept = Counter(each.last for each in self._open if each.key is None)
        share = max(1, self.most // max(4, len(keys) + 1))
        beyond, full = ({None, *(key for key, count in of.items() if count > share)} for of in (keys, kept))
        idle, busy, ends = list[Connection](), list[Connection](), len(self._open) < self.most + _ENDING
        if own is not None:
            ends = ends and self._by_address[own] < self.most_of_one + _ENDING
        for each in self._open:
            if own not in (None, each.address):
                continue
            if each.waits or (each.coming is not None and each.key in beyond):
                idle.append(each)
            elif each.key is None and each.last not in full:
                continue  # its request has just come, and the key of it is not known yet
            elif each.key in beyond and not each.ending and (ends or each.key is None):
                busy.append(each)
        idle_rank = partial(self._rank, keys, full, self._clock())
        busy_rank = partial(self._busy_rank, keys)
        first, second = max(idle, key=idle_rank, default=None), max(busy, key=busy_rank, default=None)
        if second is not None and (first is None or self._goes_first(idle_rank(first), busy_rank(second), second)):
            if second.key is None:
                self._cut(second)
            else:  # its answer may have receipts in it
                second.ending = True
                second.end()
        elif first is not None:
            self._cut(first)
        return first is not None or second is not None

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

    def _goes_first(self, idle: tuple[int, int, float], busy: tuple[int, bool, float], at_work: Connection) -> bool:
        """Return whether a connection at work makes room, given its rank and that of the idle one to cut instead."""
        return busy[0] > _MORE * idle[0] or (at_work.key is None and idle[1] == _IS_NEW and busy[0] >= idle[0])

    def _rank(self, keys: Counter[Any], full: set[Any], now: float, each: Connection) -> tuple[int, int, float]:
        """Return the sort key for replacement: the address, or key with bodies, with the most connections loses one.

        Its connections are cut in this order: those never used that are not new; those without a key; new ones; those
        last used with a key, unless it has too many idle (`full`). No stranger can make one of the last kind. Among
        equals, the one that has waited longest is cut.
        """
        order = _IS_USED
        if not each.used:
            order = _IS_NEW if now - each.since < _NEW else _IS_OLD
        elif each.key is None and each.last not in full:
            order = _IS_KEPT
        return max(self._by_address[each.address], keys[each.key]), order, -each.since

    def _busy_rank(self, keys: Counter[Any], each: Connection) -> tuple[int, bool, float]:
        """Return the same for connections at work. Used ones go first: the key of a new one may not be known yet."""
        return max(self._by_address[each.address], keys[each.key]), each.used, -each.since

    def _drop(self, connection: Connection) -> None:
        if connection in self._open:
            self._open.remove(connection)
            self._by_address[connection.address] -= 1
            if not self._by_address[connection.address]:
                del self._by_address[connection.address]

    def _cut(self, connection: Connection) -> None:
        self._drop(connection)
        connection.cut()
