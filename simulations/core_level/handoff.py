"""Handoff on the heap. Shipped: whom to ask and in which order, what is given, adopted, joined and
begun from nothing (`node.shards.handoff`, its search included, and `node.shards.ownership`). Only
its waiting is replaced here: background rounds, pulls, and those who wait for a shard.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from typing import Protocol

from hashring import NodeId, Ring
from node.containment import Containment
from node.metrics.counters import Counters
from node.shards.handoff import (
    Handoff,
    _Search,
)  # The search of one pull is nobody else's business.
from node.shards.ownership import ShardOwnership
from ringfence.limiter import Engine
from ringfence.peering.link import Link
from ringfence.wire import Pull, Pulled
from simulations.core_level.event_loop import Future, TaskSet

__all__ = ["CoreHandoff", "Waits"]

_SHARDS_PER_PULL = 256
_BREATH = 0.02
_SILENCE = 1.0
_ROUND = 0.5
_NEVER = float("inf")
_REST = 5.0
"""Seconds between two looks while everything is in its place: only what is old is dropped then."""


class Waits(Protocol):
    """The clock and the heap, as one life of a node has them."""

    tasks: TaskSet

    @property
    def seconds(self) -> float:
        """The time."""

    def later(self, seconds: float, call: Callable[..., object], *args: object) -> None:
        """Call after so many seconds, unless this life is over by then."""

    def soon(self, call: Callable[[], None]) -> None:
        """Call in a moment."""


class CoreHandoff(Handoff):
    """Moves shards between this node and its peers."""

    def __init__(
        self,
        me: NodeId,
        holdings: ShardOwnership,
        engine: Engine,
        counters: Counters,
        link_to: Callable[[NodeId], Link | None],
        clock: Callable[[], int],
        containment: Containment,
        waits: Waits,
    ) -> None:
        super().__init__(me, holdings, engine, counters, link_to, _reached, clock, containment)
        self._waits = waits
        self._waiting: dict[int, Future[None]] = {}
        self._planned = _NEVER
        """When the next round is, in seconds."""
        self._is_in_round = False
        self._may_be_misplaced = False
        """Whether anything has happened since the last round that can have put shards in the wrong
        place: a look at all of them costs more than everything else."""
        self.on_fetched: Callable[[], None] = _nothing
        """Called when what was lacking has come."""
        self.on_emptied: Callable[[], None] | None = None
        """Called when nothing is held any more."""

    # -- rounds --------------------------------------------------------------------------------

    def follow(self, old: Ring, new: Ring, asked: Ring) -> None:
        """Take note of another ring."""
        super().follow(old, new, asked)
        self.wake()

    def wake(self) -> None:
        """Look soon at what is in the wrong place."""
        self._may_be_misplaced = True
        self._plan(0.0)

    def changed(self) -> None:
        """Shards may have come to the wrong place: that is looked at in the next round."""
        self._may_be_misplaced = True
        self._plan(_ROUND)

    def _plan(self, seconds: float) -> None:
        at = self._waits.seconds + seconds
        if at < self._planned:
            self._planned = at
            self._waits.later(seconds, self._begin_round, at)

    @property
    def lacks(self) -> bool:
        """Whether anything that is ours by the ring is not held."""
        return bool(self._lacking())

    def _begin_round(self, planned: float) -> None:
        if planned == self._planned:
            self._planned = _NEVER
            if not self._is_in_round:
                self._is_in_round = True
                self._waits.tasks.start(self._round())

    async def _round(self) -> None:
        if self._may_be_misplaced:
            self._may_be_misplaced = False
            contained = self._containment
            # A step that met an internal error is due again.
            is_done = await contained.run("handoff", self._fetch_what_is_ours)
            if self._is_anything_foreign() or self._holdings.gifts():
                self._may_be_misplaced = True
                contained.call("handoff", self._offer_what_is_not)
            is_done = await contained.run("handoff", self._join_what_was_taken) and is_done
            self._may_be_misplaced = self._may_be_misplaced or not is_done
        self._containment.call("handoff", self._forget_what_is_old)
        self._is_in_round = False
        self._tell_if_empty()
        if self._lacking() or self._holdings.taken() or self._holdings.gifts():
            self._may_be_misplaced = True
        self._plan(_ROUND if self._may_be_misplaced else _REST)

    def _is_anything_foreign(self) -> bool:
        """Whether anything is held that is another's by the ring."""
        owners = self._ring.owner_by_shard
        return not set(compress(owners, self._holdings.held)) <= {self._me}

    async def _fetch_what_is_ours(self) -> None:
        wanted = self._lacking()
        for start in range(0, len(wanted), _SHARDS_PER_PULL):
            part = wanted[start : start + _SHARDS_PER_PULL]
            await self.acquire(part)
            if any([self._sources.get(shard) for shard in part]):
                await self._pause(_BREATH)
        if wanted:
            self.on_fetched()

    async def _pause(self, seconds: float) -> None:
        over: Future[None] = Future(self._waits.soon)
        self._waits.later(seconds, over.resolve, None)
        await over

    # -- waiting for shards --------------------------------------------------------------------

    async def acquire(self, shards: Iterable[int]) -> None:
        """Wait until the shards, ours by the ring, are held."""
        wanted = [shard for shard in shards if not self._holdings.held[shard]]
        self._begin_to_pull([shard for shard in wanted if shard not in self._pulling])
        for shard in wanted:
            if shard in self._pulling:
                await self._waiting.setdefault(shard, Future(self._waits.soon))

    def found(self, shards: Iterable[int]) -> None:
        """Let those go on who wait for any of the shards."""
        self._pulling.difference_update(shards)
        if self._reclaims:
            self._on_found(shards)
        if not self._waiting:
            return
        for shard in shards:
            coming = self._waiting.pop(shard, None)
            if coming is not None:
                coming.resolve(None)

    def _begin_to_pull(self, shards: Sequence[int], first: NodeId | None = None) -> None:
        if shards:
            self._pulling.update(shards)
            self._waits.tasks.start(self._pull_all(shards, first))

    def _forget_what_is_old(self) -> None:
        self._holdings.expire(self._clock())
        if self._holdings.is_indexed and self._waits.seconds > self._index_until:
            self._holdings.index(None)

    async def _pull_all(self, shards: Sequence[int], first: NodeId | None) -> None:
        try:
            await super()._pull_all(shards, first)
        finally:
            self.changed()

    async def _search(self, shards: Sequence[int], first: NodeId | None) -> None:
        await _CoreSearch(self, shards, first).run()

    async def pull(
        self, name: NodeId, shards: Sequence[int], part: int = 0, gift: int = 0
    ) -> Pulled | None:
        """Ask a member for shards; None when it cannot be had in time."""
        link = self._link_to(name)
        if link is None or self._waits.seconds < self._silent_until.get(name, 0):
            return None
        reply: Future[object] = Future(self._waits.soon)
        link.call(lambda seq: Pull(seq, sorted(shards), part, gift), reply.resolve)
        pulled = await reply
        if not isinstance(pulled, Pulled):
            self._silent_until[name] = self._waits.seconds + _SILENCE
            return None
        return pulled

    # -- giving --------------------------------------------------------------------------------

    def kept(self, taker: NodeId, shards: Sequence[int], gift: int) -> None:
        """A peer acknowledges shards of one transfer."""
        super().kept(taker, shards, gift)
        self._tell_if_empty()

    def _tell_if_empty(self) -> None:
        if self.on_emptied is not None and self._holdings.is_empty:
            self.on_emptied()

    async def _index(self) -> None:
        """Sort all keys by shard, at once: nobody else waits for a turn here."""
        self._index_until = self._waits.seconds + _REST
        if not self._holdings.is_indexed:
            self._holdings.index([])
            self._holdings.index(self._engine.keys())


class _CoreSearch(_Search):
    """Asks one member after another, where the shipped search asks them side by side."""

    async def run(self) -> None:
        while self._left:
            for name, shards in self._next_to_ask().items():
                await self._ask(name, shards)


async def _reached(name: NodeId) -> None:
    """Links of this level need no handshake."""


def _nothing() -> None:
    """Nobody listens."""
