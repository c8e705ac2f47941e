"""What came out of one run: figures, violations, and the series that its report draws.

Times are seconds of virtual time since the load began.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import TypeAlias

from simulations.scenarios.scenario import Fault, Scenario

__all__ = ["Outcome", "Point", "Series", "Span", "Violation"]

Point: TypeAlias = tuple[float, float]
"""An instant and a value."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A property that did not hold."""

    property: str
    """Its short name, such as `over_admission`."""
    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time in which a member or a fault was in one state."""

    start: float
    end: float
    row: str
    """Which line of the picture: a member's name, or a fault's verb."""
    state: str


@dataclass(slots=True)
class Series:
    """What the report draws."""

    admitted: dict[str, list[Point]] = field(default_factory=dict)
    """Per data center: units admitted within the period before, of the key asked for most."""
    period_s: float = 0.0
    """The period of that key's limit, in seconds."""
    limit: float = 0.0
    """Units that this limit lets through in its period; 0 for none."""
    is_shared: bool = True
    """Whether it holds for all data centers together, and not for each."""
    over: list[Point] = field(default_factory=list)
    """Units of that key over its limit."""
    over_bound: list[Point] = field(default_factory=list)
    """How many the stated bound allows, by the staleness that was measured."""
    staleness_ms: dict[str, list[Point]] = field(default_factory=dict)
    """Per data center: age of what it has heard of the others."""
    members: list[Span] = field(default_factory=list)
    """How each member was seen by most others."""
    sources: dict[str, list[Point]] = field(default_factory=dict)
    """Per source of decisions: how many in each second."""
    latency_ms: dict[str, list[Point]] = field(default_factory=dict)
    """`p50` and `p99` of the time that a check took, in each second."""


@dataclass(slots=True)
class Outcome:
    """All that is known of one run."""

    scenario: Scenario
    seed: int
    command: str
    """What replays this run."""
    event_hash: str = ""
    """Hex; the chained hash of all events: equal seeds have equal ones."""
    virtual_s: float = 0.0
    real_s: float = 0.0
    violations: list[Violation] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    """Named numbers, such as `checks`, `admitted`, `denied`, `lost`, `over_admitted`."""
    marks: Counter[str] = field(default_factory=Counter)
    """Rare things that happened, and how often: `refutation_won`, `split_healed` and so on."""
    series: Series = field(default_factory=Series)
    faults: tuple[Fault, ...] = ()
    """As they were applied."""
