"""Decides which changes are allowed. This is the only place that compares requests with the holdings of a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from neverseen.errors import (
    AmbiguousError,
    ConfigurationError,
    IdTakenError,
    InputError,
    KeyMissingError,
    NotLearnedError,
)
from neverseen.holdings.change import FORGET_CLASS, LEARN, Change
from neverseen.holdings.digests import Member, Origin, Ticket, member_digests
from neverseen.holdings.protocol import HeldTicket, Holdings
from neverseen.proof.keys import Key


class Decision(NamedTuple):
    """The effect of a change that is allowed."""

    change: Change
    members: Sequence[Member]  # of its samples
    numbers: list[bytes]  # of the tickets that go
    contents: frozenset[bytes] = frozenset()  # of these tickets


def decide(holdings: Holdings, configuration: bytes, change: Change, *, seen: bool = False) -> Decision:
    """Return the effect of a change; raise if it is not allowed. Nothing changes yet.

    Parameters
    ----------
    configuration : bytes
        Digest of the model's configuration.
    change : Change
        For a class to forget, the model itself checks that the class and its sums are held.
    seen : bool
        Whether `require_new` has accepted its ids, or all its tickets were `standing`, and nothing has changed since.
    """
    if change.kind == FORGET_CLASS:
        return Decision(change, [], [])
    members = members_of(holdings, configuration, change)
    if change.kind == LEARN:
        if not seen:
            require_new(holdings, [ticket.number for ticket in change.tickets or ()])
            _require_unused(holdings, change.tickets or ())
        return Decision(change, members, [])
    gone: Sequence[Ticket | HeldTicket]
    if change.tickets is None:
        gone = _without_tickets(holdings, members, change.owner)
    else:
        gone = _with_tickets(holdings, members, change.tickets, change.owner, seen)
    return Decision(change, members, [each.number for each in gone], frozenset(each.content for each in gone))


def members_of(holdings: Holdings, configuration: bytes, change: Change) -> Sequence[Member]:
    """Return the class and the member digest of each sample of a change: those made with it, if there are any."""
    origin = Origin(configuration, required_key(holdings))
    if change.origin is None:
        return member_digests(*origin, change.quantised, change.labels)
    if change.origin != origin:
        raise ConfigurationError(
            "this change was made for a model with another key or configuration: make it with the model that is to "
            "make it. Nothing was changed"
        )
    return change.members


def required_key(holdings: Holdings) -> Key:
    """Return the membership key of the holdings, or raise `KeyMissingError`."""
    if holdings.key is None:
        raise KeyMissingError(
            "this model was loaded without its membership key: it can predict, not learn or forget samples. "
            "Load it with key="
        )
    return holdings.key


def require_new(holdings: Holdings, numbers: Sequence[bytes]) -> None:
    """Raise `IdTakenError` if a held sample has one of these ids (as ticket numbers), or if one is given twice."""
    held = holdings.by_numbers(set(numbers)) if numbers else {}
    seen: dict[bytes, int] = {}
    for row, number in enumerate(numbers):
        if number in held:
            raise IdTakenError(
                f"the id of row {row} belongs to a sample the model holds: every sample needs an id of its own. "
                "Nothing was learned",
                row,
            )
        first = seen.setdefault(number, row)
        if first != row:
            raise IdTakenError(f"the id of row {row} is given twice in one call. Nothing was learned", row, first)


def _require_unused(holdings: Holdings, tickets: Sequence[Ticket]) -> None:
    """Raise `InputError` if a receipt is used up: a sample that is learned again has a new salt and a new receipt."""
    salted = {ticket.commitment: row for row, ticket in enumerate(tickets) if ticket.salt}
    used = [salted[each] for each in holdings.used(salted)] if salted else []
    if used:
        raise InputError(
            f"the sample of row {min(used)} was learned with its receipt before, and forgotten: the receipt is used "
            "up. Make the change anew, for a new receipt. Nothing was learned"
        )


def standing(
    holdings: Holdings, tickets: Sequence[Ticket], members: Sequence[Member], owner: str | None = None
) -> list[HeldTicket | None]:
    """Return for each ticket the held ticket of its sample, under its receipt if it names one; None if not held."""
    asked = {ticket.number for ticket in tickets if ticket.number and owner in (None, ticket.owner)}
    held = holdings.by_numbers(asked, owner)
    found = [held.get(ticket.number) for ticket in tickets]
    return [
        each
        if each is not None
        and each.member == digest
        and (each.commitment is None or ticket.commitment in (b"", each.commitment))
        else None
        for each, ticket, (_, digest) in zip(found, tickets, members, strict=True)
    ]


def moved(
    holdings: Holdings, rows: Iterable[int], members: Sequence[Member], contents: Sequence[bytes]
) -> tuple[int, ...]:
    """Return the rows whose sample is held with other features: the content is known, the features are not."""
    held, known = holdings.by_members(members), holdings.knows_contents(contents)
    return tuple(row for row in rows if contents[row] in known and members[row][1] not in held)


def _without_tickets(holdings: Holdings, members: Sequence[Member], owner: str | None) -> list[HeldTicket]:
    """Return the tickets to remove with these samples, which were given without tickets.

    A sample must be held without an id, or be requested as often as it is held. Otherwise it would be a guess which of
    its ids to remove.
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
    gone: list[HeldTicket] = []
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
        gone += tickets
    return gone


