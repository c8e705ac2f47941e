"""Decoding of received packets on the fast path: decryption, STREAM frames and ACK frames.

Reads and writes private names of aioquic. `docs/internals/quic-fast-path.md` lists the checks of
the RFCs. The integers of frames are below 2^62, so that sums of two fit into 64 bits.
"""

from aioquic._crypto import AEAD, AEAD_NONCE_LENGTH, HeaderProtection
from aioquic.quic.connection import QuicConnectionError, QuicReceiveContext
from aioquic.quic.events import StreamDataReceived
from aioquic.quic.packet_builder import QuicDeliveryState
from aioquic.quic.recovery import MAX_ACK_RANGES
from aioquic.tls import Epoch
from cryptography.exceptions import InvalidTag

from ringfence.transport.interface import Address
from ringfence.transport.quic.fast_path import established_state

__all__ = ["FastReceiver"]

_ACKED = QuicDeliveryState.ACKED
_CONNECTED = established_state.CONNECTED
_SAMPLE_OFFSET = 4
"""Bytes from the packet number to the sample of header protection (RFC 9001, 5.4.2)."""
_SAMPLE_SIZE = 16
_MIN_RTT = 0.001
_LONE_ACK_DELAY = 0.01
"""Seconds that the acknowledgement of a single packet waits for stream data to accompany it.

The announced maximum is 25 ms (RFC 9000, 13.2.1); the rest allows for late timers. After a second
packet, aioquic's shorter delay applies."""
_ACK = 0x02
_WITH_OFFSET = 0x04


