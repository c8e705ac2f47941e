"""Counters by key, with their sizes in bytes and their order of eviction."""

from collections import deque
from collections.abc import Iterator

from ringfence.limiter.reference import Counter

__all__ = ["CounterMap"]

_MAX_SCANNED = 2
"""Number of keys that each new key examines. With 2, expired counters are removed faster than new
ones are added."""
_SAMPLE = 8
"""Number of entries from which one eviction chooses."""
_MIN_ORDER = 64
"""Number of unneeded entries in the order that do not yet cause it to be rebuilt."""
_ENTRY_BYTES = 400
"""Bytes of a small counter with its key of at most 128 bytes."""


class CounterMap:
    """Counters by key, in the order in which the CLOCK algorithm examines them for eviction."""

    def __init__(self) -> None:
        self.by_key: dict[bytes, Counter] = {}
        self.order: deque[bytes] = deque()
        """Keys in the order in which they are examined. A dropped key may remain. A key that was
        dropped and put again may occur several times. An `OrderedDict` would need 70 bytes more for
        each key, and several times as long to grow."""
        self._extra: dict[bytes, int] = {}
        """Bytes of a counter beyond `_ENTRY_BYTES`, by key, where there are any."""
        self._extra_bytes = 0

    @property
    def bytes_in_use(self) -> int:
        """Approximate bytes of the counters with their keys."""
        return _ENTRY_BYTES * len(self.by_key) + self._extra_bytes

    def put(self, key: bytes, counter: Counter) -> None:
        """Insert the counter of a key, or replace it."""
        if key not in self.by_key:
            self.order.append(key)
        self.by_key[key] = counter
        self.weigh(key)

    def drop(self, key: bytes) -> None:
        """Remove the counter of a key if it exists."""
        if self.by_key.pop(key, None) is not None:
            self._extra_bytes -= self._extra.pop(key, 0)
            if len(self.order) > 2 * len(self.by_key) + _MIN_ORDER:
                self.order = deque(self.by_key)

    def weigh(self, key: bytes) -> None:
        """Update the stored size of a counter that may have grown."""
        counter = self.by_key.get(key)
        extra = 0 if counter is None else counter.extra_bytes
        before = self._extra.get(key, 0)
        if extra != before:
            self._extra_bytes += extra - before
            if extra:
                self._extra[key] = extra
            else:
                del self._extra[key]

    def drop_expired(self, now: int) -> None:
        """Examine the next few counters in the order of eviction, and remove those that have
        expired."""
        for _ in range(_MAX_SCANNED):
            if not self.order:
                break
            key = self.order.popleft()
            counter = self.by_key.get(key)
            if counter is None:
                continue
            if counter.is_expired(now):
                self.drop(key)
            else:
                self.order.append(key)

    def oldest(self, most: int) -> Iterator[tuple[bytes, Counter]]:
        """Yield up to `most` of the next counters in the order of eviction, and move them to its
        end."""
        for _ in range(min(most, len(self.order))):
            key = self.order.popleft()
            counter = self.by_key.get(key)
            if counter is not None:
                self.order.append(key)
                yield key, counter

    def evict(self, now: int) -> Counter:
        """Evict, of a small sample, the counter with the smallest part of its limit in use."""
        sample: dict[bytes, Counter] = {}
        while self.order and len(sample) < _SAMPLE:
            key = self.order.popleft()
            counter = self.by_key.get(key)
            if counter is not None:
                sample[key] = counter
        victim = min(sample, key=lambda key: sample[key].share_in_use(now))
        self.order.extend([key for key in sample if key != victim])
        self.drop(victim)
        return sample[victim]
