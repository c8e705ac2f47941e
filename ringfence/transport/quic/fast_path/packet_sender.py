"""Encoding of packets to send on the fast path: STREAM frames, ACK frames and encryption.

Reads and writes private names of aioquic.
"""

from math import inf, nextafter
from typing import Protocol, cast

from aioquic._crypto import AEAD, AEAD_NONCE_LENGTH, HeaderProtection
from aioquic.quic.packet import QuicPacketType
from aioquic.quic.packet_builder import QuicDeliveryState, QuicSentPacket
from aioquic.quic.recovery import QuicPacketSpace
from aioquic.tls import Epoch

from ringfence.transport.interface import Address
from ringfence.transport.quic.fast_path import established_state

__all__ = ["FastSender", "hasten_acknowledgement"]

_ACKED = QuicDeliveryState.ACKED
_ONE_RTT = Epoch.ONE_RTT
_ONE_RTT_PACKET = QuicPacketType.ONE_RTT
_TAG_SIZE = 16
_PACKET_NUMBER_SIZE = 2
"""Bytes of a packet number that we send, as aioquic does."""
_SAMPLE_OFFSET = 4
"""Bytes from the packet number to the sample of header protection (RFC 9001, 5.4.2)."""
_SAMPLE_SIZE = 16
_PIGGYBACK_INTERVAL = 0.0005
"""Seconds between datagrams from which an acknowledgement is added to the next one."""
_ACK = 0x02
_STREAM_WITH_OFFSET_AND_LENGTH = 0x0E
_MAX_STREAM_HEAD = 12
"""Bytes of a STREAM frame before its data: type, stream, offset and length."""
_TWO_BYTES = 0x4000
"""Marks an integer of two bytes (RFC 9000, 16)."""


class _LastSent(Protocol):
    """Instants at which a connection last sent something."""

    data_sent_at: float
    sent_at: float


def hasten_acknowledgement(
    last: _LastSent, space: QuicPacketSpace, has_data: bool, now: float
) -> None:
    """Make an acknowledgement due now if stream data leaves now, at most once per interval.

    aioquic delays an acknowledgement by 1 ms even when data leaves earlier. A check and its answer
    then cost four datagrams instead of two. Under load an acknowledgement in every datagram costs
    more than it saves.
    """
    ack_at = space.ack_at
    if ack_at is not None:
        is_late = (
            ack_at - now < _PIGGYBACK_INTERVAL or now - last.data_sent_at > _PIGGYBACK_INTERVAL
        )
        if (has_data and is_late) or ack_at <= now:
            # Just before now: pacing would delay an acknowledgement due exactly now, and the
            # deadline would stay due forever on a clock that does not advance.
            space.ack_at = nextafter(now, -inf)
    if has_data:
        last.data_sent_at = now
    last.sent_at = now


