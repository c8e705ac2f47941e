"""P17: QUIC's rules for keys and acknowledgements hold on the fast path and in aioquic."""

import pytest
from aioquic.buffer import encode_uint_var
from aioquic.quic.packet import QuicErrorCode
from aioquic.tls import Epoch

from ringfence.transport.quic.aioquic_connection import STREAM, AioquicConnection
from ringfence.transport.quic.fast_path.established_state import EstablishedState
from ringfence.transport.quic.fast_path.packet_receiver import FastReceiver
from tests.ringfence.transport.quic.test_fast_path import World

AES_GCM_LIMIT = 1 << 23
"""Packets that may be sent with one key (RFC 9001, section 6.6)."""


def skip_to(sender: AioquicConnection, receiver: AioquicConnection, number: int) -> None:
    """Set both sides as if the packets below `number` were sent and acknowledged."""
    sender._packet_number = number
    sender._spaces[Epoch.ONE_RTT].largest_acked_packet = number - 1
    space = receiver._spaces[Epoch.ONE_RTT]
    space.expected_packet_number = number
    space.largest_received_packet = number - 1
    space.ack_queue.shift()


def key_of(quic: AioquicConnection) -> object:
    return quic._cryptos[Epoch.ONE_RTT].send.secret


@pytest.mark.parametrize("fast_path", [True, False])
def test_keys_are_updated_before_the_packet_limit_of_aes_gcm(fast_path: bool) -> None:
    world = World(fast_path=(fast_path, fast_path))
    client, server = world.client.quic, world.server.quic
    keys = []
    for _ in range(4):
        skip_to(client, server, client._packet_number + AES_GCM_LIMIT // 2 - 3)
        keys.append((key_of(client), key_of(server)))
        for side in (*world.sides, *world.sides):
            side.send(b"some data")
            world.run(0.05)

    assert world.server.received == world.client.sent
    assert world.client.received == world.server.sent
    assert len({client_key for client_key, _ in keys}) == len(keys)
    assert len({server_key for _, server_key in keys}) == len(keys)


def test_a_key_that_the_peer_has_just_updated_is_not_updated_again() -> None:
    world = World()
    client, server = world.client.quic, world.server.quic
    skip_to(client, server, AES_GCM_LIMIT // 2 - 3)
    server.request_key_update()
    world.server.send(b"with the next key")
    world.run(0.05)
    before = key_of(client)
    for _ in range(5):
        world.client.send(b"some data")
        world.run(0.05)

    assert client._packet_number > AES_GCM_LIMIT // 2
    assert key_of(client) == before
    assert world.server.received == world.client.sent


@pytest.mark.parametrize("fast_path", [True, False])
@pytest.mark.parametrize("ahead", [0, 1, 1 << 40])
def test_acknowledging_a_packet_that_was_not_sent_ends_the_connection(
    fast_path: bool, ahead: int
) -> None:
    world = World()
    world.server.send(b"data in flight")
    server = world.server.quic
    server.urgent_datagrams(world.now)
    largest = server._packet_number + ahead
    frame = b"\x02" + encode_uint_var(largest) + b"\x00\x00" + encode_uint_var(largest)
    receiver = FastReceiver(EstablishedState.of(server, STREAM))
    (receiver._process_frames if fast_path else receiver._process_by_aioquic)(frame, world.now)

    assert server.closing is not None
    assert server.closing.error_code == QuicErrorCode.PROTOCOL_VIOLATION
    assert server.closing.reason_phrase == "acknowledged a packet that was not sent"


@pytest.mark.parametrize("fast_path", [True, False])
def test_an_acknowledgement_of_the_last_sent_packet_is_accepted(fast_path: bool) -> None:
    world = World()
    world.server.send(b"data in flight")
    server = world.server.quic
    server.urgent_datagrams(world.now)
    largest = server._packet_number - 1
    frame = b"\x02" + encode_uint_var(largest) + b"\x00\x00\x00"
    receiver = FastReceiver(EstablishedState.of(server, STREAM))
    (receiver._process_frames if fast_path else receiver._process_by_aioquic)(frame, world.now)

    assert server.closing is None
    assert server.unacknowledged == 0
