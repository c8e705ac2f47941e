"""Fast path for QUIC 1-RTT packets: stream data and acknowledgements on an established connection.

Nearly all packets are of this kind, and aioquic's general code takes several times as long for
them. A packet that is not of exactly this kind is left to aioquic unchanged. The fast path updates
aioquic's state as aioquic itself would. `FastPath` is the only name that other modules use, and
`Settings.use_fast_path` switches it off.
"""

from aioquic.quic.connection import QuicConnection

from ringfence.transport.quic.fast_path.established_state import EstablishedState
from ringfence.transport.quic.fast_path.packet_receiver import FastReceiver
from ringfence.transport.quic.fast_path.packet_sender import FastSender

__all__ = ["FastPath"]


class FastPath:
    """Fast path of one QUIC connection. Each method reports when a packet needs the general path.

    `receive` processes a datagram, or returns False. `build` returns the datagrams that can be
    sent, or None.
    """

    __slots__ = ("_state", "build", "receive")

    def __init__(self, state: EstablishedState) -> None:
        self._state = state
        self.receive = FastReceiver(state).receive
        self.build = FastSender(state).build

    @classmethod
    def of(cls, quic: QuicConnection, stream_id: int) -> "FastPath | None":
        """Return the fast path of a connection; None until the connection is established."""
        state = EstablishedState.of(quic, stream_id)
        return None if state is None else cls(state)

    def next_deadline(self) -> float | None:
        """Return when the connection's next timer is due; None when `get_timer` of aioquic must
        compute it."""
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
