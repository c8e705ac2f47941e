"""Private parts of aioquic that the transport uses; a failure means that aioquic changed."""

from datetime import UTC, datetime
from math import ulp

import pytest
from aioquic.buffer import Buffer  # type: ignore[attr-defined]
from aioquic.quic.connection import QuicConnection, QuicReceiveContext
from aioquic.tls import Epoch, Group

from ringfence.transport.quic.aioquic_connection import (
    ACTIVE_CIDS,
    MAX_CRYPTO_AHEAD,
    STREAM,
    AioquicConnection,
)
from ringfence.transport.quic.configuration import client_configuration, server_configuration
from ringfence.transport.settings import Settings
from ringfence.transport.tls.certificate_authority import self_signed
from ringfence.transport.tls.certificates import ClientTls

CLIENT = ("10.0.1.1", 40000)
SERVER = ("10.0.0.1", 7600)
WINDOW = 64 << 10


class Pair:
    """Client and server that exchange datagrams in steps of 1 ms."""

    def __init__(self) -> None:
        settings = Settings(receive_window=WINDOW, untrusted_receive_window=WINDOW)
        self.now = 10.0
        self.client_address = CLIENT
        self.client = AioquicConnection(
            client_configuration(ClientTls(verify=False), settings), window=WINDOW
        )
        self.client.connect(SERVER, self.now)
        self.server = AioquicConnection(
            server_configuration(self_signed(datetime.now(UTC)), settings),
            window=WINDOW,
            original_cid=self.client.original_destination_connection_id,
        )
        self.received = 0
        self.run(30)

    def run(self, milliseconds: int, *, lose_every: int = 0) -> None:
        carried = 0
        for _ in range(milliseconds):
            for source, target, address in (
                (self.client, self.server, self.client_address),
                (self.server, self.client, SERVER),
            ):
                for datagram, _to in source.urgent_datagrams(self.now):
                    carried += 1
                    if not lose_every or carried % lose_every:
                        self.received += len(target.receive(datagram, address, self.now))
                while (event := target.next_event()) is not None:
                    self.received += len(getattr(event, "data", b""))
            self.now += 0.001
            for quic in (self.client, self.server):
                due = quic.get_timer()
                if due is not None and due <= self.now:
                    quic.handle_timer(self.now)


def test_flow_control_stays_one_window_ahead_of_any_amount_of_data() -> None:
    pair = Pair()

    for _ in range(40):
        pair.client.send_stream_data(0, bytes(30_000))
        pair.run(60)

    stream = pair.server._streams[0]
    assert pair.received == 40 * 30_000
    assert stream.max_stream_data_local - stream.receiver.starting_offset() <= WINDOW
    assert pair.server._local_max_data.value - pair.received <= WINDOW


def test_data_behind_a_gap_does_not_extend_the_window() -> None:
    pair = Pair()
    pair.client.send_stream_data(0, bytes(10 * WINDOW))
    stream = pair.client._streams[0]
    stream.sender._pending.subtract(0, 1000)  # The first bytes never leave.

    pair.run(500)

    received = pair.server._streams[0].receiver
    assert received.starting_offset() == 0
    assert len(received._buffer) <= WINDOW


def test_lost_window_updates_are_repeated() -> None:
    pair = Pair()
    pair.client.send_stream_data(0, bytes(8 * WINDOW))

    pair.run(30_000, lose_every=7)

    assert pair.received == 8 * WINDOW


def test_handshake_bytes_far_out_of_order_end_the_connection() -> None:
    pair = Pair()
    crypto = pair.client._crypto_streams[list(pair.client._crypto_streams)[-1]]
    crypto.sender.write(bytes(MAX_CRYPTO_AHEAD + 2000))
    crypto.sender._pending.subtract(0, MAX_CRYPTO_AHEAD)

    pair.run(50)

    assert pair.server.closing is not None
    assert pair.server.closing.reason_phrase == "handshake data too far ahead"
    assert pair.server.closed_locally
    assert pair.client.closed_by_peer


@pytest.mark.parametrize("payload", [b"\0", b"\0" * 900, b"\0\0\x01\0", b"\x01\0", b""])
def test_padding_ends_where_aioquic_ends_it(payload: bytes) -> None:
    client = Pair().client
    context = QuicReceiveContext(
        epoch=Epoch.ONE_RTT,
        host_cid=client.host_cid,
        network_path=client._network_paths[0],
        quic_logger_frames=None,
        time=10.0,
        version=None,
    )
    ends = []
    for handle in (client._handle_padding_frame, super(type(client), client)._handle_padding_frame):
        buffer = Buffer(data=b"\0" + payload)
        buffer.seek(1)
        handle(context, 0, buffer)
        ends.append(buffer.tell())

    assert ends[0] == ends[1]


def test_unacknowledged_bytes_are_counted() -> None:
    pair = Pair()

    pair.client.send_stream_data(0, b"twelve bytes")
    before = pair.client.unacknowledged
    pair.run(50)

    assert (before, pair.client.unacknowledged) == (12, 0)


