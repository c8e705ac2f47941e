import pytest
from aioquic.tls import AlertDescription
from hypothesis import given
from hypothesis import strategies as st

from ringfence.transport.close_reason import TransportCode, by_path, by_peer, by_us, clean, text_of
from ringfence.wire.errors import ErrorCode

PEER = ("10.0.0.1", 7600)


def test_addresses_are_written_as_people_write_them() -> None:
    assert text_of(("10.0.0.1", 7600)) == "10.0.0.1:7600"
    assert text_of(("node.example", 7600)) == "node.example:7600"
    assert text_of(("2001:db8::1", 7600)) == "[2001:db8::1]:7600"


@given(st.text())
def test_a_peers_words_are_one_printable_bounded_line(text: str) -> None:
    assert clean(text).isprintable()
    assert len(clean(text)) <= 500


def test_a_peers_own_code_and_reason_pass_through() -> None:
    closing = by_peer(ErrorCode.BAD_CREDENTIAL, True, "no such token", PEER)

    assert (closing.code, closing.reason) == (ErrorCode.BAD_CREDENTIAL, "no such token")


def test_a_peer_without_a_reason_is_named() -> None:
    assert by_peer(0, True, "", PEER).reason == "10.0.0.1:7600 closed the connection"


@pytest.mark.parametrize("alert", list(AlertDescription))
def test_every_tls_alert_has_words_from_either_side(alert: AlertDescription) -> None:
    theirs = by_peer(0x100 + alert, False, "", PEER)
    ours = by_us(0x100 + alert, "why", PEER, "node.example")

    assert theirs.code == TransportCode.TLS
    assert ours.code in (
        TransportCode.TLS,
        TransportCode.CERTIFICATE,
        TransportCode.CERTIFICATE_EXPIRED,
    )
    assert "10.0.0.1:7600" in theirs.reason
    assert "10.0.0.1:7600" in ours.reason


def test_an_alert_nobody_knows_still_has_words() -> None:
    assert by_peer(0x1FF, False, "", PEER).reason == (
        "10.0.0.1:7600 refused the handshake: unknown (TLS alert 255)"
    )


@pytest.mark.parametrize("code", [1, 3, 10, 16, 99])
def test_broken_rules_of_quic_name_the_side_and_the_rule(code: int) -> None:
    assert by_us(code, "too much", PEER, None).reason.startswith("10.0.0.1:7600 broke QUIC: too")
    assert by_peer(code, False, "", PEER).reason.startswith("10.0.0.1:7600 ended the connection: ")


def test_a_lost_path_is_told_from_silence() -> None:
    assert by_path("Idle timeout", PEER).code == ErrorCode.IDLE
    assert by_path("No validated network path", PEER).reason == (
        "lost 10.0.0.1:7600: no validated network path"
    )
