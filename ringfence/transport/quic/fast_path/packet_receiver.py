"""Decoding of received packets on the fast path: decryption, STREAM frames and ACK frames.

Reads and writes private names of aioquic.
"""

from math import inf

from aioquic._crypto import CryptoError
from aioquic.quic.connection import QuicConnectionError, QuicReceiveContext
from aioquic.quic.events import StreamDataReceived
from aioquic.quic.packet import decode_packet_number
from aioquic.quic.packet_builder import QuicDeliveryState, QuicSentPacket
from aioquic.quic.recovery import MAX_ACK_RANGES
from aioquic.tls import Epoch

from ringfence.transport.interface import Address
from ringfence.transport.quic.fast_path.established_state import CONNECTED, EstablishedState

__all__ = ["FastReceiver"]

_ACKED = QuicDeliveryState.ACKED
_SAMPLE_OFFSET = 4
"""Bytes from the packet number to the sample of header protection (RFC 9001, 5.4.2)."""
_SAMPLE_SIZE = 16
_MIN_RTT = 0.001
_LONE_ACK_DELAY = 0.004
"""Seconds that the acknowledgement of a single packet waits for stream data to accompany it. After
a second packet, aioquic's shorter delay applies."""
_ACK = 0x02
_WITH_OFFSET = 0x04


