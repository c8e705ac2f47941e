from dataclasses import replace
from datetime import UTC, datetime
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.limiter import NS_PER_SECOND, Algorithm, Calendar, Code, Limit, Table
from tests.programs import require_compiled

require_compiled()

from ringfence.limiter.compiled.table import CompiledTable  # noqa: E402 - only where it was built

SECOND = NS_PER_SECOND
MINUTE = 60 * SECOND
START = 1_700_000_000 * SECOND
COMPILED = [
    Algorithm.TOKEN_BUCKET,
    Algorithm.LEAKY_BUCKET,
    Algorithm.FIXED_WINDOW,
    Algorithm.SLIDING_WINDOW,
    Algorithm.SLIDING_WINDOW_LOG,
]
PERIODS = [7, 30, 10**6, SECOND, MINUTE, 86_400 * SECOND]


def keys_of(table: Table) -> list[bytes]:
    return [key for keys in table.key_slices(100) for key in keys]


def table_of(limit: Limit, max_keys: int = 100_000, *, keeps_keys: bool = False) -> CompiledTable:
    return CompiledTable(limit, max_keys=max_keys, secret=bytes(16), keeps_keys=keeps_keys)


@settings(max_examples=60, deadline=None)
@given(
    algorithm=st.sampled_from(COMPILED),
    amount=st.integers(0, 2**53 - 1) | st.integers(0, 20),
    period_ns=st.integers(1, 2**50) | st.sampled_from(PERIODS),
    soft=st.sampled_from([0, 100, 10_000]),
    start=st.sampled_from([0, START, 2**62 - 10, 2**62 + 5]),
    steps=st.lists(
        st.tuples(
            st.sampled_from([b"", b"a", b"b"]),
            st.integers(0, 2**66) | st.integers(0, 9),
            st.integers(0, 2**51) | st.integers(0, 40),
        ),
        max_size=30,
    ),
)
def test_for_all_numbers_the_table_answers_like_the_reference(
    algorithm, amount, period_ns, soft, start, steps
) -> None:
    if "bucket" in algorithm:
        amount, period_ns = amount % 2**20, period_ns % 2**40 + 1
    limit = Limit.of_ns(amount, period_ns, algorithm, soft_permille=soft)
    reference, compiled = Table(limit, max_keys=10), table_of(limit)
    now = start
    for key, cost, gap in steps:
        now += gap
        assert compiled.check(key, cost, now) == reference.check(key, cost, now)


@pytest.mark.parametrize("algorithm", COMPILED)
@pytest.mark.parametrize("keeps_keys", [False, True])
def test_a_table_that_grows_and_shrinks_loses_no_key(
    algorithm: Algorithm, keeps_keys: bool
) -> None:
    limit = Limit.of_ns(3, MINUTE, algorithm)
    table, random = table_of(limit, keeps_keys=keeps_keys), Random(1)
    keys = [random.randbytes(random.randrange(1, 40)) + b"%d" % number for number in range(9_000)]

    for key in keys:
        assert table.check(key, 2, START).remaining == 1
    assert len(table) == len(keys)
    assert all(table.has(key) for key in keys)
    if keeps_keys:
        assert sorted(keys_of(table)) == sorted(keys)
    for key in keys[100:]:
        table.reset(key)
    assert len(table) == 100
    for number in range(3_000):
        table.check(b"later-%d" % number, 1, START)
        table.reset(b"later-%d" % number)
    assert table.nbytes < 100_000
    assert table.check_many(keys[:100], [0] * 100, START).remaining == [1] * 100


def test_a_table_without_kept_keys_cannot_list_them() -> None:
    table = table_of(Limit.of_ns(3, MINUTE))
    table.check(b"key", 1, START)

    with pytest.raises(LookupError, match="identity alone"):
        keys_of(table)


