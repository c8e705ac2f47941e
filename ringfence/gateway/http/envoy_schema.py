"""JSON schemas of Envoy's `RateLimitRequest` and `RateLimitResponse`, as `POST /json` takes them.

The JSON format of protobuf also accepts original field names (`hits_addend`), numbers as text, and
nulls. The schema describes only the recommended form.
"""

from typing import Any

from envoy.service.ratelimit.v3.rls_pb2 import RateLimitResponse
from envoy.type.v3.ratelimit_unit_pb2 import RateLimitUnit

__all__ = ["ENVOY_SCHEMAS"]

_Json = dict[str, Any]

_U32: _Json = {"type": "integer", "minimum": 0, "maximum": 2**32 - 1}
_UNITS = [name for name, number in RateLimitUnit.items() if number]


def _closed(properties: _Json, *required: str) -> _Json:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


_ENTRY = _closed(
    {"key": {"type": "string", "minLength": 1}, "value": {"type": "string"}}, "key", "value"
)
_DESCRIPTOR = _closed(
    {
        "entries": {"type": "array", "items": _ENTRY, "minItems": 1, "maxItems": 64},
        "limit": _closed(
            {"requestsPerUnit": _U32, "unit": {"type": "string", "enum": _UNITS}},
            "requestsPerUnit",
            "unit",
        ),
        "hitsAddend": _U32
        | {"description": "Overrides hitsAddend of the request; 0 spends nothing."},
        "isNegativeHits": {"type": "boolean", "description": "Gives back."},
    },
    "entries",
)

ENVOY_SCHEMAS: _Json = {
    "RateLimitRequest": _closed(
        {
            "domain": {"type": "string", "minLength": 1},
            "descriptors": {
                "type": "array",
                "items": _DESCRIPTOR,
                "minItems": 1,
                "maxItems": 128,
            },
            "hitsAddend": _U32,
        },
        "domain",
        "descriptors",
    ),
    "RateLimitResponse": {
        "type": "object",
        "properties": {
            "overallCode": {"type": "string", "enum": list(RateLimitResponse.Code.keys())},
            "statuses": {"type": "array", "items": {"type": "object"}},
            "responseHeadersToAdd": {"type": "array", "items": {"type": "object"}},
            "dynamicMetadata": {"type": "object"},
        },
        "required": ["overallCode"],
    },
}
