"""One member as seen from here: a connection that is made when needed, batches, and heals itself.

Callers hand in batches; all that wait for this member leave together in one frame. A lone one
leaves at once when nothing is in flight; others leave when the tasks that are ready now have had
their say, so that nobody waits for a timer. A frame that was not answered when the connection
broke is sent again under its number, and the member answers it without counting twice. A member
that stays silent is given up quickly and tried again in the background.

Decides when frames leave and what becomes of the connection; what is in them is `inflight`'s.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from enum import Enum, auto
from functools import partial
from random import Random
from typing import Protocol, TypeAlias

from ringfence.errors import AccessDenied, PeerUnavailable, RemoteProtocolError, RingfenceError
from ringfence.peering.coalescer import PendingBatch, new_pending_batch
from ringfence.peering.columns import SHED, Batch, Results
from ringfence.peering.columns import Done as OnDone
from ringfence.peering.link.errors import error_of
from ringfence.peering.link.inflight import REPLIES, Learn, Reply, RequestQueue
from ringfence.peering.link.outgoing import Ask
from ringfence.peering.link.settings import LinkSettings
from ringfence.peering.link.timeouts import TimeoutWatcher
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
    SubscribeDenials,
    Welcome,
    decode,
    encode,
)

__all__ = ["Link", "LinkListener", "Prove"]

Prove: TypeAlias = Callable[[Connection], bytes]
"""Makes the credential of a hello for one connection."""


_OVERLOADED = (ErrorCode.OVERLOADED, ErrorCode.TOO_LATE)
"""Refusals of an overloaded member: asking another member would add load."""


class _Denials(Protocol):
    def learn(self, teller: Hashable, batch: Batch, verdicts: Results, asked_at: float) -> None: ...

    def lift(self, teller: Hashable, keys: Sequence[bytes]) -> None: ...

    def forget(self, teller: Hashable) -> None: ...


class _Leases(Protocol):
    def recall(self, teller: Hashable, keys: Sequence[bytes], now: float) -> None: ...

    def forget(self, teller: Hashable) -> None: ...


class LocalMemory(Protocol):
    """What a client keeps of members' answers: the link passes on what changes it."""

    @property
    def denials(self) -> _Denials:
        """Denials that stand for a while."""

    @property
    def leases(self) -> _Leases:
        """Units that members have lent."""


class LinkListener(Protocol):
    """Who wants to hear what a link learns by the way."""

    def on_versions(self, link: "Link", view: int, rules: int) -> None:
        """The member's view hash and rules version, with each of its answers."""

    def on_reachable(self, link: "Link", reachable: bool) -> None:
        """The member came within reach or was lost."""

    def on_slots_free(self, tickets: list[int]) -> None:
        """The member keeps slots for these waiters."""


_HELD_UP_S = 0.05
"""A timer that is so late shows that this process was stopped or is far behind."""


class _State(Enum):
    IDLE = auto()
    CONNECTING = auto()
    READY = auto()
    LEAVING = auto()
    LOST = auto()
    CLOSED = auto()


