"""What a data center has told others and lost itself: whom to ask for it, and how much is missing.

A data center is the only writer of its own counts. When all its nodes are gone at once it begins
them from nothing, while the others keep the largest count that they heard: until that is passed
again they would hear of nothing. So whoever begins a shard from nothing asks every other data
center what it remembers, and counts it again. Asking and counting are the caller's.
"""

from collections.abc import Callable, Iterable, Sequence

__all__ = ["LostCounts"]


class LostCounts:
    """The shards that one node began from nothing, and what was found of them since."""

    def __init__(self) -> None:
        self._begun: dict[int, bool] = {}
        """Shards, and whether any data center has answered."""
        self._left: dict[str, dict[int, None]] = {}
        """Per data center the shards that it must be asked for still."""
        self._found: dict[bytes, dict[int, int]] = {}
        """By key and window number, the units that were counted again."""

    def begun(self, shards: Sequence[int]) -> None:
        """Note shards that are counted from nothing: everybody is asked."""
        self._begun.update(dict.fromkeys(shards, False))
        for left in self._left.values():
            left.update(dict.fromkeys(shards))

    def gone(self, shards: Iterable[int]) -> None:
        """Ask no more for shards that are counted elsewhere now."""
        for shard in shards:
            self._begun.pop(shard, None)
            for left in self._left.values():
                left.pop(shard, None)

    def wanted(self, datacenter: str) -> list[int]:
        """The shards that a data center must be asked for, ascending."""
        if datacenter not in self._left:  # It is asked for at each round, of thousands of shards.
            self._left[datacenter] = dict.fromkeys(self._begun)
        return sorted(self._left[datacenter])

    def answered(self, datacenter: str, shards: Iterable[int]) -> None:
        """A data center has said all that it remembers of these shards."""
        left = self._left.get(datacenter, {})
        for shard in shards:
            left.pop(shard, None)
            if shard in self._begun:
                self._begun[shard] = True

    def unanswered(self, shards: Iterable[int]) -> list[int]:
        """Those of the shards that nobody has answered for: whoever counts them now may ask."""
        return [shard for shard in shards if self._begun.get(shard) is False]

    def missing(
        self, key: bytes, own: Sequence[int], remembered: Sequence[int]
    ) -> list[tuple[int, int]]:
        """Find what must be counted again: number and units, oldest first; cells as in `Cells`.

        `own` is what is counted here by now. Whatever was told since the beginning is part of it,
        so a larger count was told before and has nothing of it: it comes on top. Several data
        centers remember more or less of the same, so only the largest counts. A count that is not
        larger may be of either time, and nothing is added: rather too little than twice.
        """
        mine = dict(zip(own[::2], own[1::2], strict=True))
        found = self._found.get(key, {})
        rows: list[tuple[int, int]] = []
        for number, count in sorted(zip(remembered[::2], remembered[1::2], strict=True)):
            before = found.get(number, 0)
            if count > mine.get(number, 0) and count > before:
                rows.append((number, count - before))
                self._found.setdefault(key, {})[number] = count
        return rows

    def forget(self, is_over: Callable[[bytes, int], bool]) -> None:
        """Drop what was found of windows that count no more; `is_over` takes key and number."""
        for key, found in list(self._found.items()):
            if is_over(key, max(found)):
                del self._found[key]
