"""Connection of a link: handshake, subscription, reconnection with back-off, draining.

Frames without an answer when a connection broke are sent again on the next connection with the same
numbers, and the member answers them without counting twice. A silent member is pinged. When it does
not answer the ping either, its requests fail and reconnection continues in the background.
"""

from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from random import Random
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from ringfence.errors import AccessDenied, PeerUnavailable, RemoteProtocolError, RingfenceError
from ringfence.peering.link.denial_subscription import DenialSubscription
from ringfence.peering.link.errors import error_of
from ringfence.peering.link.flush_plan import FlushPlan
from ringfence.peering.link.frames_in_flight import REPLIES
from ringfence.peering.link.request_queue import RequestQueue
from ringfence.peering.link.settings import LinkSettings
from ringfence.peering.target import SHED
from ringfence.transport.interface import Address, Connection, Timer, Transport
from ringfence.wire import (
    Answer,
    DenialRevoked,
    Done,
    ErrorCode,
    Goodbye,
    Hello,
    LeaseRecall,
    Message,
    Refused,
    SlotsFree,
    Welcome,
    decode,
    encode,
)

__all__ = ["ConnectionEvents", "Destination", "LinkConnection", "Prove"]

Prove: TypeAlias = Callable[[Connection], bytes]
"""Makes the credential of a hello for one connection."""

_OVERLOADED = (ErrorCode.OVERLOADED, ErrorCode.TOO_LATE)
"""Refusals of an overloaded member: asking another member would add load."""
_MAX_ATTEMPTS = 16
"""Attempts after which the pause no longer grows, whatever the settings are."""
_STALL_S = 0.05
"""Delay of a timer, in seconds, that shows that this process was stopped or is overloaded."""


class ConnectionEvents(Struct, frozen=True):
    """Callbacks of a connection: for messages of the member, and when the member becomes
    reachable or is lost."""

    on_versions: Callable[[int, int], None]
    """Receives the member's view hash and rules version, with each of its answers."""
    on_reachable: Callable[[bool], None]
    """Called when the member comes within reach, or is lost."""
    on_slots_free: Callable[[list[int]], None]
    """Receives the tickets of waiters for which the member keeps slots."""
    on_unknown_message: Callable[[], None]
    """Called when the member closed the connection because it does not support a message."""


class Destination(Struct, frozen=True):
    """Address of a member, and the credentials that are sent to it."""

    address: Address
    hello: Hello
    prove: Prove | None = None
    """Makes the credential of the hello for each connection; None when the hello has it."""
    node: str = ""
    """Name of the node that must answer; empty when it is not known."""

    def hello_on(self, connection: Connection) -> Hello:
        """Create the `Hello` message for one connection, with the credential of this process."""
        if self.prove is None:
            return self.hello
        return replace(self.hello, credential=self.prove(connection))

    def error_of(self, code: int, reason: str) -> RingfenceError:
        """Create the error for a code that the member or the transport reported."""
        has_credential = bool(self.hello.credential or self.prove)
        return error_of(code, reason, self.address, has_credential=has_credential)


class _State(Enum):
    IDLE = auto()
    CONNECTING = auto()
    READY = auto()
    DRAINING = auto()
    LOST = auto()
    CLOSED = auto()


class _Backoff:
    """Pauses between attempts to connect; they double from the minimum to the maximum, with
    jitter."""

    def __init__(self, settings: LinkSettings, random: Random) -> None:
        self._settings, self._random = settings, random
        self._attempts = 0

    def reset(self) -> None:
        """Return to the minimum pause between attempts, because the member has answered."""
        self._attempts = 0

    def next_pause(self, *, was_ready: bool, was_idle: bool, lasted: float) -> float:
        """Return the seconds to wait before the next attempt, after the member was ready for
        `lasted` seconds.

        After a working connection, the first attempt is made immediately, unless the member has
        answered nothing since the last such attempt. Then the connection must have lasted longer
        than the pause. An idle connection has no answers, so it must only have lasted longer than
        the minimum pause.
        """
        settings, attempts = self._settings, self._attempts
        pause = min(settings.max_backoff, settings.min_backoff * 2.0**attempts)
        least = settings.min_backoff if was_idle else pause
        if was_ready and (attempts == 0 or lasted > least):
            self._attempts = 1
            return 0.0
        self._attempts = min(attempts + 1, _MAX_ATTEMPTS)
        return pause * (0.5 + self._random.random() / 2)


