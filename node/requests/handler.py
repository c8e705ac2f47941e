"""Decisions of requests: by this node, after fetching a shard, or by another member.

Chooses the path of each frame. Only a holder of a shard decides its keys, no request waits beyond
its deadline, and a check passes at most two nodes.
"""

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from hashring import NodeId, Ring, shard_of
from node.context.containment import Containment
from node.cross_dc.split_borrowing import SplitBorrowing
from node.metrics.counters import Counters
from node.metrics.detailed import MetricsSwitch
from node.requests.deduplication import COUNTED_ONCE, DecidedChecks, repeats_within
from node.requests.leases.lease_returns import LeaseReturns
from node.requests.placement import ShardPlacement
from node.requests.request_parts import Part
from node.requests.slot_waiters import SlotWaiters
from node.requests.standby_takeover import StandbyTakeover
from node.shards.ownership.ownership import ShardOwnership
from node.shards.transfers.handoff import Handoff
from ringfence import runtime
from ringfence.limiter import Limit
from ringfence.peering.clock import Clock
from ringfence.peering.routing import Router
from ringfence.peering.target import ResultCallback
from ringfence.rules import Rule
from ringfence.wire import (
    BY_POLICY,
    Batch,
    ErrorCode,
    Op,
    Refused,
    Request,
    Results,
    Source,
    empty_results,
)

__all__ = ["RequestHandler"]

logger = logging.getLogger("ringfence.node")

_MAX_WAITING = 50_000
"""Most checks that wait for another member or a shard; more are refused."""
_OWNER_TIMEOUT_S = 0.4
"""Time-out of asking several owners for a caller that could not reach them."""
_UNDECIDED = (*BY_POLICY, Source.LOCAL)
_LIFTING = (Op.REFUND, Op.RESET)
"""Operations that may end a denial early."""
_TRIES = 3
"""How often a shard may be transferred while a request waits for it."""
_MAX_HOPS = 2
"""Most nodes that a check passes: a forwarded check may be forwarded once more."""
_RETURN_SHARE = 0.75
"""Share of the time until the caller's deadline for which a reset waits for leases."""


_NOTHING: frozenset[NodeId | None] = frozenset()
"""Members that rows of local shards wait for."""


