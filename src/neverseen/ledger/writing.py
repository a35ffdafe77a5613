"""`Writing`: the changes of one transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import sqlalchemy as sa

from neverseen.errors import InputError, LimitError, NotLearnedError
from neverseen.ledger.database import Transaction
from neverseen.ledger.rows import as_bytes, as_number, as_text, last_certificate, read_number
from neverseen.ledger.tables import (
    LASTING,
    PAYLOAD_LIMIT,
    Notes,
    RequestRow,
    SampleRow,
    certified,
    chunks,
    classes,
    journal,
    key_of,
    meta,
    pending,
    record,
    requests,
    samples,
)

_RESERVED = ("format", "sequence", "certificate", "writer")  # keys of meta that are ours


class Writing:
    """One write transaction of a ledger; made by `Ledger.writing`.

    If one of its methods fails, the whole transaction fails.
    """

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self.failed = False

    def append(self, kind: str, payload: bytes) -> int:
        """Add a change to the journal and return its sequence number, higher than any before."""
        with self._all_or_nothing():
            if len(payload) > PAYLOAD_LIMIT:
                raise LimitError(f"a journal row has {len(payload)} bytes, and {PAYLOAD_LIMIT} fit: split the change")
            sequence = read_number(self._transaction, "sequence") + 1
            self._note("sequence", str(sequence))
            self._transaction.run(sa.insert(journal), [{"sequence": sequence, "kind": kind, "payload": bytes(payload)}])
            return sequence

    def add(self, rows: Sequence[SampleRow]) -> None:
        """Add samples. A number that is in use is refused."""
        with self._all_or_nothing():
            version = last_certificate(self._transaction) + 1
            records = [record(row, position, version) for position, row in enumerate(rows)]
            if not records:
                return
            self._require_new([row.number for row in rows])
            records.sort()  # by number: neighbours in the index come together, and no order of arrival is kept
            self._transaction.load(samples, records)
            self._count(Counter(row.name for row in rows))

    def _require_new(self, numbers: list[bytes]) -> None:
        first: dict[bytes, int] = {}
        for row, number in enumerate(numbers):
            if first.setdefault(number, row) != row:
                raise InputError(f"rows {first[number]} and {row} have the same number. Nothing was changed")
        for chunk in chunks(sorted(map(key_of, numbers))):
            for (found,) in self._transaction.found(samples, ["number"], "number_key", chunk):
                position = first.get(as_bytes(found))
                if position is not None:
                    raise InputError(
                        f"the number of row {position} is that of a sample in the ledger. Nothing was changed"
                    )

    def remove(self, numbers: Sequence[bytes]) -> None:
        """Remove samples, all of which must be held, and note their commitments for the next certificate."""
        with self._all_or_nothing():
            wanted = list(numbers)
            if len(set(wanted)) != len(wanted):
                raise InputError("a number is given twice. Nothing was changed")
            removed: set[bytes] = set()
            for chunk in chunks(sorted(wanted)):
                removed |= self._removed(samples.c.number_key.in_(map(key_of, chunk)) & samples.c.number.in_(chunk))
            missing = tuple(row for row, number in enumerate(wanted) if number not in removed)
            if missing:
                raise NotLearnedError(
                    f"the ledger holds no sample under the number of row {missing[0]} ({len(missing)} of {len(wanted)} "
                    "in all). Nothing was changed",
                    missing,
                )

    def remove_class(self, name: str) -> None:
        """Remove all samples of a class in the same way."""
        with self._all_or_nothing():
            if not self._removed(samples.c.name == name):
                raise NotLearnedError("the ledger holds no sample of this class. Nothing was changed")

    def _removed(self, which: sa.ColumnElement[bool]) -> set[bytes]:
        """Delete samples, and return their numbers."""
        columns = samples.c.number, samples.c.name, samples.c.commitment
        gone = self._transaction.rows(sa.delete(samples).where(which).returning(*columns))
        if gone:
            self._count(Counter({name: -count for name, count in Counter(as_text(row.name) for row in gone).items()}))
            note = self._transaction.database.insert(pending).on_conflict_do_nothing()
            self._transaction.run(
                note, [{"commitment": value} for value in sorted(as_bytes(row.commitment) for row in gone)]
            )
        return {as_bytes(row.number) for row in gone}

    def _count(self, changes: Counter[str]) -> None:
        """Update the number of samples of each class. A class without samples is dropped."""
        held: dict[str, int] = {}
        for chunk in chunks(sorted(changes)):
            held |= {
                as_text(name): as_number(count)
                for name, count in self._transaction.rows(sa.select(classes).where(classes.c.name.in_(chunk)))
            }
            self._transaction.run(sa.delete(classes).where(classes.c.name.in_(chunk)))
        kept = [{"name": name, "samples": held.get(name, 0) + changes[name]} for name in sorted(changes)]
        kept = [values for values in kept if values["samples"]]
        if kept:
            self._transaction.run(sa.insert(classes), kept)

    def set_meta(self, key: str, value: str | None) -> None:
        """Note a value under a key; None removes it."""
        with self._all_or_nothing():
            if key in _RESERVED:
                raise InputError(f"the key {key!r} of the ledger's notes is not free: choose another")
            self._note(key, value)

    def claim(self, token: str | None) -> None:
        """Note the only process that may write from now on; None if anybody may claim it."""
        self._note("writer", token)

    def _note(self, key: str, value: str | None) -> None:
        self._transaction.run(sa.delete(meta).where(meta.c.key == key))
        if value is not None:
            self._transaction.run(sa.insert(meta), [{"key": key, "value": value}])

    def note(self, notes: Notes) -> None:
        """Write notes in this transaction."""
        self.note_requests(notes.requests)
        for key, value in notes.meta.items():
            self.set_meta(key, value)

    def note_requests(self, rows: Sequence[RequestRow]) -> None:
        """Note the requests that this transaction carries out, in order."""
        with self._all_or_nothing():
            version = last_certificate(self._transaction) + 1
            ((last,),) = self._transaction.rows(sa.select(sa.func.max(requests.c.place)))
            records = [
                (place, *row._replace(version=version)) for place, row in enumerate(rows, as_number(last or 0) + 1)
            ]
            if records:
                self._transaction.load(requests, records)

    def drop_journal(self, up_to: int) -> None:
        """Drop the journal up to a sequence number, included."""
        with self._all_or_nothing():
            self._transaction.run(sa.delete(journal).where(journal.c.sequence <= up_to))

    def clear(self) -> None:
        """Before `Ledger.scrub`: clear which certificates published the samples, and who sent the requests."""
        with self._all_or_nothing():
            published = last_certificate(self._transaction)
            passed = samples.c.version.between(1, published)  # by which certificate does not matter
            self._transaction.run(sa.update(samples).where(passed).values(version=0))
            done = requests.c.version <= published
            lasting = sa.case((sa.func.length(requests.c.body) >= LASTING, sa.func.substr(requests.c.body, 1, LASTING)))
            self._transaction.run(sa.update(requests).where(done).values(body=lasting, client=""))
            if not self._transaction.rows(sa.select(journal.c.sequence).limit(1)):  # how much there was does not show
                self._note("sequence", None)

    def certify(self, number: int) -> None:
        """Note that a certificate lists all pending commitments, and publishes all samples."""
        with self._all_or_nothing():
            last = last_certificate(self._transaction)
            if number <= last:
                raise InputError(f"certificates are numbered upwards: {number} does not come after {last}")
            listed = sa.select(pending.c.commitment, sa.literal(number, sa.BigInteger))
            self._transaction.run(sa.insert(certified).from_select(["commitment", "certificate"], listed))
            self._transaction.run(sa.delete(pending))
            self._note("certificate", str(number))

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.failed = True
            raise
