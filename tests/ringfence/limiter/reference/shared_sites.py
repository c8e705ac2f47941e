"""Engines of several data centers, and strategies for their counts."""

from collections.abc import Sequence
from itertools import accumulate

from hypothesis import settings
from hypothesis import strategies as st

from ringfence.limiter import (
    NS_PER_SECOND,
    Algorithm,
    Engine,
    EngineRule,
    Limit,
    Outcomes,
)
from tests.ringfence.limiter.drawn_limits import DrawnLimits

SECOND = NS_PER_SECOND
KEY = (0).to_bytes(8, "big") + b"key"
NOW = 1_000
quick = settings(max_examples=80, deadline=None)

drawn = DrawnLimits(amounts=st.integers(1, 12), bursts=st.none() | st.integers(1, 12))
fixed = drawn.of(Algorithm.FIXED_WINDOW)
sliding = drawn.slotted
windows = fixed | sliding
buckets = drawn.buckets
limits = windows | buckets
reported_counts = st.lists(
    st.tuples(
        st.sampled_from(["east", "west"]),
        st.lists(st.tuples(st.integers(-7, 2), st.integers(0, 9)), max_size=4),
    ),
    max_size=6,
)
"""Counts by data center: windows, numbered from the current one, with their units."""
histories = st.lists(
    st.tuples(st.integers(0, 15), st.integers(0, 1), st.integers(1, 4)), max_size=30
).map(
    lambda steps: [
        (NOW + at, site, cost)
        for at, (_, site, cost) in zip(accumulate(gap for gap, _, _ in steps), steps, strict=True)
    ]
)
"""Checks as (now, data center, cost), in order of time."""


# -- merging -----------------------------------------------------------------------------------


def engine_of(limit: Limit, *, is_shared: bool = True) -> Engine:
    engine = Engine(max_keys=1_000)
    engine.set_rules({0: EngineRule(limit, is_shared=is_shared)})
    return engine


def ask(engine: Engine, cost: int, now: int) -> Outcomes:
    return engine.decide([KEY], [cost], [], [], [], now)


def exchange(sites: Sequence[Engine], now: int) -> None:
    """Merge the counts of every data center into every other one."""
    for writer, source in enumerate(sites):
        for target in sites:
            if target is not source:
                target.merge_remote(f"site-{writer}", [KEY], source.local_counts([KEY], now), now)


def merge_remote(
    engine: Engine, limit: Limit, writer: str, cells: Sequence[tuple[int, int]], now: int = NOW
) -> int:
    """Merge remote counts into an engine, with windows numbered from the current one."""
    current = now // (limit.period_ns // limit.slots)
    numbers = [part for number, count in cells for part in (current + number, count)]
    return engine.merge_remote(writer, [KEY], [[max(0, number) for number in numbers]], now)


def merge_all(engine: Engine, limit: Limit, reported, now: int = NOW) -> None:
    for writer, cells in reported:
        merge_remote(engine, limit, writer, cells, now)


def assert_equivalent(left: Engine, right: Engine, now: int = NOW) -> None:
    """Assert that both decide peeks and checks alike at many instants from `now` on."""
    for instant in range(now, now + 100, 5):
        assert ask(left, 0, instant) == ask(right, 0, instant)
        assert ask(left, 1, instant) == ask(right, 1, instant)
