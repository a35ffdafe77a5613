"""Routes about certificates. They hold commitments and counts only: no key is needed."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from neverseen.errors import CertificateRejectedError
from neverseen.service import checks
from neverseen.service.bodies import JSON, content_type, parsed
from neverseen.service.core import Service, answer, number
from neverseen.service.documented import SENT, answers, body
from neverseen.service.errors import Refusal
from neverseen.service.samples import from_base64
from neverseen.service.schemas import CertificatesAnswer, PublicKeyAnswer, VerifyAnswer, VerifyBody

_PUBLIC = ("rate_limited", "unavailable")
_LIMIT = {"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}}
_BEFORE = {
    "name": "before",
    "in": "query",
    "description": "Those with smaller numbers.",
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


def router(service: Service) -> APIRouter:
    """Return the routes."""
    routes = APIRouter()
    certificates = Certificates(service)
    routes.get(
        "/v1/certificates",
        summary="Certificates, newest first",
        responses=answers({200: CertificatesAnswer}, *_PUBLIC, "invalid_request"),
        openapi_extra={"parameters": [_LIMIT, _BEFORE]},
    )(certificates.listed)
    routes.get(
        "/v1/certificates/key",
        summary="The public key that signs them",
        responses=answers({200: PublicKeyAnswer}, *_PUBLIC),
    )(certificates.key)
    routes.get(
        "/v1/certificates/{certificate_number}",
        summary="One certificate, byte for byte",
        responses=answers({}, *_PUBLIC, "not_found") | {200: _WHOLE},
        openapi_extra={"parameters": [_NUMBER]},
    )(certificates.one)
    routes.post(
        "/v1/verify",
        summary="Make checks on a certificate; `weights` needs a key with the scope audit",
        responses=answers(
            {200: VerifyAnswer}, *_PUBLIC, *SENT, "unauthorized", "forbidden", "not_found", "queue_full", "stopping"
        ),
        openapi_extra={
            "requestBody": body(VerifyBody, {"certificate": 1, "checks": ["signature", "chain"]}),
            "security": [{}, {"key": []}],
        },
    )(certificates.verify)
    return routes


class Certificates:
    """The handlers, which share a service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._chain: checks.Chain | None = None
        self._weights = asyncio.Lock()

    def _chain_of(self) -> checks.Chain:
        if self._chain is None:
            opened = self._service.opened()
            self._chain = checks.Chain(opened.folder / "certificates", opened.description.public_key)
        return self._chain

    async def listed(self, request: Request) -> Response:
        """List certificates."""
        service = self._service
        service.public(request)
        limit = number(request, "limit", 100, 1, 1000) or 100
        newest = service.writer.published.number
        before = number(request, "before", newest + 1, 1, 2**53) or newest + 1
        end = min(before, newest + 1)
        chain = self._chain_of()
        wanted = range(end - 1, max(0, end - 1 - limit), -1)
        found = await service.in_thread(lambda: [_summary(chain.get(each)) for each in wanted])
        return answer({"certificates": found})

    async def key(self, request: Request) -> Response:
        """Return the public key."""
        self._service.public(request)
        return answer({"key": self._service.opened().description.public_key})

    async def one(self, request: Request) -> Response:
        """Return the bytes of a certificate."""
        service = self._service
        service.public(request)
        word = str(request.path_params["certificate_number"])
        wanted = int(word) if word.isascii() and word.isdigit() and len(word) <= 16 else 0
        if not 1 <= wanted <= service.writer.published.number:
            raise Refusal("not_found", "there is no such certificate")
        content = await service.in_thread(self._chain_of().path(wanted).read_bytes)
        return Response(content, media_type=JSON)

    async def verify(self, request: Request) -> Response:
        """Make checks."""
        service = self._service
        service.public(request)
        content_type(request, JSON)
        async with service.bodies.reading(request, public=True) as content:
            given = parsed(VerifyBody, content)
        published = service.writer.published.number
        if isinstance(given.certificate, int) and given.certificate > published:
            raise Refusal("not_found", "there is no such certificate")
        if "weights" in given.checks:
            service.require(request, "audit")
        receipt = None if given.receipt is None else from_base64(given.receipt, "receipt", 0)
        chain, public_key = self._chain_of(), service.opened().description.public_key
        found = []
        for name in given.checks:
            if name == "weights":
                found.append(await self._check_weights(given.certificate, chain))
                continue

            def check(name: str = name) -> str:
                certificate = checks.certificate_of(given.certificate, chain)
                if name == "signature":
                    return checks.signature(certificate, public_key)
                if name == "chain":
                    return checks.in_chain(certificate, chain, published)
                return checks.mine(certificate, receipt)

            found.append(await service.in_thread(checks.timed, name, check))
            if name == "mine" and found[-1]["passed"]:
                about = given.certificate
                found[-1]["listed_in"] = about if isinstance(about, int) else about["number"]
        return answer({"checks": found})

    async def _check_weights(self, given: Any, chain: checks.Chain) -> dict[str, Any]:
        """Check the weights, one at a time."""
        try:
            certificate = await self._service.in_thread(checks.certificate_of, given, chain)
        except CertificateRejectedError as error:
            return {"name": "weights", "passed": False, "message": str(error), "seconds": 0.0}
        async with self._weights:
            found: dict[str, Any] = await self._service.writer.ask(
                lambda opened: checks.timed("weights", lambda: checks.weights(opened, certificate))
            )
        return found


def _summary(certificate: Any) -> dict[str, Any]:
    return {
        "number": certificate.number,
        "time": certificate.time,
        "learned": certificate.learned,
        "forgotten": certificate.forgotten,
        "samples": certificate.after.samples,
        "classes": certificate.after.classes,
    }
