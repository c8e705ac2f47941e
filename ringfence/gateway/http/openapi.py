"""OpenAPI document of the gateway, generated from the types of its bodies.

`envoy_schema` describes the bodies of `POST /json`, which are protobuf messages as JSON.
"""

import json
from typing import Any

import msgspec

from ringfence.gateway.http.api_bodies import (
    MSGPACK,
    AcquireLimitRequest,
    AcquireRequest,
    CheckLimitRequest,
    CheckManyRequest,
    CheckRequest,
    DecisionBody,
    DecisionsBody,
    PeekLimitRequest,
    PeekManyRequest,
    PeekRequest,
    RefundLimitRequest,
    RefundRequest,
    ReleaseBody,
    RenewBody,
    ShouldAllowBody,
    ShouldAllowRequest,
    SlotsRequest,
)
from ringfence.gateway.http.envoy_schema import ENVOY_SCHEMAS
from ringfence.gateway.http.http_types import JSON
from ringfence.gateway.process.settings import GatewaySettings
from ringfence.http.too_many_requests_body import PROBLEM_JSON

__all__ = ["document"]

_Json = dict[str, Any]
_REF = "#/components/schemas/{name}"
_TYPES = (
    CheckRequest,
    CheckLimitRequest,
    CheckManyRequest,
    DecisionBody,
    DecisionsBody,
    PeekRequest,
    PeekLimitRequest,
    PeekManyRequest,
    ShouldAllowRequest,
    ShouldAllowBody,
    AcquireRequest,
    AcquireLimitRequest,
    RefundRequest,
    RefundLimitRequest,
    SlotsRequest,
    ReleaseBody,
    RenewBody,
)
_PROBLEM: _Json = {
    "type": "object",
    "description": "Problem details (RFC 9457).",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "retry-after": {"type": "integer"},
        "violated-policies": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["type", "title", "status"],
}
_MISTAKES = {
    "400": "The body or a parameter is wrong; `detail` says where.",
    "408": "The body was not complete in time.",
    "413": "The body is too large, or has too many checks.",
    "415": "The body is neither JSON nor msgpack.",
    "503": "No member of the cluster can answer.",
}
_DENIALS = {
    "401": "The token is missing or unknown.",
    "403": "The token lacks the scope, or a slot token is invalid.",
}


def document(settings: GatewaySettings, *, with_tokens: bool) -> bytes:
    """Generate the OpenAPI document as JSON.

    With `with_tokens`, the document states that requests need a bearer token.
    """
    _, schemas = msgspec.json.schema_components(_TYPES, ref_template=_REF)
    _bound(schemas, settings)
    schemas |= ENVOY_SCHEMAS
    schemas["Problem"] = _PROBLEM
    one, many = _ref("DecisionBody"), _ref("DecisionsBody")
    paths: _Json = {
        "/v1/check": _post(
            "Check, and spend the cost if it is allowed.",
            ["CheckRequest", "CheckManyRequest", "CheckLimitRequest"],
            {"anyOf": [one, many]},
        ),
        "/v1/peek": _post(
            "Return the decision of a check without spending.",
            ["PeekRequest", "PeekManyRequest", "PeekLimitRequest"],
            {"anyOf": [one, many]},
        ),
        "/v1/charge": _post(
            "Spend the cost, even above the limit.", ["CheckRequest", "CheckLimitRequest"], one
        ),
        "/v1/refund": _post("Give units back.", ["RefundRequest", "RefundLimitRequest"], one),
        "/v1/reset": _post("Remove counters.", ["PeekRequest", "PeekLimitRequest"], one),
        "/v1/acquire": _acquire(one),
        "/v1/renew": _post("Keep slots for another period.", ["SlotsRequest"], _ref("RenewBody")),
        "/v1/release": _post("Release slots.", ["SlotsRequest"], _ref("ReleaseBody")),
        "/shouldAllowRequest": _post(
            "Check the descriptor `client` in the configured domain.",
            ["ShouldAllowRequest"],
            _ref("ShouldAllowBody"),
        ),
        "/json": _envoy(),
        "/v1/auth": _auth(),
        "/v1/counters": {
            "get": _get("Counts of responses and rejections of this worker.", _COUNTERS)
        },
        "/metrics": {"get": _metrics()},
        "/healthz": {"get": _get("Whether the gateway runs.", _STATUS)},
        "/readyz": {"get": _readyz()},
        "/openapi.json": {"get": _get("This description of the API.", {"type": "object"})},
    }
    description: _Json = {
        "openapi": "3.1.0",
        "info": {"title": "Ringfence gateway", "version": "1"},
        "paths": paths,
        "components": {"schemas": schemas},
    }
    if with_tokens:
        description["components"]["securitySchemes"] = {
            "token": {"type": "http", "scheme": "bearer"}
        }
        _protect(paths)
    return json.dumps(description).encode()


