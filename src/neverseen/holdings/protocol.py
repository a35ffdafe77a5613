"""The protocol of holdings. `neverseen.holdings.deciding` decides; holdings only answer and record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from neverseen.holdings.digests import Member
from neverseen.proof.keys import Key

if TYPE_CHECKING:
    from neverseen.holdings.deciding import Decision


class HeldTicket(Protocol):
    """A ticket of a held sample."""

    @property
    def number(self) -> bytes: ...  # noqa: D102
    @property
    def member(self) -> bytes: ...  # noqa: D102  # digest of its sample
    @property
    def content(self) -> bytes: ...  # noqa: D102  # keyed digest of its raw sample
    @property
    def id(self) -> str: ...  # noqa: D102  # canonical text; empty where it is not kept
    @property
    def owner(self) -> str: ...  # noqa: D102  # likewise
    @property
    def commitment(self) -> bytes | None: ...  # noqa: D102  # of its receipt; None where it is not kept


class Found(NamedTuple):
    """How a member digest is held."""

    times: int
    tickets: Sequence[HeldTicket]  # at most as many: samples may be learned without ids


class Holdings(Protocol):
    """Which samples a model holds.

    Questions about one owner read no rows of other owners.

    Attributes
    ----------
    key : Key or None
        The membership key. Without it, no sample can be looked up, learned or forgotten.
    """

    key: Key | None

    def by_numbers(self, numbers: Iterable[bytes], owner: str | None = None) -> Mapping[bytes, HeldTicket]:
        """Return the held tickets with these numbers."""

    def by_members(self, members: Iterable[Member], owner: str | None = None) -> Mapping[bytes, Found]:
        """Return how these members are held, by digest, without those that are not held."""

    def knows_contents(self, contents: Iterable[bytes]) -> set[bytes]:
        """Return those of these contents of tickets that are held."""

    def used(self, commitments: Iterable[bytes]) -> set[bytes]:
        """Return those of these commitments whose samples were forgotten. No other sample will ever have them."""

    def record(self, decision: Decision) -> None:
        """Carry out a decision: all of it or, if it raises a `NeverseenError`, nothing.

        In a ledger, it is on disk when this returns.
        """
