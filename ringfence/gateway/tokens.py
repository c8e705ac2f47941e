"""Who may ask the gateway what: bearer tokens with scopes, in the file that nodes have, too.

`Authorization: Bearer NAME.SECRET`, as in the `.token` files of `ringfence keys new`. Without a
file, callers with a certificate of `tls_client_ca` have the scope `check`. With neither, every
caller has every scope; `settings` allows that on loopback only.
"""

import tomllib
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import msgspec

from ringfence.client.url import parse_token
from ringfence.errors import ConfigError
from ringfence.wire import matches

__all__ = ["Scope", "Tokens", "load_tokens"]


class Scope(StrEnum):
    """What a token lets its bearer do."""

    CHECK = "check"
    """Spend, charge, wait, look, ask; what proxies need."""
    REFUND = "refund"
    """Give back units of any key, whichever token was charged."""
    READ = "observe"
    """Look without spending, read counters."""
    RESET = "reset"
    """Forget counters."""


_MEANINGS = {
    "check": Scope.CHECK,
    "refund": Scope.REFUND,
    "observe": Scope.READ,
    "reset": Scope.RESET,
    "read": Scope.READ,
    # On nodes it does more, here no more than `reset`.
    "admin": Scope.RESET,
}


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    digest: str
    scopes: list[str]
    domains: list[str] | None = None
    """Where it is given, the token has no scopes here: only nodes hold tokens to domains."""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tokens: dict[str, _Record] = {}


@dataclass(frozen=True, slots=True)
class Tokens:
    """Decides what a bearer may do; comparisons take constant time."""

    known: dict[str, tuple[bytes, frozenset[Scope]]] = field(default_factory=dict)
    """Per name, the digest of the secret and the scopes."""
    is_open: bool = True
    """Whether callers need no token, because no file was given."""
    open_scopes: frozenset[Scope] = frozenset(Scope)
    """Scopes of every caller when no token is needed."""

    def scopes_of(self, authorization: str | None) -> frozenset[Scope] | None:
        """Tell what the sender of this header may do; None when it proves nothing."""
        if self.is_open:
            return self.open_scopes
        scheme, _, text = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        try:
            token = parse_token(text.strip())
        except ConfigError:
            return None
        digest, scopes = self.known.get(token.name, (bytes(32), frozenset()))
        return scopes if matches(token.secret, digest) else None

    def name_of(self, authorization: str | None) -> str:
        """Name of the token in a header that `scopes_of` accepts; empty where no token is asked."""
        if self.is_open:
            return ""
        return parse_token((authorization or "").partition(" ")[2].strip()).name


def load_tokens(path: Path | None, *, asks_certificates: bool = False) -> Tokens:
    """Read a file of tokens. Raises `ConfigError` that names the file and how to fix it.

    `asks_certificates`: callers need a certificate. Without tokens it grants `check` alone.
    """
    if path is None:
        return Tokens(open_scopes=frozenset([Scope.CHECK])) if asks_certificates else Tokens()
    mend = "`ringfence keys new DIR` writes DIR/tokens.toml"
    try:
        told = msgspec.convert(tomllib.loads(path.read_text("utf-8")), _File)
        known = {name: _read(name, record) for name, record in told.tokens.items()}
    except (OSError, ValueError) as error:  # msgspec's and TOML's errors are ValueErrors, too.
        raise ConfigError(f"tokens: {path}: {error}; {mend}") from error
    if not known:
        raise ConfigError(f"tokens: {path} holds none, so nobody could ask; {mend}")
    return Tokens(known, is_open=False)


def _read(name: str, record: _Record) -> tuple[bytes, frozenset[Scope]]:
    digest = bytes.fromhex(record.digest)
    if len(digest) != 32:
        raise ValueError(f"token {name!r}: a digest has 32 bytes, not {len(digest)}")
    odd = [scope for scope in record.scopes if scope not in _MEANINGS]
    if odd:
        raise ValueError(f"token {name!r}: unknown scope {odd[0]!r}; known: {', '.join(_MEANINGS)}")
    if record.domains is not None:
        return digest, frozenset()
    return digest, frozenset([_MEANINGS[scope] for scope in record.scopes])
