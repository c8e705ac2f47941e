from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.limiter import (
    NS_PER_SECOND,
    Algorithm,
    BadState,
    Calendar,
    Engine,
    EngineRule,
    Limit,
    Outcomes,
    Snapshot,
)
from ringfence.limiter.serialization import MAX_NUMBERS, MAX_UNITS, fitting, flatten_pairs, pairs_of
from tests.ringfence.limiter.drawn_limits import (
    KEY,
    UNKNOWN,
    DrawnLimits,
    ask,
    engine_after,
    engine_of,
    timed_costs,
)

SECOND = NS_PER_SECOND
DAY_NS = 86_400 * SECOND
quick = settings(max_examples=60, deadline=None)

drawn = DrawnLimits(soft=st.sampled_from([0, 0, 500]))
limits = (
    drawn.buckets
    | drawn.of(*[each for each in Algorithm if "bucket" not in each])
    | drawn.first_hits
    | drawn.slotted
)
histories = timed_costs(max_size=25)


@pytest.mark.parametrize("is_shared", [False, True])
@settings(max_examples=150, deadline=None)
@given(limit=limits, history=histories, later=st.integers(0, 50))
def test_a_transferred_counter_decides_like_the_original(
    is_shared: bool, limit: Limit, history: list[tuple[int, int]], later: int
) -> None:
    stayed, now = engine_after(limit, history, is_shared)
    moved = engine_of(limit, is_shared)

    assert moved.restore(stayed.snapshot([KEY], now + later), now + later) == 0

    for instant in range(now + later, now + later + 100, 3):
        assert decide_one(moved, 0, instant) == decide_one(stayed, 0, instant)
        assert decide_one(moved, 1, instant) == decide_one(stayed, 1, instant)


@pytest.mark.parametrize("is_shared", [False, True])
@quick
@given(limit=limits, history=histories)
def test_a_replica_updated_with_every_check_expires_with_the_original(
    is_shared: bool, limit: Limit, history: list[tuple[int, int]]
) -> None:
    """gubernator#225: each update restarted the window of a replica, so it never ended."""
    owner, standby = engine_of(limit, is_shared), engine_of(limit, is_shared)

    for now, cost in history:
        decide_one(owner, cost, now)
        standby.restore(owner.snapshot([KEY], now), now)
        assert decide_one(standby, 0, now) == decide_one(owner, 0, now)


@given(limit=limits, history=histories)
@quick
def test_a_delayed_transfer_does_not_raise_the_units_in_use(
    limit: Limit, history: list[tuple[int, int]]
) -> None:
    source, now = engine_after(limit, history)
    target = engine_of(limit)

    target.restore(source.snapshot([KEY], now), now + 7)

    assert target.used(KEY, now + 7) <= source.used(KEY, now)


@given(limit=limits, history=histories)
@quick
def test_no_state_contains_an_instant(limit: Limit, history: list[tuple[int, int]]) -> None:
    """Only window numbers and slot ids depend on the clock."""
    late = 10**9 * limit.period_ns
    early, now = engine_after(limit, history)
    moved, _ = engine_after(limit, [(at + late, cost) for at, cost in history])
    snapshot, same_later = early.snapshot([KEY], now), moved.snapshot([KEY], now + late)

    for state in snapshot.states + same_later.states:
        if limit.algorithm in (Algorithm.FIXED_WINDOW, Algorithm.SLIDING_WINDOW):
            state[0] %= limit.slots * 10**9
    assert snapshot == same_later


def test_calendar_windows_are_numbered_by_their_first_second_in_snapshots() -> None:
    daily = Limit.of_ns(
        5, DAY_NS, Algorithm.FIXED_WINDOW, calendar=Calendar.DAY, timezone="America/New_York"
    )
    midnight = 1_700_024_400  # 2023-11-15 00:00 -05:00
    engine = engine_of(daily)
    now = (midnight + 3600) * SECOND
    ask(engine, 3, now)
    snapshot = engine.snapshot([KEY], now)

    assert snapshot.states == [[midnight, 3]]
    other = engine_of(daily)
    other.restore(snapshot, now)
    assert decide_one(other, 0, now) == decide_one(engine, 0, now)


def test_an_expired_window_is_not_transferred() -> None:
    limit = Limit.of_ns(5, 10, Algorithm.FIXED_WINDOW)
    engine, _ = engine_after(limit, [(3, 5)])
    snapshot = engine.snapshot([KEY], 3)
    target = engine_of(limit)

    assert target.restore(snapshot, 12) == 0
    assert not target.has(KEY)
    assert engine.snapshot([KEY, UNKNOWN], 12) == Snapshot([], [], [], [], [])


def test_a_transferred_slot_can_be_released_by_its_id() -> None:
    limit = Limit.of_ns(3, 100, Algorithm.CONCURRENCY)
    source = engine_of(limit)
    slot_id = ask(source, 2, 10).slot_ids[0]
    target = engine_of(limit)
    target.restore(source.snapshot([KEY], 40), 1_000)

    assert target.used(KEY, 1_069) == 2
    target.refund([KEY], [2], [], [slot_id], [], [], 1_050)

    assert target.used(KEY, 1_050) == 0


