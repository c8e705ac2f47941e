"""Subclass of aioquic's connection with functions that its public interface lacks.

Only this module and `fast_path` use private names of aioquic, and tests cover each use. Decides
flow-control windows, limits on data out of order, and when acknowledgements leave. All other QUIC
behaviour is aioquic's.
"""

import hmac
import logging
from math import inf
from typing import TypeAlias

from aioquic.buffer import Buffer  # type: ignore[attr-defined]  # Public, by its docs.
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import (
    CONNECTION_LIMIT_FRAME_CAPACITY,
    MAX_STREAM_DATA_FRAME_CAPACITY,
    QuicConnection,
    QuicConnectionError,
    QuicConnectionState,
    QuicReceiveContext,
)
from aioquic.quic.events import ConnectionTerminated
from aioquic.quic.packet import QuicErrorCode, QuicFrameType
from aioquic.quic.packet_builder import QuicPacketBuilder
from aioquic.quic.recovery import QuicPacketSpace
from aioquic.quic.stream import QuicStream
from aioquic.tls import Epoch, Group

from ringfence.transport.interface import Address
from ringfence.transport.quic.fast_path import FastPath, hasten_acknowledgement

__all__ = ["STREAM", "Datagrams", "AioquicConnection", "reset_token"]

STREAM = 0
"""Id of the only stream of a connection; the connecting side opens it."""

ACTIVE_CIDS = 2
"""Connection ids that each side keeps for the other: the current one, and one for a new path.

Each costs a hash, a frame and an entry in the connection table; aioquic's 8 made a handshake and a
connection dearer.
"""

MAX_CRYPTO_AHEAD = 16 << 10
"""Maximum of handshake bytes out of order; aioquic alone would buffer 512 KiB per connection."""

KEY_UPDATE_AFTER = 1 << 22
"""Packets sent with one key before a key update; AES-GCM allows 2^23 (RFC 9001, section 6.6)."""

_BINDING = b"ringfence binding"
"""Label that separates this use of the TLS master secret from every other use."""

_TIMER_SLACK = 1e-6
"""Seconds; more than the rounding error of a deadline, and less than the precision of any timer."""

Datagrams: TypeAlias = list[tuple[bytes, Address]]

# aioquic's warnings repeat the reason of `on_close`. Without a handler they would go to stderr.
logging.getLogger("quic").addHandler(logging.NullHandler())


def reset_token(key: bytes, cid: bytes) -> bytes:
    """Compute the stateless reset token of the connection id `cid` (RFC 9000, 10.3.2) with the
    issuer's `key`."""
    return hmac.digest(key, cid, "sha256")[:16]


