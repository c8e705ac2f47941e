from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple

from ringfence.limiter import (
    NS_PER_SECOND,
    Algorithm,
    Code,
    Engine,
    EngineRule,
    Limit,
    Outcomes,
    Table,
    compiled_tables,
    why_not_compiled,
)

SECOND = NS_PER_SECOND
MINUTE = 60 * SECOND
FIVE = Limit.of_ns(5, MINUTE, Algorithm.FIXED_WINDOW)
THREE = Limit.of_ns(3, MINUTE, Algorithm.FIXED_WINDOW)


def test_layers_charge_both_limits_or_none() -> None:
    per_second, per_minute = Limit.of_ns(1, SECOND), Limit.of_ns(10, MINUTE)
    engine = engine_of(per_second, per_minute)

    codes = [
        ask(engine, [key(0), key(1)], group=True, now=now).codes
        for now in (0, 0, 0, 2 * SECOND, 4 * SECOND)
    ]

    allowed, denied = [Code.ALLOWED] * 2, [Code.DENIED, Code.UNCHARGED]
    assert codes == [allowed, denied, denied, allowed, allowed]
    assert remaining(engine, key(1), 4 * SECOND) == 7


def test_a_full_engine_evicts_only_a_few_keys_at_once() -> None:
    """Callers of all other keys wait while an engine evicts keys."""
    engine = Engine(max_keys=1_000_000, max_bytes=32 << 20)
    fine = Limit.of_ns(1000, MINUTE, slots=60)
    rows, most, sizes = 64, 256, [0]

    for frame in range(300):
        keys = [key(9, b"%d-%d" % (frame, row)) for row in range(rows)]
        engine.decide(keys, [1] * rows, [], [fine], [1] * rows, 0)
        sizes.append(len(engine))

    assert engine.bytes_in_use <= 32 << 20
    assert engine.evicted > 1000
    assert min(b - a for a, b in pairwise(sizes)) > -most


def test_the_fourth_request_of_a_user_leaves_the_count_of_the_address_at_three() -> None:
    engine = engine_of(FIVE, THREE)

    outcomes = [ask(engine, [key(0, b"ip"), key(1, b"user")], group=True) for _ in range(4)]

    assert [Code(code).name for code in outcomes[-1].codes] == ["UNCHARGED", "DENIED"]
    assert outcomes[-1].remaining == [2, 0]
    assert remaining(engine, key(0, b"ip")) == 2


def test_a_rule_without_veto_counts_but_denies_no_group() -> None:
    engine = Engine(max_keys=100)
    engine.set_rules({0: EngineRule(FIVE), 1: EngineRule(THREE, denies_group=False)})

    outcomes = [ask(engine, [key(0), key(1)], group=True).codes for _ in range(6)]

    assert outcomes[2] == [Code.ALLOWED, Code.ALLOWED]
    assert outcomes[4] == [Code.ALLOWED, Code.DENIED]
    assert outcomes[5] == [Code.DENIED, Code.DENIED]


def test_a_key_twice_in_a_group_is_charged_twice_or_not_at_all() -> None:
    engine = engine_of(THREE)

    assert ask(engine, [key(0), key(0)], group=True).remaining == [2, 1]
    refused = ask(engine, [key(0), key(0)], group=True, now=SECOND)

    assert refused.codes == [Code.UNCHARGED, Code.DENIED]
    assert refused.remaining == [1, 1]
    assert refused.retry_after_ns == [0, MINUTE - SECOND]


def test_a_group_that_can_never_fit_is_reported_as_such() -> None:
    engine = engine_of(FIVE)

    outcomes = ask(engine, [key(0), key(0)], [3, 3], group=True)

    assert outcomes.codes == [Code.UNCHARGED, Code.NEVER]
    assert remaining(engine, key(0)) == 5


def test_a_denied_peek_denies_its_group() -> None:
    engine = engine_of(FIVE, THREE)
    ask(engine, [key(1)], [3])

    outcomes = ask(engine, [key(0), key(1)], [1, 0], group=True)

    assert outcomes.codes == [Code.UNCHARGED, Code.DENIED]


def test_an_unknown_rule_prevents_all_charges_of_its_group() -> None:
    engine = engine_of(FIVE)

    outcomes = ask(engine, [key(0), key(9), b"short"], group=True)

    assert outcomes.codes == [Code.UNCHARGED, Code.UNKNOWN_RULE, Code.UNKNOWN_RULE]
    assert outcomes.limits == [5, 0, 0]
    assert remaining(engine, key(0)) == 5


