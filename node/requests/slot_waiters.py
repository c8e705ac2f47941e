"""Checks that wait for a slot of a concurrency limit, and the task that watches expiring slots."""

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence

from node.context.containment import Containment
from node.requests.sessions.caller import Caller
from node.requests.sessions.sent_answers import Sender
from ringfence import runtime
from ringfence.limiter import NS_PER_SECOND, Outcomes
from ringfence.peering.slot_queue import MAX_PER_CONNECTION, MAX_WAITERS, SlotQueue
from ringfence.rules import Rule
from ringfence.wire import Batch

__all__ = ["ForwardedWaiters", "SlotWaiters"]

_MIN_WAIT_S = 0.01
"""Seconds between two looks at slots whose time has ended."""


class SlotWaiters:
    """Queue of callers that wait for slots of concurrency limits at one node. A caller is notified
    when its slot is reserved."""

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
        """Notify waiting callers whenever slots of concurrency limits expire, until cancelled."""
        await self._containment.supervise("slots", self._watch_slots)

    async def _watch_slots(self) -> None:
        """Notify waiting callers whenever slots of concurrency limits expire."""
        while True:
            self._earlier = runtime.Event()
            due = self.queue.next_deadline()
            wait_s = math.inf if due is None else max(_MIN_WAIT_S, self._seconds_until(due))
            with runtime.move_on_after(wait_s):
                await self._earlier.wait()
            self.queue.tick(self._now())

    def _seconds_until(self, instant: int) -> float:
        return (instant - self._now()) / NS_PER_SECOND

    def _wake(self) -> None:
        self._earlier.set()


class ForwardedWaiters:
    """Clients whose forwarded checks wait for a slot of a concurrency limit at another member."""

    def __init__(self, call: Callable[[Caller, list[int]], None]) -> None:
        """`call` notifies a client that slots are reserved for its waiting checks, given by their
        tickets."""
        self._call = call
        self._senders: OrderedDict[int, Sender[Caller]] = OrderedDict()
        """Senders by ticket."""

    def add(self, sender: Sender[Caller], tickets: Sequence[int]) -> None:
        """Record the client of waiting checks (by ticket) for which another member may reserve a
        slot."""
        for ticket in tickets:
            if ticket:
                self._senders[ticket] = sender
                self._senders.move_to_end(ticket)
        while len(self._senders) > MAX_WAITERS:
            self._senders.popitem(last=False)

    def on_slots_free(self, tickets: list[int]) -> None:
        """Notify clients that another member has reserved slots for their waiting checks."""
        free_tickets: dict[Caller, list[int]] = {}
        for ticket in tickets:
            sender = self._senders.pop(ticket, None)
            if sender is not None and sender.session is not None:
                free_tickets.setdefault(sender.session, []).append(ticket)
        for session, passed_on in free_tickets.items():
            self._call(session, passed_on)


def _most_waiters_of(session: Caller) -> int:
    """Return the maximum number of waiters on one connection; a node's connection carries waiters
    of many clients."""
    return MAX_WAITERS if session.is_member else MAX_PER_CONNECTION
