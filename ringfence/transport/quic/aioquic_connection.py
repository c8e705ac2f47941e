"""aioquic's connection, with the few things we need that its public interface lacks.

Everything that touches aioquic's private names is here and in `fast_path`, and each has a
test, so that a release which moves them is noticed there. Decides flow-control windows, how much
may wait out of order and when acknowledgements leave; all other QUIC behaviour is aioquic's.
"""

import hmac
import logging
from math import inf, nextafter
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
from aioquic.tls import Epoch

from ringfence.transport.interface import Address
from ringfence.transport.quic.fast_path.fast_path import FastPath

__all__ = ["STREAM", "Datagrams", "AioquicConnection", "reset_token"]

STREAM = 0
"""The one stream of a connection, opened by the side that connects."""

MAX_CRYPTO_AHEAD = 16 << 10
"""Handshake bytes that may wait for earlier ones; aioquic would hold 512 KiB for each stranger."""

KEY_UPDATE_AFTER = 1 << 22
"""Packets sent with one key until it is updated; AES-GCM allows 2^23 (RFC 9001, section 6.6)."""

_BINDING = b"ringfence binding"
"""Label that keeps this use of the TLS master secret apart from every other one."""

_RIDE = 0.0005
"""Seconds; at this pace of sending, acknowledgements ride on every second datagram or so."""

_ROUNDING = 1e-6
"""Seconds; more than rounding takes from sums of instants, and less than any timer cares for."""

Datagrams: TypeAlias = list[tuple[bytes, Address]]

# Its warnings repeat what `on_close` says; an application without logging would see them on stderr.
logging.getLogger("quic").addHandler(logging.NullHandler())


def reset_token(key: bytes, cid: bytes) -> bytes:
    """Compute what proves that its sender is the endpoint that issued `cid` (RFC 9000, 10.3.2)."""
    return hmac.digest(key, cid, "sha256")[:16]


