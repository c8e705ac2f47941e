import pytest

from ringfence.errors import AccessDenied, PeerUnavailable, UntrustedPeer
from ringfence.peering.link.errors import (
    CertificateExpired,
    CredentialRejected,
    PeerLeaving,
    error_of,
)
from ringfence.transport.close_reason import TransportCode
from ringfence.wire import ErrorCode

THERE = ("node", 7101)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.BAD_CREDENTIAL, CredentialRejected),
        (ErrorCode.NOT_PERMITTED, AccessDenied),
        (TransportCode.CERTIFICATE, UntrustedPeer),
        (TransportCode.CERTIFICATE_EXPIRED, CertificateExpired),
        (ErrorCode.DRAINING, PeerLeaving),
        (ErrorCode.OVERLOADED, PeerUnavailable),
        (9999, PeerUnavailable),
    ],
)
def test_a_code_becomes_an_error_that_names_the_member(code, kind):
    error = error_of(code, "so it is", THERE, has_credential=True)

    assert type(error) is kind
    assert str(error) == "node:7101: so it is"


def test_a_reason_that_names_the_member_is_left_as_it_is():
    error = error_of(ErrorCode.OK, "no process listens at node:7101", THERE, has_credential=True)

    assert str(error) == "no process listens at node:7101"


def test_a_missing_token_is_explained():
    error = error_of(ErrorCode.BAD_CREDENTIAL, "no", THERE, has_credential=False)

    assert (
        "requires a token; add the file of one to the address, as in ringfence://node:7101"
        in str(error)
    )
