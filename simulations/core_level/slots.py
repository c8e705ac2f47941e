"""Waiting for slots on the heap. Shipped: the queue of waiters (`ringfence.peering.slot_queue`).
Replaced: its timer, and the messages that wake waiters. Slots are not renewed at this level: they
are held for less than a period.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

from node.requests.handler import RequestHandler
from node.requests.sessions.session import Session
from ringfence.wire import Batch, Results
from simulations.core_level.event_loop import Future

if TYPE_CHECKING:
    from simulations.core_level.node import CoreNode

__all__ = ["CoreSlots", "Wakeable", "Wakes"]

_LEAST_S = 0.01
_MOST_PASSED_ON = 16_384


class Wakeable(Protocol):
    """Who is told that slots are kept for its waiters: a client, or a node that passes it on."""

    def due(self, call: Callable[[], object]) -> None:
        """Call now, or when the host goes on."""

    def slots_free(self, tickets: Sequence[int]) -> None:
        """Wake these waiters."""


@dataclass(frozen=True, slots=True)
class _Caller:
    """Who has asked: what a session is to a whole node."""

    name: str
    is_member: bool


class CoreSlots:
    """The waiters of one life of a node."""

    def __init__(
        self,
        node: "CoreNode",
        deciding: RequestHandler,
        home_of: Callable[[str], Wakeable | None],
        is_member: Callable[[str], bool],
    ) -> None:
        self._node = node
        self._deciding = deciding
        self._home_of = home_of
        self._is_member = is_member
        self._passed_on: dict[int, _Caller] = {}
        self._planned: int | None = None
        # A `_Caller` is told apart and asked what it is, which is all that the queue does with it.
        deciding.call_waiters = cast("Callable[[Session, list[int]], None]", self._call)
        deciding.slots.on_earlier = self._plan

    def answered(self, sender: str, batch: Batch, verdicts: Results) -> None:
        """Queue what was denied here, as `node.node` does."""
        if self._deciding.waits_here(batch):
            caller = cast("Session", self._caller(sender))
            self._deciding.slots.answered(caller, batch, verdicts, self._node.clock.now())

    def pass_on(self, sender: str, tickets: Sequence[int]) -> None:
        """Note whom to tell what another member says of these waiters."""
        for ticket in tickets:
            self._passed_on[ticket] = self._caller(sender)
        while len(self._passed_on) > _MOST_PASSED_ON:
            del self._passed_on[next(iter(self._passed_on))]

    def slots_free(self, tickets: Sequence[int]) -> None:
        """Tell those who asked through this node."""
        for ticket in tickets:
            caller = self._passed_on.pop(ticket, None)
            if caller is not None:
                self._call(caller, [ticket])

    def _caller(self, name: str) -> _Caller:
        return _Caller(name, self._is_member(name))

    def _call(self, caller: _Caller, tickets: list[int]) -> None:
        self._node.counters.add("slots_called", len(tickets))

        def arrive() -> None:
            home = self._home_of(caller.name)
            if home is not None:
                home.due(lambda: home.slots_free(tickets))

        self._node.network.stream(self._node.name, caller.name, arrive)

    def _plan(self) -> None:
        due = self._deciding.slots.next_deadline()
        if due is not None and (self._planned is None or due < self._planned):
            self._planned = due
            wait_s = max(_LEAST_S, (due - self._node.clock.now()) / 1e9)
            self._node.later(wait_s, self._tick, due)

    def _tick(self, planned: int) -> None:
        if self._planned == planned:
            self._planned = None
        self._deciding.slots.tick(self._node.clock.now())
        self._plan()


class Wakes:
    """The waiters of one client, as `ringfence.client.slots.slot_waits` has them."""

    def __init__(self, soon: Callable[[Callable[[], None]], None]) -> None:
        self._soon = soon
        self._waits: dict[int, Future[None]] = {}

    def open(self, ticket: int) -> Future[None]:
        """Await what wakes a waiter from now on."""
        self._waits[ticket] = Future(self._soon)
        return self._waits[ticket]

    def close(self, ticket: int) -> None:
        """It waits no longer."""
        self._waits.pop(ticket, None)

    def wake(self, tickets: Sequence[int]) -> None:
        """Have these waiters ask again."""
        for ticket in tickets:
            if ticket in self._waits:
                self._waits[ticket].resolve(None)

    def wake_all(self) -> None:
        """Have every waiter ask again."""
        self.wake(list(self._waits))
