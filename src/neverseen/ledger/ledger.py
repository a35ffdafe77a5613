"""`Ledger`: the samples, the journal and the commitments, read and written."""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from neverseen.errors import InputError, LedgerError, LimitError, NotLearnedError
from neverseen.ledger.database import Transaction, open_database
from neverseen.ledger.tables import (
    CHUNK,
    COMMITMENT_SIZE,
    DIGEST_SIZE,
    FORMAT,
    LASTING,
    MIGRATIONS,
    OLD_FORMAT,
    JournalRow,
    Notes,
    RequestRow,
    SampleRow,
    certified,
    check_of,
    chunks,
    classes,
    journal,
    key_of,
    meta,
    migrations,
    old_requests,
    old_samples,
    owner_key_of,
    pending,
    record,
    requests,
    samples,
    short_key_of,
    tables,
)

PATIENCE = 10.0
"""Seconds to wait for another writer, and in `Ledger.scrub` for readers, before giving up."""
RECENT = 20_000
"""Requests among which those of one client are looked for."""
PAYLOAD_LIMIT = 2**29
"""Bytes of a journal row, below what either database takes."""
_RESERVED = ("format", "sequence", "certificate", "writer")  # keys of meta that are ours
_NUMBER_DIGITS = 16  # of a number in meta, at most
_FIELD_NAMES = [column.name for column in list(samples.columns)[: len(SampleRow._fields) + 1]]
_REQUEST = list(requests.columns)[1:]  # of a RequestRow
_FIELDS = list(samples.columns)[: len(SampleRow._fields) + 1]  # of a SampleRow, the version for the state, the check