_COUNTERS: _Json = {"type": "object", "additionalProperties": {"type": "integer"}}
_STATUS: _Json = {"type": "object", "properties": {"status": {"type": "string"}}}


def _bound(schemas: _Json, settings: GatewaySettings) -> None:
    for name in ("CheckManyRequest", "PeekManyRequest"):
        schemas[name]["properties"]["checks"]["maxItems"] = settings.max_checks


def _post(summary: str, asked: list[str], answer: _Json) -> _Json:
    refs = [_ref(name) for name in asked]
    schema = refs[0] if len(refs) == 1 else {"oneOf": refs}
    content = {JSON: {"schema": schema}, MSGPACK: {"schema": schema}}
    responses = {
        "200": {
            "description": "Result of the request.",
            "content": {JSON: {"schema": answer}, MSGPACK: {"schema": answer}},
        }
    }
    return {
        "post": {
            "summary": summary,
            "requestBody": {"required": True, "content": content},
            "responses": responses | _problems(_MISTAKES),
        }
    }


def _get(summary: str, answer: _Json) -> _Json:
    responses = {"200": {"description": "Success.", "content": {JSON: {"schema": answer}}}}
    return {"summary": summary, "responses": responses}


def _metrics() -> _Json:
    content = {"text/plain": {"schema": {"type": "string"}}}
    return {
        "summary": "Metrics of this worker in the format of Prometheus.",
        "responses": {"200": {"description": "Success.", "content": content}},
    }


def _envoy() -> _Json:
    """Return the description of `POST /json`, which is Envoy's method `ShouldRateLimit` in JSON
    form."""
    answer = {JSON: {"schema": _ref("RateLimitResponse")}}
    responses: _Json = {
        "200": {"description": "The request may pass.", "content": answer},
        "429": {"description": "The request is over a limit.", "content": answer},
    }
    mistakes = {status: _MISTAKES[status] for status in ("400", "408", "413")}
    mistakes["500"] = "No member of the cluster can answer."
    return {
        "post": {
            "summary": "Envoy's rate limit service.",
            "requestBody": {
                "required": True,
                "content": {JSON: {"schema": _ref("RateLimitRequest")}},
            },
            "responses": responses | _problems(mistakes),
        }
    }


def _acquire(one: _Json) -> _Json:
    description = _post(
        "Wait until a check is allowed, then spend the cost.",
        ["AcquireRequest", "AcquireLimitRequest"],
        one,
    )
    description["post"]["responses"] |= _problems(
        {"429": "Too many requests of this caller are waiting."}
    )
    return description


def _readyz() -> _Json:
    description = _get("Whether the gateway has the rules of the cluster.", _STATUS)
    description["responses"] |= _problems(
        {"503": "The gateway has no rules yet, or it is stopping."}
    )
    return description


def _auth() -> _Json:
    parameter = {
        "name": "deny_status",
        "in": "query",
        "schema": {"enum": ["429", "403"], "type": "string"},
        "description": "Status of the response when the request may not pass.",
    }
    mistakes = {"400": _MISTAKES["400"], "503": _MISTAKES["503"]}
    denials = {
        "429": "The request may not pass.",
        "403": "The request may not pass; for proxies that do not support status 429.",
    }
    responses: _Json = {"200": {"description": "The request may pass."}}
    for status, why in denials.items():
        contents = {kind: {"schema": dict[str, str]()} for kind in (PROBLEM_JSON, "text/html")}
        responses[status] = {"description": why, "content": contents}
    operation = {
        "summary": "Check the request that the headers describe.",
        "parameters": [parameter],
        "responses": responses | _problems(mistakes),
    }
    head = json.loads(json.dumps(operation))
    for response in head["responses"].values():
        response.pop("content", None)
    return {"get": operation, "head": head}


def _problems(why: dict[str, str]) -> _Json:
    content = {PROBLEM_JSON: {"schema": _ref("Problem")}}
    return {status: {"description": text, "content": content} for status, text in why.items()}


def _protect(paths: _Json) -> None:
    for path, item in paths.items():
        if path in ("/healthz", "/readyz", "/openapi.json"):
            continue
        for operation in item.values():
            operation["security"] = [{"token": []}]
            operation["responses"] = _problems(_DENIALS) | operation["responses"]


def _ref(name: str) -> _Json:
    return {"$ref": _REF.format(name=name)}
