"""Changes to the store, many requests in one.

All requests of one kind that wait together become one change: one transaction, one downdate. Each still gets its own
answer and happens as a whole or not at all. A refused request does not affect the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from neverseen.backbones.reading import Prepared
from neverseen.errors import NeverseenError, NotLearnedError
from neverseen.holdings import FORGET, FORGET_CLASS, LEARN, Change, HeldTicket
from neverseen.labels import canonical_json, from_private_text, normalise, text
from neverseen.ledger import Notes, RequestRow
from neverseen.model.intake import Shown, Verdict
from neverseen.proof.certificates import AuditHead
from neverseen.service.errors import Refusal, hidden, receipt_refusal, refusal_of, repeated
from neverseen.service.writer.idempotency import conflict, told_apart
from neverseen.service.writer.jobs import FORGET_SAMPLES, Applied, Job, LearnSamples, SampleList, full_id
from neverseen.service.writer.room import Room, columns_of
from neverseen.store import AUDIT, Store

Outcome = tuple[Job, Applied | Refusal]
Make = Callable[[Store, list[Job]], Change]
"""Makes one change from several requests."""
_ROUNDS = 4


def apply(
    store: Store, jobs: Sequence[Job], audit: AuditHead | None = None, room: Room | None = None
) -> Iterator[Outcome]:
    """Carry out jobs of one kind, in order, and yield the outcome of each. Errors that end the writer are raised.

    A job with a known idempotency key is not carried out, but answered or refused from the ledger. Classes that `room`
    refuses are not learned. With each change, the ledger notes the head of the audit log.
    """
    known = store.ledger.requests_by_tag(job.tag for job in jobs if job.tag is not None)
    taken: set[bytes] = set()
    new: list[Job] = []
    later: list[Job] = []
    for job in jobs:
        if job.tag in known:
            try:
                outcome = _repeated(store, job, known[job.tag])
            except NeverseenError as error:
                outcome = _refused(error, job)
            yield job, outcome
        elif job.tag in taken:
            later.append(job)
        else:
            new.append(job)
            taken.update([] if job.tag is None else [job.tag])
    if new:
        yield from _apply(store, new, audit, room)
    for job in later:
        yield from apply(store, [job], audit, room)


def _apply(store: Store, jobs: list[Job], audit: AuditHead | None, room: Room | None) -> Iterator[Outcome]:
    kind = jobs[0].kind
    if kind == FORGET:
        yield from _forget(store, jobs, audit)
    elif kind == LEARN:
        yield from _together(store, jobs, _learn, audit, room)
    elif kind == FORGET_SAMPLES:
        for (_, named), group in groupby(jobs, lambda job: (job.owner, job.payload.ids is not None)):
            # Without ids, how often a request lists a sample says whether it is clear which is meant.
            for part in [list(group)] if named else [[job] for job in group]:
                yield from _together(store, part, _forget_samples, audit)
    elif kind == FORGET_CLASS:
        for job in jobs:
            yield from _together(store, [job], lambda store, jobs: store.forgetting_class(jobs[0].payload), audit)


# -- by receipt --------------------------------------------------------------------------------------


def _forget(store: Store, jobs: list[Job], audit: AuditHead | None) -> Iterator[Outcome]:
    for _ in range(_ROUNDS):
        if not jobs:
            return
        good, jobs, refused = _parted(store, jobs)
        yield from refused
        yield from _together(store, list(good), _receipts_shown(good), audit)
    for job in jobs:  # requests that overlap in turns: each by itself
        good, _, refused = _parted(store, [job])
        yield from refused
        yield from _together(store, list(good), _receipts_shown(good), audit)


def _receipts_shown(good: dict[Job, list[Shown]]) -> Make:
    def change(store: Store, jobs: list[Job]) -> Change:
        return store.forgetting([each for job in jobs for each in good[job]])

    return change


def _parted(store: Store, jobs: list[Job]) -> tuple[dict[Job, list[Shown]], list[Job], list[tuple[Job, Refusal]]]:
    """Return the jobs to apply together, with their opened receipts; the jobs that must wait; and the refused ones."""
    places: dict[tuple[str | None, bytes], int] = {}  # by owner too: one that is not theirs is not looked up
    for job in jobs:
        for receipt in job.payload:
            places.setdefault((job.owner, receipt), len(places))
    try:
        verdicts = store.verdicts([receipt for _, receipt in places], [owner for owner, _ in places])
    except NeverseenError as error:  # about none of them: what is wrong with a receipt is its verdict
        return {}, [], [(job, _refused(error, job)) for job in jobs]
    good: dict[Job, list[Shown]] = {}
    later: list[Job] = []
    refused: list[tuple[Job, Refusal]] = []
    taken: set[bytes] = set()
    for job in jobs:
        found = [verdicts[places[job.owner, receipt]] for receipt in job.payload]
        refusal = refusal_for(job.payload, found, job.owner)
        if refusal is not None:
            refused.append((job, refusal))
        elif not taken.isdisjoint(job.payload) or any(verdict.error is not None for verdict in found):
            later.append(job)  # what it lists is in a request before it
        else:
            good[job] = [verdict.shown for verdict in found if verdict.shown is not None]
            taken.update(job.payload)
    return good, later, refused


def refusal_for(receipts: Sequence[bytes], verdicts: Sequence[Verdict], owner: str | None) -> Refusal | None:
    """Return the refusal of a request for these receipts, whatever else waits; None if it is accepted."""
    seen: set[bytes] = set()
    for row, (receipt, verdict) in enumerate(zip(receipts, verdicts, strict=True)):
        error = verdict.error
        if owner is not None and verdict.owner != owner:
            return hidden(row)
        if receipt in seen:
            return repeated(row)
        seen.add(receipt)
        if error is not None and error.reason != "repeated":
            return receipt_refusal(error, owner, row)
    return None


# -- by sample, by class, learning -------------------------------------------------------------------


def _forget_samples(store: Store, jobs: list[Job]) -> Change:
    lists: list[SampleList] = [job.payload for job in jobs]
    prepared = Prepared.joined([listed.prepared for listed in lists])
    labels = [label for listed in lists for label in listed.labels]
    ids = None if lists[0].ids is None else [name for listed in lists for name in listed.ids or ()]
    return forgetting(store, SampleList(prepared, labels, ids), jobs[0].owner)


def forgetting(store: Store, given: SampleList, owner: str | None) -> Change:
    """Return the change that forgets samples of an owner, or of any; refuse ids that may be meant as an owner's."""
    ids = given.ids
    full = None if ids is None else [full_id(owner, name) for name in ids]
    change = store.forgetting(given.prepared, given.labels, ids=full, owner=owner)
    if ids is None or owner is not None:
        return change
    said: dict[int, dict[object, list[object]]] = {}  # by the tickets, which are the same for equal samples
    for row, (name, alike) in enumerate(zip(ids, store.alike(change), strict=True)):
        if id(alike) not in said:
            said[id(alike)] = _by_id(alike)
        found = said[id(alike)].get(name, [])
        if len(found) > 1:
            words = f"several owners have sample {row} under this id, or somebody without an owner does, too"
            raise Refusal("ambiguous", f"{words}: say whose with owner, or send its receipt", row=row)
        if found and name not in found:
            words = f"sample {row} is held under this id for an owner: say whose with owner, or send its receipt"
            raise Refusal("not_learned", words, row=row)
    return change


