"""Whether a store holds what receipts are about: what certificates alone cannot tell.

A certificate lists receipts whose samples went. The same sample can be held all the while under another id, or be
learned again afterwards, and no certificate says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from neverseen.errors import ReceiptRejectedError
from neverseen.holdings import member_digests, owned_number, tickets_of
from neverseen.labels import LabelIndex, from_text
from neverseen.ledger import Ledger
from neverseen.ledger.tables import chunks
from neverseen.proof.keys import Key, Keyring
from neverseen.proof.receipts import Receipt, commitment, unseal

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


def holdings(
    ledger: Ledger,
    receipts: Sequence[bytes],
    configuration: bytes,
    keys: Keyring | None,
) -> list[Holding]:
    """Return what the ledger says about each receipt; without the keys of the store receipts cannot be opened."""
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
