"""An exact model whose members are in a ledger, and whose every change is on disk before it is made in memory."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

import numpy as np

from neverseen.hardware import Hardware
from neverseen.keys import Key
from neverseen.labels import LabelIndex
from neverseen.ledger import Ledger, SampleRow
from neverseen.membership import Member, Membership
from neverseen.model import Configuration, ExactModel
from neverseen.register import Register, Ticket
from neverseen.statistics import Statistics
from neverseen.store.journal import FORGET, FORGET_CLASS, LEARN, class_record, samples_record


class LedgerMembership(Membership):
    """Membership that asks a ledger."""

    def __init__(self, key: Key | None, configuration_digest: bytes, ledger: Ledger) -> None:
        super().__init__(key, configuration_digest)
        self._ledger = ledger

    def held(self, members: Iterable[Member]) -> Counter[Member]:
        """Return how often each of these is held."""
        asked = set(members)
        rows = self._ledger.by_members([digest for _, digest in asked])
        return Counter({member: len(rows.get(member[1], ())) for member in asked})


class LedgerRegister(Register):
    """A register that asks a ledger."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger

    def noted(self, numbers: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the member digest of each of these ticket numbers that is noted."""
        return {number: row.member for number, row in self._ledger.by_numbers(list(numbers)).items()}

    def numbers_of(self, digests: Iterable[bytes]) -> dict[bytes, set[bytes]]:
        """Return the ticket numbers under which each of these member digests is held."""
        asked = list(digests)
        rows = self._ledger.by_members(asked)
        return {digest: {row.number for row in rows.get(digest, ())} for digest in asked}

    def known(self, contents: Iterable[bytes]) -> set[bytes]:
        """Return those of these contents that are held."""
        return self._ledger.knows_contents(list(contents))


class StoredModel(ExactModel):
    """An exact model that lasts.

    Parameters
    ----------
    configuration : Configuration
    n_features : int
    key : Key or None
    hardware : Hardware
    statistics : Statistics
        Those of the samples in the ledger.
    ledger : Ledger
    clock : callable
        Unix time in seconds.
    """

    def __init__(
        self,
        configuration: Configuration,
        n_features: int,
        key: Key | None,
        hardware: Hardware,
        statistics: Statistics,
        ledger: Ledger,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(configuration, n_features, key, hardware, statistics=statistics)
        self.membership = LedgerMembership(key, self.configuration_digest, ledger)
        self.register = LedgerRegister(ledger)
        self.last_record = 0
        self.journal_bytes = 0
        self._ledger = ledger
        self._clock = clock

    def _record_learn(
        self, quantised: np.ndarray, index: LabelIndex, members: list[Member], tickets: Sequence[Ticket] | None
    ) -> None:
        if tickets is None:
            raise TypeError("samples of a store are learned under ids")
        now = int(self._clock())
        rows = [
            SampleRow(t.number, t.content, digest, name, t.id, t.owner, t.commitment, now, "learned")
            for (name, digest), t in zip(members, tickets, strict=True)
        ]
        record = samples_record(quantised, index)
        with self._ledger.writing() as writing:
            sequence = writing.append(LEARN, record)
            writing.add(rows)
        self._recorded(sequence, record)

    def _record_forget(
        self, quantised: np.ndarray, index: LabelIndex, members: list[Member], numbers: list[bytes]
    ) -> None:
        record = samples_record(quantised, index)
        with self._ledger.writing() as writing:
            sequence = writing.append(FORGET, record)
            writing.remove(numbers)
            writing.set_meta("unsealed", "yes")
        self._recorded(sequence, record)

    def _record_forget_class(self, name: str) -> None:
        record = class_record(name)
        with self._ledger.writing() as writing:
            sequence = writing.append(FORGET_CLASS, record)
            writing.remove_class(name)
            writing.set_meta("unsealed", "yes")
        self._recorded(sequence, record)

    def _recorded(self, sequence: int, record: bytes) -> None:
        self.last_record = sequence
        self.journal_bytes += len(record)

    def merge(self, other: ExactModel) -> NoReturn:
        """Refuse: the samples of another model would have no receipts here."""
        raise NotImplementedError("a store learns samples, not models")
