"""`POST /json`: Envoy's rate limit service in the JSON form of its messages.

For HTTP clients of Envoy's `ratelimit` service. The status is 200 for an allowed request, 429 for a
denied one, 400 for an invalid body, and 500 if the service cannot answer.
"""

import json
from typing import Any

from envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest, RateLimitResponse
from google.protobuf import json_format

from ringfence.errors import ConfigError, RingfenceError
from ringfence.gateway.grpc.rls import BadRequest, RateLimitService
from ringfence.gateway.http.http_types import JSON, HttpProblem, Response

__all__ = ["answer_json"]

_NEGATIVE = ("isNegativeHits", "is_negative_hits")


async def answer_json(service: RateLimitService, body: bytes) -> Response:
    """Answer one rate limit request in JSON. Raises `HttpProblem`."""
    request, negative = _read(body)
    try:
        response = await service.should_rate_limit(request, negative)
    except (BadRequest, ConfigError) as error:
        raise HttpProblem(400, str(error)) from error
    except RingfenceError as error:
        raise HttpProblem(500, str(error), cause="no_cluster") from error
    content = json_format.MessageToJson(response, indent=None)
    over = response.overall_code == RateLimitResponse.OVER_LIMIT
    headers = [(each.key, each.value) for each in response.response_headers_to_add]
    return Response(429 if over else 200, content.encode(), JSON, headers)


def _read(body: bytes) -> tuple[RateLimitRequest, list[bool]]:
    try:
        content = json.loads(body)
        if not isinstance(content, dict):
            # `ParseDict` would raise many different errors for it.
            raise ValueError("it must be an object")
        negative = _take_negative(content)
        return json_format.ParseDict(content, RateLimitRequest()), negative
    except (ValueError, RecursionError, json_format.ParseError) as error:
        raise HttpProblem(
            400, f"the body must be a RateLimitRequest:  {error}", cause="bad_body"
        ) from error


def _take_negative(content: dict[str, Any]) -> list[bool]:
    """Remove the field `isNegativeHits` from all descriptors, and return its values.

    The package `xds-protos` lacks this field.
    """
    descriptors = content.get("descriptors")
    if not isinstance(descriptors, list):
        return []
    found = []
    for each in descriptors:
        flags = [each.pop(name, False) for name in _NEGATIVE] if isinstance(each, dict) else [False]
        if not all([isinstance(flag, bool) for flag in flags]):
            raise ValueError("isNegativeHits must be true or false")
        found.append(any(flags))
    return found if any(found) else []
