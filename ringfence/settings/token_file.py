"""Reader of `tokens.toml`: digests, scopes and domains of the clients' tokens."""

from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from ringfence.errors import ConfigError
from ringfence.settings.validation_errors import describe_error

__all__ = ["Scope", "TokenEntry", "load_token_file", "require_scopes_of_domains"]

_Kind = TypeVar("_Kind", bound=msgspec.Struct)

_DIGEST_SIZE = 32
_FIX = "`ringfence keys new` and `ringfence keys add-token` write this file"


class Scope(StrEnum):
    """Permission that a token grants."""

    CHECK = "check"
    """Check, charge, peek, and refund what the same token was charged; read rules and members."""
    REFUND = "refund"
    """Refund units of any key, whichever token was charged."""
    RESET = "reset"
    """Reset counters."""
    OBSERVE = "observe"
    """Read counters and metrics; at a gateway also peek."""
    ADMIN = "admin"
    """Make a node leave. A gateway has no use for this scope."""


class TokenEntry(Struct, frozen=True):
    """Record of one client token, as a node or gateway stores it: digest, scopes and domains."""

    digest: bytes
    """SHA-256 digest of the secret."""
    scopes: frozenset[Scope]
    domains: frozenset[str] | None = None
    """Domains whose rules the token may check; None for all."""


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    digest: str
    scopes: list[Scope]
    domains: list[str] | None = None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tokens: dict[str, object] = {}


def load_token_file(path: Path) -> dict[str, TokenEntry]:
    """Load the token file; return its tokens by name. Raises `ConfigError`, which names the file
    and the fix."""
    import tomllib  # Processes without a token file start faster.

    try:
        file = _convert(tomllib.loads(path.read_text("utf-8")), _File)
        return {name: _entry(name, record) for name, record in file.tokens.items()}
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}; {_FIX}") from error
    except (OSError, ValueError) as error:  # Errors of TOML and UTF-8 are ValueErrors.
        raise ConfigError(f"{path}: cannot be read: {error}; {_FIX}") from error


def require_scopes_of_domains(name: str, scopes: Iterable[Scope]) -> None:
    """Raise `ConfigError` if a token that is restricted to domains has a scope that is not."""
    for scope in scopes:
        if scope in (Scope.OBSERVE, Scope.ADMIN):
            raise ConfigError(
                f"token {name!r}: the scope {scope} is valid for all domains, so a token with "
                "domains must not have it; make two tokens, or remove the domains"
            )


def _convert(value: object, kind: type[_Kind]) -> _Kind:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        fields = kind.__struct_fields__
        what = describe_error(error, fields=fields, choices={"scopes": list(Scope)})
        raise ConfigError(what) from error


def _entry(name: str, value: object) -> TokenEntry:
    try:
        record = _convert(value, _Record)
    except ConfigError as error:
        raise ConfigError(f"token {name!r}: {error}") from error
    try:
        digest = bytes.fromhex(record.digest)
    except ValueError:
        digest = b""
    if len(digest) != _DIGEST_SIZE:
        raise ConfigError(
            f"token {name!r}: digest must have {_DIGEST_SIZE} bytes in hexadecimal, got "
            f"{len(record.digest)} characters"
        )
    domains = None if record.domains is None else frozenset(record.domains)
    if domains is not None:
        require_scopes_of_domains(name, record.scopes)
    return TokenEntry(digest, frozenset(record.scopes), domains)
