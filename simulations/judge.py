"""The invariants: what must hold of a run, whatever went wrong in it.

Each law is as strict as the faults allow: a graceful change loses nothing, a crash loses what one
interval of the standby's copies held, and where two decide at once each may admit the limit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ringfence.limiter import Algorithm, Limit
from ringfence.rules import Rule
from ringfence.wire import Source
from simulations.faults import VERBS
from simulations.ledger import Column, Ledger
from simulations.outcome import Violation
from simulations.scenario import Fault

__all__ = ["Final", "Judge"]

_MOST_KEYS = 300
"""Keys of each rule that are judged, the busiest ones."""
_UNCOPIED = 0.35
"""Seconds before a crash whose hits the standby may not have: an interval that waits for the copy
before it, and the way."""
_NEW_COPY = 8.0
"""Seconds until a death or a return is known to all and every standby has all its copies."""
_LEAVES = 6.0
"""Seconds that a member takes to leave at most."""
_SPLITS = ("cut", "pause", "slow", "clock_step")
"""Faults in which two may decide for one key at once."""
_KEPT = (Algorithm.SLIDING_WINDOW_LOG, Algorithm.FIXED_WINDOW)
"""Algorithms that forget nothing within a period."""
_DEADLINE = 3.5
"""Seconds: twice the patience with a busy owner, then the standby's."""


@dataclass(slots=True)
class Final:
    """What was found when all was calm again."""

    used: dict[tuple[str, str, str], int] = field(default_factory=dict)
    """Units that the owners count, by data center, rule and key."""
    problems: list[str] = field(default_factory=list)
    """What had not settled."""
    bugs: list[str] = field(default_factory=list)


class Judge:
    """Judges one run."""

    def __init__(
        self, rules: dict[str, Rule], faults: Sequence[Fault], datacenters: int, late_s: float
    ) -> None:
        """`late_s` is the oldest that counts of other data centers were when they came."""
        self._rules = rules
        self._faults = faults
        self._datacenters = datacenters
        self._late_s = late_s
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
                if rule.scope == "global" or self._datacenters == 1:
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
                if a.source is not Source.OWNER
            ][:10]
        found += [
            Violation("deadline", a.asked, f"{a.key} waited {a.told - a.asked:.2f} s for an answer")
            for _, a in ledger.answers
            if a.told - a.asked > _DEADLINE
        ][:10]
        return found

    def _of_key(
        self, name: str, rule: Rule, key: str, column: Column, final: Final, end: float
    ) -> Iterator[Violation]:
        limit = rule.limit
        assert limit is not None
        period = limit.period_ns / 1e9
        is_shared = rule.scope == "global" and self._datacenters > 1
        uncopied = self._uncopied(column)
        most, when = column.most_in(period)
        bound = self._most(limit) + self._unheard(column, limit, is_shared) + uncopied
        bound += limit.ceiling * (self._sides(is_shared) - 1)
        self.over = max(self.over, most - limit.ceiling)
        if most > bound:
            text = f"{name}={key}: {most} units in {period:g} s, at most {bound} may pass"
            yield Violation("over_admission", when, text)
        yield from self._wrong_denials(name, key, column, limit)
        if period > end and limit.algorithm in _KEPT:
            units = min(column.units, limit.ceiling)  # More is never said to be used.
            yield from self._conservation(name, key, column, units, final, is_shared, uncopied, end)

    def _conservation(
        self,
        name: str,
        key: str,
        column: Column,
        units: int,
        final: Final,
        is_shared: bool,
        uncopied: int,
        end: float,
    ) -> Iterator[Violation]:
        """What was admitted is counted, and nothing else."""
        by_datacenter = {
            dc: n
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
        if lost > uncopied:
            text = f"{name}={key}: {units} units admitted, {used} counted, {uncopied} may be lost"
            yield Violation("lost_hits", end, text)
        # By the first who was asked, and again by its standby's own question to it.
        may_be_twice = 2 * column.unanswered if self._is_unclean else 0
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

    def _most(self, limit: Limit) -> int:
        """Units that one owner lets through in a period, by the nature of the algorithm."""
        exact = (Algorithm.SLIDING_WINDOW_LOG,)
        return limit.ceiling if limit.algorithm in exact else 2 * limit.ceiling

    def _unheard(self, column: Column, limit: Limit, is_shared: bool) -> int:
        """What data centers admit before they hear of each other."""
        if not is_shared:
            return 0
        late, worst = self._late_s, 0
        for answer in column.admitted:
            worst = max(worst, column.told_within(answer.told - late, answer.told))
        untold = -(-limit.amount // 100)
        return (self._datacenters - 1) * (worst + untold)

    def _uncopied(self, column: Column) -> int:
        """What was admitted so shortly before a crash that the standby does not know of it."""
        lost = 0
        for fault in self._faults:
            if fault.verb == "crash":
                # With the standby, too, all is gone; a new one takes a while to have its copy.
                is_joint = "," in str(fault.args.get("node", ",")) or self._is_joint(fault)
                begin = float("-inf") if is_joint else fault.at - _UNCOPIED
                lost += column.told_within(begin, fault.at + 0.1)
            elif fault.verb == "leave" and self._is_joint(fault):
                # It leaves after a while also when nobody can be reached to take what it has.
                lost += column.told_within(float("-inf"), fault.at + _LEAVES)
        return lost

    def _is_joint(self, fault: Fault) -> bool:
        """Whether something else went wrong that may have kept its standby, or the member that
        should have had its counters, from having them."""
        begin, end = fault.at - _NEW_COPY, (fault.until or fault.at) + _NEW_COPY
        others = ("crash", *_SPLITS)
        return any(
            other is not fault
            and other.verb in others
            and other.at <= end
            and (other.until or other.at) >= begin
            for other in self._faults
        )

    def _sides(self, is_shared: bool) -> int:
        """How many may decide for one key at once, each up to the limit."""
        splits = sum(fault.verb in _SPLITS for fault in self._faults)
        return 1 + splits + (self._datacenters - 1 if is_shared and splits else 0)

    @property
    def _is_unclean(self) -> bool:
        return any(VERBS[fault.verb].is_unclean for fault in self._faults)
