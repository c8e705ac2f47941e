"""What a policy wants done by a limiter, as values; `drive` does it.

Not frozen: some are made per request, and freezing them takes longer than all the rest of it.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeAlias

from ringfence.client.decision import Decision
from ringfence.integrations._core.request_state import Refusal
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
    "Release",
    "RuleAsk",
    "Steps",
]


@dataclass(slots=True)
class RuleAsk:
    """Which counters: those that descriptors meet."""

    domain: str
    descriptors: dict[str, str] | list[dict[str, str]]
    timeout: float | None


@dataclass(slots=True)
class LimitAsk:
    """Which counter: that of a limit outside of rules."""

    limit: Limit
    key: tuple[str, ...]


Ask: TypeAlias = RuleAsk | LimitAsk


@dataclass(slots=True)
class Check:
    """Ask, and spend if allowed."""

    ask: Ask
    cost: int


@dataclass(slots=True)
class Charge:
    """Spend, whatever is left."""

    ask: Ask
    cost: int


@dataclass(slots=True)
class Refund:
    """Give back what was spent."""

    ask: Ask
    cost: int


@dataclass(slots=True)
class Release:
    """Give back the places held under a concurrency limit."""

    decision: Decision


@dataclass(slots=True)
class Pause:
    """Wait for one's turn under a limit that queues."""

    seconds: float


Effect: TypeAlias = Check | Charge | Refund | Release | Pause
Steps: TypeAlias = "Generator[Effect, Decision | None, Refusal | None]"
"""Effects out; in comes the decision of a check, a charge or a refund, None for the others."""


class LimiterFailed(Exception):
    """The limiter could not do what was asked: thrown into the steps in place of an answer."""
