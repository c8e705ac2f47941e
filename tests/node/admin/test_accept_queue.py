"""Connections that wait to be served: addresses take turns, and the number is bounded."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.admin.accept_queue import FairQueue


def test_an_address_with_many_items_delays_only_its_own() -> None:
    queue: FairQueue[str] = FairQueue(10, 1.0, 10)
    for item in ("a1", "a2", "a3", "b1", "c1", "b2"):
        assert queue.put(item[0], item) is None

    assert [queue.take(0.0) for _ in range(len(queue))] == ["a1", "b1", "c1", "a2", "b2", "a3"]
    with pytest.raises(LookupError):
        queue.take(0.0)


def test_beyond_the_bound_the_address_that_has_most_loses_its_oldest() -> None:
    queue: FairQueue[str] = FairQueue(3, 1.0, 10)
    for item in ("a1", "b1", "a2"):
        queue.put(item[0], item)

    assert queue.put("c", "c1") == "a1"
    assert len(queue) == 3
    assert [queue.take(0.0) for _ in range(3)] == ["a2", "b1", "c1"]


def test_each_address_has_a_pace_of_its_own() -> None:
    queue: FairQueue[str] = FairQueue(10, 10.0, 2)
    for item in ("a1", "a2", "a3", "b1"):
        queue.put(item[0], item)

    assert [queue.take(5.0) for _ in range(3)] == ["a1", "b1", "a2"]
    assert queue.next_due() == pytest.approx(5.1)
    with pytest.raises(LookupError):
        queue.take(5.05)
    assert queue.take(5.11) == "a3"
    assert queue.next_due() == inf


def test_all_that_waits_can_be_removed_at_once() -> None:
    queue: FairQueue[str] = FairQueue(10, 10.0, 2)
    for item in ("a1", "b1", "a2"):
        queue.put(item[0], item)

    assert queue.clear() == ["a1", "a2", "b1"]
    assert len(queue) == 0


@given(st.lists(st.sampled_from("abc") | st.none()), st.integers(1, 5))
def test_nothing_is_lost_but_what_put_returns(steps: list[str | None], most: int) -> None:
    queue: FairQueue[int] = FairQueue(most, 1.0, 100)
    inside: set[int | None] = set()
    for number, address in enumerate(steps):
        if address is not None:
            inside.add(number)
            inside -= {queue.put(address, number)}
        elif inside:
            inside.remove(queue.take(0.0))
        assert len(queue) == len(inside) <= most
