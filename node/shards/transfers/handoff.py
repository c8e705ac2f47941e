"""Background transfer of shards between this node and its peers when the ring changes.

Decides which members are asked for a shard, in which order, how long to wait, and when to continue
without an answer. `ownership` decides what is transferred and how counters are merged.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain

from msgspec.structs import replace

from hashring import NodeId, Ring
from node.context.containment import Containment
from node.metrics.counters import Counters
from node.shards.ownership.ownership import ShardOwnership
from node.shards.shard_steps import FEW_SHARDS
from node.shards.transfers.shard_receiver import IncomingTransfer, ShardReceiver
from node.shards.transfers.shard_search import ShardSearch
from node.shards.transfers.shard_sender import ShardSender
from node.shards.transfers.shard_sources import ShardSources, has_more, only_in
from ringfence import runtime
from ringfence.limiter import NS_PER_SECOND
from ringfence.peering.link import Link
from ringfence.wire import Holding, Pull, Pulled, ReplicaRequest, TransferOffer

__all__ = ["Handoff"]

logger = logging.getLogger("ringfence.node")

_SHARDS_PER_PULL = 256
"""Shards in one pull; the sender answers at most some of them at a time."""
_SHARDS_PER_REPLICA_PULL = 4096
"""Shards in one pull of replicas: nearly always, the sender has none of them."""
_PULL_PAUSE = 0.02
"""Seconds between two background pulls: their senders have checks to answer."""
_ROUND = 0.5
"""Seconds between two rounds, which look for shards in the wrong place, while there are any."""
_SLICE = 1000
"""Checks that are sorted by shard before other tasks run."""
_INDEX_KEPT = 5.0
"""Seconds for which the indexes by shard are kept after the last request for shards."""


class Handoff:
    """Fetches the shards that this node should hold, and offers the shards of other owners to
    them."""

    is_leaving = False
    """Whether this node takes no shards back, because it may stop before it has sent them again."""

    def __init__(
        self,
        me: NodeId,
        ownership: ShardOwnership,
        sender: ShardSender,
        counters: Counters,
        link_to: Callable[[NodeId], Link | None],
        reach: Callable[[NodeId], Awaitable[object]],
        clock: Callable[[], int],
        containment: Containment,
    ) -> None:
        """`reach` waits until a member accepts checks, or until it is known that the member does
        not."""
        self._reach = reach
        self._me = me
        self._ownership = ownership
        self._sender = sender
        self._link_to = link_to
        self._clock = clock
        self._containment = containment
        self._ring = Ring.of(())
        self._sources = ShardSources(me)
        self._receiver = ShardReceiver(counters, link_to, ownership.steps)
        self._pulling: set[int] = set()
        self._arrivals: dict[int, runtime.Event] = {}
        self._reclaims: list[tuple[set[int], Callable[[], None]]] = []
        """Shards that are being reclaimed, and the callback for when all have arrived."""
        self._nursery: runtime.TaskGroup | None = None
        self._rounds = ownership.rounds
        self._index_until = 0.0
        self._all_transferred = runtime.Event()
        self._all_fetched = runtime.Event()

    def on_ring_change(self, old: Ring, new: Ring, check_ring: Ring) -> None:
        """Apply a change of the ring; shards that now belong to this node are fetched in the
        background.

        `check_ring` is the hash ring by which clients and nodes send checks.
        """
        self._ring = new
        self._sources.on_ring_change(old, new, check_ring, self._ownership.held)
        self._ownership.unasked.on_ring_change(new)
        self._rounds.start_now()

    async def run(self) -> None:
        """Fetch and offer shards in rounds until cancelled."""
        async with runtime.open_task_group() as nursery:
            self._nursery = nursery
            while True:
                idle_ns = self._ownership.next_expiry - self._clock()
                await self._rounds.wait(_ROUND, idle_ns / NS_PER_SECOND)
                # An internal error in one step does not end the other steps.
                if not self._is_settled:
                    await self._containment.run("handoff", self._fetch_missing_shards)
                    # Each step looks at all shards, so checks run between two of them.
                    await runtime.checkpoint()
                    self._containment.call("handoff", self._offer_misplaced_shards)
                    await runtime.checkpoint()
                    await self._containment.run("handoff", self._merge_covered_shards)
                    await self._containment.run("handoff", self._merge_earlier_replicas)
                is_done = self._containment.call("handoff", self._expire)
                if not (is_done and self._is_settled) or self._sender.is_serving:
                    self._rounds.add_work()

    @property
    def _is_settled(self) -> bool:
        """Whether every shard is where it belongs, so that nothing is left to fetch or offer."""
        ownership = self._ownership
        is_in_place = ownership.held == self._sources.ours and ownership.transfers.are_confirmed
        return is_in_place and not ownership.covers and not ownership.unasked.to_ask

    def _expire(self) -> None:
        now = self._clock()
        self._ownership.expire(now)
        self._sender.expire(now)
        if self._sender.index.is_used and runtime.current_time() > self._index_until:
            self._sender.index.drop()
            self._ownership.decided_checks.drop_index()

    async def wait_all_fetched(self) -> None:
        """Wait until this node holds all shards that the ring assigns to it."""
        while self._missing_shards():
            self._all_fetched = runtime.Event()
            self._rounds.start_now()
            await self._all_fetched.wait()

    async def wait_all_transferred(
        self, patience: float, has_receiver: Callable[[], bool] = lambda: True
    ) -> None:
        """Offer all shards to their owners in the ring until the owners have acknowledged them.

        Gives up after `patience` seconds, or when no member is left that may receive them. Time in
        which this process is suspended counts as one round at most, because no owner can fetch a
        shard meanwhile.
        """
        while not self._ownership.is_empty and patience > 0 and has_receiver():
            self._all_transferred = runtime.Event()
            self._rounds.start_now()
            with runtime.move_on_after(min(_ROUND, patience)):
                await self._all_transferred.wait()
            patience -= _ROUND

    # -- getting -------------------------------------------------------------------------------

    async def acquire(self, shards: Iterable[int]) -> None:
        """Wait until this node holds the given shards. Cancelling the wait does not stop the
        transfer."""
        wanted = [shard for shard in shards if not self._ownership.held[shard]]
        self._start_pull([shard for shard in wanted if shard not in self._pulling])
        for shard in wanted:
            if shard in self._pulling:
                await self._arrivals.setdefault(shard, runtime.Event()).wait()

    def _start_pull(self, shards: Sequence[int], first: NodeId | None = None) -> None:
        if not shards:
            return
        assert self._nursery is not None
        self._pulling.update(shards)
        self._nursery.start_soon(self._pull_all, shards, first)

    async def _pull_all(self, shards: Sequence[int], first: NodeId | None) -> None:
        try:
            await self._containment.run("handoff", self._search, shards, first)
        finally:
            self.on_received(shards)

    async def _search(self, shards: Sequence[int], first: NodeId | None) -> None:
        await ShardSearch(
            *(self._me, self._ownership, self._sources, self._receiver, self._clock),
            *(self.on_received, shards, first),
        ).run()

    def on_received(self, shards: Iterable[int]) -> None:
        """Resume the tasks that wait for any of these shards."""
        self._pulling.difference_update(shards)
        if self._reclaims:
            self._end_reclaims(shards)
        if not self._arrivals:
            return  # No task waits for most of the thousands that arrive at once.
        for shard in shards:
            event = self._arrivals.pop(shard, None)
            if event is not None:
                event.set()

    async def _fetch_missing_shards(self) -> None:
        wanted = self._missing_shards()
        if not wanted:
            return
        await self.acquire([shard for shard in wanted if not self._sources.of(shard)])
        wanted = [shard for shard in wanted if self._sources.of(shard)]
        for start in range(0, len(wanted), _SHARDS_PER_PULL):
            await self.acquire(wanted[start : start + _SHARDS_PER_PULL])
            await runtime.sleep(_PULL_PAUSE)  # Requests are served between two pulls.
        logger.info("shards fetched: counted_here=%d", self._ownership.count)
        self._all_fetched.set()

    @property
    def owned_count(self) -> int:
        """Number of shards that the ring assigns to this node."""
        return self._sources.ours.count(1)

    def _missing_shards(self) -> list[int]:
        held = self._ownership.held
        if not has_more(self._sources.ours, held):
            return []
        return [shard for shard in self._sources.by_shard if not held[shard]]

    async def _merge_covered_shards(self) -> None:
        """Fetch and merge counters from owners in whose place this node holds their shards.

        The shards of an answer are processed in several turns of the event loop. Meanwhile, an
        owner without counters may have received a shard, and this node may have taken it back.
        """
        before, now_covered = {**self._ownership.covers}, self._ownership.covers

        def take(sender: NodeId, transfer: IncomingTransfer) -> bool:
            shard, is_held = transfer.shard, transfer.about.hold is Holding.HELD
            is_current = before.get(shard) is now_covered.get(shard)
            return (is_held or is_current) and self._adopt(sender, transfer)

        by_owner = self._ownership.members_to_ask(
            self._sources.ours, self._clock(), lambda name: self._link_to(name) is not None
        )
        await self._merge_all(by_owner, take, ReplicaRequest.IF_NOT_HELD)

    async def _merge_earlier_replicas(self) -> None:
        """Fetch and merge replicas from before a restart, of shards that this node started before
        it found their standbys."""
        to_ask = {name: sorted(shards) for name, shards in self._ownership.unasked.to_ask.items()}
        await self._merge_all(to_ask, self._add_earlier_replica, ReplicaRequest.ONLY)

    async def _merge_all(
        self,
        by_member: Mapping[NodeId, Sequence[int]],
        take: Callable[[NodeId, IncomingTransfer], bool],
        replicas: ReplicaRequest,
    ) -> None:
        is_only = replicas is ReplicaRequest.ONLY
        most = _SHARDS_PER_REPLICA_PULL if is_only else _SHARDS_PER_PULL
        for name, shards in by_member.items():
            for start in range(0, len(shards), most):
                part = shards[start : start + most]
                if not await self._merge_from(name, part, take, replicas):
                    break

    async def _merge_from(
        self,
        name: NodeId,
        shards: Sequence[int],
        take: Callable[[NodeId, IncomingTransfer], bool],
        replicas: ReplicaRequest,
    ) -> bool:
        """Fetch the counters of shards from a member and merge them; return False without an
        answer."""
        left = {*shards}
        while left:
            reply = await self._receiver.pull(name, sorted(left), replicas=replicas)
            if reply is None:
                return False
            answered = left.intersection(_shards_of(reply))
            if replicas is ReplicaRequest.ONLY:
                without = left.intersection(_shards_of(reply, Holding.NOTHING))
                self._ownership.unasked.on_answer(name, without)
                left -= without
            await self._receiver.receive(name, reply, left, take)
            left -= answered
            if not answered:
                break
        return True

    def _adopt(self, sender: NodeId, transfer: IncomingTransfer) -> bool:
        """Merge a received shard into this node's counters; return whether it was accepted."""
        shard, group, counts = transfer.shard, transfer.about, transfer.counts
        now = self._clock()
        if group.hold is Holding.HELD:
            return self._ownership.accept(
                shard, group, sender, counts, transfer.fallback_counts, now, transfer.decided
            )
        cover = self._ownership.covers.get(shard)
        if cover is None or sender != cover.owner:
            self._ownership.replica_answered(shard, sender, counts, now, group)
        elif group.moved_to and group.moved_to != self._me:
            self._ownership.owner_moved(shard, NodeId(group.moved_to), now)
        elif group.hold is Holding.COPY:
            self._ownership.owner_has_replica(shard, counts, group, now)
        else:
            self._ownership.owner_has_nothing(shard, now)
        return False

    def _add_earlier_replica(self, sender: NodeId, transfer: IncomingTransfer) -> bool:
        """Merge a replica from before this node's restart; return False, because it is no
        transfer."""
        shard, ownership = transfer.shard, self._ownership
        if transfer.about.hold is not Holding.HELD and ownership.unasked.is_to_ask(sender, shard):
            about = replace(transfer.about, taken_from="")
            ownership.replica_answered(shard, sender, transfer.counts, self._clock(), about)
        return False

    def reclaim(self, name: NodeId, shards: Sequence[int], done: Callable[[], None]) -> None:
        """Fetch shards back from the member `name`, which holds them in this node's place; then
        call `done`. A leaving node leaves them there."""
        if not shards or self.is_leaving:
            done()
            return
        self._reclaims.append((set(shards), done))
        self._start_pulls([shard for shard in shards if shard not in self._pulling], name)

    def _end_reclaims(self, shards: Iterable[int]) -> None:
        """Call `done` of each `reclaim` call whose shards have all arrived or cannot arrive."""
        for waited, done in [*self._reclaims]:
            waited.difference_update(shards)
            if not waited:
                self._reclaims.remove((waited, done))
                done()

    # -- giving --------------------------------------------------------------------------------

    def on_offer(self, sender: NodeId, shards: Sequence[int]) -> None:
        """Fetch shards that a peer offers, even if this node's view names another owner."""
        if self.is_leaving:
            return
        held, known = self._ownership.held, self._sources.by_shard
        missing = [shard for shard in shards if shard in known and not held[shard]]
        self._sources.prefer(missing, sender)
        self._start_pulls(sorted({*shards}.difference(missing, self._pulling)), sender)

    def _start_pulls(self, shards: Sequence[int], first: NodeId) -> None:
        for start in range(0, len(shards), _SHARDS_PER_PULL):
            self._start_pull(shards[start : start + _SHARDS_PER_PULL], first)

    async def answer(self, requester: NodeId, pull: Pull) -> Pulled:
        """Answer a peer that requests shards."""
        if self._holds_any(pull.shards):
            await self._reach(requester)
            await self._index(pull.shards)
        if len(pull.shards) > FEW_SHARDS:
            await self._ownership.steps.turn()
            if self._holds_any(pull.shards):
                await self._index(pull.shards)  # After a long wait, there may be no index any more.
        ring = self._ring
        self._rounds.add_work()
        return self._sender.answer(
            requester,
            pull,
            self._clock(),
            lambda shard: bool(ring.owner_by_shard) and ring.standby(shard) == self._me,
        )

    def _holds_any(self, shards: Iterable[int]) -> bool:
        held = self._ownership.held
        return any([held[shard] for shard in shards])

    def on_acknowledged(self, receiver: NodeId, shards: Sequence[int], transfer_id: int) -> None:
        """Drop the stored parts of shards that the peer has acknowledged."""
        self._ownership.acknowledge(receiver, shards, transfer_id, self._clock())
        if self._ownership.is_empty:
            self._all_transferred.set()

    async def _index(self, shards: Sequence[int]) -> None:
        """Index the keys of some shards, and recent checks, in several short slices, so that
        requests run in between."""
        while not self._ownership.decided_checks.index(_SLICE):
            await runtime.checkpoint()
        await self._sender.index.prepare(shards, self._sources.ours)
        self._index_until = runtime.current_time() + _INDEX_KEPT

    def _offer_misplaced_shards(self) -> None:
        by_owner: dict[NodeId, list[int]] = {}
        for shard, receiver in self._ownership.transfers.unconfirmed():  # A transfer may be lost.
            by_owner.setdefault(receiver, []).append(shard)
        owners, held = self._ring.owner_by_shard, self._ownership.held
        for shard in only_in(held, self._sources.ours) if owners else ():
            by_owner.setdefault(owners[shard], []).append(shard)
        for owner, shards in by_owner.items():
            link = self._link_to(owner)
            if link is not None:
                offer = partial(_transfer_offer, sorted(shards))
                link.call(offer, _ignore_reply)


def _transfer_offer(shards: list[int], seq: int) -> TransferOffer:
    return TransferOffer(seq, shards)


def _shards_of(reply: Pulled, *holdings: Holding) -> Iterator[int]:
    """Return the shards of a reply of which the sender has what `holdings` names, by default all
    shards."""
    groups = [each for each in reply.groups if not holdings or each.hold in holdings]
    return chain.from_iterable([group.shards for group in groups])


def _ignore_reply(reply: object) -> None:
    """Ignore the reply to an offer. The peer then requests the shards by itself."""
