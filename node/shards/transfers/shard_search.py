"""Search for shards at other members: which members are asked, in which order, and when the search
ends.
"""

from collections.abc import Callable, Iterable, Sequence

from hashring import NodeId
from node.shards.ownership.ownership import ShardOwnership
from node.shards.shard_steps import SHARDS_PER_ANSWER
from node.shards.transfers.shard_receiver import IncomingTransfer, ShardReceiver
from node.shards.transfers.shard_sources import ShardSources
from ringfence import runtime
from ringfence.limiter import Snapshot
from ringfence.wire import Holding, Pulled, ReplicaRequest, ShardGroup

__all__ = ["ShardSearch"]

_MAX_MOVES = 3
"""How often one search follows a shard to its receiver, or restarts a broken transfer."""


class ShardSearch:
    """Search for a set of shards at other members, with the members asked so far and their
    answers."""

    def __init__(
        self,
        me: NodeId,
        ownership: ShardOwnership,
        sources: ShardSources,
        receiver: ShardReceiver,
        clock: Callable[[], int],
        on_received: Callable[[Iterable[int]], None],
        shards: Sequence[int],
        first: NodeId | None,
    ) -> None:
        """`first` is the member that is asked before all other members that may have the shards.
        `on_received` is called with shards whose search has ended."""
        self._me = me
        self._ownership = ownership
        self._sources = sources
        self._receiver = receiver
        self._clock = clock
        self._on_received = on_received
        self._left = self._members_to_ask(shards, first)
        """Members still to ask, by shard."""
        self._copies: dict[int, tuple[ShardGroup, int, Snapshot]] = {}
        """Replicas that were found, each with its group and the time at which it arrived. Levels of
        buckets are those of this time, and the search may last longer."""
        self._silent: dict[int, list[NodeId]] = {}
        """Members that did not answer, the likeliest holder of a shard first."""
        self._moves: dict[int, int] = {}
        self._sent_counters: set[NodeId] = set()
        """Members that have sent counters in this search, and may have more."""
        self._unconfirmed = {*ownership.transfers.unconfirmed_among(shards)}
        """Shards that this node has sent to members that may still be receiving them."""

    def _members_to_ask(
        self, shards: Sequence[int], first: NodeId | None
    ) -> dict[int, tuple[NodeId, ...]]:
        known, receivers = self._sources.by_shard, self._ownership.transfers.receivers_of(shards)
        if first is None and not receivers:  # The usual case, for thousands of shards.
            return {shard: known.get(shard, ()) for shard in shards}
        members = {
            shard: dict.fromkeys([first, receivers.get(shard), *known.get(shard, ())])
            for shard in shards
        }
        return {shard: tuple([name for name in of if name]) for shard, of in members.items()}

    async def run(self) -> None:
        """Ask members until this node holds each shard, or no member is left to ask."""
        while self._left:
            by_name = await self._next_to_ask()
            async with runtime.open_task_group() as nursery:
                for name, shards in by_name.items():
                    newest = self._newest_among(shards)
                    others = [shard for shard in shards if shard not in newest]
                    for replicas, some in (
                        (ReplicaRequest.IF_NOT_HELD, others),
                        (ReplicaRequest.NONE, [*newest]),
                    ):
                        for part in self._parts(name, some):
                            nursery.start_soon(self._ask, name, part, replicas)

    def _parts(self, name: NodeId, shards: list[int]) -> list[list[int]]:
        """Divide the shards that a member is asked for next into requests.

        The first answer has nearly all shards without counters. An answer has only a few of the
        others, so the next requests are sent together: they wait for the member, and not for each
        other.
        """
        most = SHARDS_PER_ANSWER if name in self._sent_counters else len(shards)
        return [shards[start : start + most] for start in range(0, len(shards), most or 1)]

    def _newest_among(self, shards: Sequence[int]) -> set[int]:
        """Return the shards of which this node has the newest replica, because it was their
        standby."""
        before = self._sources.standby_before
        return before.intersection(self._ownership.replicas.among(shards)) if before else set()

    async def _next_to_ask(self) -> dict[NodeId, list[int]]:
        """Return the next members to ask, with their shards; end the search for shards with no
        member left."""
        by_names: dict[tuple[NodeId, ...], list[int]] = {}
        for shard, names in self._left.items():
            by_names.setdefault(names, []).append(shard)
        left = by_names.pop((), [])
        by_names.update(self._receivers_to_ask_again(left))
        await self._give_up([shard for shard in left if not self._left[shard]])
        by_name: dict[NodeId, list[int]] = {}
        for (name, *_), shards in by_names.items():
            by_name.setdefault(name, []).extend(shards)
        return by_name

    def _receivers_to_ask_again(self, shards: Sequence[int]) -> dict[tuple[NodeId, ...], list[int]]:
        """Return the receivers of shards that this node had sent, with these shards.

        The answer that a receiver has no counters may be older than its acknowledgement.
        """
        transfers, again = self._ownership.transfers, dict[tuple[NodeId, ...], list[int]]()
        sent = [shard for shard in shards if shard in self._unconfirmed]
        for shard, name in transfers.receivers_of(sent).items():
            if not transfers.is_unconfirmed(shard) and name not in self._silent.get(shard, ()):
                self._left[shard] = (name,)
                again.setdefault((name,), []).append(shard)
        self._unconfirmed.difference_update(sent)
        return again

    async def _ask(self, name: NodeId, shards: list[int], replicas: ReplicaRequest) -> None:
        reply = await self._receiver.pull(name, shards, replicas=replicas)
        groups = [] if reply is None else reply.groups
        asked = set(shards).intersection(shard for each in groups for shard in each.shards)
        if reply is None or not asked:
            for shard in shards:
                self._silent.setdefault(shard, []).append(name)
                self._remove(shard, name)
            return
        if reply.counts.count:
            self._sent_counters.add(name)
        self._adopt_empty(name, reply)
        asked.intersection_update(self._left)
        for shard in await self._receiver.receive(name, reply, asked, self._take):
            self._restart_transfer(shard, name)

    def _take(self, name: NodeId, transfer: IncomingTransfer) -> bool:
        """Process the counters that a member sent of a shard; return whether a transfer was
        accepted."""
        shard, group = transfer.shard, transfer.about
        if group.hold is Holding.HELD:
            counts, rows, now = transfer.counts, transfer.fallback_counts, self._clock()
            if not self._ownership.accept(shard, group, name, counts, rows, now, transfer.decided):
                self._remove(shard, name)
                return False
            del self._left[shard]
            self._on_received((shard,))
            return True
        if group.hold is Holding.COPY:
            self._copies.setdefault(shard, (group, self._clock(), transfer.counts))
        self._remove(shard, name)
        self._follow_move(shard, NodeId(group.moved_to))
        return False

    def _adopt_empty(self, name: NodeId, reply: Pulled) -> None:
        """Accept all received shards without counters in one step, because there are thousands of
        them."""
        for group in reply.groups:
            if group.hold is Holding.HELD and not group.taken_from and group.parts == 1:
                empty = [
                    shard
                    for shard, size in zip(group.shards, group.sizes, strict=True)
                    if not size and name in self._left.get(shard, ())
                ]
                held = self._ownership.accept_empty(empty, group, name, self._clock())
                for shard in held:
                    del self._left[shard]
                self._on_received(held)
                self._receiver.acknowledge(name, group.transfer_id, held)

    def _restart_transfer(self, shard: int, name: NodeId) -> None:
        """Request a shard from its first part again, because a later part did not arrive."""
        moves = self._moves[shard] = self._moves.get(shard, 0) + 1
        if moves > _MAX_MOVES:
            self._silent.setdefault(shard, []).append(name)
            self._remove(shard, name)

    def _remove(self, shard: int, name: NodeId) -> None:
        """Remove a member that was asked from those that are still to be asked for a shard."""
        names = [*self._left[shard]]
        names.remove(name)
        self._left[shard] = tuple(names)

    def _follow_move(self, shard: int, moved_to: NodeId) -> None:
        """If the asked member has transferred the shard, ask its receiver next."""
        moves = self._moves.get(shard, 0)
        if moved_to and moved_to != self._me and moves < _MAX_MOVES:
            self._moves[shard] = moves + 1
            self._left[shard] = (moved_to, *self._left[shard])

    async def _give_up(self, shards: Sequence[int]) -> None:
        """Start to hold shards that no member has, from a replica or without counters.

        Shards without counters, of which there are thousands, start together. Others are taken over
        in steps.
        """
        if not shards:
            return
        found = self._found_among(shards)
        self._start_or_take([shard for shard in shards if shard not in found])
        left = [shard for shard in shards if shard in found]
        await self._ownership.steps.run(left, self._size_of, self._start_or_take)

    def _found_among(self, shards: Sequence[int]) -> set[int]:
        """Return the shards of which this node has or found counters, or may not have found all."""
        silent, copies, ownership = self._silent, self._copies, self._ownership
        found = {shard for shard in shards if shard in silent or shard in copies}
        found.update(ownership.replicas.among(shards))
        found.update(ownership.transfers.unconfirmed_among(shards))
        return found

    def _size_of(self, shard: int) -> int:
        copy = self._copies.get(shard)
        return self._ownership.replicas.size_of(shard) + (0 if copy is None else len(copy[2].keys))

    def _start_or_take(self, shards: Sequence[int]) -> bool:
        """Start shards, or take them over; return True, so that `ShardSteps` continues."""
        ownership, sources = self._ownership, self._sources
        now = self._clock()
        blind: dict[tuple[NodeId, tuple[NodeId, ...]], list[int]] = {}
        taken_over: list[int] = []
        held, ours, replicas = ownership.held, sources.ours, ownership.replicas
        for shard in shards:
            del self._left[shard]
        missing = [shard for shard in shards if ours[shard] and not held[shard]]
        found_somewhere = self._found_among(missing)
        unknown = [shard for shard in missing if shard not in found_somewhere]
        for shard in [shard for shard in missing if shard in found_somewhere]:
            silent = self._silent.get(shard, [])
            is_sent = ownership.transfers.is_unconfirmed(shard)
            copies, about = list(replicas.of(shard)) if shard in replicas else [], None
            if shard in self._copies and not (copies and shard in sources.standby_before):
                # The standby has the newest copy; a former standby may have kept an older one.
                about, arrived_at, found = self._copies[shard]
                copies.append((arrived_at, found))
            if not (silent or copies or is_sent):
                unknown.append(shard)
                continue
            owner = next(iter(silent or sources.of(shard)), self._me)
            taken_over.append(shard)
            if copies or is_sent:
                ownership.take_over(shard, owner, copies, now, silent, about)
            else:
                blind.setdefault((owner, (*silent,)), []).append(shard)
        for (owner, members), lost in blind.items():
            ownership.take_over_blind(lost, owner, now, members)
        ownership.start(unknown)
        ownership.unasked.add(unknown, sources.by_shard)
        # Without shards that another member owns: an offer of them must not start a second search.
        self._on_received(unknown + taken_over)
        return True
