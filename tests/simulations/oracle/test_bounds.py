from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.limiter import Algorithm, Limit
from simulations.oracle import Bound, Question, Refund, Spend, Terms, Verdict, bounds
from simulations.oracle.replay import first_instant
from simulations.oracle.usage import HeldSlots, Usage, usage_of
from tests.simulations.oracle.drawn import limits

BEGIN = 1_774_745_999 * 10**9
"""A second before the change to summer time in Berlin."""


@dataclass
class Event:
    """True history of some units; the bounds receive only `spend`."""

    at: int
    units: int
    refunded_at: int
    refunded: int
    age: int
    spend: Spend


def usage_at(terms: Terms, events: Sequence[Event], instant: int, *, first: bool) -> Usage:
    """Replay the true history before an instant; without `first`, also the events at it."""
    usage = usage_of(terms)
    steps = [(event.at, 0, event) for event in events]
    steps += [(event.refunded_at, 1, event) for event in events if event.spend.refund is not None]
    slots: dict[int, int] = {}
    for at, kind, event in sorted(steps, key=lambda step: step[:2]):
        if at > instant or (at == instant and first):
            break
        if isinstance(usage, HeldSlots):
            if kind == 0 and event.units:
                slots[id(event)] = usage.grant(event.units, at)
            elif kind == 1 and event.refunded:
                usage.release(slots.get(id(event), 0))
        elif kind == 0:
            usage.charge(event.units, at)
        else:
            usage.give_back(event.refunded, at, event.age)
    return usage


def check_against(terms: Terms, usage: Usage, instant: int, cost: int, bound: Bound) -> int | None:
    """Check one true decision against its bound; return its wait, None if it is allowed."""
    used, wanted = usage.used(instant), cost or 1
    assert bound.least <= ceil(used) <= bound.most, (bound, used)
    assert bound.is_permanent == (wanted > terms.ceiling)
    if used + wanted <= terms.ceiling:
        assert bound.verdict is not Verdict.MUST_DENY
        if terms.queue:
            delay = first_instant(lambda at: not usage.used(at), instant) - instant
            shortest, longest = bound.delays(terms)
            assert shortest <= delay <= longest, (bound, delay)
        return None
    assert bound.verdict is not Verdict.MUST_ALLOW
    if bound.is_permanent:
        return None
    room = terms.ceiling - wanted
    wait = first_instant(lambda at: usage.used(at) <= room, instant) - instant
    assert bound.shortest_wait <= wait <= bound.longest_wait, (bound, wait)
    return wait


def length_of(limit: Limit) -> int:
    return 86_400 * 10**9 if limit.calendar is not None else limit.period_ns


