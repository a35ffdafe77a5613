"""Holdings in memory: a multiset of member digests for each class, and the tickets of samples learned under ids.

Forgetting removes digests and tickets without a trace: the holdings equal those of a model that never learned the
sample.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from neverseen.errors import ConfigurationError, InputError, KeyMissingError, NotLearnedError
from neverseen.holdings.change import FORGET_CLASS, LEARN
from neverseen.holdings.deciding import Decision
from neverseen.holdings.digests import DIGEST_SIZE, Member
from neverseen.holdings.protocol import Found
from neverseen.labels import in_class_order
from neverseen.proof.keys import Key

_ALL = ""
"""The group of all samples where labels are not classes."""


class _Ticket(NamedTuple):
    number: bytes
    member: bytes
    content: bytes
    id: str = ""
    owner: str = ""
    commitment: bytes | None = None


class MemoryHoldings:
    """The holdings of a model in memory; see `neverseen.holdings.Holdings`.

    Without a key, holdings can be kept and saved, and classes can be forgotten, but no sample can be looked up.

    Parameters
    ----------
    by_class : bool
        Whether labels are classes. Other labels, such as a row of numbers, are not kept: digests cover them.

    Attributes
    ----------
    key_check : str or None
        Identifies the key of the digests (`Key.check`), even if the key itself is unknown.
    """

    def __init__(self, key: Key | None, *, by_class: bool = True) -> None:
        self.key = key
        self._by_class = by_class
        self.key_check = None if key is None else key.check()
        self._members: dict[str, Counter[bytes]] = {}  # class -> digests
        self._tickets: dict[bytes, _Ticket] = {}  # by number
        self._numbers: dict[bytes, set[bytes]] = {}  # member digest -> numbers of its tickets
        self._contents: Counter[bytes] = Counter()

    # -- answers -----------------------------------------------------------------------------------

    def by_numbers(self, numbers: Iterable[bytes], owner: str | None = None) -> dict[bytes, _Ticket]:
        """Return the held tickets with these numbers. Owners are not kept."""
        return {number: self._tickets[number] for number in numbers if number in self._tickets}

    def by_members(self, members: Iterable[Member], owner: str | None = None) -> dict[bytes, Found]:
        """Return how these members are held, by digest, without those that are not held."""
        found = {}
        for name, digest in members:
            held = self._members.get(self._group(name))
            times = held.get(digest, 0) if held else 0
            if times:
                numbers = self._numbers.get(digest, ())
                found[digest] = Found(times, [self._tickets[number] for number in numbers])
        return found

    def knows_contents(self, contents: Iterable[bytes]) -> set[bytes]:
        """Return the contents that are held, whatever their features are."""
        return {content for content in contents if self._contents[content]}

    def used(self, commitments: Iterable[bytes]) -> set[bytes]:
        """Return nothing: in memory, a receipt is valid again once its sample is learned again."""
        return set()

    def counts(self) -> dict[str, int]:
        """Return the number of samples of each class."""
        return {name: held.total() for name, held in self._members.items()}

    # -- changes -----------------------------------------------------------------------------------

    def record(self, decision: Decision) -> None:
        """Carry out a decision."""
        change, members, numbers, _ = decision
        if change.kind == LEARN:
            for name, digest in members:
                group = name if self._by_class else _ALL
                held = self._members.get(group)
                if held is None:
                    held = self._members[group] = Counter()
                held[digest] = held.get(digest, 0) + 1
            for (_, digest), ticket in zip(members, change.tickets or (), strict=change.tickets is not None):
                self._add(_Ticket(ticket.number, digest, ticket.content))
        elif change.kind == FORGET_CLASS:
            gone = self._members.pop(change.name)
            self._remove([number for digest in gone for number in self._numbers.get(digest, ())])
        else:
            for name, digest in members:
                held = self._members[self._group(name)]
                held[digest] -= 1
                if not held[digest]:
                    del held[digest]
                if not held:
                    del self._members[self._group(name)]
            self._remove(numbers)

    def _group(self, name: str) -> str:
        return name if self._by_class else _ALL

    def _add(self, ticket: _Ticket) -> None:
        self._tickets[ticket.number] = ticket
        self._numbers.setdefault(ticket.member, set()).add(ticket.number)
        self._contents[ticket.content] += 1

    def _remove(self, numbers: Iterable[bytes]) -> None:
        for number in numbers:
            ticket = self._tickets.pop(number)
            self._numbers[ticket.member].discard(number)
            if not self._numbers[ticket.member]:
                del self._numbers[ticket.member]
            self._contents[ticket.content] -= 1
            if not self._contents[ticket.content]:
                del self._contents[ticket.content]

    def require_mergeable(self, other: MemoryHoldings) -> None:
        """Raise unless both have the same key, and no id is in both."""
        self.require_keys(other)
        both = len(self._tickets.keys() & other._tickets.keys())
        if both:
            raise InputError(f"both models hold samples under the same id ({both} in all); ids must be different")

    def require_keys(self, other: MemoryHoldings) -> None:
        """Raise unless both have the same key."""
        if self.key is None or other.key is None:
            raise KeyMissingError("models can be merged only with their membership keys. Load them with key=")
        if self.key != other.key:
            raise ConfigurationError(
                "the models have different membership keys; build both with the same key=, or use a Federation"
            )

    def merge(self, other: MemoryHoldings) -> None:
        """Add everything that another holds. Call `require_mergeable` first."""
        for name, held in other._members.items():
            self._members.setdefault(name, Counter()).update(held)
        for ticket in other._tickets.values():
            self._add(ticket)

    def require_part(self, other: MemoryHoldings) -> None:
        """Raise unless these hold all that another holds."""
        missing = sum((held - self._members.get(name, Counter())).total() for name, held in other._members.items())
        if missing or not other._tickets.keys() <= self._tickets.keys():
            raise NotLearnedError(f"{missing} samples of the other model are not held, or not under their ids")

    def subtract(self, other: MemoryHoldings) -> None:
        """Remove everything that another holds. Call `require_part` first."""
        for name, held in other._members.items():
            self._members[name].subtract(held)
            self._members[name] += Counter()  # drops digests that are held no more
            if not self._members[name]:
                del self._members[name]
        self._remove(other._tickets)

    # -- as arrays ---------------------------------------------------------------------------------

    def members_array(self) -> np.ndarray:
        """Return all digests, uint8 of shape (n, 16): by class, in class order, then sorted, duplicates repeated."""
        names = in_class_order(self._members) if self._by_class else list(self._members)
        rows = b"".join(digest for name in names for digest in sorted(self._members[name].elements()))
        return np.frombuffer(rows, np.uint8).reshape(-1, DIGEST_SIZE)

    def tickets_array(self) -> np.ndarray:
        """Return all tickets, uint8 of shape (n, 48), sorted: number, content, member digest."""
        rows = (ticket.number + ticket.content + ticket.member for _, ticket in sorted(self._tickets.items()))
        return np.frombuffer(b"".join(rows), np.uint8).reshape(-1, 3 * DIGEST_SIZE)

    def fill(self, members: np.ndarray, counts: dict[str, int], tickets: np.ndarray | None = None) -> None:
        """Add the members and tickets that `members_array` and `tickets_array` returned.

        Parameters
        ----------
        members : uint8 ndarray of shape (n, 16)
        counts : dict
            The number of samples of each class, in class order.
        tickets : uint8 ndarray of shape (m, 48), optional
        """
        place = 0
        for name, count in counts.items() if self._by_class else [(_ALL, len(members))]:
            rows = np.ascontiguousarray(members[place : place + count])
            self._members[name] = Counter(row.tobytes() for row in rows)
            place += count
        for row in () if tickets is None else tickets:
            number, content, digest = (row[start : start + DIGEST_SIZE].tobytes() for start in (0, 16, 32))
            self._add(_Ticket(number, digest, content))

    def is_sound(self) -> bool:
        """Return whether each member digest has at most as many tickets as held samples. Classes share no digests."""
        held: Counter[bytes] = Counter()
        for digests in self._members.values():
            held.update(digests)
        return all(len(numbers) <= held[digest] for digest, numbers in self._numbers.items())