class FastReceiver:
    """Decoder of the received packets of one QUIC connection, for the frequent kinds of packets."""

    __slots__ = (
        "_aead",
        "_at",
        "_data",
        "_decrypt_payload",
        "_first",
        "_hp",
        "_iv",
        "_mask_of",
        "_number",
        "_payload",
        "_quic",
        "_space",
        "_state",
    )

    def __init__(self, state: established_state.EstablishedState) -> None:
        self._state = state
        self._quic = state.quic
        self._space = state.space
        self._payload = b""
        """Frames of the packet that is processed."""
        self._at = 0
        """Position of the next byte in `_payload`; -1 after an integer that is cut short."""
        self._first = 0
        """First byte of the packet, without header protection."""
        self._number = 0
        """Number of the packet."""
        self._data = b""
        """Stream data of the packet that no event contains yet."""
        self._aead: AEAD | None = None
        self._hp: HeaderProtection | None = None
        """Keys whose functions are stored below."""

    def receive(self, data: bytes, address: Address, now: float) -> bytes | None:
        """Process a datagram like aioquic's `receive_datagram`; return None when aioquic must do
        it.

        Returns the stream data of the packet. If aioquic has processed some of its frames, all
        data is in aioquic's events, and the result is empty.
        """
        quic, space, state = self._quic, self._space, self._state
        if not state.is_usable() or state.path.addr != address or not self._decrypt(data):
            return None
        number = self._number
        window = space.received_packets
        received = window._received
        lower = window._lower
        if number < lower or number in received:
            return b""
        if number > space.expected_packet_number:
            space.expected_packet_number = number + 1
        if number > quic._spin_highest_pn:
            quic._spin_bit = bool(self._first & 0x20) is not state.is_client
            quic._spin_highest_pn = number
        self._data = b""
        is_eliciting = self._process_frames(self._payload, now)
        if quic._state is not _CONNECTED or quic._close_pending:
            return self._data
        quic._close_at = now + state.idle_timeout(now)
        quic._ack_eliciting_sent_since_receipt = False
        is_next = number == space.largest_received_packet + 1
        if number > space.largest_received_packet:
            space.largest_received_packet = number
            space.largest_received_time = now
        self._add_to_acknowledge(number)
        size = window._size
        if len(received) < 2 * size:
            received.add(number)
            window._lower = max(lower, number - size + 1)
        else:
            window.add(number)  # Now and then, it removes old numbers.
        if is_eliciting:
            self._schedule_ack(now, is_next)
        return self._data

    def _add_to_acknowledge(self, number: int) -> None:
        """Add a packet number to the ranges that the next ACK frame contains."""
        ranges = self._state.ack_ranges
        if not ranges:
            ranges.append(range(number, number + 1))
            return
        if ranges[-1].stop == number:
            ranges[-1] = range(ranges[-1].start, number + 1)
            return
        self._space.ack_queue.add(number)
        if len(ranges) > MAX_ACK_RANGES:
            del ranges[0]

    def _use_keys(self, aead: AEAD, hp: HeaderProtection) -> None:
        """Store the functions of the present keys, without those of aioquic around them."""
        self._aead, self._hp = aead, hp
        self._iv = aead._iv
        self._decrypt_payload = aead._aead.decrypt
        self._mask_of = established_state.mask_function(hp)

    def _decrypt(self, data: bytes) -> bool:
        """Decrypt a packet into `_first`, `_number` and `_payload`; return False when aioquic must
        do it."""
        quic, recv = self._quic, self._state.crypto.recv
        number_at = 1 + self._state.cid_length
        sample_at = number_at + _SAMPLE_OFFSET
        if (
            len(data) < sample_at + _SAMPLE_SIZE
            or data[0] & 0xC0 != 0x40
            or data[1:number_at] != quic.host_cid
            or recv.aead is None
            or recv.hp is None
            or self._state.zero_rtt.recv.aead is not None
        ):
            return False
        if recv.aead is not self._aead or recv.hp is not self._hp:
            self._use_keys(recv.aead, recv.hp)
        mask = self._mask_of(data[sample_at : sample_at + _SAMPLE_SIZE])
        first = data[0] ^ (mask[0] & 0x1F)
        if first & 0x18 or first >> 2 & 1 != recv.key_phase:
            return False
        length = (first & 0x03) + 1
        header = bytearray(data[: number_at + length])
        header[0] = first
        sent_number = 0
        for place in range(length):
            byte = data[number_at + place] ^ mask[1 + place]
            header[number_at + place] = byte
            sent_number = sent_number << 8 | byte
        number = _full_number(sent_number, length, self._space.expected_packet_number)
        nonce = (self._iv ^ number).to_bytes(AEAD_NONCE_LENGTH, "big")
        try:
            sealed = data[number_at + length :]
            self._payload = self._decrypt_payload(nonce, sealed, bytes(header))
        except InvalidTag:
            return False
        self._first, self._number = first, number
        return True

    def _schedule_ack(self, now: float, is_next: bool) -> None:
        quic, space = self._quic, self._space
        if not is_next:
            space.ack_at = now  # A packet is missing: acknowledge at once.
        elif space.ack_at is None:
            space.ack_at = now + _LONE_ACK_DELAY
        else:
            space.ack_at = min(space.ack_at, now + quic._ack_delay)

    def _process_frames(self, payload: bytes, now: float) -> bool:
        """Process all frames of a packet; return whether they require an acknowledgement."""
        self._payload = payload
        is_eliciting = False
        end = len(payload)
        at = self._at = 0
        while at < end:
            kind = payload[at]
            if kind & 0xF9 == 0x08:
                is_known = self._process_stream(at, kind)
                is_eliciting = is_eliciting or is_known
            else:
                is_known = kind == _ACK and self._process_ack(at, now)
            if not is_known:
                return self._process_by_aioquic(payload[at:], now) or is_eliciting
            at = self._at
        return is_eliciting if end else self._process_by_aioquic(payload, now)

    def _process_by_aioquic(self, payload: bytes, now: float) -> bool:
        """Let aioquic process the remaining frames of a packet."""
        quic = self._quic
        if self._data:  # The events are in the order of the frames.
            quic._events.append(StreamDataReceived(self._data, False, self._state.stream_id))
            self._data = b""
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

    def _process_stream(self, at: int, kind: int) -> bool:
        """Process the STREAM frame at `at` and move `_at` after it, if it contains the next bytes
        in order; return False for any other frame."""
        payload, quic, stream = self._payload, self._quic, self._state.stream
        end = len(payload)
        if at + 1 >= end or payload[at + 1] != self._state.stream_id:
            return False
        self._at = at + 2
        offset = self._read_varint() if kind & _WITH_OFFSET else 0
        length = self._read_varint() if kind & 0x02 else end - self._at
        begin = self._at
        receiver, limit = self._state.receiver, quic._local_max_data
        if (
            begin < 0
            or length > end - begin
            or not length
            or offset != receiver._buffer_start
            or receiver._buffer
            or receiver._final_size is not None
            or receiver.is_finished
            or receiver.highest_offset != offset
            or offset + length > stream.max_stream_data_local
            or limit.used + length > limit.value
        ):
            return False
        receiver.highest_offset = receiver._buffer_start = offset + length
        limit.used += length
        self._at = begin + length
        self._data += payload[begin : begin + length]
        return True

    def _process_ack(self, at: int, now: float) -> bool:
        """Process the ACK frame at `at` and move `_at` after it, if it has one range without gaps;
        return False for any other frame."""
        self._at = at + 1
        largest = self._read_varint()
        delay = self._read_varint()
        ranges = self._read_varint()
        before = self._read_varint()
        space, state = self._space, self._state
        sent = space.sent_packets
        if self._at < 0 or ranges or largest < space.largest_acked_packet:
            return False
        if before > largest or largest >= self._quic._packet_number:
            return False
        oldest = next(iter(sent), -1)
        if oldest < largest - before and oldest != -1:
            return False
        space.largest_acked_packet = largest
        last, is_eliciting = None, False
        while 0 <= oldest <= largest:
            last = sent.pop(oldest)
            if last.is_ack_eliciting:
                is_eliciting = True
                space.ack_eliciting_in_flight -= 1
            if last.in_flight:
                state.cc.on_packet_acked(packet=last, now=now)
            for handler, arguments in last.delivery_handlers:
                handler(_ACKED, *arguments)
            oldest = next(iter(sent), -1)
        if last is None:
            return True
        if last.packet_number == largest and is_eliciting:
            assert last.sent_time is not None
            ack_delay = float(delay) * (1 << self._quic._remote_ack_delay_exponent) / 1_000_000
            self._update_rtt(now - last.sent_time, ack_delay, now)
        space.loss_time = None  # All earlier packets are acknowledged.
        state.loss._pto_count = 0
        return True

    def _update_rtt(self, rtt: float, ack_delay: float, now: float) -> None:
        """Update the round-trip estimate, as `QuicPacketRecovery.on_ack_received` does."""
        loss, cc = self._state.loss, self._state.cc
        latest = max(rtt, _MIN_RTT)
        least = min(loss._rtt_min, latest)
        loss._rtt_min = least
        ack_delay = min(ack_delay, loss.max_ack_delay)
        if latest > least + ack_delay:
            latest -= ack_delay
        loss._rtt_latest = latest
        loss._rtt_variance = 0.75 * loss._rtt_variance + 0.25 * abs(least - latest)
        loss._rtt_smoothed = 0.875 * loss._rtt_smoothed + 0.125 * latest
        # Without the acknowledgement delay, which would end the slow start too early.
        cc.on_rtt_measurement(now=now, rtt=latest)
        self._state.update_pace(cc.congestion_window, loss._rtt_smoothed)

    def _read_varint(self) -> int:
        """Decode the variable-length integer (RFC 9000, 16) at `_at`, and move `_at` after it."""
        at, payload = self._at, self._payload
        if not 0 <= at < len(payload):
            self._at = -1
            return 0
        first = payload[at]
        value = first & 0x3F
        end = at + (1 << (first >> 6))
        if end > len(payload):
            self._at = -1
            return 0
        for place in range(at + 1, end):
            value = value << 8 | payload[place]
        self._at = end
        return value


def _full_number(sent: int, length: int, expected: int) -> int:
    """Restore a packet number of which the last `length` bytes were sent (RFC 9000, A.3)."""
    window = 1
    window <<= 8 * length  # Not `1 << 32`, which is 0 in 32 bits of compiled code.
    number = (expected & ~(window - 1)) | sent
    if number <= expected - window // 2 and number < (1 << 62) - window:
        return number + window
    if number > expected + window // 2 and number >= window:
        return number - window
    return number
