"""What a storage of `limits` must count, said in ad-hoc limits.

The three strategies are three of our algorithms: fixed windows that begin with a key's first hit,
the exact log, and two weighted counters. What `limits` reads back (counts, instants) follows from
peeks, since an amount is no part of a counter's identity and can be chosen to ask the question.
"""

import time
from collections import OrderedDict
from dataclasses import dataclass
from time import monotonic

from limits.limits import TIME_TYPES

from ringfence.client import Decision, Limiter
from ringfence.errors import RingfenceError
from ringfence.limiter import NS_PER_SECOND, Algorithm, Limit
from ringfence.wire import BY_POLICY

__all__ = ["Counting", "Window"]

_NAMESPACE = "limits"
_MOST = 2**53 - 1
"""An amount that nothing reaches: `limits` wants hits counted that it will itself refuse."""
_EVER_NS = 2**61
"""73 years."""
_GENERATIONS = Limit.of_ns(_MOST, _EVER_NS, Algorithm.FIXED_WINDOW, first_hit=True)
_GENERATION_LASTS = 1.0
"""Seconds until it is asked again whether another process has reset the storage."""
_REMEMBERED = 10_000
"""Keys that are remembered: those counted, and the period of those that do not tell it."""


@dataclass(frozen=True, slots=True)
class Window:
    """How a fixed window stands."""

    count: int
    ends_at: float
    """Seconds since the epoch by this process's clock; now when nothing is counted."""