class AioquicConnection(QuicConnection):
    """One QUIC connection whose memory does not grow with the bytes it has carried."""

    def __init__(
        self,
        configuration: QuicConfiguration,
        *,
        window: int,
        original_cid: bytes | None = None,
        retry_cid: bytes | None = None,
        reset_key: bytes = b"",
    ) -> None:
        """With a `reset_key`, the side that listens can end this connection after it restarted."""
        super().__init__(
            configuration=configuration,
            original_destination_connection_id=original_cid,
            retry_source_connection_id=retry_cid,
        )
        self._reset_key = reset_key
        self._set_reset_tokens()
        self.window = window
        """Bytes that the peer may have under way; may be raised while the connection lives."""
        self.closed_here = False
        """Whether this side ended the connection, on request or because the peer broke a rule."""
        self.closed_there = False
        """Whether the peer ended it; with neither, silence did."""
        self._data_sent_at = -inf
        self._sent_at = -inf
        self._update_keys_at = KEY_UPDATE_AFTER
        """Packet number from which on the keys are to be updated."""
        self._fast_path: FastPath | None = None
        """The short way of most packets, from the handshake's end on."""

    def close(
        self, error_code: int = 0, frame_type: int | None = None, reason_phrase: str = ""
    ) -> None:
        """As in aioquic, which also calls it for every violation that it finds."""
        if self._close_event is None:
            self.closed_here = True
        super().close(error_code, frame_type, reason_phrase)

    @property
    def is_begun(self) -> bool:
        """Whether the peer has sent at least one packet that could be decrypted."""
        return self._state is not QuicConnectionState.FIRSTFLIGHT

    @property
    def binding(self) -> bytes:
        """Secret that follows from the whole TLS handshake, so that no other connection has it.

        It is derived as TLS 1.3 derives its resumption secret: the transcript ends with the
        client's Finished, where that of an exporter (RFC 8446, section 7.5) ends with the server's.
        Call it only once the handshake is complete.
        """
        schedule = self.tls.key_schedule
        assert schedule is not None
        secret: bytes = schedule.derive_secret(_BINDING)
        return secret

    @property
    def peer_reset_token(self) -> bytes:
        """What the peer would end the connection with if it forgot it; empty when unknown."""
        return self._peer_cid.stateless_reset_token

    @property
    def closing(self) -> ConnectionTerminated | None:
        """Why the connection is ending, at once: aioquic's own event waits for the drain period."""
        return self._close_event

    @property
    def unacknowledged(self) -> int:
        """Bytes given to the stream that the peer has not acknowledged."""
        stream = self._streams.get(STREAM)
        return 0 if stream is None else len(stream.sender._buffer)

    def release(self) -> None:
        """Free what waits in the stream's buffers of a connection that is closing.

        It lasts for some round trips more, in which nothing of this is ever sent or read.
        """
        if self._close_event is not None:
            for stream in self._streams.values():
                stream.sender._buffer.clear()
                stream.receiver._buffer.clear()

    def dismantle(self) -> None:
        """Free all memory at once; no use afterwards, and none of its methods may be running.

        Its parts refer to each other in circles, some 300 objects that would wait for the garbage
        collector, which need not come by before thousands of strangers have left as much behind.
        """
        for space in self._spaces.values():
            space.sent_packets.clear()
        self.__dict__.clear()

    def receive_datagram(self, data: bytes, addr: Address, now: float) -> None:
        """As in aioquic, but never before what was sent last.

        A burst is read under one instant, and what is sent amid it may be answered within it. From
        an answer before its question aioquic would learn a negative round trip, and its timer for
        losses would be due for ever.
        """
        now = max(now, self._sent_at)
        if self._fast_path is not None:
            if self._fast_path.receive(data, addr, now):
                return
        else:
            self._fast_path = FastPath.of(self, STREAM)
        super().receive_datagram(data, addr, now)

    def get_timer(self) -> float | None:
        """As in aioquic."""
        at = None if self._fast_path is None else self._fast_path.timer()
        return super().get_timer() if at is None else at

    def handle_timer(self, now: float) -> None:
        """As in aioquic, a microsecond later than it is.

        aioquic finds the instant of a loss by adding, and whether it has come by subtracting: where
        the two round apart it would name the present instant as its deadline, for ever on a clock
        that stands.
        """
        super().handle_timer(now + _ROUNDING)

    def is_quiet(self, now: float) -> bool:
        """Whether all that is left to send, if anything, can wait for the next deadline.

        A cheap way not to build a packet in vain after each datagram that came.
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
        """As `datagrams_to_send`, with acknowledgements riding on what leaves anyway.

        aioquic lets an acknowledgement wait for 1 ms even when data goes out meanwhile; a check and
        its answer then cost four datagrams instead of two. Yet one for each of many small datagrams
        costs more than it saves, so only those leave early that no later data would take along.
        """
        if not self._network_paths:
            return []  # Nothing that came could be read yet: nobody to answer.
        space = self._spaces[Epoch.ONE_RTT]
        stream = self._streams.get(STREAM)
        has_data = stream is not None and not stream.sender.buffer_is_empty
        if space.ack_at is not None:
            is_late = space.ack_at - now < _RIDE or now - self._data_sent_at > _RIDE
            if (has_data and is_late) or space.ack_at <= now:
                # Just before now: at this very instant aioquic would let pacing hold it back, and
                # still name the instant as its deadline, for ever on a clock that stands.
                space.ack_at = nextafter(now, -inf)
        if has_data:
            self._data_sent_at = now
        self._sent_at = now
        if self._packet_number >= self._update_keys_at:
            self.request_key_update()
        datagrams = None if self._fast_path is None else self._fast_path.build(now, self.window)
        return self.datagrams_to_send(now) if datagrams is None else datagrams

    def _log_key_updated(self, key_type: str, trigger: str) -> None:
        """Count from here: keys of both directions change together, whichever side asked for it."""
        super()._log_key_updated(key_type, trigger)
        self._update_keys_at = self._packet_number + KEY_UPDATE_AFTER

    def _handle_ack_frame(self, context: QuicReceiveContext, frame_type: int, buf: Buffer) -> None:
        """As in aioquic, which also takes acknowledgements of packets that were never sent."""
        start = buf.tell()
        if buf.pull_uint_var() >= self._packet_number:
            raise QuicConnectionError(
                error_code=QuicErrorCode.PROTOCOL_VIOLATION,
                frame_type=frame_type,
                reason_phrase="acknowledged a packet that was not sent",
            )
        buf.seek(start)
        super()._handle_ack_frame(context, frame_type, buf)

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

    def _handle_connection_close_frame(
        self, context: QuicReceiveContext, frame_type: int, buf: Buffer
    ) -> None:
        self.closed_there = self.closed_there or self._close_event is None
        super()._handle_connection_close_frame(context, frame_type, buf)

    def _write_connection_limits(self, builder: QuicPacketBuilder, space: QuicPacketSpace) -> None:
        """Keep MAX_DATA `window` ahead of what was delivered in order.

        aioquic doubles it for ever, and counts what came out of order: a peer that leaves a gap
        could make us hold any amount. MAX_STREAMS is never raised, since there is one stream.
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
        """The same for MAX_STREAM_DATA; a stream we do not know ends the connection anyway."""
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
