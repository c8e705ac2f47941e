"""Counters in packed rows."""

from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.limiter import NS_PER_SECOND, Algorithm, Calendar, Limit
from ringfence.limiter.reference import Counter, SlotNumbers, scheme_of
from ringfence.limiter.reference.shared import Shared
from tests.programs import require_compiled

require_compiled()

from ringfence.limiter.compiled import table as compiled_table  # noqa: E402 - only where built
from ringfence.limiter.compiled.table import CompiledTable  # noqa: E402
from ringfence.limiter.packed._packed_dict import PackedMap  # noqa: E402
from ringfence.limiter.packed.cold_counters import ColdCounters  # noqa: E402

NOW = 1_764_000_000 * NS_PER_SECOND
DAY_NS = 86_400 * NS_PER_SECOND
KEY = b"rule-onekey"
LIMITS = [
    Limit.of_ns(100, DAY_NS, Algorithm.FIXED_WINDOW),
    Limit.of_ns(9, DAY_NS, Algorithm.FIXED_WINDOW, calendar=Calendar.DAY, timezone="Asia/Tokyo"),
    Limit.of_ns(100, 60 * NS_PER_SECOND, Algorithm.SLIDING_WINDOW),
    Limit.of_ns(100, 60 * NS_PER_SECOND, Algorithm.SLIDING_WINDOW, slots=6),
    Limit.of_ns(100, 60 * NS_PER_SECOND, Algorithm.TOKEN_BUCKET),
    Limit.of_ns(11, 60 * NS_PER_SECOND, Algorithm.LEAKY_BUCKET, burst=5),
]
PLAIN = [
    Limit.of_ns(100, DAY_NS, Algorithm.FIXED_WINDOW),
    Limit.of_ns(100, 60 * NS_PER_SECOND, Algorithm.FIXED_WINDOW, first_hit=True),
    Limit.of_ns(100, 60 * NS_PER_SECOND, Algorithm.SLIDING_WINDOW, slots=6),
]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["", "us", "asia"]),
        st.integers(1, 2**26),
        st.sampled_from([0, 1, NS_PER_SECOND, 20 * NS_PER_SECOND, 61 * NS_PER_SECOND, DAY_NS]),
    ),
    max_size=8,
)


def shared_counter(limit: Limit, steps: list[tuple[str, int, int]]) -> tuple[Counter, int]:
    """Return a counter that this data center ("") and others have charged, and the time."""
    now = NOW
    counter = scheme_of(limit, SlotNumbers(1), is_shared=True).open(now)
    assert isinstance(counter, Shared)
    for writer, units, gap in steps:
        now += gap
        if writer:
            counter.merge_remote(writer, {counter.numbers(now).current: units}, now)
        else:
            counter.charge(units, now, 0)
    return counter, now


def parts_of(counter: Counter) -> list[object]:
    """Return all attributes of a counter and of its window."""
    names = [name for each in type(counter).__mro__ for name in getattr(each, "__slots__", ())]
    parts = [getattr(counter, name) for name in names]
    return [parts_of(part) if isinstance(part, Counter) else part for part in parts]


@pytest.mark.parametrize("limit", LIMITS, ids=str)
@given(steps=STEPS)
def test_a_counter_is_the_same_after_it_was_a_row(
    limit: Limit, steps: list[tuple[str, int, int]]
) -> None:
    cold = ColdCounters(PackedMap())
    counter, _ = shared_counter(limit, steps)

    assert cold.put(KEY, counter)

    assert [parts_of(each) for each in (cold.find(KEY), cold.take(KEY)) if each] == [
        parts_of(counter)
    ] * 2
    assert cold.find(KEY) is cold.take(KEY) is None


@pytest.mark.parametrize("limit", PLAIN, ids=str)
@given(steps=STEPS)
def test_a_counter_of_one_data_center_is_the_same_after_it_was_a_row(
    limit: Limit, steps: list[tuple[str, int, int]]
) -> None:
    counter, now = scheme_of(limit, SlotNumbers(1)).open(NOW), NOW
    for _, units, gap in steps:
        now += gap
        counter.charge(units, now, 0)
    cold = ColdCounters(PackedMap())

    assert cold.put(KEY, counter)

    found = cold.find(KEY)
    assert found is not None
    assert parts_of(found) == parts_of(counter)


@pytest.mark.parametrize("limit", PLAIN, ids=str)
def test_a_row_of_one_data_center_is_removed_when_its_counter_has_expired(limit: Limit) -> None:
    counter, now = scheme_of(limit, SlotNumbers(1)).open(NOW), NOW
    counter.charge(1, now, 0)
    for _ in range(9):
        cold, rows = cold_counter(counter)
        cold.drop_expired(now)
        assert len(rows) == (not counter.is_expired(now))
        now += limit.period_ns // 4
    assert counter.is_expired(now)


