"""ICMP errors, and names with several addresses or none."""

from ringfence.transport.close_reason import TransportCode
from tests.ringfence.transport.quic.simulated_network import (
    APP,
    NODE,
    OTHER_NODE,
    Log,
    Network,
    open_pair,
)


def test_a_connection_without_a_listener_ends_at_once(network: Network) -> None:
    app = network.app()
    _, log = network.connect(app)
    network.run(0.001)
    _, _, datagram = network.carried[0]

    app.on_unreachable(NODE, datagram[:64], network.now)

    assert log.closed == (TransportCode.UNREACHABLE, "no process listens at 10.0.0.1:7600")


def test_an_open_connection_ends_too_when_the_quoted_datagram_is_its_own(network: Network) -> None:
    connection, log = open_pair(network)
    connection.send(b"check")
    network.run(0)
    _, _, datagram = network.carried[-1]

    network.endpoints[APP].on_unreachable(NODE, datagram[:64], network.now)

    assert log.closed == (TransportCode.UNREACHABLE, "no process listens at 10.0.0.1:7600")


def test_a_forged_notice_ends_nothing(network: Network) -> None:
    connection, _ = open_pair(network)
    network.run(0)
    app = network.endpoints[APP]
    last = network.carried[-1][2]

    for quoted in (b"", bytes(64), b"\x40" + bytes(63), last[:8], b"\xc0" + last[1:64]):
        app.on_unreachable(NODE, quoted, network.now)
    app.on_unreachable(OTHER_NODE, last[:64], network.now)

    assert connection.is_open


def test_a_name_with_two_addresses_is_tried_at_both(network: Network) -> None:
    network.node()
    app = network.app()
    log = Log()
    connection = app.dialer.prepare(("node.example", 7600), log, network.now)
    connection.send(b"found you")

    app.dialer.begin(connection, [OTHER_NODE, NODE], network.now)
    network.run(4)

    assert log.messages == [b"found you"]
    assert connection.address == ("node.example", 7600)


def test_a_name_that_is_not_resolved_in_time_times_out(network: Network) -> None:
    app = network.app()
    log = Log()
    app.dialer.prepare(("node.example", 7600), log, network.now)

    network.run(6)

    assert log.closed is not None
    assert log.closed[0] == TransportCode.HANDSHAKE_TIMEOUT
    assert app.connections == 0
