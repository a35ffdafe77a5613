"""Routes for operators: health and metrics."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from neverseen.service.answers import answer
from neverseen.service.core import Service
from neverseen.service.edge.documented import KEYED, route
from neverseen.service.errors import Refusal
from neverseen.service.reception.schemas import StateAnswer

_COUNTERS = {"description": "Counters.", "content": {"text/plain": {"schema": {"type": "string"}}}}


class Health:
    """The handlers, which share a service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @route("GET", "/healthz", {200: StateAnswer}, "rate_limited", security=None)
    async def healthz(self, request: Request) -> Response:
        """Whether the process is alive."""
        return answer({"status": "ok"})

    @route("GET", "/readyz", {200: StateAnswer}, *("rate_limited", "unavailable"), security=None)
    async def readyz(self, request: Request) -> Response:
        """Whether the service is ready; if not, which part fails."""
        wrong = self._service.wrong()
        if wrong:
            raise Refusal("unavailable", "; ".join(wrong), wait=2)
        return answer({"status": "ready"})

    @route("GET", "/metrics", {200: _COUNTERS}, *KEYED, response_class=PlainTextResponse)
    async def metrics(self, request: Request) -> Response:
        """Counters for Prometheus. They count single requests, so they need the scope audit."""
        service = self._service
        service.callers.require(request, "audit")
        service.metrics.queue.set(len(service.writer))
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")