@pytest.mark.parametrize("limit", LIMITS, ids=str)
@pytest.mark.parametrize("writer", ["", "us"])
def test_a_row_is_removed_when_its_counter_has_expired(limit: Limit, writer: str) -> None:
    counter, now = shared_counter(limit, [("asia", 1, 0), (writer, 1, 1)])
    while not counter.is_expired(now):
        cold, rows = cold_counter(counter)
        cold.drop_expired(now)
        assert len(rows) == 1
        now += limit.period_ns // 4

    cold, rows = cold_counter(counter)
    cold.drop_expired(now)
    assert len(rows) == 0


def cold_counter(counter: Counter) -> tuple[ColdCounters, PackedMap]:
    """Return this counter as a row."""
    rows = PackedMap()
    cold = ColdCounters(rows)
    assert cold.put(KEY, counter)
    return cold, rows


def test_of_a_sample_the_counter_with_the_smallest_part_in_use_is_evicted() -> None:
    rows = PackedMap()
    cold = ColdCounters(rows)
    for number in range(8):
        counter, _ = shared_counter(LIMITS[0], [("us", 9 - number if number < 5 else 50, 0)])
        cold.put(b"rule-one%d" % number, counter)

    assert [cold.evict(NOW).used(NOW) for _ in range(3)] == [5, 6, 7]
    assert len(rows) == 5


def test_counters_of_other_limits_and_of_too_many_limits_stay_objects() -> None:
    cold = ColdCounters(PackedMap())
    slots = scheme_of(Limit.of_ns(9, DAY_NS, Algorithm.CONCURRENCY), SlotNumbers(1)).open(NOW, 1)
    counters = [
        shared_counter(Limit.of_ns(100, (1 + number) * NS_PER_SECOND), [("", 1, 0)])[0]
        for number in range(70)
    ]

    assert not cold.put(KEY, slots)
    packed = [cold.put(b"%d" % number, counter) for number, counter in enumerate(counters)]

    assert packed == [True] * 64 + [False] * 6
    for number in range(64):
        cold.take(b"%d" % number)
    assert cold.put(KEY, counters[-1])


@pytest.mark.parametrize("way", ["take", "drop", "evict", "expire"])
def test_a_limit_without_rows_makes_room_for_another(way: str) -> None:
    cold = ColdCounters(PackedMap())
    periods = [1, *[DAY_NS + number for number in range(63)]]
    counters = {
        b"%d" % period: shared_counter(Limit.of_ns(100, period), [("us", 5, 0)])[0]
        for period in periods
    }
    for key, counter in counters.items():
        assert cold.put(key, counter)

    match way:
        case "take":
            cold.take(b"1")
        case "drop":
            assert (cold.drop(b"1"), cold.drop(b"1")) == (True, False)
        case "evict":
            cold.evict(NOW)
        case _:
            for _ in counters:
                cold.drop_expired(NOW + 10)
    others = [shared_counter(Limit.of_ns(9, NS_PER_SECOND), [("asia", 7, 0)])[0] for _ in range(2)]
    packed = [cold.put(b"other-%d" % number, each) for number, each in enumerate(others)]

    assert packed == [True, False]
    assert parts_of(cold.find(b"other-0") or counters[b"1"]) == parts_of(others[0])
    left = {key: found for key in counters if (found := cold.find(key)) is not None}
    assert len(left) == 63
    assert all(parts_of(found) == parts_of(counters[key]) for key, found in left.items())


def test_a_counter_with_counts_of_too_many_data_centers_stays_an_object() -> None:
    cold = ColdCounters(PackedMap())
    few, _ = shared_counter(LIMITS[0], [(f"dc-{number}", 1, 0) for number in range(64)])
    many, _ = shared_counter(LIMITS[0], [(f"dc-{number}", 1, 0) for number in range(65)])

    assert (cold.put(KEY, many), cold.put(KEY, few)) == (False, True)


def test_a_counter_that_does_not_fit_into_a_row_stays_an_object() -> None:
    cold = ColdCounters(PackedMap())
    counter, _ = shared_counter(LIMITS[4], [("", 1, 0)])
    overdrawn, _ = shared_counter(LIMITS[4], [("", 2**40, 0)])

    assert not cold.put(bytes(256), counter)
    assert not cold.put(KEY, overdrawn)
    assert cold.put(KEY, counter)


@pytest.mark.parametrize("limit", PLAIN[1:], ids=str)
def test_a_table_keeps_only_recent_counters_of_one_data_center_as_objects(limit: Limit) -> None:
    table = CompiledTable(limit, max_keys=10_000, secret=bytes(16), keeps_keys=True)
    keys = [b"rule-one%06d" % number for number in range(9000)]
    for _ in range(2):
        for key in keys:
            table.check(key, 1, NOW)

    assert (len(table), len(table.cold)) == (9000, 9000 - 4096)
    assert [table.used(key, NOW) for key in keys[::1000]] == [2] * 9