def test_a_connection_is_quiet_until_it_has_data_to_send() -> None:
    pair = Pair()
    pair.client.send_stream_data(0, b"hello")
    pair.run(50)
    quiet = pair.client.is_quiet(pair.now)

    pair.client.send_stream_data(0, b"more")

    assert quiet
    assert not pair.client.is_quiet(pair.now)


@pytest.mark.parametrize("which", ["client", "server"])
def test_both_sides_know_at_once_which_side_closed(which: str) -> None:
    pair = Pair()
    closer: QuicConnection = getattr(pair, which)

    closer.close(error_code=7, reason_phrase="done")
    pair.run(2)

    for quic in (pair.client, pair.server):
        assert quic.closing is not None
        assert (quic.closing.error_code, quic.closing.reason_phrase) == (7, "done")
        assert quic.closed_locally == (quic is closer)
        assert quic.closed_by_peer == (quic is not closer)


def test_data_after_a_pause_carries_an_acknowledgement() -> None:
    pair = Pair()
    pair.client.send_stream_data(0, b"ask")
    pair.run(50)
    pair.client.send_stream_data(0, b"ask again")
    for datagram, _ in pair.client.urgent_datagrams(pair.now):
        pair.server.receive(datagram, CLIENT, pair.now)

    pair.server.send_stream_data(0, b"answer")
    for datagram, _ in pair.server.urgent_datagrams(pair.now):
        pair.client.receive(datagram, SERVER, pair.now)

    assert pair.client.unacknowledged == 0


@pytest.mark.parametrize("bits", range(16))
@pytest.mark.parametrize("shift", range(2))
def test_a_loss_is_detected_at_its_deadline_for_any_rounding(bits: int, shift: int) -> None:
    pair = Pair()
    pair.client.send_stream_data(0, b"hello")
    pair.run(100)
    pair.now += shift * ulp(pair.now)
    pair.client.send_stream_data(0, b"lost")
    pair.client.datagrams_to_send(pair.now)
    pair.client.send_stream_data(0, b"found")
    for datagram, _ in pair.client.datagrams_to_send(pair.now):
        pair.server.receive(datagram, CLIENT, pair.now)
    pair.now += 0.002
    pair.server.handle_timer(pair.now)
    for datagram, _ in pair.server.datagrams_to_send(pair.now):
        pair.client.receive(datagram, SERVER, pair.now)
    loss = pair.client._loss
    # One of these sums lies half-way between two instants and is rounded down, twice.
    loss._rtt_latest = 0.25 + bits * ulp(pair.now)
    loss._detect_loss(now=pair.now, space=loss.spaces[2])

    due = pair.client.get_timer()
    assert due is not None
    pair.client.handle_timer(due)

    assert loss.spaces[2].loss_time is None


def test_an_answer_with_an_earlier_time_than_its_request_keeps_the_round_trip_positive() -> None:
    settings = Settings(receive_window=WINDOW, untrusted_receive_window=WINDOW)
    client = AioquicConnection(
        client_configuration(ClientTls(verify=False), settings), window=WINDOW
    )
    client.connect(SERVER, 10.0)
    server = AioquicConnection(
        server_configuration(self_signed(datetime.now(UTC)), settings),
        window=WINDOW,
        original_cid=client.original_destination_connection_id,
    )
    for datagram, _ in client.urgent_datagrams(10.5):
        server.receive(datagram, CLIENT, 10.5)
    for datagram, _ in server.urgent_datagrams(10.5):
        client.receive(datagram, SERVER, 10.0)  # The time of a batch is read before it.

    assert client._loss._rtt_smoothed >= 0


def test_only_both_ends_of_a_connection_have_its_binding() -> None:
    one, two = Pair(), Pair()

    assert one.client.binding == one.server.binding
    assert len(one.client.binding) >= 32
    assert one.client.binding != two.client.binding
    one.client.send_stream_data(0, b"words")
    one.client.request_key_update()
    before = one.client.binding
    one.run(50)
    assert one.client.binding == one.server.binding == before


def test_the_connecting_side_creates_a_key_of_one_group() -> None:
    pair = Pair()
    assert pair.client.tls._supported_groups == [Group.X25519]
    assert pair.client.tls._ec_private_keys == []
    assert pair.client.tls._x25519_private_key is not None
    assert pair.client._handshake_confirmed
    assert pair.server._handshake_confirmed


def test_a_connection_moves_to_new_addresses_with_two_connection_ids() -> None:
    pair = Pair()
    for port in range(50000, 50006):
        before = pair.server._peer_cid.cid
        pair.client_address = (CLIENT[0], port)
        pair.client.change_connection_id()
        pair.received = 0
        pair.client.send_stream_data(STREAM, b"question")
        pair.run(100)
        pair.server.send_stream_data(STREAM, b"answer")
        pair.run(100)
        assert pair.received == len(b"question" + b"answer")
        assert pair.server._peer_cid.cid != before
        for quic in (pair.client, pair.server):
            assert len(quic._host_cids) == ACTIVE_CIDS
