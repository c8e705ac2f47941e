"""Bounds of the numbers in a scenario: for options of the commands and for case files."""

from collections.abc import Mapping
from math import inf

from msgspec import Struct

from simulations.scenarios.scenario import Holds, Load, Network, Scenario

__all__ = ["BOUNDS", "SEED", "Bounds"]


class Bounds(Struct, frozen=True):
    """Smallest and largest value of a number; an integer if both bounds are integers."""

    least: float
    most: float

    @property
    def is_whole(self) -> bool:
        """Return whether the number must be an integer."""
        return isinstance(self.least, int)

    def allow(self, number: float) -> bool:
        """Return whether a number is within the bounds; NaN never is."""
        return self.least <= number <= self.most

    def __str__(self) -> str:
        kind = "an integer" if self.is_whole else "a number"
        if self.most == inf:
            return f"{kind} of at least {self.least:g}"
        return f"{kind} from {self.least:.12g} to {self.most:.12g}"


SEED = Bounds(0, inf)
_COUNT = Bounds(1, 1_000_000)
_PLACES = Bounds(1, 30)
_SHARE = Bounds(0.0, 1.0)
_LOST_SHARE = Bounds(0.0, 0.9)
_RATE = Bounds(0.0, 100_000.0)
_SECONDS = Bounds(0.0, 86_400.0)
_PHASE_S = Bounds(1.0, 86_400.0)

BOUNDS: Mapping[type[Struct], Mapping[str, Bounds]] = {
    Scenario: {
        "nodes": Bounds(1, 5000),
        "datacenters": _PLACES,
        "zones": _PLACES,
        "seconds": _PHASE_S,
        "calm": _PHASE_S,
        "calm_load": _SECONDS,
        "processes": Bounds(1, 16),
        "least_parts": Bounds(1, 100),
    },
    Load: {
        "per_second": _RATE,
        "keys": _COUNT,
        "cost": _COUNT,
        "batch": Bounds(1, 1000),
        "probes": _SHARE,
        "peeks": _SHARE,
        "refunds": _SHARE,
        "refund_after_s": _SECONDS,
        "charges": _SHARE,
        "reservations": _SHARE,
        "settle_after_s": _SECONDS,
    },
    Holds: {
        "per_second": _RATE,
        "keys": _COUNT,
        "longest_s": _SECONDS,
        "max_wait": _SECONDS,
    },
    Network: {"loss": _LOST_SHARE, "repeats": _LOST_SHARE, "resets": Bounds(0.0, 1000.0)},
}
"""Bounds by type and field."""