@st.composite
def uncertain(draw: st.DrawFn, limit: Limit) -> tuple[list[Event], list[tuple[int, Question]]]:
    """Events and decisions at true instants, each within an interval that contains it."""
    length = length_of(limit)
    near = st.integers(0, 3) | st.integers(0, max(1, length // max(1, limit.ceiling)))
    blurs = st.just(0) | near | st.integers(0, length + length // 2)
    times = near | st.integers(0, 3 * length)
    some = st.integers(0, 3) | st.integers(0, limit.ceiling + 2)
    events: list[Event] = []
    now = BEGIN
    for _ in range(draw(st.integers(0, 12))):
        now += draw(times)
        units = draw(some)
        refund, refunded_at, refunded, age = None, now, 0, 0
        if draw(st.integers(0, 3)) == 0:
            refunded_at = now + draw(times)
            refunded = draw(st.integers(0, units + 1))
            exact = refunded_at - now
            age = draw(st.sampled_from([0, exact, exact, exact + 1]) | st.integers(0, 3 * length))
            refund = Refund(
                max(now, refunded_at - draw(blurs)),
                refunded_at + draw(blurs),
                draw(st.integers(0, refunded)),
                refunded + draw(st.integers(0, 2)),
                max(0, age - draw(near)),
                age + draw(near),
            )
        latest = now + draw(blurs)
        known = latest + draw(blurs) if draw(st.booleans()) else None
        least = draw(st.integers(0, units) | st.just(units))
        most = units + draw(st.just(0) | some)
        spend = Spend(now - draw(blurs), latest, least, most, refund, known)
        events.append(Event(now, units, refunded_at, refunded, age, spend))
    asked: list[tuple[int, Question]] = []
    for _ in range(draw(st.integers(1, 4))):
        at = BEGIN + draw(st.integers(0, now - BEGIN + 2 * length))
        asked.append((at, Question(at - draw(blurs), at + draw(blurs), draw(some))))
    return events, asked


@settings(max_examples=300, deadline=None)
@given(limit=limits, data=st.data())
def test_every_replay_within_the_intervals_lies_within_the_bounds(
    limit: Limit, data: st.DataObject
) -> None:
    terms = Terms.of(limit)
    events, asked = data.draw(uncertain(limit), "history")

    found = bounds(terms, [each.spend for each in events], [question for _, question in asked])

    for (instant, question), bound in zip(asked, found, strict=True):
        for first in (True, False):
            usage = usage_at(terms, events, instant, first=first)
            check_against(terms, usage, instant, question.cost, bound)


def test_a_refund_comes_after_the_charge_of_its_instant_for_questions_in_any_order() -> None:
    terms = Terms.of(Limit(2, 1, Algorithm.TOKEN_BUCKET))
    spend = Spend(BEGIN, BEGIN, 1, 1, Refund(BEGIN, BEGIN, 0, 1, 0, 0))

    later, at_once = bounds(
        terms, [spend], [Question(BEGIN + 1, BEGIN + 1, 1), Question(BEGIN, BEGIN, 1)]
    )

    assert (later.least, later.most) == (0, 1)
    assert (at_once.least, at_once.most) == (0, 1)


@st.composite
def certain(draw: st.DrawFn, limit: Limit) -> tuple[list[Event], list[tuple[int, Question]]]:
    """Events and decisions of which everything is known; no two are at one instant."""
    length = length_of(limit)
    near = st.integers(1, 3) | st.integers(1, max(1, length // max(1, limit.ceiling)))
    times = near | st.integers(1, 3 * length)
    some = st.integers(0, 3) | st.integers(0, limit.ceiling + 2)
    events: list[Event] = []
    asked: list[tuple[int, Question]] = []
    now = BEGIN
    for kind in draw(st.lists(st.sampled_from(["spend", "refunded", "ask", "ask"]), max_size=20)):
        now += draw(times)
        if kind == "ask":
            asked.append((now, Question(now, now, draw(some))))
            continue
        at, units, refund, age, refunded = now, draw(some), None, 0, 0
        if kind == "refunded" and not limit.first_hit:
            now += draw(times)
            age, refunded = now - at, draw(st.integers(0, units))
            refund = Refund(now, now, refunded, refunded, age, age)
        events.append(Event(at, units, now, refunded, age, Spend(at, at, units, units, refund)))
    return events, asked


@settings(max_examples=120, deadline=None)
@given(limit=limits, data=st.data())
def test_bounds_of_known_instants_are_the_exact_replay(limit: Limit, data: st.DataObject) -> None:
    terms = Terms.of(limit)
    events, asked = data.draw(certain(limit), "history")

    found = bounds(terms, [each.spend for each in events], [question for _, question in asked])

    for (instant, question), bound in zip(asked, found, strict=True):
        usage = usage_at(terms, events, instant, first=True)
        wait = check_against(terms, usage, instant, question.cost, bound)
        assert bound.least == bound.most
        assert bound.verdict is not Verdict.EITHER
        is_refunded = any(each.refunded for each in events)
        if wait is not None and (limit.algorithm is not Algorithm.CONCURRENCY and not is_refunded):
            assert bound.shortest_wait == bound.longest_wait == wait
