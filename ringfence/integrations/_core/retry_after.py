"""Parser of the `Retry-After` headers of other servers, and the pauses of requests that they ask
for."""

import time
from collections import OrderedDict
from email.utils import parsedate_to_datetime

__all__ = ["RetryPauses", "parse_retry_after"]

_MIN = 1.0
"""Minimum pause in seconds, also for a `Retry-After` of 0."""
_MAX_KEYS = 1000


def parse_retry_after(value: str | None) -> float | None:
    """Parse a `Retry-After` header, seconds or date; None when it is absent or invalid.

    A date is compared with the clock of this host.
    """
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdecimal():
        return max(_MIN, float(text))
    try:
        return max(_MIN, parsedate_to_datetime(text).timestamp() - time.time())
    except (TypeError, ValueError):
        return None


class RetryPauses:
    """Pauses by key, which `Retry-After` headers requested, for the last thousand keys."""

    def __init__(self) -> None:
        self._until: OrderedDict[str, float] = OrderedDict()

    def begin(self, key: str, now: float, seconds: float) -> None:
        """Start a pause for a key. It never shortens an earlier pause."""
        self._until[key] = max(now + seconds, self._until.pop(key, now))
        if len(self._until) > _MAX_KEYS:
            self._until.popitem(last=False)

    def left(self, key: str, now: float) -> float:
        """Return the remaining seconds of the pause of a key."""
        return max(0.0, self._until.get(key, now) - now)
