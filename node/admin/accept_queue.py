"""Connections that wait to be served: one queue and one pace per address, served in turn."""

from collections import deque
from math import inf
from typing import Generic, TypeVar

__all__ = ["FairQueue"]

_Item = TypeVar("_Item")


class FairQueue(Generic[_Item]):
    """Queue in which an address with many items delays its own items only.

    Times are seconds on any clock that never goes back.
    """

    def __init__(self, most: int, per_second: float, burst: int) -> None:
        """`most`, at least 1, bounds the items of all addresses; the rest is the pace of each."""
        self._most = most
        self._interval = 1 / per_second
        self._ahead = (burst - 1) / per_second
        self._size = 0
        self._queues: dict[str, deque[_Item]] = {}
        """The address whose turn is next comes first; none is empty."""
        self._next: dict[str, float] = {}
        """When the next item of an address would be due if there were no bursts."""

    def __len__(self) -> int:
        """Count the items of all addresses."""
        return self._size

    def put(self, address: str, item: _Item) -> _Item | None:
        """Add an item; when the queue is full, return one that gave up its place.

        It is the oldest item of the address that has most.
        """
        victim = None
        if self._size >= self._most:
            crowd = max(self._queues, key=lambda each: len(self._queues[each]))
            victim = self._pop(crowd)
        self._queues.setdefault(address, deque()).append(item)
        self._size += 1
        return victim

    def next_due(self) -> float:
        """Tell when an item is due; infinite when the queue is empty."""
        return min(map(self._due, self._queues), default=inf)

    def take(self, now: float) -> _Item:
        """Remove the oldest item of the next address that is due. Raises `LookupError` without."""
        for address in self._queues:
            if self._due(address) <= now:
                break
        else:
            raise LookupError("no item is due")
        item = self._pop(address)
        if address in self._queues:
            self._queues[address] = self._queues.pop(address)  # The others come first.
        self._next[address] = max(now, self._next.get(address, 0.0)) + self._interval
        if len(self._next) > 2 * self._most:
            self._next = {each: due for each, due in self._next.items() if due > now}
        return item

    def clear(self) -> list[_Item]:
        """Remove and return all items."""
        items = [item for queue in self._queues.values() for item in queue]
        self._queues, self._size = {}, 0
        return items

    def _due(self, address: str) -> float:
        return self._next.get(address, 0.0) - self._ahead

    def _pop(self, address: str) -> _Item:
        queue = self._queues[address]
        item = queue.popleft()
        if not queue:
            del self._queues[address]
        self._size -= 1
        return item