class FastSender:
    """Encoder of the packets to send on one QUIC connection, for the frequent kinds of packets."""

    __slots__ = (
        "_aead",
        "_crypto_stream",
        "_encrypt_payload",
        "_hp",
        "_iv",
        "_last",
        "_mask_of",
        "_quic",
        "_space",
        "_state",
    )

    def __init__(self, state: established_state.EstablishedState) -> None:
        self._state = state
        self._quic = state.quic
        self._last = cast(_LastSent, state.quic)
        self._space = state.space
        self._crypto_stream = state.quic._crypto_streams[_ONE_RTT].sender
        self._aead: AEAD | None = None
        self._hp: HeaderProtection | None = None
        """Keys whose functions are stored below."""

    def write(self, data: bytes) -> bool:
        """Add data to the stream, as aioquic does; return False when the stream was ended."""
        sender, ranges = self._state.sender, self._state.pending_ranges
        if sender._buffer_fin is not None or sender._reset_error_code is not None:
            return False
        start = sender._buffer_stop
        stop = start + len(data)
        if ranges and ranges[-1].stop == start:
            ranges[-1] = range(ranges[-1].start, stop)
        else:
            ranges.append(range(start, stop))
        sender._buffer += data
        sender._buffer_stop = stop
        sender.buffer_is_empty = False
        return True

    def build(self, now: float, window: int) -> list[tuple[bytes, Address]] | None:
        """Return the datagrams that can be sent now; None when aioquic must build them.

        `window` is the receive window of the connection.
        """
        if not self._needs_only_data_and_acks(window):
            return None
        quic, space, sender = self._quic, self._space, self._state.sender
        hasten_acknowledgement(self._last, space, not sender.buffer_is_empty, now)
        datagrams: list[tuple[bytes, Address]] = []
        quic._pacing_at = None
        while True:
            acks = space.ack_at is not None and space.ack_at <= now
            has_data = not sender.buffer_is_empty
            if acks and len(self._state.ack_ranges) != 1:
                return datagrams + quic.datagrams_to_send(now)
            if not acks:
                if not has_data:
                    return datagrams
                quic._pacing_at = self._state.next_send_time(now)
                if quic._pacing_at is not None:
                    return datagrams
            datagram = self._packet(now, acks, has_data)
            if datagram is None:
                return datagrams
            datagrams.append((datagram, self._state.path.addr))

    def _needs_only_data_and_acks(self, window: int) -> bool:
        """Return whether the connection needs to send only stream data and acknowledgements."""
        quic, state = self._quic, self._state
        if not state.is_usable() or len(quic._streams) != 1:
            return False
        crypto, stream, sender, receiver = state.crypto, state.stream, state.sender, state.receiver
        if (
            crypto.send.aead is None
            or crypto._update_key_requested
            or quic._handshake_done_pending
            or quic._probe_pending
            or quic._ping_pending
            or quic._retire_connection_ids
            or quic._streams_blocked_pending
            or quic._datagrams_pending
            or state.path.remote_challenges
            or stream.is_blocked
            or sender.reset_pending
            or sender._buffer_fin is not None
            or receiver.stop_pending
            or not self._crypto_stream.buffer_is_empty
        ):
            return False
        limit, delivered = quic._local_max_data, receiver._buffer_start
        data_limit, stream_limit = limit.value, stream.max_stream_data_local
        if (
            limit.sent != data_limit
            or stream.max_stream_data_local_sent != stream_limit
            or data_limit - delivered < window // 2
            or stream_limit - delivered < window // 2
        ):
            return False
        for cid in quic._host_cids:  # noqa: SIM110 - `all` would make a generator.
            if not cid.was_sent:
                return False
        return True

    def _packet(self, now: float, acks: bool, has_data: bool) -> bytes | None:
        """Return a packet with an acknowledgement, stream data or both; None if nothing fits."""
        quic, state = self._quic, self._state
        loss, cc = state.loss, state.cc
        size, number = quic._max_datagram_size, quic._packet_number
        packet = QuicSentPacket(_ONE_RTT, False, False, False, number, _ONE_RTT_PACKET, now)
        payload = bytearray()
        if acks:
            self._append_ack(payload, now, packet)
        cid = quic._peer_cid.cid
        if has_data and cc.congestion_window - cc.bytes_in_flight >= size:
            room = size - 1 - len(cid) - _PACKET_NUMBER_SIZE - _TAG_SIZE - len(payload)
            self._append_stream(payload, room, packet)
        if not payload:
            return None
        send = state.crypto.send
        assert send.aead is not None
        assert send.hp is not None
        first = 0x41 | quic._spin_bit << 5 | send.key_phase << 2
        header = bytearray(1)
        header[0] = first
        header += cid
        header.append(number >> 8 & 0xFF)
        header.append(number & 0xFF)
        if send.aead is not self._aead or send.hp is not self._hp:
            self._use_keys(send.aead, send.hp)
        nonce = (self._iv ^ number).to_bytes(AEAD_NONCE_LENGTH, "big")
        sealed = self._encrypt_payload(nonce, bytes(payload), bytes(header))
        sample_at = _SAMPLE_OFFSET - _PACKET_NUMBER_SIZE
        mask = self._mask_of(sealed[sample_at : sample_at + _SAMPLE_SIZE])
        number_at = 1 + len(cid)
        header[0] = first ^ (mask[0] & 0x1F)
        header[number_at] ^= mask[1]
        header[number_at + 1] ^= mask[2]
        datagram = bytes(header) + sealed
        packet.sent_bytes = len(datagram)
        quic._packet_number = number + 1
        self._space.sent_packets[number] = packet
        if packet.in_flight:  # Such a packet has stream data, so it is to be acknowledged.
            self._space.ack_eliciting_in_flight += 1
            loss._time_of_last_sent_ack_eliciting_packet = now
            cc.on_packet_sent(packet=packet)
        if packet.is_ack_eliciting and not quic._ack_eliciting_sent_since_receipt:
            quic._close_at = now + state.idle_timeout(now)
            quic._ack_eliciting_sent_since_receipt = True
        state.path.bytes_sent += len(datagram)
        state.pace_after_send(now)
        return datagram

    def _use_keys(self, aead: AEAD, hp: HeaderProtection) -> None:
        """Store the functions of the present keys, without those of aioquic around them."""
        self._aead, self._hp = aead, hp
        self._iv = aead._iv
        self._encrypt_payload = aead._aead.encrypt
        self._mask_of = established_state.mask_function(hp)

    def _append_ack(self, payload: bytearray, now: float, packet: QuicSentPacket) -> None:
        """Append an ACK frame for the only range of received packets."""
        quic, space = self._quic, self._space
        received = self._state.ack_ranges[0]
        largest = received.stop - 1
        assert space.largest_received_time is not None
        delay = max(0, int((now - space.largest_received_time) * 1_000_000))
        space.ack_at = None
        packet.delivery_handlers.append((self._on_ack_delivery, (space.largest_received_packet,)))
        payload.append(_ACK)
        _append_varint(payload, largest)
        _append_varint(payload, delay >> quic._local_ack_delay_exponent)
        payload.append(0)
        _append_varint(payload, largest - received.start)

    def _append_stream(self, payload: bytearray, room: int, packet: QuicSentPacket) -> None:
        """Append a STREAM frame with the first unsent bytes, as far as flow control permits."""
        quic, stream, sender = self._quic, self._state.stream, self._state.sender
        pending = self._state.pending_ranges
        if not pending:
            sender.buffer_is_empty = True
            return
        unsent = pending[0]
        start, stop = unsent.start, unsent.stop
        highest = sender.highest_offset
        most = min(
            highest + quic._remote_max_data - quic._remote_max_data_used,
            stream.max_stream_data_remote,
        )
        until = min(stop, start + room - _MAX_STREAM_HEAD, most)
        if until <= start:
            return
        if until == stop:
            del pending[0]
            sender.buffer_is_empty = not pending
        else:
            pending[0] = range(until, stop)
        if until > highest:
            quic._remote_max_data_used += until - highest
            sender.highest_offset = until
        packet.in_flight = packet.is_ack_eliciting = True
        packet.delivery_handlers.append((self._on_delivery, (start, until)))
        payload.append(_STREAM_WITH_OFFSET_AND_LENGTH)
        payload.append(self._state.stream_id)
        _append_varint(payload, start)
        length = until - start
        payload.append((length | _TWO_BYTES) >> 8)
        payload.append(length & 0xFF)
        at = start - sender._buffer_start
        payload += sender._buffer[at : at + length]

    def _on_ack_delivery(self, delivery: QuicDeliveryState, largest: int) -> None:
        """Omit the packets of an ACK frame from further ACK frames, because the peer has it."""
        if delivery is not _ACKED:
            return
        ranges = self._state.ack_ranges
        while ranges and ranges[0].stop <= largest + 1:
            del ranges[0]
        if ranges and ranges[0].start <= largest:
            ranges[0] = range(largest + 1, ranges[0].stop)

    def _on_delivery(self, delivery: QuicDeliveryState, start: int, stop: int) -> None:
        """Release delivered bytes from memory, or queue lost bytes again."""
        sender = self._state.sender
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


def _append_varint(payload: bytearray, value: int) -> None:
    """Append a variable-length integer (RFC 9000, 16)."""
    if value < 1 << 6:
        payload.append(value)
        return
    if value < 1 << 14:
        power = 1
    elif value < 1 << 30:
        power = 2
    else:
        power = 3
    size = 1 << power
    payload.append(power << 6 | value >> 8 * (size - 1))
    for place in range(size - 2, -1, -1):
        payload.append(value >> 8 * place & 0xFF)
