"""The shortest way of a packet through a QUIC connection at rest: stream data, acknowledgements.

Nearly all packets are of this kind, and aioquic, which must be ready for every other, takes several
times as long for them. Whatever does not fit exactly is left to aioquic, untouched; what fits
leaves aioquic's state as it would have. `swift_in` takes packets, `swift_out` makes them.
"""

from aioquic.quic.connection import QuicConnection

from ringfence.transport.swift_in import Inward
from ringfence.transport.swift_out import Outward
from ringfence.transport.swift_rest import Rest

__all__ = ["Swift"]


class Swift:
    """One connection's short way; each method says when it is not for it."""

    __slots__ = ("_rest", "build", "receive")

    def __init__(self, rest: Rest) -> None:
        """Made by `of`."""
        self._rest = rest
        self.receive = Inward(rest).receive
        self.build = Outward(rest).build

    @classmethod
    def of(cls, quic: QuicConnection, stream_id: int) -> "Swift | None":
        """Find the short way through a connection; None as long as there is none."""
        rest = Rest.of(quic, stream_id)
        return None if rest is None else cls(rest)

    def timer(self) -> float | None:
        """When the connection must be looked at, as `get_timer`; None when that must tell."""
        rest = self._rest
        quic, space, loss = rest.quic, rest.space, rest.loss
        at = quic._close_at
        if at is None or not rest.is_usable:
            return None
        if space.ack_at is not None and space.ack_at < at:
            at = space.ack_at
        lost_at = space.loss_time
        if lost_at is None and space.ack_eliciting_in_flight:
            timeout = loss.get_probe_timeout() * (1 << loss._pto_count)
            lost_at = loss._time_of_last_sent_ack_eliciting_packet + timeout
        quic._loss_at = lost_at
        if lost_at is not None and lost_at < at:
            at = lost_at
        if quic._pacing_at is not None and quic._pacing_at < at:
            at = quic._pacing_at
        return at
