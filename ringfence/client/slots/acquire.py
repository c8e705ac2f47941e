"""Retry loop of `acquire`: waits until a request is allowed, and refunds units when `max_wait` is
too short.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress

from ringfence import runtime
from ringfence.client.decision import Decision, Status, after_delay, too_late
from ringfence.client.requests.request_rows import has_slots
from ringfence.client.slots.slot_waits import SlotWait
from ringfence.errors import RingfenceError

__all__ = ["UNDO_WITHIN", "AcquireLoop"]

UNDO_WITHIN = 1.0
"""Seconds that a cancelled call may take to give back its units."""


class AcquireLoop:
    """Retry loop of `acquire` on the clock of the event loop; tests replace this clock."""

    def now(self) -> float:
        """Return the current monotonic time in seconds."""
        return runtime.current_time()

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds` on the clock of the event loop."""
        await runtime.sleep(seconds)  # The delay that the limit requires.

    async def wait(self, slot: SlotWait, seconds: float) -> None:
        """Wait until a node offers a slot of a concurrency limit, for at most `seconds`."""
        with runtime.move_on_after(seconds):
            await slot.wait()

    async def take_turn(
        self,
        check: Callable[[], Awaitable[Decision]],
        undo: Callable[[Decision], Awaitable[None]],
        max_wait: float,
        slot: SlotWait | None = None,
        slot_pause: Callable[[], float] = lambda: 0.0,
    ) -> Decision:
        """Repeat `check` until it is allowed and its delay has passed, or `max_wait` is too short.

        With `slot`, a check that a concurrency limit denied is repeated when the owner offers a
        slot, and at the latest after `slot_pause()` seconds.
        """
        give_up_at = self.now() + max_wait
        while True:
            if slot is not None:
                slot.reset()
            decision = await check()
            left = give_up_at - self.now()
            if decision.allowed:
                if decision.delay == 0.0:
                    return decision
                if decision.delay > left:
                    await undo(decision)
                    return too_late(decision)
                await self._wait_for_turn(undo, decision)
                return after_delay(decision)
            if decision.retry_after is None:
                return decision
            if slot is not None and _is_out_of_slots(decision):
                other_wait = _wait_for_other_limits(decision)
                if left <= 0 or other_wait > left:
                    return decision
                await self.wait(slot, min(max(other_wait, slot_pause()), left))
            elif decision.retry_after > left:
                return decision
            else:
                await self.sleep(decision.retry_after)

    async def _wait_for_turn(
        self, undo: Callable[[Decision], Awaitable[None]], decision: Decision
    ) -> None:
        try:
            await self.sleep(decision.delay)
        except BaseException:
            with (
                runtime.move_on_after(UNDO_WITHIN, shield=True),
                suppress(RingfenceError),  # The caller gets the error that ended the wait.
            ):
                await undo(decision)
            raise


def _is_out_of_slots(decision: Decision) -> bool:
    """Whether a concurrency limit denied the request, so that a released slot may end the denial at
    any time."""
    return any([_lacks_slot(status) for status in decision.statuses])


def _wait_for_other_limits(decision: Decision) -> float:
    """Return the seconds for which limits that are not concurrency limits deny the request."""
    waits = [
        status.retry_after or 0.0
        for status in decision.statuses
        if not status.allowed
        and not _lacks_slot(status)
        and not (status.rule is not None and status.rule.quota)
    ]
    return max(waits, default=0.0)


def _lacks_slot(status: Status) -> bool:
    return not status.allowed and status.rule is not None and has_slots(status.rule)
