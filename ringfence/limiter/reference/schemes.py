"""Choice of the algorithm's implementation for a limit; the only module that imports all
algorithms."""

from collections.abc import Callable
from typing import assert_never

from ringfence.limiter.limit import Algorithm, Limit
from ringfence.limiter.reference.bucket import BucketScheme
from ringfence.limiter.reference.concurrency import ConcurrencyScheme
from ringfence.limiter.reference.counter import Scheme, SlotNumbers
from ringfence.limiter.reference.first_hit import FirstHitWindowScheme
from ringfence.limiter.reference.fixed_window import FixedWindowScheme
from ringfence.limiter.reference.shared import SharedBucketScheme, SharedWindowScheme
from ringfence.limiter.reference.sliding_log import SlidingLogScheme
from ringfence.limiter.reference.sliding_window import SlidingWindowScheme

__all__ = ["scheme_of"]


_SHARED: dict[Algorithm, Callable[[Limit], Scheme]] = {
    Algorithm.TOKEN_BUCKET: SharedBucketScheme,
    Algorithm.LEAKY_BUCKET: SharedBucketScheme,
    Algorithm.FIXED_WINDOW: lambda limit: SharedWindowScheme(limit, FixedWindowScheme(limit)),
    Algorithm.SLIDING_WINDOW: lambda limit: SharedWindowScheme(limit, SlidingWindowScheme(limit)),
}
"""Algorithms that can be shared between data centers."""


def scheme_of(limit: Limit, slot_numbers: SlotNumbers, *, is_shared: bool = False) -> Scheme:
    """Create the scheme of a limit: its derived values, in the class of its algorithm.

    `slot_numbers` generates the slot ids of a concurrency limit.

    With `is_shared`, counters merge counts of other data centers if the algorithm supports it.
    """
    if is_shared and limit.algorithm in _SHARED and not limit.first_hit:
        return _SHARED[limit.algorithm](limit)
    match limit.algorithm:
        case Algorithm.TOKEN_BUCKET | Algorithm.LEAKY_BUCKET:
            return BucketScheme(limit)
        case Algorithm.FIXED_WINDOW:
            return FirstHitWindowScheme(limit) if limit.first_hit else FixedWindowScheme(limit)
        case Algorithm.SLIDING_WINDOW:
            return SlidingWindowScheme(limit)
        case Algorithm.SLIDING_WINDOW_LOG:
            return SlidingLogScheme(limit)
        case Algorithm.CONCURRENCY:
            return ConcurrencyScheme(limit, slot_numbers)
        case _:
            assert_never(limit.algorithm)
