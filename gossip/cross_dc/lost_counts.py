"""Recovery of counts that a data center lost, from copies that other data centers received earlier.

A data center is the only writer of its own counts. When all its nodes fail together, its counts
restart from zero. The other data centers keep the largest count that they received, and ignore
smaller ones. So a node that starts a shard without data requests the earlier counts from every
other data center and adds them. The caller sends the requests and counts the units.
"""

from collections.abc import Callable, Iterable, Sequence

__all__ = ["LostCounts"]


class LostCounts:
    """Shards that a node started without data, and the counts recovered so far."""

    def __init__(self) -> None:
        self._recovering: dict[int, bool] = {}
        """Shards, and whether any data center has answered for them."""
        self._left: dict[str, dict[int, None]] = {}
        """Shards to request, by data center."""
        self._ordered: dict[str, list[int]] = {}
        """The same in ascending order, until they change."""
        self._recovered: dict[bytes, dict[int, int]] = {}
        """Recovered units by key and window number."""

    def start(self, shards: Sequence[int]) -> None:
        """Start to recover the counts of the given shards from all other data centers."""
        self._recovering.update(dict.fromkeys(shards, False))
        for left in self._left.values():
            left.update(dict.fromkeys(shards))
        self._ordered.clear()

    def stop(self, shards: Iterable[int]) -> None:
        """Stop the recovery of shards that another node counts now."""
        for shard in shards:
            self._recovering.pop(shard, None)
            for left in self._left.values():
                left.pop(shard, None)
            self._ordered.clear()

    def to_request(self, datacenter: str) -> Sequence[int]:
        """Return the shards whose counts must still be requested from one data center, in ascending
        order."""
        if datacenter not in self._left:
            self._left[datacenter] = dict.fromkeys(self._recovering)
        if datacenter not in self._ordered:
            self._ordered[datacenter] = sorted(self._left[datacenter])
        return self._ordered[datacenter]

    def on_answer(self, datacenter: str, shards: Iterable[int]) -> None:
        """Record that a data center has sent all its counts of the given shards."""
        left = self._left.get(datacenter, {})
        self._ordered.pop(datacenter, None)
        for shard in shards:
            left.pop(shard, None)
            if shard in self._recovering:
                self._recovering[shard] = True

    def unanswered(self, shards: Iterable[int]) -> list[int]:
        """Return the shards whose counts no data center has sent; the next owner must request
        them."""
        return [shard for shard in shards if self._recovering.get(shard) is False]

    def missing(
        self, key: bytes, own: Sequence[int], remote: Sequence[int]
    ) -> list[tuple[int, int]]:
        """Return the lost units to add to the counts of a key, as window numbers and units, oldest
        first.

        `own` holds the current counts of this data center. A larger remote count was received
        before the loss and contains none of them, so it is added. Several data centers remember
        parts of the same count, so only the largest one is used. A smaller or equal count may
        already be included and adds nothing: an undercount is preferred to counting twice.
        """
        mine = dict(zip(own[::2], own[1::2], strict=True))
        recovered = self._recovered.get(key, {})
        rows: list[tuple[int, int]] = []
        for number, count in sorted(zip(remote[::2], remote[1::2], strict=True)):
            before = recovered.get(number, 0)
            if count > mine.get(number, 0) and count > before:
                rows.append((number, count - before))
                self._recovered.setdefault(key, {})[number] = count
        return rows

    def forget(self, is_over: Callable[[bytes, int], bool]) -> None:
        """Remove recovered counts of expired windows; `is_over` takes key and window number."""
        for key, recovered in list(self._recovered.items()):
            if is_over(key, max(recovered)):
                del self._recovered[key]