class RequestHandler:
    """Decides the requests of one node or forwards them."""

    waiting = 0
    """Checks that wait for another member or a shard."""
    _elsewhere: Collection[bytes] = ()
    """Ids of rules that another data center decides."""
    _resumed: runtime.Event | None = None
    """Set when this node may decide again; None while it may."""
    _nursery: runtime.TaskGroup | None = None

    def __init__(
        self,
        ownership: ShardOwnership,
        handoff: Handoff,
        router: Router,
        counters: Counters,
        clock: Clock,
        rule_of: Callable[[int], Rule | None],
        decided_checks: DecidedChecks,
        containment: Containment,
        *,
        placement: ShardPlacement,
        takeover: StandbyTakeover,
        slots: SlotWaiters,
        borrowing: SplitBorrowing,
        lease_returns: LeaseReturns,
        metrics: MetricsSwitch,
        on_decided: Callable[[Batch, Results], None],
        on_freed: Callable[[Sequence[bytes]], None],
    ) -> None:
        """`on_decided` is called with every batch that this node decides, `on_freed` with the keys
        of refunds and resets."""
        self.placement = placement
        self.borrowing = borrowing
        self.slots = slots.queue
        """Checks that wait for a slot of a concurrency limit."""
        self._waiters = slots
        self._lease_returns = lease_returns
        self.takeover = takeover
        self._ownership = ownership
        self._handoff = handoff
        self.router = router
        self._counters = counters
        self._clock = clock
        self._rule_of = rule_of
        self._decided_checks = decided_checks
        self._containment = containment
        self._metrics = metrics
        self._on_decided = on_decided
        self._on_freed = on_freed

    async def run(self) -> None:
        """Run the tasks of waiting requests until cancelled."""
        async with runtime.open_task_group() as nursery:
            self._nursery = nursery
            await self._waiters.run()

    def set_remote_rules(
        self, elsewhere: Collection[bytes], split: Mapping[bytes, Limit], rings: Mapping[str, Ring]
    ) -> None:
        """Set the rules that other data centers decide, the limits that are divided by the ids of
        their rules, and the hash rings."""
        self._elsewhere = elsewhere
        self.borrowing.set_rules(split, rings)

    def waits_here(self, batch: Batch) -> bool:
        """Whether callers that wait for slots of a concurrency limit belong into this node's
        queue."""
        return bool(batch.slot_ids) and self.placement.holds(batch.keys)

    def decide_now(self, request: Request, batch: Batch) -> Results | Refused | list[Part]:
        """Decide the checks whose shards this node holds; return parts when other checks of the
        request must wait."""
        if self._resumed is not None:
            return [Part(None, batch)] if self._may_wait(batch) else _overloaded(request.seq)
        is_here = self.placement.holds(batch.keys) and not self._is_elsewhere(batch)
        is_last = request.hops >= _MAX_HOPS
        is_final = is_last or not self.borrowing.can_ask(batch)
        if is_here and is_final and not self._lease_returns.must_precede(batch):
            return self._decide(batch, as_standby=request.as_standby)
        if is_last and not (request.as_standby or self.placement.may_decide(batch)):
            return Refused(
                request.seq,
                ErrorCode.NOT_HERE,
                "this node does not own all these keys and will not forward them again: "
                "the sender has another view of the members",
            )
        return self._parts_of(request, batch)

    def _parts_of(self, request: Request, batch: Batch) -> list[Part] | Refused:
        """Decide the checks whose shards this node holds, and group the others by the members that
        must decide them. Resets wait until clients have returned their leases of the keys.

        A group of checks that are decided together waits for the members of all its checks.
        """
        is_last = request.hops >= _MAX_HOPS
        may_forward = not (request.as_standby or is_last)
        rows_by_need = self._sort_by_need(batch, may_forward=may_forward, is_last=is_last)
        here = rows_by_need.pop(_NOTHING, [])
        is_lent = self._lease_returns.must_precede(batch)
        late = len(batch) if is_lent else len(batch) - len(here)
        if late and self.waiting + late > _MAX_WAITING:
            return _overloaded(request.seq)
        parts: list[Part] = []
        if here:
            part = Part(here, batch if len(here) == len(batch) else batch.take(here))
            short: list[int] = []
            if not is_lent:
                part.results, short = self._decide_and_find_short(
                    part.batch, as_standby=request.as_standby
                )
                if is_last or not self._may_wait(batch):
                    short = []
            parts = part.split(short)
        parts += [
            Part(rows, batch if late == len(batch) == len(rows) else batch.take(rows))
            for rows in rows_by_need.values()
        ]
        if len(parts) == 1:
            parts[0].rows = None
        return parts

    def _decide_and_find_short(
        self, batch: Batch, *, as_standby: bool
    ) -> tuple[Results, list[int]]:
        """Decide a batch here; also return the rows for which other data centers should be asked.

        These are denied checks, and refunds of more units than this data center had. A standby
        borrows nothing in place of the owner. A repeated refund gives nothing back again.
        """
        is_refund = batch.op is Op.REFUND
        repeated = self._decided_checks.find(batch.ids) if is_refund else {}
        results = self._decide(batch, as_standby=as_standby)
        is_ours = self.placement.is_ours
        return results, [
            row
            for row in self.borrowing.rows_to_ask(batch, results)
            if row not in repeated and (not as_standby or is_ours(shard_of(batch.keys[row])))
        ]

    def _may_wait(self, batch: Batch) -> bool:
        return self.waiting + len(batch) <= _MAX_WAITING

    def _sort_by_need(
        self, batch: Batch, *, may_forward: bool, is_last: bool
    ) -> dict[frozenset[NodeId | None], list[int]]:
        """Sort the checks of a batch by the members that must decide them; no member stands for
        this node.

        A standby asks each owner apart, so that no check waits for another owner. It also forwards
        the checks that another data center decides.
        """
        held, routes = self._ownership.held, self.router.routes
        elsewhere = () if is_last else self._elsewhere
        sorted_: dict[frozenset[NodeId | None], list[int]] = {}
        row = 0
        for run in batch.groups or [1] * len(batch):
            keys = batch.keys[row : row + run]
            need = _NOTHING
            is_elsewhere = bool(elsewhere) and any([key[:8] in elsewhere for key in keys])
            if is_elsewhere or any([not held[shard_of(key)] for key in keys]):
                may_route = may_forward or is_elsewhere
                if routes and may_route:
                    need = frozenset(routes.owners(keys))
                else:
                    need = frozenset([None if is_last else self._holder_of(key) for key in keys])
            sorted_.setdefault(need, []).extend(range(row, row + run))
            row += run
        return sorted_

    def _holder_of(self, key: bytes) -> NodeId | None:
        return self.placement.holder_of(shard_of(key))

    async def decide(self, request: Request, part: Part) -> Results | None:
        """Decide one part of a request within the caller's deadline; return None when that is
        impossible."""
        within = request.deadline_ms / 1000
        batch = part.batch
        self.waiting += len(batch)
        until = runtime.current_time() + within
        try:
            if self._resumed is not None:
                with runtime.move_on_after(within):
                    await self._resumed.wait()
                within = until - runtime.current_time()
                if within <= 0:
                    return None
            if part.results is not None:
                rows = range(len(batch))
                await self._ask_others_and_remember(batch, rows, part.results, within)
                return part.results
            if not self._lease_returns.must_precede(batch):
                return await self._decide_later(request, batch, within)
            async with self._lease_returns.awaited(batch.keys, within * _RETURN_SHARE):
                within = until - runtime.current_time()
                return await self._decide_later(request, batch, within)
        finally:
            self.waiting -= len(batch)

    async def _decide_later(self, request: Request, batch: Batch, within: float) -> Results | None:
        """Decide a batch here, after a wait, or ask other members; None when that is impossible."""
        is_last = request.hops >= _MAX_HOPS
        if is_last or (request.as_standby and not self._is_elsewhere(batch)):
            with runtime.move_on_after(within):
                return await self._decide_here(batch, request, within)
            return None
        return await self._forward(batch, request.hops + 1, within)

    def suspend(self) -> None:
        """Stop deciding until `resume` is called; requests wait meanwhile."""
        if self._resumed is None:
            self._resumed = runtime.Event()

    def resume(self) -> None:
        """Start to decide again after `suspend`."""
        if self._resumed is not None:
            self._resumed.set()
            self._resumed = None

    def answer_timeout(self, margin: float, longest: float) -> float:
        """Return the longest permitted time-out, because the asked node is this one and no network
        is involved."""
        return longest

    def is_alive(self) -> bool:
        """Return False, because checks that this node does not decide wait for another member,
        which may be silent."""
        return False

    def ask(self, batch: Batch, *, hops: int, as_standby: bool, done: ResultCallback) -> None:
        """Decide a batch of checks that this node's router sends to this node itself."""
        if not self.placement.holds(batch.keys):
            assert self._nursery is not None
            self._nursery.start_soon(self._fetch_and_decide, batch, as_standby, done)
            return
        results, short = self._decide_and_find_short(batch, as_standby=as_standby)
        if short:
            assert self._nursery is not None
            self._nursery.start_soon(self._ask_others, batch, short, results, done)
        else:
            done(results)

    # -- here ----------------------------------------------------------------------------------

    def _decide(self, batch: Batch, *, as_standby: bool) -> Results:
        """Decide a batch of checks; a check that was already decided, hedged or forwarded, gets the
        same outcome, also if both are in this batch."""
        if batch.op not in COUNTED_ONCE or not (batch.ids or batch.op is Op.RESET):
            return self._count(batch, as_standby=as_standby)
        known = self._decided_checks.find(batch.ids)
        repeats = repeats_within(batch.ids)
        if not (known or repeats):
            return self._count_and_remember(batch, as_standby=as_standby)
        self._counters.add("repeated_checks", len(known.keys() | repeats))
        results = empty_results(len(batch))
        for index, (row, _) in known.items():
            results.put_row(index, row)
        rest = [index for index in range(len(batch)) if not (index in known or index in repeats)]
        if rest:
            part = batch.take(rest)
            results.scatter(rest, self._count_and_remember(part, as_standby=as_standby))
        for index, first in repeats.items():
            results.put_row(index, results.row(first))
        return results

    def _count_and_remember(self, batch: Batch, *, as_standby: bool) -> Results:
        """Count checks with identities, and store their outcomes for repeats of the checks."""
        now, costs, refunds = self._clock.now(), batch.costs, self._ownership.refunds
        count = partial(self._count, batch, as_standby=as_standby)
        if batch.op is Op.REFUND:
            results, costs = refunds.apply(batch, count, now)
        elif batch.op is Op.RESET:
            results, costs = refunds.reset(batch.keys, count, now), [0] * len(batch)
        else:
            results = count()
        self._remember(batch, results, costs, now)
        return results

    def _remember(self, batch: Batch, results: Results, costs: Sequence[int], now: int) -> None:
        is_refund, is_reset = batch.op is Op.REFUND, batch.op is Op.RESET
        for row, id_ in enumerate(batch.ids):
            key = batch.keys[row]
            # The owner must still apply a reset without its counters. Like a refund that removed
            # nothing, such a reset is not sent to the owner.
            shard = shard_of(key)
            is_blind = is_reset and self._ownership.is_blind(shard)
            cover = self._ownership.covers.get(shard) if is_reset else None
            self._decided_checks.remember(
                *(id_, key, costs[row], results.row(row), now),
                is_refund=is_refund or is_blind,
                is_reset=is_reset and not is_blind,
                replica_age_ns=cover.replica_age_ns(now) if cover is not None else 0,
            )

    def _count(self, batch: Batch, *, as_standby: bool) -> Results:
        now = self._clock.now()
        outcomes = self.slots.decide(batch, now)
        self.borrowing.correct_denials(batch, outcomes)
        self._ownership.record_decided(batch, outcomes, now)
        stands_in = as_standby and self.placement.is_foreign(batch)
        results = Results(
            outcomes, [Source.STANDBY if stands_in else Source.OWNER] * len(batch.keys)
        )
        self._counters.decided(batch.op, results, as_standby=stands_in)
        metrics = self._metrics.active
        if metrics is not None:
            metrics.decided(batch, results, as_standby=stands_in)
        self._on_decided(batch, results)
        if batch.op in _LIFTING:
            self._on_freed(batch.keys)
        return results

    async def _ask_others(
        self, batch: Batch, rows: Sequence[int], results: Results, done: ResultCallback
    ) -> None:
        ask = self._ask_others_and_remember
        await self._containment.run("borrowing", ask, batch, rows, results)
        done(results)

    async def _ask_others_and_remember(
        self, batch: Batch, rows: Sequence[int], results: Results, within: float = math.inf
    ) -> None:
        """Ask other data centers to allow denied checks or to take back refunded units, and store
        the denials and the outcomes.

        Meanwhile this node may have units again. A hedged request of the same check then finds the
        denial, so it spends no unit here in addition to the borrowed one.
        """
        if batch.op is Op.REFUND:
            await self.borrowing.give_back(batch, rows, results, within)
            for row in rows if batch.ids else ():
                self._decided_checks.replace_outcome(batch.ids[row], results.row(row))
            # A check may have been denied since the first part of the refund.
            self._on_freed([batch.keys[row] for row in rows])
            return
        self._remember(batch, results, batch.costs, self._clock.now())
        await self.borrowing.borrow(batch, results, within)
        self._remember(batch, results, batch.costs, self._clock.now())

    async def _fetch_and_decide(self, batch: Batch, as_standby: bool, done: ResultCallback) -> None:
        found: list[Results] = []

        async def decide() -> None:
            for tries_left in range(_TRIES, -1, -1):
                shards = self.placement.missing(batch)
                if not shards:
                    found.append(self._decide(batch, as_standby=as_standby))
                if not (shards and tries_left):
                    break
                if as_standby:
                    # The router has just asked the owner and received no answer.
                    if not await self.takeover.take_over_if_unreachable(shards):
                        continue
                    shards = self.placement.missing(batch)
                await self._handoff.acquire(shards)

        await self._containment.run("deciding", decide)
        done(found[0] if found else None)

    async def _decide_here(self, batch: Batch, request: Request, within: float) -> Results | None:
        """Decide a batch at this node, for another node or as a standby; None when that is
        impossible. `within` are the seconds until the deadline of the caller."""
        until = runtime.current_time() + within
        for tries_left in range(_TRIES, -1, -1):
            shards = self.placement.missing(batch)
            if not shards:
                decided, short = self._decide_and_find_short(batch, as_standby=request.as_standby)
                is_last = request.hops >= _MAX_HOPS
                if short and not is_last and not self.placement.is_foreign(batch):
                    within = until - runtime.current_time()
                    await self._ask_others_and_remember(batch, short, decided, within)
                return decided
            if not tries_left:
                break
            ours = [shard for shard in shards if self.placement.is_ours(shard)]
            if ours:
                await self._handoff.acquire(ours)
            elif not request.as_standby:
                return None
            else:
                hops = min(request.hops + 1, _MAX_HOPS)
                results = await self._ask_owners(batch, shards, hops)
                if results is not None:
                    return results
                await self.takeover.take_over_if_unreachable(shards)
        return None

    async def _ask_owners(self, batch: Batch, shards: Sequence[int], hops: int) -> Results | None:
        """Ask the owners of keys for a caller that could not reach them; None when an owner does
        not answer."""
        owners = dict.fromkeys([self.placement.holder_of(shard) for shard in shards])
        if len(owners) > 1:
            return await self._forward(batch, hops, _OWNER_TIMEOUT_S)
        return await self.takeover.ask_owner(next(iter(owners)), batch, hops)

    # -- elsewhere -----------------------------------------------------------------------------

    def _is_elsewhere(self, batch: Batch) -> bool:
        return bool(self._elsewhere) and any([key[:8] in self._elsewhere for key in batch.keys])

    async def _forward(self, batch: Batch, hops: int, within: float) -> Results:
        foreign = sum([not self.placement.is_ours(shard_of(key)) for key in batch.keys])
        self._counters.add("forwarded", foreign)
        results = await self.router.decide(
            batch, lambda index: self._denies_group(batch, index), hops=hops, within=within
        )
        undecided = sum(source in _UNDECIDED for source in results.sources)
        self._counters.add("undecided", undecided)
        metrics = self._metrics.active
        if undecided and metrics is not None:
            metrics.undecided(batch, results)
        return results

    def _denies_group(self, batch: Batch, index: int) -> bool:
        rule = self._rule_of(int.from_bytes(batch.keys[index][:8], "big"))
        return rule is None or not (rule.shadow or rule.quota)


def _overloaded(seq: int) -> Refused:
    return Refused(seq, ErrorCode.OVERLOADED, "too many checks wait for a peer")
