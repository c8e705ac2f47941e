"""Dynamic metadata of a response to Envoy: the request, and the metadata of the matched rules.

Envoy's filters and access logs read it. The format is that of `envoyproxy/ratelimit`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from envoy.extensions.common.ratelimit.v3.ratelimit_pb2 import RateLimitDescriptor
from envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest
from envoy.type.v3.ratelimit_unit_pb2 import RateLimitUnit

from ringfence.client.decision import Status

__all__ = ["describe"]


def describe(request: RateLimitRequest, statuses: Sequence[Status]) -> dict[str, Any]:
    """Return the dynamic metadata for Envoy: the request, and the metadata of the rules that
    matched.

    If several rules have metadata with the same name, the first rule applies.
    """
    metadata: dict[str, Any] = {}
    for status in statuses:
        if status.rule is not None and status.allowed:
            _merge(metadata, status.rule.metadata)
    metadata["domain"] = request.domain
    metadata["descriptors"] = [_descriptor(each) for each in request.descriptors]
    if request.hits_addend:
        metadata["hitsAddend"] = request.hits_addend
    return metadata


def _descriptor(asked: RateLimitDescriptor) -> dict[str, Any]:
    metadata: dict[str, Any] = {"entries": [f"{each.key}={each.value}" for each in asked.entries]}
    if asked.HasField("limit"):
        unit = RateLimitUnit.Name(asked.limit.unit)
        metadata["limit"] = {"requestsPerUnit": asked.limit.requests_per_unit, "unit": unit}
    if asked.HasField("hits_addend"):
        metadata["hitsAddend"] = asked.hits_addend.value
    return metadata


def _merge(into: dict[str, Any], more: Mapping[str, object]) -> None:
    for name, value in more.items():
        if isinstance(value, Mapping):
            inner = into.setdefault(name, {})
            if isinstance(inner, dict):
                _merge(inner, value)
        else:
            into.setdefault(name, value)
