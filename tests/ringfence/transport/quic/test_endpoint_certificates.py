"""Certificates that an endpoint accepts and refuses."""

from datetime import timedelta

import pytest

from ringfence.transport.close_reason import TransportCode
from ringfence.transport.tls.certificate_authority import issue, new_authority
from ringfence.transport.tls.certificates import ClientTls, ServerTls, node_server_name
from tests.ringfence.transport.quic.simulated_network import (
    NODE,
    NOW,
    Log,
    Network,
    authority,
    node_tls,
    trust,
)


def refusal_of(network: Network, server: ServerTls, client: ClientTls) -> tuple[int, str]:
    network.node(tls=server)
    _, log = network.connect(network.app(tls=client))
    network.run(1)
    assert log.closed is not None
    assert network.accepted == []
    assert network.endpoints[NODE].refusals["handshake_refused_by_peer"] == 1
    return log.closed


def test_a_certificate_of_another_authority_is_refused(network: Network) -> None:
    other_ca, _ = new_authority(NOW, 30)

    code, reason = refusal_of(network, node_tls(), ClientTls(other_ca))

    assert code == TransportCode.CERTIFICATE
    assert reason.startswith("the CA given does not sign the certificate of 10.0.0.1:7600")


def test_an_expired_certificate_is_refused(network: Network) -> None:
    expired = ServerTls(*issue(*authority(), [], [], NOW - timedelta(days=9), 8))

    code, reason = refusal_of(network, expired, trust())

    assert code == TransportCode.CERTIFICATE_EXPIRED
    assert reason.startswith("the certificate of 10.0.0.1:7600 has expired or is not valid yet")
    assert "ringfence keys renew" in reason


def test_a_certificate_without_the_expected_name_is_refused(network: Network) -> None:
    code, reason = refusal_of(
        network, node_tls(), ClientTls(authority()[0], server_name="limits.example")
    )

    assert code == TransportCode.CERTIFICATE
    assert reason.startswith("the certificate of 10.0.0.1:7600 does not name 'limits.example'")


@pytest.mark.parametrize(
    ("node", "by_node_name", "is_open"),
    [("b", True, True), ("c", True, False), ("c", False, True), ("", True, True)],
)
def test_a_known_node_must_show_a_certificate_with_its_name(
    network: Network, node: str, by_node_name: bool, is_open: bool
) -> None:
    network.node(tls=ServerTls(*issue(*authority(), [node_server_name("b")], [], NOW, 30)))
    app = network.app(tls=ClientTls(authority()[0], by_node_name=by_node_name))
    log = Log()
    connection = app.dialer.prepare(NODE, log, network.now, node)
    app.dialer.begin(connection, [NODE], network.now)

    network.run(1)

    assert connection.is_open == is_open
    if not is_open:
        assert log.closed is not None
        assert "does not name 'c.node.ringfence.internal'" in log.closed[1]


def test_without_verification_any_certificate_is_accepted(network: Network) -> None:
    network.node()
    connection, _ = network.connect(network.app(tls=ClientTls(verify=False)))

    network.run(0.1)

    assert connection.is_open


def test_another_protocol_is_refused_with_a_reason(network: Network) -> None:
    network.node()
    app = network.app()
    app.dialer._configurations[False].alpn_protocols = ["h3"]
    _, log = network.connect(app)

    network.run(1)

    assert log.closed is not None
    assert log.closed[0] == TransportCode.TLS
    assert "does not speak this protocol" in log.closed[1]
