"""Waiting for one's turn: how long, and what is given back when it comes too late or is cancelled.

What is asked, and how it is undone, the caller says.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio

from ringfence.client.decision import Decision, too_late
from ringfence.errors import RingfenceError

__all__ = ["UNDO_WITHIN", "Patience"]

UNDO_WITHIN = 1.0
"""Seconds that a cancelled call may take to give back what it holds."""


class Patience:
    """Waits on the event loop's clock; a test may put another in its place."""

    def now(self) -> float:
        """Seconds on a clock that only goes on."""
        return anyio.current_time()

    async def sleep(self, seconds: float) -> None:
        """Let `seconds` pass."""
        await anyio.sleep(seconds)

    async def take_turn(
        self,
        check: Callable[[], Awaitable[Decision]],
        undo: Callable[[Decision], Awaitable[None]],
        max_wait: float,
    ) -> Decision:
        """Check until it is allowed and its turn has come, or `max_wait` seconds would not do."""
        give_up = self.now() + max_wait
        while True:
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
            if decision.retry_after is None or decision.retry_after > left:
                return decision
            await self.sleep(decision.retry_after)

    async def _wait_for_turn(
        self, undo: Callable[[Decision], Awaitable[None]], decision: Decision
    ) -> None:
        try:
            await self.sleep(decision.delay)
        except BaseException:
            with (
                anyio.move_on_after(UNDO_WITHIN, shield=True),
                suppress(RingfenceError),  # What ended the wait is what the caller must learn.
            ):
                await undo(decision)
            raise
