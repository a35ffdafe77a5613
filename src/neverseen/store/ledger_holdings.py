"""Holdings in a ledger: every change is on disk before the sums change."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

from neverseen.holdings import FORGET_CLASS, LEARN, Decision, Found, Member
from neverseen.ledger import JournalRow, Ledger, SampleRow
from neverseen.proof.keys import Key
from neverseen.store.journal import HEAD_SIZE, KINDS, class_record, samples_record

OLDEST = "oldest"
"""Key of a note in the ledger: the time of the oldest change in the journal, Unix time in seconds."""


class LedgerHoldings:
    """The holdings of a store; see `neverseen.holdings.Holdings`. The clock returns Unix time in seconds.

    Attributes
    ----------
    last_record, journal_bytes : int
        Sequence number of the last change in the journal, and the bytes of the changes not folded yet.
    oldest : int
        Time of the oldest of these changes. 0 if it is unknown: older versions did not note it.
    heads : hash
        Of the heads of all changes that were read from the journal or written to it.
    """

    def __init__(self, key: Key | None, ledger: Ledger, clock: Callable[[], float]) -> None:
        self.key = key
        self.last_record = 0
        self.journal_bytes = 0
        self.oldest = 0
        self.heads = hashlib.sha256()
        self._ledger = ledger
        self._clock = clock

    def by_numbers(self, numbers: Iterable[bytes], owner: str | None = None) -> dict[bytes, SampleRow]:
        """Return the held tickets with these numbers; if an owner is given, only theirs."""
        return self._ledger.by_numbers(numbers, owner)

    def by_members(self, members: Iterable[Member], owner: str | None = None) -> dict[bytes, Found]:
        """Return how these members are held, by digest; if an owner is given, only by them."""
        rows = self._ledger.by_members({digest for _, digest in members}, owner)
        return {digest: Found(len(found), found) for digest, found in rows.items()}

    def knows_contents(self, contents: Iterable[bytes]) -> set[bytes]:
        """Return those of these contents that are held."""
        return self._ledger.knows_contents(contents)

    def used(self, commitments: Iterable[bytes]) -> set[bytes]:
        """Return those of these commitments that are in a certificate, or will be in the next."""
        wanted = set(commitments)
        return wanted & set(self._ledger.pending()) | self._ledger.certificates_of(wanted).keys()

    def record(self, decision: Decision) -> None:
        """Write a change to journal and ledger, with its notes, in one transaction."""
        change = decision.change
        forgets_class = change.kind == FORGET_CLASS
        payload = class_record(change.name) if forgets_class else samples_record(change.quantised, change.labels)
        oldest = self.oldest if self.journal_bytes else max(0, int(self._clock()))
        with self._ledger.writing() as writing:
            sequence = writing.append(KINDS[change.kind], payload)
            if not self.journal_bytes:
                writing.set_meta(OLDEST, str(oldest))
            if change.kind == LEARN:
                writing.add(self._rows(decision))
            else:
                if forgets_class:
                    writing.remove_class(change.name)
                else:
                    writing.remove(decision.numbers)
                writing.set_meta("unsealed", "yes")
            if change.request is not None:
                writing.note(change.request)
        self.noted(JournalRow(sequence, KINDS[change.kind], payload))
        self.oldest = oldest

    def _rows(self, decision: Decision) -> list[SampleRow]:
        tickets, now = decision.change.tickets, int(self._clock())
        if tickets is None:
            raise TypeError("samples of a store are learned under ids")
        return [
            SampleRow(t.number, t.content, digest, name, t.id, t.owner, t.commitment, t.salt, now, "learned")
            for (name, digest), t in zip(decision.members, tickets, strict=True)
        ]

    def noted(self, record: JournalRow) -> None:
        """Count a change that is in the journal."""
        self.last_record = record.sequence
        self.journal_bytes += len(record.payload)
        self.heads.update(record.payload[:HEAD_SIZE])
