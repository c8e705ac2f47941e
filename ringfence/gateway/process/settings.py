"""The gateway's settings: a TOML file, the environment over it, flags over both; none is needed.

What is not told suits a sidecar on loopback, where no token is asked for.
"""

import os
import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import EnumMeta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import msgspec

from ringfence.client.url import ENVIRONMENT, parse_address, parse_url
from ringfence.errors import ConfigError
from ringfence.gateway.process.tls_files import check_tls_files
from ringfence.http.addresses import ClientAddress
from ringfence.http.headers import HeaderStyle
from ringfence.http.keys import Keys
from ringfence.limiter import Algorithm
from ringfence.rules.periods import suggest
from ringfence.transport.interface import Address
from ringfence.transport.listeners import Listener, require_distinct

__all__ = ["HTTP_PORT", "GatewaySettings", "load_gateway_settings"]

HTTP_PORT = 7180
_GRPC_PORT = 7181
_PREFIX = "RINGFENCE_GATEWAY_"
_SOURCES = ("ip", "path", "method", "host")
"""What a proxy tells of a request, beside its headers."""
_NOT_IN_ENUM = "Invalid enum value "
_PATHS = ("tokens", "tls_cert", "tls_key", "tls_client_ca")


class GatewaySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything a gateway can be told; times in seconds."""

    cluster: str = ""
    """The cluster's address, `ringfence://...`; `RINGFENCE_URL` when empty."""
    listen: str = f"127.0.0.1:{HTTP_PORT}"
    """`HOST:PORT` for HTTP/1.1 and HTTP/2. `PORT` alone is on loopback."""
    grpc: str = f"127.0.0.1:{_GRPC_PORT}"
    """`HOST:PORT` for Envoy's rate limit service; empty for none."""
    workers: int = 1
    """Processes that share both ports."""
    tokens: str = ""
    """File of tokens, as nodes have it; needed beyond loopback, unless `tls_client_ca` is set."""
    tls_cert: str = ""
    """Certificate chain, for both ports; none for plain text."""
    tls_key: str = ""
    """Its private key."""
    tls_client_ca: str = ""
    """Ask callers for a certificate of this authority, too."""
    domain: str = "api"
    """The domain of `/v1/auth` and `/shouldAllowRequest`, which name none."""
    auth: list[str] = msgspec.field(default_factory=lambda: ["client=ip"])
    """The descriptors of `/v1/auth`: what to read of a request, by the names of `Keys`."""
    trusted_proxies: list[str] = msgspec.field(default_factory=lambda: ["127.0.0.0/8", "::1/128"])
    """Addresses and networks of proxies whose word is taken for the client's address."""
    address_header: str = "x-forwarded-for"
    """The one header that they write it into: also `forwarded` or `x-real-ip`."""
    ipv6_prefix: int = 64
    """What of an IPv6 address is one client."""
    uri_header: str = "x-forwarded-uri"
    """Where the proxy says which path was asked for. One header only: another that a client may
    send must not speak for it."""
    method_header: str = "x-forwarded-method"
    """Where it says by which method."""
    exempt_methods: list[str] = msgspec.field(default_factory=lambda: ["HEAD", "OPTIONS"])
    """Requests of these methods pass `/v1/auth` uncounted."""
    exempt_paths: list[str] = []
    """Requests of these paths, and of all below them, pass `/v1/auth` uncounted."""
    strict: bool = False
    """Do not serve with a `domain` or `auth` that no rule can match, and answer checks that no rule
    can match with an error; else these are warnings in the log."""
    headers: HeaderStyle = HeaderStyle.BOTH
    """Which header fields tell about limits."""
    deny_status: int = 429
    """What `/v1/auth` answers when it denies, unless the request asks for the other: 429 or 403."""
    grpc_headers: HeaderStyle = HeaderStyle.NONE
    """The same on gRPC; Envoy adds the X-RateLimit fields by itself when told to."""
    shadow: bool = False
    """Answer Envoy OK whatever the rules say, with the true status of each descriptor."""
    quota: bool = False
    """Take every rule that Envoy's requests meet for one in quota mode."""
    dynamic_metadata: bool = False
    """Tell Envoy what was asked, and the metadata of the rules met."""
    override_algorithm: Algorithm = Algorithm.SLIDING_WINDOW
    """How limits that come with Envoy's requests are counted."""
    charge_hits_addend: bool = True
    """A descriptor's own `hits_addend` above 1 counts past the limit, by whatever algorithm; false
    for a check as any other."""
    deadline: float = 0.25
    """Most time until a check is answered; then the rules' `on_failure` decides."""
    patience: float = 0.1
    """Most time that an owner may take before its standby is asked as well. It follows the round
    trips, so usually it is much less."""
    max_wait: float = 30.0
    """Longest wait that `/v1/acquire` can be asked for."""
    max_waiting: int = 1000
    """Requests that wait at `/v1/acquire`, by worker; more are answered 503."""
    max_waiting_per_caller: int = 250
    """The same by token, or by address where no token is asked for; more are answered 429."""
    max_body: int = 65_536
    """Bytes of a request's body, and of a gRPC message."""
    max_checks: int = 100
    """Checks in one request."""
    header_timeout: float = 5.0
    """How long a client may take over its headers."""
    body_timeout: float = 5.0
    """How long a client may take over its body."""
    max_connections: int = 1024
    """Most connections of each port and worker; one more closes the longest idle one."""
    max_connections_per_address: int = 256
    """The same of one address; `trusted_proxies` are not held to it on the HTTP port."""
    idle_timeout: float = 300.0
    """After so long without a call a connection is closed."""

    @property
    def listen_at(self) -> Address:
        """Where HTTP is served."""
        return _address_of("listen", self.listen)

    @property
    def addresses(self) -> ClientAddress:
        """How the client's address is found."""
        return ClientAddress(
            self.trusted_proxies, header=self.address_header, ipv6_prefix=self.ipv6_prefix
        )

    @property
    def keys(self) -> Keys:
        """How the descriptors of `/v1/auth` are read."""
        addresses = self.addresses
        try:
            return Keys(self.auth, addresses, only=_SOURCES)
        except ConfigError as error:
            raise ConfigError(f"auth: {error}") from error

    @property
    def grpc_at(self) -> Address | None:
        """Where gRPC is served; None when it is not."""
        return _address_of("grpc", self.grpc) if self.grpc else None

    @property
    def listeners(self) -> list[Listener]:
        """The ports that it opens."""
        grpc = [Listener("grpc", self.grpc_at)] if self.grpc_at else []
        return [Listener("listen", self.listen_at), *grpc]


