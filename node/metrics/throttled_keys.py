"""Keys with the most denials, in bounded memory for any number of keys.

Source: space saving, Metwally et al., 2005; summaries are merged in batches as in Cafaro et al.,
2016. No count is too low, and none is too high by more than its `error`.
"""

from collections import Counter
from collections.abc import Sequence
from heapq import nlargest

from msgspec import Struct

__all__ = ["PERIOD", "ThrottledKeys", "ThrottledKey"]

PERIOD = 300.0
"""Seconds of one period; keys of this and the previous period are kept."""
_KEPT = 256
"""Keys of one summary: it contains every key with more than 1/256 of all denials."""
_BATCH = 1024
"""Denials that are counted in one batch, so that each costs far less than a microsecond."""


class ThrottledKey(Struct, frozen=True):
    """Key that is denied often, with the bounds of its count."""

    key: bytes
    denied: int
    """Upper bound of its denials."""
    error: int
    """Largest error of `denied`."""


class _Summary:
    """Bounded summary of denials: at most `_KEPT` keys, each with its count and the largest error
    of the count."""

    def __init__(self) -> None:
        self.counts: dict[bytes, tuple[int, int]] = {}
        self.total = 0

    @property
    def floor(self) -> int:
        """Upper bound of the denials of any key that is not in the summary."""
        if len(self.counts) < _KEPT:
            return 0
        return min([count for count, _ in self.counts.values()])

    def add(self, news: Counter[bytes]) -> None:
        """Add exact denial counts to the summary, then keep only the keys with the highest
        counts."""
        floor = self.floor
        self.total += news.total()
        for key, count in news.items():
            before, error = self.counts.get(key, (floor, floor))
            self.counts[key] = before + count, error
        if len(self.counts) > _KEPT:
            self.counts = dict(nlargest(_KEPT, self.counts.items(), key=lambda row: row[1][0]))


class ThrottledKeys:
    """Denied keys of the current and the previous period; `turn` ends a period."""

    def __init__(self) -> None:
        self._now = _Summary()
        self._before = _Summary()
        self._waiting: list[bytes] = []

    @property
    def total(self) -> int:
        """Number of denials in the current and the previous period."""
        return self._now.total + self._before.total + len(self._waiting)

    def denied(self, keys: Sequence[bytes]) -> None:
        """Count one denial for each of these keys."""
        self._waiting += keys
        if len(self._waiting) >= _BATCH:
            self._take()

    def reported(self, denied: Counter[bytes], unnamed: int) -> None:
        """Count denials that a client decided itself; for `unnamed` of them the key is unknown."""
        if denied:
            self._now.add(denied)
        self._now.total += unnamed

    def turn(self) -> None:
        """Start a new period; the previous one is kept, and older counts are dropped."""
        self._take()
        self._before, self._now = self._now, _Summary()

    def most(self, count: int) -> list[ThrottledKey]:
        """Return the keys that were denied most, in descending order."""
        self._take()
        here, before = self._now, self._before
        rows = []
        for key in here.counts.keys() | before.counts.keys():
            new, new_error = here.counts.get(key, (here.floor, here.floor))
            old, old_error = before.counts.get(key, (before.floor, before.floor))
            rows.append(ThrottledKey(key, new + old, new_error + old_error))
        # Among equal counts, the smallest error first; the order never depends on a set.
        return sorted(rows, key=lambda row: (-row.denied, row.error, row.key))[:count]

    def _take(self) -> None:
        if self._waiting:
            self._now.add(Counter(self._waiting))
            self._waiting.clear()
