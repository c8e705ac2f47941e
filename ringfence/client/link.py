"""One member as seen from here: a connection that is made when needed, batches, and heals itself.

Callers hand in batches; all that wait for this member leave together in one frame. The first batch
leaves at once when nothing is in flight; later ones leave when the tasks that are ready now have
had their say, so that nobody waits for a timer. A frame that was not answered when the connection
broke is sent again under its number, and the member answers it without counting twice. A member
that stays silent is given up quickly and tried again in the background.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from random import Random
from typing import Protocol, TypeAlias

from ringfence.client.asks import Ask, request_of, take_together
from ringfence.client.batch import Batch, Done, Verdicts
from ringfence.errors import (
    AccessDenied,
    LocalProtocolError,
    PeerUnavailable,
    RemoteProtocolError,
    RingfenceError,
    UntrustedPeer,
)
from ringfence.transport.closing import TransportCode, text_of
from ringfence.transport.interface import Address, Connection, Timer, Transport
from ringfence.wire import (
    MAX_DEADLINE_MS,
    Answer,
    ErrorCode,
    Goodbye,
    Hello,
    Members,
    Message,
    Ping,
    Pong,
    Refused,
    Rules,
    Stats,
    Welcome,
    decode,
    encode,
)

__all__ = ["CertificateExpired", "Link", "LinkListener", "LinkSettings"]

logger = logging.getLogger("ringfence.client")

Reply: TypeAlias = Members | Rules | Stats | Pong


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """How patient a link is; times in seconds."""

    answer_timeout: float = 0.5
    """A frame not answered for so long is given up; the caller may ask elsewhere."""
    backoff_least: float = 0.05
    backoff_most: float = 2.0
    """Pause between attempts to reach a lost member, doubling from least to most, jittered."""
    welcome_timeout: float = 5.0
    """A member that accepts a connection but does not say welcome for so long is lost."""
    max_waiting: int = 65_536
    """Checks waiting or in flight; one more is given up at once."""
    max_frames: int = 256
    """Frames in flight; a member remembers at least as many answers per sender."""


class CertificateExpired(PeerUnavailable):
    """The member's certificate is not valid at this time; that is an outage of the member."""


class LinkListener(Protocol):
    """Who wants to hear what a link learns by the way."""

    def on_versions(self, link: "Link", view: int, rules: int) -> None:
        """The member's view hash and rules version, with each of its answers."""

    def on_reachable(self, link: "Link", reachable: bool) -> None:
        """The member came within reach or was lost."""


class _State(Enum):
    IDLE = auto()
    CONNECTING = auto()
    READY = auto()
    LEAVING = auto()
    LOST = auto()
    CLOSED = auto()