INVALID_STATES: list[tuple[Limit, list[int]]] = [
    (Limit.of_ns(5, 10, Algorithm.FIXED_WINDOW), [1]),
    (Limit.of_ns(5, 10, Algorithm.FIXED_WINDOW), [1, 2, 3]),
    (Limit.of_ns(5, 10, Algorithm.FIXED_WINDOW), [-1, 2]),
    (Limit.of_ns(5, 10, Algorithm.FIXED_WINDOW), [12, 2]),
    (Limit.of_ns(5, 10, Algorithm.FIXED_WINDOW), [10, 2**61]),
    (Limit.of_ns(5, DAY_NS, Algorithm.FIXED_WINDOW, calendar=Calendar.DAY), [2**62, 1]),
    (Limit.of_ns(5, 10), [10, 1]),
    (Limit.of_ns(5, 10), [12, 1, 1]),
    (Limit.of_ns(5, 10), [10, 2**60, 1]),
    (Limit.of_ns(5, 10, Algorithm.TOKEN_BUCKET), [1]),
    (Limit.of_ns(5, 10, Algorithm.TOKEN_BUCKET), [1, 2]),
    (Limit.of_ns(5, 10, Algorithm.TOKEN_BUCKET), [2**61, 0]),
    (Limit.of_ns(5, 10, Algorithm.TOKEN_BUCKET), [1, 0, 7]),
    (Limit.of_ns(5, 10, Algorithm.TOKEN_BUCKET), [1, 0, 12, 3]),
    (Limit.of_ns(5, 10, Algorithm.SLIDING_WINDOW_LOG), [3]),
    (Limit.of_ns(5, 10, Algorithm.SLIDING_WINDOW_LOG), [3, 1, 4, 1]),
    (Limit.of_ns(5, 10, Algorithm.SLIDING_WINDOW_LOG), [3, 2**60, 3, 2**60]),
    (Limit.of_ns(5, 10, Algorithm.SLIDING_WINDOW_LOG), [3, 0]),
    (Limit.of_ns(5, 10, Algorithm.CONCURRENCY), [7, 3]),
    (Limit.of_ns(5, 10, Algorithm.CONCURRENCY), [7, 3, 1, 8, 2, 1]),
    (Limit.of_ns(5, 10, Algorithm.CONCURRENCY), [7, 3, 1, 7, 3, 1]),
    (Limit.of_ns(5, 10, Algorithm.CONCURRENCY), [0, 3, 1]),
    (Limit.of_ns(5, 10, Algorithm.CONCURRENCY), [7, 3, 0]),
    (Limit.of_ns(5, 10, Algorithm.CONCURRENCY), [2**63, 3, 1]),
]


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize(("limit", "state"), INVALID_STATES)
def test_a_state_that_no_counter_writes_is_refused_and_changes_nothing(
    limit: Limit, state: list[int], is_shared: bool
) -> None:
    engine = engine_of(limit, is_shared)
    ask(engine, 2, 100)
    before = decide_one(engine, 0, 100)
    good = engine.snapshot([KEY], 100)

    refused = engine.restore(Snapshot([KEY], [state], [limit], [0], []), 100)

    assert refused == 1
    assert decide_one(engine, 0, 100) == before
    assert engine.snapshot([KEY], 100) == good


@pytest.mark.parametrize("is_shared", [False, True])
@given(
    limit=limits,
    state=st.lists(st.integers(-1, 2**64), max_size=7),
    now=st.integers(100, 4 * 10**18),
)
@quick
def test_all_numbers_are_refused_or_counted(
    is_shared: bool, limit: Limit, state: list[int], now: int
) -> None:
    engine = engine_of(limit, is_shared)

    engine.restore(Snapshot([KEY], [state], [limit], [0], [{"far": state}]), now)
    engine.charge([KEY], [3], [1], now)
    ask(engine, 1, now)

    assert engine.used(KEY, now) >= 0
    assert engine.restore(engine.snapshot([KEY], now), now) == 0


