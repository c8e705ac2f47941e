"""Errors of a link, created from the codes that members and transports report."""

from ringfence.errors import AccessDenied, PeerUnavailable, RingfenceError, UntrustedPeer
from ringfence.transport.addresses import format_address
from ringfence.transport.close_reason import TransportCode
from ringfence.transport.interface import Address
from ringfence.wire import ErrorCode

__all__ = ["CertificateExpired", "CredentialRejected", "PeerLeaving", "error_of"]


class CertificateExpired(PeerUnavailable):
    """Error for a member's certificate that is not valid at this time; the member counts as
    down."""


class CredentialRejected(AccessDenied):
    """Error for a key or token of this process that the member does not accept."""


class PeerLeaving(PeerUnavailable):
    """Error for a member that leaves the cluster gracefully."""


def error_of(code: int, reason: str, address: Address, *, has_credential: bool) -> RingfenceError:
    """Create the error for a code that the member at `address`, or the transport, reported."""
    where = format_address(address)
    if code == ErrorCode.BAD_CREDENTIAL and not has_credential:
        reason = (
            f"{where}: this cluster requires a token; add the file of one to the address, as in "
            f"ringfence://{where}?ca=ca.pem&token_file=app.token"
        )
    elif where not in reason:
        reason = f"{where}: {reason}"
    match code:
        case ErrorCode.BAD_CREDENTIAL:
            return CredentialRejected(reason)
        case ErrorCode.NOT_PERMITTED:
            return AccessDenied(reason)
        case TransportCode.CERTIFICATE:
            return UntrustedPeer(reason)
        case TransportCode.CERTIFICATE_EXPIRED:
            return CertificateExpired(reason)
        case ErrorCode.DRAINING:
            return PeerLeaving(reason)
        case _:
            return PeerUnavailable(reason)
