"""Invariants that every run must satisfy, whatever its faults.

Each invariant is as strict as the faults allow. A graceful leave loses no hits. A crash loses at
most the hits of one replication interval. Where two members decide at the same time, each may admit
the whole limit.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import inf

import msgspec

from hashring import shard_of
from ringfence.limiter import Algorithm, Limit
from ringfence.rules import Rule
from ringfence.rules.keys import encode_key
from ringfence.wire import Source
from simulations.judging.allowed_loss import (
    REPLICATION_LAG_S,
    emptied,
    members_of,
    overwhelmed,
    unreplicated_spans,
)
from simulations.judging.broken_connections import BrokenConnections
from simulations.judging.counted_units import EVERYWHERE, CounterView
from simulations.judging.disturbance import Disturbances
from simulations.judging.divided_limits import judge_divided, undivided
from simulations.judging.excuses import Excuses, Holders, Place
from simulations.judging.judged import Judged
from simulations.judging.key_laws import Judgement, Reading, judge_counter
from simulations.judging.ledger import Answered, Column, Ledger
from simulations.judging.limits_in_force import LimitsInForce
from simulations.judging.slots import HeldSlot, HoldLedger, slot_violations
from simulations.reporting.outcome import Violation
from simulations.reporting.over_bound import OverBound
from simulations.scenarios.scenario import Scenario

__all__ = ["MAX_FAILURES", "Final", "Invariants"]

_MAX_OUTAGES = 10
"""Most reported violations of the law that owners decide."""
_SPLIT_FAULTS = ("cut", "clog", "pause", "slow", "spikes", "busy", "reset", "limits", "clock_step")
"""Faults during which two members may decide for one key."""
_WINDOW_ALGORITHMS = (Algorithm.FIXED_WINDOW, Algorithm.SLIDING_WINDOW)
"""Algorithms that admit at most the limit in each aligned window."""
_EXACT_ALGORITHMS = (Algorithm.SLIDING_WINDOW_LOG, Algorithm.FIXED_WINDOW)
"""Algorithms that keep every unit for a whole period."""
_DEADLINE_S = 3.5
"""Seconds in which each check must have an answer: two time-outs of a busy owner, then the
standby's answer."""

MAX_FAILURES = 2
"""Simultaneous failures in a data center above which lost and double-counted hits are not checked.
"""


