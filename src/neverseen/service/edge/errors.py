"""One form for all error answers, and the answer to each error of the package."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response

from neverseen.errors import (
    AlreadyForgottenError,
    ConfigurationError,
    InputError,
    LimitError,
    NotLearnedError,
    NotPublishedError,
    ReceiptRejectedError,
)
from neverseen.service.edge.limits import whole_seconds

CODES: dict[str, tuple[int, str]] = {
    "invalid_json": (400, "The body is not JSON in UTF-8, or is nested too deeply."),
    "unauthorized": (401, "API key missing or invalid."),
    "forbidden": (403, "The key lacks the scope, or belongs to another owner."),
    "not_found": (404, "Not found, or not visible to this key."),
    "not_learned": (404, "The model does not hold this sample or class."),
    "features_moved": (
        404,
        "The sample was learned, but the backbone now computes different features. Use its receipt.",
    ),
    "receipt_rejected": (404, "The receipt cannot be used: it is altered, foreign, incomplete or of a dropped key."),
    "method_not_allowed": (405, "The path does not support this method."),
    "timeout": (408, "The body arrived too late or too slowly."),
    "already_forgotten": (409, "The receipt was used before. No sample is held under it."),
    "id_taken": (409, "The id belongs to a held sample, or appears twice."),
    "ambiguous": (409, "The sample was learned several times. Add its id, or send its receipt."),
    "idempotency_conflict": (409, "The idempotency key was used for another request."),
    "idempotency_expired": (
        409,
        "The idempotency key was used before a seal. Its request can no longer be compared, so nothing is done.",
    ),
    "receipts_gone": (409, "The request was made before, and its receipts cannot be made again."),
    "not_tracked": (409, "The store does not keep sums for each class."),
    "batch_too_small": (409, "Fewer than `min_batch` samples have changed."),
    "nothing_published": (409, "No version is published yet."),
    "too_large": (413, "The body, or its unpacked content, is larger than allowed."),
    "wrong_content_type": (415, "The body is neither JSON nor a form."),
    "invalid_request": (422, "The body, the query or a header is invalid."),
    "limit_reached": (422, "The model cannot hold more."),
    "too_many_classes": (422, "The request has too many new classes, or the model would have too many."),
    "rate_limited": (429, "Too many requests from this key or address. Wait as long as Retry-After says."),
    "queue_full": (429, "The writer's queue is full. Wait as long as Retry-After says."),
    "internal": (500, "A bug in the service."),
    "busy": (503, "The service is busy. Wait as long as Retry-After says."),
    "unavailable": (503, "The store cannot be written now. You can send a request with an idempotency key again."),
    "stopping": (503, "The service is stopping. You can send a request with an idempotency key again."),
    "no_room": (507, "The service has too little memory to publish a model with so many classes."),
}
"""Each code, with its status and what it means."""


class Refusal(Exception):  # noqa: N818
    """A request that is not done, and what its sender is told.

    Parameters
    ----------
    code : str
        Of `CODES`.
    message : str
        One sentence that says what to do.
    row : int, optional
        Place in the request of the sample or receipt that it is about.
    reason : str, optional
        Of a receipt that is rejected; see `ReceiptRejectedError`.
    wait : float, optional
        Seconds after which to try again.
    request : str, optional
        Id of the earlier request that this one is taken for.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        row: int | None = None,
        certificate: int | None = None,
        reason: str | None = None,
        wait: float | None = None,
        request: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code, self.message, self.row = code, message, row
        self.certificate, self.reason, self.wait, self.request = certificate, reason, wait, request

    @property
    def status(self) -> int:
        """The status of HTTP."""
        return CODES[self.code][0]

    def as_arguments(self) -> dict[str, Any]:
        """Return what it is made of, as JSON values."""
        names = ("code", "message", "row", "certificate", "reason", "wait", "request")
        return {name: getattr(self, name) for name in names}

    def response(self, close: bool = False) -> Response:
        """Return the answer; `close` says that the connection is not used again."""
        about: dict[str, Any] = {"code": self.code, "message": self.message}
        for name in ("row", "certificate", "reason", "request"):
            if getattr(self, name) is not None:
                about[name] = getattr(self, name)
        headers = {} if self.wait is None else {"Retry-After": whole_seconds(self.wait)}
        if self.code == "unauthorized":
            headers["WWW-Authenticate"] = "Bearer"
        if close:
            headers["Connection"] = "close"
        return Response(json.dumps({"error": about}), self.status, headers, "application/json")


NOT_FOUND = "no such sample, or this key may not forget it"


def too_much() -> Refusal:
    """Return the answer to a request that takes too much memory or time to read."""
    return Refusal("too_large", "the request takes too much memory or time to read: send less at a time")


def hidden(row: int | None) -> Refusal:
    """Return the one answer to a key that may not know why."""
    return Refusal("not_found", NOT_FOUND, row=row)


def refusal_of(error: BaseException, owner: str | None) -> Refusal | None:
    """Return the answer to a request that the store refused; None if the request was not at fault.

    A key that has an owner is told nothing that it may not know.
    """
    match error:
        case Refusal():
            return error
        case AlreadyForgottenError():
            words = (
                f"receipt {error.row} was used already: certificate {error.certificate} lists it as forgotten. If its "
                "sample was learned again since, use its new receipt"
            )
            return Refusal(error.code, words, row=error.row, certificate=error.certificate)
        case ReceiptRejectedError() if error.reason == "repeated":
            words = f"receipt {error.row} is listed twice: list each once"
            return Refusal("invalid_request", words, row=error.row)
        case ReceiptRejectedError() if error.reason == "used":
            words = (
                f"receipt {error.row} was used already: no sample is held under it. The next certificate will list it, "
                "if it was forgotten just now"
            )
            return Refusal("already_forgotten", words, row=error.row)
        case ReceiptRejectedError():
            if owner is not None:
                return hidden(error.row)
            return Refusal(error.code, str(error), row=error.row, reason=error.reason)
        case NotLearnedError():
            row = error.rows[0] if error.rows else None
            if owner is not None:
                return hidden(row)
            return Refusal(error.code, str(error), row=row)
        case NotPublishedError():
            return Refusal(error.code, "nothing is published yet: learn something, and wait for its publication")
        case InputError() | LimitError():
            code = error.code if error.code in CODES else InputError.code  # a subclass of the operator's
            return Refusal(code, str(error), row=getattr(error, "row", None))
        case ConfigurationError():
            return Refusal("unavailable", f"the service is not set up for this: {error}", wait=60)
    return None
