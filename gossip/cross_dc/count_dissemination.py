"""Selection of the counts that another data center receives next.

Keys near their limit are sent first and immediately. Other keys wait until their count has changed
enough, or for a second. Acknowledged counts are kept while their windows are active, so that
digests can be compared and only lost counts are sent again. The caller reads and sends counts.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice, takewhile
from typing import TypeAlias

from msgspec import Struct

from gossip.cross_dc.digested_counts import DigestedCounts, Rows
from gossip.settings import NS_PER_SECOND

__all__ = ["NEAR", "CountDissemination", "DueCounts", "KeyCounts"]

_MAX_AGE_NS = NS_PER_SECOND
"""Maximum time before a changed count is sent, even when the change is small."""
_SHARE = 100
"""A change by 1 / 100 of the limit is sent in the next round."""
NEAR = 5
"""Above 4 / 5 of the limit, every change is sent in the next round."""
_MAX_KEYS = 1_000_000
_MOST_EXAMINED = 10_000
"""Changed keys that are examined in one round."""
_MOST_UNREAD = 100_000
"""Changed keys that are examined in the next rounds. Further ones are examined after a second."""
_SLICE = 200
"""Keys that are examined in one step, in less than a millisecond."""


class KeyCounts(Struct, frozen=True):
    """Counts of one key, as the caller reads them from the counters."""

    cells: list[int]
    """Own counts: alternating window numbers and counts."""
    used: int
    """Units in use over all data centers."""
    ceiling: int


class DueCounts(Struct, frozen=True):
    """Counts that must be sent now."""

    key: bytes
    cells: list[int]
    since: int
    """Time since which the change waits."""
    share: float
    """Used share of the limit."""


_Read: TypeAlias = Callable[[Sequence[bytes]], Sequence[KeyCounts]]
_Lost: TypeAlias = tuple[Rows, int]
"""Rows by key, and the time since which the keys wait to be sent again."""


class CountDissemination:
    """Counts that one other data center has acknowledged, and changes that are not sent yet."""

    def __init__(
        self,
        shard_of: Callable[[bytes], int],
        new_rows: Callable[[], Rows] = dict,
        most_keys: int = _MAX_KEYS,
    ) -> None:
        """`shard_of` returns the shard of a key, `new_rows` an empty dictionary for one shard."""
        self._most_keys = most_keys
        self._changed: OrderedDict[bytes, int] = OrderedDict()
        """Changed keys with the time of the first unsent change."""
        self._near: OrderedDict[bytes, None] = OrderedDict()
        """Changed keys near their limit, which are examined before the others."""
        self._unread: OrderedDict[bytes, None] = OrderedDict()
        """Other changed keys whose counts were not read since their last change. Keys in neither
        queue are examined when they have waited for a second."""
        self.acknowledged = DigestedCounts(shard_of, new_rows, most_keys)
        """Acknowledged cells by key."""
        self._lost: list[_Lost] = []
        """Keys to send again, by shard. They become changed keys when there are few of these."""
        self._lost_keys = 0

    def __len__(self) -> int:
        return len(self._changed) + self._lost_keys

    def mark_changed(self, key: bytes, now: int, *, is_near: bool = False) -> None:
        """Queue a key whose count has risen, so that its counts are sent to the other data center.

        With `is_near`, the key is near its limit and is examined before the others.
        """
        self._changed.setdefault(key, now)
        self._queue(key, is_near=is_near)
        if len(self._changed) > self._most_keys:
            # Nothing is lost: cells are complete counts, and the next change sends them.
            self._drop(next(iter(self._changed)))

    def on_received(self, key: bytes) -> None:
        """Examine a changed key again, because the units of another data center may have brought it
        near its limit."""
        if key in self._changed:
            self._queue(key)

    def _queue(self, key: bytes, *, is_near: bool = False) -> None:
        queue = self._near if is_near else self._unread
        if len(queue) < _MOST_UNREAD:
            queue[key] = None

    def take_due(
        self, read: _Read, most: int, now: int, *, are_all_due: bool = False
    ) -> list[DueCounts]:
        """Remove and return the keys whose counts must be sent now, those nearest to their limit
        first. See `find_due`."""
        found = [due for some in self.find_due(read, now, are_all_due=are_all_due) for due in some]
        return self.nearest(found, most)

    def find_due(
        self, read: _Read, now: int, *, are_all_due: bool = False
    ) -> Iterator[list[DueCounts]]:
        """Remove and yield keys whose counts must be sent now, some at each step.

        `read` takes keys and returns their counts. With `are_all_due`, no key waits longer, because
        this node stops. The caller passes all keys to `nearest`, and reports the result for each
        sent key by `on_acknowledged` or `on_lost`.
        """
        self._queue_lost()
        keys = self._keys_to_read(now, are_all_due=are_all_due)
        for start in range(0, len(keys), _SLICE):
            some = keys[start : start + _SLICE]
            found: list[DueCounts] = []
            for key, counts in zip(some, read(some), strict=True):
                since = self._changed.get(key)
                if since is None:
                    continue  # It was dropped meanwhile, because too many keys have changed.
                if not counts.cells:
                    self._drop(key)
                elif are_all_due or self._is_due(key, counts, since, now):
                    self._drop(key)
                    share = counts.used / max(1, counts.ceiling)
                    found.append(DueCounts(key, counts.cells, since, share))
                else:
                    self._unqueue(key)
            yield found

    def _keys_to_read(self, now: int, *, are_all_due: bool) -> list[bytes]:
        """Return the keys that a round examines. Up to half of them are near their limit, and up to
        half have waited for a second, so that both need not wait for the others."""
        if are_all_due:
            return list(islice(self._changed, _MOST_EXAMINED))
        half = _MOST_EXAMINED // 2
        overdue = takewhile(lambda row: now - row[1] >= _MAX_AGE_NS, self._changed.items())
        late = [key for key, _ in islice(overdue, half)]
        keys = dict.fromkeys(chain(islice(self._near, half), late))
        others = (key for key in self._unread if key not in keys)
        return [*keys, *islice(others, _MOST_EXAMINED - len(keys))]

    def _drop(self, key: bytes) -> None:
        del self._changed[key]
        self._unqueue(key)

    def _unqueue(self, key: bytes) -> None:
        self._near.pop(key, None)
        self._unread.pop(key, None)

    def nearest(self, found: list[DueCounts], most: int) -> list[DueCounts]:
        """Return the keys nearest to their limit, those first, and queue the others again."""
        found.sort(key=lambda due: (-due.share, due.key))
        for due in found[most:]:
            self.on_lost(due.key, due.since, is_near=due.share * NEAR >= NEAR - 1)
        return found[:most]

    def _is_due(self, key: bytes, counts: KeyCounts, since: int, now: int) -> bool:
        unsent = sum(counts.cells[1::2]) - self._acknowledged_units(key, counts.cells)
        ceiling = max(1, counts.ceiling)
        is_near = counts.used * NEAR >= ceiling * (NEAR - 1)
        return is_near or unsent * _SHARE >= ceiling or now - since >= _MAX_AGE_NS

    def drop_expired(self, read: Callable[[Sequence[bytes]], Sequence[Sequence[int]]]) -> None:
        """Remove queued keys that have no count in an active window; each call examines only some
        keys.

        Call it for an unreachable data center; `find_due` does the same for a reachable one. `read`
        takes keys and returns their counts.
        """
        self._queue_lost()
        keys = list(islice(self._changed, _SLICE))
        for key, cells in zip(keys, read(keys), strict=True):
            if cells:
                self._changed.move_to_end(key)  # Examined last in the next round.
            else:
                self._drop(key)

    def on_acknowledged(self, key: bytes, cells: Sequence[int]) -> None:
        """Record that the other data center has received the counts `cells` of a key."""
        self.acknowledged.put(key, cells)

    def on_lost(self, key: bytes, since: int, *, is_near: bool = False) -> None:
        """Queue a key again, because its counts were not acknowledged."""
        self._changed[key] = min(since, self._changed.get(key, since))
        self._queue(key, is_near=is_near)

    def resend(self, shards: Iterable[int] | None, now: int) -> None:
        """Queue the keys of shards whose counts the other data center has lost; None means all
        shards."""
        for shard in [*self.acknowledged.sums] if shards is None else shards:
            rows = self.acknowledged.pop_shard(shard)
            if len(rows):
                self._lost.append((rows, now))
                self._lost_keys += len(rows)

    def _queue_lost(self) -> None:
        while self._lost and len(self._changed) < _MOST_EXAMINED:
            rows, since = self._lost.pop()
            self._lost_keys -= len(rows)
            for key, _ in rows.items():
                self._changed.setdefault(key, since)
                self._queue(key)

    def _acknowledged_units(self, key: bytes, cells: Sequence[int]) -> int:
        cells_then = self.acknowledged.get(key)
        known = dict(zip(cells_then[::2], cells_then[1::2], strict=True))
        return sum(known.get(number, 0) for number in cells[::2])
