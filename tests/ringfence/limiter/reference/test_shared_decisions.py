"""Decisions of shared counters, and the counts that other data centers receive."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.limiter import (
    Algorithm,
    Engine,
    EngineRule,
    Limit,
)
from tests.ringfence.limiter.reference.shared_sites import (
    KEY,
    NOW,
    ask,
    buckets,
    engine_of,
    exchange,
    fixed,
    histories,
    quick,
    windows,
)


@given(limit=windows, history=histories)
@settings(max_examples=150, deadline=None)
def test_data_centers_without_delay_decide_like_a_single_one(limit, history) -> None:
    sites, single = [engine_of(limit), engine_of(limit)], engine_of(limit, is_shared=False)

    for now, site, cost in history:
        exchange(sites, now)
        for peeked in (0, cost):
            assert ask(sites[site], peeked, now) == ask(single, peeked, now)


@given(limit=buckets, history=histories)
@quick
def test_shared_buckets_without_delay_admit_no_more_than_one_bucket(limit, history) -> None:
    sites, single = [engine_of(limit), engine_of(limit)], engine_of(limit, is_shared=False)

    for now, site, cost in history:
        answer = ask(sites[site], cost, now)
        exchange(sites, now)

        assert answer.codes == ask(single, cost, now).codes
        assert {engine.used(KEY, now) for engine in sites} == {single.used(KEY, now)}


@given(limit=fixed, history=histories, every=st.integers(1, 5))
@quick
def test_over_admission_is_bounded_by_unsent_counts(limit, history, every) -> None:
    sites = [engine_of(limit), engine_of(limit)]
    admitted: dict[int, int] = {}
    unsent: dict[int, int] = {}

    for step, (now, site, cost) in enumerate(history):
        window = now // limit.period_ns
        if step % every == 0:
            exchange(sites, now)
            unsent = {}
        if ask(sites[site], cost, now).codes[0] <= 1:
            admitted[window] = admitted.get(window, 0) + cost
            assert admitted[window] <= limit.amount + unsent.get(window, 0)
            unsent[window] = unsent.get(window, 0) + cost


@given(limit=windows, history=histories, data=st.data())
@quick
def test_data_centers_converge_after_lost_late_or_repeated_messages(limit, history, data) -> None:
    """All data centers then count exactly the admitted units."""
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


def test_local_counts_are_listed_while_their_windows_are_active() -> None:
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


def test_a_bucket_lists_its_counts_of_two_periods() -> None:
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
def test_a_refund_changes_only_local_counts(algorithm) -> None:
    engine = engine_of(Limit.of_ns(9, 10, Algorithm(algorithm)))
    ask(engine, 2, NOW)
    engine.merge_remote("east", [KEY], [[100, 3]], NOW)

    engine.refund([KEY], [1], [], [], [], [], NOW)

    assert engine.local_counts([KEY], NOW) == [[100, 1]]
    assert engine.used(KEY, NOW) == 4


def test_a_denied_group_leaves_no_local_counts() -> None:
    engine = Engine(max_keys=10)
    bucket = Limit.of_ns(5, 10, Algorithm.TOKEN_BUCKET)
    engine.set_rules({0: EngineRule(bucket, is_shared=True), 1: EngineRule(Limit.of_ns(0, 10))})

    engine.decide([KEY, (1).to_bytes(8, "big")], [1, 1], [2], [], [], NOW)

    assert engine.local_counts([KEY], NOW) == [[]]
    assert engine.keys() == []


def test_use_and_ceiling_include_all_data_centers() -> None:
    engine = engine_of(Limit.of_ns(10, 100, Algorithm.FIXED_WINDOW, soft_permille=200))
    ask(engine, 2, NOW)
    engine.merge_remote("east", [KEY], [[10, 3]], NOW)
    unknown = (9).to_bytes(8, "big")

    assert (engine.used(KEY, NOW), engine.ceiling(KEY)) == (5, 12)
    assert (engine.used(unknown, NOW), engine.ceiling(unknown)) == (0, 0)
