"""A node's settings: a TOML file, the environment over it, flags over both.

Every node of a cluster can share one file; what tells them apart is the name. Unknown names are
refused, since a misspelt setting that is ignored is a setting that is not there.
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
from node.complaints import in_plain_words
from ringfence.client.url import parse_address
from ringfence.errors import ConfigError
from ringfence.limiter import Algorithm
from ringfence.transport.interface import Address
from ringfence.wire import MAX_TEXT

__all__ = ["MemberSettings", "NodeSettings", "load_settings"]

_PREFIX = "RINGFENCE_NODE_"


class MemberSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One member of the cluster, as every member lists it."""

    name: str
    address: str
    """`HOST:PORT` under which peers and clients reach it (UDP)."""
    datacenter: str = "dc1"
    zone: str = ""
    weight: float = 1.0

    @property
    def at(self) -> Address:
        """The address, parsed."""
        try:
            return parse_address(self.address)
        except ConfigError as error:
            raise ConfigError(f"member {self.name!r}: {error}") from error

    def as_member(self) -> Member:
        """The member as the ring sees it."""
        try:
            return Member(NodeId(self.name), self.datacenter, self.zone, self.weight)
        except ValueError as error:
            raise ConfigError(f"member {self.name!r}: {error}") from error


class NodeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything a node can be told; times in seconds."""

    members: list[MemberSettings]
    """All members of the cluster, this one included; the same list on every node."""
    name: str = ""
    """Which of the members this node is; the host's name when one is called so."""
    listen: str = ""
    """`HOST:PORT` to bind; the own member's address when empty."""
    rules: str = ""
    """Rule file, or directory of rule files."""
    keys: str = ""
    """Directory that `ringfence keys new` wrote; needed beyond loopback."""
    default_algorithm: Algorithm = Algorithm.SLIDING_WINDOW
    """For rules that name none."""
    merge_domains: bool = False
    """Let several rule files share a domain."""
    max_keys: int = 1_000_000
    """Most counters kept; then those that lose the least are dropped."""
    forward_timeout: float = 0.25
    """How long a peer may take to answer a forwarded check."""
    drain_timeout: float = 5.0
    """How long a stopping node goes on answering what is in flight."""
    reload_interval: float = 1.0
    """How often the rules are looked at for changes; 0 to reload on SIGHUP only."""

    @property
    def me(self) -> MemberSettings:
        """The own entry among the members."""
        return next(member for member in self.members if member.name == self.name)

    @property
    def listen_at(self) -> Address:
        """Where to bind."""
        return parse_address(self.listen) if self.listen else self.me.at

    @property
    def is_beyond_loopback(self) -> bool:
        """Whether others than this host can reach the node."""
        host = self.listen_at[0]
        if host == "localhost":
            return False
        try:
            return not ip_address(host).is_loopback
        except ValueError:
            return True


def load_settings(
    path: Path | None,
    environment: Mapping[str, str] = os.environ,
    flags: Mapping[str, object] | None = None,
) -> NodeSettings:
    """Read the settings; raises `ConfigError` that names the file, the setting and the mend.

    Paths in the file are relative to it.
    """
    told: dict[str, Any] = {"members": []}
    source = "flags and environment"
    if path is not None:
        source = str(path)
        told |= _read(path)
        for name in ("rules", "keys"):
            if isinstance(told.get(name), str) and told[name]:
                told[name] = str(path.parent / told[name])
    told |= _from_environment(environment)
    told |= {name: value for name, value in (flags or {}).items() if value not in (None, "")}
    if path is None and not told["members"]:
        raise ConfigError(
            "no settings: pass --config FILE, or set RINGFENCE_NODE_MEMBERS=NAME=HOST:PORT"
        )
    if not told.get("name"):
        told["name"] = socket.gethostname()
    try:
        settings = msgspec.convert(told, NodeSettings)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {_mended(error)}") from error
    try:
        _validate(settings)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error
    return settings


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path}: no such file; write one as in examples/three-nodes.toml, or pass another "
            "with --config"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    fields = {field.name: field for field in msgspec.structs.fields(NodeSettings)}
    for variable in sorted(environment):
        if not variable.startswith(_PREFIX):
            continue
        name = variable.removeprefix(_PREFIX).lower()
        if name not in fields:
            known = [_PREFIX + field.upper() for field in fields]
            raise ConfigError(
                f"environment: {variable} sets nothing{_did_you_mean(variable, known)}"
            )
        text = environment[variable]
        if name == "members":
            told[name] = [_member_of(entry, variable) for entry in text.split(",") if entry]
            continue
        try:
            told[name] = msgspec.convert(text, fields[name].type, strict=False)
        except msgspec.ValidationError as error:
            raise ConfigError(f"environment: {variable}={text!r}: {_mended(error)}") from error
    return told


