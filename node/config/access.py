"""Who may speak to a node: peers by the cluster key, clients by named tokens with scopes.

Without keys (loopback only) everybody on the host is let in with every scope.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hmac import compare_digest, digest
from pathlib import Path

import msgspec

from node.config.validation_errors import in_plain_words
from ringfence.errors import ConfigError
from ringfence.transport.tls.certificates import node_label
from ringfence.wire import Hello, Role, node_proof, proves, token_digest

__all__ = ["Access", "KeyDir", "Scope", "load_access", "load_tokens", "proof_in"]


_RESET_CONTEXT = b"ringfence stateless reset\x00"
"""Keeps this use of the cluster key apart from every other one."""


class Scope(StrEnum):
    """What a token lets its bearer do."""

    CHECK = "check"
    """Check, peek, give back what this token was charged; read rules and members."""
    REFUND = "refund"
    """Give back units of any key, whichever token was charged."""
    RESET = "reset"
    """Forget counters."""
    OBSERVE = "observe"
    """Read counters of the node."""
    ADMIN = "admin"
    """Tell nodes to leave."""


class _TokenRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    digest: str
    scopes: list[Scope]
    domains: list[str] | None = None


class _TokenFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tokens: dict[str, _TokenRecord] = {}


@dataclass(frozen=True, slots=True)
class KeyDir:
    """Where the files of `ringfence keys new` lie."""

    path: Path

    @property
    def ca(self) -> Path:
        """The certificate authority's certificate, for nodes and clients."""
        return self.path / "ca.pem"

    @property
    def ca_key(self) -> Path:
        """The authority's private key, needed only to issue more certificates."""
        return self.path / "ca.key"

    @property
    def certificate(self) -> Path:
        """The certificate that nodes without a certificate of their own share."""
        return self.path / "node.pem"

    @property
    def key(self) -> Path:
        """The private key of the shared certificate."""
        return self.path / "node.key"

    @property
    def nodes(self) -> Path:
        """Folder of the certificates and private keys of single nodes."""
        return self.path / "nodes"

    def certificate_of(self, name: str) -> Path:
        """The certificate of the node `name` alone."""
        return self.nodes / f"{node_label(name)}.pem"

    def key_of(self, name: str) -> Path:
        """The private key of the node `name` alone."""
        return self.nodes / f"{node_label(name)}.key"

    @property
    def cluster_key(self) -> Path:
        """The secret by which nodes know each other, in hexadecimal."""
        return self.path / "cluster.key"

    @property
    def tokens(self) -> Path:
        """Digests and scopes of the clients' tokens."""
        return self.path / "tokens.toml"

    def token(self, name: str) -> Path:
        """A client's token in the clear, for that client alone."""
        return self.path / f"{name}.token"


@dataclass(frozen=True, slots=True)
class Access:
    """Decides whom a node serves; all comparisons take constant time."""

    cluster_keys: tuple[bytes, ...] = (b"",)
    """The first one proves and seals; all are taken, so that a key can be changed at work."""
    cluster: str = ""
    """Its name: nodes of other clusters prove nothing here, even with the same key."""
    tokens: Mapping[str, tuple[bytes, frozenset[Scope]]] = field(default_factory=dict)
    """Per token name, the digest of its secret and its scopes."""
    domains: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Domains whose rules a token may check, by token name; other tokens may check all."""
    is_open: bool = False
    """No keys at all: loopback only."""

    def scopes_of(self, hello: Hello, binding: bytes = b"") -> frozenset[Scope] | None:
        """Return the scopes of the sender of a hello; None when its credential is wrong.

        `binding` is the secret of the connection that the hello came on.
        """
        return self.scopes_now(hello.role, hello.name, proof_in(hello), binding)

    def scopes_now(
        self, role: Role, name: str, proof: bytes, binding: bytes
    ) -> frozenset[Scope] | None:
        """Return the scopes of a stored proof (see `proof_in`); None when it is not valid now."""
        if role is Role.NODE:
            keys = self.cluster_keys
            known = any([proves(key, name, proof, self.cluster, binding) for key in keys])
            return frozenset(Scope) if known else None
        if self.is_open:
            return frozenset(Scope)
        known_digest, scopes = self.tokens.get(name, (bytes(32), frozenset()))
        return scopes if compare_digest(proof, known_digest) and scopes else None

    def reset_secret(self, name: str) -> bytes:
        """Key of the stateless resets of the node `name`; empty without keys.

        Nodes that shared one could be made to end each other's connections (RFC 9000, 21.11).
        """
        if self.is_open:
            return b""
        return digest(self.cluster_keys[0], _RESET_CONTEXT + name.encode(), "sha256")

    def proof_of(self, name: str, binding: bytes = b"") -> bytes:
        """Compute the proof that the node `name` sends on the connection with this `binding`."""
        return node_proof(self.cluster_keys[0], name, self.cluster, binding)


def proof_in(hello: Hello) -> bytes:
    """Return the part of a credential that may be stored: a node's proof, or a token's digest."""
    return hello.credential if hello.role is Role.NODE else token_digest(hello.credential)


def load_access(keys: KeyDir | None, cluster: str = "") -> Access:
    """Read cluster key and tokens; raises `ConfigError` naming the file and the mend."""
    if keys is None:
        return Access(cluster=cluster, is_open=True)
    if not keys.path.is_dir():
        raise ConfigError(
            f"keys: {keys.path}: no such directory; run `ringfence keys new {keys.path}`"
        )
    try:
        lines = keys.cluster_key.read_text("ascii").split()
        cluster_keys = tuple([bytes.fromhex(line) for line in lines])
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{keys.cluster_key}: not a cluster key ({error}); `ringfence keys new` writes one"
        ) from error
    if not 1 <= len(cluster_keys) <= 2:
        raise ConfigError(
            f"{keys.cluster_key}: holds {len(cluster_keys)} keys; one is right, or two while "
            "`ringfence keys rotate` changes them"
        )
    if min(map(len, cluster_keys)) < 16:
        raise ConfigError(f"{keys.cluster_key}: too short; `ringfence keys new` writes 32 bytes")
    tokens, domains = load_tokens(keys)
    return Access(cluster_keys, cluster, tokens, domains)


def load_tokens(
    keys: KeyDir,
) -> tuple[dict[str, tuple[bytes, frozenset[Scope]]], dict[str, frozenset[str]]]:
    """Read the tokens, as `Access` holds them; raises `ConfigError`."""
    try:
        told = msgspec.convert(tomllib.loads(keys.tokens.read_text("utf-8")), _TokenFile)
        tokens = {
            name: (_digest_of(record), frozenset(record.scopes))
            for name, record in told.tokens.items()
        }
        domains = {
            name: frozenset(record.domains)
            for name, record in told.tokens.items()
            if record.domains is not None
        }
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"{keys.tokens}: {in_plain_words(error, known=', '.join(Scope))}; "
            "`ringfence keys new` writes this file"
        ) from error
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{keys.tokens}: {error}; `ringfence keys new` writes this file"
        ) from error
    return tokens, domains


def _digest_of(record: _TokenRecord) -> bytes:
    token = bytes.fromhex(record.digest)
    if len(token) != 32:
        raise ValueError(f"a digest has 32 bytes, not {len(token)}")
    return token
