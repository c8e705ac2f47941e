"""Settings of the gateway: names, defaults and checks.

The package `ringfence.settings` reads them from the file, the environment and the flags.

The defaults suit a sidecar on loopback, which needs no token.
"""

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from ringfence.client.url import ENVIRONMENT, parse_url
from ringfence.errors import ConfigError
from ringfence.gateway.process.tls_files import check_tls_files
from ringfence.http.addresses import ClientAddress
from ringfence.http.headers import HeaderStyle
from ringfence.http.keys import Keys
from ringfence.limiter import Algorithm
from ringfence.settings.checks import is_loopback, require_address, require_ranges
from ringfence.settings.reader import SettingsReader
from ringfence.transport.interface import Address
from ringfence.transport.listeners import Listener, require_distinct

__all__ = ["HTTP_PORT", "GatewaySettings", "load_gateway_settings", "validate_tls"]

HTTP_PORT = 7180
_GRPC_PORT = 7181
_SOURCES = ("ip", "path", "method", "host")
"""Parts of a request that a proxy states, apart from the request's headers."""
_PATHS = ("tokens", "tls_cert", "tls_key", "tls_client_ca")
_RANGES: dict[str, tuple[float, float]] = {
    "workers": (1, 64),
    "deadline": (0.001, 60),
    "hedge_after": (0.001, 30),
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


class GatewaySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of a gateway; times are in seconds."""

    cluster: str = ""
    """URL of the cluster, `ringfence://...`; `RINGFENCE_URL` when empty."""
    listen: str = f"127.0.0.1:{HTTP_PORT}"
    """`HOST:PORT` for HTTP/1.1 and HTTP/2. `PORT` alone is on loopback."""
    grpc: str = f"127.0.0.1:{_GRPC_PORT}"
    """`HOST:PORT` for Envoy's rate limit service; empty for none."""
    workers: int = 1
    """Number of processes that share both ports."""
    tokens: str = ""
    """Token file, as nodes have it. Required beyond loopback, unless `tls_client_ca` is set."""
    tls_cert: str = ""
    """File of the certificate chain of both ports; empty for plain text."""
    tls_key: str = ""
    """File of the private key of `tls_cert`."""
    tls_client_ca: str = ""
    """File of an authority. Callers must then present a certificate that it issued."""
    domain: str = "api"
    """Domain of `/v1/auth` and `/shouldAllowRequest`, whose requests name none."""
    auth: list[str] = msgspec.field(default_factory=lambda: ["client=ip"])
    """Descriptors of `/v1/auth`: the parts of a request that become entries, as in `Keys`."""
    trusted_proxies: list[str] = msgspec.field(default_factory=lambda: ["127.0.0.0/8", "::1/128"])
    """Addresses and networks of proxies that may state the client's address in a header."""
    address_header: str = "x-forwarded-for"
    """Header in which trusted proxies state the client's address; also `forwarded` or
    `x-real-ip`."""
    ipv6_prefix: int = 64
    """Length of the IPv6 prefix that counts as one client."""
    uri_header: str = "x-forwarded-uri"
    """Header in which the proxy states the path. Only this header counts: a client could send
    another one."""
    method_header: str = "x-forwarded-method"
    """Header in which the proxy states the method."""
    exempt_methods: list[str] = msgspec.field(default_factory=lambda: ["HEAD", "OPTIONS"])
    """Methods that `/v1/auth` allows without counting."""
    exempt_paths: list[str] = []
    """Paths that `/v1/auth` allows without counting, with all paths below them."""
    strict: bool = False
    """Whether a `domain` or `auth` that no rule can match prevents the start, and a check that no
    rule can match is answered with an error. Otherwise both are warnings in the log."""
    headers: HeaderStyle = HeaderStyle.BOTH
    """Style of the rate limit header fields."""
    deny_status: int = 429
    """Status of a denial by `/v1/auth`, 429 or 403, unless the request asks for the other."""
    grpc_headers: HeaderStyle = HeaderStyle.NONE
    """Style of the rate limit header fields on gRPC. Envoy itself can add the X-RateLimit
    fields."""
    shadow: bool = False
    """Whether Envoy gets OK for every request, with the true status of each descriptor."""
    quota: bool = False
    """Whether all rules act in quota mode for requests of Envoy."""
    dynamic_metadata: bool = False
    """Whether Envoy receives the request and the metadata of matching rules as dynamic metadata."""
    override_algorithm: Algorithm = Algorithm.SLIDING_WINDOW
    """Algorithm of limits that requests of Envoy carry."""
    charge_hits_addend: bool = True
    """Whether a `hits_addend` above 1 of a descriptor is charged even beyond the limit. If false,
    it is the cost of a normal check."""
    deadline: float = 0.25
    """Maximum time of a check. After it, the failure policy of the rule decides."""
    hedge_after: float = 0.1
    """Maximum time until the standby is asked as well. The actual time follows measured round trips
    and is usually much shorter."""
    max_wait: float = 30.0
    """Maximum wait that a request to `/v1/acquire` can ask for."""
    max_waiting: int = 1000
    """Maximum of requests that wait at `/v1/acquire`, per worker; more get 503."""
    max_waiting_per_caller: int = 250
    """Maximum of waiting requests per token, or per address when no token is needed; more get
    429."""
    max_body: int = 65_536
    """Maximum bytes of a request body and of a gRPC message."""
    max_checks: int = 100
    """Maximum of checks in one request."""
    header_timeout: float = 5.0
    """Time-out of receiving the headers of a request."""
    body_timeout: float = 5.0
    """Time-out of receiving the body of a request."""
    max_connections: int = 1024
    """Maximum of connections per port and worker. One more closes the longest idle one."""
    max_connections_per_address: int = 256
    """Maximum of connections per address. On the HTTP port it does not apply to
    `trusted_proxies`."""
    idle_timeout: float = 300.0
    """Time without a call after which a connection is closed."""

    @property
    def listen_at(self) -> Address:
        """Return the address of the HTTP port."""
        return _require_port("listen", self.listen)

    @property
    def addresses(self) -> ClientAddress:
        """Return the object that finds the client address of each request behind trusted
        proxies."""
        return ClientAddress(
            self.trusted_proxies, header=self.address_header, ipv6_prefix=self.ipv6_prefix
        )

    @property
    def keys(self) -> Keys:
        """Return the object that reads descriptors from requests to `/v1/auth`. Raises
        `ConfigError`."""
        addresses = self.addresses
        try:
            return Keys(self.auth, addresses, only=_SOURCES)
        except ConfigError as error:
            raise ConfigError(f"auth: {error}") from error

    @property
    def grpc_at(self) -> Address | None:
        """Return the address of the gRPC port; None without gRPC."""
        return _require_port("grpc", self.grpc) if self.grpc else None

    @property
    def listeners(self) -> list[Listener]:
        """Return the addresses of all ports of the gateway."""
        grpc = [Listener("grpc", self.grpc_at)] if self.grpc_at else []
        return [Listener("listen", self.listen_at), *grpc]


_READER = SettingsReader(
    GatewaySettings, "RINGFENCE_GATEWAY_", paths=_PATHS, example="docs/guides/gateway.md"
)


def load_gateway_settings(
    path: Path | None = None,
    environment: Mapping[str, str] = os.environ,
    flags: Mapping[str, object] | None = None,
) -> GatewaySettings:
    """Load the settings from file, environment and flags. Flags override the environment, which
    overrides the file.

    Paths in the file are relative to it. Raises `ConfigError` that names the source and the
    setting.
    """

    def complete(settings: GatewaySettings) -> GatewaySettings:
        cluster = settings.cluster or environment.get(ENVIRONMENT, "")
        completed = msgspec.structs.replace(settings, cluster=cluster)
        _validate(completed)
        return completed

    return _READER.read(path, environment, flags or {}, complete)


def _validate(settings: GatewaySettings) -> None:
    if not settings.cluster:
        raise ConfigError(
            f"no cluster: set cluster, --cluster or {ENVIRONMENT} to "
            "ringfence://TOKEN@HOST:PORT?ca=FILE"
        )
    parse_url(settings.cluster)
    require_ranges(settings, _RANGES)
    if settings.hedge_after > 0.9 * settings.deadline:
        raise ConfigError(
            f"hedge_after must be at most nine tenths of deadline, got {settings.hedge_after} and "
            f"{settings.deadline}; otherwise the standby would be asked too late"
        )
    _ = settings.keys  # Raises for descriptors that cannot be parsed.
    if settings.deny_status not in (403, 429):
        raise ConfigError(f"deny_status must be 429 or 403, got {settings.deny_status}")
    validate_tls(settings)
    _validate_ports(settings)


def validate_tls(settings: GatewaySettings) -> None:
    """Validate the TLS files of a gateway. Raises `ConfigError`."""
    if bool(settings.tls_cert) != bool(settings.tls_key):
        raise ConfigError("tls_cert and tls_key must be set together, got one; set both")
    if settings.tls_client_ca and not settings.tls_cert:
        raise ConfigError(
            "tls_client_ca needs a certificate of the gateway; set tls_cert and tls_key"
        )
    for name in _PATHS:
        file = getattr(settings, name)
        if file and not _is_file(name, file):
            raise ConfigError(f"{name}: {file}: no such file")
    if settings.tls_cert:
        check_tls_files(
            settings.tls_cert, settings.tls_key, settings.tls_client_ca, datetime.now(UTC)
        )


def _is_file(name: str, file: str) -> bool:
    try:
        return Path(file).is_file()
    except OSError as error:  # The gateway's user cannot enter the folder.
        raise ConfigError(
            f"{name}: cannot read {file}: {error.strerror}; let the gateway's user read it"
        ) from error


def _validate_ports(settings: GatewaySettings) -> None:
    require_distinct(settings.listeners)
    hosts = [listener.address[0] for listener in settings.listeners]
    beyond = [host for host in hosts if not is_loopback(host)]
    if beyond and not (settings.tokens or settings.tls_client_ca):
        raise ConfigError(
            f"tokens or tls_client_ca must be set when a port is beyond loopback, got {beyond[0]} "
            "without them; set tokens to the tokens.toml of `ringfence keys new`"
        )


def _require_port(name: str, text: str) -> Address:
    """Parse a gateway address that must include a port; the default port would be that of nodes."""
    address = require_address(name, text)
    if not (text.strip().isdecimal() or text.rpartition("]")[2].count(":") == 1):
        raise ConfigError(f"{name} must have a port, got {text!r}; write HOST:PORT")
    return address
