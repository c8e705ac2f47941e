"""Figures of a what-if report (effect of rules on an access log): per rule, per client and in
total."""

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from math import nextafter
from typing import Literal, TypeAlias

from msgspec import Struct, field
from msgspec.structs import asdict

from ringfence.limiter import NS_PER_SECOND, Code
from ringfence.rules import Rule
from ringfence.rules.cross_dc_bounds import cross_dc_bounds, exceeding
from ringfence.rules.descriptor_tree import place
from simulations.what_if.data_centers import Counted, Timing, counted
from simulations.what_if.oracle import Answer, Errors

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
"""Assignment of requests to data centers: random per request, or fixed per client."""


class Worst(Struct, frozen=True):
    """Largest excess of a counter over its limit, with the client and the time."""

    client: str
    at_ns: int
    """Since the Unix epoch."""
    excess: int
    """Units above the limit, by the algorithm's count of all admitted units."""
    bound: int
    """Bound of `ringfence.rules.cross_dc_bounds` for the recent demand."""


class RuleFigures(Struct, frozen=True):
    """Figures of one rule. Denials include those of shadow mode, where the rule does not deny in
    reality."""

    rule: str
    amount: int
    period_ns: int
    algorithm: str
    counted: Counted
    checks: int
    denied_exact: int
    """Denials by one exact counter."""
    denied: int
    """Denials with eventual consistency."""
    wrongly_allowed: int
    """Requests that were admitted although exact counting denied them."""
    wrongly_denied: int
    """Requests that were denied although exact counting admitted them."""
    over_admitted: int
    """Units charged after all data centers together had used the limit up."""
    worst: Worst | None
    """None when no counter went over its limit."""
    beyond_bound: int
    """Times that a counter exceeded its bound; 0 is expected."""

    @property
    def allowed(self) -> int:
        """Number of checks of a rule that were allowed with eventual consistency."""
        return self.checks - self.denied


class Throttled(Struct, frozen=True):
    """Client whose requests were denied, either by eventually consistent or by exact counting."""

    client: str
    checks: int
    denied: int
    denied_exact: int
    first_ns: int
    """Time of the first denial by either count, since the Unix epoch."""
    last_ns: int
    rule: str
    """Rule with the most denials of the client."""


class WhatIf(Struct, frozen=True):
    """All figures of a what-if report."""

    datacenters: int
    delay_ms: float
    interval_ms: float
    staleness_ms: float
    """Maximum age of a remote count; 0 without remote counts."""
    seed: int
    spread: Routing
    exact: bool
    requests: int
    same_instant: int
    """Requests with the same time-stamp as the previous one, between which no counts travel."""
    no_rule: int
    """Requests that matched no rule and so were allowed."""
    denied_exact: int
    denied: int
    rules: tuple[RuleFigures, ...]
    """In file order."""
    throttled: tuple[Throttled, ...]
    """Clients with the most denials."""
    errors: tuple[Errors, ...]
    """Errors against one exact counter, and against an exact log where windows are estimated."""

    def to_json(self) -> dict[str, object]:
        """Return all figures as JSON values; instants as ISO 8601."""
        content: dict[str, object] = asdict(self)
        content["allowed"] = self.requests - self.denied
        content["rules"] = [_rule_row(figures) for figures in self.rules]
        content["throttled"] = [_in_iso(asdict(row), ("first", "last")) for row in self.throttled]
        content["errors"] = [asdict(row) | {"wrong_share": row.wrong_share} for row in self.errors]
        return content


class RuleTally:
    """Running counts of one rule. `datacenters` is 1 when one engine counts for all data
    centers."""

    def __init__(self, rule: Rule, timing: Timing, datacenters: int) -> None:
        assert rule.limit is not None
        self.is_whole = datacenters == 1 or counted(rule) != "split"
        """Whether a data center may use the whole limit; false for a limit that is split among data
        centers."""
        self._rule, self._limit = rule, rule.limit
        self.ceiling = rule.limit.ceiling
        """Maximum number of units in use."""
        self._timing = timing
        self._datacenters = datacenters
        self._checks = self._denied_exact = self._denied = 0
        self._wrongly_allowed = self._wrongly_denied = 0
        self._over_admitted = self._beyond_bound = 0
        self._worst: Worst | None = None

    def add(self, code: int, right: int) -> None:
        """Count one check of the rule: the result code `code`, and the code `right` of exact
        counting."""
        is_denied = code in _REFUSED
        is_rightly = right in _REFUSED
        self._checks += 1
        self._denied += is_denied
        self._denied_exact += is_rightly
        self._wrongly_allowed += is_rightly and not is_denied
        self._wrongly_denied += is_denied and not is_rightly

    def exceed(self, client: str, now: int, excess: int, cost: int, asked: int) -> None:
        """Record a charge of `cost` after which the counter was `excess` units above the limit.

        `asked` is the maximum demand in one data center during the delay of counts.
        """
        bound = self._bound(asked)
        self._over_admitted += min(cost, excess)
        self._beyond_bound += excess > bound
        if self._worst is None or excess > self._worst.excess:
            self._worst = Worst(client, now, excess, bound)

    def read(self) -> RuleFigures:
        """Return the figures of the rule so far."""
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
        """Return the bound on units above the limit for a recent demand of `asked` per data
        center."""
        limit, count = self._limit, self._datacenters
        if count == 1 or not limit.amount:
            return 0
        furthest = (count - 1) * self.ceiling
        match counted(self._rule):
            case "shared":
                late = self._timing.late_ns
                # `exceeding` takes demand as a multiple of the limit and rounds up, so the multiple
                # is slightly reduced to avoid one unit too many.
                demand = nextafter(count * asked * limit.period_ns / (late * limit.amount), 0)
                return min(furthest, exceeding(limit, count, late, demand))
            case "alone":
                return furthest
            case how:
                return cross_dc_bounds(limit, how, count, 0, 1.0).bound - self.ceiling


class ClientTally(Struct):
    """Running counts of one client."""

    checks: int = 0
    denied: int = 0
    denied_exact: int = 0
    first_ns: int = 0
    last_ns: int = 0
    rules: Counter[str] = field(default_factory=Counter)

    def add(self, answer: Answer, right: Answer, now: int) -> None:
        """Count one request of the client: its decision, and the decision of exact counting."""
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
    """Return the clients with the most denials; ties keep their order of appearance."""
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
    """Replace instants in nanoseconds by texts in ISO 8601 format, in UTC."""
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
