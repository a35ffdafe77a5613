"""`create_app`: the ASGI application."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from neverseen.backbones import Backbone
from neverseen.proof.keys import Keyring
from neverseen.service.answers import answer
from neverseen.service.core import Service
from neverseen.service.edge import console_files
from neverseen.service.edge.documented import document, queries_of, router_of
from neverseen.service.edge.documented_labels import describe_labels
from neverseen.service.edge.frame import Frame, Handler, front
from neverseen.service.edge.routes_certificates import Certificates
from neverseen.service.edge.routes_changing import Changing
from neverseen.service.edge.routes_health import Health
from neverseen.service.edge.routes_reading import Reading
from neverseen.service.errors import Refusal
from neverseen.service.operations.settings import Settings


def create_app(
    folder: str | os.PathLike[str],
    settings: Settings | None = None,
    *,
    backbone: Backbone | None = None,
    keys: Keyring | None = None,
    clock: Callable[[], float] = time.monotonic,
    hardware: str = "auto",
) -> FastAPI:
    """Return the application of a store's service. The store is open while the application runs.

    Parameters
    ----------
    folder : path
        The store's folder.
    settings : Settings, optional
        By default those in the folder.
    backbone : Backbone, optional
        The store's backbone. Without it, the service cannot compute features of raw samples.
    keys : Keyring, optional
        Needed if they are not in the folder.
    """
    place = Path(folder).absolute()
    service = Service(place, settings or Settings.load(place), backbone, keys, clock, hardware)

    @asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        if not service.started:
            service.start()
        try:
            yield
        finally:
            service.stop()

    app = FastAPI(
        title="neverseen", openapi_url=None, docs_url=None, redoc_url=None, lifespan=running, redirect_slashes=False
    )
    app.state.service = service
    changing, reading = Changing(service), Reading(service)
    routers = [router_of(each) for each in (changing, reading, Certificates(service), Health(service))]
    for router in [*routers, console_files.router()]:
        app.include_router(router)
    direct: dict[str, Handler] = {"/v1/forget": changing.forget, "/v1/predict": reading.predict}
    queries = queries_of(routers)
    app.add_middleware(Frame, service=service, direct=direct, queries=queries)
    app.state.front = front(app, Frame(app, service, direct, queries))

    async def http_error(request: Request, error: Exception) -> Response:
        service.callers.public(request)  # unknown paths count against the rate limit too
        return _http_error(error)

    app.add_exception_handler(HTTPException, http_error)
    made: list[Response] = []

    async def openapi(request: Request) -> Response:
        service.callers.public(request)
        if not made:
            bounds = service.bounds
            described = document(app, bounds.kind, bounds.n_features, service.settings.max_batch)
            if bounds.targets is not None:
                describe_labels(described, bounds.targets, bounds.max_labels)
            made.append(answer(described))
        return made[0]

    app.add_route("/openapi.json", openapi, include_in_schema=False)
    return app


def _http_error(error: Exception) -> Response:
    """Answer refusals of the framework in the common form of errors."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    if status == 405:
        response = Refusal("method_not_allowed", "this path does not support this method").response()
        allowed = getattr(error, "headers", None) or {}
        response.headers.update(allowed)
        return response
    if status == 404:
        return Refusal("not_found", "unknown path").response()
    code = "invalid_request" if status < 500 else "internal"
    return Refusal(code, "the request cannot be understood" if status < 500 else "the service failed").response()
