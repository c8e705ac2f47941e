"""From a frame to its verdicts: here, after fetching a shard, or by the member that decides it.

Decides for each frame which of these it takes, so that only a holder of a shard decides, nobody
waits beyond the asker's deadline, and a check passes at most two nodes.
"""

import logging
from collections.abc import Callable, Collection, Sequence

import trio

from hashring import NodeId, Ring, shard_of
from node.counters import Counters
from node.handoff import Handoff
from node.holdings import Holdings
from ringfence.client.batch import Batch, Done, Verdicts
from ringfence.client.clock import Clock
from ringfence.client.link import Link
from ringfence.client.local import decide_by
from ringfence.client.router import Router
from ringfence.limiter import Engine
from ringfence.rules import Rule
from ringfence.wire import ErrorCode, Refused, Request, Source

__all__ = ["Deciding"]

logger = logging.getLogger("ringfence.node")

_MOST_WAITING = 50_000
"""Checks that wait for a peer or a shard at once; more are refused."""
_OWNER_SHARE = 0.6
"""Part of the asker's patience that a standby gives an owner which the asker could not reach."""
_TAKER_TIMEOUT = 0.1
"""Seconds that whoever was given a shard just now may take."""
_TRIES = 3
"""How often a shard may be given away while a frame waits for it."""


