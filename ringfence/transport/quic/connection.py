"""One QUIC connection as a `Connection`: its states, its one stream, its end.

Decides when a connection is open, what ends it and who is told why. Which datagram belongs to which
pipe, how many pipes there may be and when their timers run is the endpoint's business.
"""

from collections.abc import Callable, Sequence
from enum import Enum, auto
from math import inf
from typing import Protocol

from aioquic.quic.events import (
    ConnectionIdIssued,
    ConnectionIdRetired,
    HandshakeCompleted,
    StopSendingReceived,
    StreamDataReceived,
    StreamReset,
)

from ringfence.transport.close_reason import (
    CloseReason,
    by_path,
    by_peer,
    by_us,
    clean,
    text_of,
)
from ringfence.transport.interface import Address, Handler
from ringfence.transport.quic.aioquic_connection import STREAM, AioquicConnection, Datagrams
from ringfence.wire.errors import BadMessage, ErrorCode
from ringfence.wire.framing import MAX_MESSAGE, Framer, frame

__all__ = ["Owner", "QuicConnection", "State"]

_HEAD = 23
"""Bytes of a datagram that hold its connection ids, whichever of its two forms it has."""


class State(Enum):
    """Where a pipe is in its life; it only moves down this list."""

    RESOLVING = auto()
    CONNECTING = auto()
    OPEN = auto()
    CLOSED = auto()


class Owner(Protocol):
    """What a pipe tells the endpoint that it belongs to."""

    def wake(self, pipe: "QuicConnection") -> None:
        """It may have something to send."""

    def plan(self, pipe: "QuicConnection") -> None:
        """It has nothing to send, but perhaps an earlier deadline."""

    def route(self, cid: bytes, pipe: "QuicConnection") -> None:
        """Datagrams for `cid` are this pipe's."""

    def unroute(self, cid: bytes) -> None:
        """`cid` is no longer in use."""

    def opened(self, pipe: "QuicConnection") -> Handler | None:
        """The handshake is done: name the handler of an incoming connection, None to refuse it."""

    def ended(self, pipe: "QuicConnection") -> None:
        """It is closed; its QUIC state may have a last datagram to send."""

    def refused(self, cause: str) -> None:
        """Count something that was not accepted."""

    def bug(self, error: Exception) -> None:
        """Report an exception that should not have been raised."""


