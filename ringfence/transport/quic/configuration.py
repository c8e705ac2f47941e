"""QUIC parameters for incoming and outgoing connections, in aioquic's form."""

from ssl import CERT_NONE, CERT_REQUIRED

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.packet import QuicProtocolVersion
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from ringfence.transport.settings import Settings
from ringfence.transport.tls.certificates import ClientTls, ServerTls

__all__ = ["ALPN", "CID_LENGTH", "VERSIONS", "client_configuration", "server_configuration"]

ALPN = "ringfence/1"
"""Protocol name in the TLS handshake; another number is another wire protocol."""

CID_LENGTH = 8
"""Bytes in our connection ids, and the minimum that a client may choose (RFC 9000, 7.2)."""

VERSIONS: list[int] = [QuicProtocolVersion.VERSION_1]
"""Supported QUIC versions. Each Initial packet derives keys for all of them."""


def server_configuration(tls: ServerTls, settings: Settings) -> QuicConfiguration:
    """Create the QUIC parameters of incoming connections."""
    certificates = x509.load_pem_x509_certificates(tls.certificate_pem + tls.chain)
    return QuicConfiguration(
        is_client=False,
        certificate=certificates[0],
        certificate_chain=certificates[1:],
        private_key=load_pem_private_key(tls.key_pem, password=None),
        alpn_protocols=[ALPN],
        connection_id_length=CID_LENGTH,
        idle_timeout=settings.idle_timeout,
        initial_rtt=settings.initial_rtt,
        max_data=settings.untrusted_receive_window,
        max_stream_data=settings.untrusted_receive_window,
        max_datagram_size=settings.max_datagram,
        supported_versions=VERSIONS,
    )


def client_configuration(tls: ClientTls, settings: Settings) -> QuicConfiguration:
    """Create the QUIC parameters of outgoing connections."""
    return QuicConfiguration(
        is_client=True,
        cadata=tls.ca_pem,
        server_name=tls.server_name,
        verify_mode=CERT_REQUIRED if tls.verify else CERT_NONE,
        alpn_protocols=[ALPN],
        connection_id_length=CID_LENGTH,
        idle_timeout=settings.idle_timeout,
        initial_rtt=settings.initial_rtt,
        max_data=settings.receive_window,
        max_stream_data=settings.receive_window,
        max_datagram_size=settings.max_datagram,
        supported_versions=VERSIONS,
    )
