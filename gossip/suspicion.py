"""A timed doubt about one member: the more members share it, the sooner it ends.

Source: Lifeguard, section "dynamic suspicion timeouts".
"""

from dataclasses import dataclass, field
from math import log, log10

from gossip.settings import ProbeSettings, Settings

__all__ = ["Suspicion"]

_NS = 1_000_000_000


@dataclass(slots=True)
class Suspicion:
    """Ends at `deadline` unless the member refutes it; times in ns."""

    began: int
    least: int
    most: int
    wanted: int
    """Confirmations after which it lasts no longer than `least`."""
    accusers: dict[str, None] = field(default_factory=dict)

    @classmethod
    def raised(
        cls, now: int, probing: ProbeSettings, settings: Settings, members: int
    ) -> "Suspicion":
        """Doubt one of so many `members`, ourselves and the suspect counted."""
        least = probing.suspicion_factor * max(1.0, log10(max(1, members))) * probing.interval
        if not settings.dynamic_suspicion:
            return cls(now, round(least * _NS), round(least * _NS), 0)
        wanted = max(0, min(settings.confirmations, members - 2))
        if wanted == 0:
            # Nobody can confirm it: be twice as patient instead.
            return cls(now, round(2 * least * _NS), round(2 * least * _NS), 0)
        most = probing.suspicion_stretch * least
        return cls(now, round(least * _NS), round(most * _NS), wanted)

    @property
    def deadline(self) -> int:
        """When the member is declared dead."""
        confirmations = max(0, len(self.accusers) - 1)
        if confirmations >= self.wanted:
            return self.began + self.least
        share = log(confirmations + 1) / log(self.wanted + 1)
        return self.began + round(self.most - share * (self.most - self.least))

    def confirm(self, accuser: str) -> bool:
        """Take a member's doubt; whether it is another one that shortens this."""
        if not accuser or accuser in self.accusers or len(self.accusers) > self.wanted:
            return False
        self.accusers[accuser] = None
        return True