class QuicConnection:
    """A `Connection` over QUIC. Made by the endpoint alone."""

    def __init__(
        self, owner: Owner, address: Address, handler: Handler | None, server_name: str | None
    ) -> None:
        self._owner = owner
        self._address = address
        self._handler = handler
        self.server_name = server_name
        """Name that the peer's certificate must carry."""
        self._framer = Framer()
        self._early: list[bytes] = []
        self._early_size = 0
        self._parting: tuple[int, str] | None = None
        self._head = b""
        self._stream_exists = False
        self._is_stranger = False
        self._heard_at = 0.0
        self.is_incoming = handler is None
        self.state = State.RESOLVING
        self.quic: AioquicConnection | None = None
        self.cids: set[bytes] = set()
        self.path = address
        """Where datagrams go now: `address`, or one of the addresses it stands for."""
        self.candidates: Sequence[Address] = ()
        """Addresses still to be tried, if `path` does not answer."""
        self.attempt_ends = inf
        self.connect_ends = inf
        self.keepalive = inf
        self.ping_at = inf
        self.window = 0
        """Flow-control window from our first message on."""
        self.planned = inf
        """The endpoint's note of when it will look at the deadline."""

    def __repr__(self) -> str:
        way = "from" if self.is_incoming else "to"
        return f"<QuicConnection {way} {text_of(self.address)} {self.state.name}>"

    @property
    def address(self) -> Address:
        """Where the peer is; for a connection of our own, the address as it was asked for."""
        return self._address

    @property
    def is_open(self) -> bool:
        """Whether the handshake is done and nobody has closed."""
        return self.state is State.OPEN

    @property
    def binding(self) -> bytes:
        """See `Connection`."""
        return b"" if self.state is not State.OPEN or self.quic is None else self.quic.binding

    @property
    def unsent(self) -> int:
        """Bytes accepted by `send` that the peer has not acknowledged."""
        if self.state is State.CLOSED:
            return 0
        return self._early_size + (0 if self.quic is None else self.quic.unacknowledged)

    def send(self, payload: bytes) -> None:
        """Queue one message; dropped when the connection is closed."""
        if self.state is State.CLOSED:
            return
        message = frame(payload)
        if self._stream_exists:
            assert self.quic is not None
            if self._is_stranger:
                self._trust()
            self.quic.send_stream_data(STREAM, message)
            self._owner.wake(self)
        else:
            self._early.append(message)
            self._early_size += len(message)

    def distrust(self, most: int) -> None:
        """Take only messages of at most `most` bytes until the first message of ours is sent."""
        self._is_stranger = True
        self._framer.limit = most

    def close(self, code: int = 0, reason: str = "") -> None:
        """Close once what was sent before has left; the handler hears nothing more."""
        self._handler = None
        self.end(CloseReason(code, reason), tell=True)

    def start(self, quic: AioquicConnection, path: Address) -> None:
        """Begin, or begin anew, the handshake with `path`."""
        for cid in list(self.cids):
            self._owner.unroute(cid)
        self.quic = quic
        self.path = path
        self._head = b""
        self.state = State.CONNECTING
        self._owner.route(quic.host_cid, self)
        self._owner.wake(self)

    def receive(self, datagram: bytes, path: Address, now: float) -> None:
        """Take one datagram that carries one of our connection ids."""
        assert self.quic is not None
        self._heard_at = now
        if self._guard(self.quic.receive_datagram, datagram, path, now):
            self._take_events()
        if self.state is State.OPEN and self.quic.is_quiet(now):
            self._owner.plan(self)
        else:
            self._owner.wake(self)

    def tick(self, now: float) -> None:
        """Do what is due by the clock, except giving up an attempt; harmless when early."""
        quic = self.quic
        if quic is not None:
            due = quic.get_timer()
            if due is not None and now >= due and self._guard(quic.handle_timer, now):
                self._take_events()
        if self.state is State.OPEN and quic is not None and now >= self.ping_at:
            self.ping_at = self._heard_at + self.keepalive
            if now >= self.ping_at:
                quic.send_ping(0)
                self.ping_at = now + self.keepalive
        self._owner.wake(self)

    def deadline(self) -> float:
        """When `tick` should come next, or the present attempt is to be given up."""
        due = None if self.quic is None else self.quic.get_timer()
        return min(inf if due is None else due, self.attempt_ends, self.ping_at)

    def transmit(self, now: float) -> Datagrams:
        """Hand out the datagrams that may leave now."""
        if self.quic is None:
            return []
        datagrams: Datagrams = []
        try:
            datagrams = self.quic.urgent_datagrams(now)
            if self._parting is not None:
                code, reason = self._parting
                self._parting = None
                self.quic.close(error_code=code, reason_phrase=reason)
                datagrams += self.quic.datagrams_to_send(now)
                self.quic.release()
        except Exception as error:  # noqa: BLE001 - aioquic's own bugs must stay within one pipe.
            self._break(error)
        if datagrams:
            self._head = datagrams[-1][0][:_HEAD]
        return datagrams

    def sent(self, quoted: bytes) -> bool:
        """Whether `quoted`, the front of a datagram, names this pipe's connection ids.

        Only the peer and routers on the way know them, so a forged ICMP error cannot end a pipe.
        """
        head = self._head
        if len(head) < _HEAD or len(quoted) < _HEAD or (head[0] ^ quoted[0]) & 0x80:
            return False
        return head[1:9] == quoted[1:9] if head[0] < 0x80 else head[1:_HEAD] == quoted[1:_HEAD]

    def end(self, closing: CloseReason, *, tell: bool) -> None:
        """Close for good; with `tell`, let the peer know the code and reason too."""
        if self.state is State.CLOSED:
            return
        self.state = State.CLOSED
        self.attempt_ends = self.ping_at = inf
        self._early.clear()
        if self.quic is not None and not tell:
            self.quic.release()
        if tell:
            self._parting = (closing.code, _fitting(closing.reason))
            self._owner.wake(self)
        self._owner.ended(self)
        handler, self._handler = self._handler, None
        if handler is not None:
            try:
                handler.on_close(closing.code, closing.reason)
            except Exception as error:  # noqa: BLE001
                self._owner.bug(error)

    def _take_events(self) -> None:
        quic = self.quic
        assert quic is not None
        while (event := quic.next_event()) is not None:
            match event:
                case StreamDataReceived():
                    self._take_stream(event)
                case HandshakeCompleted():
                    self._open()
                case ConnectionIdIssued():
                    self._owner.route(event.connection_id, self)
                case ConnectionIdRetired():
                    self._owner.unroute(event.connection_id)
                case StreamReset() | StopSendingReceived():
                    self._violated("stream_reset", "the stream was reset")
                case _:
                    pass  # Acknowledged pings and the like change nothing.
        if self.state is not State.CLOSED and quic.closing is not None:
            self._quic_ended()

    def _open(self) -> None:
        if self.state is not State.CONNECTING:
            return None
        self.state = State.OPEN
        self.attempt_ends = inf
        if self.is_incoming:
            self._handler = self._owner.opened(self)
            if self._handler is None:
                return self.end(CloseReason(ErrorCode.INTERNAL, "internal error"), tell=True)
        else:
            self._owner.opened(self)
            self.ping_at = self._heard_at + self.keepalive
            self._send_early()
        return self._tell(None)

    def _send_early(self) -> None:
        """The stream can carry data from here on."""
        assert self.quic is not None
        self._stream_exists = True
        for message in self._early:
            self.quic.send_stream_data(STREAM, message)
        self._early.clear()
        self._early_size = 0

    def _take_stream(self, event: StreamDataReceived) -> None:
        if self.state is State.CLOSED:
            return None
        if event.stream_id != STREAM or self.state is not State.OPEN:
            return self._violated("unexpected_stream", f"stream {event.stream_id} is not in use")
        if not self._stream_exists:
            self._send_early()
        if not self._take_bytes(event.data):
            return None
        if event.end_stream:
            self._violated("stream_ended", "the stream was ended")
        return None

    def _take_bytes(self, data: bytes) -> bool:
        """Tell the handler the messages that `data` completes; whether all of it was in order."""
        try:
            is_stranger = self._is_stranger
            messages = self._framer.feed(data)
            for message in messages:
                self._tell(message)
            while is_stranger and messages and self.state is State.OPEN:
                # The handler may have answered meanwhile, which allows longer messages.
                is_stranger = self._is_stranger
                messages = self._framer.feed(b"")
                for message in messages:
                    self._tell(message)
        except BadMessage as bad:
            self._owner.refused(f"frame_{bad.cause}")
            self.end(CloseReason(bad.code, bad.reason), tell=True)
            return False
        return True

    def _trust(self) -> None:
        """The peer was sent an answer: from here on it may send as much as any other."""
        assert self.quic is not None
        self._is_stranger = False
        self.quic.window = self.window
        self._framer.limit = MAX_MESSAGE

    def _tell(self, message: bytes | None) -> None:
        """Give the handler a message, or with None the news that the connection is open."""
        if self._handler is None or self.state is not State.OPEN:
            return
        try:
            if message is None:
                self._handler.on_open(self)
            else:
                self._handler.on_message(message)
        except Exception as error:  # noqa: BLE001 - one connection's bug must not stop the others.
            self._owner.refused("handler_failed")
            self._owner.bug(error)
            self.end(CloseReason(ErrorCode.INTERNAL, "internal error"), tell=True)

    def _violated(self, cause: str, reason: str) -> None:
        if self.state is not State.CLOSED:
            self._owner.refused(cause)
            self.end(CloseReason(ErrorCode.BAD_MESSAGE, reason), tell=True)

    def _quic_ended(self) -> None:
        assert self.quic is not None
        event = self.quic.closing
        assert event is not None
        code, reason = event.error_code, event.reason_phrase
        connecting = self.state is State.CONNECTING
        if self.quic.closed_here:
            self._owner.refused("handshake_failed" if connecting else "quic_broken")
            closing = by_us(code, reason, self.path, self.server_name)
        elif self.quic.closed_there:
            if connecting and self.is_incoming:
                self._owner.refused("handshake_refused_by_peer")
            closing = by_peer(code, event.frame_type is None, reason, self.path)
        else:
            closing = by_path(reason, self.path)
        self.end(closing, tell=False)

    def _guard(self, call: Callable[..., None], *arguments: object) -> bool:
        try:
            call(*arguments)
        except Exception as error:  # noqa: BLE001 - see `transmit`.
            self._break(error)
            return False
        return True

    def _break(self, error: Exception) -> None:
        self._owner.refused("quic_failed")
        self._owner.bug(error)
        self.quic = None
        reason = f"internal error: {clean(str(error))}"
        self.end(CloseReason(ErrorCode.INTERNAL, reason), tell=False)


def _fitting(reason: str) -> str:
    """Shorten `reason` so that the frame which carries it fits into any datagram."""
    return reason.encode()[:500].decode(errors="ignore")
