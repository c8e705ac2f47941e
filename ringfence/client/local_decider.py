"""The limiter without any node: the engine in this very process, behind the same interface."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from threading import Lock

from ringfence.client.checkpoints import Checkpoints
from ringfence.client.slots.held_slots import HeldSlots
from ringfence.client.slots.slot_waits import SlotWaits
from ringfence.errors import RingfenceError
from ringfence.peering.clock import Clock
from ringfence.peering.engine_choice import decide_by, engine_rules, new_engine
from ringfence.peering.slot_queue import ASK_AGAIN_NS, MOST_WAITERS, SlotQueue
from ringfence.peering.target import PendingCheck, TimedOut
from ringfence.rules import RuleSet
from ringfence.runtime import checkpoint
from ringfence.wire import Batch, Op, OutcomeRow, Results, Source

__all__ = ["LocalDecider"]

_LOCAL = Source.LOCAL.value


class LocalDecider:
    """Decides every row by an engine of its own.

    Made with `in_loop=False` it never waits, and any thread may ask it.
    """

    near = None
    """Nobody needs to be asked for anything."""

    def __init__(
        self, rules: RuleSet, clock: Clock, max_keys: int, *, in_loop: bool = True
    ) -> None:
        self._rules = rules
        self._clock = clock
        self._engine = new_engine(max_keys=max_keys)
        self._engine.set_rules(engine_rules(rules.rules()))
        self._turns = Checkpoints(in_loop=in_loop)
        self._lock = Lock()
        self._slot_waits = SlotWaits()
        self._tickets = count(1)
        self._held = HeldSlots()
        self._slots: SlotQueue[None] = SlotQueue(
            partial(decide_by, self._engine),
            rules.by_id,
            lambda _, tickets: self._slot_waits.wake(tickets),
            most_of=lambda _: MOST_WAITERS,
        )

    @property
    def slot_waits(self) -> SlotWaits:
        """The tasks of this process that wait for a slot."""
        return self._slot_waits

    @property
    def rules(self) -> RuleSet:
        """The rules in force."""
        return self._rules

    @property
    def knows_rules(self) -> bool:
        """Nobody else has rules to tell."""
        return True

    async def decide(
        self, batch: Batch, vetoes: Callable[[int], bool], within: float | None
    ) -> Results:
        """Decide every row now."""
        await self._turns.take()
        return self.decide_now(batch)

    def join(self, key: bytes, cost: int, within: float | None) -> None:
        """There is nobody to be asked together."""

    async def decide_one(
        self,
        key: bytes,
        cost: int,
        asked: PendingCheck | None,
        late: TimedOut | None,
        within: float | None,
    ) -> OutcomeRow:
        """Decide a lone check now."""
        if self._turns.is_over():
            await checkpoint()
        return self.decide_lone(key, cost)

    def decide_lone(self, key: bytes, cost: int) -> OutcomeRow:
        """Decide a check as `decide_now` does; a batch around it takes as long as all else here."""
        with self._lock:
            told = self._engine.decide((key,), (cost,), (), (), (), self._clock.now())
        return (
            *(told.codes[0], told.limits[0], told.remaining[0], told.retry_after_ns[0]),
            *(told.reset_after_ns[0], told.delay_ns[0], told.leases[0], _LOCAL),
        )

    def decide_now(self, batch: Batch) -> Results:
        """Decide every row, without a task to wait in."""
        with self._lock:
            now = self._clock.now()
            self._renew(now)
            verdicts = Results(self._slots.decide(batch, now), [Source.LOCAL] * len(batch))
            if batch.leases:
                self._slots.answered(None, batch, verdicts, now)
        return verdicts

    def keep(self, slots: Batch, period_s: float) -> None:
        """Let slots live until they are let go."""
        with self._lock:
            self._held.keep(slots, period_s, self._clock.now() / 1e9)

    def let_go(self, slots: Batch) -> Batch:
        """Let slots live no longer than their period; return what releases them."""
        with self._lock:
            return self._held.let_go(slots, self._clock.now() / 1e9)

    def held(self) -> list[Batch]:
        """The slots that are kept, by what gave them back at first."""
        with self._lock:
            return self._held.origins()

    def new_ticket(self) -> int:
        """See `Decider`."""
        return next(self._tickets)

    def slot_pause_s(self) -> float:
        """Seconds until the next slot is free if nobody releases one before."""
        with self._lock:
            due = self._slots.next_deadline()
            ns = ASK_AGAIN_NS if due is None else min(ASK_AGAIN_NS, due - self._clock.now())
        return max(0.001, ns / 1e9)

    def _renew(self, now: int) -> None:
        """Renew slots only when somebody looks: no other process can take them meanwhile."""
        for held in self._held.due(now / 1e9):
            decide_by(self._engine, held.renewal(), now)
            held.renewed(now / 1e9)

    def time(self) -> float:
        """Nobody is asked, so nothing is asked before it is decided."""
        return 0.0

    async def refresh_rules(self) -> None:
        """Nobody else has rules to tell."""

    def outage(self) -> RingfenceError | None:
        """This process is always within reach."""
        return None

    def refund(self, batch: Batch, rows: Sequence[int], verdicts: Results, asked_at: float) -> None:
        """Give back what rows were just charged; the check was at this very instant."""
        taken = batch.take(rows)
        leases = [verdicts.outcomes.leases[i] for i in rows]
        self.decide_now(
            Batch(
                Op.REFUND,
                taken.keys,
                taken.costs,
                limits=taken.limits,
                which=taken.which,
                leases=leases,
            )
        )
