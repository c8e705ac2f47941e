"""A node's settings: a TOML file, the environment over it, flags over both; none is needed.

What is not told has a default that suits one node on loopback; a node that joins others needs to
know one of them. Unknown names are refused, since a misspelt setting that is ignored is a setting
that is not there.
"""

import difflib
import os
import socket
import tomllib
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import msgspec

from hashring import Member, NodeId
from node.config.discovery import from_environment, parse_seed
from node.config.validation_errors import in_plain_words
from node.requests.sessions.connection_places import Limits
from ringfence.client.url import DEFAULT_PORT, parse_address
from ringfence.errors import ConfigError
from ringfence.limiter import Algorithm
from ringfence.transport.interface import Address
from ringfence.wire import MAX_TEXT

__all__ = ["MOST_PROCESSES", "NodeSettings", "load_settings"]

MOST_PROCESSES = 256
"""Members that one host runs."""
_PREFIX = "RINGFENCE_NODE_"
_LOOPBACK = f"127.0.0.1:{DEFAULT_PORT}"
_HTTP_PORT = 7190
"""Of the operator's port, where only its host is given; the gateway's ports are 7180 and 7181."""
_MOST_BYTES = 500
"""Of name, host, data center and zone together: what is said of a member travels in datagrams."""


class NodeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything a node can be told; times in seconds."""

    name: str = ""
    """Unique in the cluster. `load_settings` takes host and port, or the pod's name, when empty."""
    listen: str = _LOOPBACK
    """`HOST:PORT` to bind (UDP), for peers and clients alike. `PORT` alone is on loopback."""
    advertise: str = ""
    """`HOST:PORT` under which others reach the node; `listen` when empty."""
    join: list[str] = []
    """Where to look for other members, each `HOST:PORT`, `dns:NAME:PORT` or `srv:NAME`; one that
    answers is enough. Empty for the first node of a cluster."""
    cluster: str = "ringfence"
    """Nodes of clusters that are called otherwise are strangers, whatever keys they have."""
    datacenter: str = "dc1"
    """Nodes of one data center share a ring."""
    zone: str = ""
    """What fails together inside the data center."""
    weight: float = 1.0
    """Share of the ring relative to the other members, 0.25 to 4."""
    rules: str = ""
    """Rule file, or directory of rule files."""
    keys: str = ""
    """Directory that `ringfence keys new` wrote; needed beyond loopback."""
    http: str = ""
    """`HOST:PORT` of the operator's port (TCP): metrics, health, the live page; empty for none.
    `PORT` alone is on loopback; `HOST` alone has the port 7190."""
    default_algorithm: Algorithm = Algorithm.SLIDING_WINDOW
    """For rules that name none."""
    merge_domains: bool = False
    """Let several rule files share a domain."""
    max_keys: int = 1_000_000
    """Most counters kept; then those that lose the least are dropped."""
    max_connections: int = 4096
    """Most connections that come in. Three quarters of them are for clients and an eighth for
    connections without a hello so far; the rest is kept for members."""
    max_connections_per_address: int = 1024
    """Most connections of clients from one IPv4 address or IPv6 /64 network."""
    max_connections_per_token: int = 2048
    """Most connections of clients with the same token."""
    max_bytes: int = 0
    """Most bytes of counters, and as many of copies; 0 for 512 a key, at least 64 MiB."""
    forward_timeout: float = 0.4
    """How long a peer may take to answer a forwarded check."""
    drain_timeout: float = 5.0
    """How long a leaving node hands over, and then goes on answering what is in flight, at most."""
    processes: int = 1
    """How many members this host runs, each in a process of its own; see `node.supervisor`."""
    reload_interval: float = 1.0
    """How often the rules are looked at for changes; 0 to reload on SIGHUP only."""

    @property
    def listen_at(self) -> Address:
        """Where to bind."""
        return parse_address(self.listen)

    @property
    def advertise_at(self) -> Address:
        """Where others reach the node."""
        return parse_address(self.advertise or self.listen)

    @property
    def http_at(self) -> Address | None:
        """Where operators look, if anywhere."""
        return parse_address(self.http, _HTTP_PORT) if self.http else None

    @property
    def is_beyond_loopback(self) -> bool:
        """Whether others than this host can reach the node."""
        return not _is_loopback(self.listen_at[0])

    @property
    def places(self) -> Limits:
        """Who may hold how many connections."""
        return Limits.of(
            self.max_connections, self.max_connections_per_address, self.max_connections_per_token
        )

    @property
    def member(self) -> Member:
        """The node as the ring sees it."""
        return Member(NodeId(self.name), self.datacenter, self.zone, self.weight)


