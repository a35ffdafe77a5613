"""`Service`: the parts of a running service, shared by its routes."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from neverseen import store
from neverseen.backbones import Backbone
from neverseen.backbones.reading import Prepared
from neverseen.errors import ConfigurationError, InputError
from neverseen.holdings import FORGET, FORGET_CLASS
from neverseen.ledger import RequestRow
from neverseen.model.configuration import AUTO
from neverseen.proof.keys import Keyring
from neverseen.service.answers import answer, is_long, written
from neverseen.service.errors import Refusal, refusal_of
from neverseen.service.operations.audit import AuditLog, audit_key
from neverseen.service.operations.history import History, Probe
from neverseen.service.operations.log import LOG
from neverseen.service.operations.metrics import Metrics
from neverseen.service.operations.served import require_served
from neverseen.service.operations.settings import FOLDER, Settings, service_folder
from neverseen.service.predicting import THROUGH_NETWORK, Predictor, order_of
from neverseen.service.reception.access import ApiKey, KeyFile
from neverseen.service.reception.callers import Callers
from neverseen.service.reception.contents import Bounds, Given
from neverseen.service.reception.reception import Reception, bounds_of
from neverseen.service.reception.refusals import Refusals
from neverseen.service.reception.requests import ANSWERED, KEY, client_answered, client_of
from neverseen.service.reception.workers import Workers
from neverseen.service.sharing.gate import Gate
from neverseen.service.sharing.result_memory import ResultMemory
from neverseen.service.sharing.turns import Threads
from neverseen.service.writer.idempotency import Repetitions
from neverseen.service.writer.jobs import ASK, FORGET_SAMPLES, Job, new_future
from neverseen.service.writer.publishing import Publisher
from neverseen.service.writer.queue import Writer, lines_to_make_up
from neverseen.service.writer.room import PIXEL, Room, columns_of, fitted, memory_for_store
from neverseen.store import Store
from neverseen.store.certification import signing_key
from neverseen.targets import Numbers, Targets

Result = TypeVar("Result")
_LAST = 1.0  # seconds in which threads that have nothing left to do end at a stop, however late it is
_SMALL = 2**15  # bytes of a body that may be digested at once
_TICK = 0.05  # seconds; answers that must not tell anything come at multiples of this
_IDEMPOTENCY = re.compile(r"[!-~]{1,200}")
_THREADS = 4  # for each kind of work
_STEP = 4096  # bytes of a body that take about as long to read as a request does without one


class Service:
    """The parts of a running service.

    Parameters
    ----------
    folder : Path
        The store's folder.
    keys : Keyring, optional
        The store's keys, if they are not in the folder.
    clock : callable
        Seconds, from any start: for the publishing policy.
    """

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        backbone: Backbone | None = None,
        keys: Keyring | None = None,
        clock: Callable[[], float] = time.monotonic,
        hardware: str = "auto",
    ) -> None:
        self.folder, self.settings = folder, (settings := fitted(settings))
        self._backbone, self._keys, self._clock, self._hardware = backbone, keys, clock, hardware
        self.metrics = Metrics()
        self.access = KeyFile(folder / FOLDER)
        self.callers, self.results = Callers(settings, self.access), ResultMemory(settings.max_waiting_bytes)
        self.audit: AuditLog
        self.refusals: Refusals
        self.room: Room
        self.history: History
        self.repetitions: Repetitions
        self.writer: Writer
        self.targets: Targets
        self.bounds: Bounds
        self.reception: Reception
        self.readers: Workers
        self.checker: Workers
        self.predictor: Predictor
        self.gate: Gate
        self._threads: Threads
        self._ledger_threads: Threads
        self._network_threads: Threads
        self.started, self._stop_by = False, math.inf

    def start(self) -> None:
        """Open the store, and start all threads."""
        place = service_folder(self.folder)
        self.access.all()  # a file that cannot be used is told now
        self.history = History(place, self.settings.history_points)
        self.room = Room(self.settings, memory_for_store(self.settings), lambda: self.writer.published.names)
        told = (lambda size: Probe(place, size)), (lambda: self.audit.head)
        publisher = Publisher(self.history, self.metrics, *told, immediate=self.settings.effect == "immediate")
        self.writer = Writer(self._open, self.settings, self.metrics, publisher, self.room, self._clock)
        with ExitStack() as undone:
            undone.callback(self.writer.stop, self.settings.stop_timeout)
            opened = self.writer.open()  # before the log is touched: only one process may write to either
            self.targets = opened.description.configuration.targets
            about = opened.description
            require_served(about.configuration, self.settings, place, about.n_features)
            signing_key(self.folder, about)
            if about.configuration.gamma == AUTO:
                self.room.gamma_is_chosen()
            self._keys = opened.required_keys()  # a store that is opened again has these: its file may be older by then
            self.repetitions = Repetitions(place, opened.ledger.has_tags())
            key = audit_key(self._keys)
            limits = self.settings.audit_bytes, self.settings.audit_files
            self.audit = AuditLog(place, key, *limits, expected=opened.audit_head)
            undone.callback(self.audit.close)
            self.refusals = Refusals(self.audit.soon, self.settings.refusal_seconds)
            self.audit.append(lines_to_make_up(opened, self.audit))
            self.audit.append([{"action": "start", "version": self.writer.published.number}])
            self.bounds = bounds_of(opened.backbone, self.settings, self.targets.configuration())
            if self.bounds.kind == "images":
                self.room.reserve(PIXEL * self.settings.max_waiting_pixels)
            if isinstance(self.targets, Numbers):
                self.room.require_columns(opened.statistics(), self.targets.outputs)
            shortage = self.room.shortage(opened.statistics())
            if shortage is not None:
                LOG.warning("%s", shortage)
            self._start_apart(opened)
            undone.callback(self.readers.stop)
            undone.callback(self.checker.stop)
            answering = (lambda: self.writer.published), (lambda quantised: self.opened().held_labels(quantised))
            self.predictor = Predictor(opened.backbone, *answering, self.settings, self.metrics, self.history)
            self.gate = Gate(self.predictor.served)
            self._threads, self._ledger_threads, self._network_threads = (
                Threads(name, _THREADS, self.settings.max_connections) for name in ("service", "ledger", "prepare")
            )
            undone.callback(self._stop_threads)
            parts = self.callers, self.results, self.readers, self._threads
            self.reception = Reception(self.settings, self.bounds, *parts, self.admitted)
            self.writer.start(self.audit)
            undone.pop_all()
        self.started, self._stop_by = True, math.inf
        LOG.info("the service has started, with version %d", self.writer.published.number)

    def expect_stop(self) -> None:
        """Start `stop_timeout` now, before `stop`, while waiting requests are answered."""
        self._stop_by = min(self._stop_by, time.monotonic() + self.settings.stop_timeout)

    def stop(self) -> bool:
        """Finish the queue within `stop_timeout` and close the store; return whether the queue was finished."""
        self.started = False
        self.expect_stop()
        end = max(self._stop_by, time.monotonic() + _LAST)
        done = self.writer.stop(end - time.monotonic())
        self.predictor.stop(end - time.monotonic())
        self.refusals.write()
        self.audit.soon({"action": "stop", "finished": done})
        self.audit.close()
        self._stop_threads()
        self.readers.stop()
        self.checker.stop()
        LOG.info("the service has stopped" if done else "the service has stopped before the queue was finished")
        return done

    def _stop_threads(self) -> None:
        for threads in (self._threads, self._ledger_threads, self._network_threads):
            threads.stop()

    def _start_apart(self, opened: Store) -> None:
        settings = self.settings
        each = {"memory": settings.reading_memory, "seconds": settings.reading_timeout}
        bounds = each | {"bounds": self.bounds.as_json()}
        self.readers = Workers(bounds, settings.reading_processes, settings.reading_waiting)
        chain = each | {"certificates": str(opened.folder / "certificates"), "key": opened.description.public_key}
        self.checker = Workers(chain, 1, settings.verify_waiting)

    def opened(self) -> Store:
        """Return the store, or refuse while it is not open."""
        found = self.writer.store
        if found is None:
            raise Refusal("unavailable", "the store cannot be used now: try again in a moment", wait=2)
        return found

    def wrong(self) -> list[str]:
        """Return the reasons why the service cannot work or keep its promises; empty if all is well."""
        if not self.started:
            return ["the service is not running"]
        found = []
        if not self.writer.alive:
            found.append("the store cannot be written now")
        if self.access.fault() is not None:
            found.append("the API keys cannot be read now")
        try:
            if self._keys is not None:
                self._keys.current()
        except ConfigurationError as error:
            found.append(str(error))
        if not self.audit.healthy:
            found.append("the audit log cannot be written now")
        if self.writer.policy.overdue() is not None:
            unpublished = self.writer.policy.unpublished
            late = "a publication is later than max_delay" if unpublished else "a seal is later than seal_after"
            found.append(f"{late}: see the service's log")
        for stalled, words in (
            (self.writer.stalled(), "a change has been under way for minutes: does the ledger's database answer?"),
            (self.readers.stalled(), "a process that reads bodies does not answer"),
            (self.checker.stalled(), "the process that checks certificates does not answer"),
            (self.predictor.stalled(), "predictions get no answer"),
        ):
            found += [words] if stalled else []
        return found

    def _open(self) -> Store:
        return store.open(self.folder, backbone=self._backbone, keys=self._keys, hardware=self._hardware)

    async def in_thread(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Do long work, or read a file, outside the event loop. Clients take turns."""
        return await self._threads.do(client_answered(), work, *arguments)

    async def from_ledger(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Read the ledger, in separate threads: a database may be slow, or locked during a seal."""
        return await self._ledger_threads.do(client_answered(), work, *arguments)

    async def for_many(self, count: int, work: Callable[..., Result], *arguments: Any) -> Result:
        """Do work on so many samples: at once if they are few, and else beside the event loop."""
        return await self._threads.for_many(count, client_answered(), work, *arguments)

    async def for_made(self, count: int, work: Callable[..., Result], *arguments: Any) -> Result:
        """Do work for the answer to a change of so many samples that is made; it is never refused."""
        return await self._threads.for_made(count, work, *arguments)

    async def prepared(self, samples: list[Any]) -> Prepared:
        """Return samples with their features, ready for the writer.

        A network is slow and has separate threads. Many samples go through it in parts, and after each part others have
        their turn.
        """
        if self.bounds.kind == "features" or len(samples) <= THROUGH_NETWORK:
            return await self._network_threads.do(client_answered(), _prepared, self.opened(), samples)
        order, parts = order_of(samples), list[Prepared]()
        for first in range(0, len(order), THROUGH_NETWORK):
            part = [samples[place] for place in order[first : first + THROUGH_NETWORK]]
            parts.append(await self._network_threads.do(client_answered(), _prepared, self.opened(), part, True))
        return await self.in_thread(_joined, parts, order)

    async def answer(self, content: Any, status: int = 200) -> Response:
        """Return a JSON answer, whose bytes count until they are sent. One of many values is written in a thread."""
        made = await self.in_thread(written, content) if is_long(content) else written(content)
        self.count_answer(len(made))
        return answer(made, status)

    def count_answer(self, size: int) -> None:
        """Count the bytes of an answer until they are sent, or refuse. Bytes counted before still count."""
        request = ANSWERED.get()
        if request is not None:
            self.results.require_answer(request.scope, client_of(request), size, public=KEY not in request.scope)

    async def admitted(self, request: Request, size: int = 0) -> None:
        """Wait for a request's turn on the event loop; with a size, for its turn to read a body there."""
        if self.started:
            waited = await self.gate.enter(self.callers.name_of(request), 1 + size / _STEP)
            if waited:
                self.callers.look_again(request)

    # -- changes -----------------------------------------------------------------------------------

    async def require_room(self, key: ApiKey, labels: list[Any]) -> None:
        """Refuse labels that would make too many classes. New classes count against the key.

        This counts published classes. Later, at the request's turn, the writer counts the held ones.
        """
        try:
            names = await self.for_many(len(labels), columns_of, labels, self.targets)
        except InputError as error:
            raise Refusal("invalid_request", str(error)) from None
        new = self.room.require_few(self.opened().statistics(), key.name, names)
        self.callers.count_classes(key, len(new))
        self.room.asked(key.name, new)

    def tag_of(self, request: Request, key: ApiKey) -> bytes | None:
        """Return the tag of a request with an idempotency key."""
        given = request.headers.getlist("idempotency-key")
        if not given:
            return None
        if len(given) > 1 or not _IDEMPOTENCY.fullmatch(given[0]):
            raise Refusal("invalid_request", "Idempotency-Key must be given once, as 1 to 200 visible ASCII characters")
        return self.repetitions.tag(key.name, given[0])

    async def digest_of(self, action: str, content: bytearray, given: Given) -> bytes:
        """Return a keyed digest of a request's content, to recognise a repetition."""
        if len(content) <= _SMALL:
            return await self.for_many(len(given), self._digest, action, content, given)
        return await self.in_thread(self._digest, action, content, given)

    def _digest(self, action: str, content: bytearray, given: Given) -> bytes:
        view = memoryview(content)
        if not given.spans:
            return self.repetitions.body(action, view)
        parts: list[bytes | memoryview] = [view[start:end] for start, end in given.spans]
        if action == "learn":  # of a form, what counts is what it holds
            parts = [repr((given.labels, given.ids, given.owner)).encode(), *parts]
            parts = [piece for part in parts for piece in (len(part).to_bytes(8), part)]
        return self.repetitions.body(action, *parts)

    async def change(self, job: Job) -> Any:
        """Have the writer do a job."""
        return await self.untold(job, self.writer.submit(job))

    async def asked(
        self, client: str, owner: str | None, question: Callable[[Store], Result], entry: dict[str, Any]
    ) -> Result:
        """Have a client's question about samples answered between changes, with a line in the audit log."""
        writer = self.writer
        asked = partial(writer.told, question=question, entry=entry)
        job = Job(ASK, entry["request"], client, owner, entry["samples"], asked, future=new_future())
        found: Result = await self.change(job)
        return found

    async def untold(self, job: Job, work: Awaitable[Any]) -> Any:
        """Wait for work on a job. An answer that must reveal nothing leaves at fixed times."""
        try:
            return await work
        except Refusal as refusal:
            if refusal.code == "not_found":
                late = (time.monotonic() - job.queued) % _TICK
                await asyncio.sleep(_TICK - late)
            raise

    def view(self, row: RequestRow, key: ApiKey) -> dict[str, Any]:
        """Return an applied request, as JSON values. Only `audit` sees how many samples a class had."""
        published = self.writer.published
        state = "applied"
        if row.version and row.version <= published.number:
            state = "sealed" if row.version <= published.sealed else "published"
        seconds, milliseconds = divmod(row.applied, 1000)
        at = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return {
            "id": row.id,
            "kind": row.kind,
            "state": state,
            "samples": None if row.kind == FORGET_CLASS and not key.may("audit") else row.samples,
            "applied_at": f"{at}.{milliseconds:03d}Z",
            "certificate": None if state == "applied" else row.version,
            "key": row.client or None,  # cleared by a seal
        }


def _prepared(opened: Store, samples: list[Any], part: bool = False) -> Prepared:
    try:
        return opened.prepare(samples)
    except Exception as error:
        refusal = refusal_of(error, None)
        if refusal is None:
            raise
        raise (refusal.of_part(len(samples)) if part else refusal) from None


def _joined(parts: list[Prepared], order: list[int]) -> Prepared:
    """Return samples that were prepared in parts, in their original order."""
    return Prepared.joined(parts).only(sorted(range(len(order)), key=order.__getitem__))


def waiting_view(job: Job) -> dict[str, Any]:
    """Return a waiting request, as JSON values."""
    return {
        "id": job.id,
        "kind": FORGET if job.kind == FORGET_SAMPLES else job.kind,
        "state": "queued",
        "samples": None if job.kind == FORGET_CLASS else job.samples,  # it is not known yet
        "applied_at": None,
        "certificate": None,
        "key": job.client,
    }
