"""One form for all error answers, and the answer to each error of the package."""

from __future__ import annotations

import json
import math
from dataclasses import KW_ONLY, asdict, dataclass
from typing import Any

from starlette.responses import Response

from neverseen.errors import (
    AlreadyForgottenError,
    ConfigurationError,
    InputError,
    LimitError,
    NotLearnedError,
    NotPublishedError,
    NotTrackedError,
    ReceiptRejectedError,
)

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
    "ambiguous": (409, "The sample was learned several times. Add its id and owner, or send its receipt."),
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
    "wrong_content_type": (415, "The body is not plain JSON in UTF-8 or a form."),
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
"""Each code, with its status and meaning."""


@dataclass(eq=False, repr=False)
class Refusal(Exception):  # noqa: N818
    """The refusal of a request: the answer to its sender.

    Parameters
    ----------
    code : str
        One of `CODES`.
    message : str
        One sentence that says what to do.
    row : int, optional
        Position of the sample or receipt in the request.
    reason : str, optional
        Why a receipt is refused; see `ReceiptRejectedError`.
    wait : float, optional
        Seconds after which to try again.
    request : str, optional
        Id of the earlier request with the same idempotency key.
    """

    code: str
    message: str
    _: KW_ONLY
    row: int | None = None
    certificate: int | None = None
    reason: str | None = None
    wait: float | None = None
    request: str | None = None

    def __post_init__(self) -> None:
        super().__init__(self.message)

    @property
    def status(self) -> int:
        """The HTTP status."""
        return CODES[self.code][0]

    def as_arguments(self) -> dict[str, Any]:
        """Return its arguments, as JSON values."""
        return asdict(self)

    def of_part(self, samples: int) -> Refusal:
        """Return the refusal of a part of a request, with rows counted from the start of the part."""
        words = f"in a part of the request, with {samples} samples: {self.message}"
        return Refusal(**self.as_arguments() | {"message": words})

    def response(self, close: bool = False) -> Response:
        """Return the answer; with `close`, the connection is not used again."""
        about = {name: value for name, value in asdict(self).items() if name != "wait" and value is not None}
        headers = {} if self.wait is None else {"Retry-After": str(max(1, math.ceil(self.wait)))}
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
    """Return the answer to a key that may not know the reason. It is always the same."""
    return Refusal("not_found", NOT_FOUND, row=row)


def repeated(row: int) -> Refusal:
    """Return the answer to a request that lists a receipt twice."""
    return Refusal("invalid_request", f"receipt {row} is listed twice: list each once", row=row, reason="repeated")


def not_tracked() -> Refusal:
    """Return the answer to a request to forget a class in a store that keeps no sums for each class."""
    return Refusal("not_tracked", "the store does not keep sums for each class: forget the class's samples")


def receipt_refusal(error: ReceiptRejectedError, owner: str | None, row: int) -> Refusal:
    """Return the answer to a request whose receipt at `row` the store refused; for `owner`, see `refusal_of`."""
    if isinstance(error, AlreadyForgottenError):
        words = (
            f"receipt {row} was used already: certificate {error.certificate} lists it as forgotten. If its sample was "
            "learned again since, use its new receipt"
        )
        return Refusal(error.code, words, row=row, certificate=error.certificate)
    if error.reason == "repeated":
        return repeated(row)
    if error.reason == "used":
        words = (
            f"receipt {row} was used already: no sample is held under it. The next certificate will list it, if it was "
            "forgotten just now"
        )
        return Refusal("already_forgotten", words, row=row)
    if owner is not None:
        return hidden(row)
    return Refusal(error.code, f"receipt {row} {error.fault}", row=row, reason=error.reason)


def refusal_of(error: BaseException, owner: str | None) -> Refusal | None:
    """Return the answer to a request that the store refused; None if the request was not at fault.

    A key with an owner learns nothing about the samples of others.
    """
    match error:
        case Refusal():
            return error
        case ReceiptRejectedError():
            return receipt_refusal(error, owner, error.row)
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
        case NotTrackedError():
            return not_tracked()
        case ConfigurationError():
            return Refusal("unavailable", f"the service is not set up for this: {error}", wait=60)
    return None
