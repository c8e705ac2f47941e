"""Settings for the use of a cluster by a client."""

from msgspec import Struct, field

from ringfence.peering.link import LinkSettings
from ringfence.rules import OnFailure

__all__ = ["ClusterSettings"]


class ClusterSettings(Struct, frozen=True):
    """Settings for the use of a cluster by a client. Durations are in seconds."""

    datacenter: str | None = None
    """Data center whose nodes decide; None means that of the first node that answers."""
    link: LinkSettings = field(default_factory=LinkSettings)
    on_failure: OnFailure = OnFailure.ALLOW
    """Policy for limits that are in no rule, and for all checks before a node has sent rules."""
    max_local_keys: int = 100_000
    """Maximum number of keys that `on_failure: local` counts in this process."""
    ask_owners: bool = True
    """Ask the owner of each key; False sends every check to the first seed that answers."""
    use_leases: bool = True
    """Borrow units of keys that are checked often, and spend them without asking."""
    denial_cache_size: int = 65_536
    """Maximum number of cached denials; 0 turns the cache off."""
    hedge_after: float | None = None
    """Maximum time before the standby of a slow owner is asked as well, if the hedging budget
    allows. The time is shorter when round trips are short. With None, the standby is asked only
    when the owner is lost."""
    report_interval: float = 1.0
    """Interval of the reports of decisions that this process made without a node."""
