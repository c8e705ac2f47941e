"""Settings of a QUIC endpoint: time-outs, sizes and limits on the number of connections."""

from msgspec import Struct
from msgspec.structs import replace

from ringfence.wire.framing import MAX_MESSAGE

__all__ = ["Settings"]


class Settings(Struct, frozen=True, kw_only=True):
    """Settings of a QUIC endpoint: times in seconds, sizes in bytes."""

    handshake_timeout: float = 5.0
    """Time-out of a handshake, over all addresses of a name."""
    idle_timeout: float = 30.0
    """Silence after which a connection is closed; the smaller of both sides' values applies."""
    keepalive: float = 10.0
    """Silence after which the side that opened the connection sends a QUIC PING, or up to a tenth
    earlier, together with the PINGs of other connections."""
    initial_rtt: float = 0.1
    """Assumed round trip before the first measurement. A lost first datagram costs twice this."""
    max_connections: int = 4096
    """Maximum of established incoming connections. Handshakes do not count towards it: otherwise
    they could use up all connections. So up to `max_half_open` more may be established."""
    max_half_open: int = 256
    """Maximum of incoming handshakes at once; one more drops the oldest of them."""
    retry_above: int = 64
    """Number of incoming handshakes from which a new sender must prove that it receives at its
    address (QUIC Retry). The proof costs no memory here."""
    receive_window: int = 2 << 20
    """Flow-control window: bytes that a peer may have in flight to us, per connection."""
    untrusted_receive_window: int = 64 << 10
    """Flow-control window of an incoming connection until we send on it for the first time. Any
    client can finish a handshake, and each connection may hold this many bytes and one message."""
    max_untrusted_message: int = 1 << 10
    """Maximum size of a message on such a connection; a longer one closes it."""
    max_datagram: int = 1200
    """Maximum UDP payload to other hosts; every path that carries QUIC carries 1200 bytes."""
    loopback_datagram: int = 16000
    """Maximum UDP payload within this host; aioquic writes no longer packets."""
    use_fast_path: bool = True
    """Whether packets of stream data and acknowledgements take the fast path instead of aioquic's
    general one. Both behave alike, but the general one costs several times the processor time."""

    def __post_init__(self) -> None:
        if not 0 < self.keepalive < self.idle_timeout:
            raise ValueError(
                f"keepalive must be above 0 and below idle_timeout ({self.idle_timeout}), "
                f"got {self.keepalive}"
            )
        for name in ("handshake_timeout", "initial_rtt"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")
        self._require("max_half_open", 1, self.max_connections)
        self._require("retry_above", 0, self.max_half_open)
        self._require("untrusted_receive_window", 4096, self.receive_window)
        self._require("max_untrusted_message", 1, MAX_MESSAGE)
        self._require("loopback_datagram", 1200, 16000)
        self._require("max_datagram", 1200, self.loopback_datagram)

    def _require(self, name: str, least: int, most: int) -> None:
        value = getattr(self, name)
        if not least <= value <= most:
            raise ValueError(f"{name} must be from {least} to {most}, got {value}")

    def for_path(self, *, is_loopback: bool) -> "Settings":
        """Return the settings for connections over loopback, or over a network."""
        return replace(self, max_datagram=self.loopback_datagram) if is_loopback else self
