"""Waiting for one's turn: how long, and what is given back when it comes too late or is cancelled.

What is asked, and how it is undone, the caller says.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress

from ringfence import runtime
from ringfence.client.decision import Decision, too_late
from ringfence.client.requests.request_rows import is_out_of_slots, other_wait
from ringfence.client.slots.slot_waits import SlotWait
from ringfence.errors import RingfenceError

__all__ = ["UNDO_WITHIN", "AcquireLoop"]

UNDO_WITHIN = 1.0
"""Seconds that a cancelled call may take to give back what it holds."""


class AcquireLoop:
    """Waits on the event loop's clock; a test may put another in its place."""

    def now(self) -> float:
        """Seconds on a clock that only goes on."""
        return runtime.current_time()

    async def sleep(self, seconds: float) -> None:
        """Let `seconds` pass."""
        await runtime.sleep(seconds)

    async def wait(self, slot: SlotWait, seconds: float) -> None:
        """Let `seconds` pass, or less when a slot is kept for the caller."""
        with runtime.move_on_after(seconds):
            await slot.wait()

    async def take_turn(
        self,
        check: Callable[[], Awaitable[Decision]],
        undo: Callable[[Decision], Awaitable[None]],
        max_wait: float,
        slot: SlotWait | None = None,
        ask_again: Callable[[], float] = lambda: 0.0,
    ) -> Decision:
        """Check until it is allowed and its turn has come, or `max_wait` seconds would not do.

        With `slot`, a denial by a concurrency limit is waited out until the slot's wake-up, or
        `ask_again()` seconds.
        """
        give_up = self.now() + max_wait
        while True:
            if slot is not None:
                slot.reset()
            decision = await check()
            left = give_up - self.now()
            if decision.allowed:
                if decision.delay == 0.0:
                    return decision
                if decision.delay > left:
                    await undo(decision)
                    return too_late(decision)
                await self._wait_for_turn(undo, decision)
                return decision
            if decision.retry_after is None:
                return decision
            if slot is not None and is_out_of_slots(decision):
                pause = max(other_wait(decision), ask_again())
                if left <= 0 or other_wait(decision) > left:
                    return decision
                await self.wait(slot, min(pause, left))
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
                suppress(RingfenceError),  # What ended the wait is what the caller must learn.
            ):
                await undo(decision)
            raise