def load_gateway_settings(
    path: Path | None = None,
    environment: Mapping[str, str] = os.environ,
    flags: Mapping[str, object] | None = None,
) -> GatewaySettings:
    """Read the settings; raises `ConfigError` that names the source, the setting and the mend.

    Paths in the file are relative to it.
    """
    told: dict[str, Any] = {}
    source = "settings from flags and environment"
    if path is not None:
        source = str(path)
        told |= _read(path)
    told |= _from_environment(environment)
    told |= {name: value for name, value in (flags or {}).items() if value not in (None, [])}
    if not told.get("cluster"):
        told["cluster"] = environment.get(ENVIRONMENT, "")
    try:
        settings = msgspec.convert(told, GatewaySettings)
        _validate(settings)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {_mended(error)}") from error
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error
    return settings


def _read(path: Path) -> dict[str, Any]:
    try:
        told = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as TOML: {error}") from error
    for name in _PATHS:
        if isinstance(told.get(name), str) and told[name]:
            told[name] = str(path.parent / told[name])
    return told


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    fields = {field.name: field for field in msgspec.structs.fields(GatewaySettings)}
    told: dict[str, Any] = {}
    for variable in sorted(environment):
        if not variable.startswith(_PREFIX):
            continue
        name = variable.removeprefix(_PREFIX).lower()
        if name not in fields:
            known = [_PREFIX + each.upper() for each in fields]
            raise ConfigError(f"environment: {variable} sets nothing; {suggest(variable, known)}")
        text = environment[variable]
        if fields[name].type == list[str]:
            told[name] = [each.strip() for each in text.split(",") if each.strip()]
            continue
        try:
            told[name] = msgspec.convert(text, fields[name].type, strict=False)
        except msgspec.ValidationError as error:
            what = _enum_mended(name, str(error)) or error
            raise ConfigError(f"environment: {variable}={text!r}: {what}") from error
    return told