def test_a_carried_limit_replaces_that_of_a_known_rule_and_vetoes() -> None:
    engine = Engine(max_keys=100)
    engine.set_rules({0: EngineRule(FIVE, denies_group=False), 1: EngineRule(FIVE)})

    outcomes = engine.decide([key(0), key(1)], [4, 1], [2], [THREE], [1, 0], 0)

    assert outcomes.codes == [Code.NEVER, Code.UNCHARGED]
    assert outcomes.limits == [3, 5]


def test_carried_limits_need_no_rule_and_become_the_counts_of_a_later_one() -> None:
    engine = engine_of(FIVE)
    codes = engine.decide([key(7)] * 4, [1] * 4, [], [THREE], [1] * 4, 0).codes

    engine.set_rules({0: EngineRule(FIVE), 7: EngineRule(FIVE)})

    assert codes == [Code.ALLOWED] * 3 + [Code.DENIED]
    assert remaining(engine, key(7)) == 2


def test_changed_rules_keep_their_counts_and_gone_rules_do_not() -> None:
    engine = engine_of(FIVE, FIVE)
    ask(engine, [key(0), key(1)], [2, 2])

    engine.set_rules({0: EngineRule(THREE)})
    assert remaining(engine, key(0)) == 1
    engine.set_rules({0: EngineRule(FIVE), 1: EngineRule(FIVE)})

    assert (remaining(engine, key(0)), remaining(engine, key(1))) == (3, 5)
    assert len(engine) == 1


def test_a_slot_id_is_never_used_twice_although_its_rule_is_removed_and_added() -> None:
    rules = {0: EngineRule(Limit.of_ns(2, MINUTE, Algorithm.CONCURRENCY))}
    engine = Engine(max_keys=100, first_slot_id=10)
    engine.set_rules(rules)
    before = ask(engine, [key(0), key(0)]).slot_ids

    engine.set_rules({})
    engine.set_rules(rules)

    assert before == [10, 11]
    assert ask(engine, [key(0)]).slot_ids == [12]


def test_refunds_and_resets_are_answered_like_peeks() -> None:
    slot_ids = Limit.of_ns(2, MINUTE, Algorithm.CONCURRENCY)
    engine = engine_of(FIVE, slot_ids)
    given_out = ask(engine, [key(0), key(1), key(1)], [5, 1, 1]).slot_ids

    refunded = engine.refund(
        [key(0), key(1), key(9)], [2, 1, 1], [0, 0, 0], given_out, [], [], SECOND
    )
    by_default = engine.refund([key(0)], [1], [], [], [], [], SECOND)
    reset = engine.reset([key(0), key(5)], [THREE], [0, 1], SECOND)

    assert refunded.codes == [Code.ALLOWED, Code.ALLOWED, Code.UNKNOWN_RULE]
    assert refunded.remaining == [2, 1, 0]
    assert by_default.remaining == [3]
    assert (refunded.slot_ids, by_default.slot_ids) == ([2, 1, 0], [1]), "units given back"
    assert (reset.remaining, reset.limits) == ([5, 3], [5, 3])


@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_a_refund_returns_the_units_that_it_gave_back(algorithm: Algorithm) -> None:
    engine = engine_of(Limit.of_ns(5, MINUTE, algorithm))

    def refund(cost: int) -> list[int]:
        return engine.refund([key(0)], [cost], [0], [], [], [], 0).slot_ids

    unused = refund(1)
    ask(engine, [key(0)], [3], now=0)

    assert unused == [0]
    assert [refund(cost) for cost in (0, 2, 7, 1)] == [[0], [2], [1], [0]]


def test_a_refund_of_an_old_charge_gives_nothing_back() -> None:
    engine = engine_of(Limit.of_ns(5, MINUTE, Algorithm.FIXED_WINDOW))
    ask(engine, [key(0)], [3], now=0)
    ask(engine, [key(0)], [1], now=MINUTE)

    assert engine.refund([key(0)], [3], [MINUTE], [], [], [], MINUTE + 1).slot_ids == [0]


