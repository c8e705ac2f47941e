"""Validation of the gateway's certificate files before the ports open.

The TLS libraries of the ports report errors late and without a clear message.
"""

import ssl
from datetime import datetime
from pathlib import Path

from cryptography import x509

from ringfence.errors import ConfigError
from ringfence.transport.tls.certificates import load_server_tls

__all__ = ["check_tls_files", "tls_context"]


def check_tls_files(certificate: str, key: str, client_ca: str, now: datetime) -> None:
    """Validate the files of the certificate, its key and the clients' CA; `client_ca` may be empty.

    Raises `ConfigError` that names the setting, the file and how to fix it.
    """
    for name, file in (("tls_cert", certificate), ("tls_key", key), ("tls_client_ca", client_ca)):
        if file:
            _require_readable(name, file)
    try:
        load_server_tls(Path(certificate), Path(key), now)
    except ConfigError as error:
        raise ConfigError(f"tls_cert and tls_key: {error}") from error
    if client_ca:
        _check_authority(client_ca)
    tls_context(certificate, key, client_ca)


def tls_context(certificate: str, key: str, client_ca: str) -> ssl.SSLContext:
    """Load certificate files into a TLS context of a Python server. Raises `ConfigError`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
        if client_ca:
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:  # The file cannot be read, or OpenSSL rejects it.
        files = ", ".join(filter(None, (certificate, key, client_ca)))
        raise ConfigError(f"tls_cert, tls_key or tls_client_ca ({files}): {error}") from error
    return context


def _require_readable(name: str, file: str) -> None:
    try:
        Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{name}: cannot read {file}: {error.strerror}; let the gateway's user read it"
        ) from error


def _check_authority(file: str) -> None:
    try:
        x509.load_pem_x509_certificates(Path(file).read_bytes())
    except ValueError as error:
        raise ConfigError(
            f"tls_client_ca: {file} holds no certificate in PEM form (it should begin with "
            "-----BEGIN CERTIFICATE-----), or a broken one; give that of the authority which "
            "signs the callers' certificates"
        ) from error