def _with_tickets(
    holdings: Holdings, members: Sequence[Member], tickets: Sequence[Ticket], owner: str | None, seen: bool
) -> list[Ticket | HeldTicket]:
    """Return the tickets to remove with these samples; raise `NotLearnedError` if a ticket does not stand."""
    found: list[Ticket | HeldTicket | None] = [None] * len(tickets)
    if seen:
        found[:] = tickets
    elif any(ticket.number for ticket in tickets):
        found[:] = standing(holdings, tickets, members, owner)
    for row, each in _unnumbered(holdings, members, tickets, owner):
        found[row] = each
    gone: dict[bytes, Ticket | HeldTicket] = {}
    missing = []
    for row, going in enumerate(found):
        if going is None or going.number in gone:
            missing.append(row)
        else:
            gone[going.number] = going
    if missing:
        known = "under the id of" if tickets[missing[0]].id else "of the owner of"
        raise NotLearnedError(
            f"the model holds no such sample {known} row {missing[0]} ({len(missing)} of {len(tickets)} rows in "
            "all): it is another sample's or owner's, is given twice, or was forgotten. Nothing was changed",
            tuple(missing),
        )
    return list(gone.values())


def _unnumbered(
    holdings: Holdings, members: Sequence[Member], tickets: Sequence[Ticket], owner: str | None
) -> Iterator[tuple[int, HeldTicket]]:
    """Yield, for tickets without numbers, the row and the held ticket of each sample that is held.

    A ticket has no number if the owner or the id of its sample is unknown. Then the sample is found by its features,
    its label, and the one of the two that is known.
    """
    asked: dict[tuple[Member, str, str], list[int]] = {}
    for row, (ticket, member) in enumerate(zip(tickets, members, strict=True)):
        if not ticket.number:
            asked.setdefault((member, ticket.id, ticket.owner), []).append(row)
    held = holdings.by_members({member for member, _, _ in asked}, owner) if asked else {}
    known: dict[bytes, dict[tuple[str, str], list[HeldTicket]]] = {}  # by digest, then by what of them is given
    for (member, id_text, whose), rows in asked.items():
        if member[1] in held and member[1] not in known:
            known[member[1]] = _by_what_is_known(held[member[1]].tickets)
        found = known.get(member[1], {}).get((id_text, whose), [])
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
        yield from zip(rows, found, strict=False)


def _by_what_is_known(tickets: Sequence[HeldTicket]) -> dict[tuple[str, str], list[HeldTicket]]:
    """Return tickets by id and owner, by each alone, and all. So thousands of equal samples are gone through once."""
    found: dict[tuple[str, str], list[HeldTicket]] = {}
    for each in tickets:
        for known in {(each.id, each.owner), (each.id, ""), ("", each.owner), ("", "")}:
            found.setdefault(known, []).append(each)
    return found
