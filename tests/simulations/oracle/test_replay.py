from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.limiter import Algorithm, Limit
from simulations.oracle import Answer, Replay, Terms
from tests.ringfence.limiter.test_vectors import FIELDS, expected
from tests.ringfence.limiter.vectors.algorithms import CHARGE_VECTORS, VECTORS, Vector
from tests.simulations.oracle.drawn import changing_histories, histories, limits
from tests.simulations.oracle.engines import Asked, engines_for

SECOND = 10**9
BEGINS = [0, 17 * 10**17, 1_774_745_999 * SECOND]
"""The last one is a second before the change to summer time in Berlin, in March 2026."""


def asked_of(replay: Replay, asked: Asked, now: int) -> Answer | None:
    match asked.kind:
        case "change":
            assert asked.limit is not None
            return replay.change(Terms.of(asked.limit))
        case "check":
            if asked.limit is not None and not asked.cost:
                return replay.peek_by(Terms.of(asked.limit), now)
            if asked.limit is not None:
                replay.change(Terms.of(asked.limit))
            return replay.check(asked.cost, now)
        case "charge":
            return replay.charge(asked.cost, now)
        case "renew":
            return replay.renew(asked.slot, now)
        case "release":
            return replay.refund(asked.cost, now, slot=asked.slot)
        case _:
            return replay.refund(asked.cost, now, age=asked.age_ns)


@pytest.mark.parametrize("vector", [*VECTORS, *CHARGE_VECTORS], ids=lambda vector: vector.name)
def test_the_oracle_answers_every_worked_example(vector: Vector) -> None:
    replay = Replay(Terms.of(vector.limit))
    for number, step in enumerate(vector.steps):
        ask = replay.charge if step.is_charge else replay.check
        answer = ask(step.cost, step.at_ns)
        names = [name for name in FIELDS if getattr(step, name) is not None]
        found = {name: getattr(answer, name.removesuffix("_ns")) for name in names}

        assert {"code": answer.code.name, **found} == {
            **expected(step),
            "code": expected(step)["code"].name,
        }, f"step {number}: {step}"


@settings(max_examples=250, deadline=None)
@given(limit=limits, begin=st.sampled_from(BEGINS), data=st.data())
def test_both_engines_answer_as_the_oracle(limit: Limit, begin: int, data: st.DataObject) -> None:
    replay = Replay(Terms.of(limit))
    engines = engines_for(limit)
    now = begin
    for asked in data.draw(histories(limit), "history"):
        now += asked.gap_ns
        right = asked_of(replay, asked, now)
        for name, engine in engines.items():
            assert engine.answer(asked, now) == right, f"{name}: {asked}"


@settings(max_examples=120, deadline=None)
@given(limit=limits, begin=st.sampled_from(BEGINS), data=st.data())
def test_both_engines_change_limits_as_the_oracle(
    limit: Limit, begin: int, data: st.DataObject
) -> None:
    replay = Replay(Terms.of(limit))
    engines = engines_for(limit)
    now, own = begin, limit
    for asked in data.draw(changing_histories(limit), "history"):
        now += asked.gap_ns
        own = asked.limit or own if asked.kind == "change" else own
        is_own = asked.kind == "check" and asked.limit == own
        right = asked_of(replay, replace(asked, limit=None) if is_own else asked, now)
        if asked.limit is not None and asked.cost:
            replay.change(Terms.of(own))
        for name, engine in engines.items():
            assert engine.answer(asked, now) == right, f"{name}: {asked}"


@pytest.mark.parametrize("amount", [0, 1, 3])
def test_a_failed_renewal_leaves_held_slots_under_their_limit(amount: int) -> None:
    limit, later = (Limit.of_ns(each, 100, Algorithm.CONCURRENCY) for each in (2, amount))
    replay, engines = Replay(Terms.of(limit)), engines_for(limit)
    for asked in (Asked(0, "check"), Asked(0, "change", limit=later), Asked(0, "renew", slot=2)):
        right = asked_of(replay, asked, 0)
        for name, engine in engines.items():
            assert engine.answer(asked, 0) == right, f"{name}: {asked}"
    assert right is not None
    assert right.remaining == 1