def load_settings(
    path: Path | None,
    environment: Mapping[str, str] = os.environ,
    flags: Mapping[str, object] | None = None,
) -> NodeSettings:
    """Read the settings; raises `ConfigError` that names the source, the setting and the mend.

    Paths in the file are relative to it.
    """
    told: dict[str, Any] = {}
    source = "settings from flags and environment"
    if path is not None:
        source = str(path)
        told |= _read(path)
        for name in ("rules", "keys"):
            if isinstance(told.get(name), str) and told[name]:
                told[name] = str(path.parent / told[name])
    told |= _from_environment(environment)
    told |= {name: value for name, value in (flags or {}).items() if value not in (None, "", [])}
    if "members" in told:
        raise ConfigError(
            f"{source}: members is no longer a setting, for nodes find each other; write "
            f"{_instead_of_members(told)} in its place"
        )
    try:
        settings = msgspec.convert(told, NodeSettings)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {_mended(error)}") from error
    try:
        settings = _completed(settings, environment)
        _validate(settings)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error
    return settings


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path}: no such file; write one as in examples/node.toml, or pass another "
            "with --config"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error


def _instead_of_members(told: Mapping[str, Any]) -> str:
    """What says the same as a list of members did, as far as it can be read."""
    listed = told["members"] if isinstance(told["members"], list) else []
    rows = [row for row in listed if isinstance(row, dict) and isinstance(row.get("address"), str)]
    mine = [row["address"] for row in rows if row.get("name") == told.get("name")]
    others = [row["address"] for row in rows if row["address"] not in mine]
    listen = f'listen = "{mine[0]}" and ' if mine and "listen" not in told else ""
    return f'{listen}join = ["{others[0] if others else "HOST:PORT"}"]'


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    fields = {field.name: field for field in msgspec.structs.fields(NodeSettings)}
    for variable in sorted(environment):
        if not variable.startswith(_PREFIX):
            continue
        name = variable.removeprefix(_PREFIX).lower()
        if name == "members":
            raise ConfigError(
                f"environment: {variable} is no longer a setting, for nodes find each other; set "
                f"{_PREFIX}JOIN=HOST:PORT in its place"
            )
        if name not in fields:
            known = [_PREFIX + field.upper() for field in fields]
            raise ConfigError(
                f"environment: {variable} sets nothing{_did_you_mean(variable, known)}"
            )
        text = environment[variable]
        if name == "join":
            told[name] = [seed.strip() for seed in text.split(",") if seed.strip()]
            continue
        try:
            told[name] = msgspec.convert(text, fields[name].type, strict=False)
        except msgspec.ValidationError as error:
            raise ConfigError(f"environment: {variable}={text!r}: {_mended(error)}") from error
    return told


def _completed(settings: NodeSettings, environment: Mapping[str, str]) -> NodeSettings:
    """Fill in what follows from the rest, or from what Kubernetes tells a pod."""
    host, port = _address_of("listen", settings.listen)
    found = from_environment(environment)
    name = settings.name or found.get("name") or f"{socket.gethostname()}-{port}"
    advertise = settings.advertise
    if not advertise and _is_wildcard(host) and "advertise" in found:
        advertise = _host_and_port(found["advertise"], port)
    return msgspec.structs.replace(settings, name=name, advertise=advertise)