@dataclass(slots=True)
class Final:
    """State of the cluster after all faults have ended and their effects are over."""

    used: dict[tuple[str, str, str], int] = field(default_factory=dict)
    """Units that the owners count, also beyond the limit, by data center, rule and key."""
    problems: list[str] = field(default_factory=list)
    """Descriptions of what had not converged."""
    bugs: list[str] = field(default_factory=list)
    statistics: list[str] = field(default_factory=list)
    """Differences between the statistics of nodes and the answers of clients."""
    replicas: list[str] = field(default_factory=list)
    """Replicas of standbys that differ from the counters of their owners."""
    lending: list[str] = field(default_factory=list)
    """Wrong answers and counts while clients borrow units."""
    paused: list[str] = field(default_factory=list)
    """Wrong counts after a pause of an owner."""
    rotation: list[str] = field(default_factory=list)
    """Errors after a rotation of the cluster key."""
    commands: list[str] = field(default_factory=list)
    """Wrong answers of the commands of an operator."""
    views: list[str] = field(default_factory=list)
    """Differences between the views of the admin ports and the cluster."""
    read_from: float | None = None
    """Time at which the reading of the counters began; None if it took no time."""
    broken: BrokenConnections = field(default_factory=BrokenConnections)
    disturbances: Disturbances = field(default_factory=Disturbances)
    holders: Holders = field(default_factory=Holders)
    longest_queue_s: float = 0.0
    """Longest time that busy hosts have held one message up."""

    def used_by_key(self) -> dict[tuple[str, str], dict[str, int]]:
        """Return the units that the owners count: by rule and key, then by data center."""
        found: dict[tuple[str, str], dict[str, int]] = {}
        for (datacenter, rule, key), units in sorted(self.used.items()):
            found.setdefault((rule, key), {})[datacenter] = units
        return found


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
        self._seen = msgspec.structs.replace(scenario, faults=self._faults)
        self._over_bound = OverBound(self._seen, late_s, began)
        self.lost = 0
        self.counted_twice = 0
        self.judged = Judged()
        self._places: dict[tuple[str, str, str], Place] = {}

    def violations(self, ledger: Ledger, final: Final, end: float) -> list[Violation]:
        """Return all violations, except those about slots of concurrency limits."""
        found = [Violation("convergence", end, text) for text in final.problems]
        found += [Violation("bug", end, text) for text in final.bugs]
        found += [Violation("statistics", end, text) for text in final.statistics]
        found += [Violation("replicas", end, text) for text in final.replicas]
        found += [Violation("lending", end, text) for text in final.lending]
        found += [Violation("paused_owner", end, text) for text in final.paused]
        found += [Violation("key_rotation", end, text) for text in final.rotation]
        found += [Violation("commands", end, text) for text in final.commands]
        found += [Violation("views", end, text) for text in final.views]
        self._excuses = Excuses(
            *(self._seen, final.disturbances, final.broken, final.holders),
            longest_queue_s=final.longest_queue_s,
        )
        self._in_force = LimitsInForce(self._seen)
        self._places.clear()
        for name, answer in ledger.undecided:
            self._excuses.add_to_group(self._place(name, answer.key, answer.datacenter), answer)
        self._broken_groups = {
            answer.group
            for name, answer in ledger.undecided
            if self._is_broken(name, answer, final)
        }
        used = final.used_by_key()
        judgements: dict[int, Judgement] = {}
        for name, rule in self._rules.items():
            for key in ledger.keys(name):
                column = ledger.column(name, key)
                units = used.get((name, key), {})
                read = end if final.read_from is None else final.read_from, end
                found += self._judge_key(name, rule, key, column, units, read, judgements)
        found += self._decision_violations(ledger, final, judgements)
        return found + self._deadline_violations(ledger, end)

    def bound(self, rule: Rule, column: Column, end: float) -> int:
        """Return the units of a key that may be admitted in one period under the faults of the
        run."""
        return self._over_bound.bound(rule, column, end)

    def _judge_key(
        self,
        name: str,
        rule: Rule,
        key: str,
        column: Column,
        used_by_datacenter: Mapping[str, int],
        read: tuple[float, float],
        judgements: dict[int, Judgement],
    ) -> Iterator[Violation]:
        """Judge all decisions on one counter by the exact laws; yield violations of its final
        reading, which took the time span `read`."""
        assert rule.limit is not None
        asking = sorted({a.datacenter for a in (*column.answers, *column.refunded)})
        places = {where: self._place(name, key, where) for where in asking}
        is_divided = rule.scope == "split"
        is_together = is_divided or (self._datacenters > 1 and rule.scope == "global")
        deciders = sorted({place.datacenter for place in places.values()})
        for datacenter in [EVERYWHERE] if is_divided else deciders:
            rows, refunded = (
                [a for a in each if is_together or places[a.datacenter].datacenter == datacenter]
                for each in (column.answers, column.refunded)
            )
            shared = {
                where: place
                for where, place in places.items()
                if is_together or place.datacenter == datacenter
            }
            limits = self._in_force.of(name, rule.limit)
            if is_divided:
                limits = limits.mapped(lambda limit: undivided(limit, self._datacenters))
            counter = CounterView(
                *(limits, shared, datacenter, self._excuses, self._began or 0.0, rule.shadow),
                bounded_refunds=self._seen.bounded_refunds,
            )
            text = f"{name}={key}"
            if is_divided:
                everywhere = {
                    where: self._place(name, key, where)
                    for where in sorted({place[0] for place in members_of(self._seen).values()})
                }
                found, reading = judge_divided(
                    text,
                    counter,
                    everywhere,
                    self._in_force.of(name, rule.limit),
                    rows,
                    refunded,
                    read,
                )
            else:
                found, reading = judge_counter(text, counter, rows, refunded, read)
            judgements.update((id(each.answer), each) for each in found)
            counts = {
                where: units
                for where, units in used_by_datacenter.items()
                if is_divided or where in places
            }
            used = [
                units
                for where, units in counts.items()
                if counter.is_divided or places[where].datacenter == datacenter
            ]
            if used:
                units = sum(used) if counter.is_divided else max(used)
                is_agreed = max(counts.values()) - min(counts.values()) <= counter.rounding
                for wrong in self._wrong_reading(
                    text, limits.usual, column, units, reading, read[1]
                ):
                    if rule.scope == "global" and not is_agreed:
                        what = f"{text}: data centers do not agree: {counts}"
                        yield Violation("agreement", read[1], what)
                    else:
                        yield wrong

    def _wrong_reading(
        self, text: str, limit: Limit, column: Column, used: int, reading: Reading, end: float
    ) -> Iterator[Violation]:
        """Yield a violation if owners do not count exactly the units that were admitted.

        Charges count without a limit. Without charges, all numbers are capped at the limit, since
        hits of both sides of a healed partition may add up to more.
        """
        cap = inf if column.has_charges else limit.ceiling
        least, most, counted = (int(min(n, cap)) for n in (reading.least, reading.most, used))
        self.lost += max(0, least - counted)
        self.counted_twice += max(0, counted - most)
        if counted < least:
            what = f"{text}: {used} units counted, at least {reading.least} admitted"
            yield Violation("lost_hits", end, what)
        if counted > most:
            what = f"{text}: {used} units counted, at most {reading.most} admitted"
            yield Violation("invented_hits", end, what)

    def _decision_violations(
        self, ledger: Ledger, final: Final, judgements: Mapping[int, Judgement]
    ) -> Iterator[Violation]:
        """Count all decisions by law and excuse, and yield the first wrong ones of each key."""
        found: Counter[tuple[str, str]] = Counter()
        for name, answer in ledger.answers:
            reasons: dict[str, frozenset[str]] = {}
            violations: list[Violation] = []
            outage = self._outage(name, answer, final)
            if isinstance(outage, Violation):
                violations.append(outage)
            else:
                reasons["outage"] = outage
            judgement = judgements.get(id(answer))
            if judgement is not None:
                reasons |= judgement.reasons
                violations += judgement.violations
            self.judged.add_decision(reasons)
            for violation in violations:
                place = violation.property, "" if violation is outage else f"{name}={answer.key}"
                found[place] += 1
                if found[place] <= (_MAX_OUTAGES if violation is outage else 1):
                    yield violation

    def _deadline_violations(self, ledger: Ledger, end: float) -> list[Violation]:
        found = [
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

    def _place(self, name: str, key: str, datacenter: str) -> Place:
        """Return the place of the counter that clients of a data center check."""
        if (name, key, datacenter) not in self._places:
            rule = self._rules.get(name)
            where, shard = datacenter, 0
            if rule is not None:
                where = rule.home if rule.scope == "home" else datacenter
                shard = shard_of(encode_key(rule.id, [key]))
            self._places[name, key, datacenter] = self._excuses.place(where, shard)
        return self._places[name, key, datacenter]

    def _outage(self, name: str, answer: Answered, final: Final) -> Violation | frozenset[str]:
        """Return the reasons why the owner did not decide a check, or a violation without one."""
        if answer.source in (Source.OWNER, Source.CACHE):
            return frozenset()
        place = self._place(name, answer.key, answer.datacenter)
        if answer.source is Source.STANDBY and self._excuses.is_owner_away(place, answer):
            return frozenset()
        if found := self._excuses.of(place, answer):
            return frozenset(each.reason for each in found)
        # The failure policy decides a whole group if no member answers one of its checks in time.
        is_in_broken_group = not answer.is_counted and answer.group in self._broken_groups
        if is_in_broken_group or self._is_broken(name, answer, final):
            return frozenset({"break"})
        text = f"{answer.key} was decided by {answer.source.name}, not its owner"
        return Violation("outage", answer.answered_at, text)

    def _is_broken(self, name: str, answer: Answered, final: Final) -> bool:
        """Return whether broken connections explain that the owner did not decide a check."""
        rule = self._rules.get(name)
        may_borrow = rule is not None and rule.scope == "split" and self._datacenters > 1
        return final.broken.explain(name, answer, may_borrow=may_borrow)

    def slot_violations(
        self, ledger: HoldLedger, rules: Mapping[str, Rule], final: Final, end: float
    ) -> list[Violation]:
        """Return the violations about slots of concurrency limits."""
        spans = unreplicated_spans(self._seen)
        spans += [
            (each.at - REPLICATION_LAG_S, each.at) for each in self._faults if each.verb == "stall"
        ]
        found: list[Violation] = []
        unsafe = overwhelmed(self._seen, failures=MAX_FAILURES) | emptied(self._seen)
        for name in ledger.rules():
            limit = rules[name].limit
            assert limit is not None
            for (datacenter, _), column in ledger.columns(name).items():
                if datacenter not in unsafe:
                    found += slot_violations(
                        column,
                        limit.ceiling,
                        sides=self._over_bound.sides(is_shared=False),
                        lost_spans=spans,
                        is_clean=not self._faults,
                        is_beside_owner=partial(self._is_beside_owner, final.broken, name),
                    )
        if not any(fault.verb == "clock_step" for fault in self._faults):
            slots_left = {place: n for place, n in final.used.items() if place[1] in ledger.rules()}
            found += [
                Violation("slot_leak", end, f"{rule}={key}: {used} slots of {where} are never free")
                for (where, rule, key), used in slots_left.items()
                if used > self._refused_releases(ledger, where, rule, key)
            ]
        return found

    def _refused_releases(self, ledger: HoldLedger, where: str, rule: str, key: str) -> int:
        """Return how many slots of a key the clients could not release.

        A client that may refund only its own charges cannot release a slot at another owner.
        """
        if not self._seen.bounded_refunds:
            return 0
        place = self._place(rule, key, where)
        return sum(
            each.is_held
            and self._excuses.tenure(place, each.asked_at, each.release_acknowledged_at) is None
            for each in ledger.columns(rule).get((where, key), ())
        )

    def _is_beside_owner(self, broken: BrokenConnections, rule: str, held: HeldSlot) -> bool:
        """Return whether a standby granted a slot while the owner decided, too.

        Connections to the owner broke, or a fault kept the standby from reaching it. Faults that
        divide the members are counted by `sides` instead.
        """
        if held.source is not Source.STANDBY:
            return False
        answer = Answered(
            *(held.asked_at, held.answered_at, held.datacenter, held.key, 1, held.is_held),
            held.source,
            client=held.client,
        )
        excuses = self._excuses.of(self._place(rule, held.key, held.datacenter), answer)
        return any(not (each.is_splitting or each.is_alone) for each in excuses) or broken.explain(
            rule, answer, may_borrow=False
        )

    def _is_shared(self, rule: Rule) -> bool:
        """Return whether data centers share the counts of a rule."""
        return rule.scope == "global" and self._datacenters > 1
