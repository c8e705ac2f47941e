"""The invariants: what must hold of a run, whatever went wrong in it.

Each law is as strict as the faults allow: a graceful change loses nothing, a crash loses what one
interval of the standby's copies held, and where two decide at once each may admit the limit.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf

from ringfence.limiter import Algorithm, Limit
from ringfence.rules import Rule
from ringfence.wire import Source
from simulations.judging.algorithm_invariants import breaches
from simulations.judging.allowed_loss import (
    UNCOPIED,
    emptied,
    is_strong,
    overwhelmed,
    uncopied_spans,
)
from simulations.judging.ledger import Column, Ledger
from simulations.judging.slots import HoldLedger, slot_violations
from simulations.reporting.outcome import Violation
from simulations.runtimes.virtual_time import EPOCH_NS
from simulations.scenarios.faults import VERBS
from simulations.scenarios.scenario import Scenario

__all__ = ["Final", "Invariants"]

_MOST_KEYS = 300
"""Keys of each rule that are judged, the busiest ones."""
_SPLITS = ("cut", "clog", "pause", "slow", "spikes", "busy", "reset", "limits", "clock_step")
"""Faults in which two may decide for one key at once."""
_KEPT = (Algorithm.SLIDING_WINDOW_LOG, Algorithm.FIXED_WINDOW)
"""Algorithms that forget nothing within a period."""
_DEADLINE = 3.5
"""Seconds: twice the patience with a busy owner, then the standby's."""

_FAILURES = 2
"""At a time in a data center: with more of them, lost hits and those counted twice are not judged.
"""
_ON_THE_WAY = 0.2
"""Seconds by which hits are younger where a counter was moved: what moves tells ages, and comes
that much later when its datagram was lost once or twice."""
_MOVED = 0.01
"""The same where no datagram is lost: a few round trips for a shard in several parts."""
_DRIFT = 0.001
"""Part by which a period is longer for a host whose clock drifts by 500 ppm, the most that is
drawn, and is moved back by as much to where the others' stand."""


@dataclass(slots=True)
class Final:
    """What was found when all was calm again."""

    used: dict[tuple[str, str, str], int] = field(default_factory=dict)
    """Units that the owners count, past the limit too, by data center, rule and key."""
    problems: list[str] = field(default_factory=list)
    """What had not settled."""
    bugs: list[str] = field(default_factory=list)


