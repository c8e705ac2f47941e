"""What becomes of a check on the heap. Shipped: what is decided here and now, by which counters,
and when a standby steps in (`node.requests.handler`), and who has a key (`NodeRoutes`). Replaced:
the waiting, and the router, which needs anyio; the one here takes single checks, asks the same
members in the same order and falls back on the shipped failure policy. Split and home rules are not
routed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from hashring import NodeId, shard_of
from node.requests.handler import Reply, RequestHandler
from node.requests.request_parts import Part
from ringfence.errors import AccessDenied
from ringfence.limiter import Code
from ringfence.peering.router import Fallback, Routes
from ringfence.peering.target import ResultCallback, SentBatch, Shed
from ringfence.wire import BY_POLICY, Batch, Op, Request, Results, Source, empty_results
from simulations.core_level.event_loop import Future
from simulations.core_level.handoff import Waits

__all__ = ["CoreDeciding", "CoreRouter"]


class _Asked(Protocol):
    """A link, or the node itself."""

    def ask(
        self, batch: Batch, *, hops: int, as_standby: bool, done: ResultCallback
    ) -> SentBatch | None:
        """Decide it."""


class CoreRouter:
    """Asks the owner, the owner once more when the members changed, then its standby."""

    def __init__(
        self,
        waits: Waits,
        fallback: Fallback,
        target_of: Callable[[NodeId], _Asked | None],
        attempts: Sequence[bool],
    ) -> None:
        """`attempts` says for each whether a standby is asked."""
        self.routes: Routes | None = None
        self._waits = waits
        self._fallback = fallback
        self._target_of = target_of
        self._attempts = attempts

    async def decide(self, batch: Batch, *, hops: int) -> Results:
        """Have a single check decided, by whomever it takes."""
        asking = _Asking(batch, self._waits.seconds)
        asked: Routes | None = None
        for as_standby in self._attempts:
            routes = self.routes
            if routes is None or (routes is asked and not as_standby):
                continue
            asked = routes
            verdicts = await self._ask(routes, asking, hops, as_standby)
            if isinstance(verdicts, Shed):
                asking.final = self.fall_back(batch, is_shed=True)
                return asking.final
            if verdicts is not None:
                asking.final = verdicts
                return verdicts
        asking.final = self.fall_back(batch)
        return asking.final

    def fall_back(self, batch: Batch, *, is_shed: bool = False) -> Results:
        """Decide as the rule says when no member could, or the one that can is overloaded."""
        verdicts = empty_results(1)
        outcome, source = self._fallback(batch, 0)
        is_policy = source is Source.POLICY
        verdicts.put(0, outcome, Source.SHED if is_shed and is_policy else source)
        return verdicts

    async def _ask(
        self, routes: Routes, asking: "_Asking", hops: int, as_standby: bool
    ) -> Results | Shed | None:
        key = asking.batch.keys[0]
        name = routes.standby(key) if as_standby else routes.owner(key)
        target = None if name is None else self._target_of(name)
        if target is None:
            return None
        answer: Future[object] = Future(self._waits.soon)

        def done(found: object) -> None:
            if isinstance(found, Results) and asking.final is not None:
                self._take_back(asking, found)
            else:
                answer.resolve(found)

        asked = target.ask(asking.batch, hops=hops, as_standby=as_standby, done=done)
        if asked is not None and not asking.batch.ids and (first := asked.identify()) is not None:
            asking.batch = replace(asking.batch, ids=[first])
        found = await answer
        return found if isinstance(found, Results | Shed) else None

    def _take_back(self, asking: "_Asking", late: Results) -> None:
        """Give back a late charge of a check that did not pass; once, as the shipped router."""
        assert asking.final is not None
        is_charged = late.outcomes.codes[0] <= Code.OVER_SOFT
        if not is_charged or asking.final.outcomes.codes[0] <= Code.OVER_SOFT:
            return
        if asking.is_refunded or self.routes is None or asking.batch.op is not Op.CHECK:
            return
        source = Source(late.sources[0])
        if source not in (Source.OWNER, Source.STANDBY):
            return
        asking.is_refunded = True
        as_standby = source is Source.STANDBY
        key = asking.batch.keys[0]
        name = self.routes.standby(key) if as_standby else self.routes.owner(key)
        target = None if name is None else self._target_of(name)
        if target is not None:
            age_ns = max(0, round((self._waits.seconds - asking.began) * 1e9))
            refund = Batch(Op.REFUND, asking.batch.keys, asking.batch.costs, ages_ns=[age_ns])
            refund.leases = [late.outcomes.leases[0]]
            target.ask(refund, hops=0, as_standby=as_standby, done=_nothing)


@dataclass(slots=True)
class _Asking:
    """One check under way."""

    batch: Batch
    began: float
    final: Results | None = None
    """What the caller was answered."""
    is_refunded: bool = False


class CoreDeciding(RequestHandler):
    """Decides frames for one node; `lead` must be called before anything else."""

    def lead(self, waits: Waits, router: CoreRouter, wake: Callable[[], None]) -> None:
        """Take what the shipped class gets from trio, and the router of this level.

        `wake` has the handoff look at what is in the wrong place.
        """
        self._waits = waits
        self._core_router = router
        self._wake = wake
        self._core_resumed: Future[None] | None = None

    def ask(self, batch: Batch, *, hops: int, as_standby: bool, done: ResultCallback) -> None:
        """Be the target of the own router."""
        if self._missing(batch):
            self._waits.tasks.start(self._fetch_and_decide(batch, as_standby, done))
        else:
            done(self._decide(batch, as_standby=as_standby))

    def answer(self, request: Request, part: Part, reply: Callable[[Results | None], None]) -> None:
        """Decide whatever it takes, inside the asker's deadline; None when it cannot be."""
        batch = part.batch
        is_over = False

        def once(verdicts: Results | None) -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                self.waiting -= len(batch)
                reply(verdicts)

        async def decide() -> None:
            if self._core_resumed is not None:
                await self._core_resumed
            if request.as_standby or request.hops >= 2:
                once(await self._decide_here(batch, request))
            else:
                foreign = sum([not self._is_ours(shard_of(key)) for key in batch.keys])
                self._counters.add("forwarded", foreign)
                verdicts = await self._core_router.decide(batch, hops=request.hops + 1)
                is_undecided = verdicts.sources[0] in (Source.LOCAL, *BY_POLICY)
                self._counters.add("undecided", is_undecided)
                once(verdicts)

        async def answer() -> None:
            if not await self._containment.run("forwarding", decide):
                once(None)

        def give_up() -> None:
            if is_over:
                return
            cancel()
            if request.as_standby or request.hops >= 2:
                once(None)
            else:
                once(self._core_router.fall_back(batch))

        self.waiting += len(batch)
        cancel = self._waits.tasks.start(answer())
        self._waits.later(request.deadline_ms / 1000, give_up)

    def _take_over(self, shards: Sequence[int]) -> None:
        super()._take_over(shards)
        self._wake()

    def suspend(self) -> None:
        """Decide nothing until `resume`."""
        if self._core_resumed is None:
            self._core_resumed = Future(self._waits.soon)
            super().suspend()

    def resume(self) -> None:
        """Decide again."""
        super().resume()
        resumed, self._core_resumed = self._core_resumed, None
        if resumed is not None:
            resumed.resolve(None)

    def _new_reply(self) -> "_CoreReply":
        return _CoreReply()

    async def _is_answered(self, reply: Reply, within: float) -> bool:
        assert isinstance(reply, _CoreReply)
        over: Future[None] = Future(self._waits.soon)
        self._waits.later(within, over.resolve, None)
        reply.on_resolve = over.resolve
        if not reply.is_there:
            await over
        return reply.is_there


class _CoreReply(Reply):
    """A reply that a coroutine of this level waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.is_there = False
        self.on_resolve: Callable[[None], None] | None = None

    def resolve(self, answer: Results | AccessDenied | Shed | None) -> None:
        """Take the answer; the first one holds."""
        if not self.is_there:
            self.is_there = True
            self.value = answer
            if self.on_resolve is not None:
                self.on_resolve(None)


def _nothing(answer: object) -> None:
    """Nobody waits for this answer."""
