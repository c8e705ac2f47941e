from hypothesis import given
from hypothesis import strategies as st

from gossip.timers import Due, Timers


def drain(timers, now):
    taken = []
    while (timer := timers.pop(now)) is not None:
        taken.append(timer)
    return taken


@given(st.dictionaries(st.integers(0, 9), st.integers(0, 9)), st.integers(0, 9))
def test_what_is_due_comes_in_order_and_the_rest_stays(instants, now):
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
    timers.cancel((Due.PROBE, "near"))
    timers.cancel((Due.PROBE, "far"))

    assert timers.next_at() is None
