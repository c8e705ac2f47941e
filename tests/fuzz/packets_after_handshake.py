"""Fuzz target: packets after the handshake, on the fast path and in aioquic, which must agree.

Bytes encode packets of frames, valid and invalid. The packets are encrypted with the client's keys,
and some are then damaged. Three servers in the same state receive each packet: with the compiled
fast path, with its Python source, and without it. All of them must accept and reject the same.

`python -m tests.fuzz.packets_after_handshake --seconds 60 --seed 1`.
"""

import sys

from aioquic.buffer import encode_uint_var
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import StopSendingReceived, StreamReset
from aioquic.tls import Epoch

from ringfence.transport.quic.aioquic_connection import STREAM
from tests.fuzz.bytes_to_histories import Choices, main
from tests.ringfence.transport.quic.test_fast_path import CLIENT, World

__all__ = ["run"]

MAX = 1 << 62
OFFSETS = (0, 1, 5, 63, 64, 70_000, 1 << 20, MAX - 1)
KINDS = (*range(0x20), 0x30, 0x31, 0x3F)


class _Server:
    """One of the three servers, with the client whose keys encrypt its packets."""

    def __init__(self, *, is_fast: bool, is_compiled: bool = True) -> None:
        self.world = World(is_compiled=is_compiled)
        self.world.now = 20.0  # The same for all: acknowledgements contain delays.
        self.quic = self.world.server.quic
        # aioquic ends the slow start at round trips that contain delays of acknowledgements, the
        # fast path does not. Windows of different sizes would send different packets.
        self.quic._loss._cc.ssthresh = 1 << 30
        self.is_fast = is_fast
        self.received = b""
        self.is_over = False

    def send(self, size: int) -> None:
        """Send packets, which the client can acknowledge later."""
        if size:
            self.quic.send_stream_data(STREAM, bytes(size))
        QuicConnection.datagrams_to_send(self.quic, self.world.now)

    def packet(self, first: int, number: int, length: int, payload: bytes) -> bytes:
        client = self.world.client.quic
        crypto = client._cryptos[Epoch.ONE_RTT].send
        first |= 0x40 | crypto.key_phase << 2 | length - 1
        short = (number & (1 << 8 * length) - 1).to_bytes(length, "big")
        header = bytes((first,)) + client._peer_cid.cid + short
        return crypto.encrypt_packet(header, payload, number)

    def receive(self, datagram: bytes) -> None:
        if not self.is_fast:
            self.quic._fast_path = None
        self.received += self.quic.receive(datagram, CLIENT, self.world.now)
        while (event := self.quic.next_event()) is not None:
            self.received += getattr(event, "data", b"")
            # Connections of Ringfence close on these events.
            self.is_over = self.is_over or isinstance(event, StreamReset | StopSendingReceived)
        self.is_over = self.is_over or self.quic.closing is not None

    def state(self) -> dict[str, object]:
        """Return the state that must be equal in all servers."""
        space = self.quic._spaces[Epoch.ONE_RTT]
        receiver = self.quic._streams[STREAM].receiver
        closing = self.quic.closing
        return {
            "closing": closing and (closing.error_code, closing.reason_phrase),
            "data": self.received,
            "over": self.is_over,
            "delivered": receiver.starting_offset(),
            "used": self.quic._local_max_data.used,
            "largest_acked": space.largest_acked_packet,
            "sent": sorted(space.sent_packets),
            "in_flight": space.ack_eliciting_in_flight,
            "received": [(each.start, each.stop) for each in space.ack_queue],
            "expected": space.expected_packet_number,
            "streams": sorted(self.quic._streams),
        }

    def estimates(self) -> dict[str, object]:
        """Return the estimates that must be equal in both forms of the fast path, bit for bit."""
        loss, space = self.quic._loss, self.quic._spaces[Epoch.ONE_RTT]
        return {
            "rtt": (loss._rtt_latest, loss._rtt_min, loss._rtt_smoothed, loss._rtt_variance),
            "window": loss._cc.get_log_data(),
            "pacer": vars(loss._pacer),
            "timers": (space.ack_at, space.loss_time, self.quic._close_at, self.quic.get_timer()),
            "spin": (self.quic._spin_bit, self.quic._spin_highest_pn),
        }


