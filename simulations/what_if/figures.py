"""The figures of `what_if`: per rule, per client and in all, and how they add up line by line."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from math import nextafter
from typing import Literal, TypeAlias

from ringfence.limiter import NS_PER_SECOND, Code
from ringfence.rules import Rule
from ringfence.rules.cross_dc_bounds import exceeding, reach_of
from ringfence.rules.descriptor_tree import place
from simulations.judging.oracle import Answer, Errors
from simulations.what_if.data_centers import Counted, Timing, counted

__all__ = [
    "ClientTally",
    "Routing",
    "RuleFigures",
    "RuleTally",
    "Throttled",
    "WhatIf",
    "Worst",
    "most_throttled",
]

_REFUSED = (Code.DENIED.value, Code.NEVER.value)

Routing: TypeAlias = Literal["random", "sticky"]
"""Each request goes to a data center at random, or all of a client to one."""


@dataclass(frozen=True, slots=True)
class Worst:
    """The furthest that one counter went over its limit."""

    client: str
    at_ns: int
    """Since the Unix epoch."""
    excess: int
    """Units above the limit, in the algorithm's own count of what all data centers admitted."""
    bound: int
    """Most that `ringfence.rules.cross_dc_bounds` allows for what was asked just before."""


@dataclass(frozen=True, slots=True)
class RuleFigures:
    """What one rule did. Denied is what the rule itself refused, or would have as a shadow."""

    rule: str
    amount: int
    period_ns: int
    algorithm: str
    counted: Counted
    checks: int
    denied_exact: int
    """By one counter that sees everything."""
    denied: int
    """With eventual consistency."""
    wrongly_allowed: int
    """Let through where exact counting, with its own history, would not have."""
    wrongly_denied: int
    """The other way round: mostly the price of what was let through before."""
    over_admitted: int
    """Units charged when the limit was spent already by what all data centers had admitted."""
    worst: Worst | None
    """None when no counter went over its limit."""
    beyond_bound: int
    """How often a counter was further over its limit than the bound allows; 0 is expected."""

    @property
    def allowed(self) -> int:
        """With eventual consistency."""
        return self.checks - self.denied


@dataclass(frozen=True, slots=True)
class Throttled:
    """A client that was denied, or would have been by exact counting."""

    client: str
    checks: int
    denied: int
    denied_exact: int
    first_ns: int
    """When it was denied first, by either; since the Unix epoch."""
    last_ns: int
    rule: str
    """Which denied it most often."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Everything that a report shows."""

    datacenters: int
    delay_ms: float
    interval_ms: float
    staleness_ms: float
    """Age of another data center's count, at most; 0 where none is used."""
    seed: int
    spread: Routing
    exact: bool
    requests: int
    same_instant: int
    """Those with the stamp of the one before: no data center can have told another in between."""
    no_rule: int
    """Those that met no rule, and so were allowed."""
    denied_exact: int
    denied: int
    rules: tuple[RuleFigures, ...]
    """In file order."""
    throttled: tuple[Throttled, ...]
    """The clients denied most often."""
    errors: tuple[Errors, ...]
    """Against one exact counter, and, where windows are estimated, against a log of every hit."""

    def to_json(self) -> dict[str, object]:
        """Everything as plain values; instants as ISO 8601, durations as named."""
        told: dict[str, object] = asdict(self)
        told["allowed"] = self.requests - self.denied
        told["rules"] = [_rule_row(figures) for figures in self.rules]
        told["throttled"] = [_in_iso(asdict(row), ("first", "last")) for row in self.throttled]
        told["errors"] = [asdict(row) | {"wrong_share": row.wrong_share} for row in self.errors]
        return told


