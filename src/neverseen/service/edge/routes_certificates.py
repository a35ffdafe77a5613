"""Routes about certificates. They hold commitments and counts only: no key is needed."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from neverseen.proof.certificates import State
from neverseen.service.answers import answer
from neverseen.service.core import Service
from neverseen.service.edge.documented import LIMIT, SECURED, SENT, body, route
from neverseen.service.errors import Refusal
from neverseen.service.reception import checks
from neverseen.service.reception.bodies import content_type
from neverseen.service.reception.contents import JSON
from neverseen.service.reception.requests import client_of, number
from neverseen.service.reception.schemas import CertificatesAnswer, PublicKeyAnswer, VerifyAnswer, VerifyBody
from neverseen.service.sharing.turns import Turns

_PUBLIC = ("rate_limited", "unavailable")
_PIECE = 2**15  # bytes read ahead of a slow client
_BEFORE = {
    "name": "before",
    "in": "query",
    "description": "List certificates with smaller numbers.",
    "schema": {"type": "integer", "minimum": 1, "maximum": 2**53},
}
_WHOLE = {
    "description": "The certificate, byte for byte as it is signed.",
    "content": {"application/json": {"schema": {"type": "object", "required": ["format", "number", "signature"]}}},
}
_NUMBER = {
    "name": "certificate_number",
    "in": "path",
    "required": True,
    "schema": {"type": "integer", "minimum": 1, "maximum": 2**53},
    "example": 1,
}


class Certificates:
    """The handlers, which share a service. A worker process makes the checks, since anybody may request them."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._weights = Turns(1, service.settings.verify_waiting - 1)

    @route(
        "GET",
        "/v1/certificates",
        {200: CertificatesAnswer},
        *(*_PUBLIC, "invalid_request", "busy", "too_large"),
        takes=[LIMIT, _BEFORE],
        security=None,
    )
    async def listed(self, request: Request) -> Response:
        """Certificates, newest first."""
        service = self._service
        service.callers.public(request)
        limit = number(request, "limit", 100, 1, 1000) or 100
        newest = service.writer.published.number
        before = number(request, "before", newest + 1, 1, 2**53) or newest + 1
        end = min(before, newest + 1)
        wanted = list(range(end - 1, max(0, end - 1 - limit), -1))
        found, _ = await service.checker.ask(client_of(request), {"list": wanted})
        return await service.answer({"certificates": found["certificates"]})

    @route("GET", "/v1/certificates/key", {200: PublicKeyAnswer}, *_PUBLIC, security=None)
    async def key(self, request: Request) -> Response:
        """Return the public key that checks certificates."""
        self._service.callers.public(request)
        return answer({"key": self._service.opened().description.public_key})

    @route(
        "GET",
        "/v1/certificates/{certificate_number}",
        {200: _WHOLE},
        *(*_PUBLIC, "not_found"),
        takes=[_NUMBER],
        security=None,
    )
    async def one(self, request: Request) -> Response:
        """One certificate, byte for byte."""
        service = self._service
        service.callers.public(request)
        word = str(request.path_params["certificate_number"])
        wanted = int(word) if word.isascii() and word.isdigit() and len(word) <= 16 else 0
        if not 1 <= wanted <= service.writer.published.number:
            raise Refusal("not_found", "there is no such certificate")
        path = checks.certificate_path(service.opened().folder / "certificates", wanted)
        size = await service.in_thread(_size, path)
        if size is None:
            raise Refusal("unavailable", f"certificate {wanted} cannot be read now", wait=60)
        return StreamingResponse(self._pieces(path), headers={"content-length": str(size)}, media_type=JSON)

    async def _pieces(self, path: Path) -> AsyncIterator[bytes]:
        """Yield a file in pieces: it may have many megabytes, and the client may be slow.

        It is open only while a piece is read, so a client that stops reading keeps no file open.
        """
        place = 0
        while piece := await self._service.in_thread(_piece, path, place):
            yield piece
            place += len(piece)

    @route(
        "POST",
        "/v1/verify",
        {200: VerifyAnswer},
        *(*_PUBLIC, *SENT, "unauthorized", "forbidden", "not_found", "queue_full", "stopping"),
        body=body(VerifyBody, {"certificate": 1, "checks": ["signature", "chain"]}),
        security=[{}, *SECURED],
    )
    async def verify(self, request: Request) -> Response:
        """Check a certificate; `weights` needs a key with the scope audit."""
        service, settings = self._service, self._service.settings
        key = service.callers.key_of(request)
        if key is not None:
            service.callers.require(request)
        content_type(request, JSON)
        most = settings.max_public_body if key is None else settings.max_json
        async with service.reception.body(request, key, most) as content:
            audit = "unauthorized" if key is None else "" if key.may("audit") else "forbidden"
            question = {"published": service.writer.published.number, "audit": audit}
            found, _ = await service.checker.ask(client_of(request), question, content)
        client = client_of(request)
        made = [check if len(check) > 1 else await self._check_weights(client, found) for check in found["checks"]]
        return answer({"checks": made})

    async def _check_weights(self, client: str, about: dict[str, Any]) -> dict[str, Any]:
        """Check the weights, one request at a time, and few may wait: changes wait meanwhile."""
        number, after = about["number"], State(**about["after"])
        async with self._weights.turn(client):
            found: dict[str, Any] = await self._service.writer.ask(
                lambda opened: checks.timed("weights", lambda: checks.weights(opened, number, after)), client
            )
        return found


def _size(path: Path) -> int | None:
    """Return the bytes of a file; None if it cannot be opened."""
    try:
        with path.open("rb", buffering=0) as file:
            return os.fstat(file.fileno()).st_size
    except OSError:
        return None


def _piece(path: Path, place: int) -> bytes:
    with path.open("rb", buffering=0) as file:
        file.seek(place)
        return file.read(_PIECE)
