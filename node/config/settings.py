"""Settings of a node: names, defaults and checks. `ringfence.settings` reads the sources.

Every setting has a default that suits one node on loopback. A node that joins a cluster needs the
address of one member.
"""

import os
import socket
from collections.abc import Mapping
from math import inf
from pathlib import Path

import msgspec

from hashring import Member, NodeId
from node.config.discovery import from_environment, parse_seed
from node.requests.sessions.connection_places import Limits
from ringfence.client.url import DEFAULT_PORT, parse_address
from ringfence.errors import ConfigError
from ringfence.limiter import Algorithm
from ringfence.settings.checks import (
    format_address,
    is_ip,
    is_loopback,
    is_wildcard,
    require_address,
    require_ranges,
)
from ringfence.settings.reader import SettingsReader
from ringfence.transport.interface import Address
from ringfence.wire import MAX_TEXT

__all__ = ["MAX_PROCESSES", "NodeSettings", "load_settings"]

MAX_PROCESSES = 256
"""Maximum of members that one host runs."""
_ADMIN_PORT = 7190
"""Default of the admin port. The ports of the gateway are 7180 and 7181."""
_MAX_MEMBER_BYTES = 500
"""Maximum size of name, host, data center and zone together: they travel in gossip datagrams."""
_RANGES: dict[str, tuple[float, float]] = {
    "forward_timeout": (0.001, 60),
    "drain_timeout": (0.001, 60),
    "reload_interval": (0, 3600),
    "processes": (1, MAX_PROCESSES),
    "max_connections": (16, inf),
    "max_connections_per_address": (1, inf),
    "max_connections_per_token": (1, inf),
    "max_keys": (1, inf),
    "max_bytes": (0, inf),
}


class NodeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of one node; times are in seconds."""

    name: str = ""
    """Name of the node, unique in the cluster. Its default is the name of the pod, or host name and
    port."""
    listen: str = f"127.0.0.1:{DEFAULT_PORT}"
    """`HOST:PORT` to bind (UDP), for peers and clients. `PORT` alone is on loopback."""
    advertise: str = ""
    """`HOST:PORT` at which peers and clients reach the node; `listen` when empty."""
    join: list[str] = []
    """Seeds: addresses of members to join, each `HOST:PORT`, `dns:NAME:PORT` or `srv:NAME`. One
    that answers is enough. Empty for the first node of a cluster."""
    cluster: str = "ringfence"
    """Name of the cluster. Nodes of other clusters are refused, even with the same key."""
    datacenter: str = "dc1"
    """Name of the data center. Its nodes share a ring."""
    zone: str = ""
    """Failure zone inside the data center. Owner and standby are in different zones if possible."""
    weight: float = 1.0
    """Share of the ring relative to the other members, 0.25 to 4."""
    rules: str = ""
    """Rule file, or directory of rule files."""
    keys: str = ""
    """Directory that `ringfence keys new` wrote; required beyond loopback."""
    http: str = ""
    """`HOST:PORT` of the admin port (TCP): metrics, health checks, dashboard; empty for none.
    `PORT` alone is on loopback; `HOST` alone has the port 7190."""
    default_algorithm: Algorithm = Algorithm.SLIDING_WINDOW
    """Algorithm of rules that name none."""
    merge_domains: bool = False
    """Whether several rule files may have the same domain."""
    max_keys: int = 1_000_000
    """Maximum number of counters. Beyond it, the counters whose loss matters least are evicted."""
    max_connections: int = 4096
    """Maximum of incoming connections. Three quarters are for clients, an eighth for connections
    before their hello, and the rest for members."""
    max_connections_per_address: int = 1024
    """Maximum of client connections from one IPv4 address or IPv6 /64 network."""
    max_connections_per_token: int = 2048
    """Maximum of client connections with the same token."""
    max_bytes: int = 0
    """Maximum bytes of own counters, and the same for replicas. 0 means 512 bytes for each of
    `max_keys`, and at least 64 MiB."""
    use_fast_path: bool = True
    """Whether QUIC packets of checks and answers take the fast path, which costs less processor
    time. Switch it off to find out whether it causes a problem."""
    forward_timeout: float = 0.4
    """Time-out of a forwarded check."""
    drain_timeout: float = 5.0
    """Maximum time of each of the two steps of leaving: transfer of the shards, and answers to
    checks in flight."""
    processes: int = 1
    """Number of members that this host runs, each in its own process; see `node.supervisor`."""
    reload_interval: float = 1.0
    """Interval of the checks for changed rule files; 0 to reload on SIGHUP only."""

    @property
    def listen_at(self) -> Address:
        """Return the address to which the node's UDP socket is bound."""
        return parse_address(self.listen)

    @property
    def advertise_at(self) -> Address:
        """Return the address at which peers and clients reach the node."""
        return parse_address(self.advertise or self.listen)

    @property
    def http_at(self) -> Address | None:
        """Return the address of the admin port; None without one."""
        return parse_address(self.http, _ADMIN_PORT) if self.http else None

    @property
    def is_beyond_loopback(self) -> bool:
        """Return whether other hosts can reach the node."""
        return not is_loopback(self.listen_at[0])

    @property
    def places(self) -> Limits:
        """Return the limits on the number of connections."""
        return Limits.of(
            self.max_connections, self.max_connections_per_address, self.max_connections_per_token
        )

    @property
    def member(self) -> Member:
        """Return this node as a member of the ring."""
        return Member(NodeId(self.name), self.datacenter, self.zone, self.weight)