class Deciding:
    """Decides frames for one node."""

    def __init__(
        self,
        me: NodeId,
        engine: Engine,
        holdings: Holdings,
        handoff: Handoff,
        router: Router,
        counters: Counters,
        clock: Clock,
        link_to: Callable[[NodeId], Link | None],
        rule_of: Callable[[int], Rule | None],
        admitted: Callable[[Batch, Verdicts], None],
    ) -> None:
        """`admitted` is told of every batch decided here."""
        self.ring = Ring.of(())
        self.elsewhere: Collection[bytes] = ()
        """Ids of rules that another data center decides."""
        self.waiting = 0
        """Checks that wait for somebody else."""
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
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Own the tasks of frames that wait, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await trio.sleep_forever()

    def decide_now(self, request: Request, batch: Batch) -> Verdicts | Refused | None:
        """Decide at once what is held here; None when something must be waited for."""
        held = self._holdings.held
        if all([held[shard_of(key)] for key in batch.keys]) and not self._is_elsewhere(batch):
            return self._decide(batch, is_stand_in=request.stand_in)
        if self.waiting + len(batch) > _MOST_WAITING:
            return Refused(request.seq, ErrorCode.OVERLOADED, "too many checks wait for a peer")
        if request.hops and not (request.stand_in or self._may_decide(batch)):
            return Refused(
                request.seq,
                ErrorCode.NOT_HERE,
                f"node {self._me} does not own all these keys and will not forward them again: "
                "whoever asked sees other members",
            )
        return None

    async def decide(self, request: Request, batch: Batch) -> Verdicts | None:
        """Decide whatever it takes, inside the asker's deadline; None when it cannot be."""
        within = request.deadline_ms / 1000
        self.waiting += len(batch)
        try:
            if request.hops or request.stand_in:
                with trio.move_on_after(within):
                    return await self._decide_here(batch, request)
                return None
            return await self._forward(batch, within)
        finally:
            self.waiting -= len(batch)

    def ask(self, batch: Batch, *, hops: int, stand_in: bool, done: Done) -> None:
        """Be the target of the own router: it sends us what is ours by the ring."""
        if all([self._holdings.held[shard_of(key)] for key in batch.keys]):
            done(self._decide(batch, is_stand_in=stand_in))
        else:
            assert self._nursery is not None
            self._nursery.start_soon(self._fetch_and_decide, batch, stand_in, done)

    # -- here ----------------------------------------------------------------------------------

    def _decide(self, batch: Batch, *, is_stand_in: bool) -> Verdicts:
        now = self._clock.now()
        outcomes = decide_by(self._engine, batch, now)
        self._holdings.decided(batch, outcomes, now)
        stands_in = is_stand_in and self._stands_in(batch)
        verdicts = Verdicts(
            outcomes, [Source.STANDBY if stands_in else Source.OWNER] * len(batch.keys)
        )
        self._counters.decided(batch.op, verdicts, stand_in=stands_in)
        self._admitted(batch, verdicts)
        return verdicts

    def _stands_in(self, batch: Batch) -> bool:
        owners = self.ring.owner_by_shard
        return any([not owners or owners[shard_of(key)] != self._me for key in batch.keys])

    async def _fetch_and_decide(self, batch: Batch, stand_in: bool, done: Done) -> None:
        verdicts: Verdicts | None = None
        try:
            for _ in range(_TRIES):
                shards = self._missing(batch)
                if not shards:
                    verdicts = self._decide(batch, is_stand_in=stand_in)
                    break
                if stand_in:
                    # The router has just asked the owner, in vain.
                    self._take_over(shards)
                    shards = self._missing(batch)
                taker = self._holdings.moved_to(shards[0], self._clock.now()) if shards else None
                if taker is not None and not stand_in:
                    verdicts = await self._ask_link(taker, batch, _TAKER_TIMEOUT)
                    if verdicts is not None:
                        break
                await self._handoff.acquire(shards)
        finally:
            done(verdicts)

    async def _decide_here(self, batch: Batch, request: Request) -> Verdicts | None:
        """Decide what another node or a standby's caller insists on having decided here."""
        for _ in range(_TRIES):
            shards = self._missing(batch)
            if not shards:
                return self._decide(batch, is_stand_in=request.stand_in)
            ours = [shard for shard in shards if self._is_ours(shard)]
            if ours:
                await self._handoff.acquire(ours)
            elif request.stand_in:
                verdicts = await self._stand_in(batch, shards, request.deadline_ms / 1000)
                if verdicts is not None:
                    return verdicts
            else:
                return None
        return None

    async def _stand_in(
        self, batch: Batch, shards: Sequence[int], within: float
    ) -> Verdicts | None:
        """Reach the owner for a caller that could not; else take its shards over."""
        owner = self._holdings.moved_to(shards[0], self._clock.now())
        owner = owner or self.ring.owner(shards[0])
        if all([self.ring.owner(shard) == owner for shard in shards]):
            verdicts = await self._ask_link(owner, batch, within * _OWNER_SHARE)
            if verdicts is not None:
                return verdicts
        self._take_over(shards)
        return None

    def _take_over(self, shards: Sequence[int]) -> None:
        """Count in the place of owners that cannot be reached."""
        now = self._clock.now()
        for shard in shards:
            if self.ring.owner_by_shard and not self._is_ours(shard):
                copies = list(self._holdings.copies.of(shard))
                self._holdings.take_over(shard, self.ring.owner(shard), copies, now)

    async def _ask_link(self, name: NodeId, batch: Batch, within: float) -> Verdicts | None:
        link = self._link_to(name)
        if link is None:
            return None
        answered = trio.Event()
        found: list[Verdicts] = []
        asked_at = trio.current_time()
        is_late = False

        def done(verdicts: object) -> None:
            if not isinstance(verdicts, Verdicts):
                pass
            elif is_late:
                self._router.give_back(batch, verdicts, asked_at)  # Somebody else has decided it.
            else:
                found.append(verdicts)
            answered.set()

        link.ask(batch, hops=1, stand_in=False, done=done)
        with trio.move_on_after(within):
            await answered.wait()
        is_late = not found
        return found[0] if found else None

    def _missing(self, batch: Batch) -> list[int]:
        held = self._holdings.held
        shards = dict.fromkeys([shard_of(key) for key in batch.keys])
        return [shard for shard in shards if not held[shard]]

    def _may_decide(self, batch: Batch) -> bool:
        return all([self._is_ours(shard) for shard in self._missing(batch)])

    def _is_ours(self, shard: int) -> bool:
        owners = self.ring.owner_by_shard
        return bool(owners) and owners[shard] == self._me

    def _is_elsewhere(self, batch: Batch) -> bool:
        return bool(self.elsewhere) and any([key[:8] in self.elsewhere for key in batch.keys])

    # -- elsewhere -----------------------------------------------------------------------------

    async def _forward(self, batch: Batch, within: float) -> Verdicts:
        foreign = sum([not self._is_ours(shard_of(key)) for key in batch.keys])
        self._counters.add("forwarded", foreign)
        verdicts = await self._router.decide(
            batch, lambda index: self._vetoes(batch, index), hops=1, within=within
        )
        undecided = sum(source in (Source.POLICY, Source.LOCAL) for source in verdicts.sources)
        self._counters.add("undecided", undecided)
        return verdicts

    def _vetoes(self, batch: Batch, index: int) -> bool:
        rule = self._rule_of(int.from_bytes(batch.keys[index][:8], "big"))
        return rule is None or not (rule.shadow or rule.quota)
