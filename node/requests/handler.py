"""From a frame to its verdicts: here, after fetching a shard, or by the member that decides it.

Decides for each frame which of these it takes, so that only a holder of a shard decides, nobody
waits beyond the asker's deadline, and a check passes at most two nodes.
"""

import logging
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import inf

from hashring import NodeId, Ring, pick, shard_of, shards_of
from node.containment import Containment
from node.cross_dc.split_borrowing import SplitBorrowing
from node.metrics.counters import Counters
from node.metrics.detailed import Metrics
from node.requests.client_leases import Lender
from node.requests.deduplication.decided_checks import COUNTED_ONCE, DecidedChecks
from node.requests.request_parts import Part
from node.requests.sessions.node_api import Caller
from node.shards.handoff import Handoff
from node.shards.ownership import ShardOwnership
from ringfence import runtime
from ringfence.errors import AccessDenied
from ringfence.limiter import Code, Engine, Outcomes
from ringfence.peering.clock import Clock
from ringfence.peering.engine_choice import decide_by
from ringfence.peering.link import Link
from ringfence.peering.routing import Router, Routes
from ringfence.peering.slot_queue import MOST_PER_CONNECTION, MOST_WAITERS, SlotQueue
from ringfence.peering.target import ResultCallback, Shed
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

__all__ = ["RequestHandler", "NodeRoutes"]

logger = logging.getLogger("ringfence.node")

_MOST_WAITING = 50_000
"""Checks that wait for a peer or a shard at once; more are refused."""
_OWNER_SILENT_S = 0.1
"""Seconds without a sign of life after which an owner that was asked counts as unreachable."""
_LOOKS = 4
"""Steps in which a standby waits for that silence. A standby that was stopped itself resumes with
one step overdue, and reads the owner's messages before the next step ends."""
_RETURNED_NS = 500_000_000
"""Time for which a member that was stopped and is back counts as reachable although its link is
still lost or membership still doubts it: both are about the time before."""
_CURRENT_NS = 20_000_000
"""Longest wait of the present datagram for which a node counts as up to date with its socket."""
_OWNER_TIMEOUT_S = 0.4
"""Time-out of asking several owners of one frame, for a caller that could not reach them."""
_UNDECIDED = (*BY_POLICY, Source.LOCAL)
_LIFTING = (Op.REFUND, Op.RESET)
"""Operations that may end a denial early."""
_TRIES = 3
"""How often a shard may be given away while a frame waits for it."""
_LEAST_WAIT_S = 0.01
"""Seconds between two looks at slots whose time has ended."""
_MOST_HOPS = 2
"""A node that is asked by another one may pass the check on once: to who has the shard by now."""


