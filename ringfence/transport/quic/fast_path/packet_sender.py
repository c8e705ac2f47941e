"""Encoding of packets to send on the fast path: STREAM frames, ACK frames and encryption.

Reads and writes private names of aioquic.
"""

from aioquic.buffer import encode_uint_var
from aioquic.quic.packet import QuicPacketType
from aioquic.quic.packet_builder import QuicDeliveryState, QuicSentPacket
from aioquic.tls import Epoch

from ringfence.transport.interface import Address
from ringfence.transport.quic.fast_path.established_state import EstablishedState

__all__ = ["FastSender"]

_ACKED = QuicDeliveryState.ACKED
_TAG_SIZE = 16
_PACKET_NUMBER_SIZE = 2
"""Bytes of a packet number that we send, as aioquic does."""
_SAMPLE_OFFSET = 4
"""Bytes from the packet number to the sample of header protection (RFC 9001, 5.4.2)."""
_SAMPLE_SIZE = 16
_STREAM_WITH_LENGTH = 0x0A
_WITH_OFFSET = 0x04


class FastSender:
    """Encoder of the packets to send on one QUIC connection, for the frequent kinds of packets."""

    __slots__ = ("_state",)

    def __init__(self, state: EstablishedState) -> None:
        self._state = state

    def build(self, now: float, window: int) -> list[tuple[bytes, Address]] | None:
        """Return the datagrams that can be sent now; None when aioquic must build them.

        `window` is the receive window of the connection.
        """
        if not self._needs_only_data_and_acks(window):
            return None
        quic, space, loss = self._state.quic, self._state.space, self._state.loss
        sender = self._state.stream.sender
        datagrams: list[tuple[bytes, Address]] = []
        quic._pacing_at = None
        while True:
            acks = space.ack_at is not None and space.ack_at <= now
            has_data = not sender.buffer_is_empty
            if acks and len(space.ack_queue) != 1:
                return datagrams + quic.datagrams_to_send(now)
            if not acks:
                if not has_data:
                    return datagrams
                quic._pacing_at = loss._pacer.next_send_time(now=now)
                if quic._pacing_at is not None:
                    return datagrams
            if not self._append_packet(now, datagrams, acks=acks, has_data=has_data):
                return datagrams

    def _needs_only_data_and_acks(self, window: int) -> bool:
        """Whether the connection needs to send only stream data and acknowledgements."""
        quic, stream = self._state.quic, self._state.stream
        sender, receiver = stream.sender, stream.receiver
        limit, delivered = quic._local_max_data, receiver._buffer_start
        crypto = quic._crypto_streams[Epoch.ONE_RTT]
        return (
            self._state.is_usable
            and len(quic._streams) == 1
            and self._state.crypto.send.aead is not None
            and not self._state.crypto._update_key_requested
            and not (
                quic._handshake_done_pending
                or quic._probe_pending
                or quic._ping_pending
                or quic._retire_connection_ids
                or quic._streams_blocked_pending
                or quic._datagrams_pending
                or self._state.path.remote_challenges
                or stream.is_blocked
                or sender.reset_pending
                or receiver.stop_pending
            )
            and crypto.sender.buffer_is_empty
            and sender._buffer_fin is None
            and limit.sent == limit.value
            and limit.value - delivered >= window // 2
            and stream.max_stream_data_local_sent == stream.max_stream_data_local
            and stream.max_stream_data_local - delivered >= window // 2
            and all([cid.was_sent for cid in quic._host_cids])
        )

    def _append_packet(
        self, now: float, datagrams: list[tuple[bytes, Address]], *, acks: bool, has_data: bool
    ) -> bool:
        """Append a packet with an acknowledgement, stream data or both; False if nothing fits."""
        quic, space, loss = self._state.quic, self._state.space, self._state.loss
        size = quic._max_datagram_size
        number = quic._packet_number
        packet = QuicSentPacket(
            Epoch.ONE_RTT, False, False, False, number, QuicPacketType.ONE_RTT, now
        )
        payload = self._encode_ack(now, packet) if acks else b""
        cid = quic._peer_cid.cid
        if has_data and loss._cc.congestion_window - loss._cc.bytes_in_flight >= size:
            room = size - 1 - len(cid) - _PACKET_NUMBER_SIZE - _TAG_SIZE - len(payload)
            payload += self._encode_stream(room, packet)
        if not payload:
            return False
        send = self._state.crypto.send
        assert send.aead is not None
        assert send.hp is not None
        first = 0x41 | quic._spin_bit << 5 | send.key_phase << 2
        short = number & 0xFFFF
        sealed = send.aead.encrypt(
            payload, bytes((first,)) + cid + short.to_bytes(2, "big"), number
        )
        sample_at = _SAMPLE_OFFSET - _PACKET_NUMBER_SIZE
        mask = send.hp._mask(sealed[sample_at : sample_at + _SAMPLE_SIZE])
        short ^= mask[1] << 8 | mask[2]
        datagram = b"".join(
            (bytes((first ^ (mask[0] & 0x1F),)), cid, short.to_bytes(2, "big"), sealed)
        )
        packet.sent_bytes = len(datagram)
        quic._packet_number = number + 1
        loss.on_packet_sent(packet=packet, space=space)
        if packet.is_ack_eliciting and not quic._ack_eliciting_sent_since_receipt:
            quic._close_at = now + self._state.idle_timeout(now)
            quic._ack_eliciting_sent_since_receipt = True
        self._state.path.bytes_sent += len(datagram)
        loss._pacer.update_after_send(now=now)
        datagrams.append((datagram, self._state.path.addr))
        return True

    def _encode_ack(self, now: float, packet: QuicSentPacket) -> bytes:
        """Encode an ACK frame for the only range of received packets."""
        quic, space = self._state.quic, self._state.space
        received = space.ack_queue[0]
        assert space.largest_received_time is not None
        delay = max(0, int((now - space.largest_received_time) * 1_000_000))
        space.ack_at = None
        packet.delivery_handlers.append(
            (quic._on_ack_delivery, (space, space.largest_received_packet))
        )
        return b"".join(
            (
                b"\x02",
                encode_uint_var(received.stop - 1),
                encode_uint_var(delay >> quic._local_ack_delay_exponent),
                b"\x00",
                encode_uint_var(received.stop - 1 - received.start),
            )
        )

    def _encode_stream(self, room: int, packet: QuicSentPacket) -> bytes:
        """Encode a STREAM frame with the first unsent bytes; empty when flow control permits
        none."""
        quic, stream = self._state.quic, self._state.stream
        sender = stream.sender
        pending = sender._pending
        if not len(pending):
            sender.buffer_is_empty = True
            return b""
        start, stop = pending[0].start, pending[0].stop
        head = bytes((_STREAM_WITH_LENGTH | _WITH_OFFSET, self._state.stream_id)) + encode_uint_var(
            start
        )
        most = sender.highest_offset + quic._remote_max_data - quic._remote_max_data_used
        until = min(stop, start + room - len(head) - 2, most, stream.max_stream_data_remote)
        if until <= start:
            return b""
        if until == stop:
            pending.shift()
            sender.buffer_is_empty = not len(pending)
        else:
            pending.subtract(start, until)
        if until > sender.highest_offset:
            quic._remote_max_data_used += until - sender.highest_offset
            sender.highest_offset = until
        packet.in_flight = packet.is_ack_eliciting = True
        packet.delivery_handlers.append((self._on_delivery, (start, until)))
        at = start - sender._buffer_start
        length = until - start
        return b"".join(
            (head, (length | 0x4000).to_bytes(2, "big"), sender._buffer[at : at + length])
        )

    def _on_delivery(self, delivery: QuicDeliveryState, start: int, stop: int) -> None:
        """Release delivered bytes from memory, or queue lost bytes again."""
        sender = self._state.stream.sender
        if (
            delivery is _ACKED
            and start == sender._buffer_start
            and not len(sender._acked)
            and sender._reset_error_code is None
        ):
            sender._buffer_start = stop
            del sender._buffer[: stop - start]
        else:
            sender.on_data_delivery(delivery, start, stop, False)
