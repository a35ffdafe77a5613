"""Changes to the store, many requests in one.

All requests of one kind that wait together are one change: one transaction, one downdate. Each is still answered for
itself, all of it or nothing, and one that is refused does not spoil its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby

from neverseen.errors import ConfigurationError, InputError, LedgerError, NeverseenError, NotLearnedError
from neverseen.forgetting import Prepared, Verdict
from neverseen.labels import normalise, text
from neverseen.ledger import RequestRow, Writing
from neverseen.receipts import Receipt, commitment, seal
from neverseen.register import tickets_of
from neverseen.service.errors import Refusal, hidden, refusal_of
from neverseen.service.jobs import FORGET, FORGET_CLASS, FORGET_SAMPLES, LEARN, Applied, Job, LearnSamples, SampleList
from neverseen.service.room import Room, texts_of
from neverseen.store import Store

Outcome = tuple[Job, Applied | Refusal]
Note = Callable[[Writing], None]
_ROUNDS = 4


def apply(store: Store, jobs: Sequence[Job], room: Room | None = None) -> Iterator[Outcome]:
    """Carry out jobs of one kind, in order, and yield how each ended. What ends the writer is raised.

    What `room` refuses is not learned.
    """
    kind = jobs[0].kind
    if kind == FORGET:
        yield from _forget(store, list(jobs))
    elif kind == LEARN:
        yield from _together(store, list(jobs), partial(_learn, room))
    elif kind == FORGET_SAMPLES:
        for (_, named), group in groupby(jobs, lambda job: (job.owner, job.payload.ids is not None)):
            # Without ids, how often a request lists a sample says whether it is clear which is meant.
            for part in [list(group)] if named else [[job] for job in group]:
                yield from _together(store, part, _forget_samples)
    elif kind == FORGET_CLASS:
        for job in jobs:
            yield from _together(store, [job], _forget_class)


# -- by receipt --------------------------------------------------------------------------------------


def _forget(store: Store, jobs: list[Job]) -> Iterator[Outcome]:
    for _ in range(_ROUNDS):
        if not jobs:
            return
        good, jobs, refused = _parted(store, jobs)
        for job, refusal in refused:
            found = _replayed(store, job)
            yield job, refusal if found is None else found
        yield from _together(store, good, _forget_receipts)
    for job in jobs:  # requests that overlap in turns: each by itself
        good, _, refused = _parted(store, [job])
        yield from refused
        yield from _together(store, good, _forget_receipts)


def _parted(store: Store, jobs: list[Job]) -> tuple[list[Job], list[Job], list[tuple[Job, Refusal]]]:
    """Return the jobs to apply together, those that have to wait for these, and those that are refused."""
    places: dict[bytes, int] = {}
    for job in jobs:
        for token in job.payload:
            places.setdefault(token, len(places))
    verdicts = store.verdicts(list(places))
    good: list[Job] = []
    later: list[Job] = []
    refused: list[tuple[Job, Refusal]] = []
    taken: set[bytes] = set()
    for job in jobs:
        found = [verdicts[places[token]] for token in job.payload]
        refusal = refusal_for(job.payload, found, job.owner)
        if refusal is not None:
            refused.append((job, refusal))
        elif not taken.isdisjoint(job.payload) or any(verdict.error is not None for verdict in found):
            later.append(job)  # what it lists is in a request before it
        else:
            good.append(job)
            taken.update(job.payload)
    return good, later, refused


def refusal_for(tokens: Sequence[bytes], verdicts: Sequence[Verdict], owner: str | None) -> Refusal | None:
    """Return why a request for these receipts is refused, whatever else waits; None if it is not."""
    seen: set[bytes] = set()
    for row, (token, verdict) in enumerate(zip(tokens, verdicts, strict=True)):
        error = verdict.error
        if owner is not None and verdict.owner != owner:
            return hidden(row)
        if token in seen:
            return Refusal("invalid_request", f"receipt {row} is listed twice: list each once", row=row)
        seen.add(token)
        if error is not None and error.reason != "repeated":
            refusal = refusal_of(error, owner)
            if refusal is None:
                raise error
            refusal.row = row
            refusal.message = refusal.message.replace(f"receipt {error.row}", f"receipt {row}")
            return refusal
    return None


def _forget_receipts(store: Store, jobs: list[Job], note: Note) -> None:
    store.forget([token for job in jobs for token in job.payload], note=note)


# -- by sample, by class, learning -------------------------------------------------------------------


def _forget_samples(store: Store, jobs: list[Job], note: Note) -> None:
    lists: list[SampleList] = [job.payload for job in jobs]
    owner = jobs[0].owner
    ids = None
    if lists[0].ids is not None:
        ids = [name if owner is None else f"{owner}/{name}" for listed in lists for name in listed.ids or ()]
    prepared = Prepared.joined([listed.prepared for listed in lists])
    labels = [label for listed in lists for label in listed.labels]
    store.forget(prepared, labels, ids=ids, owner=owner, note=note)


def _forget_class(store: Store, jobs: list[Job], note: Note) -> None:
    store.forget_class(jobs[0].payload, note=note)


def _learn(room: Room | None, store: Store, jobs: list[Job], note: Note) -> list[bytes]:
    lists: list[LearnSamples] = [job.payload for job in jobs]
    if room is not None:
        room.new_classes(store.statistics(), {name for listed in lists for name in texts_of(listed.labels)})
    return store.learn(
        Prepared.joined([listed.prepared for listed in lists]),
        [label for listed in lists for label in listed.labels],
        [name for job, listed in zip(jobs, lists, strict=True) for name in listed.full_ids(job.id)],
        [listed.owner for listed in lists for _ in listed.labels],
        note=note,
    )


def _together(
    store: Store, jobs: list[Job], change: Callable[[Store, list[Job], Note], list[bytes] | None]
) -> Iterator[Outcome]:
    """Make several changes as one; if that is refused, each by itself."""
    if not jobs:
        return
    single = jobs[0] if len(jobs) == 1 else None
    if single is not None and single.kind != FORGET:  # of these a repetition is not told by its being refused
        found = _replayed(store, single)
        if found is not None:
            yield single, found
            return
    rows: list[RequestRow] = []

    def note(writing: Writing) -> None:
        rows[:] = [job.row() for job in jobs]
        writing.note_requests(rows)

    if single is not None and single.kind == FORGET_CLASS:
        single.samples = store._open_ledger().counts().get(text(normalise(single.payload)), 0)
    try:
        receipts = change(store, jobs, note)
    except (NeverseenError, Refusal) as error:
        refusal = _own_fault(error, jobs)
        if isinstance(error, LedgerError) and not error.uncertain and any(job.tag for job in jobs):
            replays = [(job, _replayed(store, job)) for job in jobs]
            if not any(found for _, found in replays):
                raise
            yield from ((job, found) for job, found in replays if found is not None)
            yield from _together(store, [job for job, found in replays if found is None], change)
            return
        if refusal is None:
            raise
        if single is not None:
            yield single, refusal
            return
        for job in jobs:
            yield from _together(store, [job], change)
        return
    start = 0
    for job, row in zip(jobs, rows, strict=True):
        given = None if receipts is None else receipts[start : start + job.samples]
        start += job.samples
        yield job, Applied(row, given)


def _own_fault(error: NeverseenError | Refusal, jobs: list[Job]) -> Refusal | None:
    """Return the refusal for an error that a request is to blame for."""
    job = jobs[0]
    if isinstance(error, InputError) and job.kind == LEARN and "the id of row" in str(error):
        return Refusal("id_taken", str(error))
    if isinstance(error, InputError) and job.kind == FORGET_SAMPLES and "under different ids" in str(error):
        return Refusal("ambiguous", str(error))
    if job.kind == FORGET_CLASS:
        return class_refusal(error)
    return refusal_of(error, job.owner)


def class_refusal(error: Exception) -> Refusal | None:
    """Return the refusal for an error of forgetting a class."""
    if isinstance(error, NotLearnedError):
        return Refusal("not_learned", "no sample of this class is held: never learned, or forgotten already")
    if isinstance(error, ConfigurationError):
        return Refusal("not_tracked", str(error))
    return refusal_of(error, None)


# -- repetitions -------------------------------------------------------------------------------------


def _replayed(store: Store, job: Job) -> Applied | Refusal | None:
    """Return the answer to a request that was carried out before under its idempotency key."""
    if job.tag is None:
        return None
    row = store._open_ledger().request_by_tag(job.tag)
    if row is None:
        return None
    if row.kind != job.row().kind or row.body not in (None, job.body):
        return Refusal(
            "idempotency_conflict", "this idempotency key was used for another request: use a new key for each request"
        )
    if job.kind != LEARN:
        return Applied(row, replayed=True)
    receipts = receipts_again(store, job.payload, job.payload.full_ids(row.id))
    if receipts is None:
        return Refusal(
            "receipts_gone",
            "this request was carried out before, and its samples are not held any more: their receipts are of no use",
        )
    return Applied(row, receipts, replayed=True)


def receipts_again(store: Store, learned: LearnSamples, ids: Iterable[str]) -> list[bytes] | None:
    """Return the receipts that these samples were given, if they are held under them."""
    model = store._writer()
    keys, configuration = model._require_keys(), store.description.configuration.digest()
    id_texts = [text(name) for name in ids]
    names = [text(normalise(label)) for label in learned.labels]
    owner, prints = text(learned.owner), learned.prepared.prints
    tickets = tickets_of(configuration, keys.membership, id_texts, names, prints)
    held = store._open_ledger().by_numbers([ticket.number for ticket in tickets])
    receipts: list[bytes] = []
    for ticket, name, fingerprint, quantised in zip(tickets, names, prints, learned.prepared.quantised, strict=True):
        row = held.get(ticket.number)
        said = Receipt(ticket.id, owner, name, fingerprint, quantised)
        sealed = (seal(said, key, configuration) for key in keys.receipts)
        found = next((token for token in sealed if row is not None and commitment(token) == row.commitment), None)
        if found is None:
            return None
        receipts.append(found)
    return receipts