def run(data: bytes) -> int:
    """Run the history that `data` encodes; return the number of packets."""
    read = Choices(data)
    servers = [
        _Server(is_fast=True),
        _Server(is_fast=True, is_compiled=False),
        _Server(is_fast=False),
    ]
    packets = 0
    # In most histories, few packets end the connection: handshakes cost as much as 200 packets.
    rarity = (1, 8, 64, 200)[read.below(4)]
    number = servers[0].world.client.quic._packet_number
    while read and not servers[0].is_over:
        if not read.below(4):
            size = (0, 1, 300, 5000)[read.below(4)]
            for server in servers:
                server.world.now += 0.03
                server.send(size)
        frames = [_frame(read, servers[0], rarity) for _ in range(1 + read.below(3))]
        payload = b"".join(frames).ljust(3, b"\x00")  # Header protection needs a sample.
        number = max(0, number + (1, 1, 1, 1, 2, 40, 0, -1)[read.below(8)])
        first = 0x18 if read.below(25) == 1 and _is_invalid(read, rarity) else 0x20 * read.below(2)
        length = (2, 2, 1, 3, 4)[read.below(5)]
        damage = read.below(30), read.below(256), read.below(256)
        for server in servers:
            server.receive(_damaged(server.packet(first, number, length, payload), *damage))
        states = [server.state() for server in servers]
        assert states[0] == states[1] == states[2], (
            payload.hex(),
            {name: [state[name] for state in states] for name in states[0]},
        )
        estimates = [server.estimates() for server in servers[:2]]
        assert estimates[0] == estimates[1], (payload.hex(), estimates)
        packets += 1
    return packets


def _damaged(packet: bytes, kind: int, index: int, value: int) -> bytes:
    index %= len(packet)
    match kind:
        case 1:
            return packet[:index]
        case 2:
            return packet[:index] + bytes((packet[index] ^ (value or 1),)) + packet[index + 1 :]
        case 3:
            return packet + bytes((value,))
        case _:
            return packet


def _is_invalid(read: Choices, rarity: int) -> bool:
    """Choose once in `rarity` times that what follows may end the connection."""
    return read.below(rarity) == rarity - 1


def _frame(read: Choices, server: _Server, rarity: int) -> bytes:
    """Choose a frame, most often one that the fast path accepts."""
    space = server.quic._spaces[Epoch.ONE_RTT]
    kind = read.below(64)
    if kind < 28:
        offset = server.quic._streams[STREAM].receiver.starting_offset()
        if kind == 0 and _is_invalid(read, rarity):
            offset = OFFSETS[read.below(len(OFFSETS))]
        elif kind < 4:
            offset = max(0, offset + read.below(9) - 4)
        return _stream(read, offset, rarity)
    if kind < 56:
        largest = max(space.sent_packets, default=space.largest_acked_packet) - read.below(3)
        if kind == 28 and _is_invalid(read, rarity):
            largest = server.quic._packet_number + OFFSETS[read.below(5)]
        before = (0, 1, 2, max(largest, 0))[read.below(4)]
        if not (read.below(5) == 1 and _is_invalid(read, rarity)):
            before = min(before, max(largest, 0))
        ranges = (0, 0, 0, 0, 0, 0, 1, 2)[read.below(8)] if largest - before > 12 else 0
        gaps = [encode_uint_var(read.below(3)) for _ in range(2 * ranges)]
        fields = (max(largest, 0), read.below(200) << read.below(30), ranges, before)
        return b"\x02" + b"".join([*map(encode_uint_var, fields), *gaps])
    if kind < 60:
        return bytes(1 + read.below(5))
    if kind < 62 or not _is_invalid(read, rarity):
        return b"\x01"
    return bytes((KINDS[read.below(len(KINDS))],)) + read.take(read.below(12))


def _stream(read: Choices, offset: int, rarity: int) -> bytes:
    flags = (6, 6, 6, 6, 6, 6, 6, 4, 4, 4, 4, 4, 4, 2, 0, 6)[read.below(16)]
    stream = 0
    if read.below(8) == 1 and _is_invalid(read, rarity):
        flags, stream = (7, flags, flags)[read.below(3)], read.below(4)
    body = read.take(read.below(40))
    parts = [bytes((0x08 | flags,)), encode_uint_var({1: 1, 2: 4, 3: 64}.get(stream, STREAM))]
    if flags & 0x04:
        parts.append(encode_uint_var(offset))
    if flags & 0x02:
        is_wrong = read.below(25) == 1 and _is_invalid(read, rarity)
        wrong = OFFSETS[read.below(len(OFFSETS))] if is_wrong else 0
        parts.append(encode_uint_var(min(len(body) + wrong, MAX - 1)))
    return b"".join([*parts, body])


if __name__ == "__main__":
    sys.exit(main(run, "tests.fuzz.packets_after_handshake", "packets", size=60_000))
