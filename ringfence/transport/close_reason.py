"""Why a connection ended, in words that a person can act on.

Decides the codes and texts that `Handler.on_close` gets for what QUIC and TLS report. Codes below
256 are the wire's `ErrorCode`s and pass through; what a peer wrote is cleaned, not judged.
"""

import re
from dataclasses import dataclass
from enum import IntEnum

from aioquic.quic.packet import QuicErrorCode
from aioquic.tls import AlertDescription

from ringfence.transport.interface import Address
from ringfence.wire.errors import ErrorCode

__all__ = ["CloseReason", "TransportCode", "by_path", "by_peer", "by_us", "clean", "text_of"]

MAX_REASON = 500
_NAMED = re.compile(r"'([^']*)'")
"""The names among the patterns that aioquic prints as Python would."""


class TransportCode(IntEnum):
    """Ends of a connection that no peer asked for; never sent over the wire."""

    HANDSHAKE_TIMEOUT = 256
    """No answer, or not a whole one, while connecting."""
    UNREACHABLE = 257
    """Nobody listens there, no route leads there, or the name has no address."""
    CERTIFICATE = 258
    """The peer's certificate is none of the CA we trust, or lacks the expected name."""
    TLS = 259
    """The handshake failed for another reason: another protocol, another version, a TLS alert."""
    QUIC = 260
    """One side broke the rules of QUIC."""
    CERTIFICATE_EXPIRED = 261
    """The peer's certificate is not valid at this time, by our clock."""


@dataclass(frozen=True, slots=True)
class CloseReason:
    """What `Handler.on_close` is told."""

    code: int
    reason: str


def text_of(address: Address) -> str:
    """Write an address as people do: `host:port`, with brackets around IPv6."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def clean(text: str) -> str:
    """Make a peer's words harmless for a terminal and a log: printable, one line, bounded."""
    return "".join(c if c.isprintable() else "?" for c in text[:MAX_REASON])


def by_peer(code: int, is_application: bool, reason: str, peer: Address) -> CloseReason:
    """Explain a close that came over the wire."""
    where = text_of(peer)
    reason = clean(reason)
    if is_application:
        return CloseReason(code, reason or f"{where} closed the connection")
    if code == QuicErrorCode.CONNECTION_REFUSED:
        return CloseReason(ErrorCode.OVERLOADED, f"{where} has too many connections")
    if code == QuicErrorCode.APPLICATION_ERROR:
        reason = f"{where} closed the connection during the handshake"
        return CloseReason(ErrorCode.DRAINING, reason)
    if code >= QuicErrorCode.CRYPTO_ERROR:
        return _alert(code, f"{where} refused the handshake", where)
    return CloseReason(TransportCode.QUIC, f"{where} ended the connection: {_quic(code, reason)}")


def by_us(code: int, reason: str, peer: Address, server_name: str | None) -> CloseReason:
    """Explain what our own QUIC or TLS found wrong with the peer."""
    where = text_of(peer)
    reason = clean(reason)
    if code == QuicErrorCode.CRYPTO_ERROR + AlertDescription.certificate_expired:
        return CloseReason(
            TransportCode.CERTIFICATE_EXPIRED,
            f"the certificate of {where} has expired or is not valid yet "
            "(check both clocks; `ringfence keys renew` makes a new one)",
        )
    if code == QuicErrorCode.CRYPTO_ERROR + AlertDescription.bad_certificate:
        if reason.startswith("hostname ") or "subjectAltName" in reason:
            names = ", ".join(_NAMED.findall(reason.partition(" match ")[2])) or "nobody"
            return CloseReason(
                TransportCode.CERTIFICATE,
                f"the certificate of {where} does not name {server_name!r}, but {names}",
            )
        return CloseReason(
            TransportCode.CERTIFICATE,
            f"the CA given does not sign the certificate of {where} ({reason})",
        )
    if code >= QuicErrorCode.CRYPTO_ERROR:
        return _alert(code, f"the handshake with {where} failed", where)
    return CloseReason(TransportCode.QUIC, f"{where} broke QUIC: {_quic(code, reason)}")


def by_path(reason: str, peer: Address) -> CloseReason:
    """Explain an end that neither side asked for: silence, or no path and no version in common."""
    where = text_of(peer)
    if reason == "Idle timeout":
        return CloseReason(ErrorCode.IDLE, f"idle timeout: {where} went silent")
    return CloseReason(TransportCode.QUIC, f"lost {where}: {clean(reason).lower()}")


def _alert(code: int, what: str, where: str) -> CloseReason:
    number = code - QuicErrorCode.CRYPTO_ERROR
    try:
        name = AlertDescription(number).name.replace("_", " ")
    except ValueError:
        name = "unknown"
    if number == AlertDescription.no_application_protocol:
        return CloseReason(
            TransportCode.TLS,
            f"{where} does not speak this protocol: another service or Ringfence release?",
        )
    return CloseReason(TransportCode.TLS, f"{what}: {name} (TLS alert {number})")


def _quic(code: int, reason: str) -> str:
    try:
        name = QuicErrorCode(code).name.replace("_", " ").lower()
    except ValueError:
        name = f"error {code}"
    return f"{reason} ({name})" if reason else name
