"""How patient membership is. Decides no behaviour of its own.

Source of the structure: Das, Gupta, Motivala, "SWIM" (2002), and Dadgar, Phillips, Currey,
"Lifeguard" (2017). The numbers are ours, measured in `docs/concepts/membership.md`.
"""

from dataclasses import dataclass, field, fields, replace

__all__ = ["ProbeSettings", "Settings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSettings:
    """How one set of members is probed; times in seconds."""

    interval: float
    """Between two probes of one node, and how long a probe may take, indirect pings included."""
    timeout: float
    """For the direct ping at most; three round trips when that is shorter."""
    least_timeout: float = 0.05
    suspicion_factor: float = 3.0
    """A suspicion that others confirm lasts this times log10 of the members, in intervals."""
    suspicion_stretch: float = 6.0
    """One that nobody confirms lasts so many times longer."""
    gossip_interval: float
    gossip_fanout: int = 3
    exchange_every: float
    """Between two exchanges that no difference asked for, among up to 8 members; among more it
    grows with their number, so that the traffic of each stays the same."""

    def __post_init__(self) -> None:
        _require_positive(self)
        if not self.least_timeout <= self.timeout < self.interval:
            raise ValueError(
                f"a ping may take {self.timeout} s of a probe's {self.interval} s; "
                f"use {self.least_timeout} up to less than the interval"
            )

    @classmethod
    def lan(cls) -> "ProbeSettings":
        """For members within milliseconds."""
        return cls(interval=0.5, timeout=0.2, gossip_interval=0.1, exchange_every=60.0)

    @classmethod
    def wan(cls) -> "ProbeSettings":
        """For members that may be on the other side of the world."""
        return cls(
            interval=2.0,
            timeout=0.8,
            least_timeout=0.2,
            suspicion_factor=5.0,
            gossip_interval=0.5,
            exchange_every=120.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything the membership core can be told; times in seconds."""

    near: ProbeSettings = field(default_factory=ProbeSettings.lan)
    """For members of the own data center."""
    far: ProbeSettings = field(default_factory=ProbeSettings.wan)
    """For members of other data centers."""
    indirect: int = 3
    """Members asked to ping one that did not answer."""
    nack_share: float = 0.8
    """A helper says that it heard nothing after this share of a ping's time."""
    confirmations: int = 3
    """Suspicions of others after which one lasts no longer than it must."""
    retransmit: int = 5
    """News are sent on this times log10 of the members, rounded up. With memberlist's 4 one join in
    some hundred leaves a member of thirty out until digests are compared."""
    mismatch_rounds: int = 5
    """How many rounds of gossip others' digests may differ from ours before an exchange."""
    exchange_pause: float = 5.0
    """Between two exchanges for that reason."""
    announce_every: float = 10.0
    """Between two words to members held dead: a healed split must be noticed."""
    announce_to: int = 2
    gossip_to_dead: float = 30.0
    forget_after: float = 900.0
    forget_seeds_after: float = 3600.0
    join_pause: float = 0.25
    join_pause_most: float = 5.0
    ask_again: float = 0.6
    """From the first exchange to the second, which tells what was new at the time of the first."""
    seeds_every: float = 30.0
    """Between two looks at the seeds that are no members, while others are: islands must meet."""
    flaps: int = 3
    """SuspicionTimers within `flap_memory` after which a member leaves the ring by itself."""
    flap_memory: float = 300.0
    flap_pause: float = 60.0
    flap_pause_most: float = 600.0
    lag: float = 0.1
    """Being woken this much too late is a sign of bad health, and proves nothing about others."""
    max_health: int = 8
    local_health: bool = True
    """Lifeguard: slow down while the own network or processor seems to be at fault."""
    dynamic_suspicion: bool = True
    """Lifeguard: suspicions begin long, and confirmations shorten them."""
    buddy: bool = True
    """Lifeguard: a suspect is told at once that it is suspected."""
    own_pauses: bool = True
    """Hold what was missed while asleep against nobody."""

    def __post_init__(self) -> None:
        _require_positive(self)
        if not self.nack_share < 1:
            raise ValueError(f"nack_share is {self.nack_share}; use less than 1")

    @classmethod
    def lan(cls) -> "Settings":
        """For data centers with round trips of milliseconds."""
        return cls()

    @classmethod
    def wan(cls) -> "Settings":
        """For members of one data center that lie far apart: all are probed as far ones."""
        return cls(near=ProbeSettings.wan(), far=ProbeSettings.wan())

    def without_lifeguard(self) -> "Settings":
        """The same with plain SWIM's judgement, to measure what the rest brings."""
        return replace(
            self, local_health=False, dynamic_suspicion=False, buddy=False, own_pauses=False
        )


def _require_positive(settings: ProbeSettings | Settings) -> None:
    for each in fields(settings):
        value: object = getattr(settings, each.name)
        if isinstance(value, int | float) and not isinstance(value, bool) and not value > 0:
            raise ValueError(f"{each.name} is {value}; use more than 0")
