"""Settings that the middleware, extensions and decorators of all frameworks share.

`Options` has the same names, for type checks of keyword arguments.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TypeAlias, TypedDict

from ringfence.http import KeyFunction, KeySpec, Request, Template
from ringfence.integrations._core.settings_validation import check_settings
from ringfence.limiter import Limit

__all__ = ["Cost", "LimitSpec", "Options", "Response", "Settings", "ViewOptions"]


@dataclass(frozen=True, slots=True)
class Response:
    """Status and headers of the response that the application has sent."""

    status: int
    """Status code; 500 when the application failed."""
    headers: Mapping[str, str]
    """Response headers, with names in lower case."""


LimitSpec: TypeAlias = (
    str
    | Limit
    | Sequence[str | Limit]
    | Callable[[Request], "str | Limit | Sequence[str | Limit] | None"]
    | None
)
"""One limit such as `100/minute`, several, or a function of the request that returns either.
None is no limit."""
Cost: TypeAlias = int | Mapping[str, int] | Callable[[Request], int]
"""Units of a request; or units by route or path, with 1 for others; or a function of it."""

_HEALTH = ("/health", "/healthz", "/livez", "/readyz", "/metrics")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of an integration. Raises `ConfigError` for unknown names and invalid values."""

    def __new__(cls, **options: object) -> Self:
        """Validate the settings before `__init__`, which would raise `TypeError` for unknown
        names."""
        check_settings(options, cls.__dataclass_fields__)
        return object.__new__(cls)

    domain: str | None = None
    """Domain of the rules."""
    limit: LimitSpec = None
    """Ad-hoc limit, counted per `scope` and key. Give this or `domain`."""
    keys: KeySpec = "client=ip"
    """Keys of the counters, such as `user_or_ip+route`; see `ringfence.http.keys`."""
    scope: str | None = None
    """Views with the same scope share the counters of `limit`. None: each view has its own, and a
    limit on all requests has one."""
    namespace: str = ""
    """Separates the counters of `limit` from those of other applications on the cluster."""
    cost: Cost = 1
    """Cost of a request."""
    deduct_when: Callable[[Response], bool] | None = None
    """Returns True for responses that are charged, such as failed logins. Other requests get their
    cost back after the response."""
    cost_after: Callable[[Request, Response], int | None] | None = None
    """Returns the actual cost when the response ends; None keeps `cost`, which is charged before.
    The actual cost counts in full, even beyond the limit. `reported_cost` is such a function."""
    user: KeyFunction | None = None
    """Returns the user of a request, in place of the framework's user."""
    trusted_proxies: int | str | Iterable[str] = 0
    """Addresses and networks of trusted proxies, or the number of proxies before the server."""
    proxy_header: str = "x-forwarded-for"
    """Header that these proxies write; also `forwarded` or `x-real-ip`."""
    ipv6_prefix: int = 64
    """Length of the IPv6 prefix that counts as one client."""
    exempt_paths: Collection[str] = _HEALTH
    """Paths without limits; `/static/*` is every path with this prefix."""
    exempt_methods: Collection[str] = ("HEAD", "OPTIONS")
    """HTTP methods without limits."""
    exempt_when: Callable[[Request], bool] | None = None
    """Returns True for requests without limits."""
    block: bool = True
    """Refuse requests over the limit. False passes them to the application, which sees the denied
    decision by `decision_of`."""
    headers: str | None = "ietf"
    """Style of the rate limit headers: `ietf`, `x`, `both`, `none`."""
    reset: str = "seconds"
    """Unit of X-RateLimit-Reset: `seconds` from now, or seconds since the `epoch`."""
    template: Template | None = None
    """Returns the body of a refusal."""
    timeout: float | None = None
    """Maximum seconds of a check by rules; then the failure policy decides."""
    strict: bool = False
    """Raise `ConfigError` at the start for a domain or keys that no rule can match."""
    enabled: bool = True
    """Whether the limits apply; False turns all limits off."""


class ViewOptions(TypedDict, total=False):
    """Types of `Settings` as keyword arguments, without `limit`, which is a separate argument of
    views."""

    domain: str | None
    keys: KeySpec
    scope: str | None
    namespace: str
    cost: Cost
    deduct_when: Callable[[Response], bool] | None
    cost_after: Callable[[Request, Response], int | None] | None
    user: KeyFunction | None
    trusted_proxies: int | str | Iterable[str]
    proxy_header: str
    ipv6_prefix: int
    exempt_paths: Collection[str]
    exempt_methods: Collection[str]
    exempt_when: Callable[[Request], bool] | None
    block: bool
    headers: str | None
    reset: str
    template: Template | None
    timeout: float | None
    strict: bool
    enabled: bool


class Options(ViewOptions, total=False):
    """Types of `Settings` as keyword arguments."""

    limit: LimitSpec
