"""How patient a QUIC endpoint is and how much it may hold. Decides no behaviour of its own."""

from dataclasses import dataclass, replace

from ringfence.wire.framing import MAX_MESSAGE

__all__ = ["Settings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Times in seconds, sizes in bytes, counts in connections."""

    handshake_timeout: float = 5.0
    """How long a handshake may take, over all the addresses that a name stands for."""
    idle_timeout: float = 30.0
    """Silence after which a connection is given up; the smaller of both sides' values holds."""
    keepalive: float = 10.0
    """Silence after which the side that opened the connection sends a QUIC PING."""
    initial_rtt: float = 0.1
    """Guess at the round trip before the first answer; a lost first datagram costs twice this."""
    max_connections: int = 4096
    """Most established connections from others; further ones are refused. Handshakes do not count,
    as they could keep callers out otherwise; those under way may exceed this by their own bound."""
    max_half_open: int = 256
    """Incoming handshakes at once; one more drops the oldest of them."""
    retry_above: int = 64
    """With this many incoming handshakes, newcomers must first prove that they receive at the
    address they send from (QUIC Retry); that costs us no memory."""
    window: int = 2 << 20
    """Bytes that a peer may have under way to us, per connection."""
    stranger_window: int = 64 << 10
    """The same for a connection that came in, until we send on it for the first time. Strangers can
    finish a handshake; each can make us hold this much, out of order, and one message."""
    stranger_message: int = 1 << 10
    """Most bytes of one message on such a connection; a longer one ends it at its length prefix."""
    max_datagram: int = 1200
    """Largest UDP payload we send to other hosts; 1200 passes wherever QUIC does."""
    loopback_datagram: int = 16000
    """The same within this host, where paths take 64 KiB; aioquic writes no longer packets."""

    def __post_init__(self) -> None:
        if not 0 < self.keepalive < self.idle_timeout:
            raise ValueError("keepalive must be positive and below idle_timeout")
        if self.handshake_timeout <= 0 or self.initial_rtt <= 0:
            raise ValueError("handshake_timeout and initial_rtt must be positive")
        if not 0 <= self.retry_above <= self.max_half_open <= self.max_connections:
            raise ValueError("need 0 <= retry_above <= max_half_open <= max_connections")
        if self.max_half_open < 1:
            raise ValueError("max_half_open must be at least 1")
        if not 4096 <= self.stranger_window <= self.window:
            raise ValueError("need 4096 <= stranger_window <= window")
        if not 1 <= self.stranger_message <= MAX_MESSAGE:
            raise ValueError(f"need 1 <= stranger_message <= {MAX_MESSAGE}")
        if not 1200 <= self.max_datagram <= self.loopback_datagram <= 16000:
            raise ValueError("need 1200 <= max_datagram <= loopback_datagram <= 16000")

    def within_host(self) -> "Settings":
        """The settings for connections on the loopback."""
        return replace(self, max_datagram=self.loopback_datagram)

    @classmethod
    def lan(cls) -> "Settings":
        """For members of one data center: a lost first datagram is sent again after 40 ms."""
        return cls(initial_rtt=0.02)

    @classmethod
    def wan(cls) -> "Settings":
        """Between data centers: long round trips, and handshakes that may need a second try."""
        return cls(initial_rtt=0.2, handshake_timeout=10.0)
