"""One QUIC connection as a `Connection`: its states, its message stream and its end.

Decides when a connection is open, why it ends and which reason its handler gets. `endpoint` routes
datagrams to connections, limits their number and calls them when their timers are due.
"""

from collections.abc import Sequence
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

from ringfence.transport.addresses import format_address
from ringfence.transport.close_reason import (
    CloseReason,
    from_local_close,
    from_path_failure,
    from_peer_close,
    printable,
)
from ringfence.transport.interface import Address, Handler
from ringfence.transport.quic.aioquic_connection import STREAM, AioquicConnection, Datagrams
from ringfence.transport.settings import Settings
from ringfence.wire.errors import BadMessage, ErrorCode
from ringfence.wire.framing import MAX_MESSAGE, Framer, frame

__all__ = ["ConnectionEvents", "QuicConnection", "State"]

_HEADER_SIZE = 23
"""Bytes of a datagram that hold its connection ids, in a long or a short header."""

_MAX_REASON_BYTES = 500
"""Longest close reason that fits into any datagram."""


class State(Enum):
    """States of a connection, in the order in which it passes them."""

    RESOLVING = auto()
    CONNECTING = auto()
    OPEN = auto()
    CLOSED = auto()


class ConnectionEvents(Protocol):
    """Events that a connection reports to its endpoint."""

    def on_sendable(self, connection: "QuicConnection") -> None:
        """Report that the connection may have datagrams to send."""

    def on_deadline_changed(self, connection: "QuicConnection") -> None:
        """Report that the connection's next timer may now be due earlier, and that there is
        nothing to send."""

    def on_cid_added(self, cid: bytes, connection: "QuicConnection") -> None:
        """Report that datagrams with the connection id `cid` belong to a connection."""

    def on_cid_removed(self, cid: bytes) -> None:
        """Report that the connection id `cid` is no longer in use."""

    def on_open(self, connection: "QuicConnection") -> Handler | None:
        """Return the handler for an incoming connection whose handshake is done; None to refuse
        it."""

    def on_closed(self, connection: "QuicConnection") -> None:
        """Report that the connection is closed; there may be a last datagram to send."""

    def count_refusal(self, cause: str) -> None:
        """Count a rejected datagram or connection, by cause."""

    def report(self, error: Exception) -> None:
        """Report an exception raised by Ringfence or aioquic."""


