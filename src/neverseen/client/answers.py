"""Answers of the service as Python values. Fields of a newer service are ignored, or kept in `raw`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from neverseen.client.samples import Label, receipt_bytes

STATES = ("queued", "applied", "published", "sealed")
"""The states of a request, in order."""


@dataclass(frozen=True)
class Request:
    """A requested change and its progress.

    Attributes
    ----------
    kind : str
        ``"learn"``, ``"forget"`` or ``"forget_class"``.
    state : str
        ``"queued"``; ``"applied"``: on disk; ``"published"``: predictions reflect it; ``"sealed"``: the disk of the
        service holds nothing of the forgotten samples.
    samples : int or None
        None for a class, if the key lacks the scope ``audit``.
    applied_at : str or None
        UTC.
    certificate : int or None
        Number of the certificate that covers it, once it is published.
    key : str or None
        Name of the API key that made the request.
    """

    id: str
    kind: str
    state: str
    samples: int | None
    applied_at: str | None = None
    certificate: int | None = None
    key: str | None = None

    def reached(self, state: str) -> bool:
        """Return whether the request is in this state, or past it."""
        return STATES.index(self.state) >= STATES.index(state)


@dataclass(frozen=True)
class LearnResult:
    """A receipt for each sample, to give to its owner; and the request that learned them."""

    receipts: list[bytes] = field(repr=False)
    request: Request


@dataclass(frozen=True)
class Effect:
    """The effect of a rehearsed forget. Nothing was changed.

    Attributes
    ----------
    samples : int or None
        Number of samples that would be forgotten; None for a class, if the key lacks the scope ``audit``.
    raw : dict
        The whole answer of the service.
    """

    samples: int | None
    raw: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class ModelState:
    """The model, now or without some samples.

    Attributes
    ----------
    accuracy : float or None
        Share of correct predictions for the test samples; None if there are none, or if labels are no classes.
    score : float or None
        How good the predictions are, by `WhatIf.measure`; of classes, the accuracy. None if there are none.
    """

    samples: int
    digest: str
    accuracy: float | None
    score: float | None = None


@dataclass(frozen=True)
class WhatIf:
    """The model now, and the model without some samples.

    Attributes
    ----------
    changed : int or None
        Number of test samples whose prediction differs; None if there are none.
    raw : dict
        The whole answer of the service.
    measure : str
        What the scores measure: ``"accuracy"``, ``"weighted-accuracy"``, ``"mean-jaccard"`` (label sets) or ``"r2"``
        (numbers).
    """

    now: ModelState
    without: ModelState
    changed: int | None
    raw: dict[str, Any] = field(repr=False)
    measure: str = "accuracy"


@dataclass(frozen=True)
class Prediction:
    """The prediction for one sample.

    Attributes
    ----------
    label : str, int or None
        None if the service predicts label sets or numbers.
    scores : dict, or None
        By label, best first, if the service's output mode gives scores. In the mode ``"scores"`` all labels are texts,
        even numbers.
    labels : frozenset, or None
        The predicted labels, if the service predicts label sets.
    numbers : list of float, or None
        If the service predicts numbers.
    """

    label: Label | None
    scores: dict[Label, float] | None = None
    labels: frozenset[Label] | None = None
    numbers: list[float] | None = None

    @property
    def answer(self) -> Any:
        """The label, the set of labels, or the numbers: whatever the service predicts."""
        return next((each for each in (self.labels, self.numbers) if each is not None), self.label)


@dataclass(frozen=True)
class Predictions:
    """Predictions for a batch, all from one published version."""

    version: int
    rows: list[Prediction]

    @property
    def labels(self) -> list[Any]:
        """The label of each sample; its set of labels or its numbers, if the service predicts these."""
        return [row.answer for row in self.rows]


@dataclass(frozen=True)
class Model:
    """A summary of the published model.

    Attributes
    ----------
    version : int
        Number of the published version and of its certificate; 0 if nothing is published.
    raw : dict
        The whole answer of the service: backbone, policy, queue...
    """

    samples: int
    classes: int
    version: int
    digest: str | None
    raw: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class CertificateEntry:
    """One entry of the list of certificates. `raw` is the whole entry as the service sent it."""

    number: int
    time: str
    learned: int
    forgotten: int
    raw: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class Check:
    """A check that the service made."""

    name: str
    passed: bool
    message: str
    seconds: float
    listed_in: int | None = None
    """For ``"mine"``: the certificate that lists the receipt. The sample may have been learned again later."""
    undecided: bool = False
    """Whether the check could not be made, which says nothing against the certificate; it has not passed then."""


def read_request(said: dict[str, Any]) -> Request:
    """Return the request that an answer describes."""
    state = said["state"]
    if state not in STATES:
        raise ValueError(f"the state {str(state)[:40]!r}")
    return Request(
        said["id"],
        said["kind"],
        state,
        _count(said["samples"]),
        said.get("applied_at"),
        said.get("certificate"),
        said.get("key"),
    )


def read_requests(said: dict[str, Any]) -> list[Request]:
    """Return the list of requests."""
    return [read_request(row) for row in said["requests"]]


def read_learned(said: dict[str, Any]) -> LearnResult:
    """Return the receipts and the request of a learn."""
    return LearnResult([receipt_bytes(word) for word in said["receipts"]], read_request(said["request"]))


def read_effect(said: dict[str, Any]) -> Effect:
    """Return the effect found by a rehearsal."""
    effect = dict(said["effect"])
    return Effect(_count(effect["samples"]), effect)


def read_what_if(said: dict[str, Any]) -> WhatIf:
    """Return the two models that an answer compares."""
    states = _state(said["now"]), _state(said["without"])
    return WhatIf(*states, _count(said["changed"]), said, str(said.get("measure", "accuracy")))


def _state(said: dict[str, Any]) -> ModelState:
    of_classes = "score" not in said
    share = said["accuracy" if of_classes else "score"]
    score = None if share is None else float(share)
    return ModelState(int(said["samples"]), str(said["digest"]), score if of_classes else None, score)


def _count(said: Any) -> int | None:
    return None if said is None else int(said)


def read_predictions(said: dict[str, Any]) -> Predictions:
    """Return predictions, in any output mode."""
    return Predictions(int(said["version"]), [_prediction(row) for row in said["predictions"]])


def read_model(said: dict[str, Any]) -> Model:
    """Return the summary of the model."""
    classes = said["classes"]
    count = classes if isinstance(classes, int) else len(classes)
    return Model(int(said["samples"]), count, int(said["version"]), said.get("digest"), said)


def read_entries(said: dict[str, Any]) -> list[CertificateEntry]:
    """Return the list of certificates."""
    return [
        CertificateEntry(int(row["number"]), row["time"], int(row["learned"]), int(row["forgotten"]), row)
        for row in said["certificates"]
    ]


def read_checks(said: dict[str, Any]) -> list[Check]:
    """Return the outcome of each check."""
    return [
        Check(
            row["name"],
            row["passed"] is True,
            str(row["message"]),
            float(row["seconds"]),
            row.get("listed_in"),
            row.get("undecided") is True,
        )
        for row in said["checks"]
    ]


def _prediction(row: dict[str, Any]) -> Prediction:
    scores: dict[Label, float] | None = None
    if row.get("top") is not None:
        scores = {entry["label"]: float(entry["score"]) for entry in row["top"]}
    elif row.get("scores") is not None:
        pairs = ((label, float(score)) for label, score in row["scores"].items())
        scores = dict(sorted(pairs, key=lambda pair: -pair[1]))
    if row.get("numbers") is not None:
        return Prediction(None, numbers=[float(each) for each in row["numbers"]])
    if row.get("labels") is not None:
        return Prediction(None, scores, frozenset(row["labels"]))
    return Prediction(row["label"] if scores is None else next(iter(scores)), scores)
