"""Whether a store holds the sample of a receipt, or a given sample. Certificates alone cannot tell.

A certificate lists the receipts of forgotten samples. The same sample may be held under another id, or be learned again
later, and no certificate shows that.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from neverseen.backbones.reading import Prepared
from neverseen.errors import AlreadyForgottenError, NeverseenError, ReceiptRejectedError
from neverseen.holdings import Change, content_digest, member_digests, owned_number
from neverseen.labels import LabelIndex, from_text, normalise, text
from neverseen.ledger import Ledger
from neverseen.ledger.tables import chunks
from neverseen.model.grouping import indexed, ordered, parted
from neverseen.model.intake import Intake, Verdict
from neverseen.proof.keys import Key, Keyring
from neverseen.proof.receipts import Receipt, commitment, seal, unseal
from neverseen.store.parts import KEYS, Parts

_TOGETHER = 2**16
"""Number of pairs (receipt, class) looked up at a time, because their digests are in memory."""


class Holding(NamedTuple):
    """The answer of a store about one receipt.

    Attributes
    ----------
    certificate : int or None
        Number of the newest certificate that lists the receipt as forgotten.
    held : str or None
        ``"receipt"``: the sample is held under this receipt. ``"sample"``: a sample with the same content or features
        is held, under another receipt: it was learned again, or somebody else's is the same. ``"id"``: another sample
        is held under its id. None: nothing was found.
    sure : bool
        Whether `held` None proves that the sample is neither held nor in the published version. Without the keys, or if
        they do not open the receipt, its sample is unknown: any held sample may be the same.
    unpublished : bool
        Whether the published version has samples that were forgotten since. Any of them may be the same, learned again
        and forgotten again. So nothing is sure until the next version is published.
    """

    certificate: int | None
    held: str | None
    sure: bool
    unpublished: bool = False


def holdings(parts: Parts, receipts: Sequence[bytes], keys: Keyring | None) -> list[Holding]:
    """Return the ledger's answer about each receipt. Without the store's keys, receipts cannot be opened.

    Keys that are not given may be in its folder.
    """
    if keys is None and os.access(parts.folder / KEYS, os.R_OK):
        keys = Keyring.load(parts.folder / KEYS)
    keys = parts.require_own(keys)
    ledger, configuration = parts.ledger, parts.description.configuration.digest()
    commitments = [commitment(receipt) for receipt in receipts]
    numbers = ledger.certificates_of(commitments)
    standing = ledger.knows_commitments(commitments)
    opened = {} if keys is None else _opened(receipts, configuration, keys)
    found = {} if keys is None else _found(ledger, opened, configuration, keys)
    samples, shown = ledger.total(), parts.publications.shows_forgotten()
    return [
        Holding(
            numbers.get(each),
            "receipt" if each in standing else found.get(row),
            sure=(row in opened or samples == 0) and not shown,
            unpublished=shown,
        )
        for row, each in enumerate(commitments)
    ]


def _opened(receipts: Sequence[bytes], configuration: bytes, keys: Keyring) -> dict[int, Receipt]:
    """Return the receipts that the keys can open, by row."""
    opened = {}
    for row, receipt in enumerate(receipts):
        try:
            opened[row] = unseal(receipt, row, keys.receipts, configuration)
        except ReceiptRejectedError:  # another store's, altered, or of a key since dropped: it is looked for as it is
            continue
    return opened


def _found(ledger: Ledger, opened: dict[int, Receipt], configuration: bytes, keys: Keyring) -> dict[int, str]:
    """Return, by row, how the samples of opened receipts are held."""
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
    """Yield, for each receipt, the member digest and the content that its sample would have in a class."""
    index = LabelIndex([from_text(name)] * len(receipts))
    members = member_digests(configuration, key, [receipt.quantised for receipt in receipts], index)
    for (_, member), receipt in zip(members, receipts, strict=True):
        yield member, content_digest(configuration, key, receipt.fingerprint, name)


def may_be_held(ledger: Ledger, change: Change, error: BaseException) -> bool:
    """Return whether samples whose learning failed with an error are held, or may be."""
    if getattr(error, "uncertain", False):
        return True
    try:
        return bool(ledger.knows_commitments(ticket.commitment for ticket in change.tickets or ()))
    except Exception:
        return not isinstance(error, NeverseenError)  # which is a refusal


def answered(ledger: Ledger, verdicts: list[Verdict]) -> list[Verdict]:
    """Return verdicts on receipts. If a certificate lists a refused receipt, the refusal names the certificate."""
    used = [
        verdict.shown.ticket.commitment
        if verdict.shown is not None and verdict.error is not None and verdict.error.reason == "used"
        else None
        for verdict in verdicts
    ]
    numbers = ledger.certificates_of(value for value in used if value is not None)
    return [
        verdict._replace(error=_forgotten(row, numbers[value])) if value in numbers else verdict
        for row, (verdict, value) in enumerate(zip(verdicts, used, strict=True))
    ]


@contextmanager
def answering(ledger: Ledger, change: Change) -> Iterator[None]:
    """If a receipt was used, name the certificate in the error, unless the receipt is somebody else's."""
    try:
        yield
    except ReceiptRejectedError as error:
        if error.reason != "used" or change.tickets is None:
            raise
        ticket = change.tickets[error.row]
        number = None
        if change.owner in (None, ticket.owner):
            number = ledger.certificates_of([ticket.commitment]).get(ticket.commitment)
        if number is None:
            raise
        raise _forgotten(error.row, number) from error