def test_a_refund_without_slot_numbers_releases_the_slots_that_expire_first() -> None:
    engine = engine_of(Limit.of_ns(3, MINUTE, Algorithm.CONCURRENCY))
    first, second = (ask(engine, [key(0)], now=now).slot_ids[0] for now in (0, SECOND))

    by_number_of_units = engine.refund([key(0)], [1], [0], [], [], [], SECOND)
    after_the_first = engine.refund([key(0)], [1], [0], [first], [], [], SECOND)
    after_the_second = engine.refund([key(0)], [1], [0], [second], [], [], SECOND)

    assert by_number_of_units.remaining == [2]
    assert after_the_first.remaining == [2]
    assert after_the_second.remaining == [3]


def test_all_tables_together_hold_no_more_keys_than_allowed() -> None:
    engine = Engine(max_keys=50)
    engine.set_rules({number: EngineRule(FIVE) for number in range(3)})

    for frame in range(40):
        keys = [key(number, b"%d-%d" % (frame, part)) for number in range(3) for part in range(9)]
        ask(engine, keys)
        assert len(engine) <= 50

    assert engine.evicted > 0


def test_frames_whose_lengths_contradict_each_other_are_refused() -> None:
    engine = engine_of(FIVE)

    for groups in ([1], [2, 1], [3, -1], [0, 2]):
        with pytest.raises(ValueError, match="groups must"):
            engine.decide([key(0), key(0)], [1, 1], groups, [], [], 0)
    with pytest.raises(ValueError, match="cost"):
        ask(engine, [key(0)], [-1])
    with pytest.raises(ValueError, match="max_keys"):
        Engine(max_keys=0)


def test_an_empty_frame_gets_an_empty_answer() -> None:
    assert engine_of(FIVE).decide([], [], [], [], [], 0) == Outcomes()


LIMITS = [
    Limit.of_ns(4, 30, Algorithm.TOKEN_BUCKET),
    Limit.of_ns(5, 20, Algorithm.SLIDING_WINDOW_LOG),
    Limit.of_ns(3, 30, Algorithm.SLIDING_WINDOW, slots=3),
    Limit.of_ns(4, 25, Algorithm.FIXED_WINDOW, soft_permille=500),
    Limit.of_ns(3, 40, Algorithm.CONCURRENCY),
]
CARRIED = [
    Limit.of_ns(6, 30, Algorithm.TOKEN_BUCKET),
    Limit.of_ns(2, 20, Algorithm.SLIDING_WINDOW_LOG),
]
WHICH = {5: 1, 6: 2}
"""Rules 5 and 6 exist only as carried limits, rule 4 has no veto, and rule 7 is unknown."""
RULES = range(8)
asked = st.tuples(st.sampled_from(RULES), st.integers(0, 3))
members_asked = st.lists(asked, min_size=1, max_size=4)
groups_asked = st.lists(st.tuples(members_asked, st.integers(0, 9)), max_size=12)


@settings(max_examples=80, deadline=None)
@given(groups_asked)
def test_a_denied_group_changes_no_counter(steps) -> None:
    """The twin engine decides only the groups that were not denied."""
    engine, twin = mixed_engine(), mixed_engine()
    for now, (members, _) in zip(accumulate(gap for _, gap in steps), steps, strict=True):
        keys, costs, which = frame_of(members)
        outcomes = engine.decide(keys, costs, [len(keys)], CARRIED, which, now)
        is_denied = len(members) > 1 and any(
            code > Code.OVER_SOFT and rule != 4
            for code, (rule, _) in zip(outcomes.codes, members, strict=True)
        )

        if is_denied:
            assert not any(code <= Code.OVER_SOFT for code in outcomes.codes)
            assert not any(outcomes.slot_ids)
        else:
            assert twin.decide(keys, costs, [], CARRIED, which, now).codes == outcomes.codes
        peeks = frame_of([(rule, 0) for rule in RULES])
        remaining_units = engine.decide(*peeks[:2], [], CARRIED, peeks[2], now)
        assert remaining_units == twin.decide(*peeks[:2], [], CARRIED, peeks[2], now)


