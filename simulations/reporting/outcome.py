"""Outcome of one run: figures, violations, and the time series of its report.

Times are seconds of virtual time since the start of the load.
"""

from collections import Counter
from typing import TypeAlias

from msgspec import Struct, field

from simulations.judging.judged import Judged
from simulations.scenarios.scenario import Fault, Scenario

__all__ = [
    "KeyHistory",
    "Nearby",
    "Outcome",
    "OwnershipChange",
    "Point",
    "Request",
    "Series",
    "Span",
    "Violation",
]

Point: TypeAlias = tuple[float, float]
"""An instant and a value."""


class Violation(Struct, frozen=True):
    """Violated invariant, with a description."""

    property: str
    """Its short name, such as `over_admission`."""
    at: float
    text: str


class Span(Struct, frozen=True):
    """A time span in which a member or a fault was in one state."""

    start: float
    end: float
    row: str
    """Row of the plot: a member's name, or a fault's verb."""
    state: str


class Request(Struct, frozen=True):
    """One request of a client, with its answer."""

    asked_at: float
    answered_at: float
    client: str
    cost: int
    allowed: bool
    source: str
    """Source of the decision, such as `owner`, `standby` or `policy`."""
    decided_by: tuple[str, ...]
    """Nodes that can have decided, usually one; none for answers of caches and policies."""
    kind: str = "check"
    """`check`, `charge` or `peek`."""


class OwnershipChange(Struct, frozen=True):
    """Change of the state of one shard at one node."""

    at: float
    node: str
    event: str
    before: str
    after: str
    """Name of the state; empty when the node ended."""


class KeyHistory(Struct):
    """Requests for one key, and the nodes that held its shard."""

    rule: str
    key: str
    limit: str
    """Text of the limit, such as `15 in 86400 s, sliding_window_log`."""
    period_s: float = 0.0
    is_judged: bool = False
    """Whether a violation names the key."""
    over: int = 0
    """Largest number of units above the limit in one period."""
    bound: int | None = None
    """Units above the limit that the invariant allows; None if it was not computed."""
    exact_by: str = "exact"
    """Algorithm that may admit the limit twice in one period; `exact` if none does."""
    is_global: bool = False
    """Whether the data centers send each other the counts of the key."""
    requests: list[Request] = field(default_factory=list)
    states: list[Span] = field(default_factory=list)
    """States of the shard; the rows are nodes."""
    changes: list[OwnershipChange] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Return rule and key as `rule=key`."""
        return f"{self.rule}={self.key}"

    @property
    def subject(self) -> tuple[str, str]:
        """Return rule and key."""
        return self.rule, self.key


class Nearby(Struct, frozen=True):
    """Result of a run that differs from another run in one point."""

    change: str
    """The difference, such as `without 3-8 s: crash node=n2`."""
    violated: tuple[str, ...]
    is_smaller: bool
    """Whether the run has one fault less."""


class Series(Struct):
    """Time series for the plots of the report."""

    key: str = ""
    """The key of the first rule with the most checks, as `RULE=KEY`."""
    admitted: dict[str, list[Point]] = field(default_factory=dict)
    """Per data center: units of that key that were admitted within the last period."""
    period_s: float = 0.0
    """The period of that key's limit, in seconds."""
    limit: float = 0.0
    """Units that this limit admits per period; 0 for none."""
    is_shared: bool = True
    """Whether the limit applies to all data centers together."""
    over: list[Point] = field(default_factory=list)
    """Units of that key over its limit."""
    over_bound: list[Point] = field(default_factory=list)
    """Units that the stated bound allows, by the measured staleness."""
    staleness_ms: dict[str, list[Point]] = field(default_factory=dict)
    """Per data center: age of the remote counts."""
    members: list[Span] = field(default_factory=list)
    """State of each member in the view of most others."""
    sources: dict[str, list[Point]] = field(default_factory=dict)
    """Decisions per second, by source."""
    latency_ms: dict[str, list[Point]] = field(default_factory=dict)
    """`p50` and `p99` of the latency of checks, per second."""


class Outcome(Struct):
    """Complete outcome of one run."""

    scenario: Scenario
    seed: int
    command: str
    """Command that replays this run."""
    event_hash: str = ""
    """Hex; the chained hash of all events: equal seeds have equal ones."""
    virtual_s: float = 0.0
    real_s: float = 0.0
    violations: list[Violation] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    """Named numbers, such as `checks`, `admitted`, `denied`, `lost`, `over_admitted`."""
    judged: Judged = field(default_factory=Judged)
    """Decisions that the laws judged exactly, and the reasons for which they excused others."""
    marks: Counter[str] = field(default_factory=Counter)
    """Number of rare events such as `refutation_won` and `split_healed`."""
    pairs: set[str] = field(default_factory=set)
    """Names of the pairs of features and faults that met."""
    series: Series = field(default_factory=Series)
    faults: tuple[Fault, ...] = ()
    """Faults as they were applied."""
    histories: list[KeyHistory] = field(default_factory=list)
    """Histories of some keys.

    These are the keys that violations name, the key with the most units over its limit, and the key
    with the most checks."""
    reached: frozenset[str] = frozenset()
    """Names of the states that the run reached, for the guided search.

    There are pairs of a shard's state and an event, pairs of successive events of a shard, and
    kinds of messages and other events that nodes counted."""
    nearby: list[Nearby] = field(default_factory=list)
    """Results of similar runs, after a violation."""
