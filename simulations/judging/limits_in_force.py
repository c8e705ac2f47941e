"""Limits that each host applies at each instant, under faults that lower them.

The fault `rules` changes the rule file on all hosts at once. The fault `limits` lowers all limits
of one host, also those of a rule file that it reads later. Limits that requests contain do not
change.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TypeAlias

from ringfence.limiter import Limit
from simulations.judging.allowed_loss import REPLICATION_LAG_S, hosts_of, members_of
from simulations.judging.excuses import Place
from simulations.judging.ledger import Answered
from simulations.oracle import Terms
from simulations.scenarios.scenario import Fault, Scenario

__all__ = ["LimitsInForce", "RuleLimits", "conversions"]

_Factors: TypeAlias = tuple[float, ...]
"""Factors by which each amount of the rule file is multiplied and rounded, one after the other."""
_Event: TypeAlias = tuple[float, int, bool, Fault]
"""Time, number of the fault, whether it begins, and the fault."""
_Steps: TypeAlias = Sequence[tuple[float, Limit]]
"""Limits with their begins, in order."""


@dataclass(frozen=True, slots=True)
class RuleLimits:
    """Limits of one rule on each host over time."""

    usual: Limit
    """Limit without faults."""
    by_host: Mapping[str, _Steps]
    """Limits of the hosts to which faults apply others."""

    @property
    def rate_change(self) -> float:
        """Return the largest factor between two rates at which a bucket drains; 1 for a window.

        A wrong clock may change the level at the higher rate, and then the lower one applies.
        """
        if not self.usual.is_bucket:
            return 1.0
        limits = [limit for steps in self.by_host.values() for _, limit in steps]
        rates = [Terms.of(limit).rate for limit in (self.usual, *limits)]
        return max(rates) / min(rates)

    def changes(self, host: str, begin: float, end: float) -> _Steps:
        """Return the limits that a host applies between two instants, each with its begin."""
        steps = self.by_host.get(host, [(-inf, self.usual)])
        ends = [at for at, _ in steps[1:]] + [inf]
        return [
            step
            for step, until in zip(steps, ends, strict=True)
            if step[0] <= end and begin <= until
        ]

    def rates(
        self,
        host: str,
        decided: Sequence[tuple[float, float]],
        end: float,
        others: Iterable[tuple[float, float, Limit]] = (),
    ) -> Iterator[tuple[float, float, int]]:
        """Yield the intervals in which a bucket on a host may drain by one limit.

        `decided` are the intervals in which checks and charges convert the bucket of the host.
        `others` are further limits that the host may apply, with begin and end.
        """
        steps = self.changes(host, -inf, end)
        ends = [at for at, _ in steps[1:]] + [end]
        spans = [(begin, until, each) for (begin, each), until in zip(steps, ends, strict=True)]
        for begin, until, limit in [*spans, *others]:
            converted = [answered for asked, answered in decided if asked > until]
            yield begin, min(converted, default=end), Terms.of(limit).rate

    def mapped(self, change: Callable[[Limit], Limit]) -> "RuleLimits":
        """Return the limits that a function makes of these ones."""
        steps = {
            host: [(at, change(limit)) for at, limit in found]
            for host, found in self.by_host.items()
        }
        return RuleLimits(change(self.usual), steps)


class LimitsInForce:
    """Limits of all hosts during a run."""

    def __init__(self, scenario: Scenario) -> None:
        self._carried = {name for load in scenario.loads for name in load.limits}
        self._limits: dict[str, RuleLimits] = {}
        self._factors: dict[str, list[tuple[float, _Factors]]] = {
            name: [(-inf, ())] for name in members_of(scenario)
        }
        self._read(scenario)

    def of(self, rule: str, limit: Limit) -> RuleLimits:
        """Return the limits of a rule, which is `limit` without faults."""
        found = self._limits.get(rule)
        if found is None or found.usual != limit:
            found = self._limits[rule] = self._of(rule, limit)
        return found

    def _of(self, rule: str, limit: Limit) -> RuleLimits:
        if rule in self._carried:
            return RuleLimits(limit, {})
        return RuleLimits(
            limit,
            {
                host: [(at, _scaled(limit, factors)) for at, factors in steps]
                for host, steps in self._factors.items()
                if len(steps) > 1
            },
        )

    def _read(self, scenario: Scenario) -> None:
        file: _Factors = ()
        of_host: dict[str, _Factors] = dict.fromkeys(self._factors, ())
        for at, _, is_begin, fault in sorted(_events(scenario.faults), key=lambda each: each[:2]):
            part = (float(fault.args["part"]),) if is_begin else ()
            if fault.verb == "rules":
                file, names = part, [*of_host]
            else:
                names = [name for name in hosts_of(fault, scenario) if name in of_host]
                of_host |= dict.fromkeys(names, part)
            for name in names:
                self._factors[name].append((at, file + of_host[name]))


def _events(faults: Sequence[Fault]) -> Iterator[_Event]:
    """Yield the instants at which faults change limits."""
    for number, fault in enumerate(faults):
        if fault.verb in ("limits", "rules"):
            yield fault.at, number, True, fault
            yield inf if fault.until is None else fault.until, number, False, fault


def _scaled(limit: Limit, factors: _Factors) -> Limit:
    amount = limit.amount
    for factor in factors:
        amount = max(1, int(amount * factor))
    return limit if amount == limit.amount else replace(limit, amount=amount)


def conversions(place: Place, host: str, decided: Sequence[Answered]) -> list[tuple[float, float]]:
    """Return the intervals in which checks and charges that an owner decided convert the bucket of
    a host to the present limit."""
    lag_s = 0.0 if host == place.hosts[0] else REPLICATION_LAG_S
    return [(each.asked_at, each.answered_at + lag_s) for each in decided]