def test_a_log_too_long_for_a_state_is_stored_with_joined_hits_and_loses_none() -> None:
    hits = MAX_NUMBERS
    limit = Limit.of_ns(hits, 10 * hits, Algorithm.SLIDING_WINDOW_LOG)
    source, now = engine_after(limit, [(at, 1) for at in range(1, hits + 1)])
    target = engine_of(limit)
    snapshot = source.snapshot([KEY], now)
    target.restore(snapshot, now)

    assert len(snapshot.states[0]) <= MAX_NUMBERS
    for instant in range(now, now + 11 * hits, hits // 3):
        assert 0 <= target.used(KEY, instant) - source.used(KEY, instant) <= 1


def test_of_too_many_slots_for_a_state_all_count_and_the_newest_keep_their_ids() -> None:
    slot_ids = MAX_NUMBERS // 3 + 10
    limit = Limit.of_ns(slot_ids, 10 * slot_ids, Algorithm.CONCURRENCY)
    source = engine_of(limit)
    granted = [ask(source, 1, now).slot_ids[0] for now in range(slot_ids)]
    target = engine_of(limit)
    snapshot = source.snapshot([KEY], slot_ids)
    target.restore(snapshot, slot_ids)

    assert len(snapshot.states[0]) <= MAX_NUMBERS
    assert target.used(KEY, slot_ids) == slot_ids
    target.refund([KEY], [1], [], [granted[-1]], [], [], slot_ids)
    assert target.used(KEY, slot_ids) == slot_ids - 1


def test_a_restored_counter_continues_with_the_limit_of_this_node() -> None:
    three = Limit.of_ns(3, 100, Algorithm.FIXED_WINDOW)
    source, _ = engine_after(three, [(0, 2)])
    target = engine_of(replace(three, amount=10))
    ask(target, 9, 0)

    target.restore(source.snapshot([KEY], 0), 0)

    assert decide_one(target, 0, 0).remaining == [8]


def test_an_empty_state_forgets_its_key() -> None:
    engine, now = engine_after(Limit.of_ns(5, 100), [(0, 2)])

    assert (
        engine.restore(Snapshot([KEY, UNKNOWN], [[], []], [Limit.of_ns(0, 1)], [0, 0], []), now)
        == 0
    )

    assert engine.keys() == []


def test_counts_of_an_unknown_rule_wait_for_it() -> None:
    limit = Limit.of_ns(5, 100, Algorithm.FIXED_WINDOW)
    engine = Engine(max_keys=10)

    engine.restore(Snapshot([KEY], [[0, 3]], [limit], [0], [{"far": [0, 1]}]), 0)
    passed_on = engine.snapshot(engine.keys(), 0)
    engine.set_rules({0: EngineRule(limit, is_shared=True)})

    assert passed_on == Snapshot([KEY], [[0, 3]], [limit], [0], [{"far": [0, 1]}])
    assert decide_one(engine, 0, 0).remaining == [1]
    assert engine.local_counts([KEY], 0) == [[0, 3]]


def test_a_snapshot_contains_each_limit_once() -> None:
    other = (1).to_bytes(8, "big")
    engine = Engine(max_keys=10)
    engine.set_rules({0: EngineRule(Limit.of_ns(5, 100)), 1: EngineRule(Limit.of_ns(6, 100))})
    keys = [KEY, other, KEY + b"2"]
    engine.decide(keys, [1, 1, 1], [], [], [], 0)

    snapshot = engine.snapshot(keys, 0)

    assert (snapshot.limits, snapshot.which) == (
        [Limit.of_ns(5, 100), Limit.of_ns(6, 100)],
        [0, 1, 0],
    )
    assert snapshot.remote_counts == []


def test_forgotten_keys_are_gone_and_the_rest_stays() -> None:
    engine, _ = engine_after(Limit.of_ns(5, 100), [(0, 2)])
    engine.decide([KEY + b"2"], [1], [], [], [], 0)

    engine.forget([KEY, KEY, UNKNOWN])

    assert engine.keys() == [KEY + b"2"]
    assert (engine.has(KEY), engine.has(KEY + b"2"), engine.has(UNKNOWN)) == (False, True, False)


def test_restoring_more_keys_than_there_is_room_for_keeps_the_bound() -> None:
    limit = Limit.of_ns(5, 100, Algorithm.FIXED_WINDOW)
    keys = [KEY + b"%d" % number for number in range(50)]
    engine = Engine(max_keys=20)
    engine.set_rules({0: EngineRule(limit)})

    for _ in range(3):
        engine.restore(Snapshot(keys, [[0, 2]] * 50, [limit], [0] * 50, []), 0)
        engine.restore(
            Snapshot([b"x" + key for key in keys], [[0, 2]] * 50, [limit], [0] * 50, []), 0
        )

    assert len(engine) <= 20


@given(cells=st.dictionaries(st.integers(0, 9), st.integers(0, 9)))
def test_flattened_cells_are_read_as_they_were_written(cells: dict[int, int]) -> None:
    assert pairs_of(flatten_pairs(cells)) == cells


def test_of_several_counts_of_one_window_the_largest_is_kept() -> None:
    assert pairs_of([3, 5, 3, 2, 3, 4]) == {3: 5}


@pytest.mark.parametrize("cells", [[1], [1, -2], [-1, 2], [1, 2**61], [2**63, 1]])
def test_invalid_cells_in_a_state_are_rejected(cells: list[int]) -> None:
    with pytest.raises(BadState):
        pairs_of(cells)


def test_a_counter_accepts_only_units_that_a_state_can_store() -> None:
    assert fitting(5, 7) == 5
    assert fitting(2**70, 1) == MAX_UNITS - 1
    assert fitting(1, 2**61) == 0


def decide_one(engine: Engine, cost: int, now: int) -> Outcomes:
    """Return the outcome of a check without the slot id, which differs each time."""
    return msgspec.structs.replace(ask(engine, cost, now), slot_ids=[])
