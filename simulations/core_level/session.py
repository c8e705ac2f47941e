"""What a node at core level answers to whom: the messages of `ringfence.wire`, as values.

The part of `node.node` and `node.requests.sessions` that hands each message to its handler.
"""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from hashring import NodeId
from node.requests.sessions.session import internal_refusal
from node.shards.replication import as_snapshot
from ringfence.wire import (
    Answer,
    AskTakenOver,
    Batch,
    Copy,
    Digest,
    Done,
    ErrorCode,
    Op,
    Ping,
    Pong,
    Pull,
    RecoverCounts,
    Refused,
    Request,
    Results,
    TakenOver,
    TransferAck,
    TransferOffer,
    WindowCounts,
)
from simulations.core_level.link import Asked, Look, Respond, Told

if TYPE_CHECKING:
    from simulations.core_level.node import CoreNode

__all__ = ["CoreSession"]


class CoreSession:
    """Answers for one life of a node."""

    def __init__(self, node: "CoreNode") -> None:
        self._node = node

    def serve(self, sender: str, message: Asked, respond: Respond) -> None:
        """Answer what a client or a peer asks."""

        def answer(reply: Asked) -> None:
            if self._node.is_alive:
                respond(reply)

        if not self._node.containment.call("session", self._serve, sender, message, answer):
            self._node.counters.add("refused_internal")
            answer(internal_refusal(getattr(message, "seq", 1)))

    def _serve(  # noqa: PLR0912 - one branch per message
        self, sender: str, message: Asked, answer: Respond
    ) -> None:
        match message:
            case Request():
                self._check(sender, message, answer)
            case Told(seq, records):
                self._node.gossiping.merge(records)
                answer(Told(seq, self._node.membership.snapshot()))
            case Look():
                answer(self._node.view)
            case Ping(seq):
                answer(Pong(seq))
            case Pull():
                self._node.tasks.start(self._give(NodeId(sender), message, answer))
            case Copy(seq, counts):
                held = as_snapshot(counts)
                self._node.holdings.keep_copy(NodeId(sender), held, self._node.clock.now())
                self._node.counters.add("copies_received")
                answer(Done(seq))
            case TransferOffer(seq, shards):
                self._node.handoff.offered(NodeId(sender), shards)
                answer(Done(seq))
            case TransferAck(seq, shards, gift):
                self._node.handoff.kept(NodeId(sender), shards, gift)
                answer(Done(seq))
            case AskTakenOver(seq):
                answer(TakenOver(seq, self._node.deciding.taken_over_from(NodeId(sender))))
            case WindowCounts():
                answer(self._node.worldwide.take_cells(self._datacenter_of(sender), message))
            case Digest():
                answer(self._node.worldwide.take_digest(self._datacenter_of(sender), message))
            case RecoverCounts():
                answer(self._node.worldwide.take_recall(self._datacenter_of(sender), message))
            case _:
                raise AssertionError(message)

    async def _give(self, sender: NodeId, pull: Pull, answer: Respond) -> None:
        async def give() -> None:
            answer(await self._node.handoff.answer(sender, pull))
            self._node.deciding.slots.call_all()

        if not await self._node.containment.run("pull", give):
            answer(internal_refusal(pull.seq))

    def _check(self, sender: str, request: Request, answer: Respond) -> None:
        batch = replace(request.batch)  # The sender keeps its own: nothing was encoded in between.
        self._node.asked(request.hops)
        self._node.notice_stall()

        def reply(part: Batch, rows: list[int] | None, verdicts: Results | None) -> None:
            if verdicts is None:
                answer(Refused(request.seq, ErrorCode.NOT_HERE, "could not have these keys"))
            else:
                view = self._node.view.hash
                answer(Answer(request.seq, view, 0, verdicts, rows))
                self._node.slots.answered(sender, part, verdicts)

        decided = self._node.deciding.decide_now(request, batch)
        if isinstance(decided, Refused):
            self._node.counters.add("refused_not_owner")
            answer(decided)
        elif isinstance(decided, Results):
            reply(batch, None, decided)
        else:
            for part in decided:
                if part.is_decided:
                    reply(part.batch, part.rows, part.verdicts)
                else:
                    if batch.op is Op.CHECK:
                        self._node.slots.pass_on(sender, part.batch.leases)
                    told = partial(reply, part.batch, part.rows)
                    self._node.deciding.answer(request, part, told)

    def _datacenter_of(self, name: str) -> str:
        record = self._node.membership.records.get(name)
        return record.datacenter if record else ""