def _by_id(tickets: Sequence[HeldTicket]) -> dict[object, list[object]]:
    """Return the ids under which samples are held, by each id that may be given for them: with its owner or without."""
    found: dict[object, list[object]] = {}
    for each in tickets:
        kept, whose = from_private_text(each.id), from_private_text(each.owner)
        for given in {kept, kept.removeprefix(full_id(whose, ""))} if isinstance(kept, str) else {kept}:
            found.setdefault(given, []).append(kept)
    return found


def _learn(store: Store, jobs: list[Job]) -> Change:
    lists: list[LearnSamples] = [job.payload for job in jobs]
    return store.learning(
        Prepared.joined([listed.prepared for listed in lists]),
        [label for listed in lists for label in listed.labels],
        [name for job, listed in zip(jobs, lists, strict=True) for name in listed.full_ids(job.id)],
        [listed.owner for listed in lists for _ in listed.labels],
    )


def _together(
    store: Store, jobs: list[Job], make: Make, audit: AuditHead | None, room: Room | None = None
) -> Iterator[Outcome]:
    """Make one change from several requests; if that is refused, one from each."""
    if not jobs:
        return
    single = jobs[0] if len(jobs) == 1 else None
    if single is not None and single.kind == FORGET_CLASS:
        single.samples = store.ledger.counts().get(text(normalise(single.payload)), 0)
    targets = store.description.configuration.targets
    brought = [(job.client, columns_of(job.payload.labels, targets)) for job in jobs] if room is not None else []
    try:
        if room is not None:
            room.require_room(store.statistics(), brought)
        change = make(store, jobs)
        shares = list(_shared_out(jobs, change.receipts or None))
        rows = [job.row(shown) for job, shown in zip(jobs, shares, strict=True)]
        meta = {} if audit is None else {AUDIT: canonical_json(vars(audit))}
        store.commit(change.noting(Notes(rows, meta)))
    except (NeverseenError, Refusal) as error:
        refusal = _own_fault(error, jobs[0])
        if refusal is None:
            raise
        if single is not None:
            yield single, refusal
            return
        for part in _apart(store, jobs):
            yield from _together(store, part, make, audit, room)
        return
    if room is not None:
        room.learned(brought)
    for job, row, given in zip(jobs, rows, shares, strict=True):
        yield job, Applied(row, given if job.kind == LEARN else None)


