"""Labels that are not classes, in the bodies of requests: sets of labels, numbers, and classes with weights.

A body is checked against the models here instead of those in `schemas`, by the kind of labels that the store learns.
Each label is checked as the store will check it, before anything is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple, cast

from pydantic import BeforeValidator, FailFast, Field, TypeAdapter, create_model

from neverseen.errors import LabelError
from neverseen.labels import text
from neverseen.proof.receipts import TEXT_LIMIT
from neverseen.service.errors import Refusal
from neverseen.service.reception.schemas import Body, ForgetBody, Id, Label, LearnBody, Sample, WhatIfBody
from neverseen.targets import Targets, targets_of

_ABSENT: Any = None  # fields may be left out, but null is no value of theirs


def _whole(value: Any) -> Any:
    """JSON has one kind of number: 2.0 is 2."""
    return int(value) if type(value) is float and value.is_integer() else value


Weight = Annotated[int, Field(strict=True, ge=1, le=1000), BeforeValidator(_whole)]
LabelSet = Annotated[list[Label], FailFast()]
NumberList = Annotated[list[Annotated[float, Field(strict=True, allow_inf_nan=False)]], FailFast()]


class Form(NamedTuple):
    """How labels of one kind come."""

    fields: dict[str, Any]  # of a sample with its label, by their names
    entry: TypeAdapter[Any]  # the labels in a form, a list with an entry for each file
    learn: type[LearnBody]
    forget: type[ForgetBody]
    what_if: type[WhatIfBody]

    def label(self, sample: Any) -> Any:
        """Return the label of a sample, as `Targets.label` takes it."""
        found = [getattr(sample, name) for name in self.fields]
        return found[0] if len(found) == 1 else found


def _form(entry: Any, **fields: Any) -> Form:
    given: dict[str, Any] = {name: (kind, ...) for name, kind in fields.items()}
    labelled = create_model("LabelledSample", __base__=Sample, id=(Id, Field(default=_ABSENT)), **given)
    tested = create_model("TestSample", __base__=Sample, **given)
    some: Any = Annotated[list[labelled], FailFast(), Field(min_length=1)]  # type: ignore[valid-type]
    tests: Any = Annotated[list[tested], FailFast(), Field(min_length=1)]  # type: ignore[valid-type]
    absent: Any = Field(default=_ABSENT)

    def body(base: type[Body], **parts: Any) -> Any:
        return cast(Any, create_model)(base.__name__, __base__=base, **parts)

    return Form(
        fields,
        TypeAdapter(list[entry]),
        body(LearnBody, samples=(some, ...)),
        body(ForgetBody, samples=(some, absent)),
        body(WhatIfBody, samples=(some, absent), test=(tests, absent)),
    )


FORMS = {
    "label-sets": _form(LabelSet, labels=LabelSet),
    "numbers": _form(NumberList, numbers=NumberList),
    "weighted-classes": _form(tuple[Label, Weight], label=Label, weight=Weight),
}
"""How the kinds of labels come that are not classes."""


def form_of(targets: dict[str, Any] | None) -> Form | None:
    """Return how labels come, given `Targets.configuration`; None for classes."""
    return None if targets is None else FORMS[targets["kind"]]


def labels_in(samples: Sequence[Any], targets: dict[str, Any] | None, most: int) -> list[Any]:
    """Return the labels of samples, or refuse them: see `checked`."""
    form = form_of(targets)
    if form is None or targets is None:
        return [sample.label for sample in samples]
    return checked(targets, [form.label(sample) for sample in samples], most)


def checked(targets: dict[str, Any], labels: list[Any], most: int) -> list[Any]:
    """Return labels, or refuse them: too many in all, or one that the store cannot learn. `most` is `max_labels`."""
    count = sum(len(label) for label in labels)
    if count > most:
        words = f"the samples have {count} labels or numbers together, more than {most} (max_labels)"
        raise Refusal("invalid_request", f"{words}: send fewer at a time")
    kind = targets_of(targets)
    for row, label in enumerate(labels):
        _require_usable(kind, label, row)
    return labels


def _require_usable(kind: Targets, label: Any, row: int) -> None:
    try:
        size = len(text(kind.label(label)))
    except LabelError as error:
        raise Refusal("invalid_request", f"sample {row}: {str(error)[:300]}", row=row) from None
    if size > TEXT_LIMIT:
        words = f"the label of sample {row} has {size} bytes in canonical form; at most {TEXT_LIMIT} fit"
        raise Refusal("invalid_request", words, row=row)
