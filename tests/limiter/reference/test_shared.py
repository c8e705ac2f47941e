from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ringfence.limiter import (
    NS_PER_SECOND,
    Algorithm,
    Calendar,
    Engine,
    EngineRule,
    Limit,
    Outcomes,
    Snapshot,
)

SECOND = NS_PER_SECOND
KEY = (0).to_bytes(8, "big") + b"key"
NOW = 1_000
quick = settings(max_examples=80, deadline=None)

amounts = st.integers(1, 12)
periods = st.integers(1, 40)
fixed = st.builds(Limit.of_ns, amounts, periods, st.just(Algorithm.FIXED_WINDOW))
sliding = st.builds(
    lambda amount, slots, slot_ns: Limit.of_ns(amount, slots * slot_ns, slots=slots),
    amounts,
    st.integers(1, 5),
    st.integers(1, 12),
)
windows = fixed | sliding
buckets = st.builds(
    Limit.of_ns,
    amounts,
    periods,
    st.sampled_from([Algorithm.TOKEN_BUCKET, Algorithm.LEAKY_BUCKET]),
    burst=st.none() | amounts,
)
limits = windows | buckets
tellings = st.lists(
    st.tuples(
        st.sampled_from(["east", "west"]),
        st.lists(st.tuples(st.integers(-7, 2), st.integers(0, 9)), max_size=4),
    ),
    max_size=6,
)
"""Who tells of which window, counted from the current one, and how many units."""
histories = st.lists(
    st.tuples(st.integers(0, 15), st.integers(0, 1), st.integers(1, 4)), max_size=30
).map(
    lambda steps: [
        (NOW + at, site, cost)
        for at, (_, site, cost) in zip(accumulate(gap for gap, _, _ in steps), steps, strict=True)
    ]
)
"""Checks as (now, data center, cost), in order of time."""


# -- merging -----------------------------------------------------------------------------------


@given(limit=limits, told=tellings, data=st.data())
@quick
def test_what_is_told_may_come_in_any_order(limit, told, data) -> None:
    in_order, shuffled = engine_of(limit), engine_of(limit)
    for engine in (in_order, shuffled):
        ask(engine, 2, NOW)

    hear_all(in_order, limit, told)
    hear_all(shuffled, limit, data.draw(st.permutations(told)))

    assert_equivalent(in_order, shuffled)


@given(limit=limits, told=tellings)
@quick
def test_what_is_told_in_many_messages_may_come_in_one(limit, told) -> None:
    apart, together = engine_of(limit), engine_of(limit)

    hear_all(apart, limit, told)
    hear_all(
        together,
        limit,
        [
            (writer, [cell for name, cells in told if name == writer for cell in cells])
            for writer in ("east", "west")
        ],
    )

    assert_equivalent(apart, together)


@given(limit=limits, told=tellings, spent=st.integers(0, 3))
@quick
def test_what_is_told_twice_counts_once(limit, told, spent) -> None:
    once, twice = engine_of(limit), engine_of(limit)
    for engine in (once, twice):
        hear_all(engine, limit, told)
        ask(engine, spent, NOW)

    hear_all(twice, limit, told)

    assert_equivalent(once, twice)


@given(limit=limits, told=tellings, history=histories)
@quick
def test_hearing_the_same_before_every_check_puts_nothing_off(limit, told, history) -> None:
    """gubernator#225: whoever was told of a count began its time anew, and the count went on."""
    once, always = engine_of(limit), engine_of(limit)
    told = [(writer, [each for each in cells if each[0] <= 1]) for writer, cells in told]
    for engine in (once, always):
        hear_all(engine, limit, told)

    for now, _, cost in history:
        for writer, cells in told:
            current = NOW // (limit.period_ns // limit.slots)
            numbers = [part for number, count in cells for part in (current + number, count)]
            always.merge_remote(writer, [KEY], [[max(0, number) for number in numbers]], now)
        assert ask(always, cost, now) == ask(once, cost, now)