def _apart(store: Store, jobs: list[Job]) -> list[list[Job]]:
    """Split requests that were refused together into parts, so that few good ones need a change of their own.

    Requests whose ids are taken are known at once, and each becomes a part. For any other fault, the culprit is
    unknown: halving again and again finds one bad request among n in 2 log n changes.
    """
    if jobs[0].kind == LEARN:
        names = [(job, job.payload.owner, name) for job in jobs for name in job.payload.full_ids(job.id)]
        held = store.ids_held([name for _, _, name in names], [owner for _, owner, _ in names])
        seen: set[tuple[str | None, str]] = set()
        bad: set[int] = set()
        for (job, owner, name), is_held in zip(names, held, strict=True):
            if is_held or (owner, name) in seen:
                bad.add(id(job))
            seen.add((owner, name))
        if bad:
            good = [job for job in jobs if id(job) not in bad]
            return ([good] if good else []) + [[job] for job in jobs if id(job) in bad]
    return [jobs[: len(jobs) // 2], jobs[len(jobs) // 2 :]]


def _shared_out(jobs: list[Job], receipts: Sequence[bytes] | None) -> Iterator[list[bytes] | None]:
    """Yield the receipts of each job, out of those of all jobs."""
    start = 0
    for job in jobs:
        yield None if receipts is None else list(receipts[start : start + job.samples])
        start += job.samples


def _own_fault(error: NeverseenError | Refusal, job: Job) -> Refusal | None:
    """Return the refusal for an error caused by a request."""
    return class_refusal(error) if job.kind == FORGET_CLASS else refusal_of(error, job.owner)


def _refused(error: NeverseenError, job: Job) -> Refusal:
    """Return the refusal for an error; raise an error that ends the writer."""
    refusal = _own_fault(error, job)
    if refusal is None:
        raise error
    return refusal


def class_refusal(error: Exception) -> Refusal | None:
    """Return the refusal for an error of forgetting a class."""
    if isinstance(error, NotLearnedError):
        return Refusal("not_learned", "no sample of this class is held: never learned, or forgotten already")
    return refusal_of(error, None)


# -- repetitions -------------------------------------------------------------------------------------


def is_known(store: Store, tag: bytes) -> bool:
    """Return whether a request was carried out under this idempotency key."""
    return bool(store.ledger.requests_by_tag([tag]))


def reused(store: Store, job: Job) -> Refusal | None:
    """Return the refusal of a job under its idempotency key; None if it can be, or was, carried out."""
    row = None if job.tag is None else store.ledger.requests_by_tag([job.tag]).get(job.tag)
    found = None if row is None else _repeated(store, job, row)
    return found if isinstance(found, Refusal) else None


def _repeated(store: Store, job: Job, row: RequestRow) -> Applied | Refusal:
    """Return the answer to a job with an idempotency key that the ledger knows."""
    if row.kind != job.row().kind:
        return conflict(row.id)
    receipts: list[bytes] | None = job.payload if job.kind == FORGET else []
    if job.kind == LEARN:
        learned: LearnSamples = job.payload
        receipts = store.receipts_again(learned.prepared, learned.labels, learned.full_ids(row.id), learned.owner)
    refusal = told_apart(row, job.body or b"", receipts)
    if refusal is not None:
        return refusal
    return Applied(row, receipts if job.kind == LEARN else None, replayed=True)
