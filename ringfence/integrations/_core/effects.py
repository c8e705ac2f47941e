"""Effects: calls of a limiter that a policy requests, represented as values. `run_steps` performs
them.

The classes are not frozen: several objects are created per request, and frozen ones cost more time.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeAlias

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


@dataclass(frozen=True, slots=True)
class Refusal:
    """Response that is sent instead of the application's response, without the rate limit
    headers."""

    refused: Refused
    body: Body

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Headers of the response body. `RequestState.headers` returns the rate limit headers."""
        return [
            ("Content-Type", self.body.content_type),
            ("Content-Length", str(len(self.body.content))),
            ("Cache-Control", "no-store"),
        ]


@dataclass(slots=True)
class RuleCheckSpec:
    """Target of an effect: the counters of rules that match some descriptors."""

    domain: str
    descriptors: dict[str, str] | list[dict[str, str]]
    timeout: float | None


@dataclass(slots=True)
class LimitCheckSpec:
    """Target of an effect: the counter of an ad-hoc limit."""

    limit: Limit
    key: tuple[str, ...]


CheckSpec: TypeAlias = RuleCheckSpec | LimitCheckSpec


@dataclass(slots=True)
class Check:
    """Effect that spends units if the check is allowed."""

    ask: CheckSpec
    cost: int


@dataclass(slots=True)
class Charge:
    """Effect that spends units unconditionally."""

    ask: CheckSpec
    cost: int


@dataclass(slots=True)
class Refund:
    """Effect that refunds spent units."""

    ask: CheckSpec
    cost: int


@dataclass(slots=True)
class Release:
    """Effect that releases the slots of a concurrency limit."""

    decision: Decision


@dataclass(slots=True)
class Pause:
    """Effect that waits for the delay of a queueing limit."""

    seconds: float


Effect: TypeAlias = Check | Charge | Refund | Release | Pause
Steps: TypeAlias = Generator[Effect, Decision | None, Refusal | None]
"""Yields effects. Receives the decision of a check, charge or refund, and None for the others."""


class LimiterFailed(Exception):
    """Exception that the runner throws into a policy when the limiter failed, instead of sending a
    decision."""
