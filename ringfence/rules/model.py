"""Data types of rules: rule, descriptor and match."""

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field
from msgspec.structs import replace

from ringfence.limiter.limit import Limit

__all__ = ["Descriptor", "Match", "OnFailure", "Rule"]


class OnFailure(StrEnum):
    """Policy for a check that no node decides in time."""

    ALLOW = "allow"
    DENY = "deny"
    LOCAL = "local"
    """The process counts alone, with the same limit, until a node answers again."""


class Rule(Struct, frozen=True):
    """Node of the descriptor tree with a limit, or with `unlimited`."""

    id: int
    """64-bit hash of domain and path: a changed limit keeps the id and the counters."""
    domain: str
    path: tuple[tuple[str, str | None], ...]
    """(key, configured value or pattern, None for any value) from the root down."""
    limit: Limit | None
    """Limit of the rule; None when unlimited."""
    unit: str = ""
    """Unit in the file (`minute`), for Envoy's responses; empty for other periods."""
    name: str = ""
    replaces: tuple[str, ...] = ()
    shadow: bool = False
    quota: bool = False
    carried: bool = False
    """Whether the limit must be sent with the check, because the owner does not have it."""
    on_failure: OnFailure = OnFailure.ALLOW
    scope: str = "datacenter"
    """`datacenter`, or how the limit holds in all data centers: `global`, `split` or `home`."""
    home: str = ""
    """Data center that decides, when `scope` is `home`."""
    leases: bool = True
    """Whether the owner may lend units to clients; not sent to clients."""
    metadata: Mapping[str, object] = field(default_factory=dict)
    details: tuple[str, ...] = ()
    """Form of each level's value in the metric name: `share`, `detailed`, `value` or empty."""

    @property
    def is_detailed(self) -> bool:
        """Whether the rule's metric name contains values of requests."""
        return "detailed" in self.details or "value" in self.details

    def as_carried(self) -> "Rule":
        """Return a copy of the rule whose limit is sent with each check, for nodes without this
        rule."""
        return replace(self, carried=True)


class Descriptor(Struct, frozen=True):
    """Description of one aspect of a request: ordered (key, value) entries."""

    entries: tuple[tuple[str, str], ...]
    limit: Limit | None = None
    """Limit that overrides all rules."""
    cost: int | None = None
    """Cost that overrides the request's cost; 0 peeks."""


class Match(Struct, frozen=True):
    """Rule that matches a request's descriptor, and the key of the counter to check."""

    rule: Rule
    key: bytes
    """The rule's id (8 bytes, big endian), then each counted value with its length."""
    metric: str
    """Name of the counter in metrics, `domain.key1_value1.key2`."""
    cost: int | None = None
