"""Fast path for QUIC 1-RTT packets: stream data and acknowledgements on an established connection.

Nearly all packets are of this kind, and aioquic's general code takes several times as long for
them. A packet that is not of exactly this kind is left to aioquic unchanged. The fast path updates
aioquic's state as aioquic itself would. `FastPath` is the only name that other modules use, and
`Settings.use_fast_path` switches it off.

If a C compiler is present, the three modules of this folder are also built as compiled modules,
from the same source. Their `.pxd` files declare the types.
"""

from aioquic.quic.connection import QuicConnection

try:
    from ringfence.transport.quic.fast_path._established_state import EstablishedState
    from ringfence.transport.quic.fast_path._packet_receiver import FastReceiver
    from ringfence.transport.quic.fast_path._packet_sender import (
        FastSender,
        hasten_acknowledgement,
    )
except ImportError:  # The compiled modules exist only where a C compiler was available.
    from ringfence.transport.quic.fast_path.established_state import EstablishedState
    from ringfence.transport.quic.fast_path.packet_receiver import FastReceiver
    from ringfence.transport.quic.fast_path.packet_sender import (
        FastSender,
        hasten_acknowledgement,
    )

__all__ = ["FastPath", "hasten_acknowledgement"]


class FastPath:
    """Fast path of one QUIC connection. Each method reports when a packet needs the general path.

    `receive` processes a datagram and returns its stream data, or None. `write` adds stream data,
    or returns False. `build` returns the datagrams that can be sent, or None. `next_deadline`
    returns when the next timer is due, or None.
    """

    __slots__ = ("build", "next_deadline", "receive", "write")

    def __init__(self, state: EstablishedState) -> None:
        self.receive = FastReceiver(state).receive
        sender = FastSender(state)
        self.write, self.build = sender.write, sender.build
        self.next_deadline = state.next_deadline

    @classmethod
    def of(cls, quic: QuicConnection, stream_id: int) -> "FastPath | None":
        """Return the fast path of a connection; None until the connection is established."""
        state = EstablishedState.of(quic, stream_id)
        return None if state is None else cls(state)
