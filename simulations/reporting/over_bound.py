"""Bound of the over-admission that the faults of a run allow, for its plot.

The bound is coarse: it holds for each counter at any time of the run. The exact laws judge each
decision by itself (`key_laws`).
"""

from ringfence.limiter import Algorithm, Limit
from ringfence.rules import Rule
from ringfence.rules.keys import encode_key
from ringfence.wire import Source
from simulations.judging.allowed_loss import (
    REPLICATION_LAG_S,
    is_strong,
    unreachable_spans,
    unreplicated_spans,
)
from simulations.judging.ledger import Column
from simulations.runtimes.virtual_time import EPOCH_NS
from simulations.scenarios.scenario import Scenario

__all__ = ["OverBound"]

_SPLIT_FAULTS = ("cut", "clog", "pause", "slow", "spikes", "busy", "reset", "limits", "clock_step")
"""Faults during which two members may decide for one key."""


class OverBound:
    """Bound of the units that may be admitted in one period under the faults of a run."""

    def __init__(self, scenario: Scenario, late_s: float, began: float | None) -> None:
        """`late_s` is the maximum age of remote counts on arrival; `began` is the start of the load
        in seconds of virtual time, or None if unknown."""
        self._began = began
        self._faults = scenario.faults
        self._datacenters = scenario.datacenters
        self._late_s = late_s
        self._unreplicated_spans = unreplicated_spans(scenario)
        self._unshared_spans = unreplicated_spans(scenario, is_shared=True)
        self._seen = scenario

    def bound(self, rule: Rule, column: Column, end: float) -> int:
        """Return the units of a key that may be admitted in one period under the faults of the
        run."""
        limit = rule.limit
        assert limit is not None
        is_shared = self._is_shared(rule)
        sides = self.sides(is_shared) - 1
        unshared = self._unshared(column, limit, is_shared)
        unreplicated = self._unreplicated(column, is_shared=is_shared)
        unreplicated += self._unreplicated_before_stalls(column)
        unreplicated += min(self._admitted_without_replica(rule, column), limit.ceiling)
        if self._seen.network.resets:  # A standby may decide, and the owner learns it later.
            unreplicated += sum(a.cost for a in column.admitted if a.source is Source.STANDBY)
        return self._admitted_by_one(limit, end) + unshared + unreplicated + limit.ceiling * sides

    def sides(self, is_shared: bool) -> int:
        """Return how many members may decide for one key at the same time, each up to the full
        limit."""
        splits = sum(
            fault.verb in _SPLIT_FAULTS
            or "seedless" in fault.args
            or ("share" in fault.args and is_strong(fault))
            for fault in self._faults
            # For data centers that are cut off, the age of their counts enters the bound instead.
            if not (is_shared and fault.verb == "cut" and fault.args.keys() == {"datacenter"})
        )
        return 1 + splits + (self._datacenters - 1 if is_shared and splits else 0)

    def _is_shared(self, rule: Rule) -> bool:
        """Return whether data centers share the counts of a rule."""
        return rule.scope == "global" and self._datacenters > 1

    def _admitted_by_one(self, limit: Limit, end: float) -> int:
        """Return the most units that one owner admits in a period under a limit, by the limit's
        algorithm."""
        if limit.is_bucket:
            return limit.ceiling + max(limit.ceiling, limit.amount)
        is_exact = limit.algorithm is Algorithm.SLIDING_WINDOW_LOG
        is_aligned = limit.calendar is None and not limit.first_hit
        if limit.algorithm is Algorithm.FIXED_WINDOW and is_aligned and self._began is not None:
            first = EPOCH_NS + round(self._began * 1e9)
            last = first + round(end * 1e9)
            is_exact = first // limit.period_ns == last // limit.period_ns
        return limit.ceiling if is_exact else 2 * limit.ceiling

    def _unshared(self, column: Column, limit: Limit, is_shared: bool) -> int:
        """Return the units that data centers may admit before they receive each other's counts."""
        if not is_shared:
            return 0
        late, worst = self._late_s, 0
        for answer in column.admitted:
            worst = max(
                worst, column.answered_within(answer.answered_at - late, answer.answered_at)
            )
        unsent = -(-limit.amount // 100)
        return (self._datacenters - 1) * (worst + unsent)

    def _unreplicated(self, column: Column, *, is_shared: bool) -> int:
        """Return the units admitted just before a crash, which may not have been replicated."""
        spans = self._unshared_spans if is_shared else self._unreplicated_spans
        return sum(column.answered_within(begin, end) for begin, end in spans)

    def _unreplicated_before_stalls(self, column: Column) -> int:
        """Return the units admitted just before a stall, which the standby may not have
        received."""
        stalls = [fault.at for fault in self._faults if fault.verb == "stall"]
        return sum(column.answered_within(at - REPLICATION_LAG_S, at) for at in stalls)

    def _admitted_without_replica(self, rule: Rule, column: Column) -> int:
        """Return the units admitted while the owner and the standby of the key were both
        stalled."""
        if not column.answers:
            return 0
        key = encode_key(rule.id, [column.answers[0].key])
        return sum(
            part.answered_within(begin, end)
            for part in column.by_datacenter()
            for begin, end in unreachable_spans(self._seen, min(part.datacenters), key)
        )
