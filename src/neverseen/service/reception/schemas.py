"""The bodies of requests and answers. The OpenAPI description is made from these."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

FLOAT = 3.4028234663852886e38
"""The largest number that features may hold: float32's."""
RECEIPT_PATTERN = "^(?:[A-Za-z0-9+/_-]{4})*(?:[A-Za-z0-9+/_-]{4}|[A-Za-z0-9+/_-]{3}=?|[A-Za-z0-9+/_-]{2}(?:==)?)$"
EXAMPLE_RECEIPT = "TlNSMQAB"
EXAMPLE_REQUEST: dict[str, Any] = {
    "id": "req_0f2c4b6a8d9e1f30",
    "kind": "forget",
    "state": "applied",
    "samples": 1,
    "applied_at": "2026-01-31T12:00:00.125Z",
    "certificate": None,
    "key": "shop",
}


def _whole(value: Any) -> Any:
    """JSON has one kind of number: 2.0 is 2."""
    return int(value) if type(value) is float and value.is_integer() else value


Whole = Annotated[int, Field(strict=True, ge=-(2**53), le=2**53), BeforeValidator(_whole)]
Counting = Annotated[int, Field(strict=True, ge=1, le=2**53), BeforeValidator(_whole)]
Label = Annotated[str, Field(strict=True, min_length=1, max_length=150)] | Whole
Id = Annotated[str, Field(strict=True, min_length=1, max_length=500)]
Owner = Annotated[str, Field(strict=True, pattern=r"^[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}$")]
Number = Annotated[float, Field(ge=-FLOAT, le=FLOAT, allow_inf_nan=False, strict=True)]
# The alphabet is checked when it is decoded: a pattern would take longer than all the rest.
_BASE64 = {"type": "string", "minLength": 2, "pattern": RECEIPT_PATTERN}
Base64 = Annotated[str, Field(strict=True), WithJsonSchema(_BASE64)]
_ABSENT: Any = None  # fields may be left out, but null is no value of theirs


