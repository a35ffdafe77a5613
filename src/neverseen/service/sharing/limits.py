"""Token buckets: the rate limits of keys and addresses."""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache

_ENTRIES = 20_000
_STRANGER = "@"  # begins what a client without a key is called: no name of a key begins with it


class Buckets:
    """One token bucket for each name. It fills at `rate` tokens a second, and holds `burst` at most.

    Examples
    --------
    >>> buckets = Buckets(rate=1, burst=2, clock=lambda: 0.0)
    >>> buckets.take("ada"), buckets.take("ada"), buckets.take("ada"), buckets.take("bob")
    (0.0, 0.0, 1.0, 0.0)
    """

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate, self.burst = rate, burst
        self._clock = clock
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, and when there were so many

    def take(self, name: str, tokens: float = 1.0) -> float:
        """Take tokens and return 0; if there are too few, take none and return the seconds to wait.

        A request for more than a bucket can hold needs a full one, and leaves it in debt.
        """
        wait = self.wait(name, tokens)
        if not wait:
            level, now = self._levels[name]
            self._levels[name] = level - tokens, now
        return wait

    def spend(self, name: str, tokens: float) -> None:
        """Take tokens for something that has happened already, into debt if necessary."""
        self.wait(name)
        level, then = self._levels[name]
        self._levels[name] = (level - tokens, then)

    def wait(self, name: str, tokens: float = 1.0) -> float:
        """Return the seconds that `take` would return, but take nothing."""
        now = self._clock()
        level, then = self._levels.get(name, (self.burst, now))
        level = min(self.burst, level + (now - then) * self.rate)
        self._levels[name] = (level, now)
        self._levels.move_to_end(name)
        if len(self._levels) > _ENTRIES:
            self._levels.popitem(last=False)
        needed = min(tokens, self.burst)
        return max(1e-3, (needed - level) / self.rate) if level < needed else 0.0


@lru_cache(maxsize=1024)
def origin(host: str) -> str:
    """Return the client behind an address: the address, or in IPv6 its /64 network, which one client owns.

    Examples
    --------
    >>> origin("192.0.2.7"), origin("2001:db8::1") == origin("2001:db8::2")
    ('192.0.2.7', True)
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4:
        return host
    return str(address.ipv4_mapped or ipaddress.ip_network((int(address) >> 64 << 64, 64)))


def stranger(host: str) -> str:
    """Return the name of a client without a key.

    Examples
    --------
    >>> stranger("192.0.2.7"), is_stranger(stranger("192.0.2.7")), is_stranger("192.0.2.7")
    ('@192.0.2.7', True, False)
    """
    return _STRANGER + origin(host)


def is_stranger(client: str) -> bool:
    """Return whether a client has no key."""
    return client.startswith(_STRANGER)