@dataclass(slots=True)
class _Frame:
    payload: bytes
    sent_at: float
    asks: list[Ask] = field(default_factory=list)
    on_reply: Callable[[Reply | None], None] | None = None


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
    ) -> None:
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
        self._view = view
        self._state = _State.IDLE
        self._connection: Connection | None = None
        self._outbox: deque[Ask] = deque()
        self._calls: deque[
            tuple[Callable[[int], Message], Callable[[Reply | None], None], float]
        ] = deque()
        self._frames: dict[int, _Frame] = {}
        self._waiting_keys = 0
        self._next_seq = 1
        self._flush_planned = False
        self._heard_at = float("-inf")
        self._misses = 0
        self._attempts = 0
        self._lost = False
        self._timer: Timer | None = None
        self._retry: Timer | None = None

    @property
    def is_ready(self) -> bool:
        """Whether the member has said welcome and has not been lost since."""
        return self._state is _State.READY

    @property
    def is_lost(self) -> bool:
        """Whether the member was found out of reach; asks are given up at once until it is back."""
        return self._lost

    def ask(self, batch: Batch, *, hops: int = 0, stand_in: bool = False, done: Done) -> None:
        """Have the member decide `batch`; `done(None)` when it could not in time.

        `done(AccessDenied(...))` when our credential lacks the scope for it.

        At most `MAX_KEYS` rows; the router cuts larger batches.
        """
        if (
            self._lost
            or self._state is _State.CLOSED
            or self._waiting_keys + len(batch) > self._settings.max_waiting
        ):
            done(None)
            return
        self._waiting_keys += len(batch)
        self._outbox.append(Ask(batch, hops, stand_in, done, self._transport.now()))
        self._leave()

    def call(
        self, make: Callable[[int], Message], on_reply: Callable[[Reply | None], None]
    ) -> None:
        """Send the message that `make` builds for a sequence number; tell its reply, or None."""
        if self._lost or self._state is _State.CLOSED:
            on_reply(None)
            return
        self._calls.append((make, on_reply, self._transport.now()))
        self._leave()

    def open(self) -> None:
        """Begin to connect, so that the first check need not wait for the handshake."""
        if self._state is _State.IDLE:
            self._connect()

    def close(self) -> None:
        """Give up what waits, tell the member goodbye and stop."""
        self._state = _State.CLOSED
        for timer in (self._retry, self._timer):
            if timer is not None:
                timer.cancel()
        if self._connection is not None:
            self._connection.close(ErrorCode.OK, "the sender is closing")
            self._connection = None
        self._give_up_everything()

    # -- sending -------------------------------------------------------------------------------

    def _leave(self) -> None:
        if self._state is _State.IDLE:
            self._connect()
        if self._state is _State.READY:
            if not self._frames:
                self._send_outbox()
                self._transport.flush()
            elif not self._flush_planned:
                self._flush_planned = True
                self._transport.call_soon(self._send_planned)
        self._watch()

    def _send_planned(self) -> None:
        self._flush_planned = False
        if self._state is _State.READY:
            self._send_outbox()

    def _send_outbox(self) -> None:
        while self._calls:
            make, on_reply, asked_at = self._calls.popleft()
            seq = self._take_seq()
            self._send(seq, _Frame(encode(make(seq)), asked_at, on_reply=on_reply))
        while self._outbox and len(self._frames) < self._settings.max_frames:
            self._send_frame(take_together(self._outbox))

    def _send_frame(self, together: list[Ask]) -> None:
        seq = self._take_seq()
        now = self._transport.now()
        left = together[-1].asked_at + self._settings.answer_timeout - now
        deadline_ms = max(1, min(MAX_DEADLINE_MS, round(left * 1000)))
        try:
            payload = encode(request_of(together, seq, self._view(), deadline_ms))
        except LocalProtocolError as error:
            # Nothing an application passes may end the task that serves all its checks.
            if len(together) > 1:
                for each in together:  # Only one of them can be at fault.
                    self._send_frame([each])
                return
            logger.error("%d checks cannot be sent: %s", len(together[0].batch), error)
            self._give_up_asks(together)
        else:
            self._send(seq, _Frame(payload, now, together))

    def _send(self, seq: int, frame: _Frame) -> None:
        self._frames[seq] = frame
        assert self._connection is not None
        self._connection.send(frame.payload)

    def _take_seq(self) -> int:
        seq = self._next_seq
        self._next_seq += 1
        return seq

    # -- the connection ------------------------------------------------------------------------

    def _connect(self) -> None:
        self._state = _State.CONNECTING
        self._retry = None
        self._connection = self._transport.connect(self.address, self)
        self._transport.flush()

    def on_open(self, connection: Connection) -> None:
        """Say hello as soon as the path is encrypted."""
        connection.send(encode(self._hello))
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
        self._fail(self._error_of(code, reason))

    def _take(self, message: Message) -> None:
        match message:
            case Answer():
                frame = self._frames.pop(message.seq, None)
                if frame is not None:
                    self._answer(frame, message)
                self._listener.on_versions(self, message.view, message.rules)
            case Welcome() if self._state is _State.CONNECTING:
                self._welcome(message)
            case Members() | Rules() | Stats() | Pong():
                frame = self._frames.pop(message.seq, None)
                if frame is not None:
                    self._reply(frame, message)
            case Refused(seq=0):
                self._drop(message.code, message.reason)
            case Refused():
                frame = self._frames.pop(message.seq, None)
                if frame is not None:
                    self._refuse(frame, message)
            case Goodbye():
                self._bow_out(message.reason)
            case _:
                raise RemoteProtocolError(
                    f"a node does not send {type(message).__name__} to the side that asked"
                )
        if self._state is _State.LEAVING:
            self._close_if_answered()
        elif self._outbox and self._state is _State.READY and not self._flush_planned:
            self._flush_planned = True
            self._transport.call_soon(self._send_planned)

    def _bow_out(self, reason: str) -> None:
        """The member drains: it still answers what is in flight, but gets nothing more."""
        self.refusal = self._error_of(ErrorCode.DRAINING, reason)
        self._state = _State.LEAVING
        self._lost = True
        self._give_up_unsent()
        self._listener.on_reachable(self, False)
        self._close_if_answered()

    def _close_if_answered(self) -> None:
        if not self._frames:
            self._drop(ErrorCode.DRAINING, "it is leaving")

    def _welcome(self, welcome: Welcome) -> None:
        self.name = welcome.name
        self.refusal = None
        self._state = _State.READY
        assert self._connection is not None
        for frame in self._frames.values():  # The member remembers those it has answered.
            self._connection.send(frame.payload)
        self._send_outbox()
        self._lost = False
        self._listener.on_reachable(self, True)
        self._listener.on_versions(self, welcome.view, welcome.rules)
        self._watch()

    def _insist_on_welcome(self, connection: Connection) -> None:
        if self._connection is connection and self._state is _State.CONNECTING:
            self._drop(ErrorCode.HELLO_TIMEOUT, "it accepted the connection and said nothing")

    def _answer(self, frame: _Frame, answer: Answer) -> None:
        rows = sum([len(ask.batch) for ask in frame.asks])
        if len(answer.outcomes) != rows or not rows:
            self._give_up(frame)
            raise RemoteProtocolError(f"asked {rows} checks, was answered {len(answer.outcomes)}")
        self._attempts = 0
        verdicts = Verdicts(answer.outcomes, answer.sources)
        self._waiting_keys -= rows
        if len(frame.asks) == 1:
            frame.asks[0].done(verdicts)
            return
        start = 0
        for ask in frame.asks:
            stop = start + len(ask.batch)
            ask.done(verdicts.slice(start, stop))
            start = stop

    def _reply(self, frame: _Frame, reply: Reply) -> None:
        if frame.asks:
            self._give_up(frame)
            raise RemoteProtocolError(f"a request was answered by a {type(reply).__name__}")
        self._attempts = 0
        if frame.on_reply is not None:
            frame.on_reply(reply)

    def _refuse(self, frame: _Frame, refused: Refused) -> None:
        error = self._error_of(refused.code, refused.reason)
        if frame.on_reply is not None or not isinstance(error, AccessDenied):
            self.refusal = error
            self._give_up(frame)
            return
        for ask in frame.asks:  # Told to whoever asked; the next one may ask for something else.
            self._waiting_keys -= len(ask.batch)
            ask.done(error)

    def _drop(self, code: int, reason: str) -> None:
        """Close our side and try again later."""
        if self._connection is not None:
            self._connection.close(ErrorCode.OK, "")
            self._connection = None
        self._fail(self._error_of(code, reason))

    def _fail(self, error: RingfenceError) -> None:
        if self._state is _State.CLOSED:
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
        self._give_up_everything()
        if not self._lost:
            self._lost = True
            self._listener.on_reachable(self, False)

    def _again(self) -> None:
        self._retry = None
        if self._state is _State.LOST:
            self._connect()

    def _next_pause(self) -> float:
        settings = self._settings
        pause = min(settings.backoff_most, settings.backoff_least * 2.0**self._attempts)
        return pause * (0.5 + self._random.random() / 2)

    # -- giving up -----------------------------------------------------------------------------

    def _watch(self) -> None:
        """See to it that the oldest ask is looked at when its time is over."""
        if self._timer is None and (self._frames or self._outbox or self._calls):
            self._timer = self._transport.call_at(
                self._oldest() + self._settings.answer_timeout, self._on_timer
            )

    def _oldest(self) -> float:
        """When the longest waiting of all asks was made; never, when nothing waits."""
        ages = [next(iter(self._frames.values())).sent_at] if self._frames else []
        ages += [self._outbox[0].asked_at] if self._outbox else []
        ages += [self._calls[0][2]] if self._calls else []
        return min(ages, default=float("inf"))

    def _on_timer(self) -> None:
        self._timer = None
        if self._state is _State.CONNECTING and self._is_late(self._oldest()):
            self._lose()  # The attempt goes on; nobody else waits for it.
            return
        while self._outbox and self._is_late(self._outbox[0].asked_at):
            self._give_up_asks([self._outbox.popleft()])
        while self._calls and self._is_late(self._calls[0][2]):
            self._calls.popleft()[1](None)
        overdue = [seq for seq, frame in self._frames.items() if self._is_late(frame.sent_at)]
        frames = [self._frames.pop(seq) for seq in overdue]
        for frame in frames:
            self._give_up(frame)
        if self._state is _State.LEAVING:
            self._close_if_answered()
        elif self._state is _State.READY:
            if any(frame.sent_at > self._heard_at for frame in frames):
                self._on_silence()
            else:
                self._send_outbox()  # There is room again.
        self._watch()

    def _is_late(self, since: float) -> bool:
        # The very sum that the timer was set by: computed otherwise it could round past it, and the
        # timer would fire again and again at one instant of a virtual clock.
        return since + self._settings.answer_timeout <= self._transport.now()

    def _on_silence(self) -> None:
        """One unanswered frame raises a doubt, which a ping must settle; the second is proof."""
        self._misses += 1
        if self._misses > 1:
            self._misses = 0
            if self._connection is not None:
                self._connection.close(ErrorCode.OK, "no answer")
                self._connection = None
            self._state = _State.CONNECTING  # A member that was asked twice in vain is lost.
            self._fail(
                PeerUnavailable(
                    f"{self.address[0]}:{self.address[1]} has not answered for "
                    f"{self._settings.answer_timeout:g} s"
                )
            )
        else:
            seq = self._take_seq()
            self._send(seq, _Frame(encode(Ping(seq)), self._transport.now()))
            self._transport.flush()

    def _give_up(self, frame: _Frame) -> None:
        self._give_up_asks(frame.asks)
        if frame.on_reply is not None:
            frame.on_reply(None)

    def _give_up_asks(self, asks: Iterable[Ask]) -> None:
        for ask in asks:
            self._waiting_keys -= len(ask.batch)
            ask.done(None)

    def _give_up_unsent(self) -> None:
        outbox, self._outbox = self._outbox, deque()
        calls, self._calls = self._calls, deque()
        self._give_up_asks(outbox)
        for _, on_reply, _ in calls:
            on_reply(None)

    def _give_up_everything(self) -> None:
        frames, self._frames = self._frames, {}
        for frame in frames.values():
            self._give_up(frame)
        self._give_up_unsent()

    def _error_of(self, code: int, reason: str) -> RingfenceError:
        """Put in words of ours why the member does not serve us."""
        where = text_of(self.address)
        if code == ErrorCode.BAD_CREDENTIAL and not self._hello.credential:
            reason = f"{where}: this cluster wants a token: write ringfence://TOKEN@{where}"
        elif where not in reason:
            reason = f"{where}: {reason}"
        match code:
            case ErrorCode.BAD_CREDENTIAL | ErrorCode.NOT_PERMITTED:
                return AccessDenied(reason)
            case TransportCode.CERTIFICATE:
                return UntrustedPeer(reason)
            case TransportCode.CERTIFICATE_EXPIRED:
                return CertificateExpired(reason)
            case _:
                return PeerUnavailable(reason)