@pytest.mark.parametrize("algorithm", COMPILED)
def test_slices_contain_each_lasting_key_once_while_the_table_changes(algorithm: Algorithm) -> None:
    table, random = table_of(Limit.of_ns(3, MINUTE, algorithm), keeps_keys=True), Random(2)
    lasting = {b"lasting-%d" % number for number in range(5_000)}
    for key in lasting:
        table.check(key, 1, START)

    found: list[bytes] = []
    passing = [b"passing-%d" % number for number in range(40_000)]
    for number, keys in enumerate(table.key_slices(100)):
        found += keys
        assert len(keys) <= 100
        for key in passing[number * 500 : number * 500 + 500]:  # Soon the table must grow.
            table.check(key, 1, START)
            if random.random() < 0.9:  # Later it shrinks.
                table.reset(key)

    assert sorted(lasting.intersection(found)) == sorted(lasting)
    assert len(found) == len(set(found))


def test_memory_of_removed_keys_is_used_for_other_keys() -> None:
    table = table_of(Limit.of_ns(3, MINUTE, Algorithm.TOKEN_BUCKET), keeps_keys=True)
    random = Random(3)
    kept = {b"kept-%d" % number: number % 3 for number in range(500)}
    for key, cost in kept.items():
        table.check(key, cost + 1, START)
    settled = table.nbytes

    for _ in range(20_000):  # Of every length, so that the memory of each size is used again.
        key = random.randbytes(random.randrange(1, 256))
        table.check(key, 1, START)
        table.reset(key)

    assert sorted(keys_of(table)) == sorted(kept)
    assert table.nbytes < settled + 8_000  # One key of each length at most.
    for key, cost in kept.items():
        assert table.check(key, 0, START).remaining == 2 - cost


def test_a_key_that_is_too_long_for_the_table_is_refused() -> None:
    table = table_of(Limit.of_ns(3, MINUTE), keeps_keys=True)
    table.check(bytes(255), 1, START)

    with pytest.raises(ValueError, match="at most 255 bytes, this one 256"):
        table.check(bytes(256), 1, START)
    assert keys_of(table) == [bytes(255)]


@pytest.mark.parametrize("first", [b"rule-one", b"short", b""])
def test_keys_of_any_rule_and_length_are_listed_whole(first: bytes) -> None:
    random = Random(first)
    table = table_of(Limit.of_ns(3, MINUTE), keeps_keys=True)
    table.check(first, 1, START)
    kept = {first}
    for step in range(6_000):
        rule = random.choice([b"rule-one", b"rule-one", b"rule-two", b""])
        key = rule + random.randbytes(random.choice([0, 1, 7, 8, 9, 20, 246, 247]))
        table.check(key, 1, START)
        kept.add(key)
        if step % 3:
            removed = random.choice([key, first])
            table.reset(removed)
            kept.discard(removed)
        if step in (2_000, 4_000):  # Without keys, the next one determines the common id.
            for each in kept:
                table.reset(each)
            kept.clear()

    assert sorted(keys_of(table)) == sorted(kept)
    assert all(table.check(key, 0, START).remaining < 3 for key in kept)


def test_keys_of_one_rule_are_stored_without_its_id() -> None:
    table = table_of(Limit.of_ns(3, MINUTE), keeps_keys=True)
    other = table_of(Limit.of_ns(3, MINUTE), keeps_keys=True)
    for number in range(10_000):
        table.check(b"rule-one" + b"%07d" % number, 1, START)
        other.check(b"%08d" % number + b"%07d" % number, 1, START)

    assert other.bytes_in_use - table.bytes_in_use >= 8 * 9_000


@pytest.mark.parametrize("algorithm", COMPILED)
def test_a_flood_of_keys_stays_in_bounds_and_evicts_no_throttled_key(algorithm: Algorithm) -> None:
    table = table_of(Limit.of_ns(10, 3600 * SECOND, algorithm), 2_000)
    throttled = [b"throttled-%d" % number for number in range(1_000)]
    table.check_many(throttled, [10] * 1_000, START)

    for number in range(200):
        flood = [b"flood-%d-%d" % (number, each) for each in range(100)]
        table.check_many(flood, [1] * 100, START + number)
        assert len(table) <= 2_000

    assert table.check_many(throttled, [1] * 1_000, START + 500).codes == [Code.DENIED] * 1_000
    assert table.evicted == 20_000 - 1_000


