"""Acquisition, renewal and release of slots, and refunds after time-outs and cancellations."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from math import inf

from ringfence import runtime
from ringfence.client.decider import Decider, is_never_denying
from ringfence.client.decision import Decision, SlotUnavailable
from ringfence.client.requests.descriptors import checked_seconds
from ringfence.client.requests.dispatcher import Dispatcher
from ringfence.client.requests.request_rows import has_slots, refused_rows
from ringfence.client.requests.targets import AdhocTarget, Target
from ringfence.client.slots.acquire import UNDO_WITHIN, AcquireLoop
from ringfence.errors import ConfigError, RingfenceError
from ringfence.rules.keys import decode_key
from ringfence.wire import BY_POLICY, Batch, Op, Results

__all__ = ["SlotHolder"]


class SlotHolder:
    """Acquires and holds slots of concurrency limits; it also waits for the delays of queue
    mode."""

    def __init__(self, decider: Decider, dispatcher: Dispatcher, acquire_loop: AcquireLoop) -> None:
        self._decider = decider
        self._dispatcher = dispatcher
        self._acquire_loop = acquire_loop
        self._waiting: dict[runtime.CancelScope, None] = {}
        """Scopes of the calls of `acquire` in progress."""
        self._has_ended = runtime.Event()
        self._is_exiting = False
        self._closing = runtime.Event()

    async def acquire(
        self,
        target: Target,
        cost: int,
        check: Callable[[], Awaitable[Decision]],
        max_wait: float,
        timeout: float | None,  # noqa: ASYNC109 - a bound that ends in a decision
    ) -> Decision | None:
        """Repeat `check` until it is allowed and its delay has passed, for at most `max_wait`
        seconds. Returns None if `end_waits` has ended the call.

        Checks of concurrency limits wait in a queue at the owner of the key instead.
        """
        undo = partial(self._undo, target, cost)
        decision = None
        with runtime.move_on_after(inf) as scope:
            self._waiting[scope] = None
            try:
                if checked_seconds("max_wait", max_wait) and cost and self._has_queue(target):
                    decision = await self._wait_in_queue(target, cost, undo, max_wait, timeout)
                else:
                    decision = await self._acquire_loop.take_turn(check, undo, max_wait)
            finally:
                del self._waiting[scope]
                self._has_ended.set()
        if decision is None and self._is_exiting:
            with runtime.move_on_after(max_wait):  # Its daemon thread ends with the process.
                await self._closing.wait()
        return decision

    async def end_waits(self, *, is_exiting: bool = False) -> None:
        """Cancel all calls of `acquire`, and wait until they have given their units back.

        When the process exits, the calls do not return: an exception would be printed. They return
        when the limiter is closed after all, or after their `max_wait`: an exit handler may wait
        for their threads.
        """
        self._is_exiting = is_exiting
        if not is_exiting:
            self._closing.set()
        with runtime.move_on_after(UNDO_WITHIN, shield=True):
            while self._waiting:
                for scope in [*self._waiting]:
                    scope.cancel()
                self._has_ended = runtime.Event()
                await self._has_ended.wait()

    def require_slots(self, target: Target) -> None:
        """Raise `ConfigError` when no concurrency limit applies to the request."""
        matches = target.match(self._decider.rules)
        is_known = self._decider.knows_rules or isinstance(target, AdhocTarget)
        if is_known and not any([each is not None and has_slots(each.rule) for each in matches]):
            raise ConfigError(target.slots_advice)

    @asynccontextmanager
    async def hold(
        self, taking: Awaitable[Decision], *, raise_on_denied: bool
    ) -> AsyncIterator[Decision]:
        """Renew the acquired slots while the block runs, then release them."""
        decision = await taking
        if decision:
            self.keep(decision)
        elif raise_on_denied:
            raise SlotUnavailable(decision)
        try:
            yield decision
        finally:
            with runtime.move_on_after(UNDO_WITHIN, shield=True):
                await self.release(decision.slots, None)

    def keep(self, decision: Decision) -> None:
        """Renew the concurrency slots of a decision periodically until they are released."""
        if decision.slots is not None:
            self._decider.keep(decision.slots, decision.slot_period)

    async def release(self, slots: Batch | None, timeout: float | None) -> int | None:  # noqa: ASYNC109
        """Release slots; return their units, or None when no node decided in time."""
        if slots is None:
            return 0
        slots = self._decider.stop_renewing(slots)
        results = await self._decide(slots, timeout)
        ids = [decode_key(slots.keys[row])[0] for row in refused_rows(slots, results)]
        rules = self._decider.rules
        self._dispatcher.refusal_log.warn("slots", [rules.by_id(id_) for id_ in ids])
        return sum(results.outcomes.slot_ids) if _is_counted(results) else None

    async def renew(self, slots: Batch | None, timeout: float | None) -> float | None:  # noqa: ASYNC109
        """Renew slots; return the seconds until one expires, 0 if one has ended, or None when no
        node decided in time."""
        if slots is None:
            return 0.0
        renewal = Batch(
            *(Op.RENEW, slots.keys, [0] * len(slots)),
            limits=slots.limits,
            which=slots.which,
            slot_ids=slots.slot_ids,
        )
        results = await self._decide(renewal, timeout)
        if not _is_counted(results):
            return None
        outcomes = results.outcomes
        return min(outcomes.reset_after_ns) / 1e9 if all(outcomes.slot_ids) else 0.0

    async def release_all(self) -> None:
        """Release all concurrency slots that are being renewed, because the limiter closes."""
        with runtime.move_on_after(UNDO_WITHIN, shield=True):
            for slots in self._decider.held():
                with suppress(RingfenceError):
                    await self.release(slots, None)

    async def _decide(self, batch: Batch, timeout: float | None) -> Results:  # noqa: ASYNC109
        results = await self._decider.decide(batch, is_never_denying, timeout)
        if results.refusal is not None:
            raise results.refusal
        return results

    async def _wait_in_queue(
        self,
        target: Target,
        cost: int,
        undo: Callable[[Decision], Awaitable[None]],
        max_wait: float,
        timeout: float | None,  # noqa: ASYNC109
    ) -> Decision:
        """Wait for a slot in a queue at the owner of the key. A ticket identifies the waiting
        task there, and a check of cost 0 removes the task."""
        ticket = self._decider.new_ticket()

        async def ask(cost: int) -> Decision:
            return (await self._dispatcher.ask(Op.CHECK, [target], [cost], timeout, ticket))[0]

        is_queued = True
        with self._decider.slot_waits.open(ticket) as slot:
            try:
                decision = await self._acquire_loop.take_turn(
                    partial(ask, cost), undo, max_wait, slot, self._decider.slot_pause
                )
                is_queued = not decision
            finally:
                if is_queued:
                    with (
                        runtime.move_on_after(UNDO_WITHIN, shield=True),
                        suppress(RingfenceError),
                    ):
                        await ask(0)
        return decision

    def _has_queue(self, target: Target) -> bool:
        """Whether the request matches a concurrency limit whose denial denies the whole request."""
        return any(
            [
                has_slots(match.rule) and not (match.rule.shadow or match.rule.quota)
                for match in target.match(self._decider.rules)
                if match is not None
            ]
        )

    async def _undo(self, target: Target, cost: int, decision: Decision) -> None:
        """Refund everything that an allowed check was charged."""
        await self.release(decision.slots, None)
        await self._dispatcher.refund(target, decision, cost)


def _is_counted(results: Results) -> bool:
    """Whether nodes decided all rows of a call."""
    return set(BY_POLICY).isdisjoint(results.sources)
