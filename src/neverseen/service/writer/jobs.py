"""Jobs for the writer, and its answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from neverseen.backbones.reading import Prepared
from neverseen.holdings import FORGET, LEARN
from neverseen.ledger import RequestRow
from neverseen.service.writer.idempotency import to_keep

FORGET_SAMPLES, ASK = "forget_samples", "ask"
"""Kinds of jobs, besides those of `neverseen.holdings.Change`."""


@dataclass(slots=True, eq=False)
class Job:
    """One waiting request."""

    kind: str  # `LEARN`, `FORGET` (by receipts), `FORGET_SAMPLES`, `FORGET_CLASS` or `ASK`
    id: str  # of the request
    client: str  # name of the API key
    owner: str | None  # of the API key, or named by one without
    samples: int  # how much it counts against the queue's limit
    payload: Any  # `LearnSamples`, a list of bytes, `SampleList`, a label, or a callable of a store
    # keyed digests of the idempotency key and of the request; see `neverseen.service.writer.idempotency`
    tag: bytes | None = None
    body: bytes | None = None
    future: Any = field(default_factory=Future)  # gets an `Applied`, what a question returned, or the error
    queued: float = field(default_factory=time.monotonic)
    # tells who made it once the client's name is gone; see `neverseen.service.reception.access.maker_of`
    maker: bytes | None = None

    @property
    def is_joined(self) -> bool:
        """Whether it becomes one change with others of its kind: see `neverseen.service.writer.applying`."""
        return self.kind in (LEARN, FORGET) or (self.kind == FORGET_SAMPLES and self.payload.ids is not None)

    def row(self, receipts: Sequence[bytes] | None = None) -> RequestRow:
        """Return the ledger's row for this job, given the receipts that it shows or was given."""
        kind = FORGET if self.kind == FORGET_SAMPLES else self.kind
        body = None if self.body is None else to_keep(self.body, receipts or ())
        now = time.time_ns() // 1_000_000
        return RequestRow(self.id, self.tag, self.client, kind, self.samples, body, now, maker=self.maker)


def full_id(owner: object, name: str) -> str:
    """Return an id as it is kept: ``owner/id`` where there is an owner.

    A store keeps the ids of owners apart by itself; receipts that were given before it did say ``owner/id``.
    """
    return name if owner is None else f"{owner}/{name}"


@dataclass(frozen=True, slots=True)
class LearnSamples:
    """The samples of a request to learn. Ids are without the owner; missing ids are made from the request's id."""

    prepared: Prepared
    labels: list[Any]
    ids: list[str | None]
    owner: str | None

    def full_ids(self, request: str) -> list[str]:
        """Return the ids as they are kept."""
        return [full_id(self.owner, f"{request}-{row}" if name is None else name) for row, name in enumerate(self.ids)]


@dataclass(frozen=True, slots=True)
class SampleList:
    """The samples of a request to forget."""

    prepared: Prepared
    labels: list[Any]
    ids: list[str] | None


@dataclass(frozen=True, slots=True)
class Applied:
    """A change that is on disk."""

    row: RequestRow
    receipts: list[bytes] | None = None
    replayed: bool = False


def new_future() -> Any:
    """Return a future of the running loop, or one for threads."""
    try:
        return asyncio.get_running_loop().create_future()
    except RuntimeError:
        return Future()


def settle(outcomes: Iterable[tuple[Any, Any]]) -> None:
    """Answer jobs, or anything else with a `future`.

    One call wakes an event loop for all of its jobs. It answers one in each of its rounds, so that others come between.
    """
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Any, Any]]] = {}
    for job, outcome in outcomes:
        if isinstance(job.future, asyncio.Future):
            by_loop.setdefault(job.future.get_loop(), []).append((job, outcome))
        else:
            _resolve(job, outcome)
    for loop, theirs in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve_in_turn, loop, iter(theirs))
        except RuntimeError:  # the loop has ended, and nobody waits
            continue


def _resolve_in_turn(loop: asyncio.AbstractEventLoop, outcomes: Iterator[tuple[Any, Any]]) -> None:
    for job, outcome in outcomes:
        _resolve(job, outcome)
        loop.call_soon(_resolve_in_turn, loop, outcomes)
        return


def _resolve(job: Any, outcome: Any) -> None:
    if job.future.done():
        return
    if isinstance(outcome, BaseException):
        job.future.set_exception(outcome)
    else:
        job.future.set_result(outcome)
