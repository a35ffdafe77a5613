"""`Ledger`: the samples, the journal and the commitments, read and written."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

import sqlalchemy as sa

from neverseen.errors import LedgerError, StoreDamagedError
from neverseen.ledger.database import Transaction, open_database
from neverseen.ledger.migration import STEPS, create_tables, migrate_tables
from neverseen.ledger.rows import (
    FIELDS,
    REQUEST,
    as_bytes,
    as_number,
    as_text,
    check_rows,
    in_order,
    last_certificate,
    read_counts,
    read_note,
    request_of,
    sample_of,
)
from neverseen.ledger.tables import (
    CHUNK,
    COMMITMENT_SIZE,
    FORMAT,
    JournalRow,
    RequestRow,
    SampleRow,
    certified,
    chunks,
    journal,
    key_of,
    owner_key_of,
    pending,
    requests,
    samples,
    short_key_of,
)
from neverseen.ledger.writing import Writing

PATIENCE = 10.0
"""Seconds to wait for another writer, and in `Ledger.scrub` for readers."""
RECENT = 20_000
"""Number of requests that are searched for those of one client."""


class Ledger:
    """The samples that a store holds, and its journal, in a database.

    Reads see the state of the last commit, and never wait for a writer. Inside `writing`, the same thread sees its own
    changes. Threads may share a ledger.

    Parameters
    ----------
    url : str
        ``sqlite:///path``, where everything after the third slash is the path, or
        ``postgresql+psycopg://user:password@host/database``.
    create : bool
        Whether to create it. Otherwise it must exist.
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
                create_tables(self._database)
            self._require_format()
        except BaseException:
            self.close()
            raise

    def _require_format(self) -> None:
        self._format = self.meta("format")
        if self._format not in [step.format for step in STEPS]:
            raise LedgerError(
                f"the ledger {self._database.name} is of format {str(self._format)[:40]!r}, and this version of "
                f"neverseen reads {FORMAT!r}: use the version that wrote it, or a newer one"
            )

    # -- formats -----------------------------------------------------------------------------------

    @property
    def is_outdated(self) -> bool:
        """Whether the ledger has an older format. Then only counts, journal and notes can be read."""
        if self._format != FORMAT:
            self._format = self.meta("format")  # another process may have brought it up to date
        return self._format != FORMAT

    def migrate(self, number_of: Callable[[SampleRow], bytes]) -> None:
        """Bring a ledger of an older format up to date, as a whole or not at all.

        `number_of` returns the number of a sample in this format. In the older one it was a digest of the id alone.
        """
        migrate_tables(self._database, number_of)

    def _require_current(self) -> None:
        if self.is_outdated:
            raise LedgerError(
                f"the ledger {self._database.name} is of the older format {self._format!r}: open its store once for "
                "writing, with its keys, to bring it up to date; publish does that"
            )

    def close(self) -> None:
        """Close the database, and give up the right to write it."""
        try:
            if self._writer is not None:
                with suppress(LedgerError), self.writing() as writing:  # if the note stays, others can still `claim`
                    writing.claim(None)
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
        """Return the samples with these ticket numbers; if an owner (canonical text) is given, only theirs."""
        return {row.number: row for row in self._found("number", numbers, owner)}

    def by_members(self, members: Iterable[bytes], owner: str | None = None) -> dict[bytes, list[SampleRow]]:
        """Return the samples with these member digests, those of each digest in the order of their numbers.

        If an owner (canonical text) is given, only theirs: no row of another owner is read.
        """
        found: dict[bytes, list[SampleRow]] = {}
        for row in sorted(self._found("member", members, owner)):
            found.setdefault(row.member, []).append(row)
        return found

    def knows_contents(self, contents: Iterable[bytes]) -> set[bytes]:
        """Return those of these contents that are held.

        It reads a whole index, so use it only to word an error.
        """
        self._require_current()
        wanted = set(contents)
        with self._reading() as transaction:
            # The keys of the members with such contents: both are in the index, so no row is read.
            keys = transaction.rows_in(
                sa.select(samples.c.member_key), samples.c.content_key, map(short_key_of, wanted)
            )
            rows = transaction.rows_in(sa.select(samples.c.content), samples.c.member_key, (key for (key,) in keys))
            return {as_bytes(content) for (content,) in rows} & wanted

    def knows_commitments(self, commitments: Iterable[bytes]) -> set[bytes]:
        """Return those of these commitments whose samples are held. It reads all rows."""
        with self._reading() as transaction:
            rows = transaction.rows_in(sa.select(samples.c.commitment), samples.c.commitment, commitments)
            return {as_bytes(commitment) for (commitment,) in rows}

    def counts(self) -> dict[str, int]:
        """Return the number of samples of each class."""
        with self._reading() as transaction:
            return read_counts(transaction)

    def total(self) -> int:
        """Return the number of samples, counted anew."""
        with self._reading() as transaction:
            ((held,),) = transaction.rows(sa.select(sa.func.count()).select_from(samples))
            return int(held)

    def learned_since_certificate(self) -> tuple[int, int, int]:
        """Return the number of held samples learned since the last certificate, of all held samples, and its number.

        All three belong to one state of the ledger.
        """
        with self._reading() as transaction:
            number = last_certificate(transaction)
            since = sa.func.count().filter(samples.c.version > number)
            ((learned, held),) = transaction.rows(sa.select(since, sa.func.count()).select_from(samples))
            return int(learned), int(held), number

    def samples(self, name: str | None = None) -> Iterator[SampleRow]:
        """Yield all samples, or those of a class, in the order of their numbers.

        An unfinished iteration holds a state of the ledger: `scrub` fails meanwhile.
        """
        self._require_current()
        with self._reading() as transaction:
            last = last_certificate(transaction)
            for row in in_order(transaction, FIELDS, name):
                yield sample_of(row, last)

    def check(self) -> None:
        """Raise `LedgerError` unless all rows are undamaged, with the right keys and counts.

        It reads everything.
        """
        self._require_current()
        with self._reading() as transaction:
            check_rows(transaction)

    def journal(self, after: int = 0, snapshot: str | None = None) -> Iterator[JournalRow]:
        """Yield the changes after a sequence number, in order, with one in memory at a time.

        Raises `StoreDamagedError` if they are the changes of another snapshot than the one given.
        """
        with self._reading() as transaction:
            if snapshot not in (None, read_note(transaction, "snapshot")):
                raise StoreDamagedError(f"the ledger {self._database.name} changed while it was being read: try again")
            while True:
                question = sa.select(journal).where(journal.c.sequence > after).order_by(journal.c.sequence).limit(1)
                found = transaction.rows(question)
                if not found:
                    return
                ((sequence, kind, payload),) = found
                after = as_number(sequence)
                yield JournalRow(after, as_text(kind), as_bytes(payload))

    def journal_heads(self, size: int) -> bytes:
        """Return so many first bytes of each change, in order, joined."""
        heads = sa.select(sa.func.substr(journal.c.payload, 1, size)).order_by(journal.c.sequence)
        with self._reading() as transaction:
            return b"".join(as_bytes(head) for (head,) in transaction.rows(heads))

    def meta(self, key: str) -> str | None:
        """Return the note with this key, or None."""
        with self._reading() as transaction:
            return read_note(transaction, key)

    def pending(self) -> list[bytes]:
        """Return the commitments of forgotten samples that are in no certificate yet, sorted."""
        with self._reading() as transaction:
            rows = transaction.rows(sa.select(pending))
            return sorted(as_bytes(commitment, COMMITMENT_SIZE) for (commitment,) in rows)

    def holds_pending(self) -> bool:
        """Return whether a held sample has a commitment in `pending`. If there are any, it reads all rows.

        Receipts without a salt do not count: a sample that was learned again has the same one.
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
            return last_certificate(transaction)

    def certificates_of(self, commitments: Iterable[bytes]) -> dict[bytes, int]:
        """Return the number of the last certificate that lists each of these commitments, if one does."""
        question = sa.select(certified.c.commitment, sa.func.max(certified.c.certificate))
        with self._reading() as transaction:
            rows = transaction.rows_in(question.group_by(certified.c.commitment), certified.c.commitment, commitments)
            return {as_bytes(commitment): as_number(number) for commitment, number in rows}

    def certified(self) -> Iterator[tuple[bytes, int]]:
        """Yield all commitments that certificates list, according to the ledger, each with the certificate's number."""
        last, place = (b"", 0), sa.tuple_(*certified.columns)
        with self._reading() as transaction:
            while page := transaction.rows(
                sa.select(certified)
                .where(place > sa.tuple_(*map(sa.literal, last)))
                .order_by(*certified.columns)
                .limit(CHUNK)
            ):
                for commitment, number in page:
                    last = as_bytes(commitment), as_number(number)
                    yield last

    def request(self, request_id: str) -> RequestRow | None:
        """Return the request with this id, or None."""
        self._require_current()
        with self._reading() as transaction:
            found = transaction.rows(sa.select(*REQUEST).where(requests.c.id == request_id))
            return request_of(found[0]) if found else None

    def requests_by_tag(self, tags: Iterable[bytes]) -> dict[bytes, RequestRow]:
        """Return the requests with these tags."""
        with self._reading() as transaction:
            rows = transaction.rows_in(sa.select(*REQUEST), requests.c.tag, tags)
            return {row.tag: row for row in map(request_of, rows) if row.tag is not None}

    def has_tags(self) -> bool:
        """Return whether a request has a tag."""
        with self._reading() as transaction:
            return bool(transaction.rows(sa.select(requests.c.place).where(requests.c.tag.is_not(None)).limit(1)))

    def requests(self, limit: int, before: str | None = None, client: str | None = None) -> list[RequestRow]:
        """Return requests, latest first.

        Parameters
        ----------
        limit : int
            The greatest number to return.
        before : str, optional
            Only requests before this id. The result is None if there is no such request.
        client : str, optional
            Only requests of this client, while its name is known (`scrub` clears it). Only the `RECENT` requests before
            that point are searched, to bound the work.
        """
        self._require_current()
        question = sa.select(*REQUEST).order_by(requests.c.place.desc()).limit(limit)
        end = sa.select(sa.func.max(requests.c.place) + 1).scalar_subquery()
        if before is not None:
            end = sa.select(requests.c.place).where(requests.c.id == before).scalar_subquery()
            question = question.where(requests.c.place < end)
        if client is not None:
            question = question.where(requests.c.client == client, requests.c.place >= end - RECENT)
        with self._reading() as transaction:
            return [request_of(row) for row in transaction.rows(question)]

    def first_request(self, after: int, forgotten: bool = False) -> int | None:
        """Return the time of the first request that no certificate up to this number publishes, or None.

        The time is Unix time in milliseconds. With `forgotten`, requests to learn do not count. It reads all requests.
        """
        self._require_current()
        later = requests.c.version > after
        if forgotten:
            later &= requests.c.kind != "learn"
        with self._reading() as transaction:
            ((first,),) = transaction.rows(sa.select(sa.func.min(requests.c.applied)).where(later))
            return None if first is None else as_number(first)

    def _found(self, column: str, digests: Iterable[bytes], owner: str | None) -> list[SampleRow]:
        self._require_current()
        wanted = set(digests)
        place = SampleRow._fields.index(column)
        equal = {} if owner is None else {"owner_key": owner_key_of(owner), "owner": owner}
        with self._reading() as transaction:
            last = last_certificate(transaction)
            rows = (
                row
                for chunk in chunks(sorted({key_of(digest) for digest in wanted}))
                for row in transaction.found(samples, [column.name for column in FIELDS], f"{column}_key", chunk, equal)
            )
            return [sample_of(row, last) for row in rows if as_bytes(row[place]) in wanted]

    @contextmanager
    def _reading(self) -> Iterator[Transaction]:
        """Yield this thread's write transaction if it is open, else a read transaction."""
        current: Transaction | None = getattr(self._local, "transaction", None)
        if current is not None:
            yield current
        else:
            with self._database.reading() as transaction:
                yield transaction

    # -- writing -----------------------------------------------------------------------------------

    @contextmanager
    def writing(self, claim: bool = False) -> Iterator[Writing]:
        """Change the ledger. The changes are on disk when the block ends; if it raises, nothing has changed.

        There is one writer at a time. Another waits for a while, and then raises `LedgerError`.

        Parameters
        ----------
        claim : bool
            Be the only writer, from this change until `close`, or until another process claims the ledger. Changes by
            others are refused. You need this if you keep data beside the ledger that must follow its changes.
        """
        if getattr(self._local, "transaction", None) is not None:
            raise LedgerError("this thread is changing the ledger already: leave `writing` first")
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
                raise LedgerError("an error during a change of the ledger was ignored: nothing was changed")
        if token is not None:
            self._writer = token

    def require_own_process(self) -> None:
        """Raise `LedgerError` in a process that was forked from the one that opened the ledger."""
        self._database.require_own_process()

    def require_claim(self) -> None:
        """Raise `LedgerError` if another process has claimed the ledger since, or if it was closed."""
        with self._reading() as transaction:
            self._require_claim(transaction)

    def _require_claim(self, transaction: Transaction) -> None:
        if read_note(transaction, "writer") != self._writer:
            raise LedgerError(
                f"the ledger {self._database.name} may not be written here: another process has opened its store for "
                "writing, or it was closed here. Nothing was changed. Make sure that only one process writes the "
                "store, and open it again"
            )

    def stop_writing(self) -> None:
        """Refuse to write until the ledger is opened again: data beside it depends on its present state."""
        self._database.stop_writing()

    def scrub(self) -> None:
        """Clear deleted rows from the database.

        Afterwards no file of it holds a deleted row, and the order of the rows reveals nothing about earlier samples.
        This takes as much time and disk space as writing the database three times. In PostgreSQL, readers wait
        meanwhile, and the server's own log and backups keep what they have.
        """
        with self.writing() as writing:
            writing.clear()
        self._database.scrub()
