"""Operations of a `limits` storage, implemented by ad-hoc limits.

The three strategies correspond to three algorithms: fixed windows that start with the first hit,
the exact log, and two weighted counters. Counts and times come from peeks: the amount of a limit is
not part of a counter's identity, so a peek can use any amount.
"""

import time
from collections import OrderedDict
from time import monotonic

from limits.limits import TIME_TYPES
from msgspec import Struct

from ringfence.client.decision import Decision
from ringfence.client.limiter import Limiter
from ringfence.errors import RingfenceError
from ringfence.limiter import NS_PER_SECOND, Algorithm, Limit
from ringfence.wire import BY_POLICY

__all__ = ["Counting", "Window"]

_NAMESPACE = "limits"
_UNREACHED = 2**53 - 1
"""Amount that is never reached, because `limits` itself denies hits and counts them."""
_FOREVER_NS = 2**61
"""Period of 73 years, which never ends in practice."""
_GENERATIONS = Limit.of_ns(_UNREACHED, _FOREVER_NS, Algorithm.FIXED_WINDOW, first_hit=True)
_GENERATION_TTL = 1.0
"""Seconds for which the generation is cached. Another process may have reset the storage."""
_CACHE_SIZE = 10_000
"""Maximum of cached keys: counted keys, and periods that are not part of the key."""


class Window(Struct, frozen=True):
    """State of the fixed window of one key."""

    count: int
    ends_at: float
    """Seconds since the epoch by the clock of this process; now without hits."""