def _member_of(entry: str, variable: str) -> dict[str, str]:
    name, equals, address = entry.strip().partition("=")
    if not equals:
        raise ConfigError(
            f"environment: {variable}: {entry!r} is not NAME=HOST:PORT; "
            "write a=10.0.0.1:7101,b=10.0.0.2:7101"
        )
    return {"name": name, "address": address}


def _validate(settings: NodeSettings) -> None:
    _validate_members(settings.members)
    names = [member.name for member in settings.members]
    if settings.name not in names:
        raise ConfigError(
            f"this node is called {settings.name!r}, which is not among the members "
            f"{', '.join(names)}; pass --name, or set name"
        )
    for name in ("forward_timeout", "drain_timeout"):
        if not 0 < getattr(settings, name) <= 60:
            raise ConfigError(f"{name} must be above 0 and at most 60 seconds")
    if not 0 <= settings.reload_interval <= 3600:
        raise ConfigError("reload_interval must be from 0 to 3600 seconds")
    if settings.max_keys < 1:
        raise ConfigError("max_keys must be at least 1")
    try:
        host, port = settings.listen_at
    except ConfigError as error:
        raise ConfigError(f"listen: {error}") from error
    if port < 1:
        raise ConfigError(f"listen: no port in {settings.listen!r}; write HOST:PORT")
    if settings.is_beyond_loopback and not settings.keys:
        raise ConfigError(
            f"node {settings.name!r} would listen on {host}:{port}, beyond loopback, "
            'without keys; run `ringfence keys new keys` and set keys = "keys"'
        )


def _validate_members(members: list[MemberSettings]) -> None:
    if not members:
        raise ConfigError("no members; list every node under [[members]]")
    names: set[str] = set()
    by_address: dict[Address, str] = {}
    for member in members:
        _validate_member(member)
        if member.name in names:
            raise ConfigError(f"two members are called {member.name!r}; names must differ")
        names.add(member.name)
        other = by_address.setdefault(member.at, member.name)
        if other != member.name:
            raise ConfigError(
                f"members {other!r} and {member.name!r} have the same address {member.address!r}; "
                "give each a port of its own"
            )


def _validate_member(member: MemberSettings) -> None:
    member.as_member()
    for text in (member.name, member.at[0], member.datacenter, member.zone):
        if len(text) > MAX_TEXT or not text.isprintable():
            raise ConfigError(
                f"member {member.name[:40]!r}: {text[:40]!r} is longer than {MAX_TEXT} characters "
                "or cannot be printed; shorten it"
            )
    if member.at[1] < 1:
        raise ConfigError(f"member {member.name!r} has no port in {member.address!r}")


def _mended(error: msgspec.ValidationError) -> str:
    """Say what is wrong, and of an unknown name what was probably meant."""
    text = str(error)
    quoted = text.split("`")[1::2]
    if "unknown field" in text:
        place = quoted[1] if len(quoted) > 1 else ""
        kind = MemberSettings if place.startswith("$.members") else NodeSettings
        known = [field.name for field in msgspec.structs.fields(kind)]
        where = f" in {place.removeprefix('$.')}" if place else ""
        return f"there is no setting {quoted[0]!r}{where}{_did_you_mean(quoted[0], known)}"
    return in_plain_words(error, known=", ".join(Algorithm))


def _did_you_mean(wrong: str, known: list[str]) -> str:
    close = difflib.get_close_matches(wrong, known, 1)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(sorted(known))}"
