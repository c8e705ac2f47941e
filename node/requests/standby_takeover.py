"""Takeover of shards by their standby, when their owner counts as unreachable.

Only this node's own observations decide that an owner is unreachable: membership, or the owner's
silence towards this node. The time-out of one caller does not. An owner that waits for another data
center sends nothing, so this node pings an owner before it counts as silent.

An owner may send replicas on its own connection while the link to it is silent, for example because
the link is still in the handshake. Then the owner decides checks too, and such a replica may have
the charge of a check that this node counts again. So the counts of the shard wait for the merge.
"""

from collections.abc import Callable, Sequence
from math import inf

from hashring import NodeId
from node.requests.placement import ShardPlacement
from node.shards.ownership.ownership import ShardOwnership
from ringfence import runtime
from ringfence.errors import AccessDenied
from ringfence.limiter import NS_PER_SECOND
from ringfence.peering.link import Link
from ringfence.peering.target import Shed
from ringfence.wire import Batch, Ping, Results

__all__ = ["PendingReply", "StandbyTakeover"]

_OWNER_SILENT_S = 0.1
"""Seconds without a sign of life after which an owner that was asked counts as unreachable."""
_LOOKS = 4
"""Steps in which a standby waits for that silence. A standby that was stopped itself resumes with
one step overdue, and reads the owner's messages before the next step ends."""
_PING_AFTER_S = _OWNER_SILENT_S / 2
"""Silence of an owner after which it is pinged. Its answer ends the silence."""
_RETURNED_NS = 500_000_000
"""Time for which a member that was stopped and is back counts as reachable although its link is
still lost or membership still doubts it: both are about the time before."""
_CURRENT_NS = 20_000_000
"""Longest wait of the present datagram for which a node counts as up to date with its socket."""


class PendingReply:
    """Reply of another member that a task waits for."""

    def __init__(self) -> None:
        self.value: Results | AccessDenied | Shed | None = None
        self.event = runtime.Event()

    def resolve(self, answer: Results | AccessDenied | Shed | None) -> None:
        """Set the reply of the other member; later replies are ignored."""
        if not self.event.is_set():
            self.value = answer
            self.event.set()