class FastReceiver:
    """Decoder of the received packets of one QUIC connection, for the frequent kinds of packets."""

    __slots__ = ("_state",)

    def __init__(self, state: EstablishedState) -> None:
        self._state = state

    def receive(self, data: bytes, address: Address, now: float) -> bool:
        """Process a datagram like aioquic's `receive_datagram`; return False when aioquic must do
        it."""
        quic, recv = self._state.quic, self._state.crypto.recv
        number_at = 1 + self._state.cid_length
        if (
            not self._state.is_usable
            or self._state.path.addr != address
            or len(data) < number_at + _SAMPLE_OFFSET + _SAMPLE_SIZE
            or data[0] & 0xC0 != 0x40
            or data[1:number_at] != quic.host_cid
            or recv.aead is None
            or recv.hp is None
            or self._state.zero_rtt.recv.aead is not None
        ):
            return False
        opened = self._decrypt(data, number_at)
        if opened is None:
            return False
        first, number, payload = opened
        space = self._state.space
        if number in space.received_packets:
            return True
        if number > space.expected_packet_number:
            space.expected_packet_number = number + 1
        if number > quic._spin_highest_pn:
            quic._spin_bit = bool(first & 0x20) is not self._state.is_client
            quic._spin_highest_pn = number
        is_eliciting = self._process_frames(payload, now)
        if quic._state is not CONNECTED or quic._close_pending:
            return True
        quic._close_at = now + self._state.idle_timeout(now)
        quic._ack_eliciting_sent_since_receipt = False
        is_next = number == space.largest_received_packet + 1
        if number > space.largest_received_packet:
            space.largest_received_packet = number
            space.largest_received_time = now
        space.ack_queue.add(number)
        space.received_packets.add(number)
        if len(space.ack_queue) > MAX_ACK_RANGES:
            space.ack_queue.shift()
        if is_eliciting:
            self._schedule_ack(now, is_next=is_next)
        return True

    def _decrypt(self, data: bytes, number_at: int) -> tuple[int, int, bytes] | None:
        """Decrypt a packet; return its first byte, packet number and payload; None on failure."""
        recv = self._state.crypto.recv
        assert recv.aead is not None
        assert recv.hp is not None
        sample_at = number_at + _SAMPLE_OFFSET
        mask = recv.hp._mask(data[sample_at : sample_at + _SAMPLE_SIZE])
        first = data[0] ^ (mask[0] & 0x1F)
        if first & 0x18 or first >> 2 & 1 != recv.key_phase:
            return None
        length = (first & 0x03) + 1
        payload_at = number_at + length
        sent_number = int.from_bytes(data[number_at:payload_at], "big")
        sent_number ^= int.from_bytes(mask[1 : 1 + length], "big")
        expected = self._state.space.expected_packet_number
        number = decode_packet_number(sent_number, length * 8, expected)
        header = bytes((first,)) + data[1:number_at] + sent_number.to_bytes(length, "big")
        try:
            payload = recv.aead.decrypt(data[payload_at:], header, number)
        except CryptoError:
            return None
        return first, number, payload

    def _schedule_ack(self, now: float, *, is_next: bool) -> None:
        quic, space = self._state.quic, self._state.space
        if not is_next:
            space.ack_at = now  # A packet is missing: acknowledge at once.
        elif space.ack_at is None:
            space.ack_at = now + _LONE_ACK_DELAY
        else:
            space.ack_at = min(space.ack_at, now + quic._ack_delay)

    def _process_frames(self, payload: bytes, now: float) -> bool:
        """Process all frames of a packet; return whether they require an acknowledgement."""
        at, end = 0, len(payload)
        is_eliciting = False
        while at < end:
            kind = payload[at]
            if kind & 0xF9 == 0x08:
                after = self._process_stream(payload, at, kind)
                is_eliciting = is_eliciting or after > 0
            elif kind == _ACK:
                after = self._process_ack(payload, at, now)
            else:
                after = 0
            if not after:
                return self._process_by_aioquic(payload[at:], now) or is_eliciting
            at = after
        return is_eliciting if end else self._process_by_aioquic(payload, now)

    def _process_by_aioquic(self, payload: bytes, now: float) -> bool:
        """Let aioquic process the remaining frames of a packet."""
        quic = self._state.quic
        context = QuicReceiveContext(
            epoch=Epoch.ONE_RTT,
            host_cid=quic.host_cid,
            network_path=self._state.path,
            quic_logger_frames=None,
            time=now,
            version=None,
        )
        try:
            is_eliciting, _ = quic._payload_received(context, payload)
        except QuicConnectionError as error:
            quic._logger.warning(error)
            quic.close(error.error_code, error.frame_type, error.reason_phrase)
            return False
        return is_eliciting

    def _process_stream(self, payload: bytes, at: int, kind: int) -> int:
        """Process a STREAM frame that contains the next bytes in order.

        Returns the position after the frame, 0 for any other frame.
        """
        end = len(payload)
        if at + 1 >= end or payload[at + 1] != self._state.stream_id:
            return 0
        at += 2
        offset, length = 0, 0
        if kind & _WITH_OFFSET:
            offset, at = _read_varint(payload, at)
        if kind & 0x02:
            length, at = _read_varint(payload, at)
        else:
            length = end - at
        stop = offset + length
        quic, stream = self._state.quic, self._state.stream
        receiver = stream.receiver
        if (
            at < 0
            or at + length > end
            or not length
            or offset != receiver._buffer_start
            or receiver._buffer
            or receiver._final_size is not None
            or receiver.is_finished
            or receiver.highest_offset != offset
            or stop > stream.max_stream_data_local
            or quic._local_max_data.used + length > quic._local_max_data.value
        ):
            return 0
        receiver.highest_offset = receiver._buffer_start = stop
        quic._local_max_data.used += length
        quic._events.append(
            StreamDataReceived(payload[at : at + length], False, self._state.stream_id)
        )
        return at + length

    def _process_ack(self, payload: bytes, at: int, now: float) -> int:
        """Process an ACK frame with one range, without gaps.

        Returns the position after the frame, 0 for any other frame.
        """
        largest, at = _read_varint(payload, at + 1)
        delay, at = _read_varint(payload, at)
        ranges, at = _read_varint(payload, at)
        before, at = _read_varint(payload, at)
        space, loss = self._state.space, self._state.loss
        sent = space.sent_packets
        oldest = next(iter(sent), inf)
        if at < 0 or ranges or oldest < largest - before or largest < space.largest_acked_packet:
            return 0
        if before > largest or largest >= self._state.quic._packet_number:
            return 0
        space.largest_acked_packet = largest
        last: QuicSentPacket | None = None
        is_eliciting = False
        while oldest <= largest:
            last = sent.pop(oldest)  # type: ignore[arg-type]  # Never `inf` here.
            if last.is_ack_eliciting:
                is_eliciting = True
                space.ack_eliciting_in_flight -= 1
            if last.in_flight:
                loss._cc.on_packet_acked(packet=last, now=now)
            for handler, arguments in last.delivery_handlers:
                handler(_ACKED, *arguments)
            oldest = next(iter(sent), inf)
        if last is None:
            return at
        if last.packet_number == largest and is_eliciting:
            exponent = self._state.quic._remote_ack_delay_exponent
            assert last.sent_time is not None
            self._update_rtt(now - last.sent_time, (delay << exponent) / 1_000_000, now)
        space.loss_time = None  # All earlier packets are acknowledged.
        loss._pto_count = 0
        return at

    def _update_rtt(self, rtt: float, ack_delay: float, now: float) -> None:
        """Update the round-trip estimate, as `QuicPacketRecovery.on_ack_received` does."""
        loss = self._state.loss
        latest = max(rtt, _MIN_RTT)
        loss._rtt_min = min(loss._rtt_min, latest)
        ack_delay = min(ack_delay, loss.max_ack_delay)
        if latest > loss._rtt_min + ack_delay:
            latest -= ack_delay
        loss._rtt_latest = latest
        loss._rtt_variance = 0.75 * loss._rtt_variance + 0.25 * abs(loss._rtt_min - latest)
        loss._rtt_smoothed = 0.875 * loss._rtt_smoothed + 0.125 * latest
        # Without the acknowledgement delay, which would end the slow start too early.
        loss._cc.on_rtt_measurement(now=now, rtt=latest)
        loss._pacer.update_rate(
            congestion_window=loss._cc.congestion_window, smoothed_rtt=loss._rtt_smoothed
        )


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Decode a variable-length integer (RFC 9000, 16).

    Returns the integer and the position after it, -1 when `data` is too short.
    """
    if not 0 <= at < len(data):
        return 0, -1
    first = data[at]
    if first < 0x40:
        return first, at + 1
    end = at + (1 << (first >> 6))
    if end > len(data):
        return 0, -1
    return int.from_bytes(data[at:end], "big") & (1 << 8 * (end - at) - 2) - 1, end