@given(limit=fixed, tellings=st.lists(tellings, max_size=4), spent=st.integers(1, 4))
@quick
def test_nothing_that_is_heard_moves_the_end_of_a_window(limit, tellings, spent) -> None:
    """gubernator#225, for counts that rise between two checks."""
    engine = engine_of(limit)
    end = (NOW // limit.period_ns + 1) * limit.period_ns

    for now, told in zip(range(NOW, end), tellings, strict=False):
        hear_all(engine, limit, told)
        reset_after = ask(engine, spent, now).reset_after_ns[0]
        assert not reset_after or now + reset_after == end


@given(limit=limits, told=tellings, more=tellings)
@quick
def test_hearing_more_never_lowers_what_is_in_use(limit, told, more) -> None:
    engine = engine_of(limit)
    hear_all(engine, limit, told)
    before = engine.used(KEY, NOW)

    hear_all(engine, limit, more)

    assert engine.used(KEY, NOW) >= before


@given(limit=windows, cells=st.lists(st.tuples(st.integers(-9, 3), st.integers(1, 9))))
@quick
def test_windows_to_come_but_the_next_are_refused_and_those_that_are_over_ignored(
    limit, cells
) -> None:
    engine = engine_of(limit)

    refused = merge_remote(engine, limit, "east", cells)

    assert refused == sum(1 for number in dict(cells) if number > 1)
    if all(number > 1 or number < -limit.slots for number, _ in cells):
        assert not engine.has(KEY)


def test_cells_of_rules_that_are_unknown_or_not_shared_are_refused_and_leave_nothing() -> None:
    engine = Engine(max_keys=10)
    log = Limit.of_ns(5, 10, Algorithm.SLIDING_WINDOW_LOG)
    engine.set_rules(
        {0: EngineRule(Limit.of_ns(5, 10)), 1: EngineRule(log, is_shared=True)},
    )
    keys = [number.to_bytes(8, "big") for number in range(3)]

    refused = engine.merge_remote("east", keys, [[100, 1], [100, 1, 101, 1], [100, 1]], NOW)

    assert (refused, engine.keys()) == (4, [])
    assert engine.local_counts(keys, NOW) == [[], [], []]


@pytest.mark.parametrize("cells", [[100], [100, -1], [-1, 1], [100, 2**61]])
def test_absurd_cells_are_refused_whole(cells) -> None:
    engine = engine_of(Limit.of_ns(5, 10))

    assert engine.merge_remote("east", [KEY], [cells], NOW) == 1
    assert engine.keys() == []


# -- several data centers as one -----------------------------------------------------------------


@given(limit=windows, history=histories)
@settings(max_examples=150, deadline=None)
def test_data_centers_that_tell_all_at_once_decide_like_a_single_one(limit, history) -> None:
    sites, single = [engine_of(limit), engine_of(limit)], engine_of(limit, is_shared=False)

    for now, site, cost in history:
        exchange(sites, now)
        for peeked in (0, cost):
            assert ask(sites[site], peeked, now) == ask(single, peeked, now)


@given(limit=buckets, history=histories)
@quick
def test_buckets_that_are_told_all_at_once_never_give_more_than_a_single_one(
    limit, history
) -> None:
    sites, single = [engine_of(limit), engine_of(limit)], engine_of(limit, is_shared=False)

    for now, site, cost in history:
        answer = ask(sites[site], cost, now)
        exchange(sites, now)

        assert answer.codes == ask(single, cost, now).codes
        assert {engine.used(KEY, now) for engine in sites} == {single.used(KEY, now)}


@given(limit=fixed, history=histories, every=st.integers(1, 5))
@quick
def test_a_window_is_exceeded_by_no_more_than_was_not_told_yet(limit, history, every) -> None:
    sites = [engine_of(limit), engine_of(limit)]
    admitted: dict[int, int] = {}
    untold: dict[int, int] = {}

    for step, (now, site, cost) in enumerate(history):
        window = now // limit.period_ns
        if step % every == 0:
            exchange(sites, now)
            untold = {}
        if ask(sites[site], cost, now).codes[0] <= 1:
            admitted[window] = admitted.get(window, 0) + cost
            assert admitted[window] <= limit.amount + untold.get(window, 0)
            untold[window] = untold.get(window, 0) + cost


@given(limit=windows, history=histories, data=st.data())
@quick
def test_whatever_is_lost_late_or_doubled_in_between_all_agree_in_the_end(
    limit, history, data
) -> None:
    """And on exactly what was admitted: nothing is invented, and nothing forgotten."""
    sites, oracle = [engine_of(limit), engine_of(limit)], engine_of(limit, is_shared=False)
    sent: list[tuple[int, list[int]]] = []

    for now, site, cost in history:
        if ask(sites[site], cost, now).codes[0] <= 1:
            oracle.charge([KEY], [cost], [0], now)
        sent.append((site, sites[site].local_counts([KEY], now)[0]))
        for number in data.draw(st.lists(st.integers(0, len(sent) - 1), max_size=2)):
            writer, cells = sent[number]
            sites[1 - writer].merge_remote(f"site-{writer}", [KEY], [cells], now)
    now = history[-1][0] if history else NOW
    exchange(sites, now)

    assert [engine.used(KEY, now) for engine in sites] == [oracle.used(KEY, now)] * 2


@given(limit=windows, history=histories, told=tellings, later=st.integers(0, 50))
@quick
def test_a_counter_that_was_moved_brings_what_it_heard(limit, history, told, later) -> None:
    stayed, moved = engine_of(limit), engine_of(limit)
    hear_all(stayed, limit, told)
    for now, _, cost in history:
        ask(stayed, cost, now)
    now = (history[-1][0] if history else NOW) + later

    moved.restore(stayed.snapshot([KEY], now), now)

    if stayed.used(KEY, now):
        assert moved.local_counts([KEY], now) == stayed.local_counts([KEY], now)
    assert_equivalent(moved, stayed, now)


@given(limit=limits, before=tellings, after=tellings)
@example(Limit.of_ns(2, 14, slots=2), [], [("east", [(-2, 6)]), ("west", [(-2, 1)])])
@quick
def test_what_was_heard_on_both_sides_of_a_move_counts_once(limit, before, after) -> None:
    giver, taker, stayed = engine_of(limit), engine_of(limit), engine_of(limit)
    for engine in (giver, stayed):
        ask(engine, 1, NOW)
        hear_all(engine, limit, before)
    for engine in (taker, stayed):
        hear_all(engine, limit, after)

    taker.restore(giver.snapshot([KEY], NOW), NOW)

    assert_equivalent(taker, stayed)
    hear_all(taker, limit, before + after)
    assert taker.used(KEY, NOW) >= 1


def test_a_snapshot_without_anything_heard_says_so_in_one_word() -> None:
    engine = engine_of(Limit.of_ns(9, 10, Algorithm.FIXED_WINDOW))
    ask(engine, 2, NOW)

    assert engine.snapshot([KEY], NOW) == Snapshot(
        [KEY], [[100, 2]], [Limit.of_ns(9, 10, Algorithm.FIXED_WINDOW)], [0], []
    )


# -- own counts ----------------------------------------------------------------------------------


def test_own_counts_are_told_by_window_as_long_as_they_weigh() -> None:
    window = engine_of(Limit.of_ns(9, 10, Algorithm.FIXED_WINDOW))
    slots = engine_of(Limit.of_ns(9, 20, slots=2))
    for engine in (window, slots):
        ask(engine, 2, 1_005)
        ask(engine, 3, 1_013)

    assert window.local_counts([KEY], 1_014) == [[101, 3]]
    assert window.local_counts([KEY], 1_020) == [[]]
    assert slots.local_counts([KEY], 1_014) == [[100, 2, 101, 3]]
    assert slots.local_counts([KEY], 1_030) == [[101, 3]]
    assert slots.local_counts([KEY], 1_040) == [[]]


def test_a_bucket_tells_what_it_admitted_in_this_period_and_the_last() -> None:
    engine = engine_of(Limit.of_ns(9, 10, Algorithm.TOKEN_BUCKET))
    ask(engine, 2, 1_005)
    ask(engine, 3, 1_013)
    engine.charge(
        [KEY],
        [
            1,
        ],
        [0],
        1_013,
    )

    assert engine.local_counts([KEY], 1_014) == [[100, 2, 101, 4]]
    assert engine.local_counts([KEY], 1_020) == [[101, 4]]
    assert engine.local_counts([KEY], 1_030) == [[]]


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window", "token_bucket"])
def test_a_refund_touches_own_counts_only(algorithm) -> None:
    engine = engine_of(Limit.of_ns(9, 10, Algorithm(algorithm)))
    ask(engine, 2, NOW)
    engine.merge_remote("east", [KEY], [[100, 3]], NOW)

    engine.refund([KEY], [1], [], [], [], [], NOW)

    assert engine.local_counts([KEY], NOW) == [[100, 1]]
    assert engine.used(KEY, NOW) == 4


def test_what_a_refused_group_gives_back_is_never_told() -> None:
    engine = Engine(max_keys=10)
    bucket = Limit.of_ns(5, 10, Algorithm.TOKEN_BUCKET)
    engine.set_rules({0: EngineRule(bucket, is_shared=True), 1: EngineRule(Limit.of_ns(0, 10))})

    engine.decide([KEY, (1).to_bytes(8, "big")], [1, 1], [2], [], [], NOW)

    assert engine.local_counts([KEY], NOW) == [[]]
    assert engine.keys() == []


def test_use_and_ceiling_are_those_of_all_data_centers() -> None:
    engine = engine_of(Limit.of_ns(10, 100, Algorithm.FIXED_WINDOW, soft_permille=200))
    ask(engine, 2, NOW)
    engine.merge_remote("east", [KEY], [[10, 3]], NOW)
    unknown = (9).to_bytes(8, "big")

    assert (engine.used(KEY, NOW), engine.ceiling(KEY)) == (5, 12)
    assert (engine.used(unknown, NOW), engine.ceiling(unknown)) == (0, 0)


# -- memory --------------------------------------------------------------------------------------


@given(limit=limits, told=tellings)
@quick
def test_keys_that_were_only_heard_of_leave_when_their_windows_are_over(limit, told) -> None:
    engine = engine_of(limit)
    hear_all(engine, limit, told)
    much_later = NOW * limit.period_ns + 20 * limit.period_ns + 500

    for number in range(3):
        engine.decide([KEY + b"%d" % number], [1], [], [], [], much_later)

    assert not engine.has(KEY)


def test_a_count_of_the_next_window_is_kept_until_that_has_begun() -> None:
    engine = engine_of(Limit.of_ns(9, 10, Algorithm.FIXED_WINDOW))
    engine.merge_remote("east", [KEY], [[101, 4]], NOW)
    engine.decide([KEY + b"2", KEY + b"3"], [1, 1], [], [], [], NOW)

    assert engine.snapshot([KEY], NOW).remote_counts == [{"east": [101, 4]}]
    assert [engine.used(KEY, now) for now in (NOW + 9, NOW + 10, NOW + 20)] == [0, 4, 0]


def test_a_bucket_that_has_drained_is_not_filled_by_hearing_old_news() -> None:
    engine = engine_of(Limit.of_ns(10, 10, Algorithm.TOKEN_BUCKET))
    engine.merge_remote("east", [KEY], [[100, 4]], NOW)
    ask(engine, 1, NOW)
    engine.decide([KEY + b"2", KEY + b"3"], [1, 1], [], [], [], NOW + 5)

    engine.merge_remote("east", [KEY], [[100, 4]], NOW + 5)

    assert engine.used(KEY, NOW + 5) == 0
    assert engine.local_counts([KEY], NOW + 5) == [[100, 1]]


def test_hearing_of_many_keys_keeps_to_the_bound() -> None:
    engine = Engine(max_keys=20)
    engine.set_rules({0: EngineRule(Limit.of_ns(9, 10), is_shared=True)})

    keys = [KEY + b"%d" % number for number in range(50)]
    engine.merge_remote("east", keys, [[100, 1]] * 50, NOW)

    assert len(engine) <= 20


@given(limit=limits, steps=st.lists(st.tuples(st.integers(0, 60), tellings), max_size=8))
@quick
def test_a_counter_keeps_only_cells_that_still_weigh(limit, steps) -> None:
    engine = engine_of(limit)
    now = NOW * limit.period_ns
    for gap, told in steps:
        now += gap
        hear_all(engine, limit, told, now)
        for heard in engine.snapshot([KEY], now).remote_counts:
            assert all(len(cells) <= 2 * (limit.slots + 2) for cells in heard.values())


# -- changes of the rule -------------------------------------------------------------------------


@given(limit=limits, other=limits, is_shared=st.booleans(), told=tellings, spent=st.integers(0, 5))
@quick
def test_changing_a_rule_forgets_nobodys_count(limit, other, is_shared, told, spent) -> None:
    engine = engine_of(limit)
    hear_all(engine, limit, told)
    ask(engine, spent, NOW * limit.period_ns)
    before = engine.used(KEY, NOW * limit.period_ns)

    engine.set_rules({0: EngineRule(other, is_shared=is_shared)})
    ask(engine, 0, NOW * limit.period_ns)

    assert engine.used(KEY, NOW * limit.period_ns) == before


@given(limit=limits, history=histories)
@quick
def test_sharing_a_rule_changes_none_of_its_counts(limit, history) -> None:
    alone, joined = engine_of(limit, is_shared=False), engine_of(limit, is_shared=False)
    for now, _, cost in history:
        ask(alone, cost, now)
        ask(joined, cost, now)
    now = history[-1][0] if history else NOW

    joined.set_rules({0: EngineRule(limit, is_shared=True)})

    assert sum(joined.local_counts([KEY], now)[0][1::2]) >= joined.used(KEY, now)
    assert_equivalent(joined, alone, now)


def test_a_new_amount_keeps_apart_who_admitted_what() -> None:
    limit = Limit.of_ns(9, 10, Algorithm.FIXED_WINDOW)
    engine = engine_of(limit)
    ask(engine, 2, NOW)
    engine.merge_remote("east", [KEY], [[100, 3]], NOW)

    engine.set_rules({0: EngineRule(replace(limit, amount=20), is_shared=True)})
    engine.merge_remote("east", [KEY], [[100, 4]], NOW)

    assert engine.local_counts([KEY], NOW) == [[100, 2]]
    assert ask(engine, 0, NOW).remaining == [14]


def test_counts_of_other_windows_are_carried_over_but_told_to_nobody() -> None:
    engine = engine_of(Limit.of_ns(9, 10, Algorithm.FIXED_WINDOW))
    ask(engine, 2, NOW)
    engine.merge_remote("east", [KEY], [[100, 3]], NOW)

    engine.set_rules({0: EngineRule(Limit.of_ns(9, 50, slots=5), is_shared=True)})

    assert engine.local_counts([KEY], NOW) == [[]]
    assert engine.used(KEY, NOW) == 5


# -- calendar ------------------------------------------------------------------------------------


def test_calendar_windows_are_shared_by_the_second_they_begin() -> None:
    daily = Limit.of_ns(
        9,
        86_400 * SECOND,
        Algorithm.FIXED_WINDOW,
        calendar=Calendar.DAY,
        timezone="America/New_York",
    )
    midnight, next_midnight = 1_699_156_800, 1_699_246_800  # A day of 25 hours.
    now = (midnight + 3600) * SECOND
    engine = engine_of(daily)
    ask(engine, 2, now)
    cells = [midnight - 86_400, 8, midnight, 3, midnight + 1, 8, next_midnight, 4]

    assert engine.local_counts([KEY], now) == [[midnight, 2]]
    assert engine.merge_remote("east", [KEY], [cells], now) == 1
    assert engine.used(KEY, now) == 5
    assert engine.used(KEY, next_midnight * SECOND) == 4


def engine_of(limit: Limit, *, is_shared: bool = True) -> Engine:
    engine = Engine(max_keys=1_000)
    engine.set_rules({0: EngineRule(limit, is_shared=is_shared)})
    return engine


def ask(engine: Engine, cost: int, now: int) -> Outcomes:
    return engine.decide([KEY], [cost], [], [], [], now)


def exchange(sites: Sequence[Engine], now: int) -> None:
    """Tell every data center what every other one has admitted."""
    for writer, teller in enumerate(sites):
        for listener in sites:
            if listener is not teller:
                listener.merge_remote(f"site-{writer}", [KEY], teller.local_counts([KEY], now), now)


def merge_remote(
    engine: Engine, limit: Limit, writer: str, cells: Sequence[tuple[int, int]], now: int = NOW
) -> int:
    """Tell an engine of windows that are numbered from the current one on."""
    current = now // (limit.period_ns // limit.slots)
    numbers = [part for number, count in cells for part in (current + number, count)]
    return engine.merge_remote(writer, [KEY], [[max(0, number) for number in numbers]], now)


def hear_all(engine: Engine, limit: Limit, told, now: int = NOW) -> None:
    for writer, cells in told:
        merge_remote(engine, limit, writer, cells, now)


def assert_equivalent(left: Engine, right: Engine, now: int = NOW) -> None:
    """Both answer alike, now and at every instant until both are at rest, spending as they go."""
    for instant in range(now, now + 100, 5):
        assert ask(left, 0, instant) == ask(right, 0, instant)
        assert ask(left, 1, instant) == ask(right, 1, instant)
