"""Routes that read: predictions, the model, requests, history."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from neverseen.labels import in_class_order
from neverseen.service.answers import answer, labels_of, written
from neverseen.service.core import Service, waiting_view
from neverseen.service.edge.documented import KEYED, LIMIT, SENT, body, route
from neverseen.service.edge.documented import form as documented_form
from neverseen.service.errors import Refusal
from neverseen.service.reception.bodies import content_type
from neverseen.service.reception.contents import JSON, sample_ids
from neverseen.service.reception.requests import client_of, number
from neverseen.service.reception.schemas import (
    HistoryAnswer,
    ModelAnswer,
    PredictAnswer,
    PredictBody,
    RequestAnswer,
    RequestsAnswer,
    WhatIfAnswer,
    WhatIfBody,
)
from neverseen.service.sharing.turns import Turns
from neverseen.service.writer.jobs import SampleList
from neverseen.service.writer.rehearsing import difference, without

_ID = re.compile(r"req_[0-9a-f]{24}", re.ASCII)
_PREDICT_FORM = documented_form(
    ["files"], files={"type": "array", "items": {"type": "string", "format": "binary"}, "minItems": 1}
)
_BEFORE = {
    "name": "before",
    "in": "query",
    "description": "List requests older than this one.",
    "schema": {"type": "string", "pattern": "^req_[0-9a-f]{24}$"},
}
_LEFT = ("not_learned", "features_moved", "receipt_rejected", "already_forgotten", "ambiguous", "not_found")
_REQUEST_ID = {"name": "request_id", "in": "path", "required": True, "schema": {"type": "string"}}


class Reading:
    """The handlers, which share a service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._asking = Turns(1, service.settings.verify_waiting - 1)
        self._listing = Turns(2, service.settings.max_connections)

    @route(
        "POST",
        "/v1/predict",
        {200: PredictAnswer},
        *(*KEYED, *SENT, "nothing_published", "stopping"),
        body=body(PredictBody, {}, _PREDICT_FORM),
    )
    async def predict(self, request: Request) -> Response:
        """Predict the class of each sample."""
        service = self._service
        key = service.callers.require(request, "predict")
        async with service.reception.received(request, "predict", key) as (_, given):
            service.callers.count_samples(key, len(given))
            service.count_answer(service.predictor.answer_size(len(given), service.writer.published))
            found = await service.predictor.predict(given.samples, key.name)
        return await service.answer(found)

    @route(
        "POST",
        "/v1/what-if",
        {200: WhatIfAnswer},
        *(*KEYED, *SENT, *_LEFT, "limit_reached", "queue_full", "unavailable", "stopping"),
        body=body(WhatIfBody, {}),
    )
    async def what_if(self, request: Request) -> Response:
        """Preview a forget: return the model without some samples, and change nothing.

        One request at a time, and few may wait: changes wait meanwhile. Its predictions are made afterwards.
        """
        service = self._service
        key = service.callers.require(request, "audit")
        content_type(request, JSON)
        async with service.reception.received(request, "what_if", key) as (_, given):
            service.callers.count_samples(key, len(given))
            owner, prepared = key.owner_of(given.owner), await service.prepared(given.samples)
            count = len(given.samples) - given.tested
            left: list[bytes] | SampleList | None = given.receipts
            if left is None:
                left = SampleList(prepared.only(range(count)), given.labels[:count], sample_ids(given.ids))
            test, truth = prepared.only(range(count, len(prepared))), given.labels[count:]
            entry: dict[str, Any] = {"action": "what_if", "key": key.name, "outcome": "answered"}
            entry |= {"request": str(request.scope["neverseen.id"]), "samples": len(given) - given.tested}
            async with self._asking.turn(client_of(request)):
                views = await service.asked(key.name, owner, partial(without, given=left, owner=owner), entry)
                found = await service.in_thread(difference, views, test, truth, service.targets)
        return await service.answer(found)

    @route("GET", "/v1/model", {200: ModelAnswer}, *("unauthorized", "rate_limited", "unavailable"))
    async def model(self, request: Request) -> Response:
        """Describe the published model at a glance."""
        service = self._service
        key = service.callers.require(request)
        published, opened, settings = service.writer.published, service.opened(), service.settings
        state = None if published.certificate is None else published.certificate.after
        found: dict[str, Any] = {
            "samples": 0 if state is None else state.samples,
            "classes": len(service.targets.classes(dict.fromkeys(published.names, 0))),
            "version": published.number,
            "digest": published.digest,
            "certificate": published.number or None,
            "backbone": str(opened.description.backbone["name"]),
            "kind": service.bounds.kind,
            "n_features": service.bounds.n_features,
            "gamma": published.version.gamma,
            "effect": settings.effect,
            "output": settings.output,
            "policy": settings.policy(),
            "key": {"name": key.name, "scopes": list(key.scopes), "owner": key.owner},
        }
        if service.bounds.targets is not None:
            found["targets"] = service.bounds.targets
        if key.owner is None and key.may("audit"):  # to others, a count that moves would tell of a lone request
            found |= {
                "queue": len(service.writer),
                "unpublished": service.writer.policy.unpublished,
                "sealed": service.writer.is_sealed(),
            }

            def counted() -> dict[str, Any]:
                targets = service.targets  # the ledger counts by label: of a set, or of a row of numbers
                counts = (
                    opened.ledger.counts() if targets.one_hot else targets.classes(dict(opened.statistics().counts))
                )
                names = in_class_order(counts)
                pairs = zip(labels_of(tuple(names)), names, strict=True)
                return found | {"class_counts": [{"label": label, "samples": counts[name]} for label, name in pairs]}

            return await self._listed(request, counted)
        return await service.answer(found)

    @route("GET", "/v1/history", {200: HistoryAnswer}, *KEYED)
    async def history(self, request: Request) -> Response:
        """Publications and latencies, for charts."""
        self._service.callers.require(request, "audit")
        service = self._service
        written = await service.in_thread(service.history.written)
        service.count_answer(len(written))
        return answer(written)

    @route(
        "GET",
        "/v1/requests",
        {200: RequestsAnswer},
        *(*KEYED, "invalid_request", "not_found", "unavailable"),
        takes=[LIMIT, _BEFORE],
    )
    async def requests(self, request: Request) -> Response:
        """List requests, newest first: a key's own, or with the scope audit everybody's."""
        service = self._service
        key = service.callers.require(request, "learn", "forget", "audit")
        limit = number(request, "limit", 100, 1, 1000) or 100
        before = request.query_params.getlist("before")
        if len(before) > 1 or any(not _ID.fullmatch(word) for word in before):
            raise Refusal("invalid_request", "before must be the id of one request")
        client = None if key.may("audit") else key.name
        ledger = service.opened().ledger
        if before:
            row = await service.from_ledger(ledger.request, before[0])
            if row is None or not service.callers.may_see(request, key, row):
                raise Refusal("not_found", "there is no such request")
        waiting = [] if before else service.writer.waiting(client)
        found = [waiting_view(job) for job in waiting[:limit]]

        def listed() -> dict[str, Any]:
            queued = {entry["id"] for entry in found}
            rows = ledger.requests(limit, before[0] if before else None, client)
            more = [service.view(row, key) for row in rows if row.id not in queued]
            return {"requests": [*found, *more][:limit]}

        return await self._listed(request, listed)

    async def _listed(self, request: Request, made: Callable[[], dict[str, Any]]) -> Response:
        """Answer with a list from the ledger.

        A thousand entries take long to read and to write, and Python runs one thread at a time. So one list is made at
        a time.
        """
        async with self._listing.turn(client_of(request)):
            content = await self._service.from_ledger(lambda: written(made()))
        self._service.count_answer(len(content))
        return answer(content)

    @route(
        "GET",
        "/v1/requests/{request_id}",
        {200: RequestAnswer},
        *(*KEYED, "not_found", "unavailable"),
        takes=[_REQUEST_ID],
    )
    async def request(self, request: Request) -> Response:
        """Show the state of a request."""
        service = self._service
        key = service.callers.require(request, "learn", "forget", "audit")
        wanted = str(request.path_params["request_id"])
        client = None if key.may("audit") else key.name
        if _ID.fullmatch(wanted):
            for job in service.writer.waiting(client):
                if job.id == wanted:
                    return answer({"request": waiting_view(job)})
            row = await service.from_ledger(service.opened().ledger.request, wanted)
            if row is not None and service.callers.may_see(request, key, row):
                return answer({"request": service.view(row, key)})
        raise Refusal("not_found", "there is no such request")
