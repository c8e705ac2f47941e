"""Link to one member, which accepts batches, checks and calls, and sends them in frames.

Batches that wait for the member leave together in one frame. A large batch leaves at once, and so
does a lone batch when nothing is in flight. Others leave when the tasks that are ready now have
run. Only with `LinkSettings.frame_interval`, they wait longer. `connection` keeps the member
connected; `request_queue` makes the frames.
"""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Protocol

from ringfence.errors import RingfenceError
from ringfence.peering.coalescer import PendingBatch, new_pending_batch
from ringfence.peering.link.connection import ConnectionEvents, Destination, LinkConnection, Prove
from ringfence.peering.link.denial_subscription import DenialSubscription, LocalDecisions
from ringfence.peering.link.frames_in_flight import OnReply, Reply
from ringfence.peering.link.outgoing import LARGE_ROWS, QueuedBatch
from ringfence.peering.link.request_queue import RequestQueue
from ringfence.peering.link.settings import LinkSettings
from ringfence.peering.link.timeouts import TimeoutWatcher
from ringfence.peering.target import SHED, ResultCallback
from ringfence.transport.interface import Address, Transport
from ringfence.wire import Batch, Hello, Message

__all__ = ["Link", "LinkListener"]


class LinkListener(Protocol):
    """Interface for the user of a link: callbacks about the member at the other end."""

    def on_versions(self, link: "Link", view: int, rules: int) -> None:
        """Receive the member's view hash and rules version, which each answer contains."""

    def on_reachable(self, link: "Link", reachable: bool) -> None:
        """Report that the member became reachable, or was lost."""

    def on_slots_free(self, tickets: list[int]) -> None:
        """Report that the member has reserved slots for the waiting checks with the given
        tickets."""


