"""What a transport offers, whether QUIC or memory: messages over connections, and a little time.

Everything here is synchronous and happens on one task: handlers are called from the transport's
own loop and must neither wait nor raise. What they send leaves when the loop flushes.
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
"""Most bytes in one sealed datagram: with UDP's and IPv6's headers it passes any path QUIC does."""

Address: TypeAlias = tuple[str, int]
"""Host (IPv4, IPv6 or name) and UDP port."""


class Connection(Protocol):
    """One ordered, reliable, encrypted pipe of messages to a peer."""

    @property
    def address(self) -> Address:
        """Where the peer is."""

    @property
    def is_open(self) -> bool:
        """Whether the handshake is done and nobody has closed."""

    @property
    def binding(self) -> bytes:
        """Secret of this one connection that only its two ends know; empty until it is open.

        A credential made from it is worth nothing on any other connection.
        """

    @property
    def unsent(self) -> int:
        """Bytes accepted by `send` that the peer has not acknowledged; the sender bounds them."""

    def send(self, payload: bytes) -> None:
        """Queue one message of at most `MAX_MESSAGE` bytes; dropped when the connection is closed.

        Leaves at the end of the handler that called it, else at the next `Transport.flush`.
        """

    def close(self, code: int = 0, reason: str = "") -> None:
        """Close, telling the peer `code` and `reason`. One's own close does not call `on_close`."""


class Handler(Protocol):
    """What the owner of a connection is told."""

    def on_open(self, connection: Connection) -> None:
        """The handshake is done."""

    def on_message(self, payload: bytes) -> None:
        """One whole message came."""

    def on_close(self, code: int, reason: str) -> None:
        """The peer closed, the handshake failed, or the path went silent. Called at most once."""


Accept: TypeAlias = Callable[[Connection], Handler]
"""Called for each incoming connection before its `on_open`."""


OnSealed: TypeAlias = Callable[[bytes, Address], None]
"""Told of datagrams that are not QUIC, and where they came from."""


class Timer(Protocol):
    """A call planned by `Transport.call_at`."""

    def cancel(self) -> None:
        """Do not make the call; harmless when already made."""


class Transport(Protocol):
    """One local address from which connections are made and, with an `Accept`, taken."""

    @property
    def address(self) -> Address:
        """The bound address."""

    @property
    def refusals(self) -> Mapping[str, int]:
        """How often something was not accepted, by cause."""

    on_sealed: OnSealed | None
    """Told of sealed datagrams that come in; without it they are refused."""

    @property
    def held_up_ns(self) -> int:
        """Nanoseconds that what a handler is being called with waited in this host's kernel.

        A process that is stopped or too slow finds the datagrams of that time waiting. Exact from
        1 ms on; below that, the figure of the oldest datagram of the present read. 0 where the
        system does not report it.
        """

    def send_sealed(self, datagram: bytes, address: Address) -> None:
        """Send one datagram beside the connections: it may get lost, come twice, or late.

        Its first byte has bit 0x40 clear, which tells it from QUIC. Raises `LocalProtocolError`
        for any other, and above `MAX_SEALED` bytes. Nothing else that goes wrong is told, but
        counted in `refusals`; to a name, datagrams are lost until it has been looked up.
        """

    def now(self) -> float:
        """Monotonic seconds; only differences mean anything."""

    def connect(self, address: Address, handler: Handler, node: str = "") -> Connection:
        """Begin a connection; the handler is told of its fate later, never before this returns.

        `node` is the name of the node that must answer, when it is known. It is verified where
        each node has a certificate of its own.
        """

    def flush(self) -> None:
        """Send now what handlers and callers have queued."""

    def call_soon(self, call: Callable[[], None]) -> None:
        """Make `call` once all tasks that are ready now have run; then flush."""

    def call_at(self, when: float, call: Callable[[], None]) -> Timer:
        """Make `call` at `when` on the clock of `now`; then flush."""

    def report(self, error: Exception) -> None:
        """Report an internal error that a user of this transport has contained."""


def check_sealed(datagram: bytes) -> None:
    """Raise `LocalProtocolError` for what `Transport.send_sealed` must not send."""
    if not 0 < len(datagram) <= MAX_SEALED or datagram[0] & 0x40:
        raise LocalProtocolError(
            f"a sealed datagram has 1 to {MAX_SEALED} bytes and bit 0x40 of its first byte clear"
        )
