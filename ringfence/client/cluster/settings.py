"""Settings of a client towards its cluster."""

from dataclasses import dataclass, field

from ringfence.peering.link import LinkSettings

__all__ = ["ClusterSettings"]


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """How a client uses its cluster. Durations are seconds."""

    datacenter: str | None = None
    """Data center whose nodes decide; None means that of the first node that answers."""
    link: LinkSettings = field(default_factory=LinkSettings)
    max_local_keys: int = 100_000
    """Keys that `on_failure: local` counts in this process, at most."""
    ask_owners: bool = True
    """Ask the owner of each key; False sends every check to the first seed that answers."""
    use_leases: bool = True
    """Borrow units of keys that are checked often, and spend them without asking."""
    denial_cache_size: int = 65_536
    """Denials that are cached, at most; 0 turns the cache off."""
    hedge_after: float | None = None
    """Time after which the standby of a slow owner is asked as well, at most, if the hedging budget
    allows. With short round trips it is less. None: the standby is asked only when the owner is
    lost."""
    report_interval: float = 1.0
    """Time between two reports of the decisions that this process made without a node."""
