"""What may come and what may go: the one place where requests are held against what a model holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from neverseen.errors import AmbiguousError, IdTakenError, KeyMissingError, NotLearnedError
from neverseen.holdings.change import FORGET_CLASS, LEARN, Change
from neverseen.holdings.digests import Member, Ticket, member_digests
from neverseen.holdings.protocol import Holdings
from neverseen.labels import LabelIndex
from neverseen.proof.keys import Key


class Decision(NamedTuple):
    """A change that may be made, and what it comes to."""

    change: Change
    members: list[Member]  # of its samples
    numbers: list[bytes]  # of the tickets that go


def decide(holdings: Holdings, configuration: bytes, change: Change, *, seen: bool = False) -> Decision:
    """Return what a change comes to, or raise why it may not be made. Nothing is changed.

    Parameters
    ----------
    configuration : bytes
        Digest of the model's configuration.
    change : Change
        That a class is held, and its sums are, the model says.
    seen : bool
        Whether `require_new` has let its ids pass, or all its tickets were `standing`, and nothing has changed since.
    """
    if change.kind == FORGET_CLASS:
        return Decision(change, [], [])
    members = members_of(holdings, configuration, change.quantised, change.labels)
    if change.kind == LEARN:
        if not seen:
            require_new(holdings, change.tickets or ())
        return Decision(change, members, [])
    if change.tickets is None:
        return Decision(change, members, _without_tickets(holdings, members, change.owner))
    return Decision(change, members, _with_tickets(holdings, members, change.tickets, change.owner, seen))


def members_of(holdings: Holdings, configuration: bytes, quantised: np.ndarray, index: LabelIndex) -> list[Member]:
    """Return class and digest of each sample."""
    return member_digests(configuration, required_key(holdings), quantised, index)


def required_key(holdings: Holdings) -> Key:
    """Return the key of holdings, or say that it is missing."""
    if holdings.key is None:
        raise KeyMissingError(
            "this model was loaded without its membership key: it can predict, not learn or forget samples. "
            "Load it with key="
        )
    return holdings.key


def require_new(holdings: Holdings, tickets: Sequence[Ticket]) -> None:
    """Raise `IdTakenError` if an id is held already, or given twice."""
    held = holdings.by_numbers({ticket.number for ticket in tickets}) if tickets else {}
    seen: dict[bytes, int] = {}
    for row, ticket in enumerate(tickets):
        if ticket.number in held:
            raise IdTakenError(
                f"the id of row {row} belongs to a sample the model holds: every sample needs an id of its own. "
                "Nothing was learned",
                row,
            )
        first = seen.setdefault(ticket.number, row)
        if first != row:
            raise IdTakenError(f"the id of row {row} is given twice in one call. Nothing was learned", row, first)


def standing(
    holdings: Holdings, tickets: Sequence[Ticket], members: Sequence[Member], owner: str | None = None
) -> list[bool]:
    """Return, for each ticket, whether the sample beside it is held under it, and by this very receipt if any."""
    asked = {ticket.number for ticket in tickets if ticket.number and owner in (None, ticket.owner)}
    held = holdings.by_numbers(asked, owner)
    found = [held.get(ticket.number) for ticket in tickets]
    return [
        each is not None
        and each.member == digest
        and (each.commitment is None or ticket.commitment in (b"", each.commitment))
        for each, ticket, (_, digest) in zip(found, tickets, members, strict=True)
    ]


def moved(
    holdings: Holdings, rows: Iterable[int], members: Sequence[Member], contents: Sequence[bytes]
) -> tuple[int, ...]:
    """Return those of some rows that are held with other features: their content is known, their features are not."""
    held, known = holdings.by_members(members), holdings.knows_contents(contents)
    return tuple(row for row in rows if contents[row] in known and members[row][1] not in held)


def _without_tickets(holdings: Holdings, members: Sequence[Member], owner: str | None) -> list[bytes]:
    """Return the ticket numbers that go when these samples go.

    A sample must be held without an id, or be asked for as often as it is held: which of several ids should go would
    be a guess.
    """
    found = holdings.by_members(members, owner)
    asked: Counter[Member] = Counter()
    missing = []
    for row, member in enumerate(members):
        asked[member] += 1
        if member[1] not in found or asked[member] > found[member[1]].times:
            missing.append(row)
    if missing:
        shown = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
        raise NotLearnedError(
            f"the model does not hold {len(missing)} of the {len(members)} samples to be forgotten "
            f"(rows {shown}): never learned with these features and this label, already forgotten, or listed "
            "more often than learned. Nothing was changed",
            tuple(missing),
        )
    gone: list[bytes] = []
    for member, wanted in asked.items():
        times, tickets = found[member[1]]
        if wanted <= times - len(tickets):
            continue
        if wanted < times:
            row = members.index(member)
            raise AmbiguousError(
                f"row {row} was learned {times} times under different ids, and the request has it {wanted} times: say "
                "which by their ids, or give the receipts. Nothing was changed",
                row,
            )
        gone += [ticket.number for ticket in tickets]
    return gone


def _with_tickets(
    holdings: Holdings, members: Sequence[Member], tickets: Sequence[Ticket], owner: str | None, seen: bool
) -> list[bytes]:
    """Return the ticket numbers that go when these samples go, or raise `NotLearnedError` if one does not stand."""
    tickets = _numbered(holdings, members, tickets, owner)
    first = {ticket.number: row for row, ticket in reversed(list(enumerate(tickets)))}
    stand = [True] * len(tickets) if seen else standing(holdings, tickets, members, owner)
    missing = tuple(row for row, ticket in enumerate(tickets) if first[ticket.number] != row or not stand[row])
    if missing:
        known = "under the id of" if tickets[missing[0]].id else "of the owner of"
        raise NotLearnedError(
            f"the model holds no such sample {known} row {missing[0]} ({len(missing)} of {len(tickets)} rows in "
            "all): it is another sample's or owner's, is given twice, or was forgotten. Nothing was changed",
            missing,
        )
    return [ticket.number for ticket in tickets]


def _numbered(
    holdings: Holdings, members: Sequence[Member], tickets: Sequence[Ticket], owner: str | None
) -> Sequence[Ticket]:
    """Return tickets with their numbers.

    One without a number is of a sample whose owner or id is not known: it is found by its features, its label, and the
    one of the two that is known.
    """
    asked: dict[tuple[Member, str, str], list[int]] = {}
    for row, (ticket, member) in enumerate(zip(tickets, members, strict=True)):
        if not ticket.number:
            asked.setdefault((member, ticket.id, ticket.owner), []).append(row)
    if not asked:
        return tickets
    held = holdings.by_members({member for member, _, _ in asked}, owner)
    numbered = list(tickets)
    for (member, id_text, whose), rows in asked.items():
        among = held[member[1]].tickets if member[1] in held else ()
        found = [each for each in among if id_text in ("", each.id) and whose in ("", each.owner)]
        if len(found) > (1 if id_text else len(rows)):
            raise AmbiguousError(
                f"row {rows[0]} was learned for several owners under its id: say whose with owners= or give the "
                "receipts. Nothing was changed"
                if id_text
                else f"row {rows[0]} was learned {len(found)} times for its owner under different ids, and the "
                f"request has it {len(rows)} times: say which by their ids, or give the receipts. Nothing was "
                "changed",
                rows[0],
            )
        for row, each in zip(rows, found, strict=False):
            numbered[row] = tickets[row]._replace(number=each.number, owner=each.owner)
    return numbered
