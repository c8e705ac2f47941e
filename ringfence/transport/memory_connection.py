"""One side of a connection of the memory transport.

It determines the order of messages and the end of a connection. `memory` simulates the link between
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
    """The simulated links, as a connection uses them: see `MemoryNetwork`."""

    def add(self, end: "MemoryConnection") -> None:
        """Register a connection."""

    def remove(self, end: "MemoryConnection") -> None:
        """Remove a closed connection."""

    def knock(self, end: "MemoryConnection") -> None:
        """Deliver the first packet of a connection."""

    def arrival(self, link: frozenset[Address], not_before: float) -> float:
        """Return the arrival time of a message that leaves now."""

    def queued_s(self, address: Address) -> float:
        """Return the seconds that the latest arrival waits at a busy host."""

    def is_cut(self, end: "MemoryConnection") -> bool:
        """Return whether the link of a connection is cut."""


class _Home(Protocol):
    """The transport that owns a connection: see `MemoryTransport`."""

    accept: Accept | None
    held_up_ns: int
    is_alive: bool

    @property
    def address(self) -> Address:
        """Local address."""

    @property
    def network(self) -> _Network:
        """The simulated links."""

    def now(self) -> float:
        """Return the monotonic time in seconds."""

    def call_at(self, when: float, call: Callable[[], None]) -> Timer:
        """Plan a call."""

    def take(self, visitor: "MemoryConnection") -> None:
        """Answer a connection that arrives."""

    def will_send(self, end: "MemoryConnection") -> None:
        """Register a connection with messages for the next flush."""

    def report(self, error: Exception) -> None:
        """Report an internal error."""


class MemoryConnection:
    """A `Connection` between two memory transports."""

    def __init__(self, home: _Home, address: Address, handler: Handler | None) -> None:
        self.home = home
        self.peer: MemoryConnection | None = None
        self.link = frozenset((home.address, address))
        self._address = address
        self._handler = handler
        self._is_open = False
        self.binding = b""
        """Secret of this connection, see `Connection`; unique in the network."""
        self.is_closed = False
        """Whether the connection ended, by either side or by a timeout."""
        self._queue: deque[bytes] = deque()
        self._goodbye: tuple[int, str] | None = None
        self._unsent = 0
        self._last_arrival = 0.0
        self._silence_timer: Timer | None = None
        self._is_waiting_for_signs = False
        """Whether `_silence_timer` runs because the peer cannot reach this side."""
        home.network.add(self)

    @property
    def address(self) -> Address:
        """Address of the peer."""
        return self._address

    @property
    def is_open(self) -> bool:
        """Whether the handshake is done and neither side has closed."""
        return self._is_open

    @property
    def unsent(self) -> int:
        """Number of bytes that have not arrived."""
        return 0 if self.is_closed else self._unsent

    def send(self, payload: bytes) -> None:
        """Queue one message; a closed connection drops it."""
        size = len(frame(payload))
        if not self.is_closed:
            self._queue.append(payload)
            self._unsent += size
            self.home.will_send(self)

    def close(self, code: int = 0, reason: str = "") -> None:
        """Close after the messages sent before; the handler gets no further call."""
        if not self.is_closed:
            self._handler = None
            self._shut()
            self._goodbye = code, reason
            self.home.will_send(self)

    def knock(self, timeout: float) -> None:
        """Send the peer a request for a connection."""
        reason = f"handshake timed out (no answer from {format_address(self._address)})"
        self._wait(timeout, TransportCode.HANDSHAKE_TIMEOUT, reason)
        self.home.call_at(
            self.home.network.arrival(self.link, 0.0), partial(self.home.network.knock, self)
        )

    def open(self) -> None:
        """Open this side: the peer has answered, or this side is the answering one."""
        if self.is_closed:
            return
        self._is_open = True
        if self._silence_timer is not None:
            self._silence_timer.cancel()
        if self._handler is None:
            assert self.home.accept is not None
            self._guard(self._accept)
        self._tell(lambda handler: handler.on_open(self))
        self.home.will_send(self)

    def later(self, call: Callable[[], None]) -> None:
        """Plan `call` on this side for after the delay of one message."""
        self._last_arrival = self.home.network.arrival(self.link, self._last_arrival)
        queued = self.home.network.queued_s(self.home.address)
        if queued:
            call = partial(self._call_late, queued, call)
        self.home.call_at(self._last_arrival, call)

    def _call_late(self, queued_s: float, call: Callable[[], None]) -> None:
        self.home.held_up_ns += round(queued_s * 1e9)
        call()

    def depart(self) -> None:
        """Send the queued messages, unless the link is cut."""
        peer = self.peer
        if peer is None or not (self._is_open or self._goodbye) or self.home.network.is_cut(self):
            return
        while self._queue:
            payload = self._queue.popleft()
            peer.later(partial(self._arrive, peer, payload))
        if self._goodbye is not None:
            peer.later(partial(peer.lose, *self._goodbye))
            self._goodbye = None

    def lose(self, code: int, reason: str) -> None:
        """End the connection for a reason that this side did not cause."""
        if self.is_closed:
            return
        self._shut()
        handler, self._handler = self._handler, None
        if handler is not None:
            self._guard(lambda: handler.on_close(code, reason))

    def grow_silent(self, timeout: float) -> None:
        """Start the idle timeout, because the peer can no longer reach this side."""
        if self._is_open and not self._is_waiting_for_signs:
            self._is_waiting_for_signs = True
            reason = f"idle timeout: {format_address(self._address)} went silent"
            self._wait(timeout, ErrorCode.IDLE, reason)

    def hear_again(self) -> None:
        """Undo `grow_silent`: the peer can reach this side again."""
        if self._is_waiting_for_signs and self._silence_timer is not None:
            self._is_waiting_for_signs = False
            self._silence_timer.cancel()

    def _arrive(self, peer: "MemoryConnection", payload: bytes) -> None:
        self._unsent -= len(frame(payload))
        peer._tell(lambda handler: handler.on_message(payload))

    def _wait(self, timeout: float, code: int, reason: str) -> None:
        self._silence_timer = self.home.call_at(
            self.home.now() + timeout, partial(self.lose, code, reason)
        )

    def _accept(self) -> None:
        assert self.home.accept is not None
        self._handler = self.home.accept(self)

    def _tell(self, call: Callable[[Handler], None]) -> None:
        handler = self._handler
        if handler is not None and self._is_open:
            self._guard(lambda: call(handler))

    def _guard(self, call: Callable[[], None]) -> None:
        """Make a call of the handler; an exception ends only this connection."""
        try:
            call()
        except Exception as error:  # noqa: BLE001
            self.home.report(error)
            handler = self._handler
            self.close(ErrorCode.INTERNAL, "internal error")
            if handler is not None:
                handler.on_close(ErrorCode.INTERNAL, "internal error")

    def _shut(self) -> None:
        self._is_open = False
        self.is_closed = True
        if self._silence_timer is not None:
            self._silence_timer.cancel()
        self.home.network.remove(self)