class Link:
    """A member behind an address. Synchronous: used from the transport's own task only."""

    def __init__(
        self,
        transport: Transport,
        address: Address,
        hello: Hello,
        settings: LinkSettings,
        listener: LinkListener,
        random: Random,
        view: Callable[[], int],
        near: LocalMemory | None = None,
        prove: Prove | None = None,
        node: str = "",
    ) -> None:
        """`near`, when given, learns what this member denies, and borrows from it.

        `prove`, when given, makes the credential of the hello anew for each connection.
        `node` is the name of the node that must answer, when it is known.
        """
        self.address = address
        self.name = ""
        """The member's own name, once it has said welcome."""
        self.refusal: RingfenceError | None = None
        """Why the last attempt failed; None when the last one worked."""
        self._transport = transport
        self._hello = hello
        self._settings = settings
        self._listener = listener
        self._random = random
        self._flight = RequestQueue(settings, view, hello.session, transport.report)
        self._impatience = TimeoutWatcher(transport)
        self._state = _State.IDLE
        self._connection: Connection | None = None
        self._flush_planned = False
        self._heard_at = float("-inf")
        self._hello_at = 0.0
        self._misses = 0
        self._ping_seq = 0
        self._attempts = 0
        self._lost = False
        self._is_retired = False
        self._timer: Timer | None = None
        self._timer_due = 0.0
        self._retry: Timer | None = None
        self._near = near
        self._prove = prove
        self._node = node
        self._listen_seq = 0
        """Number of the question whether the member tells us of denials that end early."""
        self._may_listen = near is not None
        """Unless the member has shown that it does not know the question."""
        self.takes_reports = True
        """Unless the member has shown that it does not know reports of decisions."""
        self._is_reporting = False
        """Whether it was sent a report and has not answered."""
        self._learn: Learn | None = None
        """What learns from answers, as long as the member tells of what ends early."""

    @property
    def is_ready(self) -> bool:
        """Whether the member has said welcome and has not been lost since."""
        return self._state is _State.READY

    @property
    def is_listened_to(self) -> bool:
        """Whether the member tells us of denials that end early, and lends."""
        return self._learn is not None

    @property
    def silent_s(self) -> float:
        """Seconds for which the member has sent nothing although something was asked of it."""
        asked_at = self._flight.asked_since(self._heard_at)
        return 0.0 if asked_at is None else self._transport.now() - asked_at

    @property
    def is_lost(self) -> bool:
        """Whether the member was found out of reach; asks are given up at once until it is back."""
        return self._lost

    def answer_timeout(self, least: float, most: float) -> float:
        """See `Target`."""
        return self._flight.round_trips.timeout(least, most)

    def is_alive(self) -> bool:
        """See `Target`."""
        return self._state is _State.READY and not self._misses

    def ask(
        self, batch: Batch, *, hops: int = 0, stand_in: bool = False, done: OnDone
    ) -> Ask | None:
        """Have the member decide `batch`; `done(None)` when it could not in time.

        `done(AccessDenied(...))` when our credential lacks the scope for it, and `done(SHED)` when
        the member, or what waits here for it, is overloaded.

        At most `MAX_KEYS` rows; the router cuts larger batches.
        """
        flight = self._flight
        if self._lost or self._state is _State.CLOSED:
            done(None)
            return None
        if not flight.has_room(len(batch)):
            done(SHED)
            return None
        ask = flight.add(batch, hops, stand_in, done, self._transport.now())
        self._leave()
        return ask

    def join(self, key: bytes, cost: int, within: float | None) -> PendingBatch | None:
        """Send a lone check in a frame with others; None when it cannot: see `ask`.

        A check for which there is no room is shed. After `within` seconds, when given, the wait
        ends as `Late`.
        """
        crowd = self._flight.crowd
        if crowd is None or crowd.is_late or len(crowd.keys) >= crowd.room:
            if self._lost or self._state is _State.CLOSED:
                return None
            crowd = self._flight.open_crowd(self._transport.now())
            if crowd is None:
                crowd = new_pending_batch(self._transport.now(), 1)
                crowd.join(key, cost)
                crowd.resolve(SHED)
                return crowd
            crowd.join(key, cost)
            self._leave()
        else:
            crowd.join(key, cost)
        if within is not None:
            self._impatience.watch(crowd, within)
        return crowd

    def call(
        self,
        make: Callable[[int], Message],
        on_reply: Callable[[Reply | None], None],
        timeout: float | None = None,
    ) -> None:
        """Send the message that `make` builds for a sequence number; tell its reply, or None.

        `timeout` is how many seconds to wait when that is longer than for checks.
        """
        if self._lost or self._state is _State.CLOSED:
            on_reply(None)
            return
        patience = self._settings.answer_timeout if timeout is None else timeout
        self._flight.add_call(make, on_reply, self._transport.now(), patience)
        self._leave()

    def report(
        self, make: Callable[[int], Message], on_reply: Callable[[Reply | None], None]
    ) -> None:
        """Send a report of decisions, as `call` sends a question."""
        self._is_reporting = True

        def on_answer(reply: Reply | None) -> None:
            self._is_reporting = False
            on_reply(reply)

        self.call(make, on_answer)

    def open(self) -> None:
        """Begin to connect, so that the first check need not wait for the handshake."""
        if self._state is _State.IDLE:
            self._connect()

    def retire(self) -> None:
        """Take nothing new, wait for what is in flight as long as ever, then close.

        For a member that has left: it still answers what it was asked.
        """
        if self._state is _State.READY:
            self._send_waiting()
        if self._state not in (_State.READY, _State.LEAVING) or not self._flight.frames:
            self.close()
            return
        self._state = _State.LEAVING
        self._lost = self._is_retired = True
        self._flight.give_up_unsent()
        self._transport.flush()
        self._watch()

    def close(self) -> None:
        """Give up what waits, tell the member goodbye and stop."""
        self._state = _State.CLOSED
        for timer in (self._retry, self._timer):
            if timer is not None:
                timer.cancel()
        if self._connection is not None:
            self._connection.close(ErrorCode.OK, "the sender is closing")
            self._connection = None
        self._stop_listening()
        self._flight.give_up_everything()

    # -- sending -------------------------------------------------------------------------------

    def _leave(self) -> None:
        if self._state is _State.IDLE:
            self._connect()
        if self._state is _State.READY:
            if not self._flight.frames and not self._flight.is_busy:
                self._send_waiting()
                self._transport.flush()
            else:
                self._plan_to_send()
        self._watch()

    def _plan_to_send(self) -> None:
        if not self._flush_planned:
            self._flush_planned = True
            self._transport.call_soon(self._send_planned)

    def _send_planned(self) -> None:
        self._flush_planned = False
        if self._state is _State.READY:
            self._send_waiting()

    def _send_waiting(self) -> None:
        assert self._connection is not None
        self._flight.depart(self._transport.now(), self._connection.send)

    # -- the connection ------------------------------------------------------------------------

    def _connect(self) -> None:
        self._state = _State.CONNECTING
        self._retry = None
        self._connection = self._transport.connect(self.address, self, self._node)
        self._transport.flush()

    def on_open(self, connection: Connection) -> None:
        """Say hello as soon as the path is encrypted."""
        hello = self._hello
        if self._prove is not None:
            hello = replace(hello, credential=self._prove(connection))
        connection.send(encode(hello))
        self._hello_at = self._transport.now()
        self._transport.call_at(
            self._transport.now() + self._settings.welcome_timeout,
            partial(self._insist_on_welcome, connection),
        )

    def on_message(self, payload: bytes) -> None:
        """Take an answer; bytes that break the protocol cost the member this connection."""
        self._heard_at = self._transport.now()
        self._misses = 0
        try:
            message = decode(payload)
            self._take(message)
        except RemoteProtocolError as error:
            self._drop(ErrorCode.BAD_MESSAGE, str(error))

    def on_close(self, code: int, reason: str) -> None:
        """The connection is gone; what was in flight is sent again on the next one."""
        self._connection = None
        if code == ErrorCode.BAD_MESSAGE and self._listen_seq:
            self._may_listen = False  # An older member: it is asked as it always was.
        elif code == ErrorCode.BAD_MESSAGE and self._is_reporting:
            self.takes_reports = False  # An older member, too.
            self._flight.give_up_calls()
        self._fail(self._error_of(code, reason))

    def _take(self, message: Message) -> None:  # noqa: PLR0912 - one branch per message
        match message:
            case Answer():
                self._flight.measure(message.seq, self._heard_at)
                if self._flight.answer(message, self._learn):
                    self._attempts = 0
                else:
                    self._flight.answer_late(message)
                self._listener.on_versions(self, message.view, message.rules)
            case DenialRevoked(keys):
                if self._near is not None:
                    self._near.denials.lift(self, keys)
            case LeaseRecall(keys):
                if self._near is not None:
                    self._near.leases.recall(self, keys, self._transport.now())
            case SlotsFree(tickets):
                self._listener.on_slots_free(tickets)
            case Done(seq) if seq == self._listen_seq:
                self._listen_seq = 0
                if self._near is not None:
                    self._learn = partial(self._near.denials.learn, self)
            case Welcome() if self._state is _State.CONNECTING:
                self._welcome(message)
            case Refused(seq=0):
                self._drop(message.code, message.reason)
            case Refused():
                self._take_refusal(message)
            case Goodbye():
                self._bow_out(message.reason)
            case _ if isinstance(message, REPLIES):
                if self._flight.reply(message):
                    self._attempts = 0
            case _:
                raise RemoteProtocolError(
                    f"a node does not send {type(message).__name__} to the side that asked"
                )
        if self._state is _State.LEAVING:
            self._close_if_answered()
        elif self._state is _State.READY and self._flight.has_asks_waiting:
            self._plan_to_send()

    def _bow_out(self, reason: str) -> None:
        """The member drains: it still answers what is in flight, but gets nothing more."""
        self.refusal = self._error_of(ErrorCode.DRAINING, reason)
        self._state = _State.LEAVING
        self._lost = True
        self._flight.give_up_unsent()
        if not self._is_retired:
            self._tell_reachable(False)
        self._close_if_answered()

    def _close_if_answered(self) -> None:
        if not self._flight.frames:
            self._drop(ErrorCode.DRAINING, "it is leaving")

    def _welcome(self, welcome: Welcome) -> None:
        self.name = welcome.name
        self.refusal = None
        self._state = _State.READY
        self._flight.round_trips.sample(self._heard_at - self._hello_at)
        assert self._connection is not None
        if self._may_listen:
            self._listen_seq = self._flight.take_seq()
            self._connection.send(encode(SubscribeDenials(self._listen_seq)))
        self._flight.send_again(self._connection.send)  # The member remembers what it has answered.
        self._send_waiting()
        self._lost = False
        self._tell_reachable(True)
        self._listener.on_versions(self, welcome.view, welcome.rules)
        self._watch()

    def _insist_on_welcome(self, connection: Connection) -> None:
        if self._connection is connection and self._state is _State.CONNECTING:
            self._drop(ErrorCode.HELLO_TIMEOUT, "it accepted the connection and said nothing")

    def _take_refusal(self, refused: Refused) -> None:
        frame = self._flight.frames.get(refused.seq)
        if frame is None:
            return
        error = self._error_of(refused.code, refused.reason)
        if frame.on_reply is None and isinstance(error, AccessDenied):
            del self._flight.frames[refused.seq]
            self._flight.deny(frame, error)  # The next one may ask for something else.
        elif refused.code in _OVERLOADED:
            del self._flight.frames[refused.seq]
            self._flight.give_up(frame, SHED)
        else:
            self.refusal = error
            self._flight.refuse(refused.seq)

    def _tell_reachable(self, reachable: bool) -> None:
        """Tell the listener; what that raises must not keep this link from coming back."""
        try:
            self._listener.on_reachable(self, reachable)
        except Exception as error:  # noqa: BLE001
            self._transport.report(error)

    def _drop(self, code: int, reason: str) -> None:
        """Close our side and try again later."""
        if self._connection is not None:
            self._connection.close(ErrorCode.OK, "")
            self._connection = None
        self._fail(self._error_of(code, reason))

    def _stop_listening(self) -> None:
        """What ends early from now on we are not told: forget all that could."""
        self._listen_seq, self._learn = 0, None
        if self._near is not None:
            self._near.denials.forget(self)
            self._near.leases.forget(self)

    def _fail(self, error: RingfenceError) -> None:
        self._stop_listening()
        if self._state is _State.CLOSED:
            return
        if self._is_retired:
            self.close()
            return
        was_ready = self._state is _State.READY
        self.refusal = error
        self._state = _State.LOST
        if not was_ready or isinstance(error, AccessDenied):
            # A lost connection may come back at once; an attempt that failed will not.
            self._lose()
        if self._retry is None:
            # Back at once, unless the member welcomes us and hangs up time and again.
            is_first = was_ready and self._attempts == 0
            pause = 0.0 if is_first else self._next_pause()
            self._attempts = min(self._attempts + 1, 16)
            self._retry = self._transport.call_at(self._transport.now() + pause, self._again)

    def _lose(self) -> None:
        self._flight.give_up_everything()
        if not self._lost:
            self._lost = True
            self._tell_reachable(False)

    def _again(self) -> None:
        self._retry = None
        if self._state is _State.LOST:
            self._connect()

    def _next_pause(self) -> float:
        settings = self._settings
        pause = min(settings.backoff_most, settings.backoff_least * 2.0**self._attempts)
        return pause * (0.5 + self._random.random() / 2)

    # -- patience ------------------------------------------------------------------------------

    def _watch(self) -> None:
        """See to it that whoever waits longest is looked at when the time is over.

        Never later than the shortest time-out from now, so that what is asked while something with
        a longer one is waited for need not move the timer.
        """
        if self._timer is None and not self._flight.is_empty:
            settings = self._settings
            least = min(settings.answer_timeout_least, settings.answer_timeout)
            self._call_at(min(self._flight.first_due(), self._transport.now() + least))

    def _call_at(self, when: float) -> None:
        self._timer_due = when
        self._timer = self._transport.call_at(when, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now = self._transport.now()
        if now - self._timer_due > _HELD_UP_S:
            # This process was stopped, not the member: it first reads the member's messages.
            self._call_at(now + _HELD_UP_S)
            return
        if self._state is _State.CONNECTING and self._flight.first_due() <= now:
            self._lose()  # The attempt goes on; nobody else waits for it.
            return
        is_leaving = self._state is _State.LEAVING
        late = self._flight.give_up_late(now, self._heard_at, is_last=is_leaving)
        if self._state is _State.LEAVING:
            self._close_if_answered()
        elif self._state is _State.READY:
            if self._misses and self._ping_seq not in self._flight.frames:
                self._on_proof()
            elif late and not self._misses:
                self._on_silence()
            else:
                self._send_waiting()  # There is room again.
        self._watch()

    def _on_silence(self) -> None:
        """Ping a member that has not answered a frame in time."""
        self._misses += 1
        assert self._connection is not None
        self._ping_seq = self._flight.ping(self._transport.now(), self._connection.send)
        self._transport.flush()

    def _on_proof(self) -> None:
        """Mark the member as lost: it has not answered the ping either."""
        self._misses = 0
        silence = self._transport.now() - self._heard_at
        if self._connection is not None:
            self._connection.close(ErrorCode.OK, "no answer")
            self._connection = None
        self._state = _State.CONNECTING
        where = f"{self.address[0]}:{self.address[1]}"
        self._fail(PeerUnavailable(f"{where} has not answered for {silence:.2g} s"))

    def _error_of(self, code: int, reason: str) -> RingfenceError:
        return error_of(
            code, reason, self.address, has_credential=bool(self._hello.credential or self._prove)
        )
