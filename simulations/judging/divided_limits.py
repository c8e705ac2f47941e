"""Exact laws for a limit that data centers divide: each part is a separate counter.

A data center admits checks by its own part. When its part is used up, it borrows from the parts of
others, which takes at least a round trip to them. So the part that a quick answer spent is certain,
and a slow answer may have spent any part. A denial is wrong if its own part has room. An admission
is wrong if no part that it may have spent has room.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ringfence.limiter import Limit
from ringfence.peering.routing.hedging import MIN_MARGIN
from ringfence.wire import Source
from simulations.judging.counted_units import CounterView, Row
from simulations.judging.excuses import Place
from simulations.judging.key_laws import Judgement, Reading, total_bounds, under_one
from simulations.judging.ledger import Answered
from simulations.judging.limits_in_force import RuleLimits
from simulations.judging.refunded_units import refunded_units
from simulations.oracle import Bound, Refund, Spend, Terms, Verdict, bounds
from simulations.reporting.outcome import Violation

__all__ = ["judge_divided", "undivided"]

_GIVEN_UP_S = 0.5
"""Seconds after which a data center no longer waits for units of another one."""
_HOLDING_UP = ("cut", "clog", "pause", "stall", "slow", "spikes", "busy", "loss", "bursts", "reset")
"""Faults that may hold a request up for longer."""
_SILENCING = ("cut", "clog", "pause", "stall", "bursts", "loss", "reset")
"""Faults that may end a connection, and with it all requests on it, before that."""
_HEDGED_NS = 1_500_000_000
"""Time after an answer until the client has refunded the answer of a second member."""


def undivided(limit: Limit, count: int) -> Limit:
    """Return the limit whose ceiling is that of all `count` parts together.

    A part of a bucket holds at least one unit, so the parts may hold more than the bucket.
    """
    if limit.burst is None:
        return limit
    return replace(limit, burst=sum(_part_of(at, count, limit).burst or 0 for at in range(count)))


def judge_divided(
    text: str,
    counter: CounterView,
    places: Mapping[str, Place],
    limits: RuleLimits,
    answers: Sequence[Answered],
    refunded: Sequence[Answered],
    read: tuple[float, float],
) -> tuple[list[Judgement], Reading]:
    """Judge all decisions on one counter whose limit is divided; `text` names the counter.

    `counter` is the whole counter with the limit of all parts together. `places` has the place of
    each data center's part, and `limits` are those of the rule. `read` is the time span of the
    final reading.
    """
    rows = [counter.row(answer) for answer in answers]
    asked = [row for row in rows if counter.is_here(row.answer)]
    parts = {
        name: _Part.of(replace(counter, limits=limits.mapped(partial(_part_of, at, len(places))),
                               datacenter=name, places=dict.fromkeys(places, places[name]),
                               whole=counter.limit),
                       rows, refunded, asked, read)
        for at, name in enumerate(sorted(places))
    }  # fmt: skip
    spends = [
        spend for row in rows for spend in counter.spends(_lost_anywhere(counter, row, places))
    ]
    spends += [refunded_units(counter, answer) for answer in refunded]
    for row in rows:
        late = [spend for part in parts.values() for spend in _late(part.view, row)]
        # One lender counts an admitted check in time, so only the others may do so too late.
        spends += late[: max(0, len(parts) - 2)] if row.answer.allowed else late
    questions = [counter.question(row.answer) for row in asked]
    *found, last = bounds(Terms.of(counter.limit), spends, [*questions, counter.reading(*read)])
    uncertain = frozenset[str]().union(
        *(row.reasons for part in parts.values() for row in part.rows)
    )
    rounding = replace(counter, places=places).rounding  # Also of parts that only lent units.
    judgements = [
        _Decision(counter, rounding, at, row.answer, parts, bound, uncertain).judged(text)
        for at, (row, bound) in enumerate(zip(asked, found, strict=True))
    ]
    most = sum(part.reading.most for part in parts.values())
    if not counter.limit.is_bucket:  # The parts of a bucket drain slower than the whole one.
        most = min(most, last.most + rounding)
    return judgements, Reading(max(0, last.least - rounding), most)


@dataclass(frozen=True, slots=True)
class _Part:
    """Part of one data center, with the bounds of its units at each decision."""

    view: CounterView
    rows: Sequence[Row]
    """Rows of the decisions, with the excuses of this part."""
    bounds: Sequence[Bound]
    plain: Sequence[Bound]
    """Bounds without the uncertainty of faults."""
    every: Sequence[Bound]
    """Bounds by the units that all members of the data center together certainly counted."""
    reading: Bound

    @classmethod
    def of(
        cls,
        view: CounterView,
        rows: Sequence[Row],
        refunded: Sequence[Answered],
        asked: Sequence[Row],
        read: tuple[float, float],
    ) -> "_Part":
        """Compute the bounds of a part from all rows and refunded charges of the counter."""
        mine = [_row_at(view, row) for row in rows]
        spends = [spend for row in mine for spend in _spends(view, row)]
        spends += [spend for answer in refunded for spend in _refunded(view, answer)]
        certain = [view.known_at_once(row) for row in mine if _spends_surely(view, row.answer)]
        answers = [*(row.answer for row in mine), *refunded]
        certain += [spend for answer in answers for spend in _moved(view, answer)]
        questions = [view.question(row.answer) for row in asked]
        terms = Terms.of(view.limit)
        decided = [_row_at(view, row) for row in asked]
        drains = view.drains(
            [row for row in decided if row.answer.datacenter == view.datacenter], read[1]
        )
        *found, reading = bounds(terms, spends, [*questions, view.reading(*read)], drains)
        every = total_bounds(view, certain, decided, questions, drains)
        simple = [spend for row in rows for spend in _plain(view, row)]
        simple += [spend for answer in refunded for spend in _refunded(view, answer)]
        plain = bounds(terms, simple, questions, drains)
        return cls(view, decided, found, plain, every, reading)

    def has_room(self, at: int, cost: int, more: int) -> bool:
        """Return whether a decision may have admitted a check by this part, with `more` units that
        members may admit under an excuse."""
        bound = self.bounds[at]
        ceiling = max(limit.ceiling for limit in self.view.limits_at(self.rows[at]))
        if more:
            return self.every[at].least + cost <= ceiling + more
        return bound.least - self.view.rounding + cost <= ceiling

    def more(self, at: int) -> int:
        """Return the units that further members may admit by this part under an excuse."""
        return self.view.limit.ceiling * self.view.sides(self.rows[at])


@dataclass(frozen=True, slots=True)
class _Decision:
    """One decision with the bounds of the whole counter, and with all parts."""

    counter: CounterView
    rounding: int
    """Units by which all parts together may be rounded."""
    at: int
    """Index of the decision in the bounds of the parts."""
    answer: Answered
    parts: Mapping[str, _Part]
    bound: Bound
    uncertain: frozenset[str]
    """Reasons of all uncertain units of the counter."""

    def judged(self, text: str) -> Judgement:
        answer = self.answer
        law = "over_admission" if answer.allowed else "wrong_denial"
        reasons, wrong = self._admission() if answer.allowed else self._denial()
        found = Violation(law, answer.answered_at, f"{text}: {wrong}")
        return Judgement(answer, {law: reasons}, (found,) if wrong else ())

    def _denial(self) -> tuple[frozenset[str], str]:
        """Return the reasons of an excuse, and what is wrong with a denial; both may be empty."""
        own, cost = self.parts[self.answer.datacenter], self.answer.asked_cost or 1
        most, row = own.bounds[self.at].most, own.rows[self.at]
        ceilings = [limit.ceiling for limit in own.view.limits_at(row)]
        wrong = f"denied with {most} of {ceilings[0]} used in its part"
        reasons, what = under_one(
            [(frozenset(), wrong if most + cost <= each else "") for each in ceilings]
        )
        whole = min(limit.ceiling for limit in self.counter.limits_at(row))
        if not what and self.bound.most + cost <= whole:
            return reasons | {"divided"}, ""  # Another data center has unused units.
        return reasons, what

    def _admission(self) -> tuple[frozenset[str], str]:
        """Return the reasons of an excuse, and what is wrong with an admission; both may be
        empty."""
        answer, cost = self.answer, self.answer.asked_cost or 1
        own = self.parts[answer.datacenter]
        spent = [own] if _is_local(self.counter, answer) else [*self.parts.values()]
        more = [part.more(self.at) + self._more_shares() for part in spent]
        pairs = list(zip(spent, more, strict=True))
        if not any(part.has_room(self.at, cost, extra) for part, extra in pairs):
            used = max(part.bounds[self.at].least for part in spent)
            return frozenset(), f"admitted with {used} of {own.view.limit.ceiling} used in its part"
        if any(more):
            return self.uncertain, ""
        ceiling, least = self.counter.limit.ceiling, self.bound.least
        if not self.uncertain and least - self.rounding + cost > ceiling:
            return frozenset(), f"admitted with {least} of {ceiling} used"
        is_open = any(part.bounds[self.at].verdict is Verdict.EITHER for part in spent)
        is_open &= all(part.plain[self.at].verdict is not Verdict.EITHER for part in spent)
        return self.uncertain if is_open else frozenset(), ""

    def _more_shares(self) -> int:
        """Return by how many units a part may grow while fewer data centers share the limit."""
        is_left = any(
            each.fault.verb == "leave" and part.view.datacenter != self.answer.datacenter
            for part in self.parts.values()
            for each in part.rows[self.at].excuses
        )
        return self.counter.limit.ceiling if is_left else 0


def _part_of(at: int, count: int, limit: Limit) -> Limit:
    """Return the part with the index `at` of a limit.

    The parts are equal, except that each of the first parts has one unit of the rest.
    """
    burst = limit.burst
    return replace(
        limit,
        amount=(limit.amount + count - 1 - at) // count,
        burst=None if burst is None else max(1, (burst + count - 1 - at) // count),
    )


def _is_local(counter: CounterView, answer: Answered) -> bool:
    """Return whether an answer came too fast for a round trip to another data center."""
    lasts = answer.answered_at - answer.asked_at
    return answer.is_charge or lasts < counter.excuses.round_trip_s(answer.datacenter)


def _is_decided_once(counter: CounterView, answer: Answered) -> bool:
    """Return whether one member alone decided a check by its own part.

    If a standby answered, the owner may still borrow for the same check.
    """
    is_by_owner = answer.source in (Source.OWNER, Source.CACHE)
    return answer.is_charge or (is_by_owner and _is_local(counter, answer))


def _spends_surely(view: CounterView, answer: Answered) -> bool:
    """Return whether a check certainly spent this part, if any."""
    return answer.datacenter == view.datacenter and _is_local(view, answer)


def _row_at(view: CounterView, row: Row) -> Row:
    """Return a row with the excuses of a part. A borrowed check may also be repeated under the
    excuses of the data center that asked for it."""
    here = view.row(row.answer)
    if row.answer.datacenter == view.datacenter or _is_decided_once(view, row.answer):
        return here
    return Row(row.answer, [*here.excuses, *row.excuses], here.is_split, here.may_be_lost)


def _lost_anywhere(counter: CounterView, row: Row, places: Mapping[str, Place]) -> Row:
    """Return a row whose units may be lost if any data center that may have lent them may lose
    them."""
    answer = row.answer
    if row.may_be_lost or _is_decided_once(counter, answer):
        return row
    asked_at, answered_at = answer.asked_at, answer.answered_at
    may_be_lost = any(
        counter.excuses.may_be_lost(place, asked_at, answered_at) for place in places.values()
    )
    return Row(answer, row.excuses, row.is_split, may_be_lost)


def _spends(view: CounterView, row: Row) -> Iterator[Spend]:
    """Yield the units that one row has added to a part, or may have added."""
    answer = row.answer
    if _spends_surely(view, answer):
        yield from view.spends(row)
    elif not _is_decided_once(view, answer):
        for spend in view.spends(row):
            yield spend._replace(least=0)
    yield from _moved(view, answer)


def _plain(view: CounterView, row: Row) -> Iterator[Spend]:
    """Yield the units of one row as they would be without faults."""
    if _spends_surely(view, row.answer):
        yield view.plain(row)
    elif not _is_local(view, row.answer):
        yield view.plain(row)._replace(least=0)
        yield from _moved(view, row.answer)


def _moved(view: CounterView, answer: Answered) -> Iterator[Spend]:
    """Yield the units that a check may move from its own part to another one.

    A slow check is hedged, so two members may borrow for it. The client refunds what it does not
    need to its own data center, whose part is then smaller by these units.
    """
    if not _is_decided_once(view, answer):
        begin, end = view.question(answer).earliest, view.question(answer).latest + _HEDGED_NS
        units = answer.asked_cost
        if answer.datacenter == view.datacenter:
            yield Spend(begin, end, 0, 0, Refund(begin, end, 0, units, 0, end - begin))
        else:
            yield Spend(begin, end, 0, units)


def _late(view: CounterView, row: Row) -> Iterator[Spend]:
    """Yield the units that this part may have counted for a check whose asker no longer waited.

    A fault or a broken connection has delayed the request for the units. A member has denied the
    check, or a second member has borrowed the units elsewhere meanwhile.
    """
    answer = row.answer
    if answer.datacenter == view.datacenter or _is_local(view, answer):
        return
    if answer.allowed and not answer.spends:
        return
    waits_s = MIN_MARGIN if answer.allowed else _GIVEN_UP_S
    has_waited = answer.answered_at - answer.asked_at >= waits_s
    verbs = _HOLDING_UP if has_waited else _SILENCING
    excuses = view.row(answer).excuses
    here = view.place_of(answer)
    there = view.excuses.place(answer.datacenter, here.shard)
    # The owners borrow and lend. During a fault, other members may decide in their place.
    lenders = here.hosts if excuses else here.hosts[:1]
    borrowers = there.hosts if row.excuses else there.hosts[:1]
    is_held_up = any(each.fault.verb in verbs for each in excuses)
    if is_held_up or view.excuses.have_lost_link(borrowers, lenders, answer):
        yield from _moved(view, answer)


def _refunded(view: CounterView, answer: Answered) -> Iterator[Spend]:
    """Yield the units of a refunded charge. The refund first goes to the part of the asking data
    center, also if the charge was borrowed. Units that this part did not have go to lenders."""
    spend = refunded_units(view, answer)
    if _spends_surely(view, answer):
        yield spend
    elif not _is_decided_once(view, answer):
        yield spend._replace(least=0, refund=None)
    yield from _moved(view, answer)
