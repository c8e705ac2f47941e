"""Authorization of the gateway's callers: bearer tokens with scopes, from the nodes' token file.

Callers send `Authorization: Bearer NAME.SECRET`, as in the `.token` files of `ringfence keys new`.
Without a token file, callers with a certificate of `tls_client_ca` have the scope `check`. With
neither, every caller has every scope; `settings` allows that on loopback only.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct, field

from ringfence.client.url import parse_token
from ringfence.errors import ConfigError
from ringfence.settings.token_file import Scope, TokenEntry, load_token_file
from ringfence.wire import matches

__all__ = ["DOMAINS_REFUSED", "TokenReload", "Tokens", "load_tokens"]

logger = logging.getLogger("ringfence.gateway")

DOMAINS_REFUSED = (
    "the token must have no domains, because only nodes can limit a token to domains; use another "
    "token, or remove its domains from the token file of the gateway"
)
"""Reason for which a token with domains is refused."""
_NO_TOKEN = TokenEntry(bytes(32), frozenset())


class Tokens(Struct):
    """Tokens that the gateway accepts. Comparisons take constant time."""

    known: Mapping[str, TokenEntry] = field(default_factory=dict)
    """Tokens by name. `TokenReload` replaces them."""
    is_open: bool = True
    """Whether callers need no token, because no file was given."""
    open_scopes: frozenset[Scope] = frozenset(Scope)
    """Scopes of every caller when no token is needed."""

    def scopes_of(self, authorization: str | None) -> frozenset[Scope] | None:
        """Return the scopes of the caller that sent this `Authorization` header; None when its
        token is invalid."""
        if self.is_open:
            return self.open_scopes
        scheme, _, text = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        try:
            token = parse_token(text.strip())
        except ConfigError:
            return None
        entry = self.known.get(token.name, _NO_TOKEN)
        if not matches(token.secret, entry.digest):
            return None
        # Only nodes can limit a token to domains, so such a token has no scope here; see
        # `DOMAINS_REFUSED`.
        return entry.scopes if entry.domains is None else frozenset()

    def name_of(self, authorization: str | None) -> str:
        """Return the name of the token in a header that `scopes_of` accepts.

        The name is empty when no token is required.
        """
        if self.is_open:
            return ""
        return parse_token((authorization or "").partition(" ")[2].strip()).name


class TokenReload:
    """Reload of a changed token file. A file with an error is ignored."""

    def __init__(self, path: Path, tokens: Tokens) -> None:
        """`tokens` were read from `path`; a reload of the file changes the object `tokens` in
        place."""
        self._path = path
        self._tokens = tokens
        self._loaded: tuple[int, ...] = ()
        """Fingerprint of the file that was loaded last."""
        self._logged: tuple[tuple[int, ...], str] = ((), "")
        """Fingerprint and error of the file whose error was logged last."""

    def reload_if_changed(self) -> None:
        """Load the token file again if it has changed, and log which tokens were added or
        revoked."""
        try:
            now = self._path.stat()
        except OSError:
            return  # Some tools remove a file before they write it again.
        # The time of the status change (ctime) also changes when the file becomes readable.
        seen = now.st_mtime_ns, now.st_ctime_ns, now.st_size, now.st_ino
        if seen == self._loaded:
            return
        try:
            known = _load(self._path)
        except ConfigError as error:
            # Loaded again at the next call, but logged only once.
            if self._logged != (seen, str(error)):
                self._logged = seen, str(error)
                logger.error("tokens not reloaded, the old ones stay in force: %s", error)
            return
        self._loaded, self._logged = seen, ((), "")
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
    """Load a token file. Raises `ConfigError`, which names the file and how to fix it.

    `asks_certificates` means that callers need a certificate. Without tokens, such a certificate
    grants only the scope `check`.
    """
    if path is None:
        return Tokens(open_scopes=frozenset([Scope.CHECK])) if asks_certificates else Tokens()
    return Tokens(_load(path), is_open=False)


def _load(path: Path) -> dict[str, TokenEntry]:
    """Load a token file. Raises `ConfigError`, also for a file without tokens, which may not be
    completely written."""
    known = load_token_file(path)
    if not known:
        raise ConfigError(
            f"{path}: must have at least one token, got none; `ringfence keys add-token` adds one"
        )
    return known
