"""Dispatch of requests of all sessions: decided immediately, in steps, or in a task that waits."""

from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from node.context.node_context import NodeContext
from node.membership.cluster_view import ClusterView
from node.metrics.detailed import MetricsSwitch
from node.requests.carried_limits import overrule, oversized
from node.requests.deduplication import DecidedChecks
from node.requests.denial_subscriptions import DenialSubscriptions
from node.requests.handler import RequestHandler
from node.requests.request_parts import Part
from node.requests.sessions.caller import Caller, internal_refusal
from node.requests.sessions.request_scheduler import DIRECT_COST, RequestScheduler
from node.requests.sessions.sent_answers import Sender
from node.requests.slot_waiters import ForwardedWaiters
from ringfence.limiter import Code
from ringfence.wire import (
    Answer,
    Batch,
    ErrorCode,
    Message,
    Op,
    Refused,
    Request,
    Results,
    encode,
)

__all__ = ["RequestDispatcher"]

_CARRIED_ROW_COST, _FOREIGN_ROW_COST = 16, 4
"""Estimated microseconds of a row with a carried limit, and of a row of another owner."""


class RequestDispatcher:
    """Decides and answers the requests of all sessions of one node."""

    def __init__(
        self,
        node: NodeContext,
        cluster: ClusterView,
        handler: RequestHandler,
        decided_checks: DecidedChecks,
        subscriptions: DenialSubscriptions[Caller],
        waiters: ForwardedWaiters,
        metrics: MetricsSwitch,
        notice_stall: Callable[[], int],
    ) -> None:
        """`notice_stall` starts a recovery if the datagram that is being processed waited too long,
        and returns its wait in ns."""
        self._name = node.name
        self._rules = node.rules
        self._now = node.clock.now
        self._running = node.running
        self._counters = node.counters
        self._containment = node.containment
        self._cluster = cluster
        self._handler = handler
        self._decided_checks = decided_checks
        self._subscriptions = subscriptions
        self._waiters = waiters
        self._metrics = metrics
        self._notice_stall = notice_stall
        self._scheduler: RequestScheduler[Caller] = RequestScheduler()

    @property
    def is_busy(self) -> bool:
        """Whether any request waits for its turn, for another member or for a shard."""
        return bool(self._handler.waiting or self._scheduler)

    def count_repeat(self) -> None:
        """Count a request that was received again and not decided again."""
        self._counters.add("repeated")

    def cost_of(self, request: Request) -> int:
        """Estimate the work for a request in microseconds; 0 when it is small for the request's
        size.

        A request without limits of its own whose rows this node decides takes one call of the
        limiter engine.
        """
        keys = request.batch.keys
        if request.batch.limits:
            return _CARRIED_ROW_COST * len(keys)
        if len(keys) <= DIRECT_COST // _FOREIGN_ROW_COST:
            return 0
        is_here = self._handler.placement.holds(keys)
        return 0 if is_here else _FOREIGN_ROW_COST * len(keys)

    def wait_turn(
        self, sender: Sender[Caller], steps: Iterator[None], rows: int, size: int = 0
    ) -> bool:
        """Queue a request until its turn; return False when too many requests wait."""
        assert self._running.transport is not None
        if not self._scheduler.has_room(sender, rows, size):
            self._counters.add("shed", rows)
            self._counters.refused("overloaded")
            return False
        if not self._scheduler:
            self._running.transport.call_soon(self._step)
        self._scheduler.add(sender, steps, rows, size)
        return True

    def _step(self) -> None:
        """Perform one step of a waiting request, and schedule the next step of any request."""
        assert self._running.transport is not None
        self._scheduler.step()
        if self._scheduler:
            self._running.transport.call_soon(self._step)
        else:
            self._running.on_work_done()

    def decide(
        self, request: Request, batch: Batch, waited_ns: int | None = None
    ) -> Results | Refused | list[Part]:
        """Decide a request now, refuse it, or return its parts when some of its checks must wait.

        `waited_ns` is the time that the request has waited; None means the time that its datagram
        waited in the socket.
        """
        held_up_ns = self._notice_stall() if waited_ns is None else waited_ns
        if batch.limits:
            refusal = oversized(request.seq, batch)
            if refusal is not None:
                self._counters.refused("oversized_limit")
                return refusal
            overruled = overrule(batch, self._rules.counts_by)
            if overruled:
                self._counters.add("overruled_limits", overruled)
        if held_up_ns > request.deadline_ms * 1_000_000 and batch.op is Op.CHECK:
            # The caller has given up. Frames arrive in order, so the oldest ones are shed first.
            self._counters.add("shed", len(batch))
            reason = (
                f"node {self._name} is overloaded: the check waited {held_up_ns // 1_000_000} ms"
            )
            return Refused(request.seq, ErrorCode.TOO_LATE, reason)
        measures = self._metrics.active
        if measures is not None and measures.is_timed:
            began = measures.stopwatch()
            results = self._handler.decide_now(request, batch)
            if isinstance(results, Results):
                measures.decided_ns.add(measures.stopwatch() - began)
        else:
            results = self._handler.decide_now(request, batch)
        if isinstance(results, Refused):
            if results.code == ErrorCode.OVERLOADED:
                self._counters.add("shed", len(batch))
                self._counters.refused("overloaded")
            else:
                self._counters.refused("not_owner")
        return results

    def was_decided_elsewhere(self, session: int, seq: int) -> bool:
        """Return whether a check of this request was already decided as a forwarded or hedged
        request."""
        return self._decided_checks.knows_request(session, seq)

    def record_direct(
        self,
        sender: Sender[Caller],
        request: Request,
        batch: Batch,
        rows: list[int] | None,
        answered_at: int,
    ) -> None:
        """Store the keys of checks that a client sent directly, for deduplication."""
        session, deadline_ns = sender.identity[1], request.deadline_ms * 1_000_000
        self._decided_checks.record_request(
            session, request.seq, batch.keys, batch.costs, rows, answered_at, deadline_ns
        )

    def forward(
        self,
        sender: Sender[Caller],
        request: Request,
        part: Part,
        waited_ns: int | None = None,
    ) -> None:
        """Decide one part of a request in a task that may wait for other members, then send its
        answer."""
        running = self._running
        assert running.transport is not None
        assert running.nursery is not None
        if part.batch.op is Op.CHECK and part.batch.slot_ids:
            self._waiters.add(sender, part.batch.slot_ids)
        waited_ms = (running.transport.held_up_ns if waited_ns is None else waited_ns) // 1_000_000
        if waited_ms:
            request = replace(request, deadline_ms=max(1, request.deadline_ms - waited_ms))
        running.nursery.start_soon(self._forward, sender, request, part)

    async def _forward(self, sender: Sender[Caller], request: Request, part: Part) -> None:
        measures = self._metrics.active
        began = 0 if measures is None else measures.stopwatch()
        decide = self._decide_and_answer
        if not await self._containment.run("forwarding", decide, sender, request, part):
            self._counters.refused("internal")
            self._reply(sender, request.seq, internal_refusal(request.seq))
        if measures is not None:
            measures.forwarded_ns.add(measures.stopwatch() - began)
        self._running.on_work_done()

    async def _decide_and_answer(
        self, sender: Sender[Caller], request: Request, part: Part
    ) -> None:
        if part.results is None and sender.identity[1]:
            self._decided_checks.record_forwarded(sender.identity[1], request.seq, part.rows)
        now = sender.now()
        results = await self._handler.decide(request, part)
        if results is None:
            reply: Message = Refused(
                request.seq, ErrorCode.NOT_HERE, f"node {self._name} could not have these keys"
            )
        else:
            reply = self.answer(request, results, part.rows)
        if results is not None:
            sender.note(part.batch, results, now)
        self._reply(sender, request.seq, reply)
        if sender.session is not None and results is not None:
            self._subscriptions.on_denied_elsewhere(sender.session, part.batch, results)
            if self._handler.waits_here(part.batch):
                slots, now = self._handler.slots, self._now()
                slots.on_answered(sender.session, part.batch, results, now)

    def _reply(self, sender: Sender[Caller], seq: int, reply: Message) -> None:
        """Store the answer to a request, and send it on the sender's current connection."""
        payload = encode(reply)
        sender.remember(seq, payload)
        if sender.session is not None and self._running.transport is not None:
            sender.session.send_payload(payload)
            self._running.flush()

    def answer(self, request: Request, results: Results, rows: list[int] | None = None) -> Answer:
        """Create the answer message for some checks of a request, by index; None means all
        checks."""
        if request.batch.op is Op.REFUND:
            mark_refused(request.batch, results, rows)
        return Answer(
            request.seq,
            self._cluster.view.hash,
            self._rules.current.version,
            results,
            rows,
        )


def mark_refused(refunds: Batch, results: Results, rows: Sequence[int] | None = None) -> None:
    """Set the code `UNCHARGED` in the results of refused refunds; `rows` are the rows of `refunds`
    that have results, and None means all rows.

    The session has reduced the cost of a refused refund to 0, because the client has no charge
    here. The refund may still have been applied before: then its first result has the units.
    """
    codes, units = results.outcomes.codes, results.outcomes.slot_ids
    for place, row in enumerate(range(len(refunds)) if rows is None else rows):
        if not (refunds.costs[row] or units[place]) and codes[place] != Code.UNKNOWN_RULE:
            codes[place] = Code.UNCHARGED
