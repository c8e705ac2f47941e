"""Contents of a key folder without secrets: certificates with expiry, and tokens with scopes."""

from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from node.config.access import KeyDir
from node.config.private_files import readable
from ringfence.errors import ConfigError
from ringfence.settings.token_file import load_token_file
from ringfence.transport.tls.certificates import expires_at, names_in

__all__ = ["CertificateRow", "TokenRow", "list_certificates", "list_tokens"]


class CertificateRow(Struct, frozen=True):
    """One certificate in a key folder, with its expiry."""

    file: str
    """Path relative to the folder."""
    expires: datetime
    days_left: int
    """Whole days until expiry; negative after it."""
    names: list[str]
    addresses: list[str]


class TokenRow(Struct, frozen=True):
    """One token in `tokens.toml`, with its scopes and without its secret."""

    name: str
    scopes: list[str]
    domains: list[str] | None
    """Domains to which the token is restricted; None for all domains."""


def list_certificates(keys: KeyDir, now: datetime) -> list[CertificateRow]:
    """List the certificates of the authority and of nodes. Raises `ConfigError` for an invalid
    one.
    """
    with readable(keys.path):
        files = [keys.ca, keys.certificate, *sorted(keys.nodes.glob("*.pem"))]
        rows = [_row(keys, file, now) for file in files if file.exists()]
        got = "none" if keys.path.is_dir() else "no such directory"
    if not rows:
        raise ConfigError(
            f"{keys.path} must hold certificates, got {got}; `ringfence keys new` makes them"
        )
    return rows


def _row(keys: KeyDir, file: Path, now: datetime) -> CertificateRow:
    names, addresses = names_in(file)  # Raises `ConfigError` if the file is not a certificate.
    expires = datetime.fromtimestamp(expires_at(file.read_bytes()), UTC)
    own = str(file.relative_to(keys.path))
    return CertificateRow(own, expires, (expires - now).days, names, addresses)


def list_tokens(keys: KeyDir) -> list[TokenRow]:
    """List the tokens by name. Raises `ConfigError` for an invalid file."""
    return [
        TokenRow(
            name, sorted(token.scopes), None if token.domains is None else sorted(token.domains)
        )
        for name, token in sorted(load_token_file(keys.tokens).items())
    ]
