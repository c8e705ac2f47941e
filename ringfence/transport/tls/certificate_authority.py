"""Certificate authority of a cluster: creates certificates and private keys in PEM format.

Decides their form: ECDSA on P-256, validity, and the extensions that strict verifiers require. The
command line decides where the files go and who may read them.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ringfence.errors import ConfigError
from ringfence.transport.tls.certificates import NODE_NAME, ServerTls

__all__ = ["issue", "new_authority", "self_signed"]

_CLOCK_SKEW = timedelta(minutes=5)
"""Tolerated clock difference: a certificate is valid from this long before its creation."""


def new_authority(now: datetime, days: float) -> tuple[bytes, bytes]:
    """Create a certificate authority that is valid for `days`; return its certificate and its
    private key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("Ringfence cluster CA")
    certificate = (
        _builder(name, name, key.public_key(), now, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, SHA256())
    )
    return certificate.public_bytes(Encoding.PEM), _private_pem(key)


def issue(
    ca_cert_pem: bytes,
    ca_key_pem: bytes,
    names: Sequence[str],
    addresses: Sequence[str],
    now: datetime,
    days: float,
) -> tuple[bytes, bytes]:
    """Create a node's certificate, signed by the certificate authority; return it and its private
    key.

    It contains `NODE_NAME`, then the given DNS `names` and IP `addresses`. Raises `ConfigError` for
    a name or address that a certificate cannot contain.
    """
    authority = x509.load_pem_x509_certificate(ca_cert_pem)
    signer = load_pem_private_key(ca_key_pem, password=None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise ConfigError(
            "the CA's private key must be an elliptic-curve key; run `ringfence keys new`"
        )
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _leaf(authority.subject, key.public_key(), names, addresses, now=now, days=days)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
        .sign(signer, SHA256())
    )
    return certificate.public_bytes(Encoding.PEM), _private_pem(key)


def self_signed(now: datetime) -> ServerTls:
    """Create a self-signed certificate for a node without keys, which listens on loopback only."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _leaf(
        _name(NODE_NAME), key.public_key(), (), ("127.0.0.1", "::1"), now=now, days=3650
    ).sign(key, SHA256())
    return ServerTls(certificate.public_bytes(Encoding.PEM), _private_pem(key))


def _leaf(
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    names: Sequence[str],
    addresses: Sequence[str],
    *,
    now: datetime,
    days: float,
) -> x509.CertificateBuilder:
    alternatives: list[x509.GeneralName] = []
    for name in dict.fromkeys([NODE_NAME, *names]):
        try:
            alternatives.append(x509.DNSName(name.encode("idna").decode()))
        except UnicodeError as error:
            raise ConfigError(f"name must be a host name, got {name!r}: {error}") from error
    for address in dict.fromkeys(addresses):
        try:
            alternatives.append(x509.IPAddress(ip_address(address)))
        except ValueError as error:
            raise ConfigError(
                f"address must be an IP address, got {address!r}; give host names as names"
            ) from error
    return (
        _builder(_name(NODE_NAME), issuer, public_key, now, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    now: datetime,
    days: float,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Ringfence"),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
