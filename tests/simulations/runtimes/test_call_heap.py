"""Timed calls leave the heap in order of time and number, and cancelled calls do not fill it."""

from simulations.runtimes.call_heap import CallHeap


def test_calls_leave_in_order_of_time_then_of_planning() -> None:
    heap, made = CallHeap(), list[str]()
    for name, when in (("late", 2.0), ("cancelled", 1.5), ("one", 1.0), ("two", 1.0)):
        planned = heap.plan(when, lambda name=name: made.append(name))
        if name == "cancelled":
            planned.cancel()

    times = []
    while heap.entries:
        when, call = heap.pop()
        times.append(when)
        if call is not None:
            call()

    assert times == [1.0, 1.0, 1.5, 2.0]
    assert made == ["one", "two", "late"]


def test_a_call_is_cancelled_once_and_not_after_it_was_made() -> None:
    heap = CallHeap()
    first, second = heap.plan(1.0, bool), heap.plan(2.0, bool)

    heap.pop()
    first.cancel()
    assert heap.cancelled == 0

    second.cancel()
    second.cancel()
    assert heap.cancelled == 1
    assert heap.pop() == (2.0, None)
    assert heap.cancelled == 0


def test_many_cancelled_calls_leave_the_heap() -> None:
    heap = CallHeap()
    kept = heap.plan(3.0, bool)

    for _ in range(10_000):
        heap.plan(1.0, bool).cancel()

    assert len(heap.entries) < 2_500
    assert heap.cancelled < 2_500
    assert kept in [planned for _, _, planned in heap.entries]
