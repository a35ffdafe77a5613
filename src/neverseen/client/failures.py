"""Refusals by the service, and failures on the way to it.

::

    NeverseenError
    └── ServiceError                        every error below, and any other answer that is an error
        ├── ReceiptRefusedError             also a ReceiptRejectedError
        │   └── ForgottenAlreadyError       also an AlreadyForgottenError
        ├── NotHeldError                    also a NotLearnedError
        ├── UnreachableError                also a ConnectionError: no answer came
        └── WaitedTooLongError              also a TimeoutError: the request has not reached the state yet

So code that catches the package's own errors works against a service too. No error holds the token.
"""

from __future__ import annotations

from typing import Any

from neverseen.errors import AlreadyForgottenError, NeverseenError, NotLearnedError, ReceiptRejectedError

_UNKNOWN = "unexpected_answer"


class ServiceError(NeverseenError):
    """The service answered with an error, or did not answer.

    Attributes
    ----------
    code : str
        What happened, for programs: ``"rate_limited"``, ``"not_found"``...
    message : str
        What happened, and what to do about it, for people.
    status : int or None
        HTTP status; None if there was no answer.
    row : int or None
        Position of the sample or receipt in the request.
    retry_after : float or None
        Seconds to wait before the next attempt, if the service gave them.
    request_id : str or None
        The id of this exchange in the service's log.
    request : str or None
        Id of the earlier request that used the idempotency key: use it to look up that request.
    idempotency_key : str or None
        The key of a change that may have been carried out although no answer came. Make the same call again with this
        key, and it counts once. For a learn, this is the only way to get the receipts. None if nothing was changed.
    """

    idempotency_key: str | None = None

    def __init__(
        self,
        message: str,
        code: str,
        status: int | None = None,
        row: int | None = None,
        retry_after: float | None = None,
        request_id: str | None = None,
        request: str | None = None,
    ) -> None:
        Exception.__init__(self, message)  # the other bases of a subclass want more
        self.message, self.code, self.status, self.request = message, code, status, request
        self.row, self.retry_after, self.request_id = row, retry_after, request_id

    def __str__(self) -> str:
        return f"{self.message} ({self.code})"


class ReceiptRefusedError(ServiceError, ReceiptRejectedError):
    """The service refuses a receipt. `row` is its position; `reason` is as in `ReceiptRejectedError`."""

    row: int

    def __init__(self, message: str, row: int, reason: str, **about: Any) -> None:
        ServiceError.__init__(self, message, row=row, **about)
        self.reason = reason


class ForgottenAlreadyError(ReceiptRefusedError, AlreadyForgottenError):
    """A receipt was used before: the certificate numbered `certificate` lists it as forgotten.

    If the sample was learned again since, it is held under its new receipt.
    """

    def __init__(self, message: str, row: int, certificate: int, **about: Any) -> None:
        ReceiptRefusedError.__init__(self, message, row, "used", **about)
        self.certificate = certificate


class NotHeldError(ServiceError, NotLearnedError):
    """The service does not hold a sample to forget, or does not tell this API key."""

    def __init__(self, message: str, row: int | None, **about: Any) -> None:
        ServiceError.__init__(self, message, row=row, **about)
        self.rows = () if row is None else (row,)


class UnreachableError(ServiceError, ConnectionError):
    """No answer came: the service is not running, or the connection broke or timed out."""

    def __init__(self, message: str, code: str = "unreachable") -> None:
        super().__init__(message, code)


class WaitedTooLongError(ServiceError, TimeoutError):
    """A request has not reached a state in time. It continues: ask again later."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "waited_too_long")


def from_answer(
    status: int, body: object, retry_after: float | None, request_id: str | None, about: str
) -> ServiceError:
    """Return the error for an answer.

    Parameters
    ----------
    body : object
        The JSON value of the answer; it may be anything.
    about : str
        The request, such as ``"POST /v1/forget"``.
    """
    said = body.get("error") if isinstance(body, dict) else None
    if not isinstance(said, dict) or not isinstance(said.get("code"), str):
        message = f"{about} was answered with status {status}, but not by this service: check the address"
        return ServiceError(message, _UNKNOWN, status, None, retry_after, request_id)
    code, message = said["code"], str(said.get("message", said["code"]))
    row, certificate = _whole(said.get("row")), _whole(said.get("certificate"))
    known: dict[str, Any] = {
        "code": code,
        "status": status,
        "retry_after": retry_after,
        "request_id": request_id,
        "request": said["request"] if isinstance(said.get("request"), str) else None,
    }
    if code == "already_forgotten" and certificate is not None:
        return ForgottenAlreadyError(message, row or 0, certificate, **known)
    if code in ("already_forgotten", "receipt_rejected"):
        reason = "used" if code == "already_forgotten" else str(said.get("reason", "refused"))
        return ReceiptRefusedError(message, row or 0, reason, **known)
    if code in ("not_learned", "features_moved") or (code == "not_found" and row is not None):
        return NotHeldError(message, row, **known)
    return ServiceError(message, row=row, **known)


def unexpected(message: str, status: int | None, request_id: str | None = None) -> ServiceError:
    """Return the error for an answer that does not have the expected form."""
    return ServiceError(message, _UNKNOWN, status, request_id=request_id)


def in_doubt(error: ServiceError, key: str | None) -> ServiceError:
    """Add to an error how to repeat a change that may have been carried out; without a key, return it unchanged."""
    if key is not None:
        error.idempotency_key = key
        error.message += f". It may have been carried out: call again with idempotency_key={key!r}, which counts once"
    return error


def _whole(value: object) -> int | None:
    return value if type(value) is int else None
