"""The OpenAPI document of a service whose labels are not classes: sets of labels, numbers, or classes with weights."""

from __future__ import annotations

from typing import Any

_NAME: dict[str, Any] = {
    "anyOf": [
        {"type": "string", "minLength": 1, "maxLength": 150},
        {"type": "integer", "minimum": -(2**53), "maximum": 2**53},
    ]
}
_LISTED: dict[str, Any] = {"type": "array", "items": {}}
_SCORES: dict[str, Any] = {"type": "object", "additionalProperties": {"type": "number"}}


def describe_labels(made: dict[str, Any], targets: dict[str, Any], max_labels: int) -> None:
    """Put what a service takes and answers into its document, given `Targets.configuration`."""
    schemas, kind = made["components"]["schemas"], targets["kind"]
    fields, example, said = _sent(targets, max_labels)
    for name in ("LabelledSample", "TestSample"):
        schema = schemas[name]
        schema["properties"].pop("label")
        schema["properties"] |= fields
        schema["required"] = sorted({*schema["required"]} - {"label"} | {*fields})
    _change(made["paths"], example)
    schemas["ModelAnswer"]["properties"]["targets"] = {
        "type": "object",
        "description": "What labels are, and its settings.",
        "properties": {"kind": {"const": kind}},
    }
    _to_score(schemas)
    if said:
        schemas["Prediction"]["properties"] = said
        schemas["Prediction"]["required"] = [next(iter(said))]
        schemas["PredictAnswer"]["examples"] = [{"version": 3, "predictions": [example]}]
    form = made["paths"]["/v1/samples"]["post"]["requestBody"]["content"].get("multipart/form-data")
    if form is not None:
        entries = {"label-sets": '[["red", "round"], []]', "numbers": "[[1.5], [2]]"}
        entries["weighted-classes"] = '[["cat", 3], ["dog", 1]]'
        words = f"JSON list with an entry for each file, such as {entries[kind]}."
        form["schema"]["properties"]["labels"]["description"] = words


def _sent(targets: dict[str, Any], max_labels: int) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the fields of a sample that has a label, an example of them, and the fields of a prediction."""
    if targets["kind"] == "label-sets":
        words = "All labels of the sample: a list, which may be empty."
        fields = {"labels": {"type": "array", "items": _NAME, "maxItems": max_labels, "description": words}}
        scored = {"type": "array", "items": {"$ref": "#/components/schemas/Scored"}}
        threshold = {"type": "number", "description": "Labels with at least this score are predicted."}
        answer = {"labels": _LISTED, "top": scored, "scores": _SCORES, "threshold": threshold}
        return fields, {"labels": ["red", "round"]}, answer
    if targets["kind"] == "numbers":
        outputs, limit = targets["outputs"], 2.0 ** (20 - targets["bits"])
        number = {"type": "number", "minimum": -limit, "maximum": limit}
        words = f"The numbers to predict. They are rounded to multiples of {2.0 ** -targets['bits']:g}."
        several = {"type": "array", "items": number, "minItems": outputs, "maxItems": outputs}
        answer = {"numbers": {"type": "array", "items": {"type": "number"}}}
        return {"numbers": several | {"description": words}}, {"numbers": [0.0] * outputs}, answer
    weight = {"type": "integer", "minimum": 1, "maximum": 1000, "description": "How often the sample counts."}
    return {"label": _NAME | {"description": "The class."}, "weight": weight}, {"label": "cat", "weight": 3}, {}


def _change(paths: dict[str, Any], example: dict[str, Any]) -> None:
    """Put the label into the examples of bodies."""
    for path, field in (("/v1/samples", "samples"), ("/v1/what-if", "test")):
        body = paths[path]["post"]["requestBody"]["content"]["application/json"]["example"]
        body[field] = [
            {name: value for name, value in each.items() if name != "label"} | example for each in body[field]
        ]


def _to_score(schemas: dict[str, Any]) -> None:
    """Replace the accuracy of a preview, which is of classes, by a score with its measure."""
    state, answer = schemas["ModelState"], schemas["WhatIfAnswer"]
    state["properties"]["score"] = state["properties"].pop("accuracy")
    state["required"] = [name for name in state["required"] if name != "accuracy"] + ["score"]
    state["description"] = "The model, now or without some samples. The score is that on the test samples, if any."
    answer["properties"]["measure"] = {"type": "string", "description": "What the scores measure."}
    for shown in answer.get("examples", ()):
        shown["measure"] = "r2"
        for side in (shown["now"], shown["without"]):
            side["score"] = side.pop("accuracy")