_READER = SettingsReader(
    NodeSettings, "RINGFENCE_NODE_", paths=("rules", "keys"), example="examples/node.toml"
)


def load_settings(
    path: Path | None,
    environment: Mapping[str, str] = os.environ,
    flags: Mapping[str, object] | None = None,
) -> NodeSettings:
    """Load the settings from file, environment and flags. Flags override the environment, which
    overrides the file.

    Paths in the file are relative to it. Raises `ConfigError` that names the source and the
    setting.
    """

    def complete(settings: NodeSettings) -> NodeSettings:
        completed = _completed(settings, environment)
        _validate(completed)
        return completed

    return _READER.read(path, environment, flags or {}, complete)


def _completed(settings: NodeSettings, environment: Mapping[str, str]) -> NodeSettings:
    """Derive name and address of the node from other settings, or from the variables of a
    Kubernetes pod."""
    host, port = require_address("listen", settings.listen)
    found = from_environment(environment)
    name = settings.name or found.get("name") or f"{socket.gethostname()}-{port}"
    advertise = settings.advertise
    if not advertise and is_wildcard(host) and "advertise" in found:
        advertise = format_address((found["advertise"], port))
    return msgspec.structs.replace(settings, name=name, advertise=advertise)


def _validate(settings: NodeSettings) -> None:
    require_ranges(settings, _RANGES)
    _validate_addresses(settings)
    _validate_member(settings)
    for text in settings.join:
        _validate_seed(text, settings)


def _validate_addresses(settings: NodeSettings) -> None:
    if settings.advertise:
        if settings.advertise.strip().isdecimal():
            raise ConfigError(
                f"advertise must be HOST:PORT, got {settings.advertise!r}; name the host at which "
                "peers and clients reach this node"
            )
        require_address("advertise", settings.advertise)
    if settings.http:
        require_address("http", settings.http, _ADMIN_PORT, allow_port_0=True)
    for name, address in (("listen", settings.listen_at), ("http", settings.http_at)):
        if address is not None and not (is_loopback(address[0]) or settings.keys):
            raise ConfigError(
                f"keys must be set when {name} is beyond loopback, got {name} = "
                f"{format_address(address)} without keys; run `ringfence keys new keys` and give "
                'keys = "keys", or --keys keys'
            )
    if is_wildcard(settings.advertise_at[0]):
        which = "advertise" if settings.advertise else "listen"
        raise ConfigError(
            f"{which} must be an address that others can reach, got {settings.advertise_at[0]}; "
            "set advertise to the HOST:PORT at which peers and clients reach this node"
        )


def _validate_member(settings: NodeSettings) -> None:
    """Validate the node's name and other texts that it sends to peers."""
    try:
        member = settings.member
    except ValueError as error:
        raise ConfigError(str(error)) from error
    host = settings.advertise_at[0]
    texts = {
        "name": member.name,
        "advertise": host,
        "cluster": settings.cluster,
        "datacenter": member.datacenter,
        "zone": member.zone,
    }
    for name, text in texts.items():
        if len(text) > MAX_TEXT or not text.isprintable():
            raise ConfigError(
                f"{name} must have at most {MAX_TEXT} printable characters, got {text[:40]!r}; "
                "shorten it"
            )
    if not settings.cluster:
        raise ConfigError("cluster must not be empty; give the cluster a name")
    joined = "".join((member.name, host, member.datacenter, member.zone))
    if (size := len(joined.encode())) > _MAX_MEMBER_BYTES:
        raise ConfigError(
            f"name, address, datacenter and zone must have at most {_MAX_MEMBER_BYTES} bytes "
            f"together, got {size}; shorten them"
        )


def _validate_seed(text: str, settings: NodeSettings) -> None:
    seed = parse_seed(text)
    if seed.kind != "srv" and seed.port < 1:
        raise ConfigError(f"join must have a port from 1 to 65535, got {text!r}; write HOST:PORT")
    is_far = seed.kind == "address" and is_ip(seed.name) and not is_loopback(seed.name)
    if is_far and not settings.is_beyond_loopback:
        raise ConfigError(
            f"listen must be beyond loopback to join {text!r}, got {settings.listen}; set listen "
            "to an address of this host that the other members can reach"
        )