def _forgotten(row: int, certificate: int) -> AlreadyForgottenError:
    return AlreadyForgottenError(
        f"was used already: its sample was forgotten, and certificate {certificate} says so. If the sample was learned "
        "again since, only its new receipt is good",
        row,
        certificate,
    )


def receipts_again(
    parts: Parts, intake: Intake, prepared: Prepared, labels: Sequence[Any], ids: Sequence[Any], owner: Any
) -> list[bytes] | None:
    """Return the original receipts of an owner's samples; None if one of the samples is not held."""
    index, order = indexed(labels, prepared, parts.targets, any_label=True)
    prepared, owners = ordered(prepared, order), [text(normalise(owner))] * len(labels)
    names, features = [index.texts[at] for at in index.positions], parted(prepared.quantised, prepared.lengths)
    texts = [text(normalise(each)) for each in ids]
    numbers = intake.numbers(texts, owners)
    held = parts.ledger.by_numbers(numbers)
    configuration, keys = parts.description.configuration.digest(), intake.require_keys().current()
    receipts: list[bytes] = []
    about = zip(texts, owners, names, prepared.fingerprints, features, strict=True)
    for number, said in zip(numbers, about, strict=True):
        row = held.get(number)
        if row is None:
            return None
        sealed = (seal(Receipt(*said, row.salt), key, configuration) for key in keys)
        found = next((each for each in sealed if commitment(each) == row.commitment), None)
        if found is None:
            return None
        receipts.append(found)
    return receipts


def ids_held(parts: Parts, key: Key, ids: Sequence[Any], owners: Sequence[Any] | None) -> list[bool]:
    """Return for each id whether a sample of its owner has it."""
    configuration = parts.description.configuration.digest()
    numbers = [
        owned_number(configuration, key, text(normalise(owner)), text(normalise(each)))
        for owner, each in zip([None] * len(ids) if owners is None else owners, ids, strict=True)
    ]
    held = parts.ledger.by_numbers(numbers)
    return [number in held for number in numbers]


def held_already(ledger: Ledger, members: Sequence[bytes], owners: Sequence[Any] | None) -> list[bool]:
    """Return for each member digest whether its owner has the same one, held or earlier in this list."""
    seen = {(digest, row.owner) for digest, found in ledger.by_members(members).items() for row in found}
    whose = [text(normalise(owner)) for owner in ([None] * len(members) if owners is None else owners)]
    answers = []
    for pair in zip(members, whose, strict=True):
        answers.append(pair in seen)
        seen.add(pair)
    return answers
