"""The short path of packets through an established QUIC connection: stream data, acknowledgements.

Nearly all packets are of this kind, and aioquic, which must be ready for every other, takes several
times as long for them. Whatever does not fit exactly is left to aioquic, untouched; what fits
leaves aioquic's state as it would have. `receiver` takes packets, `sender` builds them.
"""

from aioquic.quic.connection import QuicConnection

from ringfence.transport.quic.fast_path.established_state import EstablishedState
from ringfence.transport.quic.fast_path.packet_receiver import FastReceiver
from ringfence.transport.quic.fast_path.packet_sender import FastSender

__all__ = ["FastPath"]


class FastPath:
    """One connection's short way; each method says when it is not for it."""

    __slots__ = ("_state", "build", "receive")

    def __init__(self, state: EstablishedState) -> None:
        """Made by `of`."""
        self._state = state
        self.receive = FastReceiver(state).receive
        self.build = FastSender(state).build

    @classmethod
    def of(cls, quic: QuicConnection, stream_id: int) -> "FastPath | None":
        """Find the short way through a connection; None as long as there is none."""
        state = EstablishedState.of(quic, stream_id)
        return None if state is None else cls(state)

    def timer(self) -> float | None:
        """When the connection must be looked at, as `get_timer`; None when that must tell."""
        state = self._state
        quic, space, loss = state.quic, state.space, state.loss
        at = quic._close_at
        if at is None or not state.is_usable:
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
