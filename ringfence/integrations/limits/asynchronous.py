"""Storage for the asynchronous strategies of the package `limits`, on asyncio and trio."""

import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from typing import TypeVar

from limits.aio.storage import MovingWindowSupport, SlidingWindowCounterSupport, Storage
from limits.storage.base import TimestampedSlidingWindow

from ringfence.client.blocking.blocking_limiter import BlockingLimiter
from ringfence.client.limiter import Limiter
from ringfence.errors import RingfenceError
from ringfence.integrations._core.thread_bridge import ask
from ringfence.integrations.limits.address import CLUSTER, LOCAL, limiter_at
from ringfence.integrations.limits.counting import Counting

__all__ = ["AsyncRingfenceStorage"]

_Result = TypeVar("_Result")
_last_window: ContextVar[tuple[object, str, float] | None] = ContextVar(
    "_last_window", default=None
)
"""Storage, key and end of the window whose count this task read last."""


class AsyncRingfenceStorage(
    Storage, MovingWindowSupport, SlidingWindowCounterSupport, TimestampedSlidingWindow
):
    """Storage that counts each key at the cluster node that owns it. It works in several event
    loops.

    A background thread serves the connections. The options are those of `RingfenceStorage`. With a
    `limiter` of the current event loop, no thread is involved.
    """

    STORAGE_SCHEME = [f"async+{CLUSTER}", f"async+{LOCAL}"]  # noqa: RUF012 - the base class declares it so

    def __init__(
        self,
        uri: str | None = None,
        wrap_exceptions: bool = False,
        limiter: Limiter | BlockingLimiter | None = None,
        **options: float | str | bool,
    ) -> None:
        super().__init__(uri, wrap_exceptions)
        self._is_own = limiter is None
        self._limiter = limiter_at(uri, dict(options)) if limiter is None else limiter
        self._counting = Counting()

    @property
    def base_exceptions(self) -> type[Exception] | tuple[type[Exception], ...]:
        """Exceptions that this storage may raise."""
        return RingfenceError

    @property
    def storage(self) -> Limiter | BlockingLimiter:
        """The limiter behind this storage. Flask-Limiter reads it as the client of the storage."""
        return self._limiter

    def close(self) -> None:
        """Close the connections, unless the limiter was given as an argument."""
        if self._is_own and isinstance(self._limiter, BlockingLimiter):
            self._limiter.close()

    async def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        """Count `amount` hits of a key in the fixed window that starts with its first hit;
        return the count."""
        return await self._run(partial(self._counting.incr, key=key, expiry=expiry, amount=amount))

    async def get(self, key: str) -> int:
        """Return the count of a key in its fixed window."""
        window = await self._run(partial(self._counting.window, key=key))
        _last_window.set((self, key, window.ends_at))
        return window.count

    async def get_expiry(self, key: str) -> float:
        """Return the end of the key's fixed window in seconds since 1970; now if there is no
        window.

        Right after a `get` in the same task, as strategies do, it uses the result of that call.
        """
        last_window = _last_window.get()
        _last_window.set(None)
        if (
            last_window is not None
            and last_window[:2] == (self, key)
            and last_window[2] > time.time()
        ):
            return last_window[2]
        return (await self._run(partial(self._counting.window, key=key))).ends_at

    async def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Record `amount` hits of a key if the limit permits them within the last `expiry`
        seconds."""
        counting = self._counting
        return await self._run(
            partial(counting.acquire_entry, key=key, limit=limit, expiry=expiry, amount=amount)
        )

    async def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        """Return the time of the oldest hit in the moving window of a key, and the number of
        hits."""
        return await self._run(
            partial(self._counting.moving_window, key=key, limit=limit, expiry=expiry)
        )

    async def acquire_sliding_window_entry(
        self, key: str, limit: int, expiry: int, amount: int = 1
    ) -> bool:
        """Count `amount` hits of a key if the weighted counts of two windows permit them."""
        acquire = self._counting.acquire_sliding_window_entry
        return await self._run(partial(acquire, key=key, limit=limit, expiry=expiry, amount=amount))

    async def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """Return counts and times to live of the previous and the current window of a key.

        All hits are reported in the current window; `Counting.sliding_window` explains this.
        """
        return await self._run(partial(self._counting.sliding_window, key=key, expiry=expiry))

    async def clear_sliding_window(self, key: str, expiry: int) -> None:
        """Delete the weighted counts (sliding window) of a key."""
        await self._run(partial(self._counting.clear_sliding_window, key=key, expiry=expiry))

    async def clear(self, key: str) -> None:
        """Delete the fixed and the moving window of a key."""
        _last_window.set(None)
        await self._run(partial(self._counting.clear, key=key))

    async def reset(self) -> int | None:
        """Delete all keys that storages of the package `limits` have counted on the cluster.

        Returns how many of them this process has counted, at most 10 000. The reset takes effect in
        other processes within a second.
        """
        _last_window.set(None)
        return await self._run(self._counting.reset)

    async def check(self) -> bool:
        """Whether a node of the cluster answers."""
        try:
            return await self._run(self._counting.check)
        except Exception:  # noqa: BLE001 - whatever fails, nothing can be counted
            return False

    async def _run(self, call: Callable[[Limiter], Awaitable[_Result]]) -> _Result:
        return await ask(self._limiter, call)
