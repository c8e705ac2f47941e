"""Datagrams and streams that violate the protocols."""

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ringfence.transport.interface import Address
from ringfence.transport.quic.connection import QuicConnection
from tests.ringfence.transport.quic.simulated_network import (
    APP,
    NODE,
    Network,
    assert_still_serves,
    first_datagram,
    open_pair,
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(junk=st.lists(st.binary(max_size=1400), max_size=20))
def test_random_datagrams_are_counted_and_change_nothing(junk: list[bytes]) -> None:
    network = Network()
    node = network.node()

    for datagram in junk:
        network.inject(datagram, APP)

    assert node.refusals.total() == len(junk)
    assert node.half_open == 0
    assert network.bugs == []


def test_damaged_truncated_and_repeated_datagrams_disturb_no_connection(network: Network) -> None:
    connection, log = open_pair(network)
    connection.send(bytes(5000))
    network.run(0.1)
    genuine = [d for source, target, d in network.carried if target == NODE]
    random = Random(1)

    for datagram in genuine * 4:
        damaged = bytearray(datagram)
        damaged[random.randrange(len(damaged))] ^= 1 << random.randrange(8)
        network.inject(bytes(damaged), APP)
        network.inject(datagram[: random.randrange(len(datagram))], APP)
        network.inject(datagram, APP)
        network.inject(datagram, ("192.0.2.9", 9))
    network.run(1)

    assert log.messages == [bytes(5000)]
    assert_still_serves(network, connection, log)


@pytest.mark.parametrize(
    ("break_it", "cause", "code"),
    [
        (lambda quic: quic.send_stream_data(0, b"\xff" * 8), "frame_oversized", 1),
        (lambda quic: quic.send_stream_data(0, bytes(4)), "frame_empty", 1),
        (lambda quic: quic.send_stream_data(4, b"x"), "unexpected_stream", 1),
        (lambda quic: quic.send_stream_data(2, b"x"), "unexpected_stream", 1),
        (lambda quic: quic.send_stream_data(0, b"", end_stream=True), "stream_ended", 1),
        (lambda quic: quic.reset_stream(0, 7), "stream_reset", 1),
        (lambda quic: quic.stop_stream(0, 7), "stream_reset", 1),
    ],
)
def test_bytes_that_break_the_protocol_close_their_connection_and_no_other(
    network: Network, break_it: Callable[[QuicConnection], None], cause: str, code: int
) -> None:
    node = network.node()
    app = network.app()
    bad, bad_log = network.connect(app)
    good, good_log = network.connect(app)
    bad.send(b"hello")
    network.run(0.1)

    assert bad.quic is not None
    break_it(bad.quic)
    app.on_sendable(bad)
    network.run(0.1)

    assert bad_log.closed is not None
    assert bad_log.closed[0] == code
    assert node.refusals == {cause: 1}
    assert network.accepted[0].closed == bad_log.closed
    assert_still_serves(network, good, good_log)


def test_datagrams_that_are_not_quic_go_to_their_handler(network: Network) -> None:
    sealed: list[tuple[bytes, Address]] = []
    network.node(on_sealed=lambda datagram, sender: sealed.append((datagram, sender)))

    network.inject(b"\x00probe", APP)
    network.inject(b"\x9fprobe", APP)

    assert sealed == [(b"\x00probe", APP), (b"\x9fprobe", APP)]
    assert network.endpoints[NODE].refusals.total() == 0


def test_an_unknown_version_of_quic_is_answered_with_ours_in_a_datagram_we_know_as_quic(
    network: Network,
) -> None:
    node = network.node()
    initial = first_datagram(network)

    network.inject(initial[:1] + b"\x1a\x2a\x3a\x4a" + initial[5:], APP)
    [(answer, target)] = node.datagrams_to_send(network.now)

    assert target == APP
    assert answer[0] & 0xC0 == 0xC0
    assert answer[1:5] == bytes(4)
    assert len(answer) < len(initial)
