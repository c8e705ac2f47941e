"""Selection of the counts that another data center receives next.

Keys near their limit are sent first and immediately. Other keys wait until their count has changed
enough, or for a second. Acknowledged counts are kept while their windows are active, so that
digests can be compared and only lost counts are sent again. The caller reads and sends counts.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from itertools import islice

from msgspec import Struct

from gossip.settings import NS_PER_SECOND

__all__ = ["KeyCounts", "CountDissemination", "cells_sum"]

_MAX_AGE_NS = NS_PER_SECOND
"""Maximum time before a changed count is sent, even when the change is small."""
_SHARE = 100
"""A change by 1 / 100 of the limit is sent in the next round."""
_NEAR = 5
"""Above 4 / 5 of the limit, every change is sent in the next round."""
_MAX_KEYS = 1_000_000
_MAX_SCANNED = 4000
"""Number of keys that one call of `drop_expired` examines."""


class KeyCounts(Struct, frozen=True):
    """Counts of one key, as the caller reads them from the counters."""

    cells: list[int]
    """Own counts: alternating window numbers and counts."""
    used: int
    """Units in use over all data centers."""
    ceiling: int


class CountDissemination:
    """Counts that one other data center has acknowledged, and changes that are not sent yet."""

    def __init__(self, most_keys: int = _MAX_KEYS) -> None:
        self._most_keys = most_keys
        self._changed: OrderedDict[bytes, int] = OrderedDict()
        """Changed keys with the time of the first unsent change."""
        self._acknowledged: OrderedDict[bytes, tuple[int, ...]] = OrderedDict()
        """Acknowledged cells by key."""

    def __len__(self) -> int:
        return len(self._changed)

    def mark_changed(self, key: bytes, now: int) -> None:
        """Queue a key whose count has risen, so that its counts are sent to the other data
        center."""
        self._changed.setdefault(key, now)
        if len(self._changed) > self._most_keys:
            # Nothing is lost: cells are complete counts, and the next change sends them.
            self._changed.popitem(last=False)

    def take_due(
        self,
        read: Callable[[Sequence[bytes]], Sequence[KeyCounts]],
        most: int,
        now: int,
        *,
        are_all_due: bool = False,
    ) -> list[tuple[bytes, list[int], int]]:
        """Remove and return the keys whose counts must be sent now, those nearest to their limit
        first.

        With `are_all_due`, no key waits longer, because this node stops. Each row has the key, its
        counts, and the time since which it waits. The caller reports the result for each key by
        `on_acknowledged` or `on_lost`.
        """
        keys = list(self._changed)
        found: list[tuple[float, bytes, list[int], int]] = []
        for key, counts in zip(keys, read(keys), strict=True):
            since = self._changed[key]
            if not counts.cells:
                del self._changed[key]
                continue
            unsent = sum(counts.cells[1::2]) - self._acknowledged_units(key, counts.cells)
            ceiling = max(1, counts.ceiling)
            is_near = counts.used * _NEAR >= ceiling * (_NEAR - 1)
            is_due = (
                are_all_due or is_near or unsent * _SHARE >= ceiling or now - since >= _MAX_AGE_NS
            )
            if is_due:
                found.append((-counts.used / ceiling, key, counts.cells, since))
        found.sort(key=lambda each: each[:2])
        chosen = [(key, cells, since) for _, key, cells, since in found[:most]]
        for key, _, _ in chosen:
            del self._changed[key]
        return chosen

    def drop_expired(self, read: Callable[[Sequence[bytes]], Sequence[Sequence[int]]]) -> None:
        """Remove queued keys that have no count in an active window; each call examines only some
        keys.

        Call it for an unreachable data center; `take_due` does the same for a reachable one. `read`
        takes keys and returns their counts.
        """
        keys = list(islice(self._changed, _MAX_SCANNED))
        for key, cells in zip(keys, read(keys), strict=True):
            since = self._changed.pop(key)
            if cells:
                self._changed[key] = since  # Examined last in the next round.

    def on_acknowledged(self, key: bytes, cells: Sequence[int]) -> None:
        """Record that the other data center has received the counts `cells` of a key."""
        self._acknowledged.pop(key, None)
        self._acknowledged[key] = tuple(cells)
        if len(self._acknowledged) > self._most_keys:
            self._acknowledged.popitem(last=False)

    def on_lost(self, key: bytes, since: int) -> None:
        """Queue a key again, because its counts were not acknowledged."""
        self._changed[key] = min(since, self._changed.get(key, since))

    def forget(self, is_over: Callable[[bytes, int], bool]) -> None:
        """Remove acknowledged counts of expired windows; `is_over` takes key and window number."""
        for key, cells in list(self._acknowledged.items()):
            if is_over(key, cells[-2]):
                del self._acknowledged[key]

    def resend(self, keys: Iterable[bytes] | None, now: int) -> None:
        """Queue keys whose counts the other data center has lost; None means all keys."""
        for key in list(self._acknowledged) if keys is None else keys:
            if self._acknowledged.pop(key, None) is not None:
                self._changed.setdefault(key, now)

    def acknowledged(self) -> dict[bytes, tuple[int, ...]]:
        """Return the counts that the other data center has acknowledged, by key."""
        return self._acknowledged

    def _acknowledged_units(self, key: bytes, cells: Sequence[int]) -> int:
        cells_then = self._acknowledged.get(key, ())
        known = dict(zip(cells_then[::2], cells_then[1::2], strict=True))
        return sum(known.get(number, 0) for number in cells[::2])


def cells_sum(key: bytes, cells: Sequence[int]) -> int:
    """Return a 64-bit hash of the counts of one key. The digest of several keys is the sum of their
    hashes."""
    text = key + b"".join([number.to_bytes(8, "big") for number in cells])
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")