@settings(max_examples=100, deadline=None)
@given(before=members_asked, group=members_asked, which=st.lists(st.integers(0, 2), min_size=4))
def test_a_denied_group_with_any_limits_changes_no_counter(before, group, which) -> None:
    engine = mixed_engine()
    keys, costs, _ = frame_of(before)
    engine.decide(keys, costs, [], CARRIED, [1] * len(keys), 5)
    remaining_units = {rule: remaining(engine, key(rule), 5) for rule in RULES}

    keys, costs, _ = frame_of(group)
    outcomes = engine.decide(keys, costs, [len(keys)], CARRIED, which[: len(keys)], 5)

    if Code.UNCHARGED in outcomes.codes:
        assert not any(code <= Code.OVER_SOFT for code in outcomes.codes)
    assert all(remaining(engine, key(rule), 5) <= left for rule, left in remaining_units.items())


@settings(max_examples=100, deadline=None)
@given(st.lists(asked, max_size=20))
def test_a_frame_of_lone_checks_equals_one_frame_per_check(members) -> None:
    together, apart = mixed_engine(), mixed_engine()
    keys, costs, which = frame_of(members)

    outcomes = together.decide(keys, costs, [], CARRIED, which, 7)

    for index, (name, cost, carried) in enumerate(zip(keys, costs, which, strict=True)):
        single = apart.decide([name], [cost], [1], CARRIED, [carried], 7)
        assert single.row(0) == outcomes.row(index)


def test_groups_and_lone_checks_share_a_frame_in_order() -> None:
    engine = engine_of(THREE, FIVE)

    outcomes = engine.decide(
        [key(0), key(0), key(1), key(1), key(0)], [1] * 5, [1, 2, 1, 1], [], [], 0
    )

    assert outcomes.remaining == [2, 1, 4, 3, 0]
    assert outcomes.limits == [3, 3, 5, 5, 3]


def test_a_frame_under_one_rule_is_one_call_into_its_table() -> None:
    engine, table = engine_of(FIVE), Table(FIVE, max_keys=100)
    keys = [key(0, b"%d" % (number % 7)) for number in range(50)]

    assert ask(engine, keys) == table.check_many(keys, [1] * 50, 0)


def test_checks_at_different_instants_are_decided_one_by_one() -> None:
    engine = engine_of(Limit.of_ns(2, 10, Algorithm.FIXED_WINDOW))

    decided = engine.decide_each([key(0)] * 5, [1] * 5, [], [0, 1, 9, 10, 11])

    assert decided.codes == [Code.ALLOWED, Code.ALLOWED, Code.DENIED, Code.ALLOWED, Code.ALLOWED]


def key(rule: int, value: bytes = b"v") -> bytes:
    return rule.to_bytes(8, "big") + value


def engine_of(*limits: Limit) -> Engine:
    engine = Engine(max_keys=1_000)
    engine.set_rules({number: EngineRule(limit) for number, limit in enumerate(limits)})
    return engine


def mixed_engine() -> Engine:
    engine = Engine(max_keys=1_000)
    engine.set_rules(
        {number: EngineRule(limit, denies_group=number != 4) for number, limit in enumerate(LIMITS)}
    )
    return engine


def ask(
    engine: Engine,
    keys: list[bytes],
    costs: list[int] | None = None,
    *,
    group: bool = False,
    now: int = 0,
) -> Outcomes:
    return engine.decide(keys, costs or [1] * len(keys), [len(keys)] * group, [], [], now)


def remaining(engine: Engine, name: bytes, now: int = 0) -> int:
    return ask(engine, [name], [0], now=now).remaining[0]


def frame_of(members) -> tuple[list[bytes], list[int], list[int]]:
    """Return keys, costs and `which` of checks given as (rule, cost)."""
    return (
        [key(rule) for rule, _ in members],
        [cost for _, cost in members],
        [WHICH.get(rule, 0) for rule, _ in members],
    )


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 1, SECOND, MINUTE]),
            st.lists(st.integers(0, 1), min_size=1, max_size=3),
        ),
        max_size=300,
    )
)
def test_checks_at_their_own_instants_are_decided_as_one_call_per_instant_decides_them(
    groups: list[tuple[int, list[int]]],
) -> None:
    one_call, many_calls = engine_of(FIVE, THREE), engine_of(FIVE, THREE)
    instants = list(accumulate(gap for gap, _ in groups))
    expected = Outcomes()
    for now, (_, names) in zip(instants, groups, strict=True):
        expected.extend(ask(many_calls, [key(name) for name in names], group=True, now=now))

    found = one_call.decide_each(
        [key(name) for _, names in groups for name in names],
        [1] * sum(len(names) for _, names in groups),
        [len(names) for _, names in groups],
        [now for now, (_, names) in zip(instants, groups, strict=True) for _ in names],
    )

    assert found == expected