class Body(BaseModel):
    """The body of a request. Unknown fields are rejected."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Sample(Body):
    """One sample: features, an image (the bytes of a file, in base64) or a text, depending on the model."""

    features: Annotated[list[Number], FailFast()] = Field(default=_ABSENT)
    image: Base64 = Field(default=_ABSENT)
    text: str = Field(default=_ABSENT, strict=True)

    @model_validator(mode="after")
    def _one_kind(self) -> Sample:
        if (self.features is None) + (self.image is None) + (self.text is None) != 2:
            raise PydanticCustomError("body", "a sample has one of features, image and text")
        return self


class LabelledSample(Sample):
    """A sample with its label."""

    label: Label
    id: Id = Field(default=_ABSENT)


class LearnBody(Body):
    """Samples to learn."""

    samples: Annotated[list[LabelledSample], FailFast(), Field(min_length=1)]
    owner: Owner = Field(default=_ABSENT)


class ForgetBody(Body):
    """Receipts, or samples with their labels, to forget."""

    receipts: Annotated[list[Base64], FailFast()] = Field(default=_ABSENT, min_length=1)
    samples: Annotated[list[LabelledSample], FailFast()] = Field(default=_ABSENT, min_length=1)
    owner: Owner = Field(default=_ABSENT)

    @model_validator(mode="after")
    def _one_way(self) -> ForgetBody:
        if (self.receipts is None) == (self.samples is None):
            raise PydanticCustomError("body", "give either receipts or samples")
        return self


class TestSample(Sample):
    """A sample to predict, with its label."""

    label: Label


class WhatIfBody(ForgetBody):
    """Receipts, or samples with their labels, to leave out; and samples to predict with both models."""

    test: Annotated[list[TestSample], FailFast()] = Field(default=_ABSENT, min_length=1)


class ClassBody(Body):
    """A class to forget."""

    label: Label


class PredictBody(Body):
    """Samples to predict."""

    samples: Annotated[list[Sample], FailFast(), Field(min_length=1)]


class VerifyBody(Body):
    """A certificate, by number or as a document, and the checks to make."""

    certificate: Counting | dict[str, Any]
    receipt: Base64 = Field(default=_ABSENT)
    checks: Annotated[
        list[Literal["signature", "chain", "mine", "weights"]],
        FailFast(),
        Field(min_length=1, max_length=4, json_schema_extra={"uniqueItems": True}),
    ]

    @model_validator(mode="after")
    def _each_once(self) -> VerifyBody:
        if len(set(self.checks)) != len(self.checks):
            raise PydanticCustomError("body", "list each check once")
        return self


# -- answers -----------------------------------------------------------------------------------------


class Answer(BaseModel):
    """The body of an answer."""


def _example(answer: dict[str, Any]) -> ConfigDict:
    """Return the settings of an answer, with an example for OpenAPI."""
    return ConfigDict(json_schema_extra={"examples": [answer]})


class Problem(Answer):
    """An error."""

    code: str
    message: str
    row: int | None = None
    certificate: int | None = None
    reason: str | None = None
    request: str | None = None


class ErrorAnswer(Answer):
    """The common form of errors."""

    error: Problem


class RequestView(Answer):
    """A request to change the model, and its state."""

    id: str
    kind: Literal["learn", "forget", "forget_class"]
    state: Literal["queued", "applied", "published", "sealed"]
    samples: int | None
    applied_at: str | None
    certificate: int | None
    key: str | None


class LearnAnswer(Answer):
    """Receipts, in the order of the samples. The service keeps no copy."""

    model_config = _example({"request": EXAMPLE_REQUEST | {"kind": "learn"}, "receipts": [EXAMPLE_RECEIPT]})
    request: RequestView
    receipts: list[str]


class RequestAnswer(Answer):
    """A request."""

    model_config = _example({"request": EXAMPLE_REQUEST})
    request: RequestView


class RequestsAnswer(Answer):
    """Requests, newest first."""

    model_config = _example({"requests": [EXAMPLE_REQUEST]})
    requests: list[RequestView]


class ClassCount(Answer):
    """The number of samples of a class."""

    label: Any
    samples: int


class ClassEffect(Answer):
    """Number of samples of a class that would be forgotten; null for all of them, if the key lacks the scope audit."""

    label: Any
    samples: int | None


class Effect(Answer):
    """The samples that would be forgotten."""

    samples: int | None
    classes: list[ClassEffect]


class EffectAnswer(Answer):
    """The effect of a rehearsed forget. Nothing was changed."""

    model_config = _example({"effect": {"samples": 1, "classes": [{"label": "cat", "samples": 1}]}})
    effect: Effect


class ModelState(Answer):
    """The model, now or without some samples. The accuracy is that on the test samples, if there are any."""

    samples: int
    classes: list[ClassCount]
    digest: str
    accuracy: float | None


class WhatIfAnswer(Answer):
    """The model now, and without the samples. Nothing was changed."""

    model_config = _example(
        {
            "now": {
                "samples": 3,
                "classes": [{"label": "cat", "samples": 2}, {"label": "dog", "samples": 1}],
                "digest": "ab" * 32,
                "accuracy": 1.0,
            },
            "without": {
                "samples": 2,
                "classes": [{"label": "cat", "samples": 1}, {"label": "dog", "samples": 1}],
                "digest": "cd" * 32,
                "accuracy": 0.5,
            },
            "changed": 1,
        }
    )
    now: ModelState
    without: ModelState
    changed: int | None
    """Number of test samples whose prediction differs; null without test samples."""


class Scored(Answer):
    """A class with its score."""

    label: Any
    score: float


class Prediction(Answer):
    """The prediction for a sample, in the output mode of the service."""

    label: Any = None
    top: list[Scored] | None = None
    scores: dict[str, float] | None = None


class PredictAnswer(Answer):
    """Predictions of one published version, in the order of the samples."""

    model_config = _example({"version": 3, "predictions": [{"label": "cat"}]})
    version: int
    predictions: list[Prediction]


class KeyView(Answer):
    """The API key of this request."""

    name: str
    scopes: list[str]
    owner: str | None


class PolicyView(Answer):
    """The publishing policy."""

    min_batch: int
    max_delay: float
    publish_below_min_batch: bool
    seal_after: float


class ModelAnswer(Answer):
    """The published model at a glance."""

    model_config = _example(
        {
            "samples": 1200,
            "classes": 10,
            "version": 3,
            "digest": "ab" * 32,
            "certificate": 3,
            "backbone": "efficientnet-lite0",
            "kind": "images",
            "n_features": 1280,
            "gamma": 65536,
            "effect": "published",
            "output": "labels",
            "policy": {"min_batch": 1, "max_delay": 5.0, "publish_below_min_batch": False, "seal_after": 3600.0},
            "key": {"name": "shop", "scopes": ["forget", "learn"], "owner": None},
        }
    )
    samples: int
    classes: int
    version: int
    digest: str
    certificate: int | None
    backbone: str
    kind: Literal["features", "images", "texts"]
    n_features: int
    gamma: int | None
    """Ridge strength of the weights; null if the samples choose it and nothing is published."""
    effect: Literal["published", "immediate"]
    output: Literal["labels", "top-k", "scores"]
    policy: PolicyView
    queue: int | None = None
    unpublished: int | None = None
    sealed: bool | None = None
    class_counts: list[ClassCount] | None = None
    key: KeyView


class HistoryPoint(Answer):
    """A publication."""

    time: str
    version: int
    samples: int
    accuracy: float | None
    apply_seconds: float
    solve_seconds: float


class LatencyPoint(Answer):
    """Seconds that the predictions of one minute took."""

    time: str
    p50: float
    p99: float


class HistoryAnswer(Answer):
    """The data of the charts."""

    model_config = _example(
        {
            "points": [
                {
                    "time": "2026-01-31T12:00:00Z",
                    "version": 3,
                    "samples": 1200,
                    "accuracy": 0.97,
                    "apply_seconds": 0.02,
                    "solve_seconds": 0.4,
                }
            ],
            "latency": [{"time": "2026-01-31T12:00:00Z", "p50": 0.002, "p99": 0.009}],
        }
    )
    points: list[HistoryPoint]
    latency: list[LatencyPoint]


class CertificateSummary(Answer):
    """A certificate in the list."""

    number: int
    time: str
    learned: int
    forgotten: int
    samples: int
    classes: int


class CertificatesAnswer(Answer):
    """Certificates, newest first."""

    model_config = _example(
        {
            "certificates": [
                {
                    "number": 1,
                    "time": "2026-01-31T12:00:00Z",
                    "learned": 1200,
                    "forgotten": 0,
                    "samples": 1200,
                    "classes": 10,
                }
            ]
        }
    )
    certificates: list[CertificateSummary]


class PublicKeyAnswer(Answer):
    """The public key of the certificates."""

    model_config = _example({"key": "ab" * 32})
    key: str


class CheckView(Answer):
    """A check, and its outcome."""

    name: Literal["signature", "chain", "mine", "weights"]
    passed: bool
    message: str
    seconds: float
    undecided: bool = False
    """Whether the check could not be made, which says nothing against the certificate; it has not passed then."""
    listed_in: int | None = None
    """For ``mine``: the certificate that lists the receipt. A later one may have learned the sample again."""


class VerifyAnswer(Answer):
    """Checks, in the order of the request."""

    model_config = _example({"checks": [{"name": "signature", "passed": True, "message": "signed", "seconds": 0.1}]})
    checks: list[CheckView]


class CertificateAnswer(Answer):
    """The newest certificate, after publishing or sealing."""

    model_config = _example({"certificate": 3, "sealed": False})
    certificate: int
    sealed: bool


class StateAnswer(Answer):
    """The health of the service."""

    model_config = _example({"status": "ok"})
    status: str