class StandbyTakeover:
    """Takes over shards of unreachable owners.

    It first asks an owner on behalf of a caller that could not reach the owner.
    """

    def __init__(
        self,
        placement: ShardPlacement,
        ownership: ShardOwnership,
        link_to: Callable[[NodeId], Link | None],
        now: Callable[[], int],
        is_suspect: Callable[[NodeId], bool],
        lag_ns: Callable[[], int],
    ) -> None:
        """`is_suspect` returns whether membership suspects a member. `lag_ns` returns how long the
        datagram that is being processed waited in the socket."""
        self._placement = placement
        self._ownership = ownership
        self._link_to = link_to
        self._now = now
        self._is_suspect = is_suspect
        self._lag_ns = lag_ns
        self._pinged_at: dict[NodeId, float] = {}
        """When each owner was last pinged, in seconds of the runtime's clock."""
        self._returned_at: dict[NodeId, int] = {}
        """When each member that was stopped last asked for the shards with decisions, in ns."""
        self._replica_at: dict[NodeId, int] = {}
        """When each member last sent a replica, in ns."""

    def on_replica(self, owner: NodeId) -> None:
        """Record that a member has just sent a replica of its counters."""
        self._replica_at[owner] = self._now()

    def taken_over_from(self, owner: NodeId) -> list[int]:
        """Return the shards in which this node decided in place of a member, which asks after a
        stall of its process.

        They include shards that are on their way back to the member. If the member was declared
        dead, this node has also taken over thousands of shards without a decision. Their transfer
        would delay the others, so they return later.

        The member decides again after this answer. Earlier signs that it was unreachable are
        ignored from now on: only a new silence of the member leads to another takeover.
        """
        self._returned_at[owner] = self._now()
        covers, sent = self._ownership.covers.items(), self._ownership.transfers.unconfirmed()
        taken = [s for s, cover in covers if cover.owner == owner and cover.has_decisions]
        return sorted(taken + [shard for shard, receiver in sent if receiver == owner])

    async def ask_owner(self, owner: NodeId | None, batch: Batch, hops: int) -> Results | None:
        """Ask an owner on behalf of a caller that could not reach it; None when it does not
        answer."""
        link = None if owner is None else self._link_to(owner)
        if owner is None or link is None or await self._is_unreachable(owner):
            return None
        reply = PendingReply()
        link.ask(batch, hops=hops, as_standby=False, done=reply.resolve)
        steps = 0
        while not await self._is_answered(reply, _OWNER_SILENT_S / _LOOKS):
            steps += 1
            if steps > 1 and self._is_silent(owner, link) and not self._ping(owner, link):
                return None
            if link.silent_s >= _PING_AFTER_S:
                self._ping(owner, link)
        return reply.value if isinstance(reply.value, Results) else None

    async def take_over_if_unreachable(self, shards: Sequence[int]) -> bool:
        """Take over shards whose owners are unreachable; return whether they are.

        A reachable owner has refused because it is transferring the shard. Then this node waits for
        a moment, until it knows the new owner.
        """
        if await self._are_unreachable(shards):
            ownership = self._ownership
            return await ownership.steps.run(
                shards, ownership.replicas.size_of, self._take_over_some
            )
        await self._is_answered(PendingReply(), _OWNER_SILENT_S / _LOOKS)
        return False

    async def _are_unreachable(self, shards: Sequence[int]) -> bool:
        """Return whether this node itself finds the owners of all these shards unreachable.

        Only membership, or the owner's silence towards this node, shows that. A caller's time-out
        does not: otherwise one caller could move shards away from a healthy owner.
        """
        owners = dict.fromkeys([self._placement.holder_of(shard) for shard in shards])
        return all([await self._is_unreachable(owner) for owner in owners if owner is not None])

    async def _is_unreachable(self, owner: NodeId) -> bool:
        if not self._seems_unreachable(owner):
            return False
        link = self._link_to(owner)
        if link is None or link.is_lost or self._is_suspect(owner):
            return True
        is_pinged = self._ping(owner, link)
        if self._lag_ns() < _CURRENT_NS and not is_pinged:
            return True
        # The owner has just been pinged, or this node lags: it reads what the owner has sent
        # meanwhile before it judges.
        await self._is_answered(PendingReply(), _OWNER_SILENT_S / _LOOKS)
        return link.is_lost or self._is_silent(owner, link)

    def _seems_unreachable(self, owner: NodeId) -> bool:
        """Return whether an owner is out of reach, or was silent until now."""
        link = self._link_to(owner)
        if link is None:
            return True
        if link.is_lost or self._is_suspect(owner):
            return self._back_for_ns(owner) >= _RETURNED_NS
        return self._is_silent(owner, link)

    def _ping(self, owner: NodeId, link: Link) -> bool:
        """Ping a silent owner, unless it was already pinged in this silence; return whether it was
        pinged now."""
        now = runtime.current_time()
        if self._pinged_at.get(owner, -inf) > now - link.silent_s:
            return False
        self._pinged_at[owner] = now
        link.call(Ping, _ignore_reply)
        return True

    def _is_silent(self, owner: NodeId, link: Link) -> bool:
        return min(link.silent_s, self._back_for_ns(owner) / NS_PER_SECOND) >= _OWNER_SILENT_S

    def _back_for_ns(self, owner: NodeId) -> float:
        """Return the time since a member, after a stall, asked for the shards with decisions;
        infinite if it never asked."""
        at = self._returned_at.get(owner)
        return inf if at is None else self._now() - at

    async def _is_answered(self, reply: PendingReply, within: float) -> bool:
        """Wait for a reply, at most `within` seconds; return whether it has arrived."""
        with runtime.move_on_after(within):
            await reply.event.wait()
        return reply.event.is_set()

    def _take_over_some(self, shards: Sequence[int]) -> bool:
        """Take over a part of the shards, unless an owner has sent something meanwhile."""
        owners = dict.fromkeys([self._placement.holder_of(shard) for shard in shards])
        if not all([self._seems_unreachable(owner) for owner in owners if owner is not None]):
            return False
        self._take_over(shards)
        return True

    def _take_over(self, shards: Sequence[int]) -> None:
        """Take over shards from their unreachable owners."""
        now = self._now()
        for shard in shards:
            if self._placement.ring.owner_by_shard and not self._placement.is_ours(shard):
                copies = list(self._ownership.replicas.of(shard))
                ring = self._placement.ring
                owner, standby = ring.owner(shard), ring.standby(shard)
                # The standby did not answer either, unless it is this node.
                silent = [standby] if standby else []
                self._ownership.take_over(shard, owner, copies, now, silent)
                cover = self._ownership.covers.get(shard)
                if cover is not None and cover.owner == owner:
                    cover.copied_at = self._replica_in_silence(owner, now) or cover.copied_at

    def _replica_in_silence(self, owner: NodeId, now: int) -> int | None:
        """Return when an owner last sent a replica, if its link has been silent since before."""
        link, replica_at = self._link_to(owner), self._replica_at.get(owner)
        if link is None or replica_at is None:
            return None
        return replica_at if now - replica_at < link.silent_s * NS_PER_SECOND else None


def _ignore_reply(reply: object) -> None:
    """Ignore the answer to a ping: the link records when the owner last sent a message."""
