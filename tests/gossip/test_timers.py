import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossip.timers import Due, Timers


def drain(timers, now):
    taken = []
    while (timer := timers.pop(now)) is not None:
        taken.append(timer)
    return taken


@given(st.dictionaries(st.integers(0, 9), st.integers(0, 9)), st.integers(0, 9))
def test_due_timers_run_in_order_and_the_others_stay(instants, now):
    timers = Timers()
    for seq, at in instants.items():
        timers.set((Due.PROBE_TIMEOUT, seq), at)

    taken = [instants[int(seq)] for _, seq in drain(timers, now)]

    assert taken == sorted(at for at in instants.values() if at <= now)
    assert timers.next_at() == min((at for at in instants.values() if at > now), default=None)


def test_a_timer_that_is_moved_falls_due_once():
    timers = Timers()
    for at in range(1000):
        timers.set((Due.PROBE, "near"), at)

    assert drain(timers, 998) == []
    assert drain(timers, 999) == [(Due.PROBE, "near")]


def test_a_timer_that_is_cancelled_never_falls_due():
    timers = Timers()
    timers.set((Due.PROBE, "near"), 1)
    timers.set((Due.PROBE, "far"), 2)
    timers.cancel((Due.PROBE, "unknown"))
    assert timers.next_at() == 1
    timers.cancel((Due.PROBE, "near"))
    assert timers.next_at() == 2
    assert (Due.PROBE, "near") not in timers

    assert drain(timers, 2) == [(Due.PROBE, "far")]
    assert timers.next_at() is None


@pytest.mark.parametrize("others", [1, 10])
def test_timers_that_are_moved_very_often_keep_their_order(others):
    timers = Timers()
    for number in range(others):
        timers.set((Due.NACK, number), 5)
    for at in range(1000, 9, -1):
        timers.set((Due.PROBE, "near"), at)
        timers.set((Due.PROBE, "far"), at)

    assert drain(timers, 9) == [(Due.NACK, number) for number in range(others)]
    assert drain(timers, 10) == [(Due.PROBE, "near"), (Due.PROBE, "far")]
    assert drain(timers, 1000) == []
