"""Authentication of a node's peers and clients: cluster key, and named tokens with scopes.

Without keys (loopback only) every process on the host has every scope.
"""

from collections.abc import Mapping
from hmac import compare_digest, digest
from pathlib import Path

from msgspec import Struct, field

from node.config.private_files import readable
from ringfence.errors import ConfigError
from ringfence.settings.token_file import Scope, TokenEntry, load_token_file
from ringfence.transport.tls.certificates import node_label
from ringfence.wire import Hello, Role, node_proof, proves, token_digest

__all__ = ["Access", "KeyDir", "load_access", "proof_in", "reload_access"]

_RESET_CONTEXT = b"ringfence stateless reset\x00"
"""Separates this use of the cluster key from every other use."""
_KEY_SIZE = 32
"""Bytes of a cluster key, as `ringfence keys new` and `ringfence keys rotate` write it."""
_NO_TOKEN = TokenEntry(bytes(32), frozenset())


class KeyDir(Struct, frozen=True):
    """Paths of the files that `ringfence keys new` writes."""

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
        """The certificate that is shared by all nodes without a certificate of their own."""
        return self.path / "node.pem"

    @property
    def key(self) -> Path:
        """The private key of the certificate that nodes share."""
        return self.path / "node.key"

    @property
    def nodes(self) -> Path:
        """Folder of the certificates and private keys of single nodes."""
        return self.path / "nodes"

    def certificate_of(self, name: str) -> Path:
        """The certificate of the node `name`."""
        return self.nodes / f"{node_label(name)}.pem"

    def key_of(self, name: str) -> Path:
        """The private key of the node `name`."""
        return self.nodes / f"{node_label(name)}.key"

    @property
    def cluster_key(self) -> Path:
        """The secret that nodes share, in hexadecimal."""
        return self.path / "cluster.key"

    @property
    def tokens(self) -> Path:
        """Digests and scopes of the clients' tokens."""
        return self.path / "tokens.toml"

    def token(self, name: str) -> Path:
        """File with the secret of the client token `name`, to be copied to that client only."""
        return self.path / f"{name}.token"


class Access(Struct, frozen=True):
    """Credentials that a node accepts. All comparisons take constant time."""

    cluster_keys: tuple[bytes, ...] = (b"",)
    """The node proves itself and seals with the first key. It accepts all of them, so that a key
    can be changed while the cluster runs."""
    cluster: str = ""
    """Name of the cluster. Proofs of other clusters fail, even with the same key."""
    tokens: Mapping[str, TokenEntry] = field(default_factory=dict)
    """Tokens of clients, by name."""
    is_open: bool = False
    """Whether there are no keys, which is allowed on loopback only."""

    def scopes_of(self, hello: Hello, binding: bytes = b"") -> frozenset[Scope] | None:
        """Return the scopes that the credential of a `Hello` message grants; None when the
        credential is wrong.

        A `Hello` is the first message of a connection; `binding` is the secret of that connection.
        """
        return self.scopes_now(hello.role, hello.name, proof_in(hello), binding)

    def scopes_now(
        self, role: Role, name: str, proof: bytes, binding: bytes
    ) -> frozenset[Scope] | None:
        """Return the scopes that a stored credential grants now, as `proof_in` returned it; None
        when it is not valid now."""
        if role is Role.NODE:
            keys = self.cluster_keys
            known = any([proves(key, name, proof, self.cluster, binding) for key in keys])
            return frozenset(Scope) if known else None
        if self.is_open:
            return frozenset(Scope)
        token = self.tokens.get(name, _NO_TOKEN)
        return token.scopes if compare_digest(proof, token.digest) and token.scopes else None

    def reset_secret(self, name: str) -> bytes:
        """Return the key of the stateless resets of the node `name`; empty without keys.

        Each node has its own key. With a shared key, a peer could end connections of another node
        (RFC 9000, 21.11).
        """
        if self.is_open:
            return b""
        return digest(self.cluster_keys[0], _RESET_CONTEXT + name.encode(), "sha256")

    def proof_of(self, name: str, binding: bytes = b"") -> bytes:
        """Compute the proof that this node knows the cluster key, for its name and one connection
        (`binding`)."""
        return node_proof(self.cluster_keys[0], name, self.cluster, binding)


def proof_in(hello: Hello) -> bytes:
    """Return the part of a `Hello` credential that may be stored: a node's proof, or the digest of
    a token."""
    return hello.credential if hello.role is Role.NODE else token_digest(hello.credential)


def load_access(keys: KeyDir | None, cluster: str = "") -> Access:
    """Read cluster key and tokens. Raises `ConfigError`, which names the file and its repair."""
    if keys is None:
        return Access(cluster=cluster, is_open=True)
    with readable(keys.path):
        is_directory = keys.path.is_dir()
    if not is_directory:
        raise ConfigError(
            f"keys: {keys.path}: no such directory; run `ringfence keys new {keys.path}`"
        )
    try:
        lines = keys.cluster_key.read_text("ascii").split()
        cluster_keys = tuple([bytes.fromhex(line) for line in lines])
    except OSError as error:
        raise ConfigError(
            f"{keys.cluster_key}: cannot be read ({error.strerror}); copy it from another node, "
            "readable for this user; for a new cluster, `ringfence keys new` writes one"
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"{keys.cluster_key}: not a cluster key ({error}); copy the file of another node; for "
            "a new cluster, `ringfence keys new` writes one"
        ) from error
    if not 1 <= len(cluster_keys) <= 2:
        raise ConfigError(
            f"{keys.cluster_key}: must have one key, or two while `ringfence keys rotate` changes "
            f"them, got {len(cluster_keys)}; copy the file of another node"
        )
    wrong = [len(key) for key in cluster_keys if len(key) != _KEY_SIZE]
    if wrong:
        raise ConfigError(
            f"{keys.cluster_key}: each key must have {_KEY_SIZE} bytes, got {wrong[0]}; copy the "
            "complete file of another node; for a new cluster, `ringfence keys new` writes one"
        )
    return Access(cluster_keys, cluster, load_token_file(keys.tokens))


def reload_access(keys: KeyDir, earlier: Access) -> Access:
    """Read cluster key and tokens again. Raises `ConfigError`, also if all tokens of `earlier` are
    gone, because a file that is not completely written has none."""
    access = load_access(keys, earlier.cluster)
    if earlier.tokens and not access.tokens:
        raise ConfigError(
            f"{keys.tokens}: must have at least one token at a reload, got none; copy the complete "
            "file, or add a token with `ringfence keys add-token`; to run without tokens, restart "
            "the node"
        )
    return access
