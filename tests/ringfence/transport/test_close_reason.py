import pytest
from aioquic.tls import AlertDescription
from hypothesis import given
from hypothesis import strategies as st

from ringfence.transport.close_reason import (
    TransportCode,
    format_address,
    from_local_close,
    from_path_failure,
    from_peer_close,
    printable,
)
from ringfence.wire.errors import ErrorCode

PEER = ("10.0.0.1", 7600)


def test_addresses_are_formatted_as_usual() -> None:
    assert format_address(("10.0.0.1", 7600)) == "10.0.0.1:7600"
    assert format_address(("node.example", 7600)) == "node.example:7600"
    assert format_address(("2001:db8::1", 7600)) == "[2001:db8::1]:7600"


@given(st.text())
def test_the_reason_of_a_peer_is_one_printable_bounded_line(text: str) -> None:
    assert printable(text).isprintable()
    assert len(printable(text)) <= 500


def test_the_code_and_reason_of_a_peer_are_unchanged() -> None:
    closing = from_peer_close(ErrorCode.BAD_CREDENTIAL, True, "no such token", PEER)

    assert (closing.code, closing.reason) == (ErrorCode.BAD_CREDENTIAL, "no such token")


def test_a_peer_without_a_reason_is_named() -> None:
    assert from_peer_close(0, True, "", PEER).reason == "10.0.0.1:7600 closed the connection"


@pytest.mark.parametrize("alert", list(AlertDescription))
def test_every_tls_alert_of_either_side_has_a_text(alert: AlertDescription) -> None:
    theirs = from_peer_close(0x100 + alert, False, "", PEER)
    ours = from_local_close(0x100 + alert, "why", PEER, "node.example")

    assert theirs.code == TransportCode.TLS
    assert ours.code in (
        TransportCode.TLS,
        TransportCode.CERTIFICATE,
        TransportCode.CERTIFICATE_EXPIRED,
    )
    assert "10.0.0.1:7600" in theirs.reason
    assert "10.0.0.1:7600" in ours.reason


def test_an_unknown_alert_still_has_a_description() -> None:
    assert from_peer_close(0x1FF, False, "", PEER).reason == (
        "10.0.0.1:7600 refused the handshake: unknown (TLS alert 255)"
    )


@pytest.mark.parametrize("code", [1, 3, 10, 16, 99])
def test_broken_rules_of_quic_name_the_side_and_the_rule(code: int) -> None:
    assert from_local_close(code, "too much", PEER, None).reason.startswith(
        "10.0.0.1:7600 violated the QUIC protocol: too"
    )
    assert from_peer_close(code, False, "", PEER).reason.startswith(
        "10.0.0.1:7600 ended the connection: "
    )


def test_a_lost_path_is_distinguished_from_silence() -> None:
    assert from_path_failure("Idle timeout", PEER).code == ErrorCode.IDLE
    assert from_path_failure("No validated network path", PEER).reason == (
        "lost 10.0.0.1:7600: no validated network path"
    )
