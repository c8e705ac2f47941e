"""How the two sides of a connection prove who they are, inside the tunnel that TLS has made.

Decides what a proof is and compares it in constant time. Which names exist, what they may do, and
where secrets are kept is decided elsewhere. A node's proof holds on one connection only, so its
receiver cannot use it elsewhere. A token is shown as it is, so it is only ever sent after the other
side's certificate has been verified.
"""

import hashlib
import hmac

__all__ = ["matches", "node_proof", "proves", "token_digest"]

_NODE_CONTEXT = b"ringfence wire 1: node\x00"
"""Keeps this use of the cluster key apart from every other one."""


def node_proof(cluster_key: bytes, name: str, cluster: str = "", binding: bytes = b"") -> bytes:
    """Make the credential of the node `name`: 32 bytes that only a holder of the key can make.

    `binding` is the secret of the connection on which it is shown.
    """
    where = hashlib.sha256(binding).digest()
    who = cluster.encode() + b"\x00" + name.encode()
    return hmac.digest(cluster_key, _NODE_CONTEXT + where + who, hashlib.sha256)


def proves(
    cluster_key: bytes, name: str, proof: bytes, cluster: str = "", binding: bytes = b""
) -> bool:
    """Whether `proof` was made from this cluster key for this name and connection."""
    return hmac.compare_digest(node_proof(cluster_key, name, cluster, binding), proof)


def token_digest(secret: bytes) -> bytes:
    """Make the 32 bytes a node keeps of a client's token, from which nobody finds the secret.

    A plain hash is enough since secrets are random and long; it would not be for passwords.
    """
    return hashlib.sha256(secret).digest()


def matches(secret: bytes, digest: bytes) -> bool:
    """Whether `digest` was made from this secret."""
    return hmac.compare_digest(token_digest(secret), digest)