class QuicConnection:
    """Connection over QUIC; only an `Endpoint` creates it."""

    def __init__(
        self,
        events: ConnectionEvents,
        address: Address,
        settings: Settings,
        *,
        deadline: float,
        handler: Handler | None = None,
        server_name: str | None = None,
    ) -> None:
        """`deadline` limits the handshake. Without a `handler`, the connection is incoming."""
        self._events = events
        self._address = address
        self._handler = handler
        self._keepalive = settings.keepalive
        self.receive_window = settings.receive_window
        self._framer = Framer(settings.max_untrusted_message if handler is None else MAX_MESSAGE)
        self._unsent_messages: list[bytes] = []
        """Messages that wait for the stream, with their total size in `_unsent_size`."""
        self._unsent_size = 0
        self._final_close: tuple[int, str] | None = None
        self._last_header = b""
        self._stream_exists = False
        self._received_at = 0.0
        self.is_incoming = handler is None
        self._is_untrusted = self.is_incoming
        """Whether the peer's limits are low, until this side sends the first message."""
        self.server_name = server_name
        """Name that the peer's certificate must carry."""
        self.state = State.RESOLVING
        self.quic: AioquicConnection | None = None
        self.cids: set[bytes] = set()
        self.path = address
        """Destination of datagrams: `address`, or one of the addresses of its name."""
        self.candidates: Sequence[Address] = ()
        """Addresses to try after `path`."""
        self.connect_deadline = self.attempt_deadline = deadline
        self._ping_at = inf
        self.timer_at = inf
        """Deadline of this connection in the endpoint's timers."""

    def __repr__(self) -> str:
        way = "from" if self.is_incoming else "to"
        return f"<QuicConnection {way} {format_address(self.address)} {self.state.name}>"

    @property
    def address(self) -> Address:
        """Address of the peer; for an outgoing connection, in the form that the caller gave."""
        return self._address

    @property
    def is_open(self) -> bool:
        """Whether the handshake is done and neither side has closed."""
        return self.state is State.OPEN

    @property
    def binding(self) -> bytes:
        """Secret of this connection that only its two peers know; see `Connection.binding`."""
        return b"" if self.state is not State.OPEN or self.quic is None else self.quic.binding

    @property
    def unsent(self) -> int:
        """Number of bytes that `send` accepted and the peer has not acknowledged."""
        if self.state is State.CLOSED:
            return 0
        return self._unsent_size + (0 if self.quic is None else self.quic.unacknowledged)

    def send(self, payload: bytes) -> None:
        """Queue one message; a closed connection drops it."""
        if self.state is State.CLOSED:
            return
        message = frame(payload)
        if self._stream_exists:
            assert self.quic is not None
            if self._is_untrusted:
                self._raise_limits()
            self.quic.send(message)
            self._events.on_sendable(self)
        else:
            self._unsent_messages.append(message)
            self._unsent_size += len(message)

    def close(self, code: int = 0, reason: str = "") -> None:
        """Close the connection after all queued messages are sent; its handler is not called
        again."""
        self._handler = None
        self.terminate(CloseReason(code, reason), notify_peer=True)

    def start(self, quic: AioquicConnection, path: Address) -> None:
        """Start a handshake over the network path `path`; it replaces an earlier attempt."""
        for cid in list(self.cids):
            self._events.on_cid_removed(cid)
        self.quic = quic
        self.path = path
        self._last_header = b""
        self.state = State.CONNECTING
        self._events.on_cid_added(quic.host_cid, self)
        self._events.on_sendable(self)

    def receive(self, datagram: bytes, path: Address, now: float) -> None:
        """Process one datagram that carries one of this connection's ids."""
        assert self.quic is not None
        self._received_at = now
        try:
            data = self.quic.receive(datagram, path, now)
        except Exception as error:  # noqa: BLE001 - see `datagrams_to_send`.
            self._fail(error)
        else:
            if data and self.state is State.OPEN:
                self._on_data(data)
            else:
                self._process_events()
        if self.state is State.OPEN and self.quic.is_quiet(now):
            self._events.on_deadline_changed(self)
        else:
            self._events.on_sendable(self)

    def tick(self, now: float) -> None:
        """Run the connection's timers that are due, except the handshake timer; has no effect
        when called early."""
        quic = self.quic
        if quic is not None:
            due = quic.get_timer()
            if due is not None and now >= due:
                self._run_timers(quic, now)
        if self.state is State.OPEN and quic is not None and now >= self._ping_at:
            self._ping_at = self._ping_after(self._received_at)
            if now >= self._ping_at:
                quic.send_ping(0)
                self._ping_at = self._ping_after(now)
        self._events.on_sendable(self)

    def next_deadline(self) -> float:
        """Return when to call `tick` next, or when the current handshake attempt fails."""
        due = None if self.quic is None else self.quic.get_timer()
        return min(inf if due is None else due, self.attempt_deadline, self._ping_at)

    def datagrams_to_send(self, now: float) -> Datagrams:
        """Return the datagrams that the connection can send now."""
        if self.quic is None:
            return []
        datagrams: Datagrams = []
        try:
            datagrams = self.quic.urgent_datagrams(now)
            if self._final_close is not None:
                code, reason = self._final_close
                self._final_close = None
                self.quic.close(error_code=code, reason_phrase=reason)
                datagrams += self.quic.datagrams_to_send(now)
                self.quic.release()
        except Exception as error:  # noqa: BLE001 - a bug in aioquic must end one connection only.
            self._fail(error)
        if datagrams:
            self._last_header = datagrams[-1][0][:_HEADER_SIZE]
        return datagrams

    def has_sent(self, quoted: bytes) -> bool:
        """Whether the quoted beginning of a datagram contains this connection's ids.

        Only the peer and routers on the path know them, so a forged ICMP error ends no connection.
        """
        header = self._last_header
        if len(header) < _HEADER_SIZE or len(quoted) < _HEADER_SIZE:
            return False
        if (header[0] ^ quoted[0]) & 0x80:
            return False
        end = 9 if header[0] < 0x80 else _HEADER_SIZE
        return header[1:end] == quoted[1:end]

    def terminate(self, reason: CloseReason, *, notify_peer: bool) -> None:
        """End the connection; with `notify_peer`, also send the code and reason to the peer."""
        if self.state is State.CLOSED:
            return
        self.state = State.CLOSED
        self.attempt_deadline = self._ping_at = inf
        self._unsent_messages.clear()
        if self.quic is not None and not notify_peer:
            self.quic.release()
        if notify_peer:
            text = reason.reason.encode()[:_MAX_REASON_BYTES].decode(errors="ignore")
            self._final_close = (reason.code, text)
            self._events.on_sendable(self)
        self._events.on_closed(self)
        handler, self._handler = self._handler, None
        if handler is not None:
            try:
                handler.on_close(reason.code, reason.reason)
            except Exception as error:  # noqa: BLE001 - as for any call of a handler.
                self._events.report(error)

    def _ping_after(self, since: float) -> float:
        """Return when to send a PING after silence since an instant.

        The result is rounded down to tenths of the interval, so that the PINGs of all connections
        of an idle process share one wake-up.
        """
        step = self._keepalive / 10
        return (since + self._keepalive) // step * step

    def _process_events(self) -> None:
        quic = self.quic
        assert quic is not None
        events = quic.events
        while events:
            event = events.popleft()
            match event:
                case StreamDataReceived():
                    self._on_stream_data(event)
                case HandshakeCompleted():
                    self._on_handshake_completed()
                case ConnectionIdIssued():
                    self._events.on_cid_added(event.connection_id, self)
                case ConnectionIdRetired():
                    self._events.on_cid_removed(event.connection_id)
                case StreamReset() | StopSendingReceived():
                    self._on_violation("stream_reset", "the stream was reset")
                case _:
                    pass  # Other events, such as acknowledged pings, change nothing.
        if self.state is not State.CLOSED and quic.closing is not None:
            self._on_quic_closed()

    def _on_handshake_completed(self) -> None:
        if self.state is not State.CONNECTING:
            return
        self.state = State.OPEN
        self.attempt_deadline = inf
        handler = self._events.on_open(self)
        if self.is_incoming:
            if handler is None:
                self.terminate(CloseReason(ErrorCode.INTERNAL, "internal error"), notify_peer=True)
                return
            self._handler = handler
        else:
            self._ping_at = self._ping_after(self._received_at)
            self._open_stream()
        self._call_handler(None)

    def _open_stream(self) -> None:
        """Send the messages that waited until the stream exists."""
        assert self.quic is not None
        self._stream_exists = True
        for message in self._unsent_messages:
            self.quic.send_stream_data(STREAM, message)
        self._unsent_messages.clear()
        self._unsent_size = 0

    def _on_stream_data(self, event: StreamDataReceived) -> None:
        if self.state is State.CLOSED:
            return
        if event.stream_id != STREAM or self.state is not State.OPEN:
            self._on_violation("unexpected_stream", f"stream {event.stream_id} is not in use")
            return
        if self._on_data(event.data) and event.end_stream:
            self._on_violation("stream_ended", "the stream was ended")

    def _on_data(self, data: bytes) -> bool:
        if not self._stream_exists:
            self._open_stream()
        return self._deliver(data)

    def _deliver(self, data: bytes) -> bool:
        """Pass the messages that `data` completes to the handler; return whether all were valid."""
        try:
            was_untrusted = self._is_untrusted
            messages = self._framer.feed(data)
            for message in messages:
                self._call_handler(message)
            while was_untrusted and messages and self.state is State.OPEN:
                # The handler may have sent an answer, which raises the limits of the framer.
                was_untrusted = self._is_untrusted
                messages = self._framer.feed(b"")
                for message in messages:
                    self._call_handler(message)
        except BadMessage as bad:
            self._events.count_refusal(f"frame_{bad.cause}")
            self.terminate(CloseReason(bad.code, bad.reason), notify_peer=True)
            return False
        return True

    def _raise_limits(self) -> None:
        """Raise the limits on the peer's data to the usual values, because the handler has answered
        the peer."""
        assert self.quic is not None
        self._is_untrusted = False
        self.quic.window = self.receive_window
        self._framer.limit = MAX_MESSAGE

    def _call_handler(self, message: bytes | None) -> None:
        """Pass a message to the handler; with None, notify the handler that the connection is
        open."""
        if self._handler is None or self.state is not State.OPEN:
            return
        try:
            if message is None:
                self._handler.on_open(self)
            else:
                self._handler.on_message(message)
        except Exception as error:  # noqa: BLE001 - one connection's bug must not stop the others.
            self._events.count_refusal("handler_failed")
            self._events.report(error)
            self.terminate(CloseReason(ErrorCode.INTERNAL, "internal error"), notify_peer=True)

    def _on_violation(self, cause: str, reason: str) -> None:
        if self.state is not State.CLOSED:
            self._events.count_refusal(cause)
            self.terminate(CloseReason(ErrorCode.BAD_MESSAGE, reason), notify_peer=True)

    def _on_quic_closed(self) -> None:
        assert self.quic is not None
        event = self.quic.closing
        assert event is not None
        code, text = event.error_code, event.reason_phrase
        connecting = self.state is State.CONNECTING
        if self.quic.closed_locally:
            self._events.count_refusal("handshake_failed" if connecting else "quic_broken")
            reason = from_local_close(code, text, self.path, self.server_name)
        elif self.quic.closed_by_peer:
            if connecting and self.is_incoming:
                self._events.count_refusal("handshake_refused_by_peer")
            reason = from_peer_close(code, event.frame_type is None, text, self.path)
        else:
            reason = from_path_failure(text, self.path)
        self.terminate(reason, notify_peer=False)

    def _run_timers(self, quic: AioquicConnection, now: float) -> None:
        try:
            quic.handle_timer(now)
        except Exception as error:  # noqa: BLE001 - see `datagrams_to_send`.
            self._fail(error)
        else:
            self._process_events()

    def _fail(self, error: Exception) -> None:
        self._events.count_refusal("quic_failed")
        self._events.report(error)
        self.quic = None
        reason = f"internal error: {printable(str(error))}"
        self.terminate(CloseReason(ErrorCode.INTERNAL, reason), notify_peer=False)
