from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.limiter import NS_PER_SECOND, Algorithm, Code, Limit, Table

SECOND = NS_PER_SECOND
FIVE = Limit.of_ns(5, 10 * SECOND)
MANY = [
    Limit.of_ns(5, 30, Algorithm.TOKEN_BUCKET),
    Limit.of_ns(5, 30, Algorithm.LEAKY_BUCKET, queue=True),
    Limit.of_ns(5, 30, Algorithm.FIXED_WINDOW, soft_permille=400),
    Limit.of_ns(5, 30, Algorithm.SLIDING_WINDOW_LOG),
    Limit.of_ns(5, 30, Algorithm.SLIDING_WINDOW, slots=3),
    Limit.of_ns(5, 30, Algorithm.CONCURRENCY),
]
keys = st.sampled_from([b"", b"a", b"b", b"\x00\xff"])
frames = st.lists(
    st.tuples(
        st.lists(st.tuples(keys, st.integers(0, 6)), max_size=8),
        st.integers(0, 20),
        st.none() | st.sampled_from(MANY),
    ),
    max_size=6,
)


@settings(max_examples=80, deadline=None)
@given(limit=st.sampled_from(MANY), frames=frames)
def test_many_checks_at_once_equal_the_same_checks_one_by_one(limit: Limit, frames) -> None:
    at_once, one_by_one = Table(limit, max_keys=9), Table(limit, max_keys=9)
    now = 0
    for checks, gap, carried in frames:
        now += gap
        names, costs = [key for key, _ in checks], [cost for _, cost in checks]

        outcomes = at_once.check_many(names, costs, now, carried)

        rows = [outcomes.row(index) for index in range(len(outcomes))]
        assert rows == [one_by_one.check(key, cost, now, carried) for key, cost in checks]


@settings(max_examples=50, deadline=None)
@given(
    max_keys=st.integers(1, 12),
    steps=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3), st.integers(0, 9))),
)
def test_there_are_never_more_keys_than_allowed(max_keys: int, steps) -> None:
    table = Table(Limit.of_ns(5, 30), max_keys=max_keys)
    now = 0
    for number, cost, gap in steps:
        now += gap
        table.check(b"%d" % number, cost, now)
        assert len(table) <= max_keys


def test_a_key_at_its_limit_outlives_a_flood_of_new_keys() -> None:
    table = Table(Limit.of_ns(5, 100 * SECOND), max_keys=20)
    table.check(b"abuser", 5, 0)

    for number in range(2_000):
        table.check(b"flood-%d" % number, 1, number)

    assert not table.check(b"abuser", 1, 2_000).is_admitted
    assert table.evicted == 2_001 - 20


def test_expired_keys_make_room_and_do_not_count_as_evicted() -> None:
    table = Table(Limit.of_ns(5, SECOND), max_keys=10_000)
    for number in range(1_000):
        table.check(b"early-%d" % number, 1, 0)

    for number in range(600):
        table.check(b"late-%d" % number, 1, 60 * SECOND)

    assert len(table) == 600
    assert table.evicted == 0


def test_only_an_admitted_check_creates_an_entry() -> None:
    table = Table(FIVE, max_keys=10)

    table.peek(b"peeked", 0)
    table.check(b"too dear", 6, 0)
    table.refund(b"refunded", 1, 0)
    table.check(b"admitted", 1, 0)

    assert len(table) == 1


def test_a_peek_evicts_and_extends_no_key() -> None:
    table = Table(FIVE, max_keys=2)
    table.check(b"one", 1, 0)
    table.check(b"two", 1, 0)

    for now in range(50):
        table.peek(b"one", now)
        table.peek(b"three", now)

    assert table.peek(b"one", 50).remaining == table.peek(b"two", 50).remaining == 4


def test_a_key_whose_units_were_all_refunded_has_no_entry() -> None:
    table = Table(FIVE, max_keys=10)
    table.check(b"key", 3, 0)

    table.refund(b"key", 2, 0)
    assert len(table) == 1
    table.refund(b"key", 1, 0)
    assert len(table) == 0