class LinkConnection:
    """Connection to one member. It reconnects when needed, and sends the queued requests.

    Synchronous: used from the transport's own task only.
    """

    def __init__(
        self,
        transport: Transport,
        destination: Destination,
        settings: LinkSettings,
        random: Random,
        queue: RequestQueue,
        subscription: DenialSubscription,
        events: ConnectionEvents,
    ) -> None:
        self.name = ""
        """The member's own name; empty before its first `Welcome`."""
        self.refusal: RingfenceError | None = None
        """Error of the last attempt to connect; None when it succeeded."""
        self.is_lost = False
        """Whether the member is out of reach, so that requests fail at once."""
        self.is_closed = False
        self.received_at = float("-inf")
        """Time of the last message of the member."""
        self.is_pinging = False
        """Whether the member is silent and has not answered the ping yet."""
        self._transport, self._destination, self._settings = transport, destination, settings
        self._queue, self._in_flight = queue, queue.in_flight
        self._subscription, self._events = subscription, events
        self._backoff, self._state = _Backoff(settings, random), _State.IDLE
        self._connection: Connection | None = None
        self._hello_at = 0.0
        self._ping_seq = 0
        self._is_retired, self._times_late = False, 0
        self._timer: Timer | None = None
        self._ready_at = self._timer_due = self._timer_ran_at = 0.0
        self._reconnect_timer: Timer | None = None
        self._retry_from = float("-inf")
        """Time from which `retry` has an effect."""
        self._flush_plan = FlushPlan(transport, settings.frame_interval, self._flush_if_ready)

    @property
    def is_ready(self) -> bool:
        """Whether the handshake with the member is done and the member was not lost afterwards."""
        return self._state is _State.READY

    def open(self) -> bool:
        """Start to connect now, so that the first check need not wait for the handshake; return
        False if the link has already started."""
        is_idle = self._state is _State.IDLE
        if is_idle:
            self._connect()
        return is_idle

    def retry(self) -> None:
        """Connect again at once to a lost member, because it has just shown that it is alive.

        Ends the pause of the back-off, or an attempt whose packets may have been lost. It has an
        effect once per `max_backoff`, so that a member that refuses this link adds few attempts.
        """
        now, connection = self._transport.now(), self._connection
        is_waiting = self._state is _State.LOST or (
            self._state is _State.CONNECTING and connection is not None and not connection.is_open
        )
        if self.is_lost and is_waiting and now >= self._retry_from:
            self._retry_from = now + self._settings.max_backoff
            if self._reconnect_timer is not None:
                self._reconnect_timer.cancel()
            self._disconnect("")
            self._connect()

    def retire(self) -> None:
        """Accept no more requests, wait for the answers in flight, then close."""
        if self._state is _State.READY:
            self._flush()
        if self._state not in (_State.READY, _State.DRAINING) or not self._in_flight.by_seq:
            self.close()
            return
        self._state = _State.DRAINING
        self.is_lost = self._is_retired = True
        self._queue.fail_unsent()
        self._transport.flush()
        self._watch()

    def close(self) -> None:
        """Fail all waiting requests, send a `Goodbye` to the member and stop."""
        self._state = _State.CLOSED
        self.is_closed = True
        for timer in (self._reconnect_timer, self._timer):
            if timer is not None:
                timer.cancel()
        self._flush_plan.cancel()
        self._disconnect("the sender is closing")
        self._subscription.cancel()
        self._queue.fail_all()

    # -- sending -------------------------------------------------------------------------------

    def send_queued(self, *, is_large: bool = False) -> None:
        """Send the queued requests: immediately when nothing is in flight or with `is_large`, else
        after the ready tasks.

        Tasks that are ready now can add their checks to the same frame. With
        `LinkSettings.frame_interval`, the frame also waits for the end of the interval, except with
        `is_large`.
        """
        if self._state is _State.IDLE:
            self._connect()
        if self._state is _State.READY:
            is_idle = not self._in_flight.by_seq and not self._queue.is_busy
            if is_large or (is_idle and not self._flush_plan.gathers):
                self._flush()
                self._transport.flush()
            else:
                self._flush_plan.plan()
        self._watch()

    def _flush_if_ready(self) -> None:
        if self._state is _State.READY:
            self._flush()

    def _flush(self) -> None:
        assert self._connection is not None
        now = self._transport.now()
        self._flush_plan.restart(now)
        self._queue.flush(now, self._connection.send)

    # -- handshake -----------------------------------------------------------------------------

    def _connect(self) -> None:
        self._state = _State.CONNECTING
        self._reconnect_timer = None
        destination = self._destination
        self._connection = self._transport.connect(destination.address, self, destination.node)
        self._transport.flush()

    def on_open(self, connection: Connection) -> None:
        """Send the `Hello` message as soon as the connection is encrypted."""
        connection.send(encode(self._destination.hello_on(connection)))
        self._hello_at = self._transport.now()
        self._transport.call_at(
            self._hello_at + self._settings.handshake_timeout,
            partial(self._on_handshake_timeout, connection),
        )

    def _on_handshake_timeout(self, connection: Connection) -> None:
        if self._connection is connection and self._state is _State.CONNECTING:
            self._drop(ErrorCode.HELLO_TIMEOUT, "it accepted the connection and sent no welcome")

    def _on_welcome(self, welcome: Welcome) -> None:
        self.name = welcome.name
        self.refusal = None
        self._state = _State.READY
        self._ready_at = self.received_at
        self._in_flight.round_trips.sample(self.received_at - self._hello_at)
        assert self._connection is not None
        subscribe = self._subscription.request(self._queue.take_seq)
        if subscribe is not None:
            self._connection.send(encode(subscribe))
        # The member deduplicates repeated frames.
        self._in_flight.send_again(self._connection.send)
        self._flush()
        self.is_lost = False
        self._notify_reachable(True)
        self._events.on_versions(welcome.view, welcome.rules)
        self._watch()

    # -- messages ------------------------------------------------------------------------------

    def on_message(self, payload: bytes) -> None:
        """Handle a message of the member; close the connection when it violates the protocol."""
        self.received_at = self._transport.now()
        self.is_pinging = False
        try:
            self._dispatch(decode(payload))
        except RemoteProtocolError as error:
            self._drop(ErrorCode.BAD_MESSAGE, str(error))

    def _dispatch(self, message: Message) -> None:  # noqa: PLR0912 - one branch per message
        match message:
            case Answer():
                self._in_flight.measure(message.seq, self.received_at)
                if self._in_flight.answer(message, self._subscription.on_results):
                    self._backoff.reset()
                else:
                    self._in_flight.answer_late(message)
                self._events.on_versions(message.view, message.rules)
            case DenialRevoked(keys):
                self._subscription.revoke_denials(keys)
            case LeaseRecall(keys):
                self._subscription.recall_leases(keys, self._transport.now())
            case SlotsFree(tickets):
                self._events.on_slots_free(tickets)
            case Done(seq) if self._subscription.accept(seq, self.received_at):
                pass
            case Welcome() if self._state is _State.CONNECTING:
                self._on_welcome(message)
            case Refused(seq=0):
                self._drop(message.code, message.reason)
            case Refused():
                self._on_refused(message)
            case Goodbye():
                self._on_goodbye(message.reason)
            case _ if isinstance(message, REPLIES):
                if self._in_flight.reply(message):
                    self._backoff.reset()
            case _:
                raise RemoteProtocolError(
                    f"a node does not send {type(message).__name__} to the side that asked"
                )
        if self._state is _State.DRAINING:
            self._close_if_drained()
        elif self._state is _State.READY and self._queue.has_batches:
            self._flush_plan.plan()

    def _on_goodbye(self, reason: str) -> None:
        """Stop sending requests to a draining member, which still answers those in flight."""
        self.refusal = self._destination.error_of(ErrorCode.DRAINING, reason)
        self._state = _State.DRAINING
        self.is_lost = True
        self._queue.fail_unsent()
        if not self._is_retired:
            self._notify_reachable(False)
        self._close_if_drained()

    def _close_if_drained(self) -> None:
        if not self._in_flight.by_seq:
            self._drop(ErrorCode.DRAINING, "it is leaving")

    def _on_refused(self, refused: Refused) -> None:
        frame = self._in_flight.by_seq.get(refused.seq)
        if frame is None:
            return
        error = self._destination.error_of(refused.code, refused.reason)
        if frame.on_reply is None and isinstance(error, AccessDenied):
            del self._in_flight.by_seq[refused.seq]
            self._in_flight.fail(frame, error)  # Other requests may still be permitted.
        elif refused.code in _OVERLOADED:
            del self._in_flight.by_seq[refused.seq]
            self._in_flight.fail(frame, SHED)
        else:
            self.refusal = error
            self._in_flight.refuse(refused.seq)

    def _notify_reachable(self, reachable: bool) -> None:
        """Call `on_reachable` of the listener, and catch its exceptions, which must not stop
        reconnection."""
        try:
            self._events.on_reachable(reachable)
        except Exception as error:  # noqa: BLE001
            self._transport.report(error)

    # -- loss of the connection ----------------------------------------------------------------

    def on_close(self, code: int, reason: str) -> None:
        """Reconnect; the frames in flight are sent again on the next connection."""
        self._connection = None
        if code == ErrorCode.BAD_MESSAGE and not self._subscription.reject():
            self._events.on_unknown_message()
        self._on_disconnected(self._destination.error_of(code, reason))

    def _drop(self, code: int, reason: str) -> None:
        """Close the connection from this side, and reconnect later."""
        self._disconnect("")
        self._on_disconnected(self._destination.error_of(code, reason))

    def _disconnect(self, reason: str) -> None:
        if self._connection is not None:
            self._connection.close(ErrorCode.OK, reason)
            self._connection = None

    def _on_disconnected(self, error: RingfenceError) -> None:
        self._subscription.cancel()
        if self._state is _State.CLOSED:
            return
        if self._is_retired:
            self.close()
            return
        was_ready = self._state is _State.READY
        self.refusal = error
        self._state = _State.LOST
        if not was_ready or isinstance(error, AccessDenied):
            # After a broken connection, a new one may follow soon; after a failed attempt that is
            # unlikely.
            self._fail_requests()
        if self._reconnect_timer is None:
            now = self._transport.now()
            pause = self._backoff.next_pause(
                was_ready=was_ready,
                was_idle=not self._in_flight.by_seq,
                lasted=now - self._ready_at,
            )
            self._reconnect_timer = self._transport.call_at(now + pause, self._reconnect)

    def _fail_requests(self) -> None:
        self._queue.fail_all()
        if not self.is_lost:
            self.is_lost = True
            self._notify_reachable(False)

    def _reconnect(self) -> None:
        self._reconnect_timer = None
        if self._state is _State.LOST:
            self._connect()

    # -- time-outs -----------------------------------------------------------------------------

    def _watch(self) -> None:
        """Set the timer for the first request that can expire.

        It fires after the shortest time-out at the latest, so that a later request with a shorter
        time-out need not move it.
        """
        if self._timer is None and not self._queue.is_empty:
            settings = self._settings
            least = min(settings.answer_timeout_margin, settings.answer_timeout)
            self._arm(min(self._queue.first_due(), self._transport.now() + least))

    def _arm(self, when: float) -> None:
        self._timer_due = when
        self._timer = self._transport.call_at(when, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now = self._transport.now()
        self._times_late = self._times_late + 1 if now - self._timer_due > _STALL_S else 0
        ran_before, self._timer_ran_at = self._timer_ran_at, now
        if self._times_late == 1:
            # This process was stopped, not the member: first handle the member's messages.
            self._arm(now + _STALL_S)
            return
        if self._state is _State.CONNECTING and self._queue.first_due() <= now:
            self._fail_requests()  # The attempt to connect continues.
            self._times_late = 0
            return
        # A process that is late again is overloaded. It reads a member's messages late, too.
        is_heard = self._times_late and self.received_at > ran_before
        received_at = now if is_heard else self.received_at
        is_draining, is_ready = self._state is _State.DRAINING, self._state is _State.READY
        silent = self._queue.expire(now, received_at, is_draining=is_draining, can_send=is_ready)
        if self._state is _State.DRAINING:
            self._close_if_drained()
        elif self._state is _State.READY:
            if self.is_pinging and self._ping_seq not in self._in_flight.by_seq:
                self._on_ping_timeout()
            else:
                if silent and not self.is_pinging:
                    self._ping()
                self._flush()  # Expired frames no longer count as in flight.
        if self._queue.is_empty:
            self._times_late = 0
        self._watch()

    def _ping(self) -> None:
        self.is_pinging = True
        assert self._connection is not None
        self._ping_seq = self._queue.ping(self._transport.now(), self._connection.send)
        self._transport.flush()

    def _on_ping_timeout(self) -> None:
        """Mark the member as lost: it has answered neither a frame nor the ping."""
        self.is_pinging = False
        asked_at = self._queue.waits_since(self.received_at)
        silence = self._transport.now() - (self.received_at if asked_at is None else asked_at)
        self._disconnect("no answer")
        self._state = _State.CONNECTING
        host, port = self._destination.address
        reason = f"{host}:{port} has not answered for {silence:.2g} s"
        self._on_disconnected(PeerUnavailable(reason))
