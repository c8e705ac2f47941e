"""Invariants that every run must satisfy, whatever its faults.

Each invariant is as strict as the faults allow. A graceful leave loses no hits. A crash loses at
most the hits of one replication interval. Where two members decide at the same time, each may admit
the whole limit.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf

from ringfence.limiter import Algorithm, Limit
from ringfence.rules import Rule
from ringfence.rules.keys import encode_key
from ringfence.wire import Source
from simulations.judging.algorithm_invariants import breaches
from simulations.judging.allowed_loss import (
    REPLICATION_LAG_S,
    emptied,
    is_strong,
    overwhelmed,
    unreachable_spans,
    unreplicated_spans,
)
from simulations.judging.broken_connections import BrokenConnections
from simulations.judging.ledger import Column, Ledger
from simulations.judging.slots import HoldLedger, slot_violations
from simulations.reporting.outcome import Violation
from simulations.runtimes.virtual_time import EPOCH_NS
from simulations.scenarios.fault_injection import VERBS
from simulations.scenarios.scenario import Scenario

__all__ = ["Final", "Invariants"]

_MAX_KEYS = 300
"""Keys of each rule that are checked, most frequent first."""
_SPLIT_FAULTS = ("cut", "clog", "pause", "slow", "spikes", "busy", "reset", "limits", "clock_step")
"""Faults during which two members may decide for one key."""
_WINDOW_ALGORITHMS = (Algorithm.FIXED_WINDOW, Algorithm.SLIDING_WINDOW)
"""Algorithms that admit at most the limit in each aligned window."""
_EXACT_ALGORITHMS = (Algorithm.SLIDING_WINDOW_LOG, Algorithm.FIXED_WINDOW)
"""Algorithms that keep every unit for a whole period."""
_DEADLINE_S = 3.5
"""Seconds in which each check must have an answer: two time-outs of a busy owner, then the
standby's answer."""

_MAX_FAILURES = 2
"""Simultaneous failures in a data center above which lost and double-counted hits are not checked.
"""
_LOSSY_TRANSFER_S = 0.2
"""Seconds by which transferred hits may seem too young. A transfer carries ages, and the loss of
one or two datagrams delays it by this much."""
_TRANSFER_S = 0.01
"""The same without datagram loss: a few round trips for a shard in several parts."""
_DRIFT_SHARE = 0.001
"""Part by which a period may seem longer on a host with clock drift. Generated drifts are at
most 500 ppm, and the correction towards the other clocks adds as much again."""


@dataclass(slots=True)
class Final:
    """State of the cluster after all faults have ended and their effects are over."""

    used: dict[tuple[str, str, str], int] = field(default_factory=dict)
    """Units that the owners count, also beyond the limit, by data center, rule and key."""
    problems: list[str] = field(default_factory=list)
    """Descriptions of what had not converged."""
    bugs: list[str] = field(default_factory=list)
    broken: BrokenConnections = field(default_factory=BrokenConnections)


