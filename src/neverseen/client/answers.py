"""What the service answers, as Python values. Fields that a newer service adds are passed over, or kept in `raw`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from neverseen.client.samples import Label, receipt_bytes

STATES = ("queued", "applied", "published", "sealed")
"""What a request goes through, in this order."""


@dataclass(frozen=True)
class Request:
    """A change that was asked for, and how far it is.

    Attributes
    ----------
    id : str
    kind : str
        ``"learn"``, ``"forget"`` or ``"forget_class"``.
    state : str
        ``"queued"``; ``"applied"``: on disk; ``"published"``: what predictions come from excludes, or includes, it;
        ``"sealed"``: the disk of the service holds nothing more of what was forgotten.
    samples : int or None
        None for a class, if the key has not the scope ``audit``.
    applied_at : str or None
        UTC.
    certificate : int or None
        Number of the certificate that covers it, once it is published.
    key : str or None
        Name of the API key that asked.
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
    """Receipts, one for each sample, to be given to whom the sample belongs; and the request that learned them."""

    receipts: list[bytes] = field(repr=False)
    request: Request


@dataclass(frozen=True)
class Effect:
    """What forgetting would do; nothing was changed.

    Attributes
    ----------
    samples : int or None
        That would go; None for a class, if the key has not the scope ``audit``.
    raw : dict
        All that the service says.
    """

    samples: int | None
    raw: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class Prediction:
    """What the model makes of one sample.

    Attributes
    ----------
    label : str or int
    scores : dict, or None
        By label, best first, as far as the service's output mode gives them. In the mode ``"scores"`` labels are
        texts, also those that are numbers.
    """

    label: Label
    scores: dict[Label, float] | None = None


@dataclass(frozen=True)
class Predictions:
    """Predictions for a batch, all from one published version."""

    version: int
    rows: list[Prediction]

    @property
    def labels(self) -> list[Label]:
        """The label of each sample."""
        return [row.label for row in self.rows]


@dataclass(frozen=True)
class Model:
    """The published model, at a glance.

    Attributes
    ----------
    samples, classes : int
    version : int
        Number of what is published, and of its certificate; 0 if nothing is.
    digest : str or None
    raw : dict
        All that the service says: backbone, policy, queue...
    """

    samples: int
    classes: int
    version: int
    digest: str | None
    raw: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class CertificateEntry:
    """One line of the list of certificates. `raw` is all that the service says of it."""

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
    """Of ``"mine"``: the certificate that lists the receipt. A later one may have learned the sample again."""


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


def read_learned(said: dict[str, Any]) -> LearnResult:
    """Return what learning gave."""
    return LearnResult([receipt_bytes(token) for token in said["receipts"]], read_request(said["request"]))


def read_effect(said: dict[str, Any]) -> Effect:
    """Return what a rehearsal found."""
    effect = dict(said["effect"])
    return Effect(_count(effect["samples"]), effect)


def _count(said: Any) -> int | None:
    return None if said is None else int(said)


def read_predictions(said: dict[str, Any]) -> Predictions:
    """Return predictions, in whichever mode they came."""
    return Predictions(int(said["version"]), [_prediction(row) for row in said["predictions"]])


def read_model(said: dict[str, Any]) -> Model:
    """Return the model at a glance."""
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
        Check(row["name"], row["passed"] is True, str(row["message"]), float(row["seconds"]), row.get("listed_in"))
        for row in said["checks"]
    ]


def _prediction(row: dict[str, Any]) -> Prediction:
    if row.get("top") is not None:
        scores = {entry["label"]: float(entry["score"]) for entry in row["top"]}
    elif row.get("scores") is not None:
        pairs = ((label, float(score)) for label, score in row["scores"].items())
        scores = dict(sorted(pairs, key=lambda pair: -pair[1]))
    else:
        return Prediction(row["label"])
    return Prediction(next(iter(scores)), scores)
