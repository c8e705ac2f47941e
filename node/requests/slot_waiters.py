"""Checks that wait for a slot of a concurrency limit, and the task that watches expiring slots."""

import math
from collections.abc import Callable

from node.containment import Containment
from node.requests.sessions.node_api import Caller
from ringfence import runtime
from ringfence.limiter import Outcomes
from ringfence.peering.slot_queue import MAX_PER_CONNECTION, MAX_WAITERS, SlotQueue
from ringfence.rules import Rule
from ringfence.wire import Batch

__all__ = ["SlotWaiters"]

_MIN_WAIT_S = 0.01
"""Seconds between two looks at slots whose time has ended."""


class SlotWaiters:
    """Queue of callers that wait for slots at one node. A caller is notified when its slot is
    reserved."""

    def __init__(
        self,
        decide: Callable[[Batch, int], Outcomes],
        rule_of: Callable[[int], Rule | None],
        call: Callable[[Caller, list[int]], None],
        now: Callable[[], int],
        containment: Containment,
    ) -> None:
        self._earlier = runtime.Event()
        self._now = now
        self._containment = containment
        self.queue: SlotQueue[Caller] = SlotQueue(
            decide, rule_of, call, self._wake, most_of=_most_waiters_of
        )

    async def run(self) -> None:
        """Notify waiting callers whenever slots expire, until cancelled."""
        await self._containment.supervise("slots", self._watch_slots)

    async def _watch_slots(self) -> None:
        """Notify waiting callers whenever slots expire."""
        while True:
            self._earlier = runtime.Event()
            due = self.queue.next_deadline()
            wait_s = math.inf if due is None else max(_MIN_WAIT_S, self._seconds_until(due))
            with runtime.move_on_after(wait_s):
                await self._earlier.wait()
            self.queue.tick(self._now())

    def _seconds_until(self, instant: int) -> float:
        return (instant - self._now()) / 1e9

    def _wake(self) -> None:
        self._earlier.set()


def _most_waiters_of(session: Caller) -> int:
    """Return the maximum number of waiters on one connection; a node's connection carries waiters
    of many clients."""
    return MAX_WAITERS if session.is_member else MAX_PER_CONNECTION
