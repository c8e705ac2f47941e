"""Requests of leases from owners, and the timer that returns leases."""

from collections.abc import Callable

from hashring import NodeId
from ringfence import runtime
from ringfence.client.local_cache.leases import FIRST_RETRY, LeaseAsk, Leases
from ringfence.peering.link import Link
from ringfence.peering.routing import Routes
from ringfence.transport.interface import Timer, Transport
from ringfence.wire import LeaseGrant, LeaseRequest, Message

__all__ = ["LeaseRequests"]

_FINAL_TIMEOUT = 0.5
"""Seconds to wait for the owners' answers when all leases are returned."""


def _name_of(node: object) -> object:
    return node.name if isinstance(node, Link) else node


class LeaseRequests:
    """Sender of the lease requests that `Leases` creates."""

    def __init__(
        self,
        transport: Transport,
        routes: Callable[[], Routes | None],
        on_spent: Callable[[bytes, int], None],
    ) -> None:
        """`on_spent` receives the number of checks of a key that were decided by leases."""
        self.leases = Leases(self._send, on_spent, self._owner_of, _name_of)
        self._transport = transport
        self._routes = routes
        self._timer: Timer | None = None
        self._timer_due = float("inf")
        self._unanswered = 0
        """Number of requests without an answer."""
        self._answered = runtime.Event()

    def report_again(self) -> None:
        """Send the reports without an answer again, because the members have changed."""
        self.leases.report_again(self._transport.now())

    async def give_back_all(self) -> None:
        """Return all leases, and wait a short time for the owners' answers.

        Otherwise, the owners would charge the unspent units when the leases end.
        """
        self.leases.give_back_all()
        with runtime.move_on_after(_FINAL_TIMEOUT, shield=True):
            while self._unanswered:
                self._answered = runtime.Event()
                await self._answered.wait()

    def close(self) -> None:
        """Stop the timer that returns leases."""
        if self._timer is not None:
            self._timer.cancel()

    def _send(self, ask: LeaseAsk) -> bool:
        link, asked_at = self._link_for(ask), self._transport.now()
        if link is None or not link.is_subscribed:
            self.leases.on_answer(ask, None, asked_at, None)
            # The first retry of a new report. `next_deadline` would look at all reports each time.
            self._start_timer_at(asked_at + FIRST_RETRY)
            return False

        def on_reply(reply: object) -> None:
            self._unanswered -= 1
            self._answered.set()
            answer = reply if isinstance(reply, LeaseGrant) and link.is_subscribed else None
            self.leases.on_answer(ask, link, asked_at, answer)
            self._start_timer()

        def make(seq: int) -> Message:
            return LeaseRequest(seq, ask.key, ask.want, list(ask.leases), list(ask.spent))

        self._unanswered += 1
        link.call(make, on_reply)
        return True

    def _owner_of(self, key: bytes) -> NodeId | None:
        routes = self._routes()
        return None if routes is None else routes.owner(key)

    def _link_for(self, ask: LeaseAsk) -> Link | None:
        link: object = ask.node
        routes = self._routes()
        if routes is not None:
            if link is None:
                owner = routes.owner(ask.key)
                link = None if owner is None else routes.targets.get(owner)
            elif isinstance(link, Link) and not link.is_subscribed:
                link = routes.targets.get(NodeId(link.name))  # The member may have a new link.
        return link if isinstance(link, Link) else None

    def _start_timer(self) -> None:
        self._start_timer_at(self.leases.next_deadline())

    def _start_timer_at(self, due: float) -> None:
        if due < self._timer_due:
            self.close()
            self._timer_due, self._timer = due, self._transport.call_at(due, self._on_timer)

    def _on_timer(self) -> None:
        self._timer_due = float("inf")
        self.leases.tick(self._transport.now())
        self._start_timer()
