"""`Service`: the parts of a running service, and what its routes share."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from neverseen import store
from neverseen.backbones import Backbone
from neverseen.keys import Keyring
from neverseen.ledger import RequestRow
from neverseen.service import messages
from neverseen.service.access import ApiKey, KeyFile
from neverseen.service.apart import Apart
from neverseen.service.audit import AuditLog
from neverseen.service.bodies import Bodies, content_type
from neverseen.service.contents import FORM, JSON, READERS, Bounds, Given
from neverseen.service.errors import Refusal
from neverseen.service.history import History, Probe
from neverseen.service.idempotency import Repetitions
from neverseen.service.jobs import FORGET, FORGET_SAMPLES, Job
from neverseen.service.limits import Buckets
from neverseen.service.metrics import Metrics
from neverseen.service.predicting import Predictor
from neverseen.service.publishing import Publisher
from neverseen.service.queue import Writer, audited
from neverseen.service.room import Room
from neverseen.service.samples import bounds_of
from neverseen.service.settings import Settings, service_folder
from neverseen.store import Store

Result = TypeVar("Result")
_SMALL = 2**15  # bytes of a body that is read at once: a few milliseconds at most
_TICK = 0.05  # seconds; answers that must not tell anything come at multiples of this
_IDEMPOTENCY = re.compile(r"[!-~]{1,200}")


class Service:
    """All that a running service is made of.

    Parameters
    ----------
    folder : Path
        The store's folder.
    settings : Settings
    backbone : Backbone, optional
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
        self.folder, self.settings = folder, settings
        self._backbone, self._keys, self._clock, self._hardware = backbone, keys, clock, hardware
        self.metrics = Metrics()
        self.buckets = Buckets(settings.requests_per_second, settings.request_burst)
        self.sample_buckets = Buckets(settings.samples_per_second, settings.sample_burst)
        self.public_buckets = Buckets(settings.public_per_second, settings.public_burst)
        self.public_byte_buckets = Buckets(settings.public_bytes_per_second, settings.public_bytes_burst)
        self.bodies = Bodies(settings)
        self._pixels = Room(settings.max_waiting_pixels, settings.max_waiting_pixels // 2)
        self.access: KeyFile
        self.audit: AuditLog
        self.history: History
        self.repetitions: Repetitions
        self.writer: Writer
        self.bounds: Bounds
        self.readers: Apart
        self.checker: Apart
        self.predictor: Predictor
        self.pool: ThreadPoolExecutor
        self.started = False

    def start(self) -> None:
        """Open the store, and start all threads."""
        place = service_folder(self.folder)
        self.access = KeyFile(place)
        self.access.all()  # a file that cannot be used is told now
        self.history = History(place, self.settings.history_points)
        self.repetitions = Repetitions(place)
        self.audit = AuditLog(place)
        publisher = Publisher(self.history, self.metrics, lambda size: Probe(place, size))
        self.writer = Writer(self._open, self.settings, self.audit, self.metrics, publisher, self._clock)
        try:
            self.writer.start()
            opened = self.opened()
            opened._writer()._require_keys()
            known = self.audit.known("request")
            lost = [row for row in opened._open_ledger().requests(20_000) if row.id not in known]
            self.audit.append([entry | {"recovered": True} for entry in audited(reversed(lost))])
            self.audit.append([{"action": "start", "version": self.writer.published.number}])
            self.bounds = bounds_of(opened.backbone, self.settings)
            self._start_apart(opened)
            self.predictor = Predictor(
                opened.backbone, lambda: self.writer.published, self.settings, self.metrics, self.history
            )
            self.pool = ThreadPoolExecutor(4, "service")
        except BaseException:
            self.writer.stop(self.settings.stop_timeout)
            self.audit.close()
            raise
        self.started = True

    def stop(self) -> bool:
        """Finish what is queued within a limit, and let go of the store; return whether all was done."""
        self.started = False
        self.predictor.stop()
        done = self.writer.stop(self.settings.stop_timeout)
        self.audit.soon({"action": "stop", "finished": done})
        self.audit.close()
        self.pool.shutdown(wait=False, cancel_futures=True)
        self.readers.stop()
        self.checker.stop()
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

    def _open(self) -> Store:
        return store.open(self.folder, backbone=self._backbone, keys=self._keys, hardware=self._hardware)

    async def in_thread(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Do what takes long, or reads the disk, beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self.pool, work, *arguments)

    # -- what is sent ------------------------------------------------------------------------------

    @asynccontextmanager
    async def received(self, request: Request, action: str, key: ApiKey) -> AsyncIterator[tuple[bytearray, Given]]:
        """Hand out a body and what it holds, both counted against the key until this is left.

        Parameters
        ----------
        request : Request
        action : {"learn", "predict", "forget"}
        key : ApiKey
        """
        kind = content_type(request, JSON, FORM)
        most = self.settings.max_json if kind == JSON else self.settings.max_body
        unpacked = 0

        def room(pixels: int) -> bool:
            nonlocal unpacked
            if not self._pixels.take(key.name, pixels):
                return False
            unpacked += pixels
            return True

        async with self.bodies.receiving(request, key.name, min(most, self.settings.max_body)) as content:
            try:
                yield content, await self._read(request, action, key, content, room)
            finally:
                self._pixels.give(key.name, unpacked)

    async def _read(
        self, request: Request, action: str, key: ApiKey, content: bytearray, room: Callable[[int], bool]
    ) -> Given:
        kind = request.headers["content-type"]
        if self.bounds.kind != "images" and len(content) <= _SMALL:
            return READERS[action](bytes(content), kind, self.bounds, lambda pixels: None)
        about, parts = await self.readers.ask(key.name, {"action": action, "content_type": kind}, content, room)
        return messages.unpacked(about, parts)

    async def digest_of(self, action: str, *parts: bytes | bytearray | memoryview) -> bytes:
        """Return what stands for the content of a request, for whoever sends it again."""
        if sum(map(len, parts)) <= _SMALL:
            return self.repetitions.body(action, *parts)
        return await self.in_thread(self.repetitions.body, action, *parts)

    # -- who asks ----------------------------------------------------------------------------------

    def key_of(self, request: Request) -> ApiKey | None:
        """Return the key of a request; None if it shows none, or none that is good."""
        header = request.headers.get("authorization", "")
        scheme, _, token = header.partition(" ")
        if scheme.lower() != "bearer":
            return None
        key = self.access.find(token.strip())
        if key is not None:
            request.scope["neverseen.key"] = key.name
        return key

    def require(self, request: Request, *scopes: str) -> ApiKey:
        """Return the key of a request if it has one of these scopes, or refuse; without a scope, any will do."""
        key = self.key_of(request)
        if key is None:
            self.public(request)  # who guesses is slowed down
            raise Refusal("unauthorized", "send an API key that is good: Authorization: Bearer nsk_...")
        if scopes and not any(map(key.may, scopes)):
            raise Refusal("forbidden", f"this needs a key with the scope {' or '.join(scopes)}")
        wait = self.buckets.take(key.name)
        if wait:
            raise Refusal("rate_limited", "this key asks too often: wait as long as Retry-After says", wait=wait)
        return key

    def public(self, request: Request) -> None:
        """Count a request without a key against its address."""
        wait = self.public_buckets.take(address_of(request))
        if wait:
            raise Refusal("rate_limited", "this address asks too often: wait as long as Retry-After says", wait=wait)

    def count_public_bytes(self, request: Request, size: int) -> None:
        """Count the bytes of a body without a key against its address."""
        wait = self.public_byte_buckets.take(address_of(request), size)
        if wait:
            words = "this address sends too much without a key: wait as long as Retry-After says"
            raise Refusal("rate_limited", words, wait=wait)

    def count_samples(self, key: ApiKey, samples: int) -> None:
        """Count samples against a key."""
        wait = self.sample_buckets.take(key.name, samples)
        if wait:
            raise Refusal(
                "rate_limited", "this key sends too many samples: wait as long as Retry-After says", wait=wait
            )

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

    def view(self, row: RequestRow) -> dict[str, Any]:
        """Return a request that is applied, as JSON values."""
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
            "samples": row.samples,
            "applied_at": f"{at}.{milliseconds:03d}Z",
            "certificate": None if state == "applied" else row.version,
            "key": row.client,
        }


def waiting_view(job: Job) -> dict[str, Any]:
    """Return a request that waits, as JSON values."""
    return {
        "id": job.id,
        "kind": FORGET if job.kind == FORGET_SAMPLES else job.kind,
        "state": "queued",
        "samples": job.samples,
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
    """Return the address that a request comes from."""
    return request.client.host if request.client else ""


def answer(content: Any, status: int = 200) -> Response:
    """Return a JSON answer."""
    return Response(json.dumps(content, separators=(",", ":")), status, media_type="application/json")


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
