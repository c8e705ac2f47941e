"""Certificates and trust, checked early and in words, and their form for aioquic.

Decides what a side shows (`ServerTls`) and what it believes (`ClientTls`). Making certificates is
`authority`'s part; whether a node may run without them is the caller's.
"""

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from ssl import CERT_NONE, CERT_REQUIRED

from aioquic.quic.configuration import QuicConfiguration
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)

from ringfence.errors import ConfigError
from ringfence.transport.quic.admission import CID_LENGTH, VERSIONS
from ringfence.transport.settings import Settings

__all__ = [
    "ALPN",
    "NODE_NAME",
    "ClientTls",
    "ServerTls",
    "check_server_tls",
    "expires_at",
    "load_client_tls",
    "load_server_tls",
    "names_in",
    "node_label",
    "node_server_name",
    "node_server_names",
]

ALPN = "ringfence/1"
"""Protocol name in the TLS handshake; another number is another wire protocol."""

NODE_NAME = "node.ringfence.internal"
"""Name that the certificate of every node carries, so that addresses may change under it."""

_LABEL = re.compile(r"(?!x-)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
"""Node names that are written into certificates unchanged; `x-` marks the others."""


@dataclass(frozen=True, slots=True)
class ServerTls:
    """What a listening side shows. All PEM; `chain` holds intermediate certificates, if any."""

    certificate_pem: bytes
    key_pem: bytes = field(repr=False)
    chain: bytes = b""


@dataclass(frozen=True, slots=True)
class ClientTls:
    """What a connecting side believes."""

    ca_pem: bytes | None = None
    """Certificates to trust; None for the public ones that browsers trust."""
    server_name: str | None = NODE_NAME
    """Name that the certificate must carry."""
    verify: bool = True
    """False only on loopback, where there are no keys: whoever answers is believed."""
    by_node_name: bool = False
    """Whether a peer whose node name is known must show a certificate with that name."""

    def name_of(self, node: str) -> str | None:
        """Name that the certificate of `node` must carry; empty `node` for an unknown one."""
        return node_server_name(node) if node and self.by_node_name else self.server_name


def node_label(name: str) -> str:
    """Write a node's name as one DNS label and file name, a different one for each node.

    Lower-case host names without dots stay as they are. Of others it is a hash: certificates
    are compared without regard to case, and have no place for every character.
    """
    if _LABEL.fullmatch(name):
        return name
    return f"x-{sha256(name.encode()).hexdigest()[:60]}"


def node_server_name(name: str) -> str:
    """Return the name in the certificate of the node `name`."""
    return f"{node_label(name)}.{NODE_NAME}"


def node_server_names(tls: ServerTls) -> frozenset[str]:
    """Return the names of single nodes in a certificate; none in one that all nodes share."""
    leaf = x509.load_pem_x509_certificates(tls.certificate_pem)[0]
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    listed = names.get_values_for_type(x509.DNSName)
    return frozenset([name.lower() for name in listed if name.lower().endswith(f".{NODE_NAME}")])


def names_in(certificate: Path) -> tuple[list[str], list[str]]:
    """Return the DNS names and the IP addresses that a certificate covers.

    Raises `ConfigError` for a file that cannot be read.
    """
    leaf = _certificates(_read(certificate, "the certificate"), str(certificate))[0]
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return [], []
    addresses = names.get_values_for_type(x509.IPAddress)
    return names.get_values_for_type(x509.DNSName), [str(address) for address in addresses]


def server_configuration(tls: ServerTls, settings: Settings) -> QuicConfiguration:
    """Write `tls` and `settings` as aioquic wants them for incoming connections."""
    certificates = x509.load_pem_x509_certificates(tls.certificate_pem + tls.chain)
    return QuicConfiguration(
        is_client=False,
        certificate=certificates[0],
        certificate_chain=certificates[1:],
        private_key=_key(tls.key_pem),
        alpn_protocols=[ALPN],
        connection_id_length=CID_LENGTH,
        idle_timeout=settings.idle_timeout,
        initial_rtt=settings.initial_rtt,
        max_data=settings.stranger_window,
        max_stream_data=settings.stranger_window,
        max_datagram_size=settings.max_datagram,
        supported_versions=VERSIONS,
    )


def client_configuration(tls: ClientTls, settings: Settings) -> QuicConfiguration:
    """Write `tls` and `settings` as aioquic wants them for connections of our own."""
    return QuicConfiguration(
        is_client=True,
        cadata=tls.ca_pem,
        server_name=tls.server_name,
        verify_mode=CERT_REQUIRED if tls.verify else CERT_NONE,
        alpn_protocols=[ALPN],
        connection_id_length=CID_LENGTH,
        idle_timeout=settings.idle_timeout,
        initial_rtt=settings.initial_rtt,
        max_data=settings.window,
        max_stream_data=settings.window,
        max_datagram_size=settings.max_datagram,
        supported_versions=VERSIONS,
    )


def load_server_tls(certificate: Path, key: Path, now: datetime) -> ServerTls:
    """Read a node's certificate (its chain may follow it in the file) and private key.

    Raises `ConfigError` when a file is missing or not PEM, when the two do not belong together, and
    when the certificate is not valid at `now`.
    """
    tls = ServerTls(_read(certificate, "the node's certificate"), _read(key, "the node's key"))
    check_server_tls(tls, now, str(certificate), str(key))
    return tls


def load_client_tls(
    ca: Path,
    now: datetime,
    *,
    server_name: str | None = NODE_NAME,
    verify: bool = True,
    by_node_name: bool = False,
) -> ClientTls:
    """Read the certificate of the CA to trust.

    Raises `ConfigError` when the file is missing, is not a PEM certificate, or has expired.
    """
    pem = _read(ca, "the CA certificate")
    for certificate in _certificates(pem, str(ca)):
        _check_dates(certificate, now, str(ca))
    return ClientTls(pem, server_name, verify, by_node_name)


def check_server_tls(tls: ServerTls, now: datetime, certificate_name: str, key_name: str) -> None:
    """Find what is wrong with `tls` before a peer does; the names are for the messages.

    Raises `ConfigError`.
    """
    leaf = _certificates(tls.certificate_pem, certificate_name)[0]
    try:
        key = _key(tls.key_pem)
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"{key_name} is not an unencrypted private key in PEM form: give the key that "
            "`ringfence keys new` wrote beside the certificate"
        ) from error
    if not _belongs(key, leaf):
        raise ConfigError(
            f"the key in {key_name} does not belong to the certificate in {certificate_name}: "
            "give the pair that `ringfence keys new` wrote together"
        )
    _check_dates(leaf, now, certificate_name)


