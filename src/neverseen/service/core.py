"""`Service`: the parts of a running service, and what its routes share."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from neverseen import store
from neverseen.backbones import Backbone
from neverseen.backbones.reading import Prepared
from neverseen.errors import ConfigurationError, InputError
from neverseen.ledger import RequestRow
from neverseen.proof.keys import Keyring
from neverseen.service.edge import messages
from neverseen.service.edge.access import ApiKey, KeyFile, maker_of
from neverseen.service.edge.answers import answer, is_long, written
from neverseen.service.edge.apart import Apart
from neverseen.service.edge.bodies import Bodies, content_type, declared, too_large
from neverseen.service.edge.connections import KEY
from neverseen.service.edge.contents import FORM, JSON, READERS, Bounds, Given, require_room
from neverseen.service.edge.errors import Refusal, refusal_of
from neverseen.service.edge.gate import Gate
from neverseen.service.edge.limits import Buckets, stranger
from neverseen.service.edge.made import ROWS, Made, share_of
from neverseen.service.edge.refusals import Refusals
from neverseen.service.edge.samples import bounds_of
from neverseen.service.edge.shares import Shares
from neverseen.service.edge.threads import Threads
from neverseen.service.operations.audit import AuditLog, audit_key
from neverseen.service.operations.history import History, Probe
from neverseen.service.operations.log import LOG
from neverseen.service.operations.metrics import Metrics
from neverseen.service.operations.settings import Settings, service_folder
from neverseen.service.predicting import THROUGH_NETWORK, Predictor, order_of
from neverseen.service.writer.idempotency import Repetitions
from neverseen.service.writer.jobs import FORGET, FORGET_CLASS, FORGET_SAMPLES, Job
from neverseen.service.writer.publishing import Publisher
from neverseen.service.writer.queue import Writer, lines_to_make_up
from neverseen.service.writer.room import PIXEL, Room, fitted, memory_for_store, texts_of
from neverseen.store import Store

Result = TypeVar("Result")
_SMALL, _TINY = 2**15, 2**11  # bytes of a body that may be read at once, and of one that always is
_PARTS, _NUMBERS = (
    256,
    4096,
)  # strings, lists and objects, and values, of a body that is read at once: half a millisecond
_FEW = 256  # samples or receipts that are looked at while everybody waits
_TICK = 0.05  # seconds; answers that must not tell anything come at multiples of this
_HEALTH = frozenset(["/healthz", "/readyz"])
_KEYED = ("/v1/", "/metrics")
_IDEMPOTENCY = re.compile(r"[!-~]{1,200}")
_THREADS = 4  # for each kind of work
_STEP = 4096  # bytes of a body that take about as long to read as a request does without one
ANSWERED: ContextVar[Request | None] = ContextVar("neverseen_answered", default=None)
"""The request that is being answered."""


class Service:
    """All that a running service is made of.

    Parameters
    ----------
    folder : Path
        The store's folder.
    keys : Keyring, optional
        The store's, where they are not in the folder.
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
        self.buckets = Buckets(settings.requests_per_second, settings.request_burst)
        self.sample_buckets = Buckets(settings.samples_per_second, settings.sample_burst)
        self.byte_buckets = Buckets(settings.bytes_per_second, settings.bytes_burst)
        self.public_buckets = Buckets(settings.public_per_second, settings.public_burst)
        self.health_buckets = Buckets(settings.health_per_second, settings.health_burst)
        self.class_buckets = Buckets(settings.classes_per_second, settings.class_burst)
        self.public_byte_buckets = Buckets(settings.public_bytes_per_second, settings.public_bytes_burst)
        self.bodies, self.made = Bodies(settings), Made(settings.max_waiting_bytes)
        self._pixels = Shares(settings.max_waiting_pixels, settings.max_waiting_pixels // 2)
        self.access: KeyFile
        self.audit: AuditLog
        self.refusals: Refusals
        self.room: Room
        self.history: History
        self.repetitions: Repetitions
        self.writer: Writer
        self.bounds: Bounds
        self.readers: Apart
        self.checker: Apart
        self.predictor: Predictor
        self.gate: Gate
        self._threads: Threads
        self._ledger_threads: Threads
        self._network_threads: Threads
        self.started = False

    def start(self) -> None:
        """Open the store, and start all threads."""
        place = service_folder(self.folder)
        self.access = KeyFile(place)
        self.access.all()  # a file that cannot be used is told now
        self.history = History(place, self.settings.history_points)
        self.repetitions = Repetitions(place)
        self.room = Room(self.settings, memory_for_store(self.settings), lambda: self.writer.published.names)
        publisher = Publisher(self.history, self.metrics, lambda size: Probe(place, size), lambda: self.audit.head)
        self.writer = Writer(self._open, self.settings, self.metrics, publisher, self.room, self._clock)
        with ExitStack() as undone:
            undone.callback(self.writer.stop, self.settings.stop_timeout)
            opened = self.writer.open()  # before the log is touched: only one process may write to either
            self._keys = opened.required_keys()  # a store that is opened again has these: its file may be older by then
            key = audit_key(self._keys)
            limits = self.settings.audit_bytes, self.settings.audit_files
            self.audit = AuditLog(place, key, *limits, expected=opened.audit_head)
            undone.callback(self.audit.close)
            self.refusals = Refusals(self.audit.soon, self.settings.refusal_seconds)
            self.audit.append(lines_to_make_up(opened, self.audit))
            self.audit.append([{"action": "start", "version": self.writer.published.number}])
            self.bounds = bounds_of(opened.backbone, self.settings)
            if self.bounds.kind == "images":
                self.room.reserve(PIXEL * self.settings.max_waiting_pixels)
            shortage = self.room.shortage(opened.statistics())
            if shortage is not None:
                LOG.warning("%s", shortage)
            self._start_apart(opened)
            undone.callback(self.readers.stop)
            undone.callback(self.checker.stop)
            self.predictor = Predictor(
                opened.backbone, lambda: self.writer.published, self.settings, self.metrics, self.history
            )
            self.gate = Gate(self.predictor.served)
            self._threads, self._ledger_threads, self._network_threads = (
                Threads(name, _THREADS, self.settings.max_connections) for name in ("service", "ledger", "prepare")
            )
            self.writer.start(self.audit)
            undone.pop_all()
        self.started = True
        LOG.info("the service has started, with version %d", self.writer.published.number)

    def stop(self) -> bool:
        """Finish what is queued within a limit, and let go of the store; return whether all was done."""
        self.started = False
        self.predictor.stop()
        done = self.writer.stop(self.settings.stop_timeout)
        self.refusals.write()
        self.audit.soon({"action": "stop", "finished": done})
        self.audit.close()
        for threads in (self._threads, self._ledger_threads, self._network_threads):
            threads.stop()
        self.readers.stop()
        self.checker.stop()
        LOG.info("the service has stopped" if done else "the service has stopped before all was done")
        return done

    def _start_apart(self, opened: Store) -> None:
        settings = self.settings
        each = {"memory": settings.reading_memory, "seconds": settings.reading_timeout}
        bounds = each | {"bounds": self.bounds.as_json()}
        self.readers = Apart(bounds, settings.reading_processes, settings.reading_waiting)
        chain = each | {"certificates": str(opened.folder / "certificates"), "key": opened.description.public_key}
        self.checker = Apart(chain, 1, settings.verify_waiting)

    def opened(self) -> Store:
        """Return the store, or refuse while it is not open."""
        found = self.writer.store
        if found is None:
            raise Refusal("unavailable", "the store cannot be used now: try again in a moment", wait=2)
        return found

    def wrong(self) -> list[str]:
        """Return what keeps the service from its work, or from its promises; nothing if all is well."""
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
            (
                self.writer.stalled(),
                "a change has been under way for minutes: does the ledger's database answer?",
            ),
            (self.readers.stalled(), "a process that reads bodies does not answer"),
            (self.checker.stalled(), "the process that checks certificates does not answer"),
            (self.predictor.stalled(), "predictions do not come"),
        ):
            found += [words] if stalled else []
        return found

    def _open(self) -> Store:
        return store.open(self.folder, backbone=self._backbone, keys=self._keys, hardware=self._hardware)

    async def in_thread(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Do what takes long, or reads a file, beside the event loop; those who ask take turns."""
        return await self._threads.do(_client(), work, *arguments)

    async def from_ledger(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Read the ledger, in threads of its own: a database may be slow, or locked while it is cleared."""
        return await self._ledger_threads.do(_client(), work, *arguments)

    async def for_many(self, count: int, work: Callable[..., Result], *arguments: Any) -> Result:
        """Do work on so many samples: at once if they are few, and else beside the event loop."""
        return work(*arguments) if count <= _FEW else await self.in_thread(work, *arguments)

    async def prepared(self, samples: list[Any]) -> Prepared:
        """Return the features of samples and what goes with them.

        A network takes long, and has threads of its own. Many samples go through it in parts, and after each part
        others have their turn.
        """
        if self.bounds.kind == "features" or len(samples) <= THROUGH_NETWORK:
            return await self._network_threads.do(_client(), _prepared, self.opened(), samples)
        order, parts = order_of(samples), list[Prepared]()
        for first in range(0, len(order), THROUGH_NETWORK):
            part = [samples[place] for place in order[first : first + THROUGH_NETWORK]]
            where = f"in a part of the request, with {len(part)} samples: "
            parts.append(await self._network_threads.do(_client(), _prepared, self.opened(), part, where))
        return await self.in_thread(_joined, parts, order)

    async def answer(self, content: Any, status: int = 200) -> Response:
        """Return a JSON answer; a long one is written beside the event loop, and counts until the client has it."""
        if not is_long(content):
            return answer(content, status)
        made = await self.in_thread(written, content)
        self.count_answer(len(made))
        return answer(made, status)

    def count_answer(self, size: int) -> None:
        """Count the bytes of an answer until they are written, or refuse; those that were counted before stay."""
        request = ANSWERED.get()
        if request is not None:
            self.made.require_answer(request.scope, client_of(request), size, public=KEY not in request.scope)

    # -- what is sent ------------------------------------------------------------------------------

    @asynccontextmanager
    async def received(self, request: Request, action: str, key: ApiKey) -> AsyncIterator[tuple[bytearray, Given]]:
        """Hand out a body and what it holds, both counted against the key until this is left.

        Parameters
        ----------
        action : {"learn", "predict", "forget"}
        """
        kind = content_type(request, JSON, FORM)
        most = self.settings.max_json if kind == JSON else self.settings.max_body
        self._limit_samples(self.sample_buckets.wait(key.name))  # of one that has none left, nothing is read
        unpacked, rows, share = 0, 0, share_of(ROWS, self.settings.max_waiting_bytes)

        def room(amount: int) -> bool:
            nonlocal unpacked, rows
            if self.bounds.kind != "images":
                rows = amount * (self.bounds.row_bytes if self.bounds.kind == "features" else 1)
                return self.made.take(request.scope, key.name, ROWS, min(rows, share))
            if not self._pixels.take(key.name, amount):
                return False
            unpacked += amount
            return True

        async with self.body(request, key, min(most, self.settings.max_body)) as content:
            try:
                given = await self._read(request, action, key, content, room)
                if action != "predict":  # its features wait for the writer, in a byte each
                    rows += len(given.samples) * self.bounds.n_features
                    taken = partial(self.made.take, request.scope, key.name, ROWS)
                    require_room(taken, min(rows, share))
                yield content, given
            finally:
                self._pixels.give(key.name, unpacked)
                self.made.give(request.scope, ROWS)

    @asynccontextmanager
    async def body(self, request: Request, key: ApiKey | None, most: int) -> AsyncIterator[bytearray]:
        """Hand out a body whose bytes count against the key, or the address.

        They count before they are received, which takes time and room too. Where a request does not say how many they
        are, or says too many, they count as they come, whatever becomes of it. Who has none left is refused before.
        """
        said = declared(request)
        buckets, client = (
            (self.byte_buckets, key.name) if key is not None else (self.public_byte_buckets, address_of(request))
        )
        if said is not None and said <= most:
            wait, count = buckets.take(client, said), None
        else:
            wait, count = buckets.wait(client), partial(buckets.spend, client)
        if wait and said is not None and said > most:
            raise too_large(most)  # waiting would not help
        if wait:
            limit = f"bytes_per_second = {self.settings.bytes_per_second}"
            words = "this address sends too much without a key" if key is None else f"this key sends too much ({limit})"
            raise Refusal("rate_limited", f"{words}: wait as long as Retry-After says", wait=wait)
        async with self.bodies.receiving(request, client_of(request), most, key is None, count) as content:
            yield content

    async def _read(
        self, request: Request, action: str, key: ApiKey, content: bytearray, room: Callable[[int], bool]
    ) -> Given:
        kind = request.headers["content-type"]
        if self.bounds.kind != "images" and _reads_fast(content, kind):
            await self.admitted(request, len(content))
            return READERS[action](bytes(content), kind, self.bounds, partial(require_room, room))
        about, parts = await self.readers.ask(key.name, {"action": action, "content_type": kind}, content, room)
        return await self.in_thread(messages.unpacked, about, parts)

    async def digest_of(self, action: str, content: bytearray, given: Given) -> bytes:
        """Return what stands for the content of a request, for whoever sends it again."""
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

    # -- who asks ----------------------------------------------------------------------------------

    def key_of(self, request: Request) -> ApiKey | None:
        """Return the key of a request; without a good one it counts against its address, and there is none."""
        token = token_of(request) or ""
        key = self.access.find(token, look=False)
        if key is None:
            self.public(request)  # who guesses is slowed down
            key = self.access.find(token)
        if key is not None:
            request.scope[KEY] = key.name
        return key

    def require(self, request: Request, *scopes: str) -> ApiKey:
        """Return the key of a request if it has one of these scopes, or refuse; without a scope, any will do.

        The buckets come first: whatever a request is refused for, it counts, and one too many costs next to nothing.
        """
        key = self.key_of(request)
        if key is None:
            raise Refusal("unauthorized", "send an API key that is good: Authorization: Bearer nsk_...")
        self._count_key(key)
        if scopes and not any(map(key.may, scopes)):
            raise Refusal("forbidden", f"this needs a key with the scope {' or '.join(scopes)}")
        return key

    async def admitted(self, request: Request, size: int = 0) -> None:
        """Wait until it is a request's turn on the event loop; with a size, until that of a body to be read there."""
        if self.started:
            token = token_of(request)
            key = None if token is None else self.access.find(token, look=False)
            client = address_of(request) if key is None else key.name
            await self.gate.enter(client, 1 + size / _STEP)

    def count_early(self, request: Request) -> None:
        """Count a request before its route is looked for, unless its route counts a key."""
        path = request.scope["path"]
        if path in _HEALTH:
            self._count(request, "health_per_second", self.health_buckets)
        elif token_of(request) is None or not path.startswith(_KEYED):
            self.public(request)

    def public(self, request: Request) -> None:
        """Count a request that needs no key, once: against its key if it has a good one, or against its address."""
        if "neverseen.counted" not in request.scope:
            self._count(request, "public_per_second", self.public_buckets)

    def _count(self, request: Request, setting: str, buckets: Buckets) -> None:
        request.scope["neverseen.counted"] = True
        token = token_of(request)
        key = None if token is None else self.access.find(token, look=False)  # who guesses counts below
        if key is not None:
            request.scope[KEY] = key.name
            self._count_key(key)
            return
        wait = buckets.take(address_of(request))
        if wait:
            limit = f"{setting} = {getattr(self.settings, setting):g}"
            words = f"this address asks too often ({limit}): wait as long as Retry-After says"
            raise Refusal("rate_limited", words, wait=wait)

    def _count_key(self, key: ApiKey) -> None:
        wait = self.buckets.take(key.name)
        if wait:
            limit = f"requests_per_second = {self.settings.requests_per_second:g}"
            words = f"this key asks too often ({limit}): wait as long as Retry-After says"
            raise Refusal("rate_limited", words, wait=wait)

    def may_see(self, request: Request, key: ApiKey, row: RequestRow) -> bool:
        """Return whether a request may be shown that was carried out: it is of this key, or the key sees all."""
        if key.may("audit") or row.client == key.name:
            return True
        token = token_of(request)
        return token is not None and row.maker is not None and hmac.compare_digest(row.maker, maker_of(token, row.id))

    def count_samples(self, key: ApiKey, samples: int) -> None:
        """Count samples against a key."""
        self._limit_samples(self.sample_buckets.take(key.name, samples))

    def _limit_samples(self, wait: float) -> None:
        if wait:
            limit = f"samples_per_second = {self.settings.samples_per_second:g}"
            words = f"this key sends too many samples ({limit}): wait as long as Retry-After says"
            raise Refusal("rate_limited", words, wait=wait)

    async def require_room(self, key: ApiKey, labels: list[Any]) -> None:
        """Refuse labels after which there would be too many classes; new ones count against the key.

        What is published counts here. When the request's turn has come, the writer counts what is held.
        """
        try:
            names = await self.for_many(len(labels), texts_of, labels)
        except InputError as error:
            raise Refusal("invalid_request", str(error)) from None
        new = self.room.require_few(self.opened().statistics(), key.name, names)
        wait = self.class_buckets.take(key.name, len(new)) if new else 0.0
        if wait:
            limit = f"classes_per_second = {self.settings.classes_per_second:g}"
            words = f"this key brings too many new classes ({limit}): wait as long as Retry-After says"
            raise Refusal("rate_limited", words, wait=wait)
        self.room.asked(key.name, new)

    # -- changes -----------------------------------------------------------------------------------

    def tag_of(self, request: Request, key: ApiKey) -> bytes | None:
        """Return the tag of a request with an idempotency key."""
        given = request.headers.getlist("idempotency-key")
        if not given:
            return None
        if len(given) > 1 or not _IDEMPOTENCY.fullmatch(given[0]):
            raise Refusal("invalid_request", "Idempotency-Key must be given once, as 1 to 200 visible ASCII characters")
        return self.repetitions.tag(key.name, given[0])

    async def change(self, job: Job) -> Any:
        """Have a job done."""
        return await self.untold(job, self.writer.submit(job))

    async def untold(self, job: Job, work: Awaitable[Any]) -> Any:
        """Wait for work on a job; an answer that must not tell anything takes as long as anything."""
        try:
            return await work
        except Refusal as refusal:
            if refusal.code == "not_found":
                late = (time.monotonic() - job.queued) % _TICK
                await asyncio.sleep(_TICK - late)
            raise

    def view(self, row: RequestRow, key: ApiKey) -> dict[str, Any]:
        """Return a request that is applied, as JSON values. How many samples a class had is for `audit` alone."""
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


def _prepared(opened: Store, samples: list[Any], where: str = "") -> Prepared:
    try:
        return opened.prepare(samples)
    except Exception as error:
        refusal = refusal_of(error, None)
        if refusal is None:
            raise
        refusal.message = where + refusal.message
        raise refusal from None


def _joined(parts: list[Prepared], order: list[int]) -> Prepared:
    """Return samples that were prepared in parts, in the order in which they were sent."""
    return Prepared.joined(parts).only(sorted(range(len(order)), key=order.__getitem__))


def _client() -> str:
    """Return whom the request counts as that is being answered."""
    request = ANSWERED.get()
    return "" if request is None else client_of(request)


def _reads_fast(content: bytearray, content_type: str) -> bool:
    """Return whether a body can be read while everybody waits: it is tiny, or has few values for its size."""
    if len(content) <= _TINY:
        return True
    if len(content) > _SMALL or not content_type.lower().startswith(JSON):
        return False
    return content.count(b",") <= _NUMBERS and all(content.count(mark) <= _PARTS for mark in (b'"', b"[", b"{"))


def token_of(request: Request) -> str | None:
    """Return the token that a request shows, good or not."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def waiting_view(job: Job) -> dict[str, Any]:
    """Return a request that waits, as JSON values."""
    return {
        "id": job.id,
        "kind": FORGET if job.kind == FORGET_SAMPLES else job.kind,
        "state": "queued",
        "samples": None if job.kind == FORGET_CLASS else job.samples,  # it is not known yet
        "applied_at": None,
        "certificate": None,
        "key": job.client,
    }


_IDS, _SECRET = count(), secrets.token_bytes(32)


def new_id() -> str:
    """Return the id of a new request: a number of this process, in a form that tells nobody how many there were."""
    digest = hashlib.blake2b(next(_IDS).to_bytes(8), key=_SECRET, digest_size=12, person=b"neverseen:req")
    return "req_" + digest.hexdigest()


def address_of(request: Request) -> str:
    """Return what a request without a key is counted against: the address, or network, that it comes from."""
    return stranger(request.client.host if request.client else "")


def client_of(request: Request) -> str:
    """Return whom a request counts as that was counted: the name of its key, or its address."""
    return str(request.scope.get(KEY) or address_of(request))


def flag(request: Request, name: str) -> bool:
    """Return a query parameter that is true or false."""
    given = request.query_params.getlist(name)
    if not given:
        return False
    if len(given) > 1 or given[0] not in ("true", "false"):
        raise Refusal("invalid_request", f"the query parameter {name} is true or false")
    return given[0] == "true"


def number(request: Request, name: str, default: int | None, least: int, most: int) -> int | None:
    """Return a query parameter that is a whole number."""
    given = request.query_params.getlist(name)
    if not given:
        return default
    word = given[0]
    if len(given) > 1 or not re.fullmatch(r"[0-9]{1,16}", word, re.ASCII) or not least <= int(word) <= most:
        raise Refusal("invalid_request", f"the query parameter {name} is a whole number from {least} to {most}")
    return int(word)