def _validate(settings: GatewaySettings) -> None:
    if not settings.cluster:
        raise ConfigError(
            f"no cluster: set cluster, --cluster or {ENVIRONMENT} to "
            "ringfence://TOKEN@HOST:PORT?ca=FILE"
        )
    parse_url(settings.cluster)
    _validate_numbers(settings)
    _ = settings.keys  # Raises for those that mean nothing.
    if settings.deny_status not in (403, 429):
        raise ConfigError(f"deny_status {settings.deny_status}: choose 429 or 403")
    if bool(settings.tls_cert) != bool(settings.tls_key):
        raise ConfigError("tls_cert and tls_key go together; set both")
    if settings.tls_client_ca and not settings.tls_cert:
        raise ConfigError("tls_client_ca needs a certificate of our own; set tls_cert and tls_key")
    for name in _PATHS:
        file = getattr(settings, name)
        if file and not Path(file).is_file():
            raise ConfigError(f"{name}: {file}: no such file")
    if settings.tls_cert:
        check_tls_files(
            settings.tls_cert, settings.tls_key, settings.tls_client_ca, datetime.now(UTC)
        )
    require_distinct(settings.listeners)
    places = [settings.listen_at, *([settings.grpc_at] if settings.grpc_at else [])]
    beyond = [host for host, _ in places if not _is_loopback(host)]
    if beyond and not (settings.tokens or settings.tls_client_ca):
        raise ConfigError(
            f"tokens or tls_client_ca must be set when a port is beyond loopback, got {beyond[0]} "
            "without them; set tokens to the tokens.toml of `ringfence keys new`"
        )


def _validate_numbers(settings: GatewaySettings) -> None:
    bounds = {
        "workers": (1, 64),
        "deadline": (0.001, 60),
        "patience": (0.001, 30),
        "max_wait": (0.001, 3600),
        "max_waiting": (1, 100_000),
        "max_waiting_per_caller": (1, 100_000),
        "max_body": (1024, 4_194_304),
        "max_checks": (1, 1000),
        "header_timeout": (0.1, 60),
        "body_timeout": (0.1, 60),
        "max_connections": (16, 65_536),
        "max_connections_per_address": (1, 65_536),
        "idle_timeout": (0.1, 86_400),
    }
    for name, (least, most) in bounds.items():
        if not least <= getattr(settings, name) <= most:
            raise ConfigError(f"{name} {getattr(settings, name)}: give {least} to {most}")
    if settings.patience > 0.9 * settings.deadline:
        raise ConfigError(
            "patience is more than nine tenths of deadline, so a standby would be asked too late"
        )


def _address_of(name: str, text: str) -> Address:
    try:
        host, port = parse_address(text)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error
    # An address without a port has that of nodes, where no gateway belongs.
    has_port = text.strip().isdecimal() or text.rpartition("]")[2].count(":") == 1
    if port < 1 or not has_port:
        raise ConfigError(f"{name}: no port in {text!r}; write HOST:PORT")
    return host, port


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _mended(error: msgspec.ValidationError) -> str:
    text = str(error)
    if "unknown field" in text:
        name = text.split("`")[1]
        known = [field.name for field in msgspec.structs.fields(GatewaySettings)]
        return f"there is no setting {name!r}; {suggest(name, known)}"
    what, _, place = text.removesuffix("`").partition(" - at `$.")
    return _enum_mended(place, what) or text


def _enum_mended(name: str, what: str) -> str | None:
    """Say which words there are, when `what` is about one that is none of them."""
    kinds = {field.name: field.type for field in msgspec.structs.fields(GatewaySettings)}
    kind = kinds.get(name)
    if not (isinstance(kind, EnumMeta) and what.startswith(_NOT_IN_ENUM)):
        return None
    word = what.removeprefix(_NOT_IN_ENUM)
    return f"{name}: {word} is not known; {suggest(word, map(str, kind))}"