class Counting:
    """Operations on the counters of one storage. Its coroutines run in the limiter's event loop."""

    def __init__(self) -> None:
        self._generation = 0
        self._generation_until = float("-inf")
        self._periods: OrderedDict[str, int] = OrderedDict()
        self._counted: set[str] = set()
        """Keys counted here since the last reset, or the first of them when there are too many."""

    async def incr(self, limiter: Limiter, key: str, expiry: int, amount: int) -> int:
        """Count hits of a key in a fixed window without a limit; return the new count."""
        self._remember(key, expiry)
        limit = _fixed(expiry)
        decision = await limiter.check_limit(limit, *await self._name(limiter, key), cost=amount)
        # When no node decided, nothing was counted: at least these hits are known.
        return max(_used(decision, limit), amount)

    async def window(self, limiter: Limiter, key: str) -> Window:
        """Return the state of a key's fixed window by a peek at its counter."""
        expiry = self._period_of(key)
        if expiry is None:
            return Window(0, time.time())
        limit = _fixed(expiry)
        decision = await limiter.check_limit(limit, *await self._name(limiter, key), cost=0)
        return Window(_used(decision, limit), time.time() + decision.reset_after)

    async def acquire_entry(
        self, limiter: Limiter, key: str, limit: int, expiry: int, amount: int
    ) -> bool:
        """Record hits of a key if its moving window has room for all of them."""
        self._remember(key, expiry)
        return await self._spend(limiter, _log(limit, expiry), key, amount)

    async def moving_window(
        self, limiter: Limiter, key: str, limit: int, expiry: int
    ) -> tuple[float, int]:
        """Return the time of the oldest hit in the moving window of a key, and the number of
        hits."""
        name = await self._name(limiter, key)
        asked = _log(limit, expiry)
        decision = await limiter.check_limit(asked, *name, cost=0)
        used = _used(decision, asked)
        if not used:
            return time.time(), 0
        if decision.allowed:
            # With the used amount as limit, the wait ends when the oldest hit expires.
            decision = await limiter.check_limit(_log(used, expiry), *name, cost=0)
        return time.time() + (decision.retry_after or 0.0) - expiry, used

    async def acquire_sliding_window_entry(
        self, limiter: Limiter, key: str, limit: int, expiry: int, amount: int
    ) -> bool:
        """Count hits of a key if the weighted counts of its previous and current window permit
        them."""
        self._remember(key, expiry)
        return await self._spend(limiter, _sliding(limit, expiry), key, amount)

    async def sliding_window(
        self, limiter: Limiter, key: str, expiry: int
    ) -> tuple[int, float, int, float]:
        """Return count and time to live of a key's previous window, then those of its current
        window.

        A node returns the weighted count and the time of its next decrease, not the counts of both
        windows. So all hits are reported as current, in a window that ends at that time. The
        strategy computes the same remaining amount and reset time from it.
        """
        name = await self._name(limiter, key)
        asked = _sliding(_UNREACHED, expiry)
        used = _used(await limiter.check_limit(asked, *name, cost=0), asked)
        falls_after = 0.0
        if used:
            decision = await limiter.check_limit(_sliding(used, expiry), *name, cost=0)
            falls_after = decision.retry_after or 0.0
        return 0, 0.0, used, expiry + falls_after

    async def clear_sliding_window(self, limiter: Limiter, key: str, expiry: int) -> None:
        """Delete the weighted counts (sliding window) of a key."""
        await limiter.reset_limit(_sliding(1, expiry), *await self._name(limiter, key))

    async def clear(self, limiter: Limiter, key: str) -> None:
        """Delete the fixed and the moving window of a key.

        Both are deleted, because the package `limits` does not state which window it means.
        """
        expiry = self._period_of(key)
        if expiry is None:
            return
        name = await self._name(limiter, key)
        await limiter.reset_limit(_fixed(expiry), *name)
        await limiter.reset_limit(_log(1, expiry), *name)

    async def reset(self, limiter: Limiter) -> int:
        """Reset all keys of a storage by a new generation number; the old counters expire.

        Return how many keys this process has counted, at most 10 000.
        """
        decision = await limiter.check_limit(_GENERATIONS, _NAMESPACE, "generation")
        self._set_generation(decision)
        gone = len(self._counted)
        self._counted.clear()
        return gone

    async def check(self, limiter: Limiter) -> bool:
        """Whether a node of the cluster answers."""
        try:
            return _is_counted(
                await limiter.check_limit(_GENERATIONS, _NAMESPACE, "generation", cost=0)
            )
        except RingfenceError:
            return False

    async def _spend(self, limiter: Limiter, limit: Limit, key: str, amount: int) -> bool:
        if amount == 0:
            return True  # A hit of 0 is always allowed; a cost of 0 would be a peek.
        decision = await limiter.check_limit(limit, *await self._name(limiter, key), cost=amount)
        return decision.allowed

    async def _name(self, limiter: Limiter, key: str) -> tuple[str, str, str]:
        """Return the key of a counter, including the generation number, which each reset
        increases."""
        if monotonic() >= self._generation_until:
            decision = await limiter.check_limit(_GENERATIONS, _NAMESPACE, "generation", cost=0)
            self._set_generation(decision)
        return _NAMESPACE, str(self._generation), key

    def _set_generation(self, decision: Decision) -> None:
        if _is_counted(decision):
            self._generation = _used(decision, _GENERATIONS)
        self._generation_until = monotonic() + _GENERATION_TTL

    def _remember(self, key: str, expiry: int) -> None:
        if len(self._counted) < _CACHE_SIZE:
            self._counted.add(key)
        if _period_in(key) == expiry:
            return
        self._periods[key] = expiry
        self._periods.move_to_end(key)
        if len(self._periods) > _CACHE_SIZE:
            self._periods.popitem(last=False)

    def _period_of(self, key: str) -> int | None:
        """Return the period of a key's limit in seconds; None when it is unknown."""
        return self._periods.get(key) or _period_in(key)


def _period_in(key: str) -> int | None:
    """Parse the period at the end of a key of `limits`: NAMESPACE/.../amount/multiples/unit."""
    multiples, unit = ["", "", *key.split("/")][-2:]
    if unit not in TIME_TYPES or not (multiples.isascii() and multiples.isdecimal()):
        return None
    return TIME_TYPES[unit].seconds * int(multiples) or None


def _fixed(expiry: int) -> Limit:
    return Limit.of_ns(_UNREACHED, _nanoseconds(expiry), Algorithm.FIXED_WINDOW, first_hit=True)


def _log(limit: int, expiry: int) -> Limit:
    return Limit.of_ns(limit, _nanoseconds(expiry), Algorithm.SLIDING_WINDOW_LOG)


def _sliding(limit: int, expiry: int) -> Limit:
    return Limit.of_ns(limit, _nanoseconds(expiry))


def _nanoseconds(expiry: int) -> int:
    return round(expiry * NS_PER_SECOND)


def _used(decision: Decision, limit: Limit) -> int:
    if decision.remaining is None:  # No node decided: a denial means that no hit is allowed.
        return 0 if decision.allowed else limit.amount
    return limit.amount - decision.remaining


def _is_counted(decision: Decision) -> bool:
    return decision.source not in BY_POLICY
