"""Limits of an endpoint under floods of handshakes."""

import gc
from random import Random

import pytest
from aioquic.quic.crypto import CryptoPair
from aioquic.quic.recovery import QuicPacketRecovery
from aioquic.quic.stream import QuicStream

from ringfence.transport.quic.aioquic_connection import AioquicConnection
from ringfence.transport.settings import Settings
from ringfence.wire.errors import ErrorCode
from ringfence.wire.framing import MAX_MESSAGE
from tests.ringfence.transport.quic.simulated_network import (
    APP,
    NODE,
    Network,
    assert_still_serves,
    first_datagram,
    open_pair,
)

# Floods consist of handshakes, which take no fast path.
pytestmark = pytest.mark.parametrize("network", [True], indirect=True)


def test_ten_thousand_forged_handshakes_keep_memory_bounded_and_a_valid_client_connects(
    network: Network,
) -> None:
    node = network.node(options=Settings(max_half_open=24, retry_above=16))
    for i in range(30):
        network.inject(first_datagram(network), ("198.51.100.7", i))
    template = first_datagram(network)
    random = Random(2)
    for i in range(9_970):
        forged = template[:6] + random.randbytes(8) + template[14:]
        network.inject(forged, ("198.51.100.7", 1 + i % 60_000))
        if i % 100 == 0:
            node.datagrams_to_send(network.now)

    assert node.half_open == 16
    assert len(node._table.by_cid) <= 2 * 16
    assert node.refusals["retry"] == 9_984
    connection, log = network.connect(network.app())
    network.run(0.5)
    assert_still_serves(network, connection, log)
    network.run(10)
    assert node.half_open == 0
    assert node.refusals["handshake_timeout"] == 16
    assert node.connections == 1


@pytest.mark.parametrize("size", [1025, MAX_MESSAGE])
def test_an_unauthenticated_caller_cannot_send_a_long_message(network: Network, size: int) -> None:
    node = network.node(options=Settings())
    connection, log = network.connect(network.app())
    connection.send(bytes(size))
    network.run(1)

    assert log.closed == (
        ErrorCode.BAD_MESSAGE,
        f"a frame must have at most 1024 bytes, got {size}",
    )
    assert node.refusals["frame_oversized"] == 1


def test_a_caller_may_send_long_messages_directly_after_the_first_one(network: Network) -> None:
    network.node(options=Settings())
    connection, log = network.connect(network.app())
    for size in (1024, 5000, 70_000):
        connection.send(bytes(size))
    network.run(1)

    assert [len(message) for message in log.messages] == [1024, 5000, 70_000]


def test_abandoned_handshakes_are_freed_without_the_garbage_collector(
    network: Network,
) -> None:
    """A node runs the garbage collector rarely, so memory must not depend on it in a flood."""
    node = network.node(options=Settings(max_half_open=4, retry_above=4))
    datagrams = [first_datagram(network) for _ in range(50)]
    gc.collect()
    gc.disable()
    try:
        before = live_objects()
        for port, datagram in enumerate(datagrams):
            network.inject(datagram, ("198.51.100.7", port))
            node.datagrams_to_send(network.now)
        assert live_objects() > before
        network.run(20)
        network.inject(b"anything", ("198.51.100.7", 1))

        assert node.connections == 0
        assert live_objects() == before
    finally:
        gc.enable()


def live_objects() -> int:
    """Count the objects of all QUIC connections."""
    kinds = (AioquicConnection, QuicPacketRecovery, QuicStream, CryptoPair)
    # `isinstance` would initialize lazy proxies of frameworks that other tests imported.
    return sum(issubclass(type(each), kinds) for each in gc.get_objects())


def test_when_all_half_open_places_are_taken_the_oldest_one_is_dropped(network: Network) -> None:
    """These clients answer the Retry, but never finish the handshake."""
    node = network.node(options=Settings(max_half_open=12, retry_above=4))
    network.lost = lambda source, target, datagram: (
        target[0].startswith("203.") and len(datagram) >= 1000
    )
    for i in range(20):
        network.connect(network.app((f"203.0.113.{i}", 1000)))
    network.run(0.1)

    assert node.half_open == 12
    assert node.refusals["half_open_full"] == 8
    connection, log = network.connect(network.app())
    network.run(0.1)
    assert_still_serves(network, connection, log)


def test_undecodable_initial_packets_cause_retries_although_none_is_half_open(
    network: Network,
) -> None:
    node = network.node(options=Settings(max_half_open=24, retry_above=16))
    template = first_datagram(network)
    random = Random(3)

    for i in range(500):
        network.inject(template[:6] + random.randbytes(8) + template[14:], ("198.51.100.7", i))

    assert node.half_open == 0
    assert node.refusals == {"bad_initial": 16, "retry": 484}


def test_abandoned_handshakes_cause_retries_although_few_are_half_open(
    network: Network,
) -> None:
    """The start of a handshake is its most expensive part, even if the client ends it soon."""
    node = network.node(options=Settings(max_half_open=24, retry_above=16))
    network.lost = lambda source, target, datagram: (
        target[0].startswith("203.") and len(datagram) >= 1000
    )
    for i in range(100):
        connection, _ = network.connect(network.app((f"203.0.113.{i}", 1000)))
        network.run(0.01)
        connection.close()
        network.run(0.01)

    assert node.half_open < 16
    assert node.refusals["retry"] > 60
    connection, log = network.connect(network.app())
    network.run(0.1)
    assert_still_serves(network, connection, log)


def test_a_retry_token_of_another_address_is_refused(network: Network) -> None:
    node = network.node(options=Settings(max_half_open=4, retry_above=0))
    network.connect(network.app())
    network.run(0.011)
    [proven] = [d for source, target, d in network.carried[2:] if target == NODE][:1]

    network.inject(proven, ("198.51.100.7", 7))

    assert node.refusals["bad_retry_token"] == 1
    assert node.half_open <= 1


def test_a_full_node_refuses_connections_with_a_reason(network: Network) -> None:
    options = Settings(max_connections=2, max_half_open=2, retry_above=2)
    node = network.node(options=options)
    app = network.app()
    for _ in range(2):
        network.connect(app)
    network.run(0.1)

    _, log = network.connect(app)
    network.run(0.1)

    assert log.closed == (ErrorCode.OVERLOADED, "10.0.0.1:7600 has too many connections")
    assert node.refusals["too_many_connections"] == 1
    assert node.connections == 2


def test_timers_of_a_busy_connection_do_not_pile_up(network: Network) -> None:
    connection, log = open_pair(network)

    for _ in range(300):
        connection.send(b"tick")
        network.run(0.012)

    assert len(log.messages) == 300
    assert len(network.endpoints[APP]._timers) < 80
    assert len(network.endpoints[NODE]._timers) < 80