def test_reset_forgets_one_key() -> None:
    table = Table(FIVE, max_keys=10)
    table.check_many([b"one", b"two"], [5, 5], 0)

    table.reset(b"one")
    table.reset(b"never seen")

    assert table.check(b"one", 1, 0).is_admitted
    assert not table.check(b"two", 1, 0).is_admitted


def test_a_carried_limit_uses_the_same_counter() -> None:
    table = Table(FIVE, max_keys=10)
    table.check(b"key", 5, 0)
    double = replace(FIVE, amount=10)

    outcome = table.check(b"key", 3, 0, double)

    assert (outcome.code, outcome.limit, outcome.remaining) == (Code.ALLOWED, 10, 2)
    assert table.check(b"key", 1, 0).code is Code.DENIED


def test_a_peek_with_a_carried_limit_does_not_convert_the_counter() -> None:
    table = Table(Limit.of_ns(5, 10, Algorithm.SLIDING_WINDOW_LOG), max_keys=10)
    table.check(b"key", 5, 0)

    table.peek(b"key", 9, Limit.of_ns(9, 1_000, Algorithm.FIXED_WINDOW))

    assert table.peek(b"key", 10).remaining == 5


def test_more_carried_limits_than_a_table_caches_lose_no_count() -> None:
    table = Table(FIVE, max_keys=10)
    table.check(b"key", 2, 0)

    remaining = [
        table.check(b"key", 0, 0, replace(FIVE, amount=amount)).remaining
        for amount in range(3, 3_000)
    ]

    assert remaining == list(range(1, 2_998))
    assert table.peek(b"key", 0).remaining == 3


def test_invalid_arguments_are_refused_before_anything_is_charged() -> None:
    table = Table(FIVE, max_keys=10)

    with pytest.raises(ValueError, match="got -2"):
        table.check_many([b"one", b"two"], [1, -2], 0)
    with pytest.raises(ValueError, match="must not be negative"):
        table.refund(b"one", -1, 0)
    with pytest.raises(ValueError, match="must not be negative"):
        table.refund(b"one", 1, 0, age_ns=-1)
    with pytest.raises(ValueError, match="max_keys must"):
        Table(FIVE, max_keys=0)
    assert len(table) == 0


def test_a_denied_renewal_of_an_unused_key_returns_all_slots_as_remaining() -> None:
    table = Table(Limit.of_ns(3, NS_PER_SECOND, Algorithm.CONCURRENCY), max_keys=10)

    assert table.renew(b"key", 7, 0) == (Code.DENIED, 3, 0, 0, 0, 0)


def test_a_denied_renewal_of_an_expired_counter_is_by_the_limit_of_the_table() -> None:
    table = Table(Limit.of_ns(4, 100, Algorithm.LEAKY_BUCKET), max_keys=9)
    table.verdicts((b"key",), (1,), 0, Limit.of_ns(3, 40, Algorithm.CONCURRENCY))

    assert table.renew(b"key", 7, 50) == (Code.DENIED, 4, 0, 0, 0, 0)


def test_a_table_is_not_shared_unless_that_is_stated() -> None:
    plain, shared = Table(FIVE, max_keys=1), Table(FIVE, max_keys=1, is_shared=True)
    for table in (plain, shared):
        table.check(b"key", 2, 0)

    assert plain.local_counts(b"key", 0) == []
    assert plain.merge_remote(b"key", "east", [0, 1], 0) == 1
    assert shared.local_counts(b"key", 0) == [0, 2]
    assert shared.merge_remote(b"key", "east", [0, 1], 0) == 0


def test_the_second_least_used_key_makes_room_and_only_used_keys_count_as_evicted() -> None:
    table = Table(FIVE, max_keys=3)
    for key, cost in ((b"a", 3), (b"b", 1), (b"c", 2)):
        table.check(key, cost, 0)

    table.check(b"d", 5, 0)
    assert [table.has(key) for key in (b"a", b"b", b"c", b"d")] == [True, False, True, True]
    table.evict(1, 0)
    assert [table.has(key) for key in (b"a", b"c", b"d")] == [True, False, True]
    table.evict(5, 60 * SECOND)

    assert (len(table), table.evicted) == (0, 2)