def _validate(settings: NodeSettings) -> None:  # noqa: PLR0912 - one branch per setting
    for name in ("forward_timeout", "drain_timeout"):
        if not 0 < getattr(settings, name) <= 60:
            raise ConfigError(f"{name} must be above 0 and at most 60 seconds")
    if not 0 <= settings.reload_interval <= 3600:
        raise ConfigError("reload_interval must be from 0 to 3600 seconds")
    if not 1 <= settings.processes <= MOST_PROCESSES:
        raise ConfigError(f"processes must be from 1 to {MOST_PROCESSES}")
    if settings.max_connections < 16:
        raise ConfigError(
            f"max_connections must be at least 16, got {settings.max_connections}; raise it"
        )
    for name in ("max_connections_per_address", "max_connections_per_token"):
        if getattr(settings, name) < 1:
            raise ConfigError(f"{name} must be at least 1, got {getattr(settings, name)}; raise it")
    if settings.max_keys < 1:
        raise ConfigError("max_keys must be at least 1")
    if settings.max_bytes < 0:
        raise ConfigError(
            f"max_bytes must be 0 or more, got {settings.max_bytes}; leave it out for 512 a key"
        )
    if settings.advertise:
        if settings.advertise.strip().isdecimal():
            raise ConfigError(
                f"advertise must be HOST:PORT, got {settings.advertise!r}; name the host under "
                "which the others reach this node"
            )
        _address_of("advertise", settings.advertise)
    _validate_texts(settings)
    _validate_http(settings)
    host, port = settings.listen_at
    if settings.is_beyond_loopback and not settings.keys:
        raise ConfigError(
            f"keys must be set when listen is beyond loopback, got listen = "
            f"{_host_and_port(host, port)} without keys; run `ringfence keys new keys` and give "
            'keys = "keys", or --keys keys'
        )
    if _is_wildcard(settings.advertise_at[0]):
        which = "advertise" if settings.advertise else "listen"
        raise ConfigError(
            f"{which}: nobody can reach a node at {settings.advertise_at[0]}; set advertise to "
            "the HOST:PORT under which the others reach this node"
        )
    for text in settings.join:
        _validate_seed(text, settings)


def _validate_http(settings: NodeSettings) -> None:
    """Check who could look at the operator's port."""
    if not settings.http:
        return
    try:
        host, port = parse_address(settings.http, _HTTP_PORT)
    except ConfigError as error:
        raise ConfigError(f"http: {error}") from error
    if not (_is_loopback(host) or settings.keys):
        raise ConfigError(
            f"keys must be set when http is beyond loopback, got http = "
            f"{_host_and_port(host, port)} without keys; run `ringfence keys new keys` and give "
            'keys = "keys", or --keys keys'
        )


def _validate_texts(settings: NodeSettings) -> None:
    """Check what others are told of this node."""
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
                f"{name}: {text[:40]!r} is longer than {MAX_TEXT} characters or cannot be printed; "
                "shorten it"
            )
    if not settings.cluster:
        raise ConfigError("cluster is empty; give the cluster a name")
    told = "".join((member.name, host, member.datacenter, member.zone))
    if (size := len(told.encode())) > _MOST_BYTES:
        raise ConfigError(
            f"name, address, datacenter and zone have {size} bytes together; shorten them to "
            f"{_MOST_BYTES}"
        )


def _validate_seed(text: str, settings: NodeSettings) -> None:
    seed = parse_seed(text)
    if seed.kind != "srv" and seed.port < 1:
        raise ConfigError(f"join {text!r}: nobody listens on port 0")
    is_far = seed.kind == "address" and _is_ip(seed.name) and not _is_loopback(seed.name)
    if is_far and not settings.is_beyond_loopback:
        raise ConfigError(
            f"join {text!r} is beyond loopback, and this node would listen on {settings.listen} "
            "only, where nobody there can reach it; set listen to an address of this host"
        )


def _address_of(name: str, text: str) -> Address:
    try:
        host, port = parse_address(text)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error
    if port < 1:
        raise ConfigError(f"{name}: no port in {text!r}; write HOST:PORT")
    return host, port


def _host_and_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_ip(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_ip(host) and ip_address(host).is_loopback)


def _is_wildcard(host: str) -> bool:
    return _is_ip(host) and ip_address(host).is_unspecified


def _mended(error: msgspec.ValidationError) -> str:
    """Say what is wrong, and of an unknown name what was probably meant."""
    text = str(error)
    if "unknown field" in text:
        name = text.split("`")[1]
        known = [field.name for field in msgspec.structs.fields(NodeSettings)]
        return f"there is no setting {name!r}{_did_you_mean(name, known)}"
    return in_plain_words(error, known=", ".join(Algorithm))


def _did_you_mean(wrong: str, known: list[str]) -> str:
    close = difflib.get_close_matches(wrong, known, 1)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(sorted(known))}"