class RuleTally:
    """What one rule has done so far. `datacenters` is 1 where one engine counts for all."""

    def __init__(self, rule: Rule, timing: Timing, datacenters: int) -> None:
        assert rule.limit is not None
        self.is_whole = datacenters == 1 or counted(rule) != "split"
        """Whether what a data center counts is meant to be all there is."""
        self._rule, self._limit = rule, rule.limit
        self.ceiling = rule.limit.ceiling
        """Most units in use that are ever admitted."""
        self._timing = timing
        self._datacenters = datacenters
        self._checks = self._denied_exact = self._denied = 0
        self._wrongly_allowed = self._wrongly_denied = 0
        self._over_admitted = self._beyond_bound = 0
        self._worst: Worst | None = None

    def add(self, code: int, right: int) -> None:
        """Count one check: its code, and the one of exact counting."""
        is_denied = code in _REFUSED
        is_rightly = right in _REFUSED
        self._checks += 1
        self._denied += is_denied
        self._denied_exact += is_rightly
        self._wrongly_allowed += is_rightly and not is_denied
        self._wrongly_denied += is_denied and not is_rightly

    def exceed(self, client: str, now: int, excess: int, cost: int, asked: int) -> None:
        """Note that a charge of `cost` ended `excess` above the limit.

        `asked` are the units that one data center at most was asked for while counts were late.
        """
        bound = self._bound(asked)
        self._over_admitted += min(cost, excess)
        self._beyond_bound += excess > bound
        if self._worst is None or excess > self._worst.excess:
            self._worst = Worst(client, now, excess, bound)

    def read(self) -> RuleFigures:
        """Write everything down."""
        return RuleFigures(
            rule=_name_of(self._rule),
            amount=self._limit.amount,
            period_ns=self._limit.period_ns,
            algorithm=self._limit.algorithm,
            counted=counted(self._rule),
            checks=self._checks,
            denied_exact=self._denied_exact,
            denied=self._denied,
            wrongly_allowed=self._wrongly_allowed,
            wrongly_denied=self._wrongly_denied,
            over_admitted=self._over_admitted,
            worst=self._worst,
            beyond_bound=self._beyond_bound,
        )

    def _bound(self, asked: int) -> int:
        """Most units above the limit, if no data center was asked for more than `asked` lately."""
        limit, count = self._limit, self._datacenters
        if count == 1 or not limit.amount:
            return 0
        furthest = (count - 1) * self.ceiling
        match counted(self._rule):
            case "shared":
                late = self._timing.late_ns
                # `exceeding` takes demand as a multiple of the limit, equal everywhere, and rounds
                # what arrives up: rather a little less than what would give one unit too many.
                demand = nextafter(count * asked * limit.period_ns / (late * limit.amount), 0)
                return min(furthest, exceeding(limit, count, late, demand))
            case "alone":
                return furthest
            case how:
                return reach_of(limit, how, count, 0, 1.0).bound - self.ceiling


@dataclass(slots=True)
class ClientTally:
    """What one client has met so far."""

    checks: int = 0
    denied: int = 0
    denied_exact: int = 0
    first_ns: int = 0
    last_ns: int = 0
    rules: Counter[str] = field(default_factory=Counter)

    def add(self, answer: Answer, right: Answer, now: int) -> None:
        """Count one request: its answer, and the one of exact counting."""
        self.checks += 1
        if answer.allowed and right.allowed:
            return
        self.denied += not answer.allowed
        self.denied_exact += not right.allowed
        self.first_ns = self.first_ns or now
        self.last_ns = now
        rule = answer.rule or right.rule
        if rule is not None:
            self.rules[_name_of(rule)] += 1


def most_throttled(clients: dict[str, ClientTally], count: int) -> tuple[Throttled, ...]:
    """The clients denied most often, those with as many in the order they came."""
    denied = [item for item in clients.items() if item[1].rules]
    denied.sort(key=lambda item: (-item[1].denied, -item[1].denied_exact))
    return tuple(
        Throttled(
            client,
            tally.checks,
            tally.denied,
            tally.denied_exact,
            tally.first_ns,
            tally.last_ns,
            tally.rules.most_common(1)[0][0],
        )
        for client, tally in denied[:count]
    )


def _name_of(rule: Rule) -> str:
    return rule.name or place(rule.domain, rule.path)


def _rule_row(figures: RuleFigures) -> dict[str, object]:
    row: dict[str, object] = asdict(figures)
    row["allowed"] = figures.allowed
    row["period_s"] = figures.period_ns / NS_PER_SECOND
    del row["period_ns"]
    if figures.worst is not None:
        row["worst"] = _in_iso(asdict(figures.worst), ("at",))
    return row


def _in_iso(row: dict[str, object], names: Iterable[str]) -> dict[str, object]:
    """Replace instants in nanoseconds by ISO 8601, in UTC."""
    instants = {f"{name}_ns": name for name in names}
    return {
        instants.get(name, name): _iso(value)
        if name in instants and isinstance(value, int)
        else value
        for name, value in row.items()
    }


def _iso(instant_ns: int) -> str:
    seconds, rest = divmod(instant_ns, NS_PER_SECOND)
    at = datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest // 1000)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
