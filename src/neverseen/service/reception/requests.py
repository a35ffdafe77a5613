"""The sender, the id and the query parameters of a request."""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from contextvars import ContextVar
from itertools import count
from typing import Any
from weakref import WeakSet

from starlette.requests import Request

from neverseen.service.errors import Refusal
from neverseen.service.sharing.limits import stranger

KEY = "neverseen.key"
"""Key in the scope of a request: the name of its API key."""
ANSWERED: ContextVar[Request | None] = ContextVar("neverseen_answered", default=None)
"""The request that is being answered."""
_HEADERS = "neverseen.headers"
_IDS, _SECRET = count(), secrets.token_bytes(32)
_SENDING: WeakSet[asyncio.Task[Any]] = WeakSet()


def new_id() -> str:
    """Return the id of a new request. It does not reveal how many requests there were."""
    digest = hashlib.blake2b(next(_IDS).to_bytes(8), key=_SECRET, digest_size=12, person=b"neverseen:req")
    return "req_" + digest.hexdigest()


def note_sending() -> None:
    """Note that the answer to this task's request has begun."""
    task = asyncio.current_task()
    if task is not None:
        _SENDING.add(task)


def is_sending(task: asyncio.Task[Any]) -> bool:
    """Return whether the answer to a task's request has begun."""
    return task in _SENDING


def header(request: Request, name: bytes) -> str | None:
    """Return a header, the first of its name, or None. All are looked through once."""
    found = request.scope.get(_HEADERS)
    if found is None:
        found = request.scope[_HEADERS] = dict(reversed(request.scope["headers"]))
    value = found.get(name)
    return None if value is None else value.decode("latin-1")


def token_of(request: Request) -> str | None:
    """Return the token of a request, valid or not."""
    scheme, _, token = (header(request, b"authorization") or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def address_of(request: Request) -> str:
    """Return the client of a request without a key: its address or network."""
    return stranger(request.client.host if request.client else "")


def client_of(request: Request) -> str:
    """Return the client of a request: the name of its key, or its address."""
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
    """Return the client of the current request."""
    request = ANSWERED.get()
    return "" if request is None else client_of(request)
