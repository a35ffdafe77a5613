"""Routes that change the model: learn, forget, publish, seal."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from neverseen.holdings import FORGET, FORGET_CLASS, LEARN
from neverseen.service.answers import answer, written
from neverseen.service.core import Service
from neverseen.service.edge.documented import BELOW_MIN_BATCH, CHANGED, DRY_RUN, IDEMPOTENCY, KEYED, SENT, body, route
from neverseen.service.edge.documented import form as documented_form
from neverseen.service.errors import Refusal
from neverseen.service.reception.access import ApiKey, maker_of
from neverseen.service.reception.bodies import content_type
from neverseen.service.reception.contents import JSON, Given, parsed, sample_ids
from neverseen.service.reception.requests import flag, token_of
from neverseen.service.reception.schemas import (
    EXAMPLE_RECEIPT,
    CertificateAnswer,
    ClassBody,
    EffectAnswer,
    ForgetBody,
    LearnAnswer,
    LearnBody,
    RequestAnswer,
)
from neverseen.service.writer.applying import is_known, reused
from neverseen.service.writer.jobs import ASK, FORGET_SAMPLES, Applied, Job, LearnSamples, SampleList
from neverseen.service.writer.rehearsing import effect_of_class, effect_of_receipts, effect_of_samples
from neverseen.store import Store

_RECEIPT = 200  # bytes of a receipt besides features, label, id and owner, about
_CLASS_BODY = 2**11  # bytes: a label of 150 letters, each written as two escapes; and of bodies that are not read
_FILES = {"type": "array", "items": {"type": "string", "format": "binary"}, "minItems": 1}
_LEARN_FORM = documented_form(
    ["files", "labels"],
    files=_FILES | {"description": "Images, in order."},
    labels={"type": "string", "description": 'JSON list, such as ["cat", "dog"].', "contentMediaType": JSON},
    ids={"type": "string", "description": "JSON list.", "contentMediaType": JSON},
    owner={"type": "string"},
)
_LEARNED = ("id_taken", "receipts_gone", "limit_reached", "too_many_classes", "no_room")
_HELD = ("not_found", "not_learned", "features_moved", "receipt_rejected", "already_forgotten", "ambiguous")
_OPERATED = ("batch_too_small", "queue_full", "unavailable", "stopping")
_FORGET_FORM = documented_form(
    ["receipts"],
    receipts={
        "type": "string",
        "format": "binary",
        "minLength": 1,
        "description": "A file of receipts, in the form that learn writes.",
    },
)


class Changing:
    """The handlers, which share a service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    # -- learning ----------------------------------------------------------------------------------

    @route(
        "POST",
        "/v1/samples",
        {201: LearnAnswer},
        *(*KEYED, *SENT, *CHANGED, *_LEARNED),
        takes=[IDEMPOTENCY],
        body=body(LearnBody, {}, _LEARN_FORM),
        status_code=201,
    )
    async def learn(self, request: Request) -> Response:
        """Learn samples, all or none; returns their receipts."""
        service = self._service
        key = service.callers.require(request, "learn")
        tag = service.tag_of(request, key)
        async with service.reception.received(request, "learn", key) as (content, given):
            labels, ids, owner = given.labels, given.ids, key.owner_of(given.owner)
            service.callers.count_samples(key, len(labels))
            if tag is None or not await service.from_ledger(is_known, service.opened(), tag):
                await service.require_room(key, labels)  # what was learned already has its room
            digest = await service.digest_of("learn", content, given)
            size = await service.for_many(len(labels), _receipts_size, given, owner, service.bounds.n_features)
            service.count_answer(size)  # now: what was learned is answered with its receipts, whatever they take

            async def work() -> Applied:
                prepared = await service.prepared(given.samples)
                payload = LearnSamples(prepared, labels, ids, owner)
                job = _job(LEARN, request, key, len(labels), payload, tag, digest)
                done: Applied = await service.change(job)
                return done

            done = await service.repetitions.once(tag, digest, work)
        receipts = done.receipts or []
        return answer(await service.for_made(len(receipts), _learned, service.view(done.row, key), receipts), 201)

    # -- forgetting --------------------------------------------------------------------------------

    @route(
        "POST",
        "/v1/forget",
        {200: EffectAnswer, 202: RequestAnswer},
        *(*KEYED, *SENT, *CHANGED, *_HELD),
        takes=[IDEMPOTENCY, DRY_RUN],
        body=body(ForgetBody, {"receipts": [EXAMPLE_RECEIPT]}, _FORGET_FORM),
        status_code=202,
    )
    async def forget(self, request: Request) -> Response:
        """Forget samples, all or none, by receipts or by samples; the answer means that it is on disk."""
        service = self._service
        key = service.callers.require(request, "forget")
        tag = service.tag_of(request, key)
        dry_run = flag(request, "dry_run")
        async with service.reception.received(request, "forget", key) as (content, given):
            service.callers.count_samples(key, len(given))
            digest = await service.digest_of("forget", content, given)
            if given.receipts is None:
                return await self._forget_samples(request, key, given, tag, digest, dry_run)
            receipts, owner = given.receipts, key.owner_of(given.owner)
            job = replace(_job(FORGET, request, key, len(receipts), receipts, tag, digest), owner=owner)
            if dry_run:
                return await self._rehearse(job, lambda opened: effect_of_receipts(opened, receipts, owner))
            return await self._do(job, key)

    async def _forget_samples(
        self, request: Request, key: ApiKey, given: Given, tag: bytes | None, digest: bytes, dry_run: bool
    ) -> Response:
        service = self._service
        labels, ids, owner = given.labels, sample_ids(given.ids), key.owner_of(given.owner)
        prepared = await service.prepared(given.samples)
        payload = SampleList(prepared, labels, ids)
        job = replace(_job(FORGET_SAMPLES, request, key, len(labels), payload, tag, digest), owner=owner)
        if dry_run:
            return await self._rehearse(job, lambda opened: effect_of_samples(opened, payload, owner))
        return await self._do(job, key)

    @route(
        "POST",
        "/v1/forget/class",
        {200: EffectAnswer, 202: RequestAnswer},
        *(*KEYED, *SENT, *CHANGED, "not_learned", "not_tracked"),
        takes=[IDEMPOTENCY, DRY_RUN],
        body=body(ClassBody, {"label": "cat"}),
        status_code=202,
    )
    async def forget_class(self, request: Request) -> Response:
        """Forget every sample of a class, without receipts."""
        service = self._service
        key = service.callers.require(request, "forget")
        if key.owner is not None:
            raise Refusal("forbidden", "a class holds samples of all owners: this needs a key without an owner")
        tag = service.tag_of(request, key)
        dry_run = flag(request, "dry_run")
        content_type(request, JSON)
        async with service.reception.body(request, key, _CLASS_BODY) as content:
            label = parsed(ClassBody, bytes(content)).label
            digest = service.repetitions.body("forget_class", content)
            job = _job(FORGET_CLASS, request, key, 1, label, tag, digest)
            if dry_run:
                published = None if key.may("audit") else service.writer.published.names
                return await self._rehearse(job, lambda opened: effect_of_class(opened, label, published))
            return await self._do(job, key)

    async def _do(self, job: Job, key: ApiKey) -> Response:
        """Have a job done, once."""
        service = self._service
        if job.tag is None:
            done: Applied = await service.change(job)
        else:
            once = service.repetitions.once(job.tag, job.body or b"", lambda: service.writer.submit(job))
            done = await service.untold(job, once)
        return answer({"request": service.view(done.row, key)}, 202)

    async def _rehearse(self, job: Job, question: Callable[[Store], Any]) -> Response:
        """Rehearse a job. An idempotency key that the job could not use is refused too."""

        def asked(opened: Store) -> Any:
            refusal = reused(opened, job)
            if refusal is not None:
                raise refusal
            return question(opened)

        effect = await self._service.change(replace(job, kind=ASK, payload=asked))
        return await self._service.answer({"effect": effect})

    # -- operators ---------------------------------------------------------------------------------

    @route("POST", "/v1/publish", {200: CertificateAnswer}, *(*KEYED, *SENT, *_OPERATED), takes=[BELOW_MIN_BATCH])
    async def publish(self, request: Request) -> Response:
        """Publish all changes now."""
        return await self._operate(request, "publish")

    @route("POST", "/v1/seal", {200: CertificateAnswer}, *(*KEYED, *SENT, *_OPERATED), takes=[BELOW_MIN_BATCH])
    async def seal(self, request: Request) -> Response:
        """Publish, and clear the disk of forgotten samples."""
        return await self._operate(request, "seal")

    async def _operate(self, request: Request, verb: str) -> Response:
        service = self._service
        key = service.callers.require(request, "admin")
        if "idempotency-key" in request.headers:
            words = f"{verb} takes no Idempotency-Key: it never publishes a change twice. Leave it out"
            raise Refusal("invalid_request", words)
        writer, below = service.writer, flag(request, "below_min_batch")
        entry = {"action": verb, "key": key.name, "request": request.scope["neverseen.id"]}
        entry |= {"below_min_batch": True} if below else {}
        async with service.reception.body(
            request, key, _CLASS_BODY
        ):  # nothing is in it; if it is cut off, nothing is done
            number, sealed = await writer.ask(lambda opened: writer.operate(opened, verb, below, entry), key.name)
        return answer({"certificate": number, "sealed": sealed})


def _job(kind: str, request: Request, key: ApiKey, samples: int, payload: Any, tag: bytes | None, digest: bytes) -> Job:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    keyed = digest if tag is not None else None
    made = str(request.scope["neverseen.id"])
    maker = maker_of(token_of(request) or "", made)
    return Job(kind, made, key.name, key.owner, samples, payload, tag, keyed, future, maker=maker)


def _learned(request: dict[str, Any], receipts: list[bytes]) -> bytes:
    """Return the answer to a request to learn."""
    return written({"request": request, "receipts": [base64.urlsafe_b64encode(each).decode() for each in receipts]})


def _receipts_size(given: Given, owner: str | None, n_features: int) -> int:
    """Return an upper estimate of the bytes of receipts in an answer."""
    words = sum(len(name) if name.isascii() else 4 * len(name) for name in map(str, [*given.labels, *given.ids]))
    return (len(given) * (n_features + _RECEIPT + len(owner or "")) + words) * 4 // 3