class Ledger:
    """The samples that a store holds, and its journal, in a database.

    Reading sees one state of the ledger, that of the last commit, and never waits for a writer; inside `writing`, in
    the same thread, it sees what has been written so far. A ledger may be shared by threads.

    Parameters
    ----------
    url : str
        ``sqlite:///path``, where all that follows the third slash is the path, or
        ``postgresql+psycopg://user:password@host/database``.
    create : bool
        Make it. Without, it must be there.
    patience : float, optional
        Seconds to wait for others; `PATIENCE` by default.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> ledger = Ledger(f"sqlite:///{folder.name}/ledger.sqlite", create=True)
    >>> row = SampleRow(bytes(16), bytes(16), bytes(16), '"cat"', '"photo 1"', "null", bytes(32), b"", 0, "learned")
    >>> with ledger.writing() as writing:
    ...     writing.add([row])
    >>> ledger.counts()
    {'"cat"': 1}
    >>> with ledger.writing() as writing:
    ...     writing.remove([row.number])
    >>> ledger.counts(), ledger.pending() == [row.commitment]
    ({}, True)
    >>> ledger.close()
    >>> folder.cleanup()
    """

    def __init__(self, url: str, create: bool = False, patience: float | None = None) -> None:
        self._database = open_database(url, create, PATIENCE if patience is None else patience)
        self._local = threading.local()
        self._writer: str | None = None
        try:
            if create:
                self._create()
            self._require_format()
        except BaseException:
            self.close()
            raise

    def _create(self) -> None:
        found = self._database.table_names()
        if found & set(tables.tables) or (found and self._database.is_ours_alone):
            raise LedgerError(f"{self._database.name} is in use already: choose another place, or open it")
        with self._database.writing(locked=False) as transaction:
            transaction.make(tables)
            self._database.prepare(transaction)
            transaction.run(sa.insert(meta), [{"key": "format", "value": FORMAT}])
            transaction.run(sa.insert(migrations), _steps(1))

    def _require_format(self) -> None:
        self._format = self.meta("format")
        if self._format not in (FORMAT, OLD_FORMAT):
            raise LedgerError(
                f"the ledger {self._database.name} is of format {str(self._format)[:40]!r}, and this version of "
                f"neverseen reads {FORMAT!r}: use the version that wrote it, or a newer one"
            )

    # -- formats -----------------------------------------------------------------------------------

    @property
    def is_outdated(self) -> bool:
        """Whether the ledger is of an older format: counts, journal and notes can be read, and nothing else done."""
        if self._format != FORMAT:
            self._format = self.meta("format")  # another process may have brought it up to date
        return self._format != FORMAT

    def migrate(self, number_of: Callable[[SampleRow], bytes]) -> None:
        """Bring a ledger of an older format up to date: all of it, or if that fails nothing.

        Parameters
        ----------
        number_of : callable
            Returns the number that a sample has in this format. In the older one it was a digest of the id alone.
        """
        with self._database.writing() as transaction:
            if _noted(transaction, "format") != OLD_FORMAT:
                return

            def load_samples(page: Sequence[Any]) -> None:
                rows = []
                for old in page:
                    *about, learned, version, check = old
                    sample = _sample((*about, b"", learned, version, check), 0)
                    renumbered = sample._replace(number=number_of(sample), state="learned")
                    rows.append(record(renumbered, 0, int(version)))
                transaction.load(samples, rows)

            fields = list(old_samples.columns.keys())[: len(_FIELD_NAMES) - 1]
            transaction.rebuild(samples, ", ".join(fields), load_samples)
            transaction.rebuild(
                requests,
                ", ".join(old_requests.columns.keys()),
                lambda page: transaction.load(requests, [(*row, None) for row in page]),
            )
            self._database.prepare(transaction)
            transaction.run(sa.update(meta).where(meta.c.key == "format").values(value=FORMAT))
            transaction.run(sa.insert(migrations), _steps(2))

    def _require_current(self) -> None:
        if self.is_outdated:
            raise LedgerError(
                f"the ledger {self._database.name} is of the older format {OLD_FORMAT!r}: open its store once for "
                "writing, with its keys, to bring it up to date (neverseen publish FOLDER, with --keys FILE if they "
                "are not in the folder)"
            )

    def close(self) -> None:
        """Let go of the database, and of the right to write it."""
        try:
            if self._writer is not None:
                with suppress(LedgerError), self.writing() as writing:  # a note that stays bars nobody from `claim`
                    writing.release()
        finally:
            self._database.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Ledger({self._database.name!r})"

    # -- reading -----------------------------------------------------------------------------------

    def by_numbers(self, numbers: Iterable[bytes], owner: str | None = None) -> dict[bytes, SampleRow]:
        """Return the samples held under these ticket numbers; with an owner, a canonical text, that owner's alone."""
        return {row.number: row for row in self._found("number", numbers, owner)}

    def by_members(self, members: Iterable[bytes], owner: str | None = None) -> dict[bytes, list[SampleRow]]:
        """Return the samples held with these member digests, those of each in the order of their numbers.

        With an owner, a canonical text, that owner's alone: no row of another is looked at.
        """
        found: dict[bytes, list[SampleRow]] = {}
        for row in sorted(self._found("member", members, owner)):
            found.setdefault(row.member, []).append(row)
        return found

    def knows_contents(self, contents: Iterable[bytes]) -> set[bytes]:
        """Return those of these contents that are held.

        Meant for wording an error: it walks through an index from end to end.
        """
        self._require_current()
        wanted = set(contents)
        with self._reading() as transaction:
            keys: set[int] = set()  # of the members with such contents; both are in the index, so no row is read
            for chunk in chunks(sorted(map(short_key_of, wanted))):
                keys |= {
                    key
                    for (key,) in transaction.rows(
                        sa.select(samples.c.member_key).where(samples.c.content_key.in_(chunk))
                    )
                }
            found: set[bytes] = set()
            for chunk in chunks(sorted(keys)):
                rows = transaction.rows(sa.select(samples.c.content).where(samples.c.member_key.in_(chunk)))
                found |= {_bytes(content) for (content,) in rows}
            return found & wanted

    def knows_commitments(self, commitments: Iterable[bytes]) -> set[bytes]:
        """Return those of these commitments whose samples are held. It walks through all rows."""
        found: set[bytes] = set()
        with self._reading() as transaction:
            for chunk in chunks(sorted(set(commitments))):
                rows = transaction.rows(sa.select(samples.c.commitment).where(samples.c.commitment.in_(chunk)))
                found |= {_bytes(commitment) for (commitment,) in rows}
        return found

    def counts(self) -> dict[str, int]:
        """Return the number of samples of each class."""
        with self._reading() as transaction:
            return _counts(transaction)

    def total(self) -> int:
        """Return the number of samples, counted, not noted."""
        with self._reading() as transaction:
            ((held,),) = transaction.rows(sa.select(sa.func.count()).select_from(samples))
            return int(held)

    def learned_since_certificate(self) -> tuple[int, int]:
        """Return how many samples were learned since the last certificate and are held, and how many are held."""
        with self._reading() as transaction:
            since = sa.func.count().filter(samples.c.version > _published(transaction))
            ((learned, held),) = transaction.rows(sa.select(since, sa.func.count()).select_from(samples))
            return int(learned), int(held)

    def samples(self, name: str | None = None) -> Iterator[SampleRow]:
        """Yield all samples, or those of a class, in the order of their numbers.

        An iteration that is not over holds a state of the ledger: `scrub` does not succeed meanwhile.
        """
        self._require_current()
        with self._reading() as transaction:
            published = _published(transaction)
            for row in self._in_order(transaction, _FIELDS, name):
                yield _sample(row, published)

    def _in_order(self, transaction: Transaction, columns: list[Any], name: str | None = None) -> Iterator[Any]:
        """Yield columns of all samples, or of those of a class, the number first, in the order of the numbers."""
        last = sa.tuple_(sa.literal(-(2**32)), sa.literal(b""))
        while True:
            question = (
                sa.select(*columns)
                .where(sa.tuple_(samples.c.number_key, samples.c.number) > last)
                .order_by(samples.c.number_key, samples.c.number)
                .limit(CHUNK)
            )
            if name is not None:
                question = question.where(samples.c.name == name)
            page = transaction.rows(question)
            yield from page
            if len(page) < CHUNK:
                return
            number = _bytes(page[-1][0], DIGEST_SIZE)
            last = sa.tuple_(sa.literal(key_of(number)), sa.literal(number))

    def check(self) -> None:
        """Raise `LedgerError` unless all rows are whole, and samples under their keys and as many as noted.

        It reads all.
        """
        self._require_current()
        found: Counter[str] = Counter()
        before = b""
        with self._reading() as transaction:
            self._database.check(transaction)
            for row in self._in_order(transaction, list(samples.columns)):
                sample = _sample(row[: len(_FIELDS)], 0)
                try:
                    kept = record(sample, 0, row.version)
                except InputError:  # of a size that no sample has
                    raise _damaged() from None
                if sample.number == before or kept != tuple(row):
                    raise LedgerError(
                        f"the ledger {self._database.name} is damaged: a sample is in it twice, or under wrong keys. "
                        "Restore it from a copy"
                    )
                before = sample.number
                found[sample.name] += 1
            noted = _counts(transaction)
            self._check_rest(transaction)
        if found != noted:
            raise LedgerError(
                f"the ledger {self._database.name} is damaged: it holds {found.total()} samples, and notes other "
                "numbers of them by class. Restore it from a copy"
            )

    def _check_rest(self, transaction: Transaction) -> None:
        """Raise `LedgerError` unless commitments, requests and the journal's numbers are such as a ledger writes."""
        published, sequence = _published(transaction), _noted_number(transaction, "sequence")
        outside = (certified.c.certificate < 1) | (certified.c.certificate > published)
        for which in (_is_no_commitment(pending), _is_no_commitment(certified) | outside):
            if transaction.rows(sa.select(sa.literal(1)).where(which).limit(1)):
                raise _damaged()
        ((first, last),) = transaction.rows(sa.select(sa.func.min(journal.c.sequence), sa.func.max(journal.c.sequence)))
        if first is not None and not 0 < first <= last <= sequence:
            raise _damaged()
        place = -(2**63)
        while page := transaction.rows(
            sa.select(requests).where(requests.c.place > place).order_by(requests.c.place).limit(CHUNK)
        ):
            for row in page:
                _request(row[1:])
            place = page[-1].place
            if place >= 10**_NUMBER_DIGITS:  # no other could follow
                raise _damaged()

    def journal(self, after: int = 0) -> Iterator[JournalRow]:
        """Yield the changes after a sequence number, in order, one in memory at a time."""
        with self._reading() as transaction:
            while True:
                question = sa.select(journal).where(journal.c.sequence > after).order_by(journal.c.sequence).limit(1)
                found = transaction.rows(question)
                if not found:
                    return
                ((sequence, kind, payload),) = found
                after = _number(sequence)
                yield JournalRow(after, _text(kind), _bytes(payload))

    def meta(self, key: str) -> str | None:
        """Return what is noted under a key."""
        with self._reading() as transaction:
            return _noted(transaction, key)

    def pending(self) -> list[bytes]:
        """Return the commitments of what was forgotten and is in no certificate yet, sorted."""
        with self._reading() as transaction:
            rows = transaction.rows(sa.select(pending))
            return sorted(_bytes(commitment, COMMITMENT_SIZE) for (commitment,) in rows)

    def holds_pending(self) -> bool:
        """Return whether a sample is held that is noted as forgotten. It walks through all rows, if any is noted.

        A receipt without a salt does not count: a sample that was learned again had the same one.
        """
        self._require_current()
        with self._reading() as transaction:
            if not transaction.rows(sa.select(pending).limit(1)):
                return False
            both = samples.c.commitment.in_(sa.select(pending.c.commitment)) & (samples.c.salt != b"")
            return bool(transaction.rows(sa.select(sa.literal(1)).select_from(samples).where(both).limit(1)))

    def certificate(self) -> int:
        """Return the number of the last certificate; 0 if there is none."""
        with self._reading() as transaction:
            return _published(transaction)

    def certificates_of(self, commitments: Iterable[bytes]) -> dict[bytes, int]:
        """Return, for each of these commitments that a certificate lists, the number of the last that does."""
        last = sa.func.max(certified.c.certificate)
        found: dict[bytes, int] = {}
        with self._reading() as transaction:
            for chunk in chunks(sorted(set(commitments))):
                question = sa.select(certified.c.commitment, last).where(certified.c.commitment.in_(chunk))
                rows = transaction.rows(question.group_by(certified.c.commitment))
                found |= {_bytes(commitment): _number(number) for commitment, number in rows}
        return found

    def certified(self) -> Iterator[tuple[bytes, int]]:
        """Yield all commitments that certificates are said to list, each with the certificate's number."""
        last, place = (b"", 0), sa.tuple_(*certified.columns)
        with self._reading() as transaction:
            while page := transaction.rows(
                sa.select(certified)
                .where(place > sa.tuple_(*map(sa.literal, last)))
                .order_by(*certified.columns)
                .limit(CHUNK)
            ):
                for commitment, number in page:
                    last = _bytes(commitment), _number(number)
                    yield last

    def request(self, request_id: str) -> RequestRow | None:
        """Return the request of an id."""
        return self._request(requests.c.id == request_id)

    def requests_by_tag(self, tags: Iterable[bytes]) -> dict[bytes, RequestRow]:
        """Return the requests of these tags."""
        found: dict[bytes, RequestRow] = {}
        with self._reading() as transaction:
            for chunk in chunks(sorted(set(tags))):
                rows = transaction.rows(sa.select(*_REQUEST).where(requests.c.tag.in_(chunk)))
                found |= {row.tag: row for row in map(_request, rows) if row.tag is not None}
        return found

    def requests(self, limit: int, before: str | None = None, client: str | None = None) -> list[RequestRow]:
        """Return some requests, the latest first.

        Parameters
        ----------
        limit : int
            How many at most.
        before : str, optional
            Those before the request of this id. None if there is no such request.
        client : str, optional
            Those of this client, as long as its name is there (`scrub` clears it), among the `RECENT` before that: a
            client that made few of many does not have all of them looked at.
        """
        self._require_current()
        question = sa.select(*_REQUEST).order_by(requests.c.place.desc()).limit(limit)
        end = sa.select(sa.func.max(requests.c.place) + 1).scalar_subquery()
        if before is not None:
            end = sa.select(requests.c.place).where(requests.c.id == before).scalar_subquery()
            question = question.where(requests.c.place < end)
        if client is not None:
            question = question.where(requests.c.client == client, requests.c.place >= end - RECENT)
        with self._reading() as transaction:
            return [_request(row) for row in transaction.rows(question)]

    def _request(self, which: sa.ColumnElement[bool]) -> RequestRow | None:
        self._require_current()
        with self._reading() as transaction:
            found = transaction.rows(sa.select(*_REQUEST).where(which))
            return _request(found[0]) if found else None

    def _found(self, column: str, digests: Iterable[bytes], owner: str | None) -> list[SampleRow]:
        self._require_current()
        wanted = set(digests)
        place = SampleRow._fields.index(column)
        equal = {} if owner is None else {"owner_key": owner_key_of(owner), "owner": owner}
        with self._reading() as transaction:
            published = _published(transaction)
            rows = (
                row
                for chunk in chunks(sorted({key_of(digest) for digest in wanted}))
                for row in transaction.found(samples, _FIELD_NAMES, f"{column}_key", chunk, equal)
            )
            return [_sample(row, published) for row in rows if _bytes(row[place]) in wanted]

    @contextmanager
    def _reading(self) -> Iterator[Transaction]:
        """Hand out this thread's write transaction if it is open, else a read transaction."""
        current: Transaction | None = getattr(self._local, "transaction", None)
        if current is not None:
            yield current
        else:
            with self._database.reading() as transaction:
                yield transaction

    # -- writing -----------------------------------------------------------------------------------

    @contextmanager
    def writing(self, claim: bool = False) -> Iterator[Writing]:
        """Change the ledger: all of it, on disk, once this is left; nothing, if it is left by an exception.

        There is one writer at a time. Another waits, and after a while gives up with a `LedgerError`.

        Parameters
        ----------
        claim : bool
            Be the only one who writes, from this change until `close`, or until another claims it. Whoever keeps
            something beside the ledger that must follow its changes needs this: a change by anybody else is refused.
        """
        self._require_no_writing()
        self._require_current()
        token = secrets.token_hex(16) if claim else None
        with self._database.writing() as transaction:
            if token is None:
                self._require_claim(transaction)
            self._local.transaction = transaction
            try:
                writing = Writing(transaction)
                yield writing
                if token is not None:
                    writing.claim(token)
            finally:
                self._local.transaction = None
            if writing.failed:
                raise LedgerError("a change to the ledger failed and was passed over: nothing was changed")
        if token is not None:
            self._writer = token

    def require_claim(self) -> None:
        """Raise `LedgerError` if another has claimed the ledger since, or it was closed."""
        with self._reading() as transaction:
            self._require_claim(transaction)

    def _require_claim(self, transaction: Transaction) -> None:
        if _noted(transaction, "writer") != self._writer:
            raise LedgerError(
                f"the ledger {self._database.name} may not be written here: another process has opened its store for "
                "writing, or it was closed here. Nothing was changed. See that one process alone writes the store, "
                "and open it again"
            )

    def stop_writing(self) -> None:
        """Refuse to write until the ledger is opened again: something beside it waits for its state to stay."""
        self._database.stop_writing()

    def scrub(self) -> None:
        """Clear the database of what was deleted.

        Afterwards none of its files holds a deleted row, and the order of the rows tells nothing about what came and
        went. It takes time and disk space like writing the database three times over. In PostgreSQL readers wait
        meanwhile, and the server's own log and backups keep what they have.
        """
        self._require_no_writing()
        self._require_current()
        with self._database.writing() as transaction:
            self._require_claim(transaction)
            published = _published(transaction)
            passed = samples.c.version.between(1, published)
            transaction.run(sa.update(samples).where(passed).values(version=0))  # by which certificate does not matter
            done = requests.c.version <= published
            lasting = sa.case((sa.func.length(requests.c.body) >= LASTING, sa.func.substr(requests.c.body, 1, LASTING)))
            transaction.run(sa.update(requests).where(done).values(body=lasting, client=""))
            if not transaction.rows(sa.select(journal.c.sequence).limit(1)):  # how much there was does not show
                transaction.run(sa.delete(meta).where(meta.c.key == "sequence"))
        self._database.scrub()

    def _require_no_writing(self) -> None:
        if getattr(self._local, "transaction", None) is not None:
            raise LedgerError("this thread is changing the ledger already: leave `writing` first")


