"""Hypothesis strategies for limits with all options, and engines with one counter."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from ringfence.limiter import Algorithm, Calendar, Engine, EngineRule, Limit, Outcomes

__all__ = [
    "DAY",
    "KEY",
    "UNKNOWN",
    "DrawnLimits",
    "ask",
    "engine_after",
    "engine_of",
    "timed_costs",
]

DAY = 86_400 * 10**9
KEY = (0).to_bytes(8, "big") + b"key"
"""Key of the counter; its rule has the number 0."""
UNKNOWN = (9).to_bytes(8, "big") + b"key"
"""Key without a rule."""
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe"]

SMALL = st.integers(1, 8)
SHORT = st.integers(1, 40)
NONE_OR_SMALL = st.none() | SMALL
NONE = st.just(0)
SLOTS = st.integers(1, 5)
SLOT_LENGTHS = st.integers(1, 12)


@dataclass(frozen=True)
class DrawnLimits:
    """Strategies for the limits of each kind, from strategies for their numbers.

    The periods are so short by default that each nanosecond of rounding shows.
    """

    amounts: SearchStrategy[int] = SMALL
    periods: SearchStrategy[int] = SHORT
    bursts: SearchStrategy[int | None] = NONE_OR_SMALL
    soft: SearchStrategy[int] = NONE
    """Soft margins in thousandths of the limit; 0 means no margin."""
    slot_counts: SearchStrategy[int] = SLOTS
    slot_lengths: SearchStrategy[int] = SLOT_LENGTHS

    @property
    def buckets(self) -> SearchStrategy[Limit]:
        return self.of(Algorithm.TOKEN_BUCKET, Algorithm.LEAKY_BUCKET, burst=self.bursts)

    @property
    def queues(self) -> SearchStrategy[Limit]:
        return self.of(Algorithm.LEAKY_BUCKET, burst=self.bursts, queue=st.just(True))

    @property
    def first_hits(self) -> SearchStrategy[Limit]:
        return self.of(Algorithm.FIXED_WINDOW, first_hit=st.just(True))

    @property
    def calendars(self) -> SearchStrategy[Limit]:
        return st.builds(
            Limit.of_ns,
            self.amounts,
            st.just(DAY),
            st.just(Algorithm.FIXED_WINDOW),
            calendar=st.sampled_from(Calendar),
            timezone=st.sampled_from(ZONES),
            soft_permille=self.soft,
        )

    @property
    def slotted(self) -> SearchStrategy[Limit]:
        """Return sliding windows with slots."""
        return st.builds(
            lambda amount, slots, slot_ns, permille: Limit.of_ns(
                amount, slots * slot_ns, slots=slots, soft_permille=permille
            ),
            self.amounts,
            self.slot_counts,
            self.slot_lengths,
            self.soft,
        )

    def of(self, *algorithms: Algorithm, **options: SearchStrategy[Any]) -> SearchStrategy[Limit]:
        """Return limits of some algorithms."""
        return st.builds(
            Limit.of_ns,
            self.amounts,
            self.periods,
            st.sampled_from(algorithms),
            soft_permille=self.soft,
            **options,
        )


def timed_costs(max_size: int) -> SearchStrategy[list[tuple[int, int]]]:
    """Return checks as (now, cost), in order of time."""
    return st.lists(st.tuples(st.integers(0, 15), st.integers(1, 4)), max_size=max_size).map(
        lambda steps: list(
            zip(accumulate(gap for gap, _ in steps), (cost for _, cost in steps), strict=True)
        )
    )


def engine_of(limit: Limit, is_shared: bool = False) -> Engine:
    engine = Engine(max_keys=1_000)
    engine.set_rules({0: EngineRule(limit, is_shared=is_shared)})
    return engine


def engine_after(
    limit: Limit, history: Sequence[tuple[int, int]], is_shared: bool = False
) -> tuple[Engine, int]:
    """Return an engine that has decided a history of checks, and the time of the last check."""
    engine = engine_of(limit, is_shared=is_shared)
    for now, cost in history:
        ask(engine, cost, now)
    return engine, history[-1][0] if history else 0


def ask(engine: Engine, cost: int, now: int) -> Outcomes:
    return engine.decide([KEY], [cost], [], [], [], now)
