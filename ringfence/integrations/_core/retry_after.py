"""How long another server asks its callers to stay away, and whom that concerns."""

import time
from collections import OrderedDict
from email.utils import parsedate_to_datetime

__all__ = ["Pauses", "seconds_in"]

_LEAST = 1.0
"""A server that says 0 has refused all the same: nobody is to ask again without a pause."""
_MOST_KEYS = 1000


def seconds_in(value: str | None) -> float | None:
    """Read a `Retry-After` header, in seconds or as a date; None when there is none or it is odd.

    A date is compared with this host's clock, as the header leaves no other choice.
    """
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdecimal():
        return max(_LEAST, float(text))
    try:
        return max(_LEAST, parsedate_to_datetime(text).timestamp() - time.time())
    except (TypeError, ValueError):
        return None


class Pauses:
    """Until when each key is to be left alone, for the thousand keys that were last told so."""

    def __init__(self) -> None:
        self._until: OrderedDict[str, float] = OrderedDict()

    def begin(self, key: str, now: float, seconds: float) -> None:
        """Leave a key alone for so long, and not shorter than was said before."""
        self._until[key] = max(now + seconds, self._until.pop(key, now))
        if len(self._until) > _MOST_KEYS:
            self._until.popitem(last=False)

    def left(self, key: str, now: float) -> float:
        """Seconds to go."""
        return max(0.0, self._until.get(key, now) - now)
