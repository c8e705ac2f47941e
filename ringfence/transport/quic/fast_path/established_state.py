"""State of an established QUIC connection that the fast path uses.

Established means: the handshake is confirmed, and there is one path and one stream. Reads private
names of aioquic.
"""

from collections.abc import Callable
from math import inf

from aioquic._crypto import HeaderProtection
from aioquic.quic.congestion.base import K_GRANULARITY
from aioquic.quic.connection import QuicConnection, QuicConnectionState
from aioquic.quic.recovery import K_MICRO_SECOND, K_SECOND
from aioquic.tls import Epoch

__all__ = ["CONNECTED", "EstablishedState", "mask_function"]

CONNECTED = QuicConnectionState.CONNECTED

_MAX_ACK_DELAY = 0.01
"""Maximum acknowledgement delay in seconds; both sides run this code. aioquic announces 25 ms, with
which the loss of a last packet would be noticed later."""
_IDLE_TIMEOUT_CACHE = 1.0
"""Seconds for which a computed idle time-out is reused; it rarely changes."""


def mask_function(hp: HeaderProtection) -> Callable[[bytes], bytes]:
    """Return the function that computes the mask of header protection from a sample."""
    return hp._mask if hp._is_chacha20 else hp._encryptor.update


class EstablishedState:
    """Parts of aioquic's connection object, stored because each attribute look-up costs time."""

    __slots__ = (
        "_idle",
        "_idle_at",
        "ack_ranges",
        "cc",
        "cid_length",
        "crypto",
        "is_client",
        "loss",
        "pacer",
        "path",
        "pending_ranges",
        "quic",
        "receiver",
        "sender",
        "space",
        "stream",
        "stream_id",
        "zero_rtt",
    )

    def __init__(self, quic: QuicConnection, stream_id: int) -> None:
        """Only `of` calls this; `stream_id` fits into one byte."""
        self.quic = quic
        self.crypto = quic._cryptos[Epoch.ONE_RTT]
        self.zero_rtt = quic._cryptos[Epoch.ZERO_RTT]
        self.space = quic._spaces[Epoch.ONE_RTT]
        self.loss = quic._loss
        self.cc = quic._loss._cc
        self.pacer = quic._loss._pacer
        self.path = quic._network_paths[0]
        self.stream = quic._streams[stream_id]
        self.receiver = self.stream.receiver
        self.sender = self.stream.sender
        # aioquic changes these lists in place. Its `RangeSet` would need a call for each access.
        self.ack_ranges = self.space.ack_queue._RangeSet__ranges  # type: ignore[attr-defined]
        self.pending_ranges = self.sender._pending._RangeSet__ranges  # type: ignore[attr-defined]
        self.stream_id = stream_id
        self.is_client = quic._is_client
        self.cid_length = len(quic.host_cid)
        self._idle = 0.0
        self._idle_at = -inf

    @classmethod
    def of(cls, quic: QuicConnection, stream_id: int) -> "EstablishedState | None":
        """Return the state of a connection; None until the connection is established."""
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

    def is_usable(self) -> bool:
        """Return whether the connection is open and still on its first path."""
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
        """Return the seconds of silence after which the connection ends."""
        if now - self._idle_at > _IDLE_TIMEOUT_CACHE:
            self._idle = self.quic._idle_timeout()
            self._idle_at = now
        return self._idle

    def next_send_time(self, now: float) -> float | None:
        """Return when the next packet may leave; None for now. As in aioquic's pacer."""
        pacer = self.pacer
        packet_time = pacer.packet_time
        if packet_time is None:
            return None
        return now + packet_time if self._refilled_bucket(now) <= 0 else None

    def pace_after_send(self, now: float) -> None:
        """Use the time of one packet, as aioquic's pacer does after each packet."""
        pacer = self.pacer
        packet_time = pacer.packet_time
        if packet_time is not None:
            pacer.bucket_time = max(0.0, self._refilled_bucket(now) - packet_time)

    def update_pace(self, congestion_window: int, smoothed_rtt: float) -> None:
        """Compute the pace from new estimates, as aioquic's pacer does."""
        pacer = self.pacer
        rate = congestion_window / max(smoothed_rtt, K_MICRO_SECOND)
        size = pacer._max_datagram_size
        pacer.packet_time = max(K_MICRO_SECOND, min(size / rate, K_SECOND))
        burst = max(2 * size, min(congestion_window // 4, 16 * size)) / rate
        pacer.bucket_max = burst
        pacer.bucket_time = min(pacer.bucket_time, burst)

    def _refilled_bucket(self, now: float) -> float:
        """Return the time for which packets may leave at once."""
        pacer = self.pacer
        bucket: float = pacer.bucket_time
        evaluated_at: float = pacer.evaluation_time
        if now > evaluated_at:
            bucket = min(bucket + (now - evaluated_at), pacer.bucket_max)
            pacer.bucket_time = bucket
            pacer.evaluation_time = now
        return bucket

    def next_deadline(self) -> float | None:
        """Return when the connection's next timer is due; None when `get_timer` of aioquic must
        compute it."""
        quic, space, loss = self.quic, self.space, self.loss
        at = quic._close_at
        if at is None or not self.is_usable():
            return None
        if space.ack_at is not None and space.ack_at < at:
            at = space.ack_at
        lost_at = space.loss_time
        if lost_at is None and space.ack_eliciting_in_flight:
            variation = max(4 * loss._rtt_variance, K_GRANULARITY)
            timeout = loss._rtt_smoothed + variation + loss.max_ack_delay
            timeout *= 1 << loss._pto_count
            lost_at = loss._time_of_last_sent_ack_eliciting_packet + timeout
        quic._loss_at = lost_at
        if lost_at is not None and lost_at < at:
            at = lost_at
        if quic._pacing_at is not None and quic._pacing_at < at:
            at = quic._pacing_at
        return at
