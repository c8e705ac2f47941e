"""Refunds of charges of requests that were not allowed as a whole.

When one member denies a group, the first sender refunds the charges of the other members. A charge
may be reported after the caller got its decision, or after the call was cancelled. Such a charge is
refunded at once.

A member that could not decide itself may have asked the owner, so its answer has the source
`OWNER` although the sender does not reach the owner. Therefore a refund is sent to the member that
has answered the check.
"""

from collections.abc import Callable, Sequence
from functools import partial

from ringfence import runtime
from ringfence.errors import AccessDenied
from ringfence.limiter import NS_PER_SECOND, Algorithm, Code, Limit
from ringfence.peering.routing.failure_policy import FailurePolicy
from ringfence.peering.routing.pending_request import BY_MEMBER, MemberRequest, PendingRequest
from ringfence.peering.routing.routes import Routes, split_by_member
from ringfence.peering.target import Shed
from ringfence.wire import Batch, CheckId, Op, Results, Source, empty_results

__all__ = ["Refunds", "age_ns_of"]

_LAST_CHARGED = Code.OVER_SOFT
"""Codes up to this one mean that the check was charged."""
_CHARGING = (*BY_MEMBER, Source.LOCAL)
"""Sources of results whose charges can be refunded."""
_DENIALS = (Code.DENIED, Code.NEVER)
_REFUND_SESSION = 1 << 63
"""Bit that is different in the session of a check and in that of its refund. Sessions are random
numbers of 64 bits, so no other request has the changed one."""
_LATER_NS = 50_000_000
"""Longest allowance for a refund that takes longer to arrive than its check took. A refund of the
previous window would be without effect, so the allowance is at most as long as the check took."""


