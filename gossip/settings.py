"""Settings of membership and failure detection.

Source of the structure: Das, Gupta, Motivala, "SWIM" (2002), and Dadgar, Phillips, Currey,
"Lifeguard" (2017). The numbers are ours, measured in `docs/concepts/membership.md`.
"""

from msgspec import Struct, field
from msgspec.structs import fields, replace

__all__ = ["NS_PER_SECOND", "ProbeSettings", "Settings"]

NS_PER_SECOND = 1_000_000_000


class ProbeSettings(Struct, frozen=True, kw_only=True):
    """Probe settings for members of the local data center, or for members of others; times in
    seconds."""

    interval: float
    """Interval between probes, and time-out of a probe including indirect pings."""
    timeout: float
    """Maximum time-out of the direct ping; three round trips when that is shorter."""
    min_timeout: float = 0.05
    suspicion_factor: float = 3.0
    """Time-out of a confirmed suspicion in intervals, times log10 of the number of members."""
    suspicion_max_factor: float = 6.0
    """Factor by which an unconfirmed suspicion lasts longer."""
    gossip_interval: float
    gossip_fanout: int = 3
    exchange_every: float
    """Interval of periodic exchanges among up to 8 members. It grows with the number of members,
    so that the traffic of each member stays constant."""

    def __post_init__(self) -> None:
        _require_positive(self)
        if not self.min_timeout <= self.timeout < self.interval:
            raise ValueError(
                f"timeout must be at least {self.min_timeout} and below the interval, "
                f"{self.interval}, got {self.timeout}"
            )

    @classmethod
    def lan(cls) -> "ProbeSettings":
        """Return probe settings for round trips of milliseconds."""
        return cls(interval=0.5, timeout=0.2, gossip_interval=0.1, exchange_every=60.0)

    @classmethod
    def wan(cls) -> "ProbeSettings":
        """Return probe settings for intercontinental round trips."""
        return cls(
            interval=2.0,
            timeout=0.8,
            min_timeout=0.2,
            suspicion_factor=5.0,
            gossip_interval=0.5,
            exchange_every=120.0,
        )


class Settings(Struct, frozen=True, kw_only=True):
    """Settings of the membership state machine; times in seconds."""

    local_dc: ProbeSettings = field(default_factory=ProbeSettings.lan)
    """Probes of members in the local data center."""
    remote_dc: ProbeSettings = field(default_factory=ProbeSettings.wan)
    """Probes of members in other data centers."""
    indirect: int = 3
    """Number of helpers for an indirect probe."""
    nack_share: float = 0.8
    """Fraction of the ping time-out after which a helper sends a nack."""
    confirmations: int = 3
    """Number of confirmations that reduce a suspicion to its minimum time-out."""
    retransmit: int = 5
    """Transmissions of an update, times log10 of the number of members, rounded up. With the value
    4 of memberlist, one join in about a hundred does not reach all of thirty members."""
    mismatch_rounds: int = 5
    """Rounds of gossip for which digests may differ before a full exchange."""
    exchange_pause: float = 5.0
    """Minimum time between two exchanges because of differing digests."""
    announce_every: float = 10.0
    """Interval of messages to dead members, which detect the end of a partition."""
    announce_to: int = 2
    gossip_to_dead: float = 30.0
    forget_after: float = 900.0
    forget_seeds_after: float = 3600.0
    join_pause: float = 0.25
    max_join_pause: float = 5.0
    ask_again: float = 0.6
    """Delay from the first exchange to the second. The second fetches updates that the first
    missed."""
    seeds_every: float = 30.0
    """Interval of contacts to seeds that are not known members; they unite clusters that formed
    apart."""
    flaps: int = 3
    """Accusations within `flap_memory` after which a member leaves the ring by itself."""
    flap_memory: float = 300.0
    flap_pause: float = 60.0
    max_flap_pause: float = 600.0
    lag: float = 0.1
    """Delay of a timer beyond which this member considers itself unhealthy."""
    max_health: int = 8
    local_health: bool = True
    """Lifeguard: slow down probes while this member seems to be at fault."""
    dynamic_suspicion: bool = True
    """Lifeguard: confirmations shorten suspicions."""
    buddy: bool = True
    """Lifeguard: send a suspect the suspicion at once."""
    own_pauses: bool = True
    """Reset pending probes after a pause of this process."""

    def __post_init__(self) -> None:
        _require_positive(self)
        if not self.nack_share < 1:
            raise ValueError(f"nack_share must be below 1, got {self.nack_share}")

    @classmethod
    def lan(cls) -> "Settings":
        """Return settings for data centers with round trips of milliseconds."""
        return cls()

    @classmethod
    def wan(cls) -> "Settings":
        """Return settings for a data center whose members are far apart."""
        return cls(local_dc=ProbeSettings.wan(), remote_dc=ProbeSettings.wan())

    def probing(self, which: str) -> ProbeSettings:
        """Return the probe settings for members of the local data center (`local_dc`) or of others
        (`remote_dc`)."""
        return self.local_dc if which == "local_dc" else self.remote_dc

    def without_lifeguard(self) -> "Settings":
        """Return a copy of the settings without Lifeguard's extensions, for comparisons."""
        return replace(
            self, local_health=False, dynamic_suspicion=False, buddy=False, own_pauses=False
        )


def _require_positive(settings: ProbeSettings | Settings) -> None:
    for each in fields(settings):
        value: object = getattr(settings, each.name)
        if isinstance(value, int | float) and not isinstance(value, bool) and not value > 0:
            raise ValueError(f"{each.name} must be positive, got {value}")
