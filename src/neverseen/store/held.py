"""An exact model whose members are in a ledger, and whose every change is on disk before it is made in memory."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np

from neverseen.backbones.contents import as_list
from neverseen.classifier import AnalyticClassifier
from neverseen.errors import AmbiguousError, InputError, LedgerError, NeverseenError
from neverseen.forgetting import ForgettingModel, Prepared
from neverseen.hardware import Hardware
from neverseen.keys import Key, Keyring
from neverseen.labels import LabelIndex, normalise, text
from neverseen.ledger import Ledger, SampleRow, Writing
from neverseen.membership import Member, Membership
from neverseen.model import Configuration, ExactModel
from neverseen.receipts import SALT_SIZE, Receipt, commitment, seal
from neverseen.register import Register, Ticket, number_for
from neverseen.statistics import Statistics
from neverseen.store.journal import FORGET, FORGET_CLASS, LEARN, class_record, samples_record

Note = Callable[[Writing], None]
"""Writes something into the ledger in the transaction of a change."""


class HeldRows:
    """The samples in a ledger; for a while, if so limited, those of one owner alone.

    Rows of other owners are then neither read nor looked at, so that an answer takes as long whether there are any or
    not.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.owner: str | None = None  # canonical text

    def by_numbers(self, numbers: Iterable[bytes]) -> dict[bytes, SampleRow]:
        """Return the samples held under these ticket numbers."""
        return self._ledger.by_numbers(numbers, self.owner)

    def by_members(self, members: Iterable[bytes]) -> dict[bytes, list[SampleRow]]:
        """Return the samples held with these member digests."""
        return self._ledger.by_members(members, self.owner)

    def knows_contents(self, contents: Iterable[bytes]) -> set[bytes]:
        """Return those of these contents that are held; none for an owner, who must not learn of others'."""
        return self._ledger.knows_contents(contents) if self.owner is None else set()


class LedgerMembership(Membership):
    """Membership that asks a ledger."""

    def __init__(self, key: Key | None, configuration_digest: bytes, rows: HeldRows) -> None:
        super().__init__(key, configuration_digest)
        self._rows = rows

    def held(self, members: Iterable[Member]) -> Counter[Member]:
        """Return how often each of these is held."""
        asked = set(members)
        rows = self._rows.by_members([digest for _, digest in asked])
        return Counter({member: len(rows.get(member[1], ())) for member in asked})