def expires_at(certificates_pem: bytes) -> float:
    """Return when the first of these certificates expires, in seconds since 1970."""
    found = x509.load_pem_x509_certificates(certificates_pem)
    return min([certificate.not_valid_after_utc.timestamp() for certificate in found])


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"cannot read {what} {path}: {error.strerror}; `ringfence keys new DIR` makes one"
        ) from error


def _certificates(pem: bytes, name: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise ConfigError(
            f"{name} holds no certificate in PEM form (it should begin with "
            "-----BEGIN CERTIFICATE-----); `ringfence keys new` makes one"
        ) from error


def _check_dates(certificate: x509.Certificate, now: datetime, name: str) -> None:
    ends, begins = certificate.not_valid_after_utc, certificate.not_valid_before_utc
    is_authority = certificate.issuer == certificate.subject
    mend = f"make a new one with `ringfence keys {'new' if is_authority else 'renew'}`"
    if now > ends:
        raise ConfigError(f"the certificate in {name} expired on {_day(ends)}; {mend}")
    if now < begins:
        raise ConfigError(
            f"the certificate in {name} is valid only from {_day(begins)} on, and this host's "
            f"clock says {_day(now)}: set the clock, or {mend}"
        )


def _day(instant: datetime) -> str:
    return instant.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def _key(pem: bytes) -> PrivateKeyTypes:
    return load_pem_private_key(pem, password=None)


def _belongs(key: PrivateKeyTypes, certificate: x509.Certificate) -> bool:
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(*form) == certificate.public_key().public_bytes(*form)