class Invariants:
    """Judges one run."""

    def __init__(
        self,
        rules: dict[str, Rule],
        scenario: Scenario,
        late_s: float,
        began: float | None = None,
    ) -> None:
        """`late_s` is the oldest that counts of other data centers were when they came; `began`
        the instant that all times count from, in seconds of virtual time, where that is known."""
        self._began = began
        self._rules = rules
        self._faults = () if scenario.is_blind else scenario.faults
        self._datacenters = scenario.datacenters
        self._late_s = late_s
        seen = replace(scenario, faults=self._faults)
        self._uncopied_spans = uncopied_spans(seen)
        self._untold_spans = uncopied_spans(seen, is_shared=True)
        self._overwhelmed = overwhelmed(seen, failures=_FAILURES)
        self._emptied = emptied(seen)
        self._loses = scenario.network.loss > 0
        self.over = 0
        """Units above the limit, of the worst key."""
        self.lost = 0
        self.counted_twice = 0

    def violations(self, ledger: Ledger, final: Final, end: float) -> list[Violation]:
        """All that did not hold."""
        found = [Violation("convergence", end, text) for text in final.problems]
        found += [Violation("bug", end, text) for text in final.bugs]
        for name, rule in self._rules.items():
            for key in ledger.keys(name)[:_MOST_KEYS]:
                column = ledger.column(name, key)
                if rule.scope != "datacenter" or self._datacenters == 1:
                    found += self._of_key(name, rule, key, column, final, end)
                else:
                    for part in column.by_datacenter():
                        found += self._of_key(name, rule, key, part, final, end)
        if not self._is_unclean:
            found += [
                Violation(
                    "outage", a.told, f"{a.key} was decided by {a.source.name}, not its owner"
                )
                for _, a in ledger.answers
                if a.source not in (Source.OWNER, Source.CACHE)
                and a.datacenter not in self._overwhelmed | self._emptied
            ][:10]
        found += [
            Violation("deadline", a.asked, f"{a.key} waited {a.told - a.asked:.2f} s for an answer")
            for _, a in ledger.answers
            if a.told - a.asked > _DEADLINE
        ][:10]
        found += [
            Violation("deadline", asked, f"{what} has waited {end - asked:.2f} s for an answer")
            for what, asked in ledger.open.values()
            if end - asked > _DEADLINE
        ][:10]
        return found

    def slot_violations(
        self, ledger: HoldLedger, rules: Mapping[str, Rule], final: Final, end: float
    ) -> list[Violation]:
        """What did not hold of slots of concurrency limits."""
        spans = [*self._uncopied_spans]
        spans += [(each.at - UNCOPIED, each.at) for each in self._faults if each.verb == "stall"]
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
        """Units of a key that may pass in a period of its limit, all faults taken into account."""
        limit = rule.limit
        assert limit is not None
        is_shared = self._is_shared(rule)
        sides = self._sides(is_shared) - 1
        unheard = self._unheard(column, limit, is_shared)
        uncopied = self._uncopied(column, is_shared=is_shared)
        uncopied += self._unseen_by_standbys(column)
        return self._most(limit, end) + unheard + uncopied + limit.ceiling * sides

    def _of_key(
        self, name: str, rule: Rule, key: str, column: Column, final: Final, end: float
    ) -> Iterator[Violation]:
        limit = rule.limit
        assert limit is not None
        period = limit.period_ns / 1e9
        is_shared = self._is_shared(rule)
        uncopied = self._uncopied(column, is_shared=is_shared)
        most, when = column.most_in(period)
        bound = self.bound(rule, column, end)
        self.over = max(self.over, most - limit.ceiling)
        if most > bound:
            text = f"{name}={key}: {most} units in {period:g} s, at most {bound} may pass"
            yield Violation("over_admission", when, text)
        yield from self._wrong_denials(name, key, column, limit)
        yield from self._advice(name, key, column, limit)
        if self._began is not None and self._is_decided_by_one(rule):
            for breach in breaches(column, limit, self._began):
                yield Violation(breach.property, breach.at, f"{name}={breach.text}")
                break
        if is_shared and limit.algorithm is Algorithm.SLIDING_WINDOW and not self._is_unclean:
            told = [
                min(n, limit.ceiling)
                for (_, rule_, k), n in sorted(final.used.items())
                if (rule_, k) == (name, key)
            ]
            if max(told, default=0) - min(told, default=0) > limit.ceiling // 100 + 2:
                text = f"{name}={key}: data centers do not agree: {told}"
                yield Violation("agreement", end, text)
        if period > end and limit.algorithm in _KEPT and rule.scope != "split":
            yield from self._conservation(name, key, column, limit, final, is_shared, uncopied, end)

    def _conservation(
        self,
        name: str,
        key: str,
        column: Column,
        limit: Limit,
        final: Final,
        is_shared: bool,
        uncopied: int,
        end: float,
    ) -> Iterator[Violation]:
        """What was admitted is counted, and nothing else; of charges all, past the limit too.

        Without charges no more than the limit is compared: when splits heal, hits add up to more.
        """
        most = inf if column.has_charges else limit.ceiling
        units = int(min(column.units, most))
        by_datacenter = {
            dc: int(min(n, most))
            for (dc, rule, k), n in final.used.items()
            if (rule, k) == (name, key) and (is_shared or dc in column.datacenters)
        }
        found = by_datacenter.values()
        # What a data center lost in a crash, others may have heard of before.
        if is_shared and found and max(found) - min(found) > uncopied:
            text = f"{name}={key}: data centers do not agree: {by_datacenter}"
            yield Violation("agreement", end, text)
        used = max(by_datacenter.values(), default=0)
        lost, twice = units - used, used - units
        self.lost += max(0, lost)
        self.counted_twice += max(0, twice)
        if self._overwhelmed if is_shared else self._overwhelmed & column.datacenters:
            return
        if lost > uncopied:
            text = f"{name}={key}: {units} units admitted, {used} counted, {uncopied} may be lost"
            yield Violation("lost_hits", end, text)
        # A check that its first member did not answer may have been counted there all the same;
        # after faults other than stalls by a second member, too, when the two cannot compare.
        times = 0 if not self._is_unclean else 1 if self._is_only_stalled else 2
        may_be_twice = times * column.by_policy if times == 1 else times * column.unanswered
        if twice > may_be_twice:
            text = f"{name}={key}: {used} units counted, {units} admitted"
            yield Violation("invented_hits", end, text)

    def _wrong_denials(
        self, name: str, key: str, column: Column, limit: Limit
    ) -> Iterator[Violation]:
        if self._is_unclean:
            return  # What one admitted and could not tell was counted, and rightly denied later.
        seconds = limit.period_ns / 1e9
        if limit.algorithm is Algorithm.SLIDING_WINDOW:
            seconds *= 2  # The window before counts by its part.
        if self._loses:
            seconds += _ON_THE_WAY
        elif any(fault.verb in ("leave", "crash") for fault in self._faults):
            seconds += _MOVED
        if any(fault.verb == "clock_drift" for fault in self._faults):
            seconds *= 1 + _DRIFT
        for answer in column.answers:
            if answer.allowed or not answer.is_counted:
                continue
            counted = column.at_most_counted(answer, seconds)
            if counted + answer.cost <= limit.ceiling:
                text = (
                    f"{name}={key}: denied although at most {counted} of {limit.ceiling} were used"
                )
                yield Violation("wrong_denial", answer.told, text)
                return

    def _advice(self, name: str, key: str, column: Column, limit: Limit) -> Iterator[Violation]:
        """Who is denied is told when to come back."""
        longest = 2 * limit.period_ns / 1e9
        if limit.is_bucket and column.has_charges:
            longest += column.units / max(1, limit.amount) * limit.period_ns / 1e9
        for a in column.answers:
            if a.allowed or not a.is_counted or (a.retry_after is None and a.cost > limit.ceiling):
                continue
            if a.retry_after is None or not 0 < a.retry_after <= longest:
                text = f"{name}={key}: denied, and told to come back after {a.retry_after} s"
                yield Violation("retry_after", a.told, text)
                return

    def _is_decided_by_one(self, rule: Rule) -> bool:
        """Whether one owner at a time decides a key, and nothing that it knows is ever lost."""
        if self._is_unclean:
            return False
        return rule.scope == "home" or self._datacenters == 1

    def _is_shared(self, rule: Rule) -> bool:
        """Whether several data centers decide by what they hear of each other."""
        return rule.scope == "global" and self._datacenters > 1

    def _most(self, limit: Limit, end: float) -> int:
        """Units that one owner lets through in a period, by the nature of the algorithm."""
        is_exact = limit.algorithm is Algorithm.SLIDING_WINDOW_LOG
        if limit.algorithm is Algorithm.FIXED_WINDOW and self._began is not None:
            first = EPOCH_NS + round(self._began * 1e9)
            last = first + round(end * 1e9)
            is_exact = first // limit.period_ns == last // limit.period_ns
        return limit.ceiling if is_exact else 2 * limit.ceiling

    def _unheard(self, column: Column, limit: Limit, is_shared: bool) -> int:
        """What data centers admit before they hear of each other."""
        if not is_shared:
            return 0
        late, worst = self._late_s, 0
        for answer in column.admitted:
            worst = max(worst, column.told_within(answer.told - late, answer.told))
        untold = -(-limit.amount // 100)
        return (self._datacenters - 1) * (worst + untold)

    def _uncopied(self, column: Column, *, is_shared: bool) -> int:
        """What was admitted so shortly before a crash that nobody else knows of it."""
        spans = self._untold_spans if is_shared else self._uncopied_spans
        return sum(column.told_within(begin, end) for begin, end in spans)

    def _unseen_by_standbys(self, column: Column) -> int:
        """What was admitted so shortly before a stall that the standby went on without it."""
        stalls = [fault.at for fault in self._faults if fault.verb == "stall"]
        return sum(column.told_within(at - UNCOPIED, at) for at in stalls)

    def _sides(self, is_shared: bool) -> int:
        """How many may decide for one key at once, each up to the limit."""
        splits = sum(
            fault.verb in _SPLITS
            or "seedless" in fault.args
            or ("share" in fault.args and is_strong(fault))
            for fault in self._faults
            # Data centers that do not hear each other are known by how old their counts are.
            if not (is_shared and fault.verb == "cut" and fault.args.keys() == {"datacenter"})
        )
        return 1 + splits + (self._datacenters - 1 if is_shared and splits else 0)

    @property
    def _is_only_stalled(self) -> bool:
        """Whether processes were stopped, and nothing else went wrong."""
        return all(fault.verb == "stall" for fault in self._faults)

    @property
    def _is_unclean(self) -> bool:
        return any(
            VERBS[fault.verb].is_unclean or ("share" in fault.args and is_strong(fault))
            for fault in self._faults
        )
