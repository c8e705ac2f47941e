"""How a face limits: the settings that every framework's middleware, extension and decorator takes.

`Options` are the same names as keyword arguments.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TypeAlias, TypedDict

from ringfence.http import KeyFunction, KeySpec, Request, Template
from ringfence.integrations._core.settings_validation import require_known, require_sense
from ringfence.limiter import Limit

__all__ = ["Cost", "LimitSpec", "Options", "Response", "Settings", "ViewOptions"]


@dataclass(frozen=True, slots=True)
class Response:
    """What is known of the application's answer when it has been sent."""

    status: int
    """500 when the application failed."""
    headers: Mapping[str, str]
    """Names in lower case."""


LimitSpec: TypeAlias = (
    str
    | Limit
    | Sequence[str | Limit]
    | Callable[[Request], "str | Limit | Sequence[str | Limit] | None"]
    | None
)
"""`100/minute`, several of them, or a function of the request that returns either (by tier or
tenant, None for no limit)."""
Cost: TypeAlias = int | Mapping[str, int] | Callable[[Request], int]
"""Units; or units by route or path, 1 for those not named; or a function of the request."""

_HEALTH = ("/health", "/healthz", "/livez", "/readyz", "/metrics")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is limited, by what, and how it is told.

    Raises `ConfigError` for unknown names, and for values that make no sense.
    """

    def __new__(cls, **options: object) -> Self:
        """Called before `__init__`, which would tell an unknown name as a `TypeError`."""
        require_known(options, cls.__dataclass_fields__)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        require_sense({name: getattr(self, name) for name in self.__dataclass_fields__})

    domain: str | None = None
    """The domain of the rules to check against."""
    limit: LimitSpec = None
    """A limit that stands in no rule; it is counted per `scope` and key."""
    keys: KeySpec = "client=ip"
    """What is counted: names such as `user_or_ip+route`, see `ringfence.http.keys`."""
    scope: str | None = None
    """What shares one budget under `limit`; None is each view by itself, or all of the application
    for limits that apply everywhere."""
    namespace: str = ""
    """Keeps the budgets under `limit` apart from those of other applications on one cluster."""
    cost: Cost = 1
    """What a request spends."""
    deduct_when: Callable[[Response], bool] | None = None
    """Charge only the requests whose answer this finds chargeable, as failed logins. The others'
    cost is held while they run and given back then."""
    cost_after: Callable[[Request, Response], int | None] | None = None
    """What a request has cost, told when its answer ends; `cost` is held meanwhile, and stays when
    it returns None. It counts in full, past the limit if need be. `told_cost` is one."""
    user: KeyFunction | None = None
    """Names the user, where the framework's own word is not the one to take."""
    trusted_proxies: int | str | Iterable[str] = 0
    """How many proxies every request passes, or better their addresses and networks."""
    proxy_header: str = "x-forwarded-for"
    """The one header these proxies write: that, `forwarded` or `x-real-ip`."""
    ipv6_prefix: int = 64
    """How many bits of an IPv6 address make one client."""
    exempt_paths: Collection[str] = _HEALTH
    """Never limited; `/static/*` is all that begins so."""
    exempt_methods: Collection[str] = ("HEAD", "OPTIONS")
    """Never limited."""
    exempt_when: Callable[[Request], bool] | None = None
    """Requests that are never limited."""
    headers: str | None = "ietf"
    """Header style: `ietf`, `x`, `both`, `none`."""
    reset: str = "seconds"
    """What X-RateLimit-Reset counts: `seconds` from now, or since the `epoch`."""
    template: Template | None = None
    """Makes the body of a refusal."""
    timeout: float | None = None
    """Most seconds that a check by rules may take before `on_failure` decides."""
    strict: bool = False
    """Raise `ConfigError` at the start for a domain or keys that no rule can match."""
    enabled: bool = True
    """The off switch."""


class ViewOptions(TypedDict, total=False):
    """`Settings` as keyword arguments, but for `limit`, which views are given by itself."""

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
    headers: str | None
    reset: str
    template: Template | None
    timeout: float | None
    strict: bool
    enabled: bool


class Options(ViewOptions, total=False):
    """`Settings` as keyword arguments."""

    limit: LimitSpec
