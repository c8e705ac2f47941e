"""One side of a connection of the memory transport.

It keeps messages in order and handles the end of a connection. `memory` simulates the link between
the two sides.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from ringfence.transport.addresses import format_address
from ringfence.transport.close_reason import TransportCode
from ringfence.transport.interface import Accept, Address, Handler, Timer
from ringfence.wire.errors import ErrorCode
from ringfence.wire.framing import frame

__all__ = ["MemoryConnection"]


class _Network(Protocol):
    """Interface of the simulated network that a connection uses; see `MemoryNetwork`."""

    def add(self, side: "MemoryConnection") -> None:
        """Register one side of a new connection."""

    def remove(self, side: "MemoryConnection") -> None:
        """Remove one side of a closed connection."""

    def deliver_open(self, side: "MemoryConnection") -> None:
        """Deliver the first packet of a new connection."""

    def arrival(self, link: frozenset[Address], not_before: float) -> float:
        """Return the arrival time of a message that is sent now."""

    def queued_s(self, address: Address) -> float:
        """Return the seconds that the latest message waits in the queue of a busy host."""

    def is_cut(self, side: "MemoryConnection") -> bool:
        """Return whether the link of a connection is cut."""


class _Transport(Protocol):
    """Interface of the transport that owns a connection; see `MemoryTransport`."""

    accept: Accept | None
    held_up_ns: int
    is_alive: bool

    @property
    def address(self) -> Address:
        """Local address of the transport."""

    @property
    def network(self) -> _Network:
        """Simulated network of the transport."""

    def now(self) -> float:
        """Return the monotonic time in seconds."""

    def call_at(self, when: float, call: Callable[[], None]) -> Timer:
        """Schedule a call for an instant."""

    def accept_connection(self, incoming: "MemoryConnection") -> None:
        """Accept or refuse an incoming connection."""

    def mark_unsent(self, side: "MemoryConnection") -> None:
        """Record that a connection has messages to send at the next flush."""

    def report(self, error: Exception) -> None:
        """Report an internal error to the owner of the transport."""


class MemoryConnection:
    """One side of a connection between two memory transports."""

    def __init__(self, transport: _Transport, address: Address, handler: Handler | None) -> None:
        self.transport = transport
        self.peer: MemoryConnection | None = None
        self.link = frozenset((transport.address, address))
        self._address = address
        self._handler = handler
        self._is_open = False
        self.binding = b""
        """Secret of this connection, see `Connection`; unique in the network."""
        self.is_closed = False
        """Whether the connection ended, by either side or by a timeout."""
        self._queue: deque[tuple[bytes, int]] = deque()
        """Messages to send, each with its size on the wire."""
        self._close_reason: tuple[int, str] | None = None
        self._unsent = 0
        self._last_arrival = 0.0
        self._resend_after = 0.0
        """Seconds after which the first packet is sent again if it is lost."""
        self._silence_timer: Timer | None = None
        self._is_peer_unreachable = False
        """Whether `_silence_timer` runs because the peer cannot reach this side."""
        transport.network.add(self)

    @property
    def address(self) -> Address:
        """Network address of the peer."""
        return self._address

    @property
    def is_open(self) -> bool:
        """Whether the handshake is done and neither side has closed."""
        return self._is_open

    @property
    def unsent(self) -> int:
        """Number of bytes that were sent and have not arrived."""
        return 0 if self.is_closed else self._unsent

    def send(self, payload: bytes) -> None:
        """Queue one message; a closed connection drops it."""
        size = len(frame(payload))
        if not self.is_closed:
            self._queue.append((payload, size))
            self._unsent += size
            self.transport.mark_unsent(self)

    def close(self, code: int = 0, reason: str = "") -> None:
        """Close the connection after all queued messages are sent; its handler is not called
        again."""
        if not self.is_closed:
            self._handler = None
            self._mark_closed()
            self._close_reason = code, reason
            self.transport.mark_unsent(self)

    def connect(self, timeout: float, resend_after: float) -> None:
        """Ask the peer to accept the connection, at most for `timeout` seconds.

        As in QUIC, a lost first packet is sent again: `resend_after` seconds later, and then after
        twice as long each time.
        """
        reason = f"handshake timed out (no answer from {format_address(self._address)})"
        self._start_silence_timer(timeout, TransportCode.HANDSHAKE_TIMEOUT, reason)
        self._resend_after = resend_after
        self._send_open()

    def open_again(self) -> None:
        """Send the first packet again after a pause, because the network has lost it."""
        pause, self._resend_after = self._resend_after, 2 * self._resend_after
        self.transport.call_at(self.transport.now() + pause, self._send_open)

    def _send_open(self) -> None:
        if not self.is_closed:
            self.transport.call_at(
                self.transport.network.arrival(self.link, 0.0),
                partial(self.transport.network.deliver_open, self),
            )

    def open(self) -> None:
        """Mark the connection as open, because the handshake is done."""
        if self.is_closed:
            return
        self._is_open = True
        if self._silence_timer is not None:
            self._silence_timer.cancel()
        if self._handler is None:
            assert self.transport.accept is not None
            self._run_handler(self._accept)
        if self._handler is not None and self._is_open:
            self._run_handler(partial(self._handler.on_open, self))
        self.transport.mark_unsent(self)

    def deliver_later(self, call: Callable[[], None]) -> None:
        """Schedule `call` for the time when a message sent now would arrive at the peer."""
        self._last_arrival = self.transport.network.arrival(self.link, self._last_arrival)
        queued = self.transport.network.queued_s(self.transport.address)
        if queued:
            call = partial(self._call_queued, queued, call)
        self.transport.call_at(self._last_arrival, call)

    def _call_queued(self, queued_s: float, call: Callable[[], None]) -> None:
        self.transport.held_up_ns += round(queued_s * 1e9)
        call()

    def send_queued(self) -> None:
        """Send the queued messages, unless the link is cut."""
        peer = self.peer
        if (
            peer is None
            or not (self._is_open or self._close_reason)
            or self.transport.network.is_cut(self)
        ):
            return
        while self._queue:
            message = self._queue.popleft()
            peer.deliver_later(partial(self._deliver_message, peer, *message))
        if self._close_reason is not None:
            peer.deliver_later(partial(peer.abort, *self._close_reason))
            self._close_reason = None

    def abort(self, code: int, reason: str) -> None:
        """End the connection because of a network fault or a close by the peer."""
        if self.is_closed:
            return
        self._mark_closed()
        handler, self._handler = self._handler, None
        if handler is not None:
            self._run_handler(lambda: handler.on_close(code, reason))

    def start_idle_timeout(self, timeout: float) -> None:
        """Start the idle time-out, because the peer can no longer reach this connection."""
        if self._is_open and not self._is_peer_unreachable:
            self._is_peer_unreachable = True
            reason = f"idle timeout: {format_address(self._address)} went silent"
            self._start_silence_timer(timeout, ErrorCode.IDLE, reason)

    def cancel_idle_timeout(self) -> None:
        """Undo `start_idle_timeout`, because the peer can reach this connection again."""
        if self._is_peer_unreachable and self._silence_timer is not None:
            self._is_peer_unreachable = False
            self._silence_timer.cancel()

    def _deliver_message(self, peer: "MemoryConnection", payload: bytes, size: int) -> None:
        self._unsent -= size
        if peer._handler is not None and peer._is_open:
            peer._run_handler(partial(peer._handler.on_message, payload))

    def _start_silence_timer(self, timeout: float, code: int, reason: str) -> None:
        self._silence_timer = self.transport.call_at(
            self.transport.now() + timeout, partial(self.abort, code, reason)
        )

    def _accept(self) -> None:
        assert self.transport.accept is not None
        self._handler = self.transport.accept(self)

    def _run_handler(self, call: Callable[[], None]) -> None:
        """Call the handler; an exception in it ends only this connection."""
        try:
            call()
        except Exception as error:  # noqa: BLE001
            self.transport.report(error)
            handler = self._handler
            self.close(ErrorCode.INTERNAL, "internal error")
            if handler is not None:
                handler.on_close(ErrorCode.INTERNAL, "internal error")

    def _mark_closed(self) -> None:
        self._is_open = False
        self.is_closed = True
        if self._silence_timer is not None:
            self._silence_timer.cancel()
        self.transport.network.remove(self)