@pytest.mark.parametrize(("units", "remaining"), [(0, 3), (1, 5)])
def test_a_charge_of_nothing_applies_no_change_of_the_limit(units: int, remaining: int) -> None:
    """The bucket drains by the limit before it until the next check, or until a charge of units."""
    limit, faster = (Limit.of_ns(n, 100, Algorithm.TOKEN_BUCKET, burst=8) for n in (1, 4))
    replay, engines, now = Replay(Terms.of(limit)), engines_for(limit), 0
    for asked in (
        Asked(0, "check", 6),
        Asked(0, "change", limit=faster),
        Asked(50, "charge", units),
        Asked(100, "check", 0),
    ):
        now += asked.gap_ns
        right = asked_of(replay, asked, now)
        for name, engine in engines.items():
            assert engine.answer(asked, now) == right, f"{name}: {asked}"
    assert right is not None
    assert right.remaining == remaining


def test_a_refund_that_leaves_no_whole_unit_forgets_the_rest_of_the_oldest_slot() -> None:
    """A counter holds at most 2**60 units, so the next charge shows whether a part is left."""
    limit = Limit.of_ns(60, 24, Algorithm.SLIDING_WINDOW, slots=3)
    replay, engines, now = Replay(Terms.of(limit)), engines_for(limit), 0
    for asked in (
        Asked(4, "check", 1),
        Asked(26, "refund", 0),
        Asked(0, "charge", 2**60),
        Asked(2, "charge", 1),
    ):
        now += asked.gap_ns
        right = asked_of(replay, asked, now)
        for name, engine in engines.items():
            assert engine.answer(asked, now) == right, f"{name}: {asked}"
    assert right is not None
    assert right.reset_after == 24


@settings(max_examples=100, deadline=None)
@given(limit=limits, data=st.data())
def test_a_clock_that_goes_back_and_forth_lets_no_engine_admit_more_than_the_oracle(
    limit: Limit, data: st.DataObject
) -> None:
    """The oracle counts only what the engine has admitted. It counts by the latest instant so far,
    but slots by the instant itself; ended slots stay ended."""
    jumps = st.integers(-2 * limit.period_ns, 2 * limit.period_ns) | st.integers(-2, 2)
    costs = st.integers(1, 3) | st.integers(1, limit.ceiling + 1)
    steps = data.draw(st.lists(st.tuples(jumps, costs), max_size=20), "steps")
    for name, engine in engines_for(limit).items():
        replay, now = Replay(Terms.of(limit)), 17 * 10**17
        for jump, cost in steps:
            now += jump
            answer = engine.answer(Asked(0, "check", cost), now)
            if answer is not None and answer.is_admitted:
                assert replay.check(cost, now).is_admitted, name
            elif limit.algorithm is Algorithm.CONCURRENCY:
                replay.check(0, now)


@pytest.mark.parametrize("gap_ns", [4, 5])
def test_both_engines_share_entries_of_a_log_in_debt_as_the_oracle(gap_ns: int) -> None:
    limit = Limit.of_ns(2, 4096, Algorithm.SLIDING_WINDOW_LOG)
    replay, engines, now = Replay(Terms.of(limit)), engines_for(limit), 0
    for _ in range(1030):
        now += 1
        replay.spend(1, now)
        for engine in engines.values():
            engine.answer(Asked(0, "charge"), now)
    for step in range(12):
        now += gap_ns if step < 6 else 4096 // 12
        asked = Asked(0, "charge" if step < 6 else "check", 1)
        right = asked_of(replay, asked, now)
        assert {name: engine.answer(asked, now) for name, engine in engines.items()} == (
            dict.fromkeys(engines, right)
        )
