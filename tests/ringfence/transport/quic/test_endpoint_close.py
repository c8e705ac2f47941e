"""How connections of an endpoint end: close, time-out, restart of the peer."""

from itertools import pairwise

from ringfence.transport.close_reason import TransportCode
from ringfence.transport.interface import Connection
from ringfence.transport.tls.certificate_authority import self_signed
from ringfence.wire.errors import ErrorCode
from tests.ringfence.transport.quic.simulated_network import (
    APP,
    NOW,
    OTHER_NODE,
    Log,
    Network,
    open_pair,
)


def test_a_close_sends_code_and_reason_after_earlier_messages(
    network: Network,
) -> None:
    connection, log = open_pair(network, handler=Log)

    connection.send(b"last words")
    connection.close(3, "enough")
    connection.send(b"never leaves")
    network.run(0.1)

    assert network.accepted[0].messages == [b"last words"]
    assert network.accepted[0].closed == (3, "enough")
    assert log.closed is None
    assert not connection.is_open


def test_a_close_is_sent_although_an_old_timer_is_due_before_it(network: Network) -> None:
    connection, _ = open_pair(network)
    app = network.endpoints[APP]
    connection.send(b"one")
    network.run(0.0101)  # The answer has arrived; its acknowledgement is delayed.
    due = app.next_deadline()
    assert due is not None
    connection.send(b"two")  # This carries the acknowledgement, so its timer is obsolete.
    network.run(0)
    network.now = due

    connection.close(3, "enough")
    app.tick(network.now)
    network.run(0.1)

    assert network.accepted[0].closed == (3, "enough")


def test_closed_connections_are_removed_from_all_tables(network: Network) -> None:
    node = network.node()
    app = network.app()
    for _ in range(3):
        connection, _ = network.connect(app)
        network.run(0.1)
        connection.close()
        network.run(2)

    assert (node.connections, app.connections) == (0, 0)
    for endpoint in (node, app):
        assert endpoint._table.by_cid == {}
        assert endpoint._table.all == {}


def test_closing_everything_notifies_every_peer(network: Network) -> None:
    node = network.node()
    app = network.app()
    logs = [network.connect(app)[1] for _ in range(3)]
    network.run(0.1)

    node.close_all()
    network.run(0.1)

    assert [log.closed for log in logs] == [(ErrorCode.DRAINING, "shutting down")] * 3


def test_an_idle_connection_is_kept_open_by_the_side_that_made_it(network: Network) -> None:
    connection, log = open_pair(network)

    network.run(600)
    connection.send(b"still there?")
    network.run(0.1)

    assert log.messages == [b"still there?"]


def test_the_pings_of_idle_connections_leave_together(network: Network) -> None:
    network.node()
    app = network.app()
    for _ in range(3):
        network.connect(app)
        network.run(0.27)
    network.run(30)
    network.carried.clear()

    sizes = []
    for _ in range(600):
        network.run(0.1)
        sizes.append(len(network.carried))

    pings = [after - before for before, after in pairwise([0, *sizes]) if after > before]
    assert pings == [3 * 2] * 6  # Every 10 s, each with its acknowledgement.


def test_a_connection_to_a_silent_peer_closes_after_the_idle_timeout(network: Network) -> None:
    connection, log = open_pair(network)

    network.loss = 1.1
    network.run(45)

    assert log.closed == (ErrorCode.IDLE, "idle timeout: 10.0.0.1:7600 went silent")
    assert network.accepted[0].closed is not None
    assert network.accepted[0].closed[0] == ErrorCode.IDLE
    assert not connection.is_open


def test_a_restarted_node_ends_the_connections_of_its_old_process(network: Network) -> None:
    connection, log = open_pair(network)
    connection.send(b"before")
    network.run(0.1)
    network.node()  # A new node at the same address, with the same certificate and key.

    connection.send(b"after")
    network.run(0.1)

    reason = "10.0.0.1:7600 has restarted and has lost this connection"
    assert log.closed == (TransportCode.UNREACHABLE, reason)
    assert network.endpoints[APP]._table.by_reset_token == {}


def test_a_restarted_node_with_another_key_cannot_end_a_connection(network: Network) -> None:
    connection, _ = open_pair(network)
    network.run(1)
    network.node(tls=self_signed(NOW))

    connection.send(b"after")
    network.run(0.1)

    assert connection.is_open


def test_resets_between_two_endpoints_end(network: Network) -> None:
    network.node(), network.node(OTHER_NODE)

    network.inject(b"\x40" + bytes(1000), OTHER_NODE)
    network.run(10)

    assert len(network.carried) < 30


def test_a_handshake_without_an_answer_is_reported(network: Network) -> None:
    _, log = network.connect(network.app())

    network.run(6)

    reason = "handshake timed out (no answer from 10.0.0.1:7600)"
    assert log.closed == (TransportCode.HANDSHAKE_TIMEOUT, reason)


def test_a_bug_in_a_handler_closes_its_connection_and_no_other() -> None:
    network = Network()

    def fail(_: Connection, payload: bytes) -> None:
        if payload == b"trigger":
            raise ZeroDivisionError

    network.node(handler=lambda: Log(fail))
    app = network.app()
    bad, bad_log = network.connect(app)
    good, good_log = network.connect(app)
    network.run(0.1)

    bad.send(b"trigger")
    good.send(b"fine")
    network.run(0.1)

    assert [type(bug) for bug in network.bugs] == [ZeroDivisionError]
    assert bad_log.closed == (ErrorCode.INTERNAL, "internal error")
    assert good_log.closed is None
    assert good.is_open