def test_each_eviction_removes_one_key_even_when_a_resize_has_just_begun() -> None:
    for count in range(1, 40):
        table = table_of(Limit(5, 60))
        for number in range(count):
            table.check(b"rule-one%d" % number, 1, START)
        sizes = [len(table)]
        for _ in range(count):
            table.evict(1, START)
            sizes.append(len(table))

        assert sizes == [*range(count, -1, -1)]


@pytest.mark.parametrize("algorithm", COMPILED)
@pytest.mark.parametrize("keeps_keys", [False, True])
def test_a_table_without_new_keys_releases_memory_when_keys_are_evicted(
    algorithm: Algorithm, *, keeps_keys: bool
) -> None:
    table = table_of(Limit.of_ns(5, MINUTE, algorithm), 50_000, keeps_keys=keeps_keys)
    for number in range(40_000):
        table.check(b"rule-one%d" % number, 1 + number % 3, START)
    full = table.nbytes

    for evicted in range(1, 35_001):
        table.evict(1, START)
        assert len(table) == 40_000 - evicted
    left = [number for number in range(40_000) if table.has(b"rule-one%d" % number)]

    assert table.nbytes < full / 3
    assert len(left) == 5_000
    for number in left:
        assert table.check(b"rule-one%d" % number, 0, START).remaining == 4 - number % 3
    if keeps_keys:
        assert sorted(keys_of(table)) == sorted(b"rule-one%d" % number for number in left)


def test_a_denied_or_impossible_check_evicts_no_key() -> None:
    table = table_of(Limit.of_ns(10, MINUTE), 5)
    table.check_many([b"%d" % number for number in range(5)], [1] * 5, START)

    for number in range(50):
        table.check(b"dear-%d" % number, 11, START)
        table.check(b"peek-%d" % number, 0, START)

    assert len(table) == 5
    assert table.evicted == 0


@pytest.mark.parametrize("algorithm", COMPILED)
def test_unused_keys_make_room_without_a_timer(algorithm: Algorithm) -> None:
    table = table_of(Limit.of_ns(5, SECOND, algorithm))
    for number in range(5_000):
        table.check(b"early-%d" % number, 1, START)

    for number in range(2_000):
        table.check(b"late-%d" % number, 1, START + MINUTE)

    assert len(table) == 2_000
    assert table.evicted == 0
    assert table.nbytes < 2_000 * (150 if algorithm is Algorithm.SLIDING_WINDOW_LOG else 60)


def test_keys_move_to_a_changed_limit_one_by_one_and_the_old_store_is_removed() -> None:
    limit = Limit.of_ns(10, 100 * SECOND, Algorithm.TOKEN_BUCKET)
    reference, table = Table(limit, max_keys=10_000), table_of(limit, 10_000)
    keys = [b"%d" % number for number in range(3_000)]
    for now, algorithm in enumerate([*COMPILED, *COMPILED]):
        changed = replace(limit, algorithm=algorithm, amount=10 + now)
        for each in (reference, table):
            each.change_limit(changed)
        asked = keys[now * 200 : 1_000 + now * 200]
        costs = [1 + number % 3 for number in range(len(asked))]
        assert table.check_many(asked, costs, START + now) == reference.check_many(
            asked, costs, START + now
        )

    late = START + 1_000 * SECOND
    table.check_many([b"new-%d" % number for number in range(1_000)], [1] * 1_000, late)

    assert len(table.stores) == 1
    assert len(table) == 1_000


def test_more_limits_than_stores_lose_no_count() -> None:
    limit = Limit.of_ns(1_000, MINUTE)
    reference, table = Table(limit, max_keys=99), table_of(limit, 99)
    for number in range(60):
        carried = replace(limit, amount=1_000 + number)
        for key in (b"shared", b"key-%d" % number):
            expected = reference.check(key, 2, START + number, carried)
            assert table.check(key, 2, START + number, carried) == expected

    assert table.check(b"shared", 0, START + 60).remaining == 1_000 - 120


