"""Keys of counters by shard, which a node needs while it sends shards.

The engine finds the keys of one shard only by a search through all keys. So the first request
builds an index of all shards that members will probably ask for.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import compress

from hashring import SHARDS, pick, shards_of
from ringfence import runtime
from ringfence.limiter import Engine

__all__ = ["KeyIndex"]

_SLICE = 1000
"""Keys that are sorted by shard before other tasks run."""
_NONE, _ALL = bytes(SHARDS), b"\x01" * SHARDS
_OTHERS = bytes([1, 0]).ljust(256)
"""Translates marks of some shards to marks of all other shards."""


class KeyIndex:
    """Keys of some shards, by shard."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._found = defaultdict[int, bytearray](bytearray)
        """Keys of the engine by shard, each with its length before it: a third of the memory that
        objects need."""
        self._added = defaultdict[int, set[bytes]](set)
        """Keys by shard that were added later, some of them for a second time."""
        self._shards = _NONE
        """1 at the index of each shard whose keys are in the index, else 0."""
        self.is_used = False
        """Whether there is an index."""
        self._building: runtime.Event | None = None

    def has(self, shards: Iterable[int]) -> bool:
        """Return whether the keys of all these shards are in the index."""
        return all([self._shards[shard] for shard in shards])

    def has_keys(self, shard: int) -> bool:
        """Return whether the index contains keys of a shard."""
        return shard in self._found or shard in self._added

    def start(self, marks: bytes = _ALL) -> None:
        """Start a new index for the marked shards, without keys."""
        self._clear()
        self.is_used, self._shards = True, marks

    def add(self, keys: Sequence[bytes]) -> None:
        """Add keys, if there is an index; keys of other shards are ignored."""
        for key, shard in self._with_shards(keys) if self.is_used else ():
            self._added[shard].add(key)

    def _with_shards(self, keys: Sequence[bytes]) -> Iterable[tuple[bytes, int]]:
        marked = [*compress(keys, pick(keys, self._shards))]
        return zip(marked, shards_of(marked), strict=True)

    def take(self, shard: int) -> list[bytes]:
        """Remove the keys of a shard that is sent now, and return them in order."""
        assert self._shards[shard]
        keys, packed, at = self._added.pop(shard, set()), self._found.pop(shard, b""), 0
        while at < len(packed):
            begin, at = at + 1, at + 1 + packed[at]
            keys.add(bytes(packed[begin:at]))
        return sorted(keys)

    def drop(self) -> None:
        """Remove the index, unless it is being built."""
        if self._building is None:
            self._clear()

    def _clear(self) -> None:
        self._found.clear()
        self._added.clear()
        self.is_used, self._shards = False, _NONE

    async def prepare(self, shards: Sequence[int], ours: bytes) -> None:
        """Build an index that has some shards, in several short slices, so that requests run in
        between.

        The first index has all shards that the ring does not assign to this node (`ours`), because
        they will soon be asked for, too. An index of all shards needs much memory. It is built only
        for a member that has another ring. Keys that are counted meanwhile must be added.
        """
        while self._building is not None or not self.has(shards):
            if self._building is not None:
                await self._building.wait()
                continue
            marks = bytearray(ours.translate(_OTHERS))
            for shard in range(SHARDS) if self.is_used else shards:
                marks[shard] = 1
            await self._build(bytes(marks))

    async def _build(self, marks: bytes) -> None:
        self._building = runtime.Event()
        try:
            self.start(marks)
            for some in self._engine.key_slices(_SLICE):
                for key, shard in self._with_shards(some):
                    packed = self._found[shard]
                    packed.append(len(key))
                    packed += key
                await runtime.checkpoint()
        except BaseException:
            self._clear()  # An index of some keys would lose the others.
            raise
        finally:
            self._building.set()
            self._building = None
