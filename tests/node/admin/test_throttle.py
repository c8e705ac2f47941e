"""Throttle and fair queue of the admin port."""

from math import inf

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from node.admin.throttle import FairQueue, Throttle


async def test_a_burst_passes_at_once_and_the_rest_at_the_rate(autojump_clock: MockClock) -> None:
    throttle = Throttle(10.0, 5)
    passed: list[float] = []
    started_at = trio.current_time()
    for _ in range(8):
        await throttle.turn()
        passed.append(round(trio.current_time() - started_at, 6))

    assert passed == [0, 0, 0, 0, 0, 0.1, 0.2, 0.3]


async def test_an_idle_throttle_regains_one_burst(autojump_clock: MockClock) -> None:
    throttle = Throttle(10.0, 2)
    for _ in range(2):
        await throttle.turn()
    await trio.sleep(60)
    started_at = trio.current_time()
    for _ in range(3):
        await throttle.turn()

    assert round(trio.current_time() - started_at, 6) == 0.1


async def test_waiting_callers_get_their_turns_in_fifo_order(autojump_clock: MockClock) -> None:
    throttle = Throttle(100.0, 1)
    turns: list[str] = []

    async def ask(name: str, times: int) -> None:
        for _ in range(times):
            await throttle.turn()
            turns.append(name)

    async with trio.open_nursery() as nursery:
        for name, times in (("a", 20), ("b", 20), ("c", 3)):
            nursery.start_soon(ask, name, times)

    assert sorted(turns[:9]) == ["a"] * 3 + ["b"] * 3 + ["c"] * 3


def test_an_address_with_many_items_delays_only_its_own_items() -> None:
    queue: FairQueue[str] = FairQueue(10, 1.0, 10)
    for item in ("a1", "a2", "a3", "b1", "c1", "b2"):
        assert queue.put(item[0], item) is None

    assert [queue.take(0.0) for _ in range(len(queue))] == ["a1", "b1", "c1", "a2", "b2", "a3"]
    with pytest.raises(LookupError):
        queue.take(0.0)


def test_a_full_queue_drops_the_oldest_item_of_the_largest_address() -> None:
    queue: FairQueue[str] = FairQueue(3, 1.0, 10)
    for item in ("a1", "b1", "a2"):
        queue.put(item[0], item)

    assert queue.put("c", "c1") == "a1"
    assert len(queue) == 3
    assert [queue.take(0.0) for _ in range(3)] == ["a2", "b1", "c1"]


def test_each_address_has_its_own_rate() -> None:
    queue: FairQueue[str] = FairQueue(10, 10.0, 2)
    for item in ("a1", "a2", "a3", "b1"):
        queue.put(item[0], item)

    assert [queue.take(5.0) for _ in range(3)] == ["a1", "b1", "a2"]
    assert queue.next_due() == pytest.approx(5.1)
    with pytest.raises(LookupError):
        queue.take(5.05)
    assert queue.take(5.11) == "a3"
    assert queue.next_due() == inf


def test_clear_removes_all_items() -> None:
    queue: FairQueue[str] = FairQueue(10, 10.0, 2)
    for item in ("a1", "b1", "a2"):
        queue.put(item[0], item)

    assert queue.clear() == ["a1", "a2", "b1"]
    assert len(queue) == 0


@given(st.lists(st.sampled_from("abc") | st.none()), st.integers(1, 5))
def test_only_items_that_put_returns_are_lost(steps: list[str | None], most: int) -> None:
    queue: FairQueue[int] = FairQueue(most, 1.0, 100)
    queued: set[int | None] = set()
    for number, address in enumerate(steps):
        if address is not None:
            queued.add(number)
            queued -= {queue.put(address, number)}
        elif queued:
            queued.remove(queue.take(0.0))
        assert len(queue) == len(queued) <= most


def test_rates_of_addresses_that_no_longer_send_are_forgotten() -> None:
    queue: FairQueue[int] = FairQueue(2, 1.0, 1)
    for number in range(20):
        queue.put(str(number), number)
        queue.take(0.0)
    for number in range(20, 30):
        queue.put(str(number), number)
        queue.take(float(number))
        assert len(queue._next) <= 5


def test_addresses_that_must_wait_keep_their_rate_when_others_are_forgotten() -> None:
    queue: FairQueue[str] = FairQueue(2, 1.0, 1)
    for number in range(30):  # Few addresses are remembered.
        queue.put("busy", "busy")
        queue.take(float(number))
        queue.put("busy", "again")
        queue.put(f"other {number}", "other")

        assert queue.take(float(number)) == "other"
        assert queue.next_due() == pytest.approx(number + 1.0)
        queue.clear()
