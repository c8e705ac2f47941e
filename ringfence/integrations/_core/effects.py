"""Effects: the calls that a policy wants from a limiter, as values. `run_steps` performs them.

The classes are not frozen: several instances are made per request, and frozen ones take longer.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeAlias

from ringfence.client.decision import Decision
from ringfence.http import Body, Refused
from ringfence.limiter import Limit

__all__ = [
    "Ask",
    "Charge",
    "Check",
    "Effect",
    "LimitAsk",
    "LimiterFailed",
    "Pause",
    "Refund",
    "Refusal",
    "Release",
    "RuleAsk",
    "Steps",
]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A response to send in place of the application's, without the rate limit headers."""

    refused: Refused
    body: Body

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Headers of the body. `RequestState.headers` returns the rate limit headers."""
        return [
            ("Content-Type", self.body.content_type),
            ("Content-Length", str(len(self.body.content))),
            ("Cache-Control", "no-store"),
        ]


@dataclass(slots=True)
class RuleAsk:
    """Counters of the rules that descriptors match."""

    domain: str
    descriptors: dict[str, str] | list[dict[str, str]]
    timeout: float | None


@dataclass(slots=True)
class LimitAsk:
    """Counter of an ad-hoc limit."""

    limit: Limit
    key: tuple[str, ...]


Ask: TypeAlias = RuleAsk | LimitAsk


@dataclass(slots=True)
class Check:
    """Check: spend if allowed."""

    ask: Ask
    cost: int


@dataclass(slots=True)
class Charge:
    """Charge: spend unconditionally."""

    ask: Ask
    cost: int


@dataclass(slots=True)
class Refund:
    """Refund units that were spent."""

    ask: Ask
    cost: int


@dataclass(slots=True)
class Release:
    """Release the slots held under a concurrency limit."""

    decision: Decision


@dataclass(slots=True)
class Pause:
    """Wait for the delay of a queueing limit."""

    seconds: float


Effect: TypeAlias = Check | Charge | Refund | Release | Pause
Steps: TypeAlias = Generator[Effect, Decision | None, Refusal | None]
"""Yields effects. Receives the decision of a check, charge or refund, and None for the others."""


class LimiterFailed(Exception):
    """The limiter failed. Thrown into the steps in place of a decision."""