class Counting:
    """Counts for one storage. Its coroutines run in one event loop, that of the limiter."""

    def __init__(self) -> None:
        self._generation = 0
        self._generation_until = float("-inf")
        self._periods: OrderedDict[str, int] = OrderedDict()
        self._counted: set[str] = set()
        """Keys counted here since the last reset, or the first of them when there are too many."""

    async def incr(self, limiter: Limiter, key: str, expiry: int, amount: int) -> int:
        """Count hits, whatever they add up to; return how many the key's window has by now."""
        self._remember(key, expiry)
        limit = _fixed(expiry)
        told = await limiter.check_limit(limit, *await self._name(limiter, key), cost=amount)
        # Nobody counted when no member decided: then these hits are all that is known.
        return _used(told, limit) if _is_counted(told) else amount

    async def window(self, limiter: Limiter, key: str) -> Window:
        """Look at a key's fixed window."""
        expiry = self._period_of(key)
        if expiry is None:
            return Window(0, time.time())
        limit = _fixed(expiry)
        told = await limiter.check_limit(limit, *await self._name(limiter, key), cost=0)
        return Window(_used(told, limit), time.time() + told.reset_after)

    async def acquire_entry(
        self, limiter: Limiter, key: str, limit: int, expiry: int, amount: int
    ) -> bool:
        """Log hits if the moving window has room for all of them."""
        self._remember(key, expiry)
        return await self._spend(limiter, _log(limit, expiry), key, amount)

    async def moving_window(
        self, limiter: Limiter, key: str, limit: int, expiry: int
    ) -> tuple[float, int]:
        """Tell the instant of the oldest hit in the moving window, and how many hits it holds."""
        name = await self._name(limiter, key)
        asked = _log(limit, expiry)
        told = await limiter.check_limit(asked, *name, cost=0)
        used = _used(told, asked)
        if not used:
            return time.time(), 0
        if told.allowed:
            # By a limit of what is used, one more unit passes as soon as the oldest has gone.
            told = await limiter.check_limit(_log(used, expiry), *name, cost=0)
        return time.time() + (told.retry_after or 0.0) - expiry, used

    async def acquire_sliding_window_entry(
        self, limiter: Limiter, key: str, limit: int, expiry: int, amount: int
    ) -> bool:
        """Count hits if the weighted counts of the previous and current window leave room."""
        self._remember(key, expiry)
        return await self._spend(limiter, _sliding(limit, expiry), key, amount)

    async def sliding_window(
        self, limiter: Limiter, key: str, expiry: int
    ) -> tuple[int, float, int, float]:
        """Tell previous count and time to live, current count and time to live.

        An owner tells the weighted count and when it next falls, not its two parts. So it all
        stands as current, in a window that ends when it next falls: from that, the strategy works
        out the same room and the same reset time as from the parts.
        """
        name = await self._name(limiter, key)
        asked = _sliding(_MOST, expiry)
        used = _used(await limiter.check_limit(asked, *name, cost=0), asked)
        falls_after = 0.0
        if used:
            told = await limiter.check_limit(_sliding(used, expiry), *name, cost=0)
            falls_after = told.retry_after or 0.0
        return 0, 0.0, used, expiry + falls_after

    async def clear_sliding_window(self, limiter: Limiter, key: str, expiry: int) -> None:
        """Forget a key's weighted counts."""
        await limiter.reset_limit(_sliding(1, expiry), *await self._name(limiter, key))

    async def clear(self, limiter: Limiter, key: str) -> None:
        """Forget a key's fixed and moving window; `limits` does not say which it means."""
        expiry = self._period_of(key)
        if expiry is None:
            return
        name = await self._name(limiter, key)
        await limiter.reset_limit(_fixed(expiry), *name)
        await limiter.reset_limit(_log(1, expiry), *name)

    async def reset(self, limiter: Limiter) -> int:
        """Begin a new generation of all keys; the counters of the old one expire by themselves.

        Return how many keys that concerns as far as this process knows, 10 000 at most.
        """
        told = await limiter.check_limit(_GENERATIONS, _NAMESPACE, "generation")
        self._learn(told)
        gone = len(self._counted)
        self._counted.clear()
        return gone

    async def check(self, limiter: Limiter) -> bool:
        """Whether somebody counts."""
        try:
            return _is_counted(
                await limiter.check_limit(_GENERATIONS, _NAMESPACE, "generation", cost=0)
            )
        except RingfenceError:
            return False

    async def _spend(self, limiter: Limiter, limit: Limit, key: str, amount: int) -> bool:
        if amount <= 0:
            return True  # Asking for nothing is always granted, where our cost 0 would peek.
        told = await limiter.check_limit(limit, *await self._name(limiter, key), cost=amount)
        return told.allowed

    async def _name(self, limiter: Limiter, key: str) -> tuple[str, str, str]:
        """Name a counter: the keys of a generation have nothing to do with those before."""
        if monotonic() >= self._generation_until:
            told = await limiter.check_limit(_GENERATIONS, _NAMESPACE, "generation", cost=0)
            self._learn(told)
        return _NAMESPACE, str(self._generation), key

    def _learn(self, told: Decision) -> None:
        if _is_counted(told):
            self._generation = _used(told, _GENERATIONS)
        self._generation_until = monotonic() + _GENERATION_LASTS

    def _remember(self, key: str, expiry: int) -> None:
        if len(self._counted) < _REMEMBERED:
            self._counted.add(key)
        if _period_in(key) == expiry:
            return
        self._periods[key] = expiry
        self._periods.move_to_end(key)
        if len(self._periods) > _REMEMBERED:
            self._periods.popitem(last=False)

    def _period_of(self, key: str) -> int | None:
        """The period of a key in seconds; None when neither it nor a hit in here has told."""
        return self._periods.get(key) or _period_in(key)


def _period_in(key: str) -> int | None:
    """Read the period that `limits` writes at a key's end: NAMESPACE/.../amount/multiples/unit."""
    multiples, unit = ["", "", *key.split("/")][-2:]
    if unit not in TIME_TYPES or not (multiples.isascii() and multiples.isdecimal()):
        return None
    return TIME_TYPES[unit].seconds * int(multiples) or None


def _fixed(expiry: int) -> Limit:
    return Limit.of_ns(_MOST, _nanoseconds(expiry), Algorithm.FIXED_WINDOW, first_hit=True)


def _log(limit: int, expiry: int) -> Limit:
    return Limit.of_ns(limit, _nanoseconds(expiry), Algorithm.SLIDING_WINDOW_LOG)


def _sliding(limit: int, expiry: int) -> Limit:
    return Limit.of_ns(limit, _nanoseconds(expiry))


def _nanoseconds(expiry: int) -> int:
    return round(expiry * NS_PER_SECOND)


def _used(told: Decision, limit: Limit) -> int:
    return 0 if told.remaining is None else limit.amount - told.remaining


def _is_counted(told: Decision) -> bool:
    return told.source not in BY_POLICY
