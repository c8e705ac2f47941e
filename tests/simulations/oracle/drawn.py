"""Limits of all algorithms with all their options, and histories of one key, drawn at random."""

from hypothesis import strategies as st

from ringfence.limiter import Algorithm, Limit
from tests.ringfence.limiter.drawn_limits import DAY, DrawnLimits
from tests.simulations.oracle.engines import Asked

__all__ = ["changing_histories", "histories", "limits"]

SECOND = 10**9

drawn = DrawnLimits(
    amounts=st.integers(0, 8) | st.sampled_from([60, 1000, 2**33]),
    periods=st.integers(1, 40) | st.sampled_from([SECOND, 60 * SECOND, 7 * DAY]),
    bursts=st.none() | st.integers(1, 12) | st.just(500),
    soft=st.sampled_from([0, 0, 100, 333, 500, 10_000]),
    slot_counts=st.sampled_from([1, 1, 2, 3, 6, 60]),
    slot_lengths=st.integers(1, 12) | st.sampled_from([SECOND, 10 * SECOND]),
)
windows = drawn.of(Algorithm.FIXED_WINDOW, Algorithm.SLIDING_WINDOW_LOG, Algorithm.CONCURRENCY)
limits = drawn.buckets | drawn.queues | windows | drawn.first_hits | drawn.calendars | drawn.slotted


@st.composite
def histories(draw: st.DrawFn, limit: Limit) -> list[Asked]:
    """Steps of one key, with gaps and costs of the size of the limit."""
    length = DAY if limit.calendar is not None else limit.period_ns
    near = st.integers(0, 3) | st.integers(0, max(1, length // max(1, limit.ceiling)))
    gaps = st.just(0) | near | st.integers(0, length + 1) | st.integers(0, 3 * length)
    some = st.integers(0, 3) | st.integers(0, limit.ceiling + 2)
    ages = st.just(0) | near | st.integers(0, 3 * length)
    checks = st.builds(Asked, gaps, st.just("check"), some)
    refunds = st.builds(Asked, gaps, st.just("refund"), some, ages)
    if limit.algorithm is Algorithm.CONCURRENCY:
        slots = st.integers(1, 6)
        others = st.builds(Asked, gaps, st.sampled_from(["release", "renew"]), slot=slots)
    else:
        most = st.sampled_from([2**53, 2**60, 2**62])
        others = st.builds(Asked, gaps, st.just("charge"), some | some | some | most)
    return draw(st.lists(checks | checks | refunds | others, max_size=25))


@st.composite
def changing_histories(draw: st.DrawFn, limit: Limit) -> list[Asked]:
    """Histories in which the rule gets other limits, and in which some checks have their own."""
    others = [limit, *draw(st.lists(limits, min_size=1, max_size=3))]
    gaps = st.integers(0, 2 * limit.period_ns)
    changes = st.builds(Asked, gaps, st.just("change"), limit=st.sampled_from(others))
    some = st.integers(0, 4) | st.integers(1, limit.ceiling + 2)
    carried = st.builds(Asked, gaps, st.just("check"), some, limit=st.sampled_from(others))
    steps: list[Asked] = []
    for _ in range(draw(st.integers(1, 4))):
        steps += draw(histories(limit))[:8]
        steps.append(draw(changes | carried))
        if steps[-1].kind == "change":
            limit = steps[-1].limit or limit
    return steps
