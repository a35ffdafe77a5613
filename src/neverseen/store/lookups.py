"""Whether a store holds what receipts and samples are about: what certificates alone cannot tell.

A certificate lists receipts whose samples went. The same sample can be held all the while under another id, or be
learned again afterwards, and no certificate says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from neverseen.backbones.reading import Prepared
from neverseen.errors import AlreadyForgottenError, ReceiptRejectedError
from neverseen.holdings import member_digests, owned_number, tickets_of
from neverseen.labels import LabelIndex, from_text, normalise, text
from neverseen.ledger import Ledger
from neverseen.ledger.tables import chunks
from neverseen.model.intake import Intake
from neverseen.proof.keys import Key, Keyring
from neverseen.proof.receipts import Receipt, commitment, seal, unseal
from neverseen.store.parts import Parts

_TOGETHER = 2**16
"""Pairs of a receipt and a class that are looked up at a time: their digests are in memory."""


class Holding(NamedTuple):
    """What a store says about one receipt.

    Attributes
    ----------
    certificate : int or None
        Number of the newest certificate that lists the receipt as forgotten.
    held : str or None
        ``"receipt"``: the sample is held under this receipt. ``"sample"``: a sample with the same content or features
        is held, under another receipt: it was learned again, or somebody else's is the same. ``"id"``: another sample
        is held under its id. None: nothing was found.
    sure : bool
        Whether `held` None means that the sample is not held. A receipt that the keys do not open, or that is looked
        for without them, tells nothing of its sample: any sample held may be the same, learned before it or since.
    """

    certificate: int | None
    held: str | None
    sure: bool


def holdings(parts: Parts, receipts: Sequence[bytes], keys: Keyring | None) -> list[Holding]:
    """Return what the ledger says about each receipt. Without the store's keys receipts cannot be opened."""
    ledger, configuration = parts.ledger, parts.description.configuration.digest()
    marks = [commitment(receipt) for receipt in receipts]
    numbers = ledger.certificates_of(marks)
    standing = ledger.knows_commitments(marks)
    opened = {} if keys is None else _opened(receipts, configuration, keys)
    found = {} if keys is None else _found(ledger, opened, configuration, keys)
    samples = ledger.total()
    return [
        Holding(numbers.get(mark), "receipt" if mark in standing else found.get(row), row in opened or samples == 0)
        for row, mark in enumerate(marks)
    ]


def _opened(receipts: Sequence[bytes], configuration: bytes, keys: Keyring) -> dict[int, Receipt]:
    """Return the receipts that the keys open, by their rows."""
    opened = {}
    for row, token in enumerate(receipts):
        try:
            opened[row] = unseal(token, row, keys.receipts, configuration)
        except ReceiptRejectedError:  # another store's, altered, or of a key since dropped: it is looked for as it is
            continue
    return opened


def _found(ledger: Ledger, opened: dict[int, Receipt], configuration: bytes, keys: Keyring) -> dict[int, str]:
    """Return, by row, as what the samples of opened receipts are held."""
    receipts = list(opened.values())
    numbers = [owned_number(configuration, keys.membership, receipt.owner, receipt.id) for receipt in receipts]
    by_number = ledger.by_numbers(numbers)
    found = {row: "id" for row, number in zip(opened, numbers, strict=True) if number in by_number}
    rows = list(opened)
    names = list(ledger.counts()) if receipts else []  # the label is part of both digests, and may be another now
    for some in chunks(names, max(1, _TOGETHER // max(1, len(receipts)))):
        digests = [pair for name in some for pair in _digests(receipts, name, configuration, keys.membership)]
        by_member = ledger.by_members(member for member, _ in digests)
        known = ledger.knows_contents(content for _, content in digests)  # goes through an index: not once a class
        for place, (member, content) in enumerate(digests):
            if member in by_member or content in known:
                found[rows[place % len(rows)]] = "sample"
    return found


def _digests(receipts: list[Receipt], name: str, configuration: bytes, key: Key) -> Iterator[tuple[bytes, bytes]]:
    """Yield, for each receipt, member digest and content of its sample as one of a class."""
    index = LabelIndex([from_text(name)] * len(receipts))
    quantised = np.stack([receipt.quantised for receipt in receipts])
    members = member_digests(configuration, key, quantised, index)
    ids, prints = [receipt.id for receipt in receipts], [receipt.fingerprint for receipt in receipts]
    tickets = tickets_of(configuration, key, ids, [name] * len(receipts), prints)
    return ((member, ticket.content) for (_, member), ticket in zip(members, tickets, strict=True))


def answered(
    ledger: Ledger, errors: Sequence[ReceiptRejectedError], receipts: Sequence[bytes]
) -> list[ReceiptRejectedError]:
    """Return refusals of receipts, those that certificates list with their numbers."""
    used = [commitment(token) if error.reason == "used" else b"" for error, token in zip(errors, receipts, strict=True)]
    numbers = ledger.certificates_of(value for value in used if value)
    return [
        error
        if number is None
        else AlreadyForgottenError(
            f"receipt {error.row} was used already: its sample was forgotten, and certificate {number} says so. If "
            "the sample was learned again since, only its new receipt is good. Nothing was changed",
            error.row,
            number,
        )
        for error, number in zip(errors, map(numbers.get, used), strict=True)
    ]


def receipts_again(
    parts: Parts, intake: Intake, prepared: Prepared, labels: Sequence[Any], ids: Sequence[Any], owner: Any
) -> list[bytes] | None:
    """Return the receipts that an owner's samples were given when they were learned; None if one is not held."""
    names, owners = [text(normalise(label)) for label in labels], [text(normalise(owner))] * len(labels)
    tickets = intake.tickets([text(normalise(each)) for each in ids], owners, names, prepared.prints)
    held = parts.ledger.by_numbers([ticket.number for ticket in tickets])
    configuration, keys = parts.description.configuration.digest(), intake.require_keys().current()
    receipts: list[bytes] = []
    for ticket, name, fingerprint, quantised in zip(tickets, names, prepared.prints, prepared.quantised, strict=True):
        row = held.get(ticket.number)
        if row is None:
            return None
        said = Receipt(ticket.id, ticket.owner, name, fingerprint, quantised, row.salt)
        sealed = (seal(said, key, configuration) for key in keys)
        found = next((token for token in sealed if commitment(token) == row.commitment), None)
        if found is None:
            return None
        receipts.append(found)
    return receipts


def ids_held(parts: Parts, key: Key, ids: Sequence[Any], owners: Sequence[Any] | None) -> list[bool]:
    """Return, for each id, whether a sample of its owner is held under it."""
    configuration = parts.description.configuration.digest()
    numbers = [
        owned_number(configuration, key, text(normalise(owner)), text(normalise(each)))
        for owner, each in zip([None] * len(ids) if owners is None else owners, ids, strict=True)
    ]
    held = parts.ledger.by_numbers(numbers)
    return [number in held for number in numbers]


def held_already(ledger: Ledger, members: Sequence[bytes], owners: Sequence[Any] | None) -> list[bool]:
    """Return, for each member digest, whether its owner has one like it, held or before it here."""
    seen = {(digest, row.owner) for digest, found in ledger.by_members(members).items() for row in found}
    whose = [text(normalise(owner)) for owner in ([None] * len(members) if owners is None else owners)]
    answers = []
    for pair in zip(members, whose, strict=True):
        answers.append(pair in seen)
        seen.add(pair)
    return answers