class Refunds:
    """Sender of refunds to the member, or to the engine in this process, that counted the
    charge."""

    def __init__(self, policy: FailurePolicy, routes: Callable[[], Routes | None]) -> None:
        self._policy = policy
        self._routes = routes

    def refund(self, batch: Batch, rows: Sequence[int], results: Results, asked_at: float) -> None:
        """Refund the charges that the checks in `rows` of a batch have just made, without waiting
        for an answer.

        `asked_at` is the time of the check by `runtime.current_time`: the owner refunds nothing to
        a window that began after it.
        """
        self._refund(batch, rows, results, asked_at, lambda _: None)

    def _refund(
        self,
        batch: Batch,
        rows: Sequence[int],
        results: Results,
        asked_at: float,
        answered_by: Callable[[int], MemberRequest | None],
    ) -> None:
        """Refund charges as `refund` does; `answered_by` returns the request that a member has
        answered with the result of a row, or None when that is not known."""
        charged: dict[tuple[int, MemberRequest | None], list[int]] = {}
        for row in rows:
            source = results.sources[row]
            if batch.costs[row] and source in _CHARGING:
                charged.setdefault((source, answered_by(row)), []).append(row)
        passed_ns = max(0, round((runtime.current_time() - asked_at) * NS_PER_SECOND))
        for (source, request), found in charged.items():
            taken = batch.take(found)
            refund = Batch(
                Op.REFUND,
                taken.keys,
                taken.costs,
                limits=taken.limits,
                which=taken.which,
                ages_ns=[age_ns_of(self._policy.limit_of(batch, row), passed_ns) for row in found],
                slot_ids=[results.outcomes.slot_ids[i] for i in found],
                ids=[_id_of_refund(check) for check in taken.ids],
            )
            self._send(refund, source, request)

    def _send(self, refund: Batch, source: int, request: MemberRequest | None) -> None:
        routes = self._routes()
        every = range(len(refund))
        if source == Source.LOCAL:
            for row in every:
                self._policy.decide(refund, row)
        elif request is not None and _is_sent(refund, request):
            return
        elif routes is not None:
            as_standby = source == Source.STANDBY
            for rows, target in split_by_member(routes, refund, every, as_standby=as_standby):
                part = refund.take(rows)
                target.ask(part, hops=0, as_standby=as_standby, done=_ignore)

    def undo_denied_groups(
        self, pending: PendingRequest, denies_group: Callable[[int], bool], *, is_forwarded: bool
    ) -> None:
        """Refund the charges of a group at one member when another member denied the group.

        A node that decides for another process (`is_forwarded`) refunds only what its failure
        policy has counted. The other process may have asked a second node, which allows the same
        charge. So that process refunds the charges of members, by the answer that it uses.
        """
        batch, columns = pending.batch, pending.results.outcomes
        codes, sources = columns.codes, pending.results.sources
        if max(codes, default=0) <= _LAST_CHARGED:
            return
        undone: list[int] = []
        start = 0
        for run in batch.groups:
            rows = range(start, start + run)
            start += run
            if any(
                codes[i] == Code.UNKNOWN_RULE or (codes[i] in _DENIALS and denies_group(i))
                for i in rows
            ):
                undone += [
                    i
                    for i in rows
                    if codes[i] <= _LAST_CHARGED and not (is_forwarded and sources[i] in BY_MEMBER)
                ]
        if undone:
            self.refund_answered(pending, undone)
        pending.mark_refunded(undone)
        for row in undone:
            codes[row] = Code.UNCHARGED
            columns.remaining[row] += batch.costs[row]
            columns.delay_ns[row] = columns.slot_ids[row] = 0

    def cancel(self, pending: PendingRequest) -> None:
        """Refund all charges of a cancelled call, including those that are reported later."""
        batch = pending.batch
        if batch.op is not Op.CHECK:
            return
        pending.collect()
        results = pending.results
        charged = [i for i in range(len(batch)) if results.outcomes.codes[i] <= _LAST_CHARGED]
        self.refund_answered(pending, charged)
        pending.mark_refunded(charged)
        pending.results = empty_results(len(batch))
        self.refund_when_late(pending)

    def refund_answered(self, pending: PendingRequest, rows: Sequence[int]) -> None:
        """Refund the charges of some rows of a request at the members that answered them, without
        waiting for an answer."""
        self._refund(
            *(pending.identified(), rows, pending.results, pending.asked_at, pending.answered_by)
        )

    def refund_when_late(self, pending: PendingRequest) -> None:
        """Refund the charges that only late answers to a batch report; see `_refund_late`."""
        for request in pending.requests:
            if request.results is None and request.refusal is None:
                request.on_late = partial(self._refund_late, pending, request)

    def _refund_late(self, pending: PendingRequest, request: MemberRequest, late: Results) -> None:
        """Refund late charges of checks that were not allowed, and slots that no caller holds.

        Each row is refunded at most once, since all answers to a check report the same charge. A
        check that the failure policy allowed stays counted, although its answer is late.
        """
        codes, slots = late.outcomes.codes, late.outcomes.slot_ids
        final = pending.results.outcomes
        places = [
            place
            for place, row in enumerate(request.rows)
            if codes[place] <= _LAST_CHARGED
            and row not in pending.refunded
            and (final.codes[row] > _LAST_CHARGED or slots[place] != final.slot_ids[row])
        ]
        pending.refunded.update([request.rows[place] for place in places])
        if places:
            batch = pending.identified(request)
            self._refund(batch, places, late, pending.asked_at, lambda _: request)


def _id_of_refund(check: CheckId) -> CheckId:
    """Return the identity of the refund of a check, so that the owner applies it once.

    The client and a node that has forwarded the check may both refund it.
    """
    session, seq, row = check
    return (session ^ _REFUND_SESSION, seq, row) if seq else check


def age_ns_of(limit: Limit | None, passed_ns: int) -> int:
    """Return the longest possible time since a charge, in ns, for a refund that is sent `passed_ns`
    after its check.

    The owner subtracts it from the time when the refund arrives. The result includes an allowance,
    so that a refund that takes a little longer than its check still finds the charge.
    """
    if limit is not None and limit.algorithm is Algorithm.SLIDING_WINDOW_LOG:
        return limit.refund_age_ns(passed_ns)
    return passed_ns + min(passed_ns, _LATER_NS)


def _is_sent(refund: Batch, request: MemberRequest) -> bool:
    """Send a refund to the member that has answered a request; return whether that is possible.

    A lost link answers None at once, and sends nothing.
    """
    if request.target is None:
        return False
    answers: list[Results | AccessDenied | Shed | None] = []
    sent = request.target.ask(refund, hops=0, as_standby=request.as_standby, done=answers.append)
    return sent is not None or answers != [None]


def _ignore(answer: Results | AccessDenied | Shed | None) -> None:
    """Do nothing with the results of a refund, which its caller does not need."""