class Invariants:
    """Checker of all invariants of one run."""

    def __init__(
        self,
        rules: dict[str, Rule],
        scenario: Scenario,
        late_s: float,
        began: float | None = None,
    ) -> None:
        """`late_s` is the maximum age of remote counts on arrival.

        `began` is the start of the load in seconds of virtual time, or None if unknown.
        """
        self._began = began
        self._rules = rules
        self._faults = () if scenario.is_blind else scenario.faults
        self._datacenters = scenario.datacenters
        self._late_s = late_s
        seen = replace(scenario, faults=self._faults)
        self._unreplicated_spans = unreplicated_spans(seen)
        self._unshared_spans = unreplicated_spans(seen, is_shared=True)
        self._seen = seen
        self._overwhelmed = overwhelmed(seen, failures=_MAX_FAILURES)
        self._emptied = emptied(seen)
        self._loses = scenario.network.loss > 0
        self.over = 0
        """Largest number of units above the limit of a key."""
        self.lost = 0
        self.counted_twice = 0

    def violations(self, ledger: Ledger, final: Final, end: float) -> list[Violation]:
        """Return all violations, except those about slots of concurrency limits."""
        found = [Violation("convergence", end, text) for text in final.problems]
        found += [Violation("bug", end, text) for text in final.bugs]
        for name, rule in self._rules.items():
            for key in ledger.keys(name)[:_MAX_KEYS]:
                column = ledger.column(name, key)
                if rule.scope != "datacenter" or self._datacenters == 1:
                    found += self._key_violations(name, rule, key, column, final, end)
                else:
                    for part in column.by_datacenter():
                        found += self._key_violations(name, rule, key, part, final, end)
        if not self._is_unclean:
            found += [
                Violation(
                    "outage",
                    a.answered_at,
                    f"{a.key} was decided by {a.source.name}, not its owner",
                )
                for rule_name, a in ledger.answers
                if a.source not in (Source.OWNER, Source.CACHE)
                and a.datacenter not in self._overwhelmed | self._emptied
                and not final.broken.explain(rule_name, a)
            ][:10]
        found += [
            Violation(
                "deadline",
                a.asked_at,
                f"{a.key} waited {a.answered_at - a.asked_at:.2f} s for an answer",
            )
            for _, a in ledger.answers
            if a.answered_at - a.asked_at > _DEADLINE_S
        ][:10]
        found += [
            Violation("deadline", asked, f"{what} has waited {end - asked:.2f} s for an answer")
            for what, asked in ledger.open.values()
            if end - asked > _DEADLINE_S
        ][:10]
        return found

    def slot_violations(
        self, ledger: HoldLedger, rules: Mapping[str, Rule], final: Final, end: float
    ) -> list[Violation]:
        """Return the violations about slots of concurrency limits."""
        spans = [*self._unreplicated_spans]
        spans += [
            (each.at - REPLICATION_LAG_S, each.at) for each in self._faults if each.verb == "stall"
        ]
        found: list[Violation] = []
        for name in ledger.rules():
            limit = rules[name].limit
            assert limit is not None
            for (datacenter, _), column in ledger.columns(name).items():
                if datacenter not in self._overwhelmed | self._emptied:
                    found += slot_violations(
                        column,
                        limit.ceiling,
                        sides=self._sides(is_shared=False),
                        lost_spans=spans,
                        is_clean=not self._faults,
                    )
        if not any(fault.verb == "clock_step" for fault in self._faults):
            slots_left = {place: n for place, n in final.used.items() if place[1] in ledger.rules()}
            found += [
                Violation("slot_leak", end, f"{rule}={key}: {used} slots of {where} are never free")
                for (where, rule, key), used in slots_left.items()
                if used
            ]
        return found

    def bound(self, rule: Rule, column: Column, end: float) -> int:
        """Return the units of a key that may be admitted in one period under the faults of the
        run."""
        limit = rule.limit
        assert limit is not None
        is_shared = self._is_shared(rule)
        sides = self._sides(is_shared) - 1
        unshared = self._unshared(column, limit, is_shared)
        unreplicated = self._unreplicated(column, is_shared=is_shared)
        unreplicated += self._unreplicated_before_stalls(column)
        unreplicated += min(self._admitted_without_replica(rule, column), limit.ceiling)
        if self._seen.network.resets:  # A standby may decide, and the owner learns it later.
            unreplicated += sum(a.cost for a in column.admitted if a.source is Source.STANDBY)
        return self._admitted_by_one(limit, end) + unshared + unreplicated + limit.ceiling * sides

    def _key_violations(
        self, name: str, rule: Rule, key: str, column: Column, final: Final, end: float
    ) -> Iterator[Violation]:
        limit = rule.limit
        assert limit is not None
        period = limit.period_ns / 1e9
        is_shared = self._is_shared(rule)
        unreplicated = self._unreplicated(column, is_shared=is_shared)
        most, when = column.most_in(period)
        bound = self.bound(rule, column, end)
        self.over = max(self.over, most - limit.ceiling)
        if most > bound:
            text = f"{name}={key}: {most} units in {period:g} s, at most {bound} may pass"
            yield Violation("over_admission", when, text)
        else:
            excess = bound - self._admitted_by_one(limit, end)
            yield from self._over_in_window(name, key, column, limit, excess)
        if rule.scope != "split":  # Each data center has a part of the limit.
            yield from self._wrong_denials(name, key, column, limit)
        if not rule.shadow:  # Its denials have no retry time.
            yield from self._wrong_retry_times(name, key, column, limit, is_shared)
        if self._began is not None and self._is_decided_by_one(rule):
            for breach in breaches(column, limit, self._began):
                yield Violation(breach.property, breach.at, f"{name}={breach.text}")
                break
        if is_shared and limit.algorithm is Algorithm.SLIDING_WINDOW and not self._is_unclean:
            used = [
                min(n, limit.ceiling)
                for (_, rule_, k), n in sorted(final.used.items())
                if (rule_, k) == (name, key)
            ]
            if max(used, default=0) - min(used, default=0) > limit.ceiling // 100 + 2:
                text = f"{name}={key}: data centers do not agree: {used}"
                yield Violation("agreement", end, text)
        if period > end and limit.algorithm in _EXACT_ALGORITHMS and rule.scope != "split":
            yield from self._conservation(
                name, key, column, limit, final, is_shared, unreplicated, end
            )

    def _over_in_window(
        self, name: str, key: str, column: Column, limit: Limit, excess: int
    ) -> Iterator[Violation]:
        """Yield a violation when a fixed or sliding window admitted more than the limit plus
        `excess`."""
        has_clock_faults = any(fault.verb.startswith("clock") for fault in self._faults)
        is_aligned = limit.calendar is None and not limit.first_hit
        if self._began is None or has_clock_faults or limit.algorithm not in _WINDOW_ALGORITHMS:
            return
        if not is_aligned:
            return
        period = limit.period_ns / 1e9
        most, when = column.most_in_window(period, EPOCH_NS / 1e9 + self._began)
        if most > limit.ceiling + excess:
            text = f"{name}={key}: {most} units in one window, at most {limit.ceiling + excess}"
            yield Violation("over_admission", when, f"{text} may pass")

    def _conservation(
        self,
        name: str,
        key: str,
        column: Column,
        limit: Limit,
        final: Final,
        is_shared: bool,
        unreplicated: int,
        end: float,
    ) -> Iterator[Violation]:
        """Check that owners count exactly the units that were admitted.

        Units of charges, which no limit restricts, are included. Without charges, both numbers are
        capped at the limit, since hits of both sides of a healed partition may add up to more.
        """
        most = inf if column.has_charges else limit.ceiling
        units = int(min(column.units, most))
        by_datacenter = {
            dc: int(min(n, most))
            for (dc, rule, k), n in final.used.items()
            if (rule, k) == (name, key) and (is_shared or dc in column.datacenters)
        }
        found = by_datacenter.values()
        # Other data centers may have received hits that a data center then lost in a crash.
        if is_shared and found and max(found) - min(found) > unreplicated:
            text = f"{name}={key}: data centers do not agree: {by_datacenter}"
            yield Violation("agreement", end, text)
        used = max(by_datacenter.values(), default=0)
        lost, twice = units - used, used - units
        self.lost += max(0, lost)
        self.counted_twice += max(0, twice)
        if self._overwhelmed if is_shared else self._overwhelmed & column.datacenters:
            return
        if lost > unreplicated:
            text = (
                f"{name}={key}: {units} units admitted, {used} counted, {unreplicated} may be lost"
            )
            yield Violation("lost_hits", end, text)
        # The first member may have counted a check without answering it. After faults other than
        # stalls a second member may have counted it too, if the two cannot deduplicate it.
        times = 0 if not self._is_unclean else 1 if self._is_only_stalled else 2
        may_be_twice = times * column.by_policy if times == 1 else times * column.unanswered
        if twice > may_be_twice:
            text = f"{name}={key}: {used} units counted, {units} admitted"
            yield Violation("invented_hits", end, text)

    def _wrong_denials(
        self, name: str, key: str, column: Column, limit: Limit
    ) -> Iterator[Violation]:
        if self._is_unclean:
            return  # Unanswered checks were counted, so later denials are correct.
        seconds = limit.period_ns / 1e9
        if limit.is_bucket and column.has_charges:
            return  # A debt may drain for many periods.
        if limit.is_bucket:  # A bucket larger than the amount drains for several periods.
            seconds *= max(1.0, limit.ceiling / max(1, limit.amount))
        if limit.algorithm is Algorithm.SLIDING_WINDOW:
            seconds *= 2  # The previous window counts in part.
        if self._loses:
            seconds += _LOSSY_TRANSFER_S
        elif any(fault.verb in ("leave", "crash") for fault in self._faults):
            seconds += _TRANSFER_S
        if any(fault.verb == "clock_drift" for fault in self._faults):
            seconds *= 1 + _DRIFT_SHARE
        for answer in column.answers:
            if answer.allowed or not answer.is_counted:
                continue
            counted = column.possibly_counted(answer, seconds)
            if counted + answer.cost <= limit.ceiling:
                text = (
                    f"{name}={key}: denied although at most {counted} of {limit.ceiling} were used"
                )
                yield Violation("wrong_denial", answer.answered_at, text)
                return

    def _wrong_retry_times(
        self, name: str, key: str, column: Column, limit: Limit, is_shared: bool
    ) -> Iterator[Violation]:
        """Yield a violation for each denial with a wrong retry time."""
        longest = 2 * limit.period_ns / 1e9
        if limit.is_bucket:
            longest *= max(1.0, limit.ceiling / max(1, limit.amount))
            longest *= self._datacenters if is_shared else 1  # They add their levels.
        lowered = [float(f.args["part"]) for f in self._faults if f.verb == "limits"]
        highest = max(1, int(limit.amount * min(lowered))) if lowered else limit.ceiling
        if limit.is_bucket and lowered:
            longest /= min(lowered)
        if limit.is_bucket and column.has_charges:
            longest += column.units / max(1, limit.amount) * limit.period_ns / 1e9
        for a in column.answers:
            if a.allowed or not a.is_counted or (a.retry_after is None and a.cost > highest):
                continue
            if a.retry_after is None or not 0 < a.retry_after <= longest:
                text = f"{name}={key}: denied with a retry time of {a.retry_after} s"
                yield Violation("retry_after", a.answered_at, text)
                return

    def _is_decided_by_one(self, rule: Rule) -> bool:
        """Return whether each key has one owner at a time and its counters are never lost."""
        if self._is_unclean:
            return False
        return rule.scope == "home" or self._datacenters == 1

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
        refunds = sum(
            a.cost
            for a in column.refunded
            if any(a.asked_at <= end and a.refund_done_at >= begin for begin, end in spans)
        )
        return refunds + sum(column.answered_within(begin, end) for begin, end in spans)

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

    def _sides(self, is_shared: bool) -> int:
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

    @property
    def _is_only_stalled(self) -> bool:
        """Return whether all faults of the run are stalls of a process."""
        return all(fault.verb == "stall" for fault in self._faults)

    @property
    def _is_unclean(self) -> bool:
        return any(
            VERBS[fault.verb].is_unclean or ("share" in fault.args and is_strong(fault))
            for fault in self._faults
        )
