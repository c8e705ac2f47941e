"""The storage for code that blocks: Flask-Limiter, slowapi, the strategies of `limits`."""

import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from typing import TypeVar

from limits.storage import MovingWindowSupport, SlidingWindowCounterSupport, Storage
from limits.storage.base import TimestampedSlidingWindow

from ringfence.client import Limiter
from ringfence.client.blocking.blocking_limiter import BlockingLimiter
from ringfence.errors import RingfenceError
from ringfence.integrations.limits.address import CLUSTER, LOCAL, limiter_at
from ringfence.integrations.limits.counting import Counting

__all__ = ["RingfenceStorage"]

_Result = TypeVar("_Result")
_looked_at: ContextVar[tuple[object, str, float] | None] = ContextVar("_looked_at", default=None)
"""Storage, key and end of the window whose count this thread read last."""


class RingfenceStorage(
    Storage, MovingWindowSupport, SlidingWindowCounterSupport, TimestampedSlidingWindow
):
    """Counts at the owner of each key. Safe to share among threads, and across a fork.

    `raise_on_outage=True` raises `PeerUnavailable` when no member decides, for the fallbacks of
    Flask-Limiter and slowapi to act on; by default requests pass then. `wait` is how many seconds
    the first call waits for a member. `limiter` takes one that is there already instead of a `uri`.
    """

    STORAGE_SCHEME = [CLUSTER, LOCAL]  # noqa: RUF012 - the base class declares it so

    def __init__(
        self,
        uri: str | None = None,
        wrap_exceptions: bool = False,
        limiter: BlockingLimiter | None = None,
        **options: float | str | bool,
    ) -> None:
        super().__init__(uri, wrap_exceptions)
        self._is_own = limiter is None
        self._limiter = limiter_at(uri, dict(options)) if limiter is None else limiter
        self._counting = Counting()

    @property
    def base_exceptions(self) -> type[Exception] | tuple[type[Exception], ...]:
        """What this storage may raise."""
        return RingfenceError

    @property
    def storage(self) -> BlockingLimiter:
        """What counts; other storages have their client here, and Flask-Limiter shows it."""
        return self._limiter

    def close(self) -> None:
        """Close the connections; a limiter that was given is for its owner to close."""
        if self._is_own:
            self._limiter.close()

    def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        """Count `amount` in the key's fixed window, which its first hit began; return the count."""
        return self._run(partial(self._counting.incr, key=key, expiry=expiry, amount=amount))

    def get(self, key: str) -> int:
        """How much is counted in the key's fixed window."""
        window = self._run(partial(self._counting.window, key=key))
        _looked_at.set((self, key, window.ends_at))
        return window.count

    def get_expiry(self, key: str) -> float:
        """When the key's fixed window ends, in seconds since the epoch; now when it has none.

        Right after a `get` in the same thread, as the strategies call it, this asks nobody again.
        """
        looked_at = _looked_at.get()
        _looked_at.set(None)
        if looked_at is not None and looked_at[:2] == (self, key) and looked_at[2] > time.time():
            return looked_at[2]
        return self._run(partial(self._counting.window, key=key)).ends_at

    def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Log `amount` hits if the last `expiry` seconds have room for all of them."""
        counting = self._counting
        return self._run(
            partial(counting.acquire_entry, key=key, limit=limit, expiry=expiry, amount=amount)
        )

    def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        """The instant of the oldest hit that counts, and how many count."""
        return self._run(partial(self._counting.moving_window, key=key, limit=limit, expiry=expiry))

    def acquire_sliding_window_entry(
        self, key: str, limit: int, expiry: int, amount: int = 1
    ) -> bool:
        """Count `amount` if the weighted counts of two windows leave room for it."""
        acquire = self._counting.acquire_sliding_window_entry
        return self._run(partial(acquire, key=key, limit=limit, expiry=expiry, amount=amount))

    def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """Counts and times to live; all that is counted stands as current (see `Counting`)."""
        return self._run(partial(self._counting.sliding_window, key=key, expiry=expiry))

    def clear_sliding_window(self, key: str, expiry: int) -> None:
        """Forget a key's weighted counts."""
        self._run(partial(self._counting.clear_sliding_window, key=key, expiry=expiry))

    def clear(self, key: str) -> None:
        """Forget a key's fixed and moving window."""
        _looked_at.set(None)
        self._run(partial(self._counting.clear, key=key))

    def reset(self) -> int | None:
        """Forget all keys of all such storages over the same cluster.

        Return how many of them this process has counted, 10 000 at most. Other processes notice
        within a second.
        """
        _looked_at.set(None)
        return self._run(self._counting.reset)

    def check(self) -> bool:
        """Whether a member of the cluster decides."""
        try:
            return self._run(self._counting.check)
        except Exception:  # noqa: BLE001 - whatever fails, nothing can be counted
            return False

    def _run(self, call: Callable[[Limiter], Awaitable[_Result]]) -> _Result:
        return self._limiter.run(call)
