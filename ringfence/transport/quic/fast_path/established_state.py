"""A QUIC connection at rest: the parts of it that the short way of a packet needs.

At rest it has its handshake behind it, one path, one stream, and nothing else to say. Like `quic`,
this reads aioquic's private names.
"""

from math import inf

from aioquic.quic.connection import QuicConnection, QuicConnectionState
from aioquic.tls import Epoch

__all__ = ["CONNECTED", "EstablishedState"]

CONNECTED = QuicConnectionState.CONNECTED

_MAX_ACK_DELAY = 0.01
"""Seconds for which both sides, being ours, keep back an acknowledgement at most; aioquic says 25
ms of itself. What was lost with nothing behind it is repeated so much sooner."""
_IDLE_HOLDS = 1.0
"""Seconds for which the idle timeout, which hardly ever changes, is not worked out again."""


class EstablishedState:
    """The parts, found once: looking them up takes longer than using them."""

    __slots__ = (
        "_idle",
        "_idle_at",
        "cid_length",
        "crypto",
        "is_client",
        "loss",
        "path",
        "quic",
        "space",
        "stream",
        "stream_id",
        "zero_rtt",
    )

    def __init__(self, quic: QuicConnection, stream_id: int) -> None:
        """Made by `of`; the stream's number fits into one byte."""
        self.quic = quic
        self.crypto = quic._cryptos[Epoch.ONE_RTT]
        self.zero_rtt = quic._cryptos[Epoch.ZERO_RTT]
        self.space = quic._spaces[Epoch.ONE_RTT]
        self.loss = quic._loss
        self.path = quic._network_paths[0]
        self.stream = quic._streams[stream_id]
        self.stream_id = stream_id
        self.is_client = quic._is_client
        self.cid_length = len(quic.host_cid)
        self._idle = 0.0
        self._idle_at = -inf

    @classmethod
    def of(cls, quic: QuicConnection, stream_id: int) -> "EstablishedState | None":
        """Find the parts of a connection; None until it is at rest."""
        if not quic._handshake_confirmed or stream_id not in quic._streams:
            return None
        others = [space for epoch, space in quic._spaces.items() if epoch is not Epoch.ONE_RTT]
        loss = quic._loss
        is_established = (
            all([space.discarded for space in others])
            and loss._rtt_initialized
            and loss.handshake_confirmed
            and loss.peer_completed_address_validation
        )
        if not is_established:
            return None
        loss.max_ack_delay = min(loss.max_ack_delay, _MAX_ACK_DELAY)
        return cls(quic, stream_id)

    @property
    def is_usable(self) -> bool:
        """Whether the connection stands on the one path that it had from the start."""
        quic, path = self.quic, self.path
        paths = quic._network_paths
        return (
            quic._state is CONNECTED
            and not quic._close_pending
            and len(paths) == 1
            and paths[0] is path
            and path.is_validated
        )

    def idle_timeout(self, now: float) -> float:
        """Seconds of silence after which the connection ends."""
        if now - self._idle_at > _IDLE_HOLDS:
            self._idle = self.quic._idle_timeout()
            self._idle_at = now
        return self._idle
