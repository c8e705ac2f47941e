"""Merging counts of other data centers into shared counters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.limiter import (
    Algorithm,
    Engine,
    EngineRule,
    Limit,
    Snapshot,
)
from ringfence.limiter.counter_map import CounterMap
from tests.ringfence.limiter.reference.shared_sites import (
    KEY,
    NOW,
    ask,
    assert_equivalent,
    engine_of,
    fixed,
    histories,
    limits,
    merge_all,
    merge_remote,
    quick,
    reported_counts,
    windows,
)


@given(limit=limits, reported=reported_counts, data=st.data())
@quick
def test_remote_counts_may_arrive_in_any_order(limit, reported, data) -> None:
    in_order, shuffled = engine_of(limit), engine_of(limit)
    for engine in (in_order, shuffled):
        ask(engine, 2, NOW)

    merge_all(in_order, limit, reported)
    merge_all(shuffled, limit, data.draw(st.permutations(reported)))

    assert_equivalent(in_order, shuffled)


@given(limit=limits, reported=reported_counts)
@quick
def test_many_messages_equal_one_combined_message(limit, reported) -> None:
    apart, together = engine_of(limit), engine_of(limit)

    merge_all(apart, limit, reported)
    merge_all(
        together,
        limit,
        [
            (writer, [cell for name, cells in reported if name == writer for cell in cells])
            for writer in ("east", "west")
        ],
    )

    assert_equivalent(apart, together)


@given(limit=limits, reported=reported_counts, spent=st.integers(0, 3))
@quick
def test_repeated_remote_counts_count_once(limit, reported, spent) -> None:
    once, twice = engine_of(limit), engine_of(limit)
    for engine in (once, twice):
        merge_all(engine, limit, reported)
        ask(engine, spent, NOW)

    merge_all(twice, limit, reported)

    assert_equivalent(once, twice)


@given(limit=limits, reported=reported_counts, history=histories)
@quick
def test_repeated_merges_do_not_delay_resets(limit, reported, history) -> None:
    """gubernator#225: a member that received a count restarted its window, so it never ended."""
    once, always = engine_of(limit), engine_of(limit)
    reported = [(writer, [each for each in cells if each[0] <= 1]) for writer, cells in reported]
    for engine in (once, always):
        merge_all(engine, limit, reported)

    for now, _, cost in history:
        for writer, cells in reported:
            current = NOW // (limit.period_ns // limit.slots)
            numbers = [part for number, count in cells for part in (current + number, count)]
            always.merge_remote(writer, [KEY], [[max(0, number) for number in numbers]], now)
        assert ask(always, cost, now) == ask(once, cost, now)


