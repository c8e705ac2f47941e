"""Reports of decisions that clients made themselves: each is counted once, at a bounded rate.

A client repeats a report, with its number, when the answer was lost. The number of remembered
clients is bounded. A repeated report of a forgotten client is counted twice.
"""

from collections import OrderedDict

from ringfence.limiter import Code
from ringfence.wire import BY_POLICY, Report, Source

__all__ = ["MAX_CLIENTS", "Pace", "Reports", "reported_counter"]

MAX_CLIENTS = 8192
"""Most clients whose last report number is remembered."""
_PER_S = 2.0
_BURST = 8.0
"""Reports that one connection may send at once, and how many more each second."""
_UNDECIDED = (Source.LOCAL, *BY_POLICY)
_DENIALS = (Code.DENIED, Code.NEVER)


class Reports:
    """Number of the last report of each client."""

    def __init__(self, most: int = MAX_CLIENTS) -> None:
        self._most = most
        self._last: OrderedDict[tuple[str, int], int] = OrderedDict()

    def is_new(self, token: str, report: Report) -> bool:
        """Return whether this report was not counted before, and remember its number."""
        identity = token, report.client
        is_new = report.number > self._last.get(identity, 0)
        if is_new:
            self._last[identity] = report.number
        if identity in self._last:
            self._last.move_to_end(identity)
        if len(self._last) > self._most:
            self._last.popitem(last=False)
        return is_new


class Pace:
    """Rate limit of the reports on one connection."""

    def __init__(self, now: float) -> None:
        self._left = _BURST
        self._at = now

    def take(self, now: float) -> bool:
        """Return whether the rate limit permits a report at `now`, in seconds."""
        self._left = min(_BURST, self._left + (now - self._at) * _PER_S)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


def reported_counter(code: int, source: int) -> str:
    """Return the name of the metric that counts reported decisions with this code and source."""
    if source in _UNDECIDED:
        return "reported_undecided"
    return "reported_denied" if code in _DENIALS else "reported_allowed"
