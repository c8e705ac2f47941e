"""Reasons for the end of a connection, as codes and texts for `Handler.on_close`.

Translates what QUIC and TLS report. Codes below 256 are codes of the wire protocol (`ErrorCode`)
and are not changed.
"""

import re
from enum import IntEnum

from aioquic.quic.packet import QuicErrorCode
from aioquic.tls import AlertDescription
from msgspec import Struct

from ringfence.transport.addresses import format_address
from ringfence.transport.interface import Address
from ringfence.wire.errors import ErrorCode

__all__ = [
    "CloseReason",
    "TransportCode",
    "from_local_close",
    "from_path_failure",
    "from_peer_close",
    "printable",
]

MAX_REASON = 500
_QUOTED_NAME = re.compile(r"'([^']*)'")
"""A certificate name in aioquic's message, which quotes it as Python does."""


class TransportCode(IntEnum):
    """Reasons for a close that the transport itself detected; never sent to the peer."""

    HANDSHAKE_TIMEOUT = 256
    """The handshake did not finish in time."""
    UNREACHABLE = 257
    """No process listens there, no route leads there, or the name has no address."""
    CERTIFICATE = 258
    """The trusted CA did not sign the peer's certificate, or the expected name is not in it."""
    TLS = 259
    """The handshake failed for another reason: protocol name, version or TLS alert."""
    QUIC = 260
    """One side violated the QUIC protocol."""
    CERTIFICATE_EXPIRED = 261
    """The peer's certificate is not valid at this time, by our clock."""


class CloseReason(Struct, frozen=True):
    """Reason of the end of a connection: the arguments of `Handler.on_close`."""

    code: int
    reason: str


def printable(text: str) -> str:
    """Return a peer's text as one line of bounded length without control characters, safe for a
    log."""
    return "".join(c if c.isprintable() else "?" for c in text[:MAX_REASON])


def from_peer_close(code: int, is_application: bool, reason: str, peer: Address) -> CloseReason:
    """Translate the reason that the peer sent when it closed a connection."""
    where = format_address(peer)
    reason = printable(reason)
    if is_application:
        return CloseReason(code, reason or f"{where} closed the connection")
    if code == QuicErrorCode.CONNECTION_REFUSED:
        return CloseReason(ErrorCode.OVERLOADED, f"{where} has too many connections")
    if code == QuicErrorCode.APPLICATION_ERROR:
        reason = f"{where} closed the connection during the handshake"
        return CloseReason(ErrorCode.DRAINING, reason)
    if code >= QuicErrorCode.CRYPTO_ERROR:
        return _from_alert(code, f"{where} refused the handshake", where)
    text = f"{where} ended the connection: {_quic_error(code, reason)}"
    return CloseReason(TransportCode.QUIC, text)


def from_local_close(code: int, reason: str, peer: Address, server_name: str | None) -> CloseReason:
    """Translate an error that the local QUIC or TLS code found in the peer's data."""
    where = format_address(peer)
    reason = printable(reason)
    if code == QuicErrorCode.CRYPTO_ERROR + AlertDescription.certificate_expired:
        return CloseReason(
            TransportCode.CERTIFICATE_EXPIRED,
            f"the certificate of {where} has expired or is not valid yet "
            "(check both clocks; `ringfence keys renew` makes a new one)",
        )
    if code == QuicErrorCode.CRYPTO_ERROR + AlertDescription.bad_certificate:
        if reason.startswith("hostname ") or "subjectAltName" in reason:
            names = ", ".join(_QUOTED_NAME.findall(reason.partition(" match ")[2])) or "no name"
            return CloseReason(
                TransportCode.CERTIFICATE,
                f"the certificate of {where} does not name {server_name!r}, but {names}",
            )
        return CloseReason(
            TransportCode.CERTIFICATE,
            f"the CA given does not sign the certificate of {where} ({reason}); give the ca.pem "
            "of the cluster to which this node belongs",
        )
    if code >= QuicErrorCode.CRYPTO_ERROR:
        return _from_alert(code, f"the handshake with {where} failed", where)
    text = f"{where} violated the QUIC protocol: {_quic_error(code, reason)}"
    return CloseReason(TransportCode.QUIC, text)


def from_path_failure(reason: str, peer: Address) -> CloseReason:
    """Translate the end of a connection that neither side closed: silent peer, no path, or no
    common version."""
    where = format_address(peer)
    if reason == "Idle timeout":
        return CloseReason(ErrorCode.IDLE, f"idle timeout: {where} went silent")
    return CloseReason(TransportCode.QUIC, f"lost {where}: {printable(reason).lower()}")


def _from_alert(code: int, what: str, where: str) -> CloseReason:
    number = code - QuicErrorCode.CRYPTO_ERROR
    try:
        name = AlertDescription(number).name.replace("_", " ")
    except ValueError:
        name = "unknown"
    if number == AlertDescription.no_application_protocol:
        return CloseReason(
            TransportCode.TLS,
            f"{where} does not speak this protocol; check the port and the Ringfence release there",
        )
    return CloseReason(TransportCode.TLS, f"{what}: {name} (TLS alert {number})")


def _quic_error(code: int, reason: str) -> str:
    try:
        name = QuicErrorCode(code).name.replace("_", " ").lower()
    except ValueError:
        name = f"error {code}"
    return f"{reason} ({name})" if reason else name