class Link:
    """Link to the member at an address. Synchronous: used from the transport's own task only."""

    def __init__(
        self,
        transport: Transport,
        address: Address,
        hello: Hello,
        settings: LinkSettings,
        listener: LinkListener,
        random: Random,
        view: Callable[[], int],
        local_cache: LocalDecisions | None = None,
        prove: Prove | None = None,
        node: str = "",
        first_seq: int = 1,
    ) -> None:
        """`local_cache`, when given, stores the denials of this member and borrows units from it.

        `prove`, when given, creates the credential of the `Hello` for each connection. `node` is
        the name of the node that must answer, when it is known. Requests are numbered from
        `first_seq` on.
        """
        self.address = address
        self.takes_reports = True
        """Whether the member may support reports of decisions; old versions refuse them."""
        self._transport = transport
        self._settings = settings
        self._queue = RequestQueue(settings, view, hello.session, transport.report, first_seq)
        self._timeouts = TimeoutWatcher(transport)
        self._subscription = DenialSubscription(self, local_cache)
        self._is_reporting = False
        """Whether a report was sent that the member has not answered."""
        self.connection = LinkConnection(
            transport,
            Destination(address, hello, prove, node),
            settings,
            random,
            self._queue,
            self._subscription,
            self._events_for(listener),
        )
        """Connection to the member."""

    def _events_for(self, listener: LinkListener) -> ConnectionEvents:
        return ConnectionEvents(
            partial(listener.on_versions, self),
            partial(listener.on_reachable, self),
            listener.on_slots_free,
            self._on_unknown_message,
        )

    @property
    def session(self) -> int:
        """Number that identifies the sender of the requests of this link."""
        return self._queue.session

    @property
    def next_seq(self) -> int:
        """Sequence number of the next request."""
        return self._queue.next_seq

    @property
    def name(self) -> str:
        """Name that the member has sent; empty before its first `Welcome` message."""
        return self.connection.name

    @property
    def refusal(self) -> RingfenceError | None:
        """Error of the last attempt to connect; None when it succeeded."""
        return self.connection.refusal

    @property
    def is_ready(self) -> bool:
        """Whether the handshake with the member is done and the member was not lost afterwards."""
        return self.connection.is_ready

    @property
    def is_lost(self) -> bool:
        """Whether the member is unreachable, so that requests fail immediately."""
        return self.connection.is_lost

    @property
    def is_subscribed(self) -> bool:
        """Whether the member notifies this client of denials and leases that end early, and grants
        leases."""
        return self._subscription.on_results is not None

    @property
    def silent_s(self) -> float:
        """Seconds for which the member has sent nothing although requests wait for it."""
        since = self._queue.waits_since(self.connection.received_at)
        return 0.0 if since is None else self._transport.now() - since

    def answer_timeout(self, margin: float, longest: float) -> float:
        """Return the seconds within which an answer is expected; see `Target.answer_timeout`."""
        return self._queue.in_flight.round_trips.timeout(margin, longest)

    def is_alive(self) -> bool:
        """Return whether the member is reachable and not silent; see `Target.is_alive`."""
        return self.connection.is_ready and not self.connection.is_pinging

    def ask(
        self, batch: Batch, *, hops: int = 0, as_standby: bool = False, done: ResultCallback
    ) -> QueuedBatch | None:
        """Send `batch` to the member; call `done(None)` when the member does not decide in time.

        Calls `done(AccessDenied(...))` when the credential of this process lacks the scope, and
        `done(SHED)` when the member or the send queue is overloaded.

        A batch has at most `MAX_KEYS` rows; the router cuts larger batches.
        """
        connection = self.connection
        if connection.is_lost or connection.is_closed:
            done(None)
            return None
        if not self._queue.has_room(len(batch), batch.op):
            done(SHED)
            return None
        queued = self._queue.add(batch, hops, as_standby, done, self._transport.now())
        connection.send_queued(is_large=len(batch) >= LARGE_ROWS)
        return queued

    def join(self, key: bytes, cost: int, within: float | None) -> PendingBatch | None:
        """Send a single check in one frame with others; return None when the member is lost.

        A check for which there is no room is shed. After `within` seconds, when given, the wait
        ends as `TimedOut`.
        """
        pending = self._queue.pending_batch
        if pending is None or pending.is_late or len(pending.keys) >= pending.room:
            connection = self.connection
            if connection.is_lost or connection.is_closed:
                return None
            pending = self._queue.open_pending_batch(self._transport.now())
            if pending is None:
                pending = new_pending_batch(self._transport.now(), 1)
                pending.join(key, cost)
                pending.resolve(SHED)
                return pending
            pending.join(key, cost)
            connection.send_queued()
        else:
            pending.join(key, cost)
        if within is not None:
            self._timeouts.watch(pending, within)
        return pending

    def call(
        self,
        make: Callable[[int], Message],
        on_reply: OnReply,
        timeout: float | None = None,
    ) -> None:
        """Send the message that `make` builds for a sequence number.

        `on_reply` receives the reply, or None. `timeout` is the number of seconds to wait when that
        is longer than for checks.
        """
        if self.connection.is_lost or self.connection.is_closed:
            on_reply(None)
            return
        within = self._settings.answer_timeout if timeout is None else timeout
        self._queue.add_call(make, on_reply, self._transport.now(), within)
        self.connection.send_queued()

    def report(self, make: Callable[[int], Message], on_reply: OnReply) -> None:
        """Send a report of decisions, as `call` does."""
        self._is_reporting = True

        def on_answer(reply: Reply | None) -> None:
            self._is_reporting = False
            on_reply(reply)

        self.call(make, on_answer)

    def _on_unknown_message(self) -> None:
        if self._is_reporting:
            self.takes_reports = False
            self._queue.in_flight.fail_calls()

    def open(self) -> bool:
        """Start to connect now, so that the first check need not wait for the handshake; return
        False if the link has already started."""
        return self.connection.open()

    def retry(self) -> None:
        """Connect again at once to a lost member, because it has just shown that it is alive."""
        self.connection.retry()

    def retire(self) -> None:
        """Accept no more requests, wait for the answers in flight, then close.

        Used for a member that has left, which still answers earlier requests.
        """
        self.connection.retire()

    def close(self) -> None:
        """Fail all waiting requests, send a `Goodbye` to the member and stop."""
        self.connection.close()