def test_a_bucket_with_a_high_rate_stays_exact_for_years() -> None:
    limit = Limit.of_ns(1_000_003, SECOND, Algorithm.TOKEN_BUCKET)
    reference, table = Table(limit, max_keys=9), table_of(limit, 9)
    now = START
    for step in range(30):
        now += 40 * 86_400 * SECOND
        for cost in (1_000_000, 7):
            assert table.check(b"k", cost, now) == reference.check(b"k", cost, now), step
        back = now - 30 * 86_400 * SECOND
        assert table.check(b"k", 0, back) == reference.check(b"k", 0, back)


@pytest.mark.parametrize("algorithm", COMPILED)
def test_a_clock_that_goes_back_admits_no_more_units(algorithm: Algorithm) -> None:
    limit = Limit.of_ns(5, 10, algorithm)
    reference, table = Table(limit, max_keys=9), table_of(limit)

    for now in (1_000, 993, 1_003, 950, 1_004, 1_015, 1_009, 0, 1_016):
        for cost in (1, 2, 0):
            assert table.check(b"key", cost, now) == reference.check(b"key", cost, now)


def test_calendar_windows_follow_the_zone_and_a_clock_that_goes_back() -> None:
    limit = Limit.of_ns(
        5, 86_400 * SECOND, Algorithm.FIXED_WINDOW, calendar=Calendar.DAY, timezone="Europe/Berlin"
    )
    reference, table = Table(limit, max_keys=9), table_of(limit)
    night = round(datetime(2026, 10, 24, 21, 59, 59, tzinfo=UTC).timestamp()) * SECOND

    for seconds in (0, 1, 3_600, 0, 86_400, 90_000, 90_002, 86_400, -3_600):
        now = night + seconds * SECOND
        assert table.check(b"key", 1, now) == reference.check(b"key", 1, now)


def test_a_log_takes_few_bytes_a_hit_and_gives_them_back() -> None:
    table, random = table_of(Limit.of_ns(500, MINUTE, Algorithm.SLIDING_WINDOW_LOG)), Random(2)
    keys = [b"%d" % number for number in range(50)]
    for stamp in sorted(random.randrange(MINUTE) for _ in range(500)):
        table.check_many(keys, [1] * 50, START + stamp)

    assert table.nbytes / 50 < 2_100
    assert table.check(keys[0], 1, START + MINUTE - 1).code is Code.DENIED
    for number in range(100):
        table.check_many(keys, [1] * 50, START + 3 * MINUTE + number * SECOND // 10)
    assert table.nbytes / 50 < 700


def test_a_frame_may_be_larger_than_a_block_and_name_keys_twice() -> None:
    limit = Limit.of_ns(1_000, MINUTE)
    reference, table = Table(limit, max_keys=999), table_of(limit)
    keys = [b"%d" % (number % 7) for number in range(1_000)]

    assert table.check_many(keys, (1,) * 1_000, START) == reference.check_many(
        keys, [1] * 1_000, START
    )


def test_invalid_arguments_are_refused_before_anything_is_charged() -> None:
    table = table_of(Limit.of_ns(5, MINUTE))
    many = [b"%d" % number for number in range(600)]

    with pytest.raises(ValueError, match="-2"):
        table.check_many(many, [1] * 599 + [-2], START)
    with pytest.raises(ValueError, match="600 keys, but 1 costs"):
        table.check_many(many, [1], START)
    with pytest.raises(TypeError, match="is not bytes"):
        table.check_many([b"key", "key"], [1, 1], START)  # type: ignore[list-item]
    with pytest.raises(ValueError, match="cost: -1 is negative"):
        table.check(b"key", -1, START)
    with pytest.raises(ValueError, match="must have 16"):
        CompiledTable(Limit.of_ns(5, 1), max_keys=1, secret=b"short", keeps_keys=False)
    assert len(table) == 0
