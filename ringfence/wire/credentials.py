"""Credentials in a `Hello` message: proofs of nodes and tokens of clients, inside the TLS
connection.

Creates proofs and compares them in constant time. A node's proof is valid on one connection only,
so its receiver cannot reuse it. A client sends its token unchanged, and only after it has verified
the node's certificate.
"""

import hashlib
import hmac

__all__ = ["matches", "node_proof", "proves", "token_digest"]

_NODE_CONTEXT = b"ringfence wire 1: node\x00"
"""Label that separates this use of the cluster key from every other use."""


def node_proof(cluster_key: bytes, name: str, cluster: str = "", binding: bytes = b"") -> bytes:
    """Compute the credential of the node `name`: 32 bytes that prove knowledge of the cluster key.

    `binding` is the secret of the connection on which the node sends it.
    """
    where = hashlib.sha256(binding).digest()
    who = cluster.encode() + b"\x00" + name.encode()
    return hmac.digest(cluster_key, _NODE_CONTEXT + where + who, hashlib.sha256)


def proves(
    cluster_key: bytes, name: str, proof: bytes, cluster: str = "", binding: bytes = b""
) -> bool:
    """Whether `proof` is the valid credential for the given cluster key, node name and
    connection."""
    return hmac.compare_digest(node_proof(cluster_key, name, cluster, binding), proof)


def token_digest(secret: bytes) -> bytes:
    """Compute the 32-byte hash that a node stores instead of a client's token.

    A plain hash is enough because tokens are random and long; it would not be for passwords.
    """
    return hashlib.sha256(secret).digest()


def matches(secret: bytes, digest: bytes) -> bool:
    """Whether `digest` is the hash of the client's token."""
    return hmac.compare_digest(token_digest(secret), digest)
