"""Routes for operators: health and metrics."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from neverseen.service.answers import answer
from neverseen.service.core import Service
from neverseen.service.edge.documented import KEYED, SECURED, answers
from neverseen.service.errors import Refusal
from neverseen.service.reception.schemas import StateAnswer


def router(service: Service) -> APIRouter:
    """Return the routes."""
    routes = APIRouter()

    async def healthz(request: Request) -> Response:
        """Say that the process is alive."""
        return answer({"status": "ok"})

    async def readyz(request: Request) -> Response:
        """Say whether the service can serve requests and keep its promises; if not, which part fails."""
        wrong = service.wrong()
        if wrong:
            raise Refusal("unavailable", "; ".join(wrong), wait=2)
        return answer({"status": "ready"})

    async def metrics(request: Request) -> Response:
        """Return counters for Prometheus. They count single requests, so they need the scope audit."""
        service.callers.require(request, "audit")
        service.metrics.queue.set(len(service.writer))
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

    routes.get(
        "/healthz", summary="Whether the process is alive", responses=answers({200: StateAnswer}, "rate_limited")
    )(healthz)
    routes.get(
        "/readyz",
        summary="Whether the service is ready",
        responses=answers({200: StateAnswer}, "rate_limited", "unavailable"),
    )(readyz)
    plain = {"description": "Counters.", "content": {"text/plain": {"schema": {"type": "string"}}}}
    routes.get(
        "/metrics",
        summary="Counters for Prometheus",
        response_class=PlainTextResponse,
        responses=answers({}, *KEYED) | {200: plain},
        openapi_extra={"security": SECURED},
    )(metrics)
    return routes
