"""Rules as values: which limit applies where. Light enough for clients; YAML lives in `load`."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from ringfence.limiter.limit import Limit

__all__ = ["Descriptor", "Match", "OnFailure", "Rule"]


class OnFailure(StrEnum):
    """What a check gets when no node can decide it in time."""

    ALLOW = "allow"
    DENY = "deny"
    LOCAL = "local"
    """This process counts alone, by the same limit, until a node answers again."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One place in the descriptor tree that carries a limit (or `unlimited`)."""

    id: int
    """64-bit identity of (domain, path): a change of the limit keeps it, and so its counters."""
    domain: str
    path: tuple[tuple[str, str | None], ...]
    """(key, configured value or pattern, None for any value) from the root down."""
    limit: Limit | None
    """None when unlimited."""
    unit: str = ""
    """The unit word of the file (`minute`), for Envoy's answers; empty for odd periods."""
    name: str = ""
    replaces: tuple[str, ...] = ()
    shadow: bool = False
    quota: bool = False
    carried: bool = False
    """The limit came with the request (override or ad hoc), so it must travel with the check."""
    on_failure: OnFailure = OnFailure.ALLOW
    scope: str = "datacenter"
    """`datacenter`, or how the limit holds in all data centers: `global`, `split` or `home`."""
    home: str = ""
    """The data center that decides, when `scope` is `home`."""
    leases: bool = True
    """Whether the owner may lend units to clients; the owner's affair, so clients are not told."""
    metadata: Mapping[str, object] = field(default_factory=dict)
    details: tuple[str, ...] = ()
    """Per level, how its value shows in the metric name: `share`, `detailed`, `value` or empty."""

    @property
    def is_detailed(self) -> bool:
        """Whether its metric shows values of requests."""
        return "detailed" in self.details or "value" in self.details

    def as_carried(self) -> "Rule":
        """The same rule with its limit travelling along, for an owner that does not have it."""
        return replace(self, carried=True)


@dataclass(frozen=True, slots=True)
class Descriptor:
    """One aspect of a request: ordered (key, value) entries."""

    entries: tuple[tuple[str, str], ...]
    limit: Limit | None = None
    """Override: wins over any rule."""
    cost: int | None = None
    """Overrides the request's cost; 0 peeks."""


@dataclass(frozen=True, slots=True)
class Match:
    """A rule that a descriptor met, and the counter it means."""

    rule: Rule
    key: bytes
    """The rule's id (8 bytes, big endian), then each counted value with its length."""
    metric: str
    """Name of the counter in metrics, `domain.key1_value1.key2`."""
    cost: int | None = None
