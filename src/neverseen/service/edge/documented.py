"""The routes in OpenAPI: bodies, parameters, answers, errors. Each handler has the description of its route."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from neverseen.service.errors import CODES
from neverseen.service.reception.contents import KINDS
from neverseen.service.reception.schemas import (
    EXAMPLE_RECEIPT,
    ClassBody,
    ErrorAnswer,
    ForgetBody,
    LearnBody,
    PredictBody,
    VerifyBody,
    WhatIfBody,
)

Handler = TypeVar("Handler", bound=Callable[..., Any])
_REF = "#/components/schemas/{model}"
_BODIES: tuple[type[BaseModel], ...] = (LearnBody, ForgetBody, ClassBody, PredictBody, VerifyBody, WhatIfBody)
_SAMPLES = ("Sample", "LabelledSample", "TestSample")
_ASKED = {*_SAMPLES, *(model.__name__ for model in _BODIES)}  # what clients send
_ALWAYS = ("internal",)
KEYED = ("unauthorized", "forbidden", "rate_limited")
SENT = ("invalid_json", "timeout", "too_large", "wrong_content_type", "invalid_request", "busy")
CHANGED = ("queue_full", "unavailable", "stopping", "idempotency_conflict", "idempotency_expired")
SECURED: list[dict[str, list[str]]] = [{"key": []}]
_SWITCH = {"in": "query", "schema": {"type": "boolean", "default": False}}
DRY_RUN = {"name": "dry_run", "description": "Report what would be forgotten, and change nothing."} | _SWITCH
LIMIT = {"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}}
BELOW_MIN_BATCH = {
    "name": "below_min_batch",
    "description": "Publish even if fewer than `min_batch` samples have changed.",
} | _SWITCH
IDEMPOTENCY = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "Sent again with the same key and body, a request is done once and gets the same answer.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[!-~]{1,200}$"},
    "example": "order-4711-erasure",
}

_WORDS = {  # descriptions of parameters and fields that have none of their own
    "certificate": "The certificate's number, or the certificate itself.",
    "certificate_number": "The certificate's number, from 1.",
    "checks": "The checks to make, each listed once.",
    "features": "A row of numbers, as many as the model takes.",
    "files": "Images, in order.",
    "id": "The name of the sample, unique for its owner. Give one to all samples of a request, or to none.",
    "image": "The bytes of an image file, in base64.",
    "label": "The class: a text or an integer.",
    "limit": "How many to list.",
    "owner": "The owner of the samples. A key with an owner can leave it out.",
    "receipt": "A receipt, in base64; for the check `mine`.",
    "receipts": "Receipts, in base64.",
    "request_id": "The id of the request, from its answer.",
    "samples": "Samples of the kind that the model takes: features, images or texts.",
    "test": "Samples with their labels, to be predicted with and without those that are left out.",
    "text": "A text.",
}


def route(
    method: str,
    path: str,
    good: dict[int, type[BaseModel] | dict[str, Any]],
    *errors: str,
    takes: Iterable[dict[str, Any]] = (),
    body: dict[str, Any] | None = None,
    security: list[dict[str, list[str]]] | None = SECURED,
    **settings: Any,
) -> Callable[[Handler], Handler]:
    """Describe the handler of a route, for `router_of`. The first line of its docstring is the summary.

    Parameters
    ----------
    good : dict
        The answers of success by their status: models, or descriptions in OpenAPI.
    *errors : str
        Codes of errors.
    takes : iterable of dict
        Parameters in path, query and headers.
    security : list, optional
        None for a route that needs no key.
    **settings
        Of FastAPI.
    """
    extra = {"parameters": list(takes), "requestBody": body, "security": security}
    settings |= {"methods": [method], "responses": _answers(good, *errors)}
    settings["openapi_extra"] = {name: value for name, value in extra.items() if value}

    def described(handler: Handler) -> Handler:
        summary = (handler.__doc__ or "").partition("\n")[0].removesuffix(".")
        handler.route = (path, settings | {"summary": summary})  # type: ignore[attr-defined]
        return handler

    return described


def router_of(handlers: object) -> APIRouter:
    """Return the routes of an object's handlers, in the order of its class."""
    routes = APIRouter()
    for name, value in vars(type(handlers)).items():
        if hasattr(value, "route"):
            path, settings = value.route
            routes.add_api_route(path, getattr(handlers, name), **settings)
    return routes


def queries_of(routers: Iterable[APIRouter]) -> dict[str, set[str]]:
    """Return the query parameters of each path."""
    routes = [each for router in routers for each in router.routes if isinstance(each, APIRoute)]
    takes = {each.path: (each.openapi_extra or {}).get("parameters", []) for each in routes}
    return {path: {each["name"] for each in found if each["in"] == "query"} for path, found in takes.items()}