class LedgerRegister(Register):
    """A register that asks a ledger."""

    def __init__(self, rows: HeldRows) -> None:
        super().__init__()
        self._rows = rows

    def noted(self, numbers: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the member digest of each of these ticket numbers that is noted."""
        return {number: row.member for number, row in self._rows.by_numbers(numbers).items()}

    def numbers_of(self, digests: Iterable[bytes]) -> dict[bytes, set[bytes]]:
        """Return the ticket numbers of those of these member digests that are held under any."""
        rows = self._rows.by_members(list(digests))
        return {digest: {row.number for row in found} for digest, found in rows.items()}

    def known(self, contents: Iterable[bytes]) -> set[bytes]:
        """Return those of these contents that are held."""
        return self._rows.knows_contents(contents)

    def standing(self, tickets: Sequence[Ticket], members: Sequence[Member]) -> list[bool]:
        """Return, for each ticket, whether the sample beside it is held under it, and by this very receipt if any."""
        owner = self._rows.owner
        asked = {ticket.number for ticket in tickets if ticket.number and owner in (None, ticket.owner)}
        rows = self._rows.by_numbers(asked)
        found = [rows.get(ticket.number) for ticket in tickets]
        return [
            row is not None and row.member == digest and ticket.commitment in (b"", row.commitment)
            for row, ticket, (_, digest) in zip(found, tickets, members, strict=True)
        ]

    def resolve(self, members: Sequence[Member], tickets: Sequence[Ticket]) -> list[bytes]:
        """Return the ticket numbers that go when these samples go; see `Register.resolve`.

        Tickets without a number are of samples whose owner or id is not known: these are found by their features, their
        label, and the one of the two that is known.
        """
        return super().resolve(members, self._numbered(members, tickets))

    def _numbered(self, members: Sequence[Member], tickets: Sequence[Ticket]) -> list[Ticket]:
        asked: dict[tuple[bytes, str, str], list[int]] = {}
        for row, (ticket, (_, digest)) in enumerate(zip(tickets, members, strict=True)):
            if not ticket.number:
                asked.setdefault((digest, ticket.id, ticket.owner), []).append(row)
        held = self._rows.by_members({digest for digest, _, _ in asked}) if asked else {}
        numbered = list(tickets)
        for (digest, id_text, owner), rows in asked.items():
            found = [each for each in held.get(digest, ()) if id_text in ("", each.id) and owner in ("", each.owner)]
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
        self._rows = HeldRows(ledger)
        self.membership = LedgerMembership(key, self.configuration_digest, self._rows)
        self.register = LedgerRegister(self._rows)
        self.last_record = 0
        self.journal_bytes = 0
        self._ledger = ledger
        self._clock = clock
        self._note_with: Note | None = None

    @contextmanager
    def on_behalf(self, owner: str | None, note: Note | None) -> Iterator[None]:
        """Limit what can be forgotten to an owner's samples, and note something with each change, for a while.

        Parameters
        ----------
        owner : str or None
            Canonical text; None for no limit.
        note : callable or None
            Called with the ledger's open transaction before it is committed. If it raises, nothing is changed.
        """
        with self.locked():
            self._rows.owner, self._note_with = owner, note
            try:
                yield
            finally:
                self._rows.owner, self._note_with = None, None

    def _record_learn(
        self, quantised: np.ndarray, index: LabelIndex, members: list[Member], tickets: Sequence[Ticket] | None
    ) -> None:
        if tickets is None:
            raise TypeError("samples of a store are learned under ids")
        now = int(self._clock())
        rows = [
            SampleRow(t.number, t.content, digest, name, t.id, t.owner, t.commitment, t.salt, now, "learned")
            for (name, digest), t in zip(members, tickets, strict=True)
        ]
        record = samples_record(quantised, index)
        with self._writing() as writing:
            sequence = writing.append(LEARN, record)
            writing.add(rows)
        self._recorded(sequence, record)

    def _record_forget(
        self, quantised: np.ndarray, index: LabelIndex, members: list[Member], numbers: list[bytes]
    ) -> None:
        record = samples_record(quantised, index)
        with self._writing() as writing:
            sequence = writing.append(FORGET, record)
            writing.remove(numbers)
            writing.set_meta("unsealed", "yes")
        self._recorded(sequence, record)

    def _record_forget_class(self, name: str) -> None:
        record = class_record(name)
        with self._writing() as writing:
            sequence = writing.append(FORGET_CLASS, record)
            writing.remove_class(name)
            writing.set_meta("unsealed", "yes")
        self._recorded(sequence, record)

    @contextmanager
    def _writing(self) -> Iterator[Writing]:
        with self._ledger.writing() as writing:
            yield writing
            if self._note_with is not None:
                try:
                    self._note_with(writing)
                except NeverseenError:
                    raise
                except Exception as error:  # to the model, any other error is a tear; this one comes before the commit
                    raise LedgerError(
                        f"what was to be noted with a change failed ({type(error).__name__}). Nothing was changed"
                    ) from error

    def _recorded(self, sequence: int, record: bytes) -> None:
        self.last_record = sequence
        self.journal_bytes += len(record)

    def merge(self, other: ExactModel) -> NoReturn:
        """Refuse: the samples of another model would have no receipts here."""
        raise NotImplementedError("a store learns samples, not models")


class StoredForgetting(ForgettingModel):
    """A forgetting model over a stored model: ids are an owner's own, and every receipt has a salt of its own."""

    def forget(
        self,
        given: Any,
        labels: Any = None,
        *,
        ids: Iterable[Any] | None = None,
        owners: Iterable[Any] | None = None,
        dry_run: bool = False,
    ) -> None:
        """Forget samples; see `ForgettingModel.forget`. With owners, each sample must be its owner's."""
        if owners is None:
            super().forget(given, labels, ids=ids, dry_run=dry_run)
        elif labels is None:
            raise InputError("receipts hold their owners: leave owners out, or give labels if these are samples")
        else:
            samples = given if isinstance(given, Prepared) else as_list(given)
            self._forget_samples(samples, labels, ids, dry_run, owners)

    def _tickets(
        self,
        keys: Keyring,
        ids: Sequence[str],
        owners: Sequence[str] | None,
        names: Iterable[str],
        prints: Iterable[bytes],
    ) -> list[Ticket]:
        tickets = super()._tickets(keys, ids, owners, names, prints)
        if owners is None:
            return [ticket._replace(number=b"", owner="") for ticket in tickets]
        return [
            ticket._replace(
                number=number_for(self._configuration, keys.membership, owner, ticket.id) if ticket.id else b"",
                owner=owner,
            )
            for ticket, owner in zip(tickets, owners, strict=True)
        ]

    def _new_salt(self) -> bytes:
        return secrets.token_bytes(SALT_SIZE)

    def receipts_again(
        self, ledger: Ledger, prepared: Prepared, labels: Sequence[Any], ids: Sequence[Any], owner: Any
    ) -> list[bytes] | None:
        """Return the receipts that an owner's samples were given, if all are held under them."""
        keys = self._require_keys()
        names = [text(normalise(label)) for label in labels]
        owners = [text(normalise(owner))] * len(names)
        tickets = self._tickets(keys, [text(normalise(each)) for each in ids], owners, names, prepared.prints)
        held = ledger.by_numbers([ticket.number for ticket in tickets])
        receipts: list[bytes] = []
        for ticket, name, fingerprint, quantised in zip(
            tickets, names, prepared.prints, prepared.quantised, strict=True
        ):
            row = held.get(ticket.number)
            if row is None:
                return None
            said = Receipt(ticket.id, ticket.owner, name, fingerprint, quantised, row.salt)
            sealed = (seal(said, key, self._configuration) for key in keys.receipts)
            found = next((token for token in sealed if commitment(token) == row.commitment), None)
            if found is None:
                return None
            receipts.append(found)
        return receipts


class StoredClassifier(AnalyticClassifier):
    """A classifier over a stored model."""

    def __init__(self, stored: StoredModel) -> None:
        configuration = stored.configuration
        super().__init__(
            configuration.encoder,
            configuration.gamma,
            grid_bits=configuration.grid_bits,
            track_classes=stored.statistics.class_grams is not None,
            key=stored.membership.key,
            hardware=stored.hardware.name,
            backbone=configuration.backbone,
        )
        self._stored = stored
        if stored.statistics.total:
            self._model, self.n_features_in_ = stored, stored.n_features

    def _new_model(self, n_features: int, default_key: Any = None) -> ExactModel:
        return self._stored
