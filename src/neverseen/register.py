"""Which acts of learning still stand, without saying of whom.

Two people may hand in the same picture. To the sums they are one sample learned twice, but each has a receipt of
their own, and a receipt must work once. So each sample learned under an id has a *ticket*: a keyed digest of the id,
noted with the sample's member digest (`neverseen.membership`) and with a keyed digest of the raw sample's content.
The last tells a sample whose features have moved from one that was never learned. Forgetting removes the ticket and
leaves no mark.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from neverseen.errors import AmbiguousError, InputError, NotLearnedError
from neverseen.keys import Key
from neverseen.membership import DIGEST_SIZE, Member


class Ticket(NamedTuple):
    """What stands for one sample learned under an id. A register in memory notes the first two alone."""

    number: bytes  # keyed digest of the id, in a store of owner and id; empty if one of them is not known
    content: bytes  # keyed digest of the raw sample
    id: str  # canonical text; empty if it is not known
    owner: str = "null"  # canonical text; empty if it is not known
    commitment: bytes = b""  # of the sample's receipt; empty if there is none to compare
    salt: bytes = b""  # of the sample's receipt


def tickets_of(
    configuration_digest: bytes, key: Key, ids: Iterable[str], names: Iterable[str], prints: Iterable[bytes]
) -> list[Ticket]:
    """Return the ticket of each sample.

    Parameters
    ----------
    configuration_digest : bytes
        Bound into each digest, as in the membership.
    key : Key
        The membership key.
    ids, names : iterables of str
        Canonical texts of the samples' ids and classes.
    prints : iterable of bytes
        Fingerprints of the samples, 16 bytes each.
    """

    def digest(person: bytes, about: bytes) -> bytes:
        hasher = hashlib.blake2b(key=key.reveal(), digest_size=DIGEST_SIZE, person=person)
        hasher.update(configuration_digest + about)
        return hasher.digest()

    return [
        Ticket(
            digest(b"neverseen:ticket", id_text.encode()),
            digest(b"neverseen:raw", fingerprint + name.encode()),
            id_text,
        )
        for id_text, name, fingerprint in zip(ids, names, prints, strict=True)
    ]


def number_for(configuration_digest: bytes, key: Key, owner: str, id_text: str) -> bytes:
    """Return the number of a ticket in a store, where ids are an owner's own: the same id of two owners has two.

    Parameters
    ----------
    configuration_digest : bytes
    key : Key
        The membership key.
    owner, id_text : str
        Canonical texts.
    """
    hasher = hashlib.blake2b(key=key.reveal(), digest_size=DIGEST_SIZE, person=b"neverseen:owned")
    hasher.update(configuration_digest + struct.pack("<Q", len(owner)) + owner.encode() + id_text.encode())
    return hasher.digest()


class Register:
    """The tickets of the samples held."""

    def __init__(self) -> None:
        self._noted: dict[bytes, tuple[bytes, bytes]] = {}  # ticket number -> member digest, content
        self._numbers: dict[bytes, set[bytes]] = {}  # member digest -> its ticket numbers
        self._contents: Counter[bytes] = Counter()

    def __len__(self) -> int:
        return len(self._noted)

    # -- questions ---------------------------------------------------------------------------------

    def noted(self, numbers: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the member digest of each of these ticket numbers that is noted."""
        return {number: self._noted[number][0] for number in numbers if number in self._noted}

    def numbers_of(self, digests: Iterable[bytes]) -> dict[bytes, set[bytes]]:
        """Return the ticket numbers of those of these member digests that are held under any."""
        return {digest: set(self._numbers[digest]) for digest in digests if digest in self._numbers}

    def known(self, contents: Iterable[bytes]) -> set[bytes]:
        """Return those of these contents that are held, whatever their features were."""
        return {content for content in contents if self._contents[content]}

    def standing(self, tickets: Sequence[Ticket], members: Sequence[Member]) -> list[bool]:
        """Return, for each ticket, whether the sample beside it is held under it."""
        noted = self.noted({ticket.number for ticket in tickets})
        return [noted.get(ticket.number) == digest for ticket, (_, digest) in zip(tickets, members, strict=True)]

    def require_new(self, tickets: Sequence[Ticket]) -> None:
        """Raise `InputError` if an id is held already, or given twice."""
        noted = self.noted({ticket.number for ticket in tickets})
        seen: set[bytes] = set()
        for row, ticket in enumerate(tickets):
            if ticket.number in noted:
                raise InputError(
                    f"the id of row {row} belongs to a sample the model holds: every sample needs an id of its own. "
                    "Nothing was learned"
                )
            if ticket.number in seen:
                raise InputError(f"the id of row {row} is given twice in one call. Nothing was learned")
            seen.add(ticket.number)

    def resolve(self, members: Sequence[Member], tickets: Sequence[Ticket]) -> list[bytes]:
        """Return the ticket numbers that go when these samples go, or raise `NotLearnedError` if one does not stand."""
        first = {ticket.number: row for row, ticket in reversed(list(enumerate(tickets)))}
        standing = self.standing(tickets, members)
        missing = tuple(row for row, ticket in enumerate(tickets) if first[ticket.number] != row or not standing[row])
        if missing:
            known = "under the id of" if tickets[missing[0]].id else "of the owner of"
            raise NotLearnedError(
                f"the model holds no such sample {known} row {missing[0]} ({len(missing)} of {len(tickets)} rows in "
                "all): it is another sample's or owner's, is given twice, or was forgotten. Nothing was changed",
                missing,
            )
        return [ticket.number for ticket in tickets]

    def resolve_without_tickets(self, members: Sequence[Member], held: Mapping[Member, int]) -> list[bytes]:
        """Return the ticket numbers that go when these samples go, which are held as often as `held` says.

        A sample must be held without an id, or be asked for as often as it is held: which of several ids should go
        would be a guess.
        """
        numbers = self.numbers_of({digest for _, digest in members})
        gone: list[bytes] = []
        for member, asked in Counter(members).items():
            here = numbers.get(member[1], set())
            if asked <= held[member] - len(here):
                continue
            if asked < held[member]:
                row = members.index(member)
                raise AmbiguousError(
                    f"row {row} was learned {held[member]} times under different ids, and the request has it {asked} "
                    "times: say which by their ids, or give the receipts. Nothing was changed",
                    row,
                )
            gone += here
        return gone

    def fits(self, held: Mapping[bytes, int]) -> bool:
        """Return whether no member digest has more tickets than it is held."""
        return all(len(numbers) <= held.get(digest, 0) for digest, numbers in self._numbers.items())

    # -- changes -----------------------------------------------------------------------------------

    def add(self, members: Iterable[Member], tickets: Iterable[Ticket]) -> None:
        """Note samples that `require_new` let pass."""
        for (_, digest), ticket in zip(members, tickets, strict=True):
            self._noted[ticket.number] = (digest, ticket.content)
            self._numbers.setdefault(digest, set()).add(ticket.number)
            self._contents[ticket.content] += 1

    def remove(self, numbers: Iterable[bytes]) -> None:
        """Strike out tickets that `resolve` returned."""
        for number in numbers:
            digest, content = self._noted.pop(number)
            self._numbers[digest].discard(number)
            if not self._numbers[digest]:
                del self._numbers[digest]
            self._contents[content] -= 1
            if self._contents[content] == 0:
                del self._contents[content]

    def remove_members(self, digests: Iterable[bytes]) -> None:
        """Strike out all tickets of some member digests."""
        self.remove([number for digest in digests for number in self._numbers.get(digest, ())])

    def require_apart(self, other: Register) -> None:
        """Raise unless no id is in both."""
        both = len(self._noted.keys() & other._noted.keys())
        if both:
            raise InputError(f"both models hold samples under the same id ({both} in all); ids must be different")

    def merge(self, other: Register) -> None:
        """Take in all that another notes, `require_apart` having been called."""
        self.fill(other.to_array())

    # -- as bytes ----------------------------------------------------------------------------------

    def to_array(self) -> np.ndarray:
        """Return all tickets, uint8 of shape (n, 48), sorted: number, content, member digest."""
        rows = (number + content + digest for number, (digest, content) in sorted(self._noted.items()))
        return np.frombuffer(b"".join(rows), np.uint8).reshape(-1, 3 * DIGEST_SIZE)

    def fill(self, rows: np.ndarray) -> None:
        """Take in what `to_array` returned."""
        for row in rows:
            number, content, digest = (row[start : start + DIGEST_SIZE].tobytes() for start in (0, 16, 32))
            self.add([("", digest)], [Ticket(number, content, "")])
