"""Rate limits of the admin port: on the work for requests, and on new connections by address."""

from collections import deque
from math import inf
from typing import Generic, TypeVar

from node.admin.lock import Lock
from ringfence import runtime

__all__ = ["FairQueue", "Throttle"]

_Item = TypeVar("_Item")


class Throttle:
    """Rate limit: at most `rate` steps of work a second, `burst` of them together; other callers
    wait in FIFO order."""

    def __init__(self, rate: float, burst: int) -> None:
        self._interval = 1 / rate
        self._tolerance = (burst - 1) / rate
        self._next = 0.0
        """Time of the next step at the plain rate, without bursts."""
        self._turns = Lock()

    async def turn(self) -> None:
        """Wait until the rate limit admits one more step."""
        async with self._turns:
            self._next = max(self._next, runtime.current_time())
            wait = self._next - self._tolerance - runtime.current_time()
            if wait > 0:
                # The rate limit itself: its next step is at a known time.
                await runtime.sleep(wait)
            self._next += self._interval


class FairQueue(Generic[_Item]):
    """Queue with a rate limit for each address; the addresses take turns.

    An address with many items delays only its own items. Times are seconds on a monotonic clock.
    """

    def __init__(self, capacity: int, rate: float, burst: int) -> None:
        """`capacity`, at least 1, bounds the items of all addresses; `rate` and `burst` are per
        address.
        """
        self._capacity = capacity
        self._interval = 1 / rate
        self._tolerance = (burst - 1) / rate
        self._size = 0
        self._queues: dict[str, deque[_Item]] = {}
        """Items by address. The first address has the next turn; no queue is empty."""
        self._next: dict[str, float] = {}
        """Per address, the time of its next item at the plain rate, without bursts."""

    def __len__(self) -> int:
        """Return the number of queued items of all addresses."""
        return self._size

    def put(self, address: str, item: _Item) -> _Item | None:
        """Add an item to the queue. When the queue is full, drop and return another item.

        The dropped item is the oldest one of the address with the most items.
        """
        dropped = None
        if self._size >= self._capacity:
            largest = max(self._queues, key=lambda each: len(self._queues[each]))
            dropped = self._pop(largest)
        self._queues.setdefault(address, deque()).append(item)
        self._size += 1
        return dropped

    def next_due(self) -> float:
        """Return the time at which `take` has an item; infinite when the queue is empty."""
        return min(map(self._due, self._queues), default=inf)

    def take(self, now: float) -> _Item:
        """Remove the oldest item of the next address that is due.

        Raises `LookupError` when no address is due.
        """
        for address in self._queues:
            if self._due(address) <= now:
                break
        else:
            raise LookupError("no item is due")
        item = self._pop(address)
        if address in self._queues:
            # The address moves behind the other addresses.
            self._queues[address] = self._queues.pop(address)
        self._next[address] = max(now, self._next.get(address, 0.0)) + self._interval
        if len(self._next) > 2 * self._capacity:
            self._next = {each: due for each, due in self._next.items() if due > now}
        return item

    def clear(self) -> list[_Item]:
        """Remove and return all queued items."""
        items = [item for queue in self._queues.values() for item in queue]
        self._queues, self._size = {}, 0
        return items

    def _due(self, address: str) -> float:
        return self._next.get(address, 0.0) - self._tolerance

    def _pop(self, address: str) -> _Item:
        queue = self._queues[address]
        item = queue.popleft()
        if not queue:
            del self._queues[address]
        self._size -= 1
        return item