_NOTHING: frozenset[NodeId | None] = frozenset()
"""Members that rows of shards held here wait for: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRoutes(Routes):
    """Routes as a node knows them: it also knows what it holds itself, and what is on its way."""

    me: NodeId
    is_here: Callable[[int], bool]
    """Whether a shard is held here, or should be."""
    holder_of: Callable[[int], NodeId | None]

    def owner(self, key: bytes) -> NodeId | None:
        """Name the member that decides a key."""
        if key[:8] in self.elsewhere:
            return Routes.owner(self, key)
        shard = shard_of(key)
        owner = self.me if self.is_here(shard) else Routes.owner(self, key)
        return (self.holder_of(shard) or owner) if owner == self.me else owner

    def owners(self, keys: Sequence[bytes]) -> list[NodeId | None]:
        """Name the member that decides each key."""
        return [self.owner(key) for key in keys]


class Reply:
    """Answer of another member to a batch, which a task can wait for."""

    def __init__(self) -> None:
        self.value: Results | AccessDenied | Shed | None = None
        self.event = runtime.Event()

    def resolve(self, answer: Results | AccessDenied | Shed | None) -> None:
        """Set the answer; later ones are ignored."""
        if not self.event.is_set():
            self.value = answer
            self.event.set()


class RequestHandler:
    """Decides frames for one node."""

    def __init__(
        self,
        me: NodeId,
        engine: Engine,
        holdings: ShardOwnership,
        handoff: Handoff,
        router: Router,
        counters: Counters,
        clock: Clock,
        link_to: Callable[[NodeId], Link | None],
        rule_of: Callable[[int], Rule | None],
        admitted: Callable[[Batch, Results], None],
        is_suspect: Callable[[NodeId], bool],
        decided_checks: DecidedChecks,
        containment: Containment,
    ) -> None:
        """`admitted` is called with every batch decided here; `is_suspect` returns whether
        membership suspects a member."""
        self.borrowing = SplitBorrowing(link_to, clock.now, counters)
        self.ring = Ring.of(())
        """Where counters should be."""
        self.elsewhere: Collection[bytes] = ()
        """Ids of rules that another data center decides."""
        self.waiting = 0
        """Checks that wait for somebody else."""
        self.lifted: Callable[[Sequence[bytes]], None] | None = None
        """Told of keys that were given something back."""
        self.lender: Lender[Caller] | None = None
        """Whoever counts what is lent, when clients may borrow."""
        self.slots: SlotQueue[Caller] = SlotQueue(
            self._by_engine,
            rule_of,
            self._call_waiters,
            self._wake_slots,
            most_of=_most_waiters_of,
        )
        """Checks that wait for a slot of a concurrency limit."""
        self.call_waiters: Callable[[Caller, list[int]], None] | None = None
        """Tells a caller that slots are kept for its waiters."""
        self._earlier = runtime.Event()
        self.measures: Metrics | None = None
        """Told of every decision, when an operator looks."""
        self.lag_ns: Callable[[], int] = lambda: 0
        """Returns for how long the present datagram waited in the socket, in ns."""
        self._me = me
        self._engine = engine
        self._holdings = holdings
        self._handoff = handoff
        self._router = router
        self._counters = counters
        self._clock = clock
        self._link_to = link_to
        self._rule_of = rule_of
        self._admitted = admitted
        self._is_suspect = is_suspect
        self._decided_checks = decided_checks
        self._returned_at: dict[NodeId, int] = {}
        """When each member that was stopped last asked what was taken over, in ns."""
        self._resumed: runtime.Event | None = None
        """Set when this node may decide again; None while it may."""
        self._containment = containment
        self._nursery: runtime.TaskGroup | None = None

    async def run(self) -> None:
        """Own the tasks of frames that wait, until cancelled."""
        async with runtime.open_task_group() as nursery:
            self._nursery = nursery
            await self._containment.supervise("slots", self._watch_slots)

    async def _watch_slots(self) -> None:
        """Call waiters when the time of slots has ended."""
        while True:
            self._earlier = runtime.Event()
            due = self.slots.next_deadline()
            wait_s = math.inf if due is None else max(_LEAST_WAIT_S, self._seconds_until(due))
            with runtime.move_on_after(wait_s):
                await self._earlier.wait()
            self.slots.tick(self._clock.now())

    def _seconds_until(self, instant: int) -> float:
        return (instant - self._clock.now()) / 1e9

    def _wake_slots(self) -> None:
        self._earlier.set()

    def _call_waiters(self, session: Caller, tickets: list[int]) -> None:
        if self.call_waiters is not None:
            self.call_waiters(session, tickets)

    def waits_here(self, batch: Batch) -> bool:
        """Whether the waiters of a batch that has been decided belong into this node's queue."""
        return bool(batch.leases) and self._has_all(batch.keys)

    def decide_now(self, request: Request, batch: Batch) -> Results | Refused | list[Part]:
        """Decide the rows that are held here; return parts when some rows must wait."""
        if self._resumed is not None:
            return [Part(None, batch)] if self._may_wait(batch) else _overloaded(request.seq)
        is_here = self._has_all(batch.keys) and not self._is_elsewhere(batch)
        if is_here and (request.hops >= _MOST_HOPS or not self.borrowing.may_help(batch)):
            return self._decide(batch, as_standby=request.as_standby)
        is_last = request.hops >= _MOST_HOPS
        if is_last and not (request.as_standby or self._may_decide(batch)):
            return Refused(
                request.seq,
                ErrorCode.NOT_HERE,
                f"node {self._me} does not own all these keys and will not forward them again: "
                "whoever asked sees other members",
            )
        return self._parts_of(request, batch)

    def _parts_of(self, request: Request, batch: Batch) -> list[Part] | Refused:
        """Decide the rows that are held here, and sort the others by what they wait for.

        A group waits as a whole for all that one of its rows waits for.
        """
        may_forward = not (request.as_standby or request.hops >= _MOST_HOPS)
        rows_by_need = self._sort_by_need(batch, may_forward=may_forward)
        here = rows_by_need.pop(_NOTHING, [])
        late = len(batch) - len(here)
        if late and self.waiting + late > _MOST_WAITING:
            return _overloaded(request.seq)
        parts: list[Part] = []
        if here:
            part = Part(here, batch if not late else batch.take(here))
            part.verdicts = self._decide(part.batch, as_standby=request.as_standby)
            may_borrow = may_forward and self._may_wait(batch)
            short = self.borrowing.short(part.batch, part.verdicts) if may_borrow else []
            parts = part.split(short)
        parts += [
            Part(rows, batch if late == len(batch) == len(rows) else batch.take(rows))
            for rows in rows_by_need.values()
        ]
        if len(parts) == 1:
            parts[0].rows = None
        return parts

    def _may_wait(self, batch: Batch) -> bool:
        return self.waiting + len(batch) <= _MOST_WAITING

    def _sort_by_need(
        self, batch: Batch, *, may_forward: bool
    ) -> dict[frozenset[NodeId | None], list[int]]:
        """Sort rows by the members that their groups wait for; those held here wait for none."""
        held, routes = self._holdings.held, self._router.routes
        elsewhere = self.elsewhere if may_forward else ()
        sorted_: dict[frozenset[NodeId | None], list[int]] = {}
        row = 0
        for run in batch.groups or [1] * len(batch):
            keys = batch.keys[row : row + run]
            need = _NOTHING
            if any([key[:8] in elsewhere or not held[shard_of(key)] for key in keys]):
                need = frozenset(routes.owners(keys) if routes and may_forward else [None])
            sorted_.setdefault(need, []).extend(range(row, row + run))
            row += run
        return sorted_

    async def decide(self, request: Request, part: Part) -> Results | None:
        """Decide whatever it takes, inside the asker's deadline; None when it cannot be."""
        within = request.deadline_ms / 1000
        batch = part.batch
        self.waiting += len(batch)
        began = runtime.current_time()
        try:
            if self._resumed is not None:
                with runtime.move_on_after(within):
                    await self._resumed.wait()
                within -= runtime.current_time() - began
                if within <= 0:
                    return None
            if part.verdicts is not None:
                with runtime.move_on_after(within):
                    await self.borrowing.borrow(batch, part.verdicts)
                return part.verdicts
            if request.as_standby or request.hops >= _MOST_HOPS:
                with runtime.move_on_after(within):
                    return await self._decide_here(batch, request)
                return None
            return await self._forward(batch, request.hops + 1, within)
        finally:
            self.waiting -= len(batch)

    def taken_over_from(self, owner: NodeId) -> list[int]:
        """Return the shards taken over from a member that was stopped and asks for them.

        It decides again by this answer, so what this node noticed of it before counts no more:
        only a new silence has further shards taken over.
        """
        self._returned_at[owner] = self._clock.now()
        return self._holdings.covered_for(owner)

    def suspend(self) -> None:
        """Stop deciding until `resume`; requests wait meanwhile."""
        if self._resumed is None:
            self._resumed = runtime.Event()

    def resume(self) -> None:
        """Decide again."""
        if self._resumed is not None:
            self._resumed.set()
            self._resumed = None

    def answer_timeout(self, margin: float, longest: float) -> float:
        """See `Target`: no network is in between."""
        return longest

    def is_alive(self) -> bool:
        """See `Target`: rows that are not decided here wait for another member."""
        return False

    def ask(self, batch: Batch, *, hops: int, as_standby: bool, done: ResultCallback) -> None:
        """Be the target of the own router: it sends us what is ours by the ring."""
        if not self._has_all(batch.keys):
            assert self._nursery is not None
            self._nursery.start_soon(self._fetch_and_decide, batch, as_standby, done)
            return
        verdicts = self._decide(batch, as_standby=as_standby)
        if Code.DENIED in verdicts.outcomes.codes and self.borrowing.may_help(batch):
            assert self._nursery is not None
            self._nursery.start_soon(self._borrow, batch, verdicts, done)
        else:
            done(verdicts)

    def is_here(self, shard: int) -> bool:
        """Whether a shard is held here, or should be."""
        return bool(self._holdings.held[shard]) or self._is_ours(shard)

    def holder_of(self, shard: int) -> NodeId | None:
        """Name the other member that has a shard which is not here; None when it is or should be.

        A member that joins has some of our shards before anybody else asks it for them, and those
        of one that leaves are with others while it is asked still.
        """
        if self._holdings.held[shard]:
            return None
        taker = self._holdings.transfers.moved_to(shard, self._clock.now())
        if taker is None and self.ring.owner_by_shard and not self._is_ours(shard):
            taker = self.ring.owner(shard)
        return taker

    def holds(self, keys: Sequence[bytes]) -> bool:
        """Whether the shards of all these keys are held here."""
        return self._has_all(keys)

    def may_lend(self, key: bytes) -> bool:
        """Whether this node is the one that decides a key, and stands in for nobody."""
        shard = shard_of(key)
        holdings = self._holdings
        is_whole = bool(holdings.held[shard]) and holdings.cover_of(shard) is None
        return is_whole and self._is_ours(shard)

    # -- here ----------------------------------------------------------------------------------

    def _decide(self, batch: Batch, *, as_standby: bool) -> Results:
        """Decide a batch; a row that was decided on another path gets the same outcome."""
        if not batch.ids or batch.op not in COUNTED_ONCE:
            return self._count(batch, as_standby=as_standby)
        known = self._decided_checks.find(batch.ids)
        if known:
            self._counters.add("repeated_checks", len(known))
            verdicts = empty_results(len(batch))
            for index, (row, _) in known.items():
                verdicts.put_row(index, row)
            rest = [index for index in range(len(batch)) if index not in known]
            if rest:
                verdicts.scatter(rest, self._count(batch.take(rest), as_standby=as_standby))
        else:
            verdicts, rest = self._count(batch, as_standby=as_standby), list(range(len(batch)))
        now = self._clock.now()
        for index in rest:
            self._decided_checks.remember(
                batch.ids[index], batch.keys[index], batch.costs[index], verdicts.row(index), now
            )
        return verdicts

    def _count(self, batch: Batch, *, as_standby: bool) -> Results:
        now = self._clock.now()
        outcomes = self.slots.decide(batch, now)
        self._holdings.record_decided(batch, outcomes, now)
        stands_in = as_standby and self._stands_in(batch)
        verdicts = Results(
            outcomes, [Source.STANDBY if stands_in else Source.OWNER] * len(batch.keys)
        )
        self._counters.decided(batch.op, verdicts, as_standby=stands_in)
        if self.measures is not None:
            self.measures.decided(batch, verdicts, as_standby=stands_in)
        self._admitted(batch, verdicts)
        if self.lifted is not None and batch.op in _LIFTING:
            self.lifted(batch.keys)
        return verdicts

    def _by_engine(self, batch: Batch, now: int) -> Outcomes:
        if self.lender is None:
            return decide_by(self._engine, batch, now)
        return self.lender.decide(batch, now)

    def _stands_in(self, batch: Batch) -> bool:
        owners = self.ring.owner_by_shard
        return any([not owners or owners[shard_of(key)] != self._me for key in batch.keys])

    async def _borrow(self, batch: Batch, verdicts: Results, done: ResultCallback) -> None:
        await self._containment.run("borrowing", self.borrowing.borrow, batch, verdicts)
        done(verdicts)

    async def _fetch_and_decide(self, batch: Batch, as_standby: bool, done: ResultCallback) -> None:
        found: list[Results] = []

        async def decide() -> None:
            for _ in range(_TRIES):
                shards = self._missing(batch)
                if not shards:
                    found.append(self._decide(batch, as_standby=as_standby))
                    break
                if as_standby:
                    # The router has just asked the owner, in vain.
                    if not await self._take_over_if_unreachable(shards):
                        continue
                    shards = self._missing(batch)
                await self._handoff.acquire(shards)

        await self._containment.run("deciding", decide)
        done(found[0] if found else None)

    async def _decide_here(self, batch: Batch, request: Request) -> Results | None:
        """Decide what another node or a standby's caller insists on having decided here."""
        for _ in range(_TRIES):
            shards = self._missing(batch)
            if not shards:
                return self._decide(batch, as_standby=request.as_standby)
            ours = [shard for shard in shards if self._is_ours(shard)]
            if ours:
                await self._handoff.acquire(ours)
            elif not request.as_standby:
                return None
            else:
                hops = min(request.hops + 1, _MOST_HOPS)
                verdicts = await self._ask_owners(batch, shards, hops)
                if verdicts is not None:
                    return verdicts
                await self._take_over_if_unreachable(shards)
        return None

    async def _ask_owners(self, batch: Batch, shards: Sequence[int], hops: int) -> Results | None:
        """Ask the owners for a caller that could not; None when one does not answer."""
        owners = dict.fromkeys([self.holder_of(shard) for shard in shards])
        if len(owners) > 1:
            return await self._forward(batch, hops, _OWNER_TIMEOUT_S)
        owner = next(iter(owners))
        link = None if owner is None else self._link_to(owner)
        if owner is None or link is None or await self._is_unreachable(owner):
            return None
        reply = self._new_reply()
        link.ask(batch, hops=hops, as_standby=False, done=reply.resolve)
        steps = 0
        while not await self._is_answered(reply, _OWNER_SILENT_S / _LOOKS):
            steps += 1
            if steps > 1 and self._is_silent(owner, link):
                return None
        return reply.value if isinstance(reply.value, Results) else None

    async def _take_over_if_unreachable(self, shards: Sequence[int]) -> bool:
        """Take over shards whose owners are unreachable; return whether they are.

        An owner that is reachable has refused because the shard moves. This node then waits for a
        moment, until it knows the new holder.
        """
        if await self._are_unreachable(shards):
            self._take_over(shards)
            return True
        await self._is_answered(self._new_reply(), _OWNER_SILENT_S / _LOOKS)
        return False

    async def _are_unreachable(self, shards: Sequence[int]) -> bool:
        """Return whether this node itself finds the owners of all `shards` unreachable.

        Only membership, or the owner's silence towards this node, shows that. A caller's time-out
        does not: otherwise one caller could move shards away from a healthy owner.
        """
        owners = dict.fromkeys([self.holder_of(shard) for shard in shards])
        return all([await self._is_unreachable(owner) for owner in owners if owner is not None])

    async def _is_unreachable(self, owner: NodeId) -> bool:
        link = self._link_to(owner)
        if link is None:
            return True
        if link.is_lost or self._is_suspect(owner):
            return self._back_for_ns(owner) >= _RETURNED_NS
        if not self._is_silent(owner, link):
            return False
        if self.lag_ns() < _CURRENT_NS:
            return True
        # This node lags: it reads what the owner has sent meanwhile before it judges.
        await self._is_answered(self._new_reply(), _OWNER_SILENT_S / _LOOKS)
        return link.is_lost or self._is_silent(owner, link)

    def _is_silent(self, owner: NodeId, link: Link) -> bool:
        return min(link.silent_s, self._back_for_ns(owner) / 1e9) >= _OWNER_SILENT_S

    def _back_for_ns(self, owner: NodeId) -> float:
        """Return the time since a member that was stopped came back; endless when none was."""
        at = self._returned_at.get(owner)
        return inf if at is None else self._clock.now() - at

    def _new_reply(self) -> "Reply":
        return Reply()

    async def _is_answered(self, reply: "Reply", within: float) -> bool:
        """Wait for a reply, at most `within` seconds; return whether it is there."""
        with runtime.move_on_after(within):
            await reply.event.wait()
        return reply.event.is_set()

    def _take_over(self, shards: Sequence[int]) -> None:
        """Count in the place of owners that cannot be reached."""
        now = self._clock.now()
        for shard in shards:
            if self.ring.owner_by_shard and not self._is_ours(shard):
                copies = list(self._holdings.replicas.of(shard))
                owner, standby = self.ring.owner(shard), self.ring.standby(shard)
                silent = [standby] if standby else []  # Unless it is us, it was asked in vain, too.
                self._holdings.take_over(shard, owner, copies, now, silent)

    def _has_all(self, keys: Sequence[bytes]) -> bool:
        return all(pick(keys, self._holdings.held))

    def _missing(self, batch: Batch) -> list[int]:
        held = self._holdings.held
        shards = dict.fromkeys(shards_of(batch.keys))
        return [shard for shard in shards if not held[shard]]

    def _may_decide(self, batch: Batch) -> bool:
        return all([self._is_ours(shard) for shard in self._missing(batch)])

    def _is_ours(self, shard: int) -> bool:
        owners = self.ring.owner_by_shard
        return bool(owners) and owners[shard] == self._me

    def _is_elsewhere(self, batch: Batch) -> bool:
        return bool(self.elsewhere) and any([key[:8] in self.elsewhere for key in batch.keys])

    # -- elsewhere -----------------------------------------------------------------------------

    async def _forward(self, batch: Batch, hops: int, within: float) -> Results:
        foreign = sum([not self._is_ours(shard_of(key)) for key in batch.keys])
        self._counters.add("forwarded", foreign)
        verdicts = await self._router.decide(
            batch, lambda index: self._vetoes(batch, index), hops=hops, within=within
        )
        undecided = sum(source in _UNDECIDED for source in verdicts.sources)
        self._counters.add("undecided", undecided)
        if undecided and self.measures is not None:
            self.measures.undecided(batch, verdicts)
        return verdicts

    def _vetoes(self, batch: Batch, index: int) -> bool:
        rule = self._rule_of(int.from_bytes(batch.keys[index][:8], "big"))
        return rule is None or not (rule.shadow or rule.quota)


def _most_waiters_of(session: Caller) -> int:
    """Bound the waiters of one connection; another node's are those of all its clients."""
    return MOST_WAITERS if session.is_member else MOST_PER_CONNECTION


def _overloaded(seq: int) -> Refused:
    return Refused(seq, ErrorCode.OVERLOADED, "too many checks wait for a peer")
