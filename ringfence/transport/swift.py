"""The shortest way of a packet through a QUIC connection at rest: stream data, acknowledgements.

A connection at rest has its handshake behind it, one path, one stream, and nothing else to say.
Nearly all packets are of this kind, and aioquic, which must be ready for every other, takes several
times as long for them. Whatever does not fit exactly is left to aioquic, untouched; what fits
leaves aioquic's state as it would have. Like `quic`, this reads and writes its private names.
"""

from math import inf

from aioquic._crypto import CryptoError
from aioquic.buffer import encode_uint_var
from aioquic.quic.connection import (
    QuicConnection,
    QuicConnectionError,
    QuicConnectionState,
    QuicReceiveContext,
)
from aioquic.quic.events import StreamDataReceived
from aioquic.quic.packet import QuicPacketType, decode_packet_number
from aioquic.quic.packet_builder import QuicDeliveryState, QuicSentPacket
from aioquic.quic.recovery import MAX_ACK_RANGES
from aioquic.tls import Epoch

from ringfence.transport.interface import Address

__all__ = ["Swift"]

_CONNECTED = QuicConnectionState.CONNECTED
_ACKED = QuicDeliveryState.ACKED
_TAG = 16
_PACKET_NUMBER = 2
"""Bytes of a packet number that we send, as aioquic does."""
_SAMPLE_AFTER = 4
"""Header protection takes its sample so far behind the start of the packet number."""
_SAMPLE = 16
_LEAST_RTT = 0.001
_IDLE_HOLDS = 1.0
"""Seconds for which the idle timeout, which hardly ever changes, is not worked out again."""
_PATIENCE = 0.008
"""Seconds that the acknowledgement of a lone packet waits for something to ride on, well below what
its sender expects. As soon as a second packet has come, aioquic's own, shorter time counts."""
_ACK = 0x02
_STREAM_WITH_LENGTH = 0x0A
_WITH_OFFSET = 0x04


