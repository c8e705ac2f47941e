"""Who may ask the gateway what: bearer tokens with scopes, in the file that nodes have, too.

`Authorization: Bearer NAME.SECRET`, as in the `.token` files of `ringfence keys new`. Without a
file, callers with a certificate of `tls_client_ca` have the scope `check`. With neither, every
caller has every scope; `settings` allows that on loopback only.
"""

import logging
import tomllib
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import msgspec

from ringfence.client.url import parse_token
from ringfence.errors import ConfigError
from ringfence.wire import matches

__all__ = ["Scope", "TokenFile", "Tokens", "load_tokens"]

logger = logging.getLogger("ringfence.gateway")


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


_MEND = "`ringfence keys new DIR` writes DIR/tokens.toml"


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    digest: str
    scopes: list[str]
    domains: list[str] | None = None
    """Where it is given, the token has no scopes here: only nodes hold tokens to domains."""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tokens: dict[str, _Record] = {}


@dataclass(slots=True)
class Tokens:
    """Decides what a bearer may do; comparisons take constant time."""

    known: dict[str, tuple[bytes, frozenset[Scope]]] = field(default_factory=dict)
    """Per name, the digest of the secret and the scopes. `TokenFile` replaces it."""
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


class TokenFile:
    """A file of tokens that is read again when it changes; a wrong one changes nothing."""

    def __init__(self, path: Path, tokens: Tokens) -> None:
        """`tokens` are those that were read from `path` before; they are changed in place."""
        self._path = path
        self._tokens = tokens
        self._seen: tuple[int, ...] = ()

    def reload_if_changed(self) -> None:
        """Put the file's tokens in force if it has changed, and log which were added or revoked."""
        try:
            now = self._path.stat()
        except OSError:
            return  # It may be on its way: some tools remove a file before they write it.
        seen = now.st_mtime_ns, now.st_size, now.st_ino
        if seen == self._seen:
            return
        self._seen = seen
        try:
            known = _load(self._path)
        except ConfigError as error:
            logger.error("tokens not reloaded, the old ones stay in force: %s", error)
            return
        before, self._tokens.known = self._tokens.known, known
        named = (
            ("added", known.keys() - before.keys()),
            ("revoked", before.keys() - known.keys()),
            ("changed", [name for name in known if before.get(name, known[name]) != known[name]]),
        )
        changes = [f"{verb}: {', '.join(sorted(names))}" for verb, names in named if names]
        if changes:
            logger.info("tokens reloaded; %s", "; ".join(changes))


def load_tokens(path: Path | None, *, asks_certificates: bool = False) -> Tokens:
    """Read a file of tokens. Raises `ConfigError` that names the file and how to fix it.

    `asks_certificates`: callers need a certificate. Without tokens it grants `check` alone.
    """
    if path is None:
        return Tokens(open_scopes=frozenset([Scope.CHECK])) if asks_certificates else Tokens()
    known = _load(path)
    if not known:
        raise ConfigError(f"tokens: {path} holds none, so nobody could ask; {_MEND}")
    return Tokens(known, is_open=False)


def _load(path: Path) -> dict[str, tuple[bytes, frozenset[Scope]]]:
    try:
        told = msgspec.convert(tomllib.loads(path.read_text("utf-8")), _File)
        return {name: _read(name, record) for name, record in told.tokens.items()}
    except (OSError, ValueError) as error:  # msgspec's and TOML's errors are ValueErrors, too.
        raise ConfigError(f"tokens: {path}: {error}; {_MEND}") from error


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
