"""Units that the answers of a run added to one counter, as intervals for the oracle.

Each admitted check adds a minimum and a maximum of units at an instant between its request and its
answer. Minimum and maximum are its cost, unless a fault makes them uncertain.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf

from msgspec import Struct

from node.config.settings import NodeSettings
from ringfence.limiter import Algorithm, Limit
from ringfence.peering.link import LinkSettings
from ringfence.peering.routing.hedging import MIN_MARGIN
from ringfence.wire import Source
from simulations.judging.excuses import Excuse, Excuses, Place
from simulations.judging.ledger import Answered
from simulations.judging.limits_in_force import RuleLimits, conversions
from simulations.oracle import Bound, Drain, Question, Refund, Spend, Terms
from simulations.oracle import Reading as OracleReading
from simulations.runtimes.virtual_time import EPOCH_NS

__all__ = [
    "EVERYWHERE",
    "MERGE_S",
    "MOST_DECIDERS",
    "QUICK_S",
    "CounterView",
    "Row",
    "counted_twice",
]

EVERYWHERE = ""
"""Instead of a data center: all of them together, as for a limit that they divide."""
_CLOCK_SKEW_S = 0.05
"""Largest difference between the clocks of owners, in seconds; windows depend on clocks."""
QUICK_S = 0.05
"""Seconds after which an answer may come from a second member, which the caller asked too."""
_NEAR_S = 1.0
"""Seconds before and after a disturbance of a shard in which its owner may not be alone."""
RETRY_ERROR_NS = 2_000_000
"""Largest error of a retry time: it passes the wire in milliseconds, rounded up."""
_LATE_S = LinkSettings().slow_timeout + 2 * NodeSettings().forward_timeout
"""Seconds in which a second member may count an answered check: the deadlines of its senders."""
MERGE_S = 1.0
"""Seconds until the owner has the units that a second member counted for a check."""
MOST_DECIDERS = 3
"""Members that may count one check: the owner, its standby, and the member that takes over."""
_ALIGNED = (Algorithm.FIXED_WINDOW, Algorithm.SLIDING_WINDOW)
"""Algorithms whose windows begin at instants of the clock."""
_REVOKED_S = 0.1
"""Seconds until clients have removed their cached denials after a change of the rules."""
_LONGEST_S = 1e9
"""Seconds that stand for infinity."""
_LOGGED_PARTS = 128
"""Number of parts into which the fallback log of a member divides a period."""


class Row(Struct, frozen=True):
    """One answer with its excuses."""

    answer: Answered
    excuses: Sequence[Excuse]
    is_split: bool
    """Whether a second member may have decided without the units of this answer."""
    may_be_lost: bool
    """Whether a crash may have lost the units."""

    @property
    def reasons(self) -> frozenset[str]:
        """Return the reasons of all excuses, and that of a possible loss."""
        reasons = frozenset(each.reason for each in self.excuses)
        return reasons | {"owner_away"} if self.may_be_lost else reasons


@dataclass(frozen=True, slots=True)
class CounterView:
    """One counter, as the members of one data center see it, with the excuses of the run."""

    limits: RuleLimits
    places: Mapping[str, Place]
    """Places of the counter by the data center of the clients."""
    datacenter: str
    """Data center that decides, or `EVERYWHERE`."""
    excuses: Excuses
    began: float
    """Start of the load in seconds of virtual time; times of answers are relative to it."""
    is_shadow: bool = False
    """Whether the rule denies nothing, so that checks over its limit have no retry time."""
    whole: Limit | None = None
    """Limit that data centers divide, if this counter is the part of one of them."""
    bounded_refunds: bool = False
    """Whether members refund to a client only what they recorded as its charges."""

    @property
    def limit(self) -> Limit:
        """Return the limit without faults."""
        return self.limits.usual

    @property
    def rounding(self) -> int:
        """Return by how many units the counts of several data centers together may be rounded.

        Under a sliding window, data centers subtract drained units of each other, which may differ
        by 1 % of the limit.
        """
        others = len({place.datacenter for place in self.places.values()}) - 1
        if not others or self.limit.algorithm is Algorithm.FIXED_WINDOW:
            return 0
        is_sliding = self.limit.algorithm is Algorithm.SLIDING_WINDOW
        return others + (self.limit.ceiling // 100 + 1 if is_sliding else 0)

    @property
    def others(self) -> int:
        """Return the number of other data centers whose counts this one receives."""
        if self.is_divided:
            return 0
        return len({place.datacenter for place in self.places.values()} - {self.datacenter})

    @property
    def is_divided(self) -> bool:
        """Return whether each data center has a part of the limit and lends unused units."""
        return self.datacenter == EVERYWHERE

    def limits_at(self, row: Row) -> list[Limit]:
        """Return the limits by which a check may have been decided, the largest first."""
        answer, begin = row.answer, row.answer.asked_at
        if answer.source is Source.CACHE:  # The revocation of a denial travels.
            begin = min([begin, *(each.begin for each in row.excuses)]) - _REVOKED_S
        place = self.place_of(answer)
        is_by_owner = answer.source is not Source.STANDBY
        deciders = self._deciders(place, begin, answer.answered_at) if is_by_owner else place.hosts
        changed = [host for host in deciders if host in self.limits.by_host]
        found = {
            limit
            for host in changed
            for _, limit in self.limits.changes(host, begin, answer.answered_at)
        }
        if len(changed) < len(deciders):
            found.add(self.limit)
        return sorted(found, key=lambda limit: -limit.amount)

    def drains(self, rows: Sequence[Row], end: float) -> list[Drain]:
        """Return the rates of a bucket over time if faults change them.

        After a change, a bucket drains by the limit before it until the next check or charge. The
        replica then follows. A host that knows no other data center applies the whole of a divided
        limit.
        """
        if not self.limit.is_bucket:
            return []
        decided = [
            row.answer
            for row in rows
            if row.answer.source is Source.OWNER and not (row.excuses or row.answer.is_uncounted)
        ]
        spans = [
            span
            for place in dict.fromkeys(self.places.values())
            if place.datacenter == self.datacenter
            for host in self._deciders(place, -inf, end)
            for span in self.limits.rates(
                *(host, conversions(place, host, decided), end, _undivided(self, place, host))
            )
        ]
        if {rate for _, _, rate in spans} <= {Terms.of(self.limit).rate}:
            return []
        bounds = sorted({at for begin, until, _ in spans for at in (begin, until)})
        found: list[Drain] = []
        for begin, until in pairwise(bounds):
            rates = [rate for first, last, rate in spans if first <= begin and until <= last]
            first, last = self.instant(max(begin, -self.began)), self.instant(until)
            found.append(Drain(first, last, min(rates), max(rates)))
        return found

    def _deciders(self, place: Place, begin: float, end: float) -> Sequence[str]:
        """Return the hosts that may decide checks of a shard between two instants."""
        is_disturbed = self.excuses.is_disturbed(place, begin - _NEAR_S, end + _NEAR_S)
        return place.hosts if is_disturbed else place.hosts[:1]

    def place_of(self, answer: Answered) -> Place:
        """Return the place of the counter that the client of an answer checked."""
        return self.places[answer.datacenter]

    def is_here(self, answer: Answered) -> bool:
        """Return whether a member of the judged data center decided a check by its counter."""
        is_here = self.is_divided or self.place_of(answer).datacenter == self.datacenter
        return is_here and answer.is_counted and not answer.is_charge

    def row(self, answer: Answered) -> Row:
        """Return an answer with its excuses."""
        place = self.place_of(answer)
        found = self.excuses.of(place, answer)
        is_split = bool(found) and (
            answer.source not in (Source.OWNER, Source.CACHE)
            or self.excuses.is_disturbed(
                place, answer.asked_at - _NEAR_S, answer.answered_at + _NEAR_S
            )
        )
        is_lost = self.excuses.may_be_lost(place, answer.asked_at, answer.answered_at)
        return Row(answer, found, is_split, is_lost)

    def sides(self, row: Row) -> int:
        """Return how many more members may admit the whole limit when a row is decided.

        A standby may lack the counts of other data centers.
        """
        if not row.is_split:
            return 0
        place = self.place_of(row.answer)
        return self.excuses.sides(place, row.answer, row.excuses) + self.others

    def spends(self, row: Row) -> Iterator[Spend]:
        """Yield the units that one row has added, or may have added."""
        answer = row.answer
        least = most = answer.cost if answer.spends else 0
        place = self.place_of(answer)
        if row.may_be_lost or (self.is_divided and answer.is_charge):
            least = 0  # A charge that overdraws one part does not reduce the other parts.
        last = answer.answered_at
        if row.is_split:  # A merge may add the units of one side at its own instant.
            last = max([last, *(each.end for each in row.excuses if not each.is_alone)])
        arrived_at, may_be_ignored = self.arrival(answer, last)
        if self.limit.is_bucket:  # Units of another data center drain from their arrival on.
            wrong_s = self.wrong_drain_s(answer)
            last = max(last, arrived_at) + wrong_s
            least = 0 if wrong_s or may_be_ignored else least
        known = max(last, self.excuses.replicated_at(place, answer), arrived_at)
        if most:
            shift = self._window_shift_s(answer)
            yield self.spend(answer.asked_at - shift, last + shift, least, most, known)
        has_second = answer.source not in (Source.OWNER, Source.CACHE)
        is_broken = self.excuses.is_broken(place, answer, answer.answered_at)
        is_asked_again = bool(row.excuses) or is_broken or has_second
        if is_asked_again and not answer.is_uncounted and not _is_by_owner(answer):
            late = replace(answer, answered_at=answer.answered_at + _LATE_S)
            until = max([last, late.answered_at, *(each.end for each in row.excuses)])
            if self.limit.is_bucket:
                until = max(until, self.arrival(late, until)[0])
            more = answer.asked_cost * (MOST_DECIDERS - 1)
            yield self.spend(answer.asked_at, until, 0, more, until + MERGE_S)

    def plain(self, row: Row) -> Spend:
        """Return the units of a row as an exact counter would count them."""
        answer = row.answer
        cost = answer.cost if answer.spends else 0
        least = 0 if self.is_divided and answer.is_charge else cost
        return self.spend(answer.asked_at, answer.answered_at, least, cost, answer.answered_at)

    def known_at_once(self, row: Row) -> Spend:
        """Return the units of a row that are certainly counted, as if the members of a data center
        shared them at once.

        Charges are left out: no limit restricts them, and only one side of a split may have them.
        """
        answer = row.answer
        arrived_at, may_be_ignored = self.arrival(answer, answer.answered_at)
        is_lost = row.may_be_lost or may_be_ignored or self.wrong_drain_s(answer) > 0
        cost = answer.cost if answer.spends and not (is_lost or answer.is_charge) else 0
        known = max(answer.answered_at, arrived_at)
        shift = self._window_shift_s(answer)
        first, last = answer.asked_at - shift, answer.answered_at + shift
        return self.spend(first, last, cost, cost, known)

    def held_by_cuts_s(self, answer: Answered) -> float:
        """Return by how many seconds hits may expire late at a check, because cuts held the
        messages with their ages."""
        if self.is_aligned:
            return 0.0
        place = self.place_of(answer)
        return self.excuses.clocks.held_by_cuts_s(place, answer, self.memory_s)

    def logged_s(self, answer: Answered) -> float:
        """Return by how many seconds hits of a log may expire late at a check. Another member may
        have decided them. Its fallback log has only the part of the period of each hit."""
        if self.limit.algorithm is not Algorithm.SLIDING_WINDOW_LOG:
            return 0.0
        place, end = self.place_of(answer), answer.answered_at
        away_s = self.excuses.disturbed_s(place, answer.asked_at - self.memory_s, end)
        return max(0.0, min(away_s, self.memory_s / _LOGGED_PARTS))

    def question(
        self, answer: Answered, *, is_exact: bool = False, held_s: float = 0.0
    ) -> Question:
        """Return the question that a check asked; `is_exact` ignores faults of clocks.

        Hits that expire at most `held_s` late may still count.
        """
        skew = self.skew_s
        if not is_exact and not self._keeps_all:
            skew += self.clock_error_s(answer) * self.limits.rate_change
        return Question(
            self.instant(answer.asked_at - skew - held_s),
            self.instant(answer.answered_at + skew),
            answer.asked_cost,
        )

    def observed(self, row: Row, limit: Limit, bound: Bound) -> OracleReading | None:
        """Return the units in use after a decision, as its answer states them.

        They hold until the next fault, or under an excuse while one host alone holds the shard.
        None if the answer does not state all units, or states a number that `bound` excludes.
        """
        answer, place = row.answer, self.place_of(row.answer)
        if answer.remaining is None or answer.source is not Source.OWNER or self.rounding:
            return None
        until = self.excuses.undisturbed_until(self.places.values(), answer.asked_at)
        if row.excuses or row.may_be_lost or until <= answer.answered_at:
            tenure = self.excuses.tenure(place, answer.asked_at, answer.answered_at)
            if tenure is None:
                return None
            until = min(tenure.end, self.excuses.next_begin(place, answer.answered_at))
        spent = next(self.spends(row), None)
        # The repeats of a denied check may add units later, but its answer does not contain them.
        units = answer.asked_cost if answer.spends else 0
        used = most = limit.ceiling - answer.remaining
        if not answer.remaining and not answer.allowed:
            most = max(used, bound.most)
        if not bound.least + units <= used <= bound.most + units:
            return None
        question = self.question(answer, is_exact=self.limit.is_bucket)
        error_s, drift = self.excuses.clocks.in_span(place, answer.asked_at, until)
        error_ns, denied = round(min(error_s, _LONGEST_S) * 1e9), None
        if not answer.allowed and answer.retry_after and 0 < answer.cost <= limit.ceiling:
            lasts = round(answer.retry_after * (1 - drift) * 1e9) - RETRY_ERROR_NS - error_ns
            denied = answer.cost, self.instant(answer.asked_at) + lasts
        return OracleReading(
            *(question.earliest, question.latest, used, most),
            self.instant(until),
            spent,
            _levels(limit, answer, units, used, most),
            denied,
            error_ns,
            round(drift * 1e6),
            has_own=answer.spends and answer.cost > 0,
        )

    def reading(self, begin: float, end: float) -> Question:
        """Return the question of a reading of the counter between two instants."""
        skew = self.skew_s + max(
            self.excuses.clocks.offset_s(place, begin, end)
            if self.is_aligned
            else self.excuses.clocks.at_reading_s(place, begin, self.memory_s)
            for place in self.places.values()
        )
        return Question(self.instant(begin - skew), self.instant(end + skew), 0)

    def clock_error_s(self, answer: Answered) -> float:
        """Return by how many seconds the age of a hit may seem wrong to the decider of a check.

        The units of an aligned window have the number of their window instead of an age.
        """
        if self.is_aligned:
            return self._window_shift_s(answer)
        error = self.excuses.clocks.error_s(self.place_of(answer), answer, self.memory_s)
        if self.limit.is_bucket:
            return error
        return error + self.excuses.clocks.mismeasured_s(answer.answered_at, self.memory_s)

    @property
    def memory_s(self) -> float:
        """Return the seconds for which an admission has an effect. A wrong level of a bucket may
        last until the bucket is empty."""
        return _LONGEST_S if self.limit.is_bucket else self.limit.period_ns / 1e9

    def _window_shift_s(self, answer: Answered) -> float:
        """Return by how many seconds wrong clocks may shift the window of an admission.

        A window that begins with the first hit ends late if the clock stands still meanwhile.
        """
        if self.limit.first_hit:
            return 0.0 if self._keeps_all else self.clock_error_s(answer)
        if not self.is_aligned:
            return 0.0
        return self.excuses.clocks.offset_s(
            self.place_of(answer), answer.asked_at, answer.answered_at
        )

    @property
    def _keeps_all(self) -> bool:
        """Return whether no hit expires during the run, so that its age matters for retry times
        alone."""
        is_log = self.limit.algorithm is Algorithm.SLIDING_WINDOW_LOG or self.limit.first_hit
        return is_log and self.memory_s > self.excuses.read_at

    @property
    def is_aligned(self) -> bool:
        """Return whether windows begin at instants of the clock."""
        return self.limit.algorithm in _ALIGNED and not self.limit.first_hit

    @property
    def skew_s(self) -> float:
        """Return the largest difference between the clocks by which windows begin."""
        return _CLOCK_SKEW_S if self.limit.algorithm in _ALIGNED else 0.0

    def wrong_drain_s(self, answer: Answered) -> float:
        """Return by how many seconds a check's units may leave a shared bucket at a wrong time, due
        to a wrong clock in the other data center that decided the check."""
        if not self.limit.is_bucket or not self.is_elsewhere(answer):
            return 0.0
        return self.excuses.clocks.steps_s(self.place_of(answer)) * self.limits.rate_change

    def is_elsewhere(self, answer: Answered) -> bool:
        """Return whether another data center counts a check and sends its counts to this one."""
        return not self.is_divided and self.place_of(answer).datacenter != self.datacenter

    def arrival(self, answer: Answered, counted_at: float) -> tuple[float, bool]:
        """Return the latest time at which the judged data center receives the units of a check.

        Another data center has decided the check, and counts its units at `counted_at` at the
        latest. Also returns whether the judged data center may ignore the units. A bucket ignores
        units that arrive later than in the period after the one in which they were counted.
        """
        place, here = self.place_of(answer), self.places.get(self.datacenter)
        if here is None or place.datacenter == here.datacenter:
            return -inf, False
        shared_at = self.excuses.shared_at(here, place, answer)
        if not self.limit.is_bucket:
            return shared_at, False
        error = _CLOCK_SKEW_S + sum(
            self.excuses.clocks.offset_s(each, answer.asked_at, max(counted_at, shared_at))
            for each in (here, place)
        )
        earliest = _end_of_next_period(self, answer.asked_at - error) - error
        latest = _end_of_next_period(self, counted_at + error) + error
        return min(shared_at, latest), shared_at > earliest

    def spend(
        self,
        first: float,
        last: float,
        least: int,
        most: int,
        known: float,
        refund: Refund | None = None,
    ) -> Spend:
        """Return units that were spent in an interval and are certainly counted from `known` on."""
        return Spend(
            self.instant(first - self.skew_s),
            self.instant(last + self.skew_s),
            least,
            most,
            refund,
            self.instant(known - self.skew_s),
        )

    def instant(self, seconds: float) -> int:
        """Return the instant of the oracle for seconds since the start of the load."""
        return EPOCH_NS + round((self.began + min(seconds, _LONGEST_S)) * 1e9)


def _end_of_next_period(view: CounterView, seconds: float) -> float:
    """Return the end of the period that follows the period of an instant."""
    period_ns = view.limit.period_ns
    end = (view.instant(seconds) // period_ns + 2) * period_ns
    return (end - view.instant(0.0)) / 1e9


def _undivided(view: CounterView, place: Place, host: str) -> list[tuple[float, float, Limit]]:
    """Return the whole limit with the intervals in which a host may apply it instead of a part."""
    if view.whole is None:
        return []
    return [(*span, view.whole) for span in view.excuses.seedless(place, host)]


def _levels(limit: Limit, answer: Answered, units: int, used: int, most: int) -> tuple[int, int]:
    """Return the lowest level at the begin of a decision and the highest one at its end, in ticks
    of a bucket. A denial states the level by its retry time, in milliseconds."""
    unit, rate = limit.period_ns, Terms.of(limit).rate
    lowest, highest = max(used - 1, units) * unit, most * unit
    if not answer.allowed and answer.retry_after is not None and 0 < answer.cost <= limit.ceiling:
        room = (limit.ceiling - answer.cost) * unit
        wait = round(answer.retry_after * 1e9)
        lowest = max(lowest, room + (wait - RETRY_ERROR_NS) * rate)
        highest = min(highest, room + (wait + RETRY_ERROR_NS) * rate)
    return lowest, max(lowest, highest)


def counted_twice(view: CounterView, row: Row) -> Iterator[Spend]:
    """Yield the units that a standby may have counted although the owner answered quickly.

    The caller asks the standby when the owner takes longer than usual. A merge of both members
    counts the check once, so these units only count while several members decide.
    """
    answer = row.answer
    is_hedged = answer.answered_at - answer.asked_at > MIN_MARGIN
    if row.is_split and is_hedged and not answer.is_uncounted and _is_by_owner(answer):
        until = max([answer.answered_at + _LATE_S, *(each.end for each in row.excuses)])
        yield view.spend(answer.asked_at, until, 0, answer.asked_cost, until + MERGE_S)


def _is_by_owner(answer: Answered) -> bool:
    """Return whether the owner alone decided a check, so that it is counted exactly once."""
    is_quick = answer.answered_at - answer.asked_at <= QUICK_S
    return is_quick and answer.source in (Source.OWNER, Source.CACHE)
