from hypothesis import given
from hypothesis import strategies as st

from ringfence.runtime.timers import Timers


@given(whens=st.lists(st.integers(0, 20), max_size=40), cancelled=st.sets(st.integers(0, 39)))
def test_calls_are_made_in_order_of_time_then_of_planning(
    whens: list[int], cancelled: set[int]
) -> None:
    timers = Timers()
    made: list[tuple[int, int]] = []
    for i, when in enumerate(whens):
        timer = timers.plan(when, lambda entry=(when, i): made.append(entry))
        if i in cancelled:
            timer.cancel()

    while (deadline := timers.next_deadline()) is not None:
        for planned in timers.take_due(deadline):
            planned.run()

    assert made == sorted((w, i) for i, w in enumerate(whens) if i not in cancelled)


def test_cancelled_calls_are_removed_from_the_heap() -> None:
    timers = Timers()

    for i in range(10_000):
        timers.plan(1000.0 + i, lambda: None).cancel()

    assert len(timers._heap) <= 256