class Swift:
    """One connection's short way; `receive` and `build` say when it is not for them."""

    __slots__ = (
        "_cid_length",
        "_crypto",
        "_idle",
        "_idle_at",
        "_is_client",
        "_loss",
        "_path",
        "_quic",
        "_space",
        "_stream",
        "_stream_id",
        "_zero_rtt",
    )

    def __init__(self, quic: QuicConnection, stream_id: int) -> None:
        """Made by `of`; the stream's number fits into one byte."""
        self._quic = quic
        self._crypto = quic._cryptos[Epoch.ONE_RTT]
        self._zero_rtt = quic._cryptos[Epoch.ZERO_RTT]
        self._space = quic._spaces[Epoch.ONE_RTT]
        self._loss = quic._loss
        self._path = quic._network_paths[0]
        self._stream = quic._streams[stream_id]
        self._stream_id = stream_id
        self._is_client = quic._is_client
        self._cid_length = len(quic.host_cid)
        self._idle = 0.0
        self._idle_at = -inf

    @classmethod
    def of(cls, quic: QuicConnection, stream_id: int) -> "Swift | None":
        """Find the short way through a connection; None as long as there is none."""
        if not quic._handshake_confirmed or stream_id not in quic._streams:
            return None
        others = [space for epoch, space in quic._spaces.items() if epoch is not Epoch.ONE_RTT]
        loss = quic._loss
        is_at_rest = (
            all([space.discarded for space in others])
            and loss._rtt_initialized
            and loss.handshake_confirmed
            and loss.peer_completed_address_validation
        )
        return cls(quic, stream_id) if is_at_rest else None

    @property
    def is_usable(self) -> bool:
        """Whether the connection stands on the one path that it had from the start."""
        quic, path = self._quic, self._path
        paths = quic._network_paths
        return (
            quic._state is _CONNECTED
            and not quic._close_pending
            and len(paths) == 1
            and paths[0] is path
            and path.is_validated
        )

    # -- receiving -----------------------------------------------------------------------------

    def receive(self, data: bytes, address: Address, now: float) -> bool:
        """Take a datagram as `receive_datagram` would; False when that must take it."""
        quic, recv = self._quic, self._crypto.recv
        number_at = 1 + self._cid_length
        if (
            not self.is_usable
            or self._path.addr != address
            or len(data) < number_at + _SAMPLE_AFTER + _SAMPLE
            or data[0] & 0xC0 != 0x40
            or data[1:number_at] != quic.host_cid
            or recv.aead is None
            or recv.hp is None
            or self._zero_rtt.recv.aead is not None
        ):
            return False
        sample_at = number_at + _SAMPLE_AFTER
        mask = recv.hp._mask(data[sample_at : sample_at + _SAMPLE])
        first = data[0] ^ (mask[0] & 0x1F)
        if first & 0x18 or first >> 2 & 1 != recv.key_phase:
            return False
        length = (first & 0x03) + 1
        payload_at = number_at + length
        sent_number = int.from_bytes(data[number_at:payload_at], "big")
        sent_number ^= int.from_bytes(mask[1 : 1 + length], "big")
        space = self._space
        number = decode_packet_number(sent_number, length * 8, space.expected_packet_number)
        header = bytes((first,)) + data[1:number_at] + sent_number.to_bytes(length, "big")
        try:
            payload = recv.aead.decrypt(data[payload_at:], header, number)
        except CryptoError:
            return False
        if number in space.received_packets:
            return True
        if number > space.expected_packet_number:
            space.expected_packet_number = number + 1
        if number > quic._spin_highest_pn:
            quic._spin_bit = bool(first & 0x20) is not self._is_client
            quic._spin_highest_pn = number
        is_eliciting = self._take_frames(payload, now)
        if quic._state is not _CONNECTED or quic._close_pending:
            return True
        quic._close_at = now + self._idle_timeout(now)
        quic._ack_eliciting_sent_since_receipt = False
        if number > space.largest_received_packet:
            space.largest_received_packet = number
            space.largest_received_time = now
        space.ack_queue.add(number)
        space.received_packets.add(number)
        if len(space.ack_queue) > MAX_ACK_RANGES:
            space.ack_queue.shift()
        if is_eliciting:
            if space.ack_at is None:
                space.ack_at = now + _PATIENCE
            else:
                space.ack_at = min(space.ack_at, now + quic._ack_delay)
        return True

    def _take_frames(self, payload: bytes, now: float) -> bool:
        """Take all frames of a packet; whether they ask for an acknowledgement."""
        at, end = 0, len(payload)
        is_eliciting = False
        while at < end:
            kind = payload[at]
            if kind & 0xF9 == 0x08:
                after = self._take_stream(payload, at, kind)
                is_eliciting = is_eliciting or after > 0
            elif kind == _ACK:
                after = self._take_ack(payload, at, now)
            else:
                after = 0
            if not after:
                return self._take_others(payload[at:], now) or is_eliciting
            at = after
        return is_eliciting if end else self._take_others(payload, now)

    def _take_others(self, payload: bytes, now: float) -> bool:
        """Leave the rest of a packet to aioquic."""
        quic = self._quic
        context = QuicReceiveContext(
            epoch=Epoch.ONE_RTT,
            host_cid=quic.host_cid,
            network_path=self._path,
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

    def _take_stream(self, payload: bytes, at: int, kind: int) -> int:
        """Take a STREAM frame that carries the very next bytes; where it ends, 0 for any other."""
        end = len(payload)
        if at + 1 >= end or payload[at + 1] != self._stream_id:
            return 0
        at += 2
        offset, length = 0, 0
        if kind & _WITH_OFFSET:
            offset, at = _integer(payload, at)
        if kind & 0x02:
            length, at = _integer(payload, at)
        else:
            length = end - at
        stop = offset + length
        quic, stream = self._quic, self._stream
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
        quic._events.append(StreamDataReceived(payload[at : at + length], False, self._stream_id))
        return at + length

    def _take_ack(self, payload: bytes, at: int, now: float) -> int:
        """Take an ACK frame of one range that leaves no gap; where it ends, 0 for any other."""
        largest, at = _integer(payload, at + 1)
        delay, at = _integer(payload, at)
        ranges, at = _integer(payload, at)
        before, at = _integer(payload, at)
        space, loss = self._space, self._loss
        sent = space.sent_packets
        oldest = next(iter(sent), inf)
        if at < 0 or ranges or oldest < largest - before or largest < space.largest_acked_packet:
            return 0
        if before > largest:
            return 0
        space.largest_acked_packet = largest
        last: QuicSentPacket | None = None
        is_eliciting = False
        while oldest <= largest:
            last = sent.pop(oldest)  # type: ignore[arg-type]  # It is no `inf`.
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
            exponent = self._quic._remote_ack_delay_exponent
            assert last.sent_time is not None
            self._measure(now - last.sent_time, (delay << exponent) / 1_000_000, now)
        space.loss_time = None  # All that was sent before is acknowledged.
        loss._pto_count = 0
        return at

    def _measure(self, rtt: float, ack_delay: float, now: float) -> None:
        """Take a round trip's time, as `QuicPacketRecovery.on_ack_received` does."""
        loss = self._loss
        latest = max(rtt, _LEAST_RTT)
        loss._rtt_min = min(loss._rtt_min, latest)
        ack_delay = min(ack_delay, loss.max_ack_delay)
        if latest > loss._rtt_min + ack_delay:
            latest -= ack_delay
        loss._rtt_latest = latest
        loss._rtt_variance = 0.75 * loss._rtt_variance + 0.25 * abs(loss._rtt_min - latest)
        loss._rtt_smoothed = 0.875 * loss._rtt_smoothed + 0.125 * latest
        # Not the raw time: an acknowledgement that took its time would end the slow start.
        loss._cc.on_rtt_measurement(now=now, rtt=latest)
        loss._pacer.update_rate(
            congestion_window=loss._cc.congestion_window, smoothed_rtt=loss._rtt_smoothed
        )

    # -- sending -------------------------------------------------------------------------------

    def build(self, now: float, window: int) -> list[tuple[bytes, Address]] | None:
        """Make the datagrams that may leave now; None when `datagrams_to_send` must make them."""
        if not self._has_only_data(window):
            return None
        quic, space, loss = self._quic, self._space, self._loss
        sender = self._stream.sender
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
            if not self._send_packet(now, datagrams, acks=acks, has_data=has_data):
                return datagrams

    def _has_only_data(self, window: int) -> bool:
        """Whether there is nothing to be sent but stream data and acknowledgements."""
        quic, stream = self._quic, self._stream
        sender, receiver = stream.sender, stream.receiver
        limit, delivered = quic._local_max_data, receiver._buffer_start
        crypto = quic._crypto_streams[Epoch.ONE_RTT]
        return (
            self.is_usable
            and len(quic._streams) == 1
            and self._crypto.send.aead is not None
            and not self._crypto._update_key_requested
            and not (
                quic._handshake_done_pending
                or quic._probe_pending
                or quic._ping_pending
                or quic._retire_connection_ids
                or quic._streams_blocked_pending
                or quic._datagrams_pending
                or self._path.remote_challenges
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

    def _send_packet(
        self, now: float, datagrams: list[tuple[bytes, Address]], *, acks: bool, has_data: bool
    ) -> bool:
        """Send one packet with an acknowledgement, stream data or both; False if nothing fits."""
        quic, space, loss = self._quic, self._space, self._loss
        size = quic._max_datagram_size
        number = quic._packet_number
        packet = QuicSentPacket(
            Epoch.ONE_RTT, False, False, False, number, QuicPacketType.ONE_RTT, now
        )
        payload = self._ack(now, packet) if acks else b""
        cid = quic._peer_cid.cid
        if has_data and loss._cc.congestion_window - loss._cc.bytes_in_flight >= size:
            room = size - 1 - len(cid) - _PACKET_NUMBER - _TAG - len(payload)
            payload += self._data(room, packet)
        if not payload:
            return False
        send = self._crypto.send
        assert send.aead is not None
        assert send.hp is not None
        first = 0x41 | quic._spin_bit << 5 | send.key_phase << 2
        short = number & 0xFFFF
        sealed = send.aead.encrypt(
            payload, bytes((first,)) + cid + short.to_bytes(2, "big"), number
        )
        sample_at = _SAMPLE_AFTER - _PACKET_NUMBER
        mask = send.hp._mask(sealed[sample_at : sample_at + _SAMPLE])
        short ^= mask[1] << 8 | mask[2]
        datagram = b"".join(
            (bytes((first ^ (mask[0] & 0x1F),)), cid, short.to_bytes(2, "big"), sealed)
        )
        packet.sent_bytes = len(datagram)
        quic._packet_number = number + 1
        loss.on_packet_sent(packet=packet, space=space)
        if packet.is_ack_eliciting and not quic._ack_eliciting_sent_since_receipt:
            quic._close_at = now + self._idle_timeout(now)
            quic._ack_eliciting_sent_since_receipt = True
        self._path.bytes_sent += len(datagram)
        loss._pacer.update_after_send(now=now)
        datagrams.append((datagram, self._path.addr))
        return True

    def _ack(self, now: float, packet: QuicSentPacket) -> bytes:
        """Write the ACK frame of the one range that there is."""
        quic, space = self._quic, self._space
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

    def _data(self, room: int, packet: QuicSentPacket) -> bytes:
        """Write the STREAM frame of the first bytes that wait; empty when none may leave."""
        quic, stream = self._quic, self._stream
        sender = stream.sender
        pending = sender._pending
        if not len(pending):
            sender.buffer_is_empty = True
            return b""
        start, stop = pending[0].start, pending[0].stop
        head = bytes((_STREAM_WITH_LENGTH | _WITH_OFFSET, self._stream_id)) + encode_uint_var(start)
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
        """Drop bytes that have arrived, or send them again."""
        sender = self._stream.sender
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

    # -- time ----------------------------------------------------------------------------------

    def timer(self) -> float | None:
        """When the connection must be looked at, as `get_timer`; None when that must tell."""
        quic, space, loss = self._quic, self._space, self._loss
        if not self.is_usable:
            return None
        at = quic._close_at
        if at is None:
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

    def _idle_timeout(self, now: float) -> float:
        if now - self._idle_at > _IDLE_HOLDS:
            self._idle = self._quic._idle_timeout()
            self._idle_at = now
        return self._idle


def _integer(data: bytes, at: int) -> tuple[int, int]:
    """Read a variable-length integer (RFC 9000, 16) and where it ends: -1 when it is cut short."""
    if not 0 <= at < len(data):
        return 0, -1
    first = data[at]
    if first < 0x40:
        return first, at + 1
    end = at + (1 << (first >> 6))
    if end > len(data):
        return 0, -1
    return int.from_bytes(data[at:end], "big") & (1 << 8 * (end - at) - 2) - 1, end