def _answers(good: dict[int, type[BaseModel] | dict[str, Any]], *codes: str) -> dict[int | str, dict[str, Any]]:
    """Return the answers of a route: success, and its errors."""
    documented: dict[int | str, dict[str, Any]] = {
        status: told if isinstance(told, dict) else {"model": told, "description": (told.__doc__ or "").strip()}
        for status, told in good.items()
    }
    for code in (*codes, *_ALWAYS):
        status, words = CODES[code]
        entry = documented.setdefault(status, {"model": ErrorAnswer, "description": "", "content": {}})
        entry["description"] = f"{entry['description']}\n- `{code}`: {words}".strip()
        examples = entry["content"].setdefault("application/json", {"examples": {}})["examples"]
        examples[code] = {"value": {"error": {"code": code, "message": words}}}
        if status in (429, 503):
            entry["headers"] = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "string"}}}
    return documented


def body(model: type[BaseModel], example: Any, form: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the body of a route: JSON, and for some a form."""
    content: dict[str, Any] = {
        "application/json": {"schema": {"$ref": _REF.format(model=model.__name__)}, "example": example}
    }
    if form is not None:
        content["multipart/form-data"] = form
    return {"required": True, "content": content}


def form(required: list[str], example: Any = None, **fields: dict[str, Any]) -> dict[str, Any]:
    """Return a form's schema."""
    schema = {"type": "object", "required": required, "properties": fields, "additionalProperties": False}
    return {"schema": schema} if example is None else {"schema": schema, "example": example}


def example_sample(kind: str, n_features: int) -> dict[str, Any]:
    """Return an example of a sample for this model."""
    if kind == "features":
        return {"features": [0.5] * n_features}
    return {"image": "iVBORw0KGgo="} if kind == "images" else {"text": "a parcel that never came"}


def document(app: FastAPI, kind: str, n_features: int, max_batch: int) -> dict[str, Any]:
    """Return the OpenAPI document of a service, with samples of its model's kind."""
    made = get_openapi(
        title="neverseen",
        version="1",
        description="Learn, predict, forget exactly, and prove it. Every error has one shape: see ErrorAnswer.",
        routes=app.routes,
    )
    schemas = made.setdefault("components", {}).setdefault("schemas", {})
    _, extra = models_json_schema([(model, "validation") for model in _BODIES], ref_template=_REF)
    schemas |= extra["$defs"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for name, schema in schemas.items():
        _narrow(name, schema, kind, n_features, max_batch)
        if name in _ASKED:
            _describe(schema["properties"])
    for route in (route for methods in made["paths"].values() for route in methods.values()):
        _describe({each["name"]: each for each in route.get("parameters", [])})
        for content in route.get("requestBody", {}).get("content", {}).values():
            _describe(content["schema"].get("properties", {}))
    made["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    sample = example_sample(kind, n_features)
    if kind != "images":  # files are images
        for path in ("/v1/samples", "/v1/predict"):
            del made["paths"][path]["post"]["requestBody"]["content"]["multipart/form-data"]
    _set_example(made, "/v1/samples", {"samples": [sample | {"label": "cat", "id": "photo-1"}]})
    _set_example(made, "/v1/forget", {"receipts": [EXAMPLE_RECEIPT]})
    _set_example(made, "/v1/predict", {"samples": [sample]})
    _set_example(made, "/v1/what-if", {"receipts": [EXAMPLE_RECEIPT], "test": [sample | {"label": "cat"}]})
    return made


def _describe(fields: dict[str, dict[str, Any]]) -> None:
    """Describe each field that has no description."""
    for name, field in fields.items():
        if name in _WORDS:
            field.setdefault("description", _WORDS[name])


def _set_example(made: dict[str, Any], path: str, example: Any) -> None:
    made["paths"][path]["post"]["requestBody"]["content"]["application/json"]["example"] = example


def _narrow(name: str, schema: dict[str, Any], kind: str, n_features: int, max_batch: int) -> None:
    """Add the limits of validators to a schema."""
    properties = schema.get("properties", {})
    if name in _ASKED:
        for field in properties.values():
            field.pop("default", None)
    if name in _SAMPLES:
        wanted = KINDS[kind]
        for other in set(KINDS.values()) - {wanted}:
            properties.pop(other)
        schema["required"] = sorted({*schema.get("required", []), wanted})
        if wanted == "features":
            properties["features"] |= {"minItems": n_features, "maxItems": n_features}
    if name in ("LearnBody", "ForgetBody", "PredictBody", "WhatIfBody"):
        for field in ("samples", "receipts", "test"):
            if field in properties:
                properties[field]["maxItems"] = max_batch
    if name in ("ForgetBody", "WhatIfBody"):
        schema["oneOf"] = [{"required": ["receipts"]}, {"required": ["samples"]}]
