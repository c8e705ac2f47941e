"""Messages between endpoints."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.transport.settings import Settings
from ringfence.wire.framing import MAX_MESSAGE
from tests.ringfence.transport.quic.simulated_network import (
    APP,
    NODE,
    OTHER_NODE,
    Log,
    Network,
    open_pair,
)


@pytest.mark.parametrize("size", [1, 60, 1200, 65_536, MAX_MESSAGE])
def test_a_message_of_any_size_is_sent_and_returned(network: Network, size: int) -> None:
    connection, log = open_pair(network)
    payload = Random(size).randbytes(size)

    connection.send(payload)
    network.run(5)

    assert log.messages == [payload]
    assert connection.unsent == 0


def test_what_is_sent_before_the_handshake_is_done_arrives_after_it(network: Network) -> None:
    network.node()
    connection, log = network.connect(network.app())

    connection.send(b"early")
    assert connection.unsent == 9
    network.run(0.1)

    assert log.messages == [b"early"]
    assert connection.unsent == 0


def test_the_accepting_side_may_send_first_after_a_received_packet(network: Network) -> None:
    connection, log = open_pair(network, handler=Log)
    served = network.accepted[0].connection
    assert served is not None

    served.send(b"welcome")
    connection.send(b"hello")
    network.run(0.1)

    assert log.messages == [b"welcome"]
    assert served.address == APP


def test_only_packets_of_open_connections_take_the_fast_path(network: Network) -> None:
    connection, log = open_pair(network)
    network.carried.clear()
    connection.send(b"question")
    network.run(0.001)
    ((_, _, packet),) = network.carried
    node = network.endpoints[NODE]

    others = [b"", b"\x00" + packet[1:], b"\xc0" + packet[1:], packet[:1] + bytes(len(packet) - 1)]
    assert not any([node.receive_established(other, APP, network.now) for other in others])
    assert node.receive_established(packet, APP, network.now)
    network.run(0.1)
    assert log.messages == [b"question"]

    connection.close()
    network.run(0.1)
    assert not node.receive_established(packet, APP, network.now)


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_lost_datagrams_delay_messages_but_neither_drop_nor_reorder_them(seed: int) -> None:
    network = Network(loss=0.15, seed=seed)
    network.node()
    connection, log = network.connect(network.app(options=Settings(handshake_timeout=20)))
    payloads = [Random(i).randbytes(1 + i * 97 % 3000) for i in range(60)]

    for payload in payloads:
        connection.send(payload)
        network.run(0.01)
    network.run(60)

    assert log.messages == payloads
    assert network.bugs == []


def test_two_nodes_connect_to_each_other_and_serve_an_app_on_the_same_ports(
    network: Network,
) -> None:
    one, other = network.node(), network.node(OTHER_NODE)
    app = network.app()
    talks = [network.connect(one, OTHER_NODE), network.connect(other, NODE)]
    talks += [network.connect(app, NODE), network.connect(app, OTHER_NODE)]

    for i, (connection, _) in enumerate(talks):
        connection.send(b"from %d" % i)
    network.run(0.2)

    assert [log.messages for _, log in talks] == [[b"from %d" % i] for i in range(4)]
    assert (one.connections, other.connections, app.connections) == (3, 3, 2)


def test_a_check_and_its_answer_cost_two_datagrams_when_they_follow_each_other(
    network: Network,
) -> None:
    connection, log = open_pair(network)
    network.run(1)
    before = len(network.carried)

    for i in range(20):
        connection.send(b"check %d" % i)
        while len(log.messages) <= i:
            network.run(0.0005)

    assert len(network.carried) - before <= 44