@given(limit=fixed, reported_counts=st.lists(reported_counts, max_size=4), spent=st.integers(1, 4))
@quick
def test_remote_counts_do_not_move_the_end_of_a_window(limit, reported_counts, spent) -> None:
    """gubernator#225, for counts that rise between two checks."""
    engine = engine_of(limit)
    end = (NOW // limit.period_ns + 1) * limit.period_ns

    for now, reported in zip(range(NOW, end), reported_counts, strict=False):
        merge_all(engine, limit, reported)
        reset_after = ask(engine, spent, now).reset_after_ns[0]
        assert not reset_after or now + reset_after == end


@given(limit=limits, reported=reported_counts, more=reported_counts)
@quick
def test_more_remote_counts_never_lower_the_units_in_use(limit, reported, more) -> None:
    engine = engine_of(limit)
    merge_all(engine, limit, reported)
    before = engine.used(KEY, NOW)

    merge_all(engine, limit, more)

    assert engine.used(KEY, NOW) >= before


@given(limit=windows, cells=st.lists(st.tuples(st.integers(-9, 3), st.integers(1, 9))))
@quick
def test_future_windows_are_rejected_and_expired_ones_ignored(limit, cells) -> None:
    engine = engine_of(limit)

    refused = merge_remote(engine, limit, "east", cells)

    assert refused == sum(1 for number in dict(cells) if number > 1)
    if all(number > 1 or number < -limit.slots for number, _ in cells):
        assert not engine.has(KEY)


def test_cells_of_unknown_or_unshared_rules_are_rejected() -> None:
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
def test_invalid_cells_are_rejected_as_a_whole(cells) -> None:
    engine = engine_of(Limit.of_ns(5, 10))

    assert engine.merge_remote("east", [KEY], [cells], NOW) == 1
    assert engine.keys() == []


@given(limit=limits, reported=reported_counts)
@quick
def test_keys_with_only_remote_counts_expire_with_their_windows(limit, reported) -> None:
    engine = engine_of(limit)
    merge_all(engine, limit, reported)
    much_later = NOW * limit.period_ns + 20 * limit.period_ns + 500

    for number in range(3):
        engine.decide([KEY + b"%d" % number], [1], [], [], [], much_later)

    assert not engine.has(KEY)


def test_a_count_of_the_next_window_is_kept_until_it_starts() -> None:
    engine = engine_of(Limit.of_ns(9, 10, Algorithm.FIXED_WINDOW))
    engine.merge_remote("east", [KEY], [[101, 4]], NOW)
    engine.decide([KEY + b"2", KEY + b"3"], [1, 1], [], [], [], NOW)

    assert engine.snapshot([KEY], NOW).remote_counts == [{"east": [101, 4]}]
    assert [engine.used(KEY, now) for now in (NOW + 9, NOW + 10, NOW + 20)] == [0, 4, 0]


def test_old_remote_counts_do_not_fill_a_drained_bucket() -> None:
    engine = engine_of(Limit.of_ns(10, 10, Algorithm.TOKEN_BUCKET))
    engine.merge_remote("east", [KEY], [[100, 4]], NOW)
    ask(engine, 1, NOW)
    engine.decide([KEY + b"2", KEY + b"3"], [1, 1], [], [], [], NOW + 5)

    engine.merge_remote("east", [KEY], [[100, 4]], NOW + 5)

    assert engine.used(KEY, NOW + 5) == 0
    assert engine.local_counts([KEY], NOW + 5) == [[100, 1]]


def test_merging_many_keys_respects_the_key_bound() -> None:
    engine = Engine(max_keys=20)
    engine.set_rules({0: EngineRule(Limit.of_ns(9, 10), is_shared=True)})

    keys = [KEY + b"%d" % number for number in range(50)]
    engine.merge_remote("east", keys, [[100, 1]] * 50, NOW)

    assert len(engine) <= 20


@given(limit=limits, steps=st.lists(st.tuples(st.integers(0, 60), reported_counts), max_size=8))
@quick
def test_a_counter_keeps_only_cells_of_active_windows(limit, steps) -> None:
    engine = engine_of(limit)
    now = NOW * limit.period_ns
    for gap, reported in steps:
        now += gap
        merge_all(engine, limit, reported, now)
        for received in engine.snapshot([KEY], now).remote_counts:
            assert all(len(cells) <= 2 * (limit.slots + 2) for cells in received.values())


def test_counts_of_several_messages_are_bounded_so_that_replicas_can_be_restored() -> None:
    limit = Limit.of_ns(10, 100, Algorithm.FIXED_WINDOW)
    owner, standby = engine_of(limit), engine_of(limit)
    ask(owner, 5, NOW)
    for engine in (owner, standby):
        for number in (10, 11):
            engine.merge_remote("east", [KEY], [[number, 2**60]], NOW)
        assert engine.remote_counts("east", [KEY], NOW) == [[10, 2**60]]

    assert standby.restore(owner.snapshot([KEY], NOW), NOW) == 0

    assert standby.local_counts([KEY], NOW) == [[10, 5]]


def test_a_key_that_is_restored_again_keeps_its_place_in_the_order_of_eviction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit = Limit.of_ns(100, 100, Algorithm.FIXED_WINDOW)
    engine, dropped = engine_of(limit), list[bytes]()
    monkeypatch.setattr(CounterMap, "drop", lambda _, key: dropped.append(key))

    for _ in range(3):
        assert engine.restore(Snapshot([KEY], [[10, 5]], [limit], [0], []), NOW) == 0

    assert dropped == []