class AioquicConnection(QuicConnection):
    """QUIC connection with bounded memory, a fast path and a channel binding."""

    def __init__(
        self,
        configuration: QuicConfiguration,
        *,
        window: int,
        original_cid: bytes | None = None,
        retry_cid: bytes | None = None,
        reset_key: bytes = b"",
        use_fast_path: bool = True,
    ) -> None:
        """`reset_key` lets the listening side end this connection after a restart."""
        super().__init__(
            configuration=configuration,
            original_destination_connection_id=original_cid,
            retry_source_connection_id=retry_cid,
        )
        self._local_active_connection_id_limit = ACTIVE_CIDS
        self._reset_key = reset_key
        self._set_reset_tokens()
        self.window = window
        """Receive window in bytes; the owner may raise it while the connection is open."""
        self.closed_locally = False
        """Whether this side closed, on request or after a protocol violation of the peer."""
        self.closed_by_peer = False
        """Whether the peer closed. If neither side did, the connection timed out."""
        self.data_sent_at = -inf
        self.sent_at = -inf
        self._update_keys_at = KEY_UPDATE_AFTER
        """Packet number of the next key update."""
        self.events = self._events
        """Events that the owner of the connection has not processed, the oldest first."""
        self._use_fast_path = use_fast_path
        self._fast_path: FastPath | None = None
        """Fast path of most packets; None during the handshake, and when switched off."""

    def close(
        self, error_code: int = 0, frame_type: int | None = None, reason_phrase: str = ""
    ) -> None:
        """Close the connection; aioquic also calls this method for every protocol violation."""
        if self._close_event is None:
            self.closed_locally = True
        super().close(error_code, frame_type, reason_phrase)

    @property
    def has_decrypted_packet(self) -> bool:
        """Whether at least one packet of the peer could be decrypted."""
        return self._state is not QuicConnectionState.FIRSTFLIGHT

    @property
    def binding(self) -> bytes:
        """Secret derived from the whole TLS handshake, unique to this connection.

        It is derived like the TLS 1.3 resumption secret, so it covers the handshake up to the
        client's Finished message. An exporter (RFC 8446, section 7.5) covers it only up to the
        server's Finished message. Use it only after the handshake.
        """
        schedule = self.tls.key_schedule
        assert schedule is not None
        secret: bytes = schedule.derive_secret(_BINDING)
        return secret

    @property
    def peer_reset_token(self) -> bytes:
        """Token of a stateless reset that the peer would send; empty when unknown."""
        return self._peer_cid.stateless_reset_token

    @property
    def closing(self) -> ConnectionTerminated | None:
        """Reason why the connection closes, available immediately; aioquic reports it after the
        drain period."""
        return self._close_event

    @property
    def unacknowledged(self) -> int:
        """Number of sent stream bytes that the peer has not acknowledged."""
        stream = self._streams.get(STREAM)
        return 0 if stream is None else len(stream.sender._buffer)

    def release(self) -> None:
        """Free the stream buffers of a closing connection.

        The connection drains for some round trips but no longer sends or reads stream data.
        """
        if self._close_event is not None:
            for stream in self._streams.values():
                stream.sender._buffer.clear()
                stream.receiver._buffer.clear()

    def dismantle(self) -> None:
        """Free all memory of the connection at once. No method of it may run now or afterwards.

        Its 300 objects refer to each other in cycles. Without this call they would stay until the
        garbage collector runs, which may be after thousands of failed handshakes.
        """
        for space in self._spaces.values():
            space.sent_packets.clear()
        self.__dict__.clear()

    def send(self, data: bytes) -> None:
        """Add data to the stream; `urgent_datagrams` sends it."""
        if self._fast_path is None or not self._fast_path.write(data):
            self.send_stream_data(STREAM, data)

    def receive(self, data: bytes, addr: Address, now: float) -> bytes:
        """Process a datagram, and return its stream data. If the result is empty, `events` may
        have data and other events.

        As in aioquic, but never with a time before the last transmission. All datagrams of a burst
        get the same `now`, although replies may leave in between. An answer with an earlier time
        than its request would give aioquic a negative round trip, and its loss timer would stay
        due forever.
        """
        now = max(now, self.sent_at)
        if self._fast_path is not None:
            delivered = self._fast_path.receive(data, addr, now)
            if delivered is not None:
                return delivered
        elif self._use_fast_path:
            self._fast_path = FastPath.of(self, STREAM)
        self.receive_datagram(data, addr, now)
        return b""

    def get_timer(self) -> float | None:
        """Return the time at which to call `handle_timer`, as in aioquic."""
        at = None if self._fast_path is None else self._fast_path.next_deadline()
        return super().get_timer() if at is None else at

    def handle_timer(self, now: float) -> None:
        """Run aioquic's timers with a time one microsecond ahead.

        aioquic computes a loss deadline by addition and compares it by subtraction. When the two
        round differently, the deadline stays due forever on a clock that does not advance.
        """
        super().handle_timer(now + _TIMER_SLACK)

    def is_quiet(self, now: float) -> bool:
        """Whether the connection has nothing to send before its next timer is due.

        This cheap test avoids building an empty packet after each received datagram.
        """
        stream = self._streams.get(STREAM)
        if stream is None or not self._handshake_confirmed:
            return False
        ack_at = self._spaces[Epoch.ONE_RTT].ack_at
        return (
            stream.sender.buffer_is_empty
            and (ack_at is None or ack_at > now)
            and not self._close_pending
            and not self._handshake_done_pending
            and self._local_max_data.sent == self._local_max_data.value
            and stream.max_stream_data_local_sent == stream.max_stream_data_local
        )

    def urgent_datagrams(self, now: float) -> Datagrams:
        """Return `datagrams_to_send`, with acknowledgements piggybacked on stream data."""
        if self._packet_number >= self._update_keys_at:
            self.request_key_update()
        if self._fast_path is not None:
            datagrams = self._fast_path.build(now, self.window)
            if datagrams is not None:
                return datagrams
        if not self._network_paths:
            return []  # No packet could be decrypted yet, so there is no peer address.
        stream = self._streams.get(STREAM)
        has_data = stream is not None and not stream.sender.buffer_is_empty
        hasten_acknowledgement(self, self._spaces[Epoch.ONE_RTT], has_data, now)
        return self.datagrams_to_send(now)

    def _log_key_updated(self, key_type: str, trigger: str) -> None:
        """Schedule the next key update; aioquic calls this method when the keys of both directions
        change."""
        super()._log_key_updated(key_type, trigger)
        self._update_keys_at = self._packet_number + KEY_UPDATE_AFTER

    def _handle_ack_frame(self, context: QuicReceiveContext, frame_type: int, buf: Buffer) -> None:
        """Refuse an acknowledgement of a packet that was never sent; aioquic would accept it."""
        start = buf.tell()
        if buf.pull_uint_var() >= self._packet_number:
            raise QuicConnectionError(
                error_code=QuicErrorCode.PROTOCOL_VIOLATION,
                frame_type=frame_type,
                reason_phrase="acknowledged a packet that was not sent",
            )
        buf.seek(start)
        super()._handle_ack_frame(context, frame_type, buf)

    def _initialize(self, peer_cid: bytes) -> None:
        """Offer only a key of X25519 when this side connects. aioquic would create keys of four
        groups for each attempt, which takes longer than all else in the first packet."""
        super()._initialize(peer_cid)
        if self._is_client and Group.X25519 in self.tls._supported_groups:
            self.tls._supported_groups = [Group.X25519]

    def _set_reset_tokens(self) -> None:
        if self._reset_key:
            for issued in self._host_cids:
                issued.stateless_reset_token = reset_token(self._reset_key, issued.cid)

    def _replenish_connection_ids(self) -> None:
        super()._replenish_connection_ids()
        self._set_reset_tokens()

    def _handle_crypto_frame(
        self, context: QuicReceiveContext, frame_type: int, buf: Buffer
    ) -> None:
        start = buf.tell()
        end = buf.pull_uint_var() + buf.pull_uint_var()
        buf.seek(start)
        if end - self._crypto_streams[context.epoch].receiver.starting_offset() > MAX_CRYPTO_AHEAD:
            raise QuicConnectionError(
                error_code=QuicErrorCode.CRYPTO_BUFFER_EXCEEDED,
                frame_type=frame_type,
                reason_phrase="handshake data too far ahead",
            )
        super()._handle_crypto_frame(context, frame_type, buf)

    def _handle_ping_frame(self, context: QuicReceiveContext, frame_type: int, buf: Buffer) -> None:
        """Acknowledge a PING at once, because no data follows that could carry the acknowledgement.

        A delayed acknowledgement would wake an idle process once more.
        """
        super()._handle_ping_frame(context, frame_type, buf)
        self._spaces[context.epoch].ack_at = context.time

    def _handle_padding_frame(
        self, context: QuicReceiveContext, frame_type: int, buf: Buffer
    ) -> None:
        """Skip padding without a look at each byte; the first packet has more than a thousand."""
        start = buf.tell()
        rest = buf.data_slice(start, buf.capacity)
        buf.seek(start + len(rest) - len(rest.lstrip(b"\0")))

    def _handle_connection_close_frame(
        self, context: QuicReceiveContext, frame_type: int, buf: Buffer
    ) -> None:
        self.closed_by_peer = self.closed_by_peer or self._close_event is None
        super()._handle_connection_close_frame(context, frame_type, buf)

    def _write_connection_limits(self, builder: QuicPacketBuilder, space: QuicPacketSpace) -> None:
        """Keep MAX_DATA `window` ahead of the data delivered in order.

        aioquic doubles the limit without end and counts data out of order, so a peer that leaves a
        gap could make us buffer any amount. MAX_STREAMS is never raised, as there is one stream.
        """
        limit = self._local_max_data
        stream = self._streams.get(STREAM)
        delivered = 0 if stream is None else stream.receiver.starting_offset()
        if limit.value - delivered < self.window // 2:
            limit.value = delivered + self.window
        if limit.value != limit.sent:
            frame = builder.start_frame(
                limit.frame_type,
                capacity=CONNECTION_LIMIT_FRAME_CAPACITY,
                handler=self._on_connection_limit_delivery,
                handler_args=(limit,),
            )
            frame.push_uint_var(limit.value)
            limit.sent = limit.value

    def _write_stream_limits(
        self, builder: QuicPacketBuilder, space: QuicPacketSpace, stream: QuicStream
    ) -> None:
        """Keep the limit of the stream (MAX_STREAM_DATA) `window` ahead of the data delivered in
        order."""
        if stream.stream_id != STREAM:
            return
        delivered = stream.receiver.starting_offset()
        if stream.max_stream_data_local - delivered < self.window // 2:
            stream.max_stream_data_local = delivered + self.window
        if stream.max_stream_data_local != stream.max_stream_data_local_sent:
            frame = builder.start_frame(
                QuicFrameType.MAX_STREAM_DATA,
                capacity=MAX_STREAM_DATA_FRAME_CAPACITY,
                handler=self._on_max_stream_data_delivery,
                handler_args=(stream,),
            )
            frame.push_uint_var(STREAM)
            frame.push_uint_var(stream.max_stream_data_local)
            stream.max_stream_data_local_sent = stream.max_stream_data_local