@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_a_table_keeps_only_recent_counters_as_objects(limit: Limit) -> None:
    table = shared_table(limit)
    keys = [b"rule-one%06d" % number for number in range(9000)]
    for key in keys:
        table.check(key, 1, NOW)
        table.merge_remote(key, "us", [window_of(table, key), 1], NOW)

    assert len(table) == 9000
    assert len(table.overflow) <= 4097
    assert 9000 * 20 < table.bytes_in_use < 4097 * 700 + 4903 * 80
    assert sorted(key for some in table.key_slices(100) for key in some) == keys
    assert [table.used(key, NOW) for key in keys[::1000]] == [2] * 9
    assert len(table.overflow) <= 4097


def shared_table(limit: Limit, max_keys: int = 10_000) -> CompiledTable:
    """Return a table of a limit that data centers share."""
    return CompiledTable(
        limit, max_keys=max_keys, secret=bytes(16), keeps_keys=True, is_shared=True
    )


def window_of(table: CompiledTable, key: bytes) -> int:
    """Return the number of the current window."""
    return table.local_counts(key, NOW)[-2]


def test_a_full_table_evicts_packed_counters() -> None:
    table = shared_table(LIMITS[0], max_keys=9000)
    for number in range(9500):
        table.check(b"rule-one%06d" % number, 1, NOW)

    assert (len(table), table.evicted) == (9000, 500)


def test_expired_packed_counters_are_removed_while_new_keys_are_added() -> None:
    table = shared_table(LIMITS[0], max_keys=100_000)
    for number in range(9000):
        table.check(b"rule-one%06d" % number, 1, NOW)
    for number in range(9000):
        table.check(b"rule-two%06d" % number, 1, NOW + DAY_NS)

    assert len(table) == 9000
    assert table.evicted == 0


def test_a_batch_with_new_keys_still_finds_the_oldest_counter() -> None:
    table = shared_table(LIMITS[0])
    keys = [b"rule-one%06d" % number for number in range(4096)]
    for key in keys:
        table.check(key, 1, NOW)

    found = table.check_many([b"rule-two%06d" % 1, *keys[:3]], [1, 0, 1, 0], NOW)

    assert found.remaining == [99, 99, 98, 99]
    assert [table.used(key, NOW) for key in keys[:3]] == [1, 2, 1]


@pytest.mark.parametrize("is_shared", [True, False])
def test_slices_have_a_key_whose_counter_moves_meanwhile(is_shared: bool) -> None:
    table = shared_table(LIMITS[0])
    keys = [b"rule-one%06d" % number for number in range(9000)]
    for key in keys:
        table.check(key, 1, NOW)
    last_rows = list(table._cold.key_slices(500))[-1]

    found = list[bytes]()
    for number, some in enumerate(table.key_slices(500)):
        found += some
        if number == 0:
            table.change_limit(LIMITS[0], is_shared=is_shared)
            for key in [*last_rows, *keys[-2000:]]:
                table.check(key, 0, NOW)

    assert set(found) == set(keys)
    assert sorted(key for some in table.key_slices(500) for key in some) == keys


def test_slices_have_a_key_of_a_batch_that_makes_its_row_an_object() -> None:
    table = shared_table(LIMITS[0])
    keys = [b"rule-one%06d" % number for number in range(9000)]
    for key in keys:
        table.check(key, 1, NOW)
    last_rows = list(table._cold.key_slices(500))[-1]

    slices = table.key_slices(500)
    others = table.key_slices(500)
    found = next(slices)
    table.check_many(last_rows, [0] * len(last_rows), NOW)

    assert {*found, *(key for some in slices for key in some)} == set(keys)
    assert sorted(key for some in others for key in some) == keys


def test_counters_still_become_rows_after_many_changes_of_the_limit() -> None:
    table = shared_table(LIMITS[0])
    keys = [b"rule-one%06d" % number for number in range(20)]
    with patch.object(compiled_table, "_MOST_OBJECTS", 4):
        for number in range(9):
            table.check(b"rule-two%06d" % number, 1, NOW)
        for number in range(100):
            table.change_limit(Limit.of_ns(1000 + number, DAY_NS), is_shared=True)
            for key in keys:
                table.check(key, 1, NOW)

    assert len(table.overflow) <= 5
    assert [table.used(key, NOW) for key in keys] == [100] * 20


def test_checks_by_a_limit_of_one_data_center_do_not_search_for_counters_to_pack() -> None:
    limit = Limit.of_ns(9, DAY_NS, Algorithm.CONCURRENCY)
    table = CompiledTable(limit, max_keys=10_000, secret=bytes(16), keeps_keys=True)
    keys = [b"rule-one%06d" % number for number in range(5000)]
    table.check_many(keys, [1] * len(keys), NOW)
    order = [*table._counters.order]

    table.check_many(keys, [0] * len(keys), NOW)

    assert [*table._counters.order] == order
