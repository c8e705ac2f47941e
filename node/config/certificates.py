"""The certificate that a node presents, and how it verifies the certificates of its peers.

A key folder has one certificate per node (`nodes/NAME.pem`), or a certificate that all nodes share
(`node.pem`). It has both while a cluster changes from the shared certificate to one per node.
"""

import logging
from datetime import datetime
from pathlib import Path

from node.config.access import KeyDir
from node.config.private_files import readable
from ringfence.errors import ConfigError
from ringfence.transport.tls.certificates import (
    ClientTls,
    ServerTls,
    expires_at,
    is_signed_by,
    load_client_tls,
    load_server_tls,
    node_server_name,
    node_server_names,
)

__all__ = ["certificate_files", "expiry_of", "load_node_tls"]

logger = logging.getLogger("ringfence.node")


def certificate_files(keys: KeyDir, name: str) -> tuple[Path, Path]:
    """Return the certificate and private key of the node `name`: its own, else the shared ones.

    Raises `ConfigError` when there are neither, or when this user cannot enter the folder.
    """
    with readable(keys.path):
        if keys.certificate_of(name).exists():
            return keys.certificate_of(name), keys.key_of(name)
        if keys.certificate.exists() or not keys.nodes.is_dir():
            return keys.certificate, keys.key
    own = _within(keys, keys.certificate_of(name))
    raise ConfigError(
        f"keys: {keys.path} must hold {own}, the certificate of node {name!r}, or "
        f"{keys.certificate.name}, got neither; make it with "
        f"`ringfence keys add-node {keys.path} {name}` where ca.key is, and copy it here"
    )


def load_node_tls(keys: KeyDir, name: str, now: datetime) -> tuple[ClientTls, ServerTls]:
    """Load the TLS configuration of the node `name`: its authority and its certificate.

    A node with its own certificate also verifies the names of its peers. It does not do so while
    the key folder still has the shared certificate, because peers may present that one.

    Raises `ConfigError` for files that are missing or wrong, and for the certificate of another
    node.
    """
    certificate, key = certificate_files(keys, name)
    server = load_server_tls(certificate, key, now)
    named, own = node_server_names(server), node_server_name(name)
    has_own_name = own in named
    if not has_own_name and (named or certificate != keys.certificate):
        raise ConfigError(
            f"{certificate}: the certificate of node {name!r} must name {own}, "
            f"got {', '.join(sorted(named)) or 'no node name'}; copy the files of this node here, "
            f"or make them with `ringfence keys add-node {keys.path} {name}` where ca.key is"
        )
    is_changing = certificate != keys.certificate and keys.certificate.exists()
    if has_own_name and is_changing:
        logger.warning(
            "peers are not verified by node name while %s lies beside %s; remove node.pem and "
            "node.key when all nodes have certificates of their own",
            *(keys.certificate, _within(keys, certificate)),
        )
    client = load_client_tls(keys.ca, now, by_node_name=has_own_name and not is_changing)
    if not is_signed_by(server.certificate_pem, client.ca_pem):
        raise ConfigError(
            f"{certificate}: the certificate must be signed by the authority in {keys.ca}, which "
            "did not sign it, so no client could connect; copy both files from the same key folder"
        )
    return client, server


def expiry_of(client: ClientTls, server: ServerTls) -> dict[str, float]:
    """Return the expiry of a node's certificate and of its authority, in seconds since 1970."""
    found = {"node": expires_at(server.certificate_pem)}
    return found if client.ca_pem is None else found | {"ca": expires_at(client.ca_pem)}


def _within(keys: KeyDir, path: Path) -> Path:
    return path.relative_to(keys.path)
