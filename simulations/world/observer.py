"""Observer of a run: samples the cluster once a second and computes the time series of the
report.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Protocol

from ringfence import runtime
from ringfence.rules import Rule
from simulations.judging.invariants import Invariants
from simulations.judging.ledger import Answered, Ledger
from simulations.reporting.outcome import Point, Series, Span
from simulations.world.over_limit import limited_parts

__all__ = ["Observed", "Observer"]

_STALENESS = "staleness_ms_le_"
_STALEST = "staleness_ms_worst"


class Observed(Protocol):
    """Interface of a simulated cluster for its observer."""

    @property
    def now(self) -> float:
        """Return the seconds since the start of the load."""

    def names(self) -> list[str]:
        """Return the names of all hosts."""

    def views(self) -> Sequence[Mapping[str, str]]:
        """Return, for each node, the states of all members by name, as that node sees them."""

    def staleness(self) -> Sequence[tuple[str, tuple[str, int], Mapping[str, int]]]:
        """Return data about the age of counts sent to other data centers, for each node.

        Each row has the node's data center, the identity of its process (name and number of
        starts), and its metric counters.
        """

    def note(self, who: str, what: str) -> None:
        """Add an event to the history of the run."""


class Observer:
    """Observer of one run, which samples the cluster and records time series."""

    def __init__(self, world: Observed, ledger: Ledger) -> None:
        self.stalest_ms = 0.0
        """Largest age of a remote count on arrival."""
        self._world = world
        self._ledger = ledger
        self._states: dict[str, list[tuple[float, str]]] = {name: [] for name in world.names()}
        self._staleness: dict[str, list[Point]] = {}
        self._seen: dict[tuple[str, int], dict[str, int]] = {}

    async def run(self) -> None:
        """Sample the world once a second until cancelled."""
        while True:
            self.look()
            await runtime.sleep(1.0)

    def look(self) -> None:
        """Sample the state of the cluster once."""
        self._sample_members()
        self._sample_staleness()

    def _sample_members(self) -> None:
        views = self._world.views()
        for name, states in self._states.items():
            seen = Counter(view.get(name, "dead") for view in views)
            most = max(sorted(seen), key=lambda state: seen[state]) if seen else "dead"
            if not states or states[-1][1] != most:
                states.append((self._world.now, most))
                self._world.note(name, f"is {most} to most others")

    def _sample_staleness(self) -> None:
        worst: dict[str, float] = {}
        for datacenter, process, counters in self._world.staleness():
            now = {k: v for k, v in counters.items() if k.startswith(_STALENESS)}
            before = self._seen.get(process, {})
            self._seen[process] = now
            for name, count in now.items():
                if count > before.get(name, 0):
                    # A histogram bucket gives only an upper bound; the overall maximum limits it.
                    age_ms = min(float(name.removeprefix(_STALENESS)), float(counters[_STALEST]))
                    worst[datacenter] = max(worst.get(datacenter, 0.0), age_ms)
        for datacenter, age_ms in sorted(worst.items()):
            self._staleness.setdefault(datacenter, []).append((self._world.now, age_ms))
            self.stalest_ms = max(self.stalest_ms, age_ms)

    def series(self, rules: Mapping[str, Rule], invariants: Invariants) -> Series:
        """Return the time series of the report."""
        found = Series(staleness_ms=self._staleness)
        for name, states in self._states.items():
            for (start, state), (stop, _) in pairwise([*states, (self._world.now, "")]):
                found.members.append(Span(start, stop, name, state))
        answers = [answer for _, answer in self._ledger.answers]
        found.sources = _per_second(answers, lambda a: a.source.name.lower())
        found.latency_ms = _latencies(answers)
        for name, rule in list(rules.items())[:1]:
            self._add_busiest(found, name, rule, invariants)
        return found

    def _add_busiest(self, found: Series, name: str, rule: Rule, invariants: Invariants) -> None:
        keys = self._ledger.keys(name)
        assert rule.limit is not None
        if not keys:
            return
        period, ceiling = rule.limit.period_ns / 1e9, rule.limit.ceiling
        column = self._ledger.column(name, keys[0])
        datacenters = zip(sorted(column.datacenters), column.by_datacenter(), strict=True)
        seconds = range(int(self._world.now) + 1)
        found.key = f"{name}={keys[0]}"
        found.period_s, found.limit = period, ceiling
        found.is_shared = rule.scope != "datacenter"
        found.admitted = {
            datacenter: [(s, part.answered_within(s - period, s)) for s in seconds]
            for datacenter, part in datacenters
        }
        columns = limited_parts(rule, column)
        bound = max(invariants.bound(rule, each, self._world.now) for each in columns) - ceiling
        for second in seconds:
            units = max(each.answered_within(second - period, second) for each in columns)
            found.over.append((second, max(0, units - ceiling)))
            found.over_bound.append((second, bound))


def _per_second(answers: list[Answered], label: object) -> dict[str, list[Point]]:
    assert callable(label)
    counts: dict[str, Counter[int]] = {}
    for answer in answers:
        counts.setdefault(label(answer), Counter())[int(answer.answered_at)] += answer.cost
    last = int(max((answer.answered_at for answer in answers), default=0.0))
    return {
        name: [(float(second), float(counts[name][second])) for second in range(last + 1)]
        for name in sorted(counts)
    }


def _latencies(answers: list[Answered]) -> dict[str, list[Point]]:
    by_second: dict[int, list[float]] = {}
    for answer in answers:
        by_second.setdefault(int(answer.answered_at), []).append(
            (answer.answered_at - answer.asked_at) * 1000
        )
    found: dict[str, list[Point]] = {"p50": [], "p99": []}
    for second, took in sorted(by_second.items()):
        took.sort()
        found["p50"].append((float(second), took[len(took) // 2]))
        found["p99"].append((float(second), took[min(len(took) - 1, int(len(took) * 0.99))]))
    return found
