"""What becomes of a check on the heap. Shipped: what is decided here and now, by which counters,
and when a standby steps in (`node.deciding`), and who has a key (`NodeRoutes`). Replaced: the
waiting, and the router, which needs anyio; the one here takes single checks, asks the same members
in the same order and falls back on the shipped failure policy. Split and home rules are not routed.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from hashring import NodeId, shard_of
from node.deciding import Deciding
from node.parts import Part
from ringfence.client.batch import Batch, Done, Verdicts, empty_verdicts
from ringfence.client.router import Fallback, Routes
from ringfence.limiter import Code
from ringfence.wire import Op, Request, Source
from simulations.core_handoff import Waits
from simulations.core_time import Coming

__all__ = ["CoreDeciding", "CoreRouter"]


class _Asked(Protocol):
    """A link, or the node itself."""

    def ask(self, batch: Batch, *, hops: int, stand_in: bool, done: Done) -> None:
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

    async def decide(self, batch: Batch, *, hops: int) -> Verdicts:
        """Have a single check decided, by whomever it takes."""
        asked_at = self._waits.seconds
        asked: Routes | None = None
        for stand_in in self._attempts:
            routes = self.routes
            if routes is None or (routes is asked and not stand_in):
                continue
            asked = routes
            verdicts = await self._ask(routes, batch, hops, stand_in, asked_at)
            if verdicts is not None:
                return verdicts
        return self.fall_back(batch)

    def fall_back(self, batch: Batch) -> Verdicts:
        """Decide as the rule says when no member could."""
        verdicts = empty_verdicts(1)
        verdicts.put(0, *self._fallback(batch, 0))
        return verdicts

    async def _ask(
        self, routes: Routes, batch: Batch, hops: int, stand_in: bool, asked_at: float
    ) -> Verdicts | None:
        key = batch.keys[0]
        name = routes.standby(key) if stand_in else routes.owner(key)
        target = None if name is None else self._target_of(name)
        if target is None:
            return None
        answer: Coming[object] = Coming(self._waits.soon)
        is_over = False

        def done(found: object) -> None:
            if is_over and isinstance(found, Verdicts):
                self.give_back(batch, found, asked_at)  # Nobody waited for it any more.
            else:
                answer.resolve(found)

        target.ask(batch, hops=hops, stand_in=stand_in, done=done)
        try:
            found = await answer
        finally:
            is_over = True
        return found if isinstance(found, Verdicts) else None

    def give_back(self, batch: Batch, verdicts: Verdicts, asked_at: float) -> None:
        """Give back what a check was charged, for it was decided elsewhere, too."""
        source = Source(verdicts.sources[0])
        if batch.op is not Op.CHECK or verdicts.outcomes.codes[0] > Code.OVER_SOFT:
            return
        if source not in (Source.OWNER, Source.STANDBY) or self.routes is None:
            return
        stand_in = source is Source.STANDBY
        key = batch.keys[0]
        name = self.routes.standby(key) if stand_in else self.routes.owner(key)
        target = None if name is None else self._target_of(name)
        if target is not None:
            age_ns = max(0, round((self._waits.seconds - asked_at) * 1e9))
            refund = Batch(Op.REFUND, batch.keys, batch.costs, ages_ns=[age_ns])
            refund.leases = [verdicts.outcomes.leases[0]]
            target.ask(refund, hops=0, stand_in=stand_in, done=_nothing)


class CoreDeciding(Deciding):
    """Decides frames for one node; `lead` must be called before anything else."""

    def lead(self, waits: Waits, router: CoreRouter, wake: Callable[[], None]) -> None:
        """Take what the shipped class gets from trio, and the router of this level.

        `wake` has the handoff look at what is in the wrong place.
        """
        self._waits = waits
        self._core_router = router
        self._wake = wake

    def ask(self, batch: Batch, *, hops: int, stand_in: bool, done: Done) -> None:
        """Be the target of the own router."""
        if self._missing(batch):
            self._waits.tasks.start(self._fetch_and_decide(batch, stand_in, done))
        else:
            done(self._decide(batch, is_stand_in=stand_in))

    def answer(
        self, request: Request, part: Part, reply: Callable[[Verdicts | None], None]
    ) -> None:
        """Decide whatever it takes, inside the asker's deadline; None when it cannot be."""
        batch = part.batch
        is_over = False

        def once(verdicts: Verdicts | None) -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                self.waiting -= len(batch)
                reply(verdicts)

        async def decide() -> None:
            if request.stand_in or request.hops >= 2:
                once(await self._decide_here(batch, request))
            else:
                foreign = sum([not self._is_ours(shard_of(key)) for key in batch.keys])
                self._counters.add("forwarded", foreign)
                verdicts = await self._core_router.decide(batch, hops=request.hops + 1)
                is_undecided = verdicts.sources[0] in (Source.POLICY, Source.LOCAL)
                self._counters.add("undecided", is_undecided)
                once(verdicts)

        async def answer() -> None:
            if not await self._containment.run("forwarding", decide):
                once(None)

        def give_up() -> None:
            if is_over:
                return
            cancel()
            if request.stand_in or request.hops >= 2:
                once(None)
            else:
                once(self._core_router.fall_back(batch))

        self.waiting += len(batch)
        cancel = self._waits.tasks.start(answer())
        self._waits.later(request.deadline_ms / 1000, give_up)

    def _take_over(self, shards: Sequence[int]) -> None:
        super()._take_over(shards)
        self._wake()

    async def _ask_link(
        self, name: NodeId, batch: Batch, within: float, *, hops: int
    ) -> Verdicts | None:
        link = self._link_to(name)
        if link is None:
            return None
        asked_at = self._waits.seconds
        answer: Coming[Verdicts | None] = Coming(self._waits.soon)

        def done(verdicts: object) -> None:
            if not isinstance(verdicts, Verdicts):
                answer.resolve(None)
            elif answer.is_there:
                self._core_router.give_back(batch, verdicts, asked_at)
            else:
                answer.resolve(verdicts)

        link.ask(batch, hops=hops, stand_in=False, done=done)
        self._waits.later(within, answer.resolve, None)
        return await answer


def _nothing(answer: object) -> None:
    """Nobody waits for this answer."""
