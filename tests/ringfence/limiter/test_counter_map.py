"""Counters by key: bytes in use, and the order of eviction."""

from typing import cast

import pytest

from ringfence.limiter.counter_map import CounterMap
from ringfence.limiter.reference import Counter


class FakeCounter:
    def __init__(self, share: float = 0.0, *, extra: int = 0, ends: int = 100) -> None:
        self.share = share
        self.extra_bytes = extra
        self.ends = ends

    def is_expired(self, now: int) -> bool:
        return now >= self.ends

    def share_in_use(self, now: int) -> float:
        return self.share


def filled(*counters: FakeCounter) -> CounterMap:
    made = CounterMap()
    for number, counter in enumerate(counters):
        made.put(b"%d" % number, cast(Counter, counter))
    return made


def order(counters: CounterMap) -> list[int]:
    return [int(key) for key in counters.order]


def test_a_counter_has_400_bytes_and_its_extra_bytes() -> None:
    counters = filled(FakeCounter(), large := FakeCounter(extra=30), FakeCounter(extra=7))

    assert CounterMap().bytes_in_use == 0
    assert counters.bytes_in_use == 3 * 400 + 37
    large.extra_bytes = 50
    assert counters.bytes_in_use == 3 * 400 + 37
    counters.weigh(b"1")
    counters.weigh(b"1")
    assert counters.bytes_in_use == 3 * 400 + 57
    large.extra_bytes = 0
    counters.weigh(b"1")
    assert counters.bytes_in_use == 3 * 400 + 7


def test_a_dropped_or_replaced_counter_needs_no_bytes() -> None:
    counters = filled(FakeCounter(extra=30), FakeCounter(extra=5))

    counters.put(b"0", cast(Counter, FakeCounter(extra=2)))
    assert counters.bytes_in_use == 2 * 400 + 7
    for _ in range(2):
        counters.drop(b"1")
        counters.weigh(b"1")
    assert counters.bytes_in_use == 400 + 2
    counters.drop(b"0")
    assert (counters.bytes_in_use, counters.by_key) == (0, {})


def test_dropped_keys_do_not_stay_in_the_order() -> None:
    counters = filled(*[FakeCounter() for _ in range(1000)])

    for number in range(999):
        counters.drop(b"%d" % number)
        assert len(counters.order) <= 2 * len(counters.by_key) + 64
    counters.drop_expired(100)
    counters.drop_expired(100)

    assert counters.by_key == {}


def test_two_counters_at_a_time_are_examined_for_their_end() -> None:
    counters = filled(*[FakeCounter(ends=ends) for ends in (5, 9, 5, 9, 6)])

    counters.drop_expired(5)
    assert order(counters) == [2, 3, 4, 1]
    counters.drop_expired(5)
    assert order(counters) == [4, 1, 3]
    counters.drop_expired(5)
    assert order(counters) == [3, 4, 1]


@pytest.mark.parametrize(
    ("shares", "victim", "left"),
    [
        ([0.5], 0, []),
        ([0.5, 0.2, 0.3], 1, [0, 2]),
        ([0.5, 0.2, 0.2], 1, [0, 2]),
        ([0.9] * 7 + [0.1, 0.0], 7, [8, 0, 1, 2, 3, 4, 5, 6]),
        ([0.1] + [0.9] * 8, 0, [8, 1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_of_eight_counters_the_least_used_is_evicted(
    shares: list[float], victim: int, left: list[int]
) -> None:
    counters = filled(*map(FakeCounter, shares))
    expected = counters.by_key[b"%d" % victim]

    assert counters.evict(0) is expected
    assert order(counters) == left
    assert counters.bytes_in_use == 400 * len(left)


def test_keys_that_are_dropped_and_put_again_stay_few_in_the_order() -> None:
    counters = filled(FakeCounter(), FakeCounter(share=0.5))

    for _ in range(1000):
        counters.drop(b"1")
        counters.put(b"1", cast(Counter, FakeCounter(share=0.5)))

    assert {*order(counters)} == {0, 1}
    assert len(counters.order) < 100
    for left in (1, 0):
        counters.evict(0)
        assert len(counters.by_key) == left
