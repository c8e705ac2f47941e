"""Handling of requests that only members send: membership records, shard transfers, replicas, and
counts between data centers.
"""

from functools import partial

from gossip import BadDatagram, Membership
from hashring import NodeId
from node.context.node_context import NodeContext
from node.membership.cluster_view import ClusterView
from node.membership.gossip_driver import NameInUse
from node.requests.denial_subscriptions import DenialSubscriptions
from node.requests.handler import RequestHandler
from node.requests.sessions.caller import Caller, internal_refusal
from node.shards.shard_counters import ShardCounters
from node.shards.shard_steps import FEW_SHARDS
from ringfence import runtime
from ringfence.wire import (
    AskTakenOver,
    Copy,
    Digest,
    Done,
    ErrorCode,
    Exchange,
    Message,
    Pull,
    RecoverCounts,
    Refused,
    ReplicaRequest,
    TakenOver,
    TransferAck,
    TransferOffer,
    WindowCounts,
)

__all__ = ["PeerRequests"]

_MOST_MERGES = 1000
"""Messages with counts that wait to be merged; a further one is merged at once."""
_LEASES_RETURNED_WITHIN = 0.2
"""Seconds for which a transfer of shards waits until clients have returned their leases."""


class PeerRequests:
    """Handler of requests that other members send to one node."""

    def __init__(
        self,
        node: NodeContext,
        membership: Membership,
        cluster: ClusterView,
        shards: ShardCounters,
        handler: RequestHandler,
        subscriptions: DenialSubscriptions[Caller],
    ) -> None:
        self._node = node
        self._membership = membership
        self._cluster = cluster
        self._shards = shards
        self._handler = handler
        self._subscriptions = subscriptions
        self._waiting_merges = 0

    def serve(self, session: Caller, name: str, message: Message) -> None:
        """Answer a message of the member `name`, immediately or later."""
        shards, cross_dc, member = self._shards, self._shards.cross_dc, NodeId(name)
        match message:
            case Exchange():
                self._answer_exchange(session, name, message)
            case Pull():
                assert self._node.running.nursery is not None
                self._node.running.nursery.start_soon(self._answer_pull, session, member, message)
            case Copy(seq, counts, origins, which):
                by_key = [origins[index] for index in which] if which else origins
                shards.ownership.keep_replica(member, counts, self._node.clock.now(), by_key)
                self._handler.takeover.on_replica(member)
                self._node.counters.add("copies_received")
                session.send(Done(seq))
            case TransferOffer(seq, offered):
                shards.handoff.on_offer(member, offered)
                session.send(Done(seq))
            case TransferAck(seq, received, transfer_id):
                shards.handoff.on_acknowledged(member, received, transfer_id)
                session.send(Done(seq))
            case AskTakenOver(seq):
                session.send(TakenOver(seq, self._handler.takeover.taken_over_from(member)))
            case WindowCounts():
                assert self._node.running.transport is not None
                # Merging takes about a millisecond, and many messages may have arrived at once.
                self._waiting_merges += 1
                merge = partial(self._merge_counts, session, name, message)
                if self._waiting_merges > _MOST_MERGES:
                    merge()
                else:
                    self._node.running.transport.call_soon(merge)
            case Digest():
                session.send(cross_dc.receive_digest(self._datacenter_of(name), message))
            case RecoverCounts():
                session.send(cross_dc.receive_recovery_request(self._datacenter_of(name), message))
            case _:
                raise AssertionError(message)

    def _datacenter_of(self, name: str) -> str:
        record = self._membership.records.get(name)
        return record.datacenter if record else ""

    def _answer_exchange(self, session: Caller, name: str, message: Exchange) -> None:
        assert self._cluster.gossip is not None
        try:
            session.send(self._cluster.gossip.exchanged(name, message))
        except NameInUse as error:
            self._node.counters.refused("name_in_use")
            session.send(Refused(message.seq, ErrorCode.NOT_PERMITTED, str(error)))
        except BadDatagram as error:
            self._node.counters.refused("bad_records")
            session.send(Refused(message.seq, ErrorCode.BAD_MESSAGE, str(error)))

    def _merge_counts(self, session: Caller, name: str, message: WindowCounts) -> None:
        self._waiting_merges -= 1

        def merge() -> None:
            session.send(self._shards.cross_dc.receive_counts(self._datacenter_of(name), message))

        if not self._node.containment.call("counts", merge):
            self._node.counters.refused("internal")
            session.send(internal_refusal(message.seq))
        self._node.running.flush()

    async def _answer_pull(self, session: Caller, name: NodeId, pull: Pull) -> None:
        async def answer() -> None:
            leases, is_copy = self._shards.lease_returns, pull.replicas is ReplicaRequest.ONLY
            moving = [] if is_copy else leases.keys_of(pull.shards)
            async with leases.awaited(moving, _LEASES_RETURNED_WITHIN):
                pulled = await self._shards.handoff.answer(name, pull)
            # The new owner does not have the subscriptions of clients.
            self._subscriptions.end_all_denials()
            self._handler.slots.call_all()
            if len(pull.shards) > FEW_SHARDS:
                await runtime.checkpoint()  # Encoding the answer can take a millisecond.
            session.send(pulled)

        if not await self._node.containment.run("pull", answer):
            self._node.counters.refused("internal")
            session.send(internal_refusal(pull.seq))
        self._node.running.flush()