class Writing:
    """One write transaction of a ledger; made by `Ledger.writing`.

    If one of its methods fails, so does the whole.
    """

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self.failed = False

    def append(self, kind: str, payload: bytes) -> int:
        """Add a change to the journal and return its sequence number, higher than any before."""
        with self._all_or_nothing():
            if len(payload) > PAYLOAD_LIMIT:
                raise LimitError(f"a journal row has {len(payload)} bytes, and {PAYLOAD_LIMIT} fit: do it in parts")
            sequence = _noted_number(self._transaction, "sequence") + 1
            self._note("sequence", str(sequence))
            self._transaction.run(sa.insert(journal), [{"sequence": sequence, "kind": kind, "payload": bytes(payload)}])
            return sequence

    def add(self, rows: Sequence[SampleRow]) -> None:
        """Take samples in. A number that is there already is refused."""
        with self._all_or_nothing():
            version = _published(self._transaction) + 1
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
                position = first.get(_bytes(found))
                if position is not None:
                    raise InputError(
                        f"the number of row {position} is that of a sample in the ledger. Nothing was changed"
                    )

    def remove(self, numbers: Sequence[bytes]) -> None:
        """Let samples go, and note their commitments for the next certificate. All of them must be there."""
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
        """Let all samples of a class go, likewise."""
        with self._all_or_nothing():
            if not self._removed(samples.c.name == name):
                raise NotLearnedError("the ledger holds no sample of this class. Nothing was changed")

    def _removed(self, which: sa.ColumnElement[bool]) -> set[bytes]:
        """Delete samples, and return their numbers."""
        columns = samples.c.number, samples.c.name, samples.c.commitment
        gone = self._transaction.rows(sa.delete(samples).where(which).returning(*columns))
        if gone:
            self._count(Counter({name: -count for name, count in Counter(_text(row.name) for row in gone).items()}))
            note = self._transaction.database.insert(pending).on_conflict_do_nothing()
            self._transaction.run(
                note, [{"commitment": value} for value in sorted(_bytes(row.commitment) for row in gone)]
            )
        return {_bytes(row.number) for row in gone}

    def _count(self, changes: Counter[str]) -> None:
        """Keep the number of samples of each class; one that has none left is not kept."""
        held: dict[str, int] = {}
        for chunk in chunks(sorted(changes)):
            held |= {
                _text(name): _number(count)
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

    def claim(self, token: str) -> None:
        """Note who alone may write from now on."""
        self._note("writer", token)

    def release(self) -> None:
        """Note that nobody has claimed the ledger."""
        self._note("writer", None)

    def _note(self, key: str, value: str | None) -> None:
        self._transaction.run(sa.delete(meta).where(meta.c.key == key))
        if value is not None:
            self._transaction.run(sa.insert(meta), [{"key": key, "value": value}])

    def note(self, notes: Notes) -> None:
        """Note what belongs to this transaction."""
        self.note_requests(notes.requests)
        for key, value in notes.meta.items():
            self.set_meta(key, value)

    def note_requests(self, rows: Sequence[RequestRow]) -> None:
        """Note requests that this transaction carries out, in order."""
        with self._all_or_nothing():
            version = _published(self._transaction) + 1
            ((last,),) = self._transaction.rows(sa.select(sa.func.max(requests.c.place)))
            records = [
                (place, *row._replace(version=version)) for place, row in enumerate(rows, _number(last or 0) + 1)
            ]
            if records:
                self._transaction.load(requests, records)

    def drop_journal(self, up_to: int) -> None:
        """Drop the journal up to and with a sequence number."""
        with self._all_or_nothing():
            self._transaction.run(sa.delete(journal).where(journal.c.sequence <= up_to))

    def certify(self, number: int) -> None:
        """Note that a certificate lists all that is pending, and that all samples are published with it."""
        with self._all_or_nothing():
            last = _published(self._transaction)
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


def _steps(first: int) -> list[dict[str, Any]]:
    """Return the rows that say how the tables came to be, from a migration on."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return [{"number": step, "applied": now, "what": what} for step, what in enumerate(MIGRATIONS, 1) if step >= first]


def _damaged() -> LedgerError:
    return LedgerError(
        "the ledger is damaged: there is something in it that was not written by neverseen. Restore it from a copy"
    )


# A database made elsewhere may hold anything in any column: SQLite does not insist on types. What is not as it must be
# is refused before it is used. `bytes` of a large number would be as many bytes.


def _bytes(value: Any, size: int | None = None) -> bytes:
    if type(value) is not bytes or len(value) > PAYLOAD_LIMIT or size not in (None, len(value)):
        raise _damaged()
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise _damaged()
    return value


def _number(value: Any) -> int:
    if type(value) is not int:
        raise _damaged()
    return value


def _is_no_commitment(table: sa.Table) -> sa.ColumnElement[bool]:
    """Return the condition for rows whose commitment is none. SQLite sorts all that is not bytes before bytes."""
    column = table.c.commitment
    return (column < b"") | (sa.func.length(column) != COMMITMENT_SIZE)


def _noted(transaction: Transaction, key: str) -> str | None:
    found = transaction.rows(sa.select(meta.c.value).where(meta.c.key == key))
    return _text(found[0][0]) if found else None


def _noted_number(transaction: Transaction, key: str) -> int:
    noted = _noted(transaction, key) or "0"
    if not (noted.isascii() and noted.isdecimal() and len(noted) <= _NUMBER_DIGITS):
        raise _damaged()
    return int(noted)


def _counts(transaction: Transaction) -> dict[str, int]:
    rows = transaction.rows(sa.select(classes))
    return dict(sorted((_text(name), _number(count)) for name, count in rows))


def _published(transaction: Transaction) -> int:
    """Return the number of the last certificate; 0 if there is none."""
    return _noted_number(transaction, "certificate")


def _request(row: Any) -> RequestRow:
    id_, tag, client, kind, count, body, applied, version, maker = row
    return RequestRow(
        _text(id_),
        None if tag is None else _bytes(tag),
        _text(client),
        _text(kind),
        _number(count),
        None if body is None else _bytes(body),
        _number(applied),
        _number(version),
        None if maker is None else _bytes(maker),
    )


def _is_whole(row: Any, check: Any) -> bool:
    try:
        return bool(check_of(row) == check)
    except TypeError:  # a text or a number where bytes were
        return False


def _sample(row: Any, published: int) -> SampleRow:
    number, content, member, name, id_text, owner, commitment, salt, learned, version, check = row
    if not _is_whole(row, check):
        raise LedgerError(
            "a sample in the ledger is damaged: it is not what was written. Restore the ledger from a copy"
        )
    state = "published" if _number(version) <= published else "learned"
    digests = _bytes(number), _bytes(content), _bytes(member)
    texts = _text(name), _text(id_text), _text(owner)
    return SampleRow(*digests, *texts, _bytes(commitment), _bytes(salt), _number(learned), state)
