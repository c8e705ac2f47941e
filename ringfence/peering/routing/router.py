"""Router of checks: selects the member that decides, and handles members that do not answer.

Clients and forwarding nodes use the same code. The owner is asked first, then its standby, then the
rule's `on_failure` decides. Groups are all or nothing, even when their keys belong to different
owners: see `refunds`.
"""

import math
from collections.abc import Callable, Coroutine, Sequence

from msgspec.structs import astuple

from hashring import shard_of
from ringfence import runtime
from ringfence.limiter import Outcome
from ringfence.peering.routing.failure_policy import FailurePolicy
from ringfence.peering.routing.hedging import (
    MIN_MARGIN,
    HedgingBudget,
    hedging_delay,
    may_hedge,
)
from ringfence.peering.routing.pending_request import MemberRequest, PendingRequest
from ringfence.peering.routing.refunds import Refunds
from ringfence.peering.routing.routes import Routes
from ringfence.peering.routing.stale_view_retry import owner_parts, retry_parts
from ringfence.peering.target import PendingCheck, SingleCheckTarget, StartedCheck, TimedOut
from ringfence.wire import Batch, Op, OutcomeRow, Results, Source

__all__ = ["Router"]


class Router:
    """Sends each check of a batch to the member that decides its key, and collects the results."""

    def __init__(
        self,
        policy: FailurePolicy,
        *,
        retries: bool = False,
        hedge_after: float | None = None,
        undecided: Callable[[bytes, int, int], None] | None = None,
    ) -> None:
        """With `retries`, a new owner is asked when the members changed during a request. Nodes use
        this, because they receive changes before their callers.

        When an owner takes much longer than its usual round trips, or longer than `hedge_after`
        seconds, its standby is asked as well, within the hedging budget. The owner may still
        answer. Both requests have the same identity, so that nodes count the check once. The
        standby of an owner that is known to be lost needs no budget.

        `undecided` receives key, code and source of each check that the failure policy decided.
        """
        self.hedging = HedgingBudget()
        """Hedging budget, which counts the checks and the hedged checks."""
        self.routes: Routes | None = None
        """Current routes. None until the members are known; until then the failure policy
        decides."""
        self._refunds = Refunds(policy, lambda: self.routes)
        self._last_group: PendingRequest | None = None
        """Last completed request with several checks, some of which its caller may refund."""
        self._fallback = policy.decide
        self._undecided = undecided
        self._hedge_after = hedge_after
        self._attempts = (False, False, True) if retries else (False, True)
        """Whether each attempt asks standbys."""
        self._targets: list[SingleCheckTarget | None] = []
        """Targets that single checks can join, by shard."""
        self._targets_of: Routes | None = None
        """The routes from which `_targets` was made."""

    def ask(
        self, key: bytes, cost: int, within: float | None
    ) -> Coroutine[object, object, OutcomeRow]:
        """Decide a single check, which is sent in one frame with others; this is the most frequent
        path.

        Await the result immediately, before another check is asked. After `within` seconds, when
        given, the failure policy decides. Raises `AccessDenied` when a member refuses to decide.
        """
        pending = self._join(key, cost, within)
        if pending is None:
            return self.ask_again(key, cost, None, None, within)
        return pending.wait(self, within)

    def start(self, key: bytes, cost: int, within: float | None, check: StartedCheck) -> bool:
        """Decide a single check as `ask` does, but pass the answer to `check` instead of a task.

        Returns False when the check cannot share a frame with others; then the caller uses `ask`.
        """
        pending = self._join(key, cost, within)
        if pending is None:
            return False
        pending.add_callback(check, self, within)
        return True

    def _join(self, key: bytes, cost: int, within: float | None) -> PendingCheck | None:
        """Add a single check to the next frame to its owner; return None when that is
        impossible."""
        routes = self.routes
        if routes is None:
            return None
        if routes is not self._targets_of:
            self._targets = routes.single_check_targets()
            self._targets_of = routes
        target = self._targets[shard_of(key)]
        if target is None:
            return None
        wait = within
        if self._hedge_after is not None:
            delay = target.answer_timeout(MIN_MARGIN, self._hedge_after)
            if within is None or delay < within:
                wait = delay
        pending = target.join(key, cost, wait)
        if pending is not None:
            self.hedging.checks += 1
        return pending

    async def ask_again(
        self,
        key: bytes,
        cost: int,
        asked: PendingCheck | None,
        late: TimedOut | None,
        within: float | None,
    ) -> OutcomeRow:
        """Decide a single check that was not sent with others, or whose owner has not answered yet.

        `asked` is the check as it was sent, and `late` its time-out; they are None when the owner
        failed. Raises `AccessDenied` when a member refuses to decide.
        """
        if late is not None and late.is_shed:
            await runtime.checkpoint()  # The caller may check in a loop, and has not waited yet.
            outcome, source = self._decide_here(Batch(Op.CHECK, [key], [cost]), 0, is_shed=True)
            return (*astuple(outcome), source)
        now = runtime.current_time()
        asked_at = now if asked is None else asked.asked_at
        pending = PendingRequest(Batch(Op.CHECK, [key], [cost]), asked_at)
        attempts: Sequence[bool] = self._attempts if asked is None else self._attempts[1:]
        if late is not None:
            owner = self._targets[shard_of(key)] if self._targets else None
            request = pending.add_request(pending.batch, pending.missing, owner)
            request.sent, request.first_row = late.sent, late.row
            if late.is_given_up:
                request.resolve(None)
            late.when_answered(request.resolve)
            pending.collect()
        if not pending.shed and (within is None or asked_at + within > now):
            left = None if within is None else asked_at + within - now
            previous = None if asked is None else self._targets_of
            await self._decide(pending, attempts, 0, previous, left)
        self._complete(pending, _denies_group)
        if pending.results.refusal is not None:
            raise pending.results.refusal
        return pending.results.row(0)

    async def decide(
        self,
        batch: Batch,
        denies_group: Callable[[int], bool],
        *,
        hops: int = 0,
        within: float | None = None,
    ) -> Results:
        """Decide every check of a batch, by the key's owner, a standby or the failure policy; never
        raises.

        When a member refuses to decide, no standby is asked and `Results.refusal` is set.
        `denies_group` returns whether the denial of a row denies the rest of its group. With
        `hops`, this node decides for another process, which refunds the charges of a denied group.
        After `within` seconds the failure policy decides the remaining rows. All charges of a
        cancelled call are refunded.
        """
        pending = PendingRequest(batch, runtime.current_time())
        await self._decide(pending, self._attempts, hops, None, within)
        self._complete(pending, denies_group, hops)
        if len(batch) > 1:
            self._last_group = pending
        return pending.results

    def refund(self, batch: Batch, rows: Sequence[int], results: Results, asked_at: float) -> None:
        """Refund the charges that `rows` of a batch have just made, without waiting; see
        `Refunds.refund`.

        If `decide` has just returned the results, the refunds are sent to the members that answered
        the checks.
        """
        pending = self._last_group
        if pending is not None and pending.results is results:
            self._refunds.refund_answered(pending, rows)
        else:
            self._refunds.refund(batch, rows, results, asked_at)

    async def _decide(
        self,
        pending: PendingRequest,
        attempts: Sequence[bool],
        hops: int,
        previous: Routes | None,
        within: float | None,
    ) -> None:
        try:
            if within is None:
                await self._ask_members(pending, attempts, hops, previous)
            else:
                with runtime.move_on_after(within):
                    await self._ask_members(pending, attempts, hops, previous)
        except BaseException:
            self._refunds.cancel(pending)
            raise

    async def _ask_members(
        self,
        pending: PendingRequest,
        attempts: Sequence[bool],
        hops: int,
        previous: Routes | None,
    ) -> None:
        """Ask the owners of the keys; then ask the standbys, or the new owners, for the missing
        results.

        `previous` are the routes by which the owners were already asked.
        """
        if pending.requests and await self._await_owner(pending):
            return
        for as_standby in attempts:
            routes = self.routes
            if routes is None or (routes is previous and not as_standby):
                continue
            if as_standby:
                parts = retry_parts(routes, previous, pending)
            else:
                self.hedging.checks += len(pending.without_shed(pending.missing))
                parts = owner_parts(routes, pending)
            previous = routes
            requests = pending.send(parts, hops)
            if self._hedge_after is None or as_standby or pending.batch.op is not Op.CHECK:
                await pending.wait(requests)
            else:
                with runtime.move_on_after(hedging_delay(requests, self._hedge_after)):
                    await pending.wait(requests)
                await self._wait_unless_hedged(pending, requests)
            pending.collect()
            if not pending.missing or pending.results.refusal is not None:
                return
        if self._hedge_after is not None:
            await pending.wait(pending.requests)  # An answer of a slow owner is better than none.
            pending.collect()
        # This loop may not have waited at all. Other tasks, which reconnect for example, must run
        # even when a caller checks in a loop.
        await runtime.checkpoint()

    async def _await_owner(self, pending: PendingRequest) -> bool:
        """Wait for an owner that was already asked; return whether it answered in time."""
        requests = pending.requests
        until = math.inf
        if self._hedge_after is not None:
            until = pending.asked_at + hedging_delay(requests, self._hedge_after)
        with runtime.move_on_after(until - runtime.current_time()):
            await pending.wait(requests)
        await self._wait_unless_hedged(pending, requests)
        pending.collect()
        return not pending.missing or pending.results.refusal is not None

    async def _wait_unless_hedged(
        self, pending: PendingRequest, requests: Sequence[MemberRequest]
    ) -> None:
        if not may_hedge(requests, self.routes, self.hedging):
            await pending.wait(requests)

    def _complete(
        self, pending: PendingRequest, denies_group: Callable[[int], bool], hops: int = 0
    ) -> None:
        """Decide the checks without results by the failure policy, and refund groups that one
        member denied."""
        batch = pending.batch
        pending.collect()
        results = pending.results
        if pending.missing:
            pending.shed_rows_of_busy_members()
        for row in pending.missing:
            is_refused = results.refusal is not None
            is_shed = row in pending.shed
            results.put(row, *self._decide_here(batch, row, is_shed=is_shed, is_refused=is_refused))
        if batch.op is not Op.CHECK:
            return
        if batch.groups:
            self._refunds.undo_denied_groups(pending, denies_group, is_forwarded=hops > 0)
        self._refunds.refund_when_late(pending)

    def _decide_here(
        self, batch: Batch, row: int, *, is_shed: bool, is_refused: bool = False
    ) -> tuple[Outcome, Source]:
        """Decide a check that no member decided by the failure policy."""
        outcome, source = self._fallback(batch, row)
        if is_shed and source is Source.POLICY:
            source = Source.SHED
        if self._undecided is not None and batch.op is Op.CHECK and not is_refused:
            self._undecided(batch.keys[row], outcome.code.value, source.value)
        return outcome, source


def _denies_group(row: int) -> bool:
    """Return True, because a single check is a group of its own."""
    return True
