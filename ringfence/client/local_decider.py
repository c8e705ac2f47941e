"""Decider without nodes: the limiter engine runs in this process."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from threading import Lock
from typing import NoReturn

from ringfence.client.checkpoints import Checkpoints
from ringfence.client.requests.check_ops import LocalChecks, Matches
from ringfence.client.slots.held_slots import HeldSlots
from ringfence.client.slots.slot_waits import SlotWaits
from ringfence.errors import RingfenceError
from ringfence.peering.clock import Clock
from ringfence.peering.engine_choice import decide_batch, engine_rules, new_engine
from ringfence.peering.slot_queue import ASK_AGAIN_NS, MAX_WAITERS, SlotQueue
from ringfence.rules import OnFailure, RuleSet
from ringfence.transport.interface import Address
from ringfence.wire import Batch, Op, Results, Source

__all__ = ["LocalDecider"]

_MIN_SLOT_PAUSE = 0.001


class LocalDecider:
    """The `Decider` behind `ringfence.local`. Any thread may call it with `in_loop=False`."""

    local_cache = None
    """Not needed, because the engine is in this process."""

    def __init__(
        self, rules: RuleSet, clock: Clock, max_keys: int, *, in_loop: bool = True
    ) -> None:
        self.rules = rules
        """Current rules, which never change."""
        self._clock = clock
        self._engine = new_engine(max_keys=max_keys)
        self._engine.set_rules(engine_rules(rules.rules()))
        self._checkpoints = Checkpoints(in_loop=in_loop)
        self._lock = Lock()
        self._slot_waits = SlotWaits()
        self._to_wake: list[int] = []
        """Tickets of tasks to be woken without the lock, because waking needs that of the loop."""
        self._tickets = count(1)
        self._held = HeldSlots()
        self._slots: SlotQueue[None] = SlotQueue(
            partial(decide_batch, self._engine),
            rules.by_id,
            lambda _, tickets: self._to_wake.extend(tickets),
            most_of=lambda _: MAX_WAITERS,
        )

    @property
    def slot_waits(self) -> SlotWaits:
        """Tasks of this process that wait for slots of concurrency limits."""
        return self._slot_waits

    @property
    def knows_rules(self) -> bool:
        """True, because the rules were given at creation."""
        return True

    @property
    def on_failure(self) -> OnFailure:
        """The default, which is never needed, because all rules are known."""
        return OnFailure.ALLOW

    async def decide(
        self,
        batch: Batch,
        denies_group: Callable[[int], bool],
        timeout: float | None,  # noqa: ASYNC109
    ) -> Results:
        """Decide every check of a batch immediately."""
        await self._checkpoints.take()
        return self.decide_now(batch)

    def local_checks(self, matches: Matches) -> LocalChecks:
        """Return what decides single checks without a batch, which would take longer."""
        return LocalChecks(matches, self.rules, self._lock, self._clock, self._engine.decide_lone)

    def ask(self, key: bytes, cost: int, timeout: float | None) -> NoReturn:
        """Exists only for the interface: `local_checks` decide every single check."""
        raise AssertionError

    def decide_now(self, batch: Batch) -> Results:
        """Decide every check of a batch synchronously."""
        with self._lock:
            now = self._clock.now()
            self._renew(now)
            results = Results(self._slots.decide(batch, now), [Source.OWNER] * len(batch))
            if batch.slot_ids:
                self._slots.on_answered(None, batch, results, now)
            woken, self._to_wake = self._to_wake, []
        self._slot_waits.wake(woken)
        return results

    def keep(self, slots: Batch, period: float) -> None:
        """Start to renew acquired concurrency slots periodically; see `Decider.keep`."""
        with self._lock:
            self._held.keep(slots, period, self._clock.now() / 1e9)

    def stop_renewing(self, slots: Batch) -> Batch:
        """Stop the renewal of concurrency slots; see `Decider.stop_renewing`."""
        with self._lock:
            return self._held.stop_renewing(slots, self._clock.now() / 1e9)

    def held(self) -> list[Batch]:
        """Return the requests that would release the concurrency slots which this process still
        renews."""
        with self._lock:
            return self._held.origins()

    def new_ticket(self) -> int:
        """Return the next identifier for a task that waits for a slot of a concurrency limit."""
        return next(self._tickets)

    def slot_pause(self) -> float:
        """Return the seconds after which a task that waits for a slot asks again. This is when
        the next slot expires, or earlier."""
        with self._lock:
            due = self._slots.next_deadline()
            ns = ASK_AGAIN_NS if due is None else min(ASK_AGAIN_NS, due - self._clock.now())
        return max(_MIN_SLOT_PAUSE, ns / 1e9)

    def _renew(self, now: int) -> None:
        """Renew slots whose renewal is due, before a decision; no other process can take them in
        between."""
        for held in self._held.due(now / 1e9):
            decide_batch(self._engine, held.renewal(), now)
            held.on_renewed(now / 1e9)

    def time(self) -> float:
        """Return the seconds of the clock by which the engine counts."""
        return self._clock.now() / 1e9

    async def refresh_rules(self) -> None:
        """Do nothing, because the rules never change."""

    def outage(self) -> RingfenceError | None:
        """Return None, because the engine in this process is always available."""
        return None

    def addresses_of(self, keys: Sequence[bytes]) -> list[Address]:
        """Return no address, because no node is asked."""
        return []

    async def aclose(self) -> None:
        """Do nothing, because there are no connections to close."""

    def refund(self, batch: Batch, rows: Sequence[int], results: Results, asked_at: float) -> None:
        """Refund the cost of some checks of a batch that were just charged."""
        taken = batch.take(rows)
        slot_ids = [results.outcomes.slot_ids[i] for i in rows]
        self.decide_now(
            Batch(
                Op.REFUND,
                taken.keys,
                taken.costs,
                limits=taken.limits,
                which=taken.which,
                slot_ids=slot_ids,
            )
        )
