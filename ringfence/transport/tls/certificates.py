"""Certificates of nodes and authorities: loading, checks with clear errors, and node names.

`ServerTls` is what a listening node presents, `ClientTls` what a connecting program trusts.
`certificate_authority` creates certificates.
"""

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)

from ringfence.errors import ConfigError

__all__ = [
    "NODE_NAME",
    "ClientTls",
    "ServerTls",
    "check_server_tls",
    "expires_at",
    "is_signed_by",
    "load_client_tls",
    "load_server_tls",
    "names_in",
    "node_label",
    "node_server_name",
    "node_server_names",
]

NODE_NAME = "node.ringfence.internal"
"""Name in the certificate of every node; it does not depend on the node's address."""

_LABEL = re.compile(r"(?!x-)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
"""Node names that certificates contain unchanged; the prefix `x-` marks hashed names."""


@dataclass(frozen=True, slots=True)
class ServerTls:
    """Certificate and private key of a listening node, as PEM; `chain` has intermediate
    certificates."""

    certificate_pem: bytes
    key_pem: bytes = field(repr=False)
    chain: bytes = b""


@dataclass(frozen=True, slots=True)
class ClientTls:
    """Trust settings of a program that connects to nodes."""

    ca_pem: bytes | None = None
    """CA certificates to trust; None for the public CAs that browsers trust."""
    server_name: str | None = NODE_NAME
    """Name that the peer's certificate must carry."""
    verify: bool = True
    """Whether to verify the peer's certificate; False only on loopback without keys."""
    by_node_name: bool = False
    """Whether the certificate of a peer with a known node name must carry that name."""

    def name_of(self, node: str) -> str | None:
        """Return the name that the certificate of `node` must contain; `node` may be empty."""
        return node_server_name(node) if node and self.by_node_name else self.server_name


def node_label(name: str) -> str:
    """Return a node's name as one DNS label and file name, which is unique for each node.

    Lower-case host names without dots stay unchanged. Other names are hashed: certificate names
    ignore case and do not allow every character.
    """
    if _LABEL.fullmatch(name):
        return name
    return f"x-{sha256(name.encode()).hexdigest()[:60]}"


def node_server_name(name: str) -> str:
    """Return the DNS name in the certificate of the node `name`."""
    return f"{node_label(name)}.{NODE_NAME}"


def node_server_names(tls: ServerTls) -> frozenset[str]:
    """Return the names of nodes in a certificate; empty for a certificate that all nodes share."""
    leaf = x509.load_pem_x509_certificates(tls.certificate_pem)[0]
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    listed = names.get_values_for_type(x509.DNSName)
    return frozenset([name.lower() for name in listed if name.lower().endswith(f".{NODE_NAME}")])


def names_in(certificate: Path) -> tuple[list[str], list[str]]:
    """Return the DNS names and the IP addresses in a certificate file.

    Raises `ConfigError` for a file that cannot be read.
    """
    leaf = _certificates(_read(certificate, "the certificate"), str(certificate))[0]
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return [], []
    addresses = names.get_values_for_type(x509.IPAddress)
    return names.get_values_for_type(x509.DNSName), [str(address) for address in addresses]


def load_server_tls(certificate: Path, key: Path, now: datetime) -> ServerTls:
    """Load a node's certificate and private key; a chain may follow the certificate.

    Raises `ConfigError` when a file is missing or not PEM, when the key does not match the
    certificate, and when the certificate is not valid at `now`.
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
    """Load the certificate of the authority that a client trusts.

    Raises `ConfigError` when the file is missing, is not a PEM certificate, or has expired.
    """
    pem = _read(ca, "the CA certificate")
    for certificate in _certificates(pem, str(ca)):
        _check_dates(certificate, now, str(ca))
    return ClientTls(pem, server_name, verify, by_node_name)


def check_server_tls(tls: ServerTls, now: datetime, certificate_name: str, key_name: str) -> None:
    """Raise `ConfigError` for a certificate and key that a peer would reject.

    The two name arguments are used in the error messages.
    """
    leaf = _certificates(tls.certificate_pem, certificate_name)[0]
    try:
        key = _key(tls.key_pem)
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"{key_name} is not an unencrypted private key in PEM form; give the key that "
            "`ringfence keys new` wrote next to the certificate"
        ) from error
    if not _matches(key, leaf):
        raise ConfigError(
            f"the key in {key_name} does not belong to the certificate in {certificate_name}; "
            "give the pair that `ringfence keys new` wrote together"
        )
    _check_dates(leaf, now, certificate_name)


def expires_at(certificates_pem: bytes) -> float:
    """Return the earliest expiry of the given certificates, as Unix time in seconds."""
    certificates = x509.load_pem_x509_certificates(certificates_pem)
    return min([certificate.not_valid_after_utc.timestamp() for certificate in certificates])


def is_signed_by(certificates_pem: bytes, authorities_pem: bytes | None) -> bool:
    """Whether one of the authorities has signed a certificate, or an intermediate one beside it.
    Without authorities, nothing is verified."""
    if authorities_pem is None:
        return True
    authorities = x509.load_pem_x509_certificates(authorities_pem)
    certificates = x509.load_pem_x509_certificates(certificates_pem)
    return any(_is_issued_by(each, other) for each in certificates for other in authorities)


def _is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, TypeError, ValueError):
        return False
    return True


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"cannot read {what} {path}: {error.strerror}; `ringfence keys new DIR` creates one"
        ) from error


def _certificates(pem: bytes, name: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise ConfigError(
            f"{name} holds no certificate in PEM form, which begins with "
            "-----BEGIN CERTIFICATE-----; `ringfence keys new` creates one"
        ) from error


def _check_dates(certificate: x509.Certificate, now: datetime, name: str) -> None:
    ends, begins = certificate.not_valid_after_utc, certificate.not_valid_before_utc
    is_authority = certificate.issuer == certificate.subject
    fix = f"create a new one with `ringfence keys {'new' if is_authority else 'renew'}`"
    if now > ends:
        raise ConfigError(f"the certificate in {name} expired on {_format_time(ends)}; {fix}")
    if now < begins:
        raise ConfigError(
            f"the certificate in {name} is valid only from {_format_time(begins)}, but the clock "
            f"of this host shows {_format_time(now)}; set the clock, or {fix}"
        )


def _format_time(instant: datetime) -> str:
    return instant.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def _key(pem: bytes) -> PrivateKeyTypes:
    return load_pem_private_key(pem, password=None)


def _matches(key: PrivateKeyTypes, certificate: x509.Certificate) -> bool:
    encoding = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(*encoding) == certificate.public_key().public_bytes(
        *encoding
    )