def test_an_instant_is_needed_for_every_key() -> None:
    with pytest.raises(ValueError, match="instants must be one per key, got 1 for 2 keys"):
        engine_of(FIVE).decide_each([key(0), key(0)], [1, 1], [], [0])


def test_sizes_are_reported_by_rule_and_without_rule() -> None:
    engine = engine_of(FIVE, THREE)
    ask(engine, [key(0, b"x"), key(0, b"y"), key(1)])
    engine.decide([key(9)], [1], [], [FIVE], [1], 0)

    assert engine.sizes() == ({0: 2, 1: 1}, 1)


def both_engines() -> list[Engine]:
    """Return an engine in Python, and a compiled one if there is one."""
    engines = [Engine(max_keys=10)]
    if why_not_compiled() is None:
        engines.append(Engine(max_keys=10, tables=compiled_tables(bytes(16), keeps_keys=True)))
    return engines


@pytest.mark.parametrize("engine", both_engines())
@pytest.mark.parametrize("others", [0, 1, 2])
def test_invalid_costs_and_keys_of_unknown_rules_are_refused(engine: Engine, others: int) -> None:
    keys, costs = [b"12345678"] * others, [1] * others

    with pytest.raises(ValueError, match="negative"):
        engine.decide([*keys, b"12345678"], [*costs, -1], [], [], [], 5)
    with pytest.raises(TypeError):
        engine.decide([*keys, b"12345678"], [*costs, None], [], [], [], 5)  # type: ignore[list-item]
    with pytest.raises(TypeError):
        engine.decide([*keys, 5], [*costs, 1], [], [], [], 5)  # type: ignore[list-item]


@pytest.mark.parametrize("engine", both_engines())
def test_a_lone_check_gets_the_outcome_of_a_message_with_one_check(engine: Engine) -> None:
    soft = Limit.of_ns(4, 100, soft_permille=500)
    engine.set_rules({0: EngineRule(soft), 1: EngineRule(Limit.of_ns(2, 50, slots=5))})
    other = Engine(max_keys=10)
    other.set_rules({0: EngineRule(soft), 1: EngineRule(Limit.of_ns(2, 50, slots=5))})

    for now, (rule, cost) in enumerate([(0, 3), (0, 2), (0, 9), (1, 1), (1, 2), (7, 1), (0, 1)]):
        alone = engine.decide_lone(key(rule), cost, now, 2)
        [*outcome, source] = alone
        assert tuple(outcome) == astuple(other.decide([key(rule)], [cost], [], [], [], now).row(0))
        assert source == 2
    with pytest.raises(ValueError, match="negative"):
        engine.decide_lone(key(0), -1, 9, 2)
    with pytest.raises(TypeError):
        engine.decide_lone(key(0), None, 9, 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", both_engines())
def test_lone_checks_keep_the_bound_of_keys(engine: Engine) -> None:
    engine.set_rules({0: EngineRule(FIVE)})

    for number in range(100):
        engine.decide_lone(key(0, b"%d" % number), 1, 0, 2)

    assert len(engine) <= 10


@pytest.mark.parametrize("engine", both_engines())
def test_a_key_without_a_whole_rule_id_leaves_the_next_key_alone(engine: Engine) -> None:
    engine.set_rules({0: EngineRule(Limit.of_ns(3, 10**9))})

    decided = engine.decide([bytes(2), bytes(8) + b"key"], [1, 1], [], [], [], 5)

    assert decided.codes == [Code.UNKNOWN_RULE, Code.ALLOWED]


@given(sizes=st.lists(st.integers(1, 4), max_size=8), user=st.integers(0, 3))
def test_groups_and_single_checks_of_a_message_are_decided_one_after_the_other(
    sizes: list[int], user: int
) -> None:
    at_once, one_by_one = engine_of(FIVE, THREE), engine_of(FIVE, THREE)
    names = [key(at % 2, b"%d" % (at * user % 3)) for at in range(sum(sizes))]
    decided = Outcomes()
    for start, size in zip(accumulate(sizes, initial=0), sizes, strict=False):
        decided.extend(ask(one_by_one, names[start : start + size], group=True))

    costs = [1] * len(names)
    assert at_once.decide(names, costs, sizes, [], [], 0) == decided
