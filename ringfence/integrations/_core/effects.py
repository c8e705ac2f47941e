"""Effects: calls of a limiter that a policy requests, represented as values. `run_steps` performs
them.

The classes are not frozen: several objects are created per request, and frozen ones cost more time.
"""

from collections.abc import Generator
from typing import TypeAlias

from msgspec import Struct

from ringfence.client.decision import Decision
from ringfence.http import Body, Refused
from ringfence.limiter import Limit

__all__ = [
    "CheckSpec",
    "Charge",
    "Check",
    "Effect",
    "LimitCheckSpec",
    "LimiterFailed",
    "Pause",
    "Refund",
    "Refusal",
    "Release",
    "RuleCheckSpec",
    "Steps",
]


class Refusal(Struct, frozen=True):
    """Response that is sent instead of the application's response, without the rate limit
    headers."""

    refused: Refused
    body: Body

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Headers that describe the body of the refusal. `RequestState.headers` returns the rate
        limit headers."""
        return [
            ("Content-Type", self.body.content_type),
            ("Content-Length", str(len(self.body.content))),
            ("Cache-Control", "no-store"),
        ]


class RuleCheckSpec(Struct):
    """Target of a limiter call: the counters of the rules that match some descriptors."""

    domain: str
    descriptors: dict[str, str] | list[dict[str, str]]
    timeout: float | None


class LimitCheckSpec(Struct):
    """Target of a limiter call: the counter of an ad-hoc limit, which is in no rule."""

    limit: Limit
    key: tuple[str, ...]


CheckSpec: TypeAlias = RuleCheckSpec | LimitCheckSpec


class Check(Struct):
    """Requested limiter call: spend units of a limit if the limit allows it."""

    ask: CheckSpec
    cost: int


class Charge(Struct):
    """Requested limiter call: spend units even if they exceed the limit."""

    ask: CheckSpec
    cost: int


class Refund(Struct):
    """Requested limiter call: refund units that an earlier check has spent."""

    ask: CheckSpec
    cost: int
    age: float
    """Seconds since the check."""
    decision: Decision
    """Decision of the check."""


class Release(Struct):
    """Requested limiter call: release the slots of a concurrency limit."""

    decision: Decision


class Pause(Struct):
    """Requested wait: the delay that a queueing limit imposes on an allowed request."""

    seconds: float


Effect: TypeAlias = Check | Charge | Refund | Release | Pause
Steps: TypeAlias = Generator[Effect, Decision | None, Refusal | None]
"""Yields effects. Receives the decision of a check, charge or refund, and None for the others."""


class LimiterFailed(Exception):
    """Exception that a policy (a generator) receives in place of a decision when the limiter
    failed."""
