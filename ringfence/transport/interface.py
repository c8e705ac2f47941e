"""Interface of a transport: connections that carry messages, datagrams, and timed calls.

All methods are synchronous and run on one task. The transport's loop calls the handlers, which must
not wait and must not raise. Messages that they send leave when the loop flushes.
"""

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

from ringfence.errors import LocalProtocolError

__all__ = [
    "Accept",
    "Address",
    "Connection",
    "Handler",
    "MAX_SEALED",
    "OnSealed",
    "Timer",
    "Transport",
    "check_sealed",
]

MAX_SEALED = 1178
"""Maximum size of a sealed datagram; with UDP and IPv6 headers it fits every path of QUIC."""

Address: TypeAlias = tuple[str, int]
"""Host (IPv4, IPv6 or name) and UDP port."""


class Connection(Protocol):
    """Ordered, reliable, encrypted connection that carries messages to a peer."""

    @property
    def address(self) -> Address:
        """Network address of the peer."""

    @property
    def is_open(self) -> bool:
        """Whether the handshake is done and neither side has closed."""

    @property
    def binding(self) -> bytes:
        """Secret of this connection that only its two peers know; empty until the connection is
        open.

        A credential that contains it is not valid on any other connection.
        """

    @property
    def unsent(self) -> int:
        """Number of bytes that `send` accepted and the peer has not acknowledged; callers must
        limit it."""

    def send(self, payload: bytes) -> None:
        """Queue one message of at most `MAX_MESSAGE` bytes; a closed connection drops it.

        The message leaves at the end of the calling handler, or at the next `Transport.flush`.
        """

    def close(self, code: int = 0, reason: str = "") -> None:
        """Close the connection and send `code` and `reason` to the peer; the local `on_close` is
        not called."""


class Handler(Protocol):
    """Callbacks that the user of a connection implements."""

    def on_open(self, connection: Connection) -> None:
        """Handle the successful end of the handshake."""

    def on_message(self, payload: bytes) -> None:
        """Handle one complete message from the peer."""

    def on_close(self, code: int, reason: str) -> None:
        """Handle a close by the peer, a failed handshake, or a silent peer; called at most once."""


Accept: TypeAlias = Callable[[Connection], Handler]
"""Function called for each incoming connection before its `on_open`."""


OnSealed: TypeAlias = Callable[[bytes, Address], None]
"""Function called with a datagram that is not QUIC, and the address of its sender."""


class Timer(Protocol):
    """Call that `Transport.call_at` has scheduled."""

    def cancel(self) -> None:
        """Cancel the call; this has no effect when the call was already made."""


class Transport(Protocol):
    """One local address for outgoing connections and, with an `Accept` callback, for incoming
    ones."""

    @property
    def address(self) -> Address:
        """Local address to which the transport is bound."""

    @property
    def refusals(self) -> Mapping[str, int]:
        """Number of rejected datagrams and connections, by cause."""

    @property
    def held_up_ns(self) -> int:
        """Nanoseconds that a datagram waited in the kernel before its handler, which is now
        running, was called.

        Datagrams wait while this process is suspended or too slow. Exact from 1 ms on; below that,
        the value of the oldest datagram of the current read. 0 where the system does not report it.
        """

    def receive_sealed(self, handler: OnSealed | None) -> None:
        """Pass each received sealed (encrypted) datagram to `handler`; with None, refuse such
        datagrams."""

    def send_sealed(self, datagram: bytes, address: Address) -> None:
        """Send one sealed (encrypted) datagram without a connection: it may be lost, repeated or
        delayed.

        Bit 0x40 of its first byte must be clear, which distinguishes it from QUIC. Raises
        `LocalProtocolError` for any other, and above `MAX_SEALED` bytes. Other failures are only
        counted in `refusals`. A datagram to a name is lost until the name has been resolved.
        """

    def now(self) -> float:
        """Return monotonic seconds; only differences between two values have a meaning."""

    def connect(self, address: Address, handler: Handler, node: str = "") -> Connection:
        """Start to connect to an address; the connection's handler is never called before this
        method returns.

        `node` is the name of the node that must answer, empty when it is unknown. It is verified
        where each node has a certificate of its own.
        """

    def flush(self) -> None:
        """Send all messages that handlers and callers have queued."""

    def call_soon(self, call: Callable[[], None]) -> None:
        """Schedule `call` to run after the tasks that are ready now, followed by a flush."""

    def call_at(self, when: float, call: Callable[[], None]) -> Timer:
        """Schedule `call` for the instant `when` on the clock of `now`, followed by a flush."""

    def report(self, error: Exception) -> None:
        """Report an internal error that code which uses this transport has caught."""


def check_sealed(datagram: bytes) -> None:
    """Raise `LocalProtocolError` for a datagram that `Transport.send_sealed` must not send."""
    if not 0 < len(datagram) <= MAX_SEALED or datagram[0] & 0x40:
        raise LocalProtocolError(
            f"a sealed datagram must have 1 to {MAX_SEALED} bytes, bit 0x40 of the first clear, "
            f"got {len(datagram)} bytes"
        )
