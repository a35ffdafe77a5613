"""The sender, the id and the query parameters of a request."""

from __future__ import annotations

import hashlib
import re
import secrets
from contextvars import ContextVar
from itertools import count

from starlette.requests import Request

from neverseen.service.edge.connections import KEY
from neverseen.service.edge.errors import Refusal
from neverseen.service.edge.limits import stranger

ANSWERED: ContextVar[Request | None] = ContextVar("neverseen_answered", default=None)
"""The request that is being answered."""
_IDS, _SECRET = count(), secrets.token_bytes(32)


def new_id() -> str:
    """Return the id of a new request: a number of this process, in a form that tells nobody how many there were."""
    digest = hashlib.blake2b(next(_IDS).to_bytes(8), key=_SECRET, digest_size=12, person=b"neverseen:req")
    return "req_" + digest.hexdigest()


def token_of(request: Request) -> str | None:
    """Return the token that a request shows, good or not."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def address_of(request: Request) -> str:
    """Return the client that a request without a key counts against: its address or network."""
    return stranger(request.client.host if request.client else "")


def client_of(request: Request) -> str:
    """Return the client that a request was counted against: the name of its key, or its address."""
    return str(request.scope.get(KEY) or address_of(request))


def flag(request: Request, name: str) -> bool:
    """Return a query parameter that is true or false."""
    given = request.query_params.getlist(name)
    if not given:
        return False
    if len(given) > 1 or given[0] not in ("true", "false"):
        raise Refusal("invalid_request", f"the query parameter {name} must be true or false")
    return given[0] == "true"


def number(request: Request, name: str, default: int | None, least: int, most: int) -> int | None:
    """Return a query parameter that is a whole number."""
    given = request.query_params.getlist(name)
    if not given:
        return default
    word = given[0]
    if len(given) > 1 or not re.fullmatch(r"[0-9]{1,16}", word, re.ASCII) or not least <= int(word) <= most:
        raise Refusal("invalid_request", f"the query parameter {name} must be a whole number from {least} to {most}")
    return int(word)


def client_answered() -> str:
    """Return the client that the current request counts against."""
    request = ANSWERED.get()
    return "" if request is None else client_of(request)
