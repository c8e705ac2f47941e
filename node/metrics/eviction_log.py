"""Warnings in the log about evicted counters, at most one a minute."""

import logging
from collections.abc import Callable

import trio

__all__ = ["EvictionLog", "watch_evictions"]

logger = logging.getLogger("ringfence.node")

_LOOK_EVERY = 5.0
_PAUSE = 60.0


class EvictionLog:
    """Log of the counters that a node has evicted since the last line."""

    def __init__(self, node: str, max_keys: int, max_bytes: int) -> None:
        self._bounds = node, max_keys, max_bytes
        self._logged = 0
        """Evicted counters that were logged."""
        self._logged_at = -_PAUSE

    def look(self, evicted: int, now: float) -> None:
        """Log further evictions; `evicted` is their number since the start of the node, and `now`
        is in seconds."""
        # The counters of removed rules are no longer in the number.
        self._logged = min(self._logged, evicted)
        if evicted == self._logged or now - self._logged_at < _PAUSE:
            return
        name, max_keys, max_bytes = self._bounds
        logger.warning(
            "counters were evicted, so their limits admit too much: "
            "node=%s evicted=%d max_keys=%d max_bytes=%d; raise max_keys or max_bytes",
            *(name, evicted - self._logged, max_keys, max_bytes),
        )
        self._logged, self._logged_at = evicted, now


async def watch_evictions(log: EvictionLog, evicted: Callable[[], int]) -> None:
    """Look for evictions every few seconds; run until cancelled.

    `evicted` returns the number of evicted counters.
    """
    while True:
        log.look(evicted(), trio.current_time())
        await trio.sleep(_LOOK_EVERY)  # An eviction sends no event, because it must stay cheap.
