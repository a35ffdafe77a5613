"""Requests to the service and the reading of its answers, without any I/O.

Each conversation is a generator. It yields its next step, `Send` or `Pause`, receives the outcome, and returns the
result. `neverseen.client.clients` carries out the steps, once with threads and once with asyncio. So there is one
logic of retries, errors and polling, and two short loops.
"""

from __future__ import annotations

import json
import math
import random
import secrets
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from neverseen.client import answers
from neverseen.client.failures import (
    ServiceError,
    UnreachableError,
    WaitedTooLongError,
    from_answer,
    in_doubt,
    unexpected,
)
from neverseen.client.samples import receipt_list, sample_list
from neverseen.errors import InputError

if TYPE_CHECKING:
    from neverseen.proof.certificates import Certificate

T = TypeVar("T")


@dataclass(frozen=True)
class Send:
    """One HTTP exchange."""

    method: str
    path: str
    body: dict[str, Any] | None = None  # to be sent as JSON
    query: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    repeatable: bool = True  # whether sending it twice has the same effect as sending it once
    timeout: float | None = None  # seconds without any data, if fewer than the client's

    @property
    def about(self) -> str:
        """A short name, for messages."""
        return f"{self.method} {self.path}"

    def content(self) -> bytes | None:
        """Return the bytes to send."""
        if self.body is None:
            return None
        return json.dumps(self.body, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


@dataclass(frozen=True)
class Pause:
    """A wait."""

    seconds: float


Outcome = httpx.Response | httpx.RequestError | None
Conversation = Generator[Send | Pause, Outcome, T]


@dataclass(frozen=True)
class Retries:
    """The number of retries, and the waits between them.

    The wait doubles each time. Each wait is shortened at random, so that many clients do not return at the same time.
    """

    count: int = 5  # tries after the first
    # seconds: the first wait, and the longest, whatever the service asks for
    first: float = 0.2
    longest: float = 20.0
    # when there is no time left, by this clock
    until: float = math.inf
    clock: Callable[[], float] = time.monotonic

    def wait(self, tries: int, asked: float | None) -> float:
        """Return the seconds to wait before the next try; `asked` is the service's Retry-After."""
        drawn = min(self.longest, self.first * 2.0 ** (tries - 1)) * random.uniform(0.5, 1.0)  # noqa: S311
        return drawn if asked is None else asked + drawn / 4

    def left(self) -> float:
        """Return the seconds that are left."""
        return max(0.0, self.until - self.clock())


class _NoTimeLeft(Exception):  # noqa: N818
    """Another try would come too late; caused by the error of the last."""


def ask(retries: Retries, send: Send, reader: Callable[[dict[str, Any]], T]) -> Conversation[T]:
    """Ask for something; `reader` turns the JSON of the answer into a value."""
    return _read(reader, (yield from _exchange(send, retries)))


def change(
    retries: Retries, path: str, body: dict[str, Any], key: str | None, reader: Callable[[dict[str, Any]], T]
) -> Conversation[T]:
    """Send a change under one idempotency key, with retries. If it may have happened, the error carries the key."""
    key = secrets.token_hex(16) if key is None else key
    try:
        said = yield from _exchange(Send("POST", path, body, headers={_KEY: key}), retries)
        try:
            return _read(reader, said)
        except ServiceError as error:
            raise in_doubt(error, key) from error.__cause__
    except ServiceError:
        raise
    except BaseException as error:  # cancelled or interrupted, perhaps while the answer was read
        error.idempotency_key = key  # type: ignore[attr-defined]
        raise


def forget(
    retries: Retries, path: str, body: dict[str, Any], key: str | None, dry: bool
) -> Conversation[answers.Request | answers.Effect]:
    """Forget what a body names, or rehearse that."""
    if dry:
        headers = {} if key is None else {_KEY: key}
        return (yield from ask(retries, Send("POST", path, body, {"dry_run": "true"}, headers), answers.read_effect))
    return (yield from change(retries, path, body, key, lambda found: answers.read_request(found["request"])))


def held(
    verb: str,
    receipts: Any,
    samples: Any,
    labels: Any,
    ids: Iterable[str] | None,
    owner: str | None,
    numbers: Any = None,
    weights: Any = None,
) -> dict[str, Any]:
    """Return the body of a request about samples that the service holds."""
    if (receipts is None) == (samples is None):
        raise InputError(f"give either receipts or samples: {verb} takes one of the two")
    about = {} if owner is None else {"owner": owner}
    if receipts is not None:
        if any(each is not None for each in (labels, ids, numbers, weights)):
            raise InputError("receipts hold their labels and ids: leave labels and ids out")
        return {"receipts": receipt_list(receipts)} | about
    if labels is None and numbers is None:
        raise InputError("give the labels of the samples too: a sample was learned with its label")
    return {"samples": sample_list(samples, labels, ids, numbers, weights)} | about


def request(retries: Retries, which: str | answers.Request | answers.LearnResult) -> Conversation[answers.Request]:
    """Look at a request."""
    send = Send("GET", f"/v1/requests/{_segment(_request_id(which))}")
    return (yield from ask(retries, send, lambda found: answers.read_request(found.get("request", found))))


def certificate(retries: Retries, number: int) -> Conversation[Certificate]:
    """Get a certificate."""
    from neverseen.proof.certificates import Certificate

    said = yield from _exchange(Send("GET", f"/v1/certificates/{int(number)}"), retries)
    return Certificate.from_json(said.content, f"certificate {int(number)} of the service")


def wait(
    retries: Retries,
    which: str | answers.Request | answers.LearnResult,
    state: str,
    timeout: float,
    clock: Callable[[], float] = time.monotonic,
) -> Conversation[answers.Request]:
    """Poll, less and less often, until a request has reached a state."""
    if state not in answers.STATES:
        raise InputError(f"there is no state {state!r}: the states are {', '.join(answers.STATES)}")
    retries, interval = replace(retries, until=clock() + timeout, clock=clock), 0.05
    told = f"after {timeout:g} seconds: it goes on, wait again"
    while True:
        try:
            found = yield from request(retries, which)
        except _NoTimeLeft as late:
            words = f"the state of request {_request_id(which)} is not known {told} ({late.__cause__})"
            raise WaitedTooLongError(words) from late.__cause__
        if found.reached(state):
            return found
        left = retries.left()
        if not left:
            raise WaitedTooLongError(f"request {found.id} is {found.state} and not {state} {told}")
        yield Pause(min(interval, left))
        interval = min(1.0, 1.5 * interval)


_AGAIN = frozenset({408, 429, 502, 503, 504})
_KEY = "Idempotency-Key"
_LEAST = 1.0  # seconds that an exchange may take, however little time is left


def _exchange(what: Send, retries: Retries) -> Conversation[httpx.Response]:
    """Return the answer to one exchange, or raise its error; retry where that helps and is safe."""
    key = None if "dry_run" in what.query else what.headers.get(_KEY)
    tries, doubt = 0, False  # doubt: an earlier attempt may have been carried out
    while True:
        left = retries.left()
        outcome = yield what if left == math.inf else replace(what, timeout=max(_LEAST, left))
        tries += 1
        if isinstance(outcome, httpx.RequestError):
            # An unsent request can always be sent again.
            unsent = isinstance(outcome, httpx.ConnectError | httpx.ConnectTimeout)
            safe, doubt = what.repeatable or unsent, doubt or not unsent
            why = str(outcome) or type(outcome).__name__
            times = f"{tries} tries" if tries > 1 else "one try"
            failure: ServiceError = UnreachableError(f"{what.about} got no answer in {times}: {why}")
            if not safe or tries > retries.count or isinstance(outcome, httpx.UnsupportedProtocol):
                raise in_doubt(failure, key if doubt else None) from outcome
            yield from _pause(retries, retries.wait(tries, None), failure)
            continue
        response = _answered(outcome)
        if response.is_success:
            return response
        doubt = doubt or response.status_code >= 500
        asked = _retry_after(response)
        safe = what.repeatable or response.status_code in (408, 429)  # refused on arrival: nothing was started
        patient = asked is None or asked <= retries.longest
        failure = from_answer(
            response.status_code, _json_or_none(response), asked, response.headers.get("x-request-id"), what.about
        )
        if response.status_code not in _AGAIN or not safe or not patient or tries > retries.count:
            raise in_doubt(failure, key if doubt else None)
        yield from _pause(retries, retries.wait(tries, asked), failure)


def _pause(retries: Retries, seconds: float, failure: ServiceError) -> Conversation[None]:
    """Wait before the next try; if that comes too late, use up the time that is left and say so."""
    left = retries.left()
    yield Pause(min(seconds, left))
    if seconds >= left:
        raise _NoTimeLeft from failure


def _answered(outcome: Outcome) -> httpx.Response:
    if not isinstance(outcome, httpx.Response):
        raise TypeError("a conversation did not receive the outcome of its step")
    return outcome


def _retry_after(response: httpx.Response) -> float | None:
    """Return the seconds that an answer asks to wait, given as a number or a date."""
    value = response.headers.get("retry-after")
    if value is None:
        return None
    try:
        return max(0.0, float(value)) if value.strip().isdigit() else _until(value)
    except (ValueError, TypeError):
        return None


def _until(date: str) -> float:
    then = parsedate_to_datetime(date)
    return max(0.0, (then - datetime.now(then.tzinfo or UTC)).total_seconds())


def _json_or_none(response: httpx.Response) -> object:
    try:
        return response.json()
    except (ValueError, RecursionError):
        return None


def _read(reader: Callable[[dict[str, Any]], T], response: httpx.Response) -> T:
    """Return the content of an answer; raise if it does not have the expected form."""
    said = _json_or_none(response)
    try:
        if not isinstance(said, dict):
            raise TypeError("it is not a JSON object")
        return reader(said)
    except (KeyError, TypeError, ValueError) as error:
        raise unexpected(
            f"an answer does not have the expected form ({type(error).__name__}: {error}): check the address, and the "
            "versions of client and service",
            response.status_code,
            response.headers.get("x-request-id"),
        ) from error


def page(limit: int, before: str | int | None) -> dict[str, str]:
    """Return the query for one page of a list."""
    return {"limit": str(limit)} | ({} if before is None else {"before": str(before)})


def _request_id(which: str | answers.Request | answers.LearnResult) -> str:
    if isinstance(which, answers.LearnResult):
        return which.request.id
    return which.id if isinstance(which, answers.Request) else which


def _segment(name: str) -> str:
    if not name or not all(letter.isalnum() or letter in "-_" for letter in name) or not name.isascii():
        raise InputError("a request's id has letters, digits, - and _ only: give it as the service gave it")
    return name
