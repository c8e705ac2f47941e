"""How long a datagram is under way between two hosts when nothing is wrong.

A preset gives the delay of an idle path; `drawn_s` adds what queues on the way add to it. Loss,
repeats and cut paths are left to the network that asks.
"""

from dataclasses import dataclass
from random import Random
from typing import TypeAlias

__all__ = ["PRESETS", "Place", "delay_s", "drawn_s"]

Place: TypeAlias = tuple[str, str]
"""Where a host stands: the data center and the zone in it."""


@dataclass(frozen=True, slots=True)
class _Preset:
    """One-way delays in milliseconds."""

    same_zone: float
    other_zone: float
    other_datacenter: float | None
    """None when each pair of data centers has its own delay, that of `_ROUND_TRIPS_MS`."""


_PRESETS = {
    "lan": _Preset(0.1, 0.3, 40.0),
    "near": _Preset(0.1, 0.3, 5.0),
    "regions": _Preset(0.1, 0.3, None),
    "zero": _Preset(0.0, 0.0, 0.0),
}

PRESETS = tuple(_PRESETS)
"""Names of all presets."""

_REGIONS = {
    "dc1": "us-east",
    "dc2": "eu-west",
    "dc3": "ap-southeast",
    "dc4": "us-west",
    "dc5": "sa-east",
}
"""What the data centers stand for in `regions`."""

_ROUND_TRIPS_MS = {
    ("us-east", "eu-west"): 68.0,
    ("us-east", "ap-southeast"): 214.0,
    ("us-east", "us-west"): 70.0,
    ("us-east", "sa-east"): 116.0,
    ("eu-west", "ap-southeast"): 180.0,
    ("eu-west", "us-west"): 124.0,
    ("eu-west", "sa-east"): 178.0,
    ("ap-southeast", "us-west"): 168.0,
    ("ap-southeast", "sa-east"): 324.0,
    ("us-west", "sa-east"): 180.0,
}
"""Each pair once, in the order of `_REGIONS`."""


def delay_s(preset: str, a: Place, b: Place) -> float:
    """Give the seconds that a datagram takes from `a` to `b` on an idle path; it is symmetric.

    Presets: `lan` has 40 ms between data centers and `near` 5 ms; in `regions` the data centers
    dc1 to dc5 stand for us-east, eu-west, ap-southeast, us-west and sa-east; all three have 0.1 ms
    in a zone and 0.3 ms between zones. `zero` has no delay at all.
    Raises `ValueError` for any other preset, and for a data center that `regions` lacks.
    Source of `regions`: yearly medians, to whole milliseconds, that a public monitor of round
    trips between the regions of a large cloud gave for 2022, halved.
    """
    known = _PRESETS.get(preset)
    if known is None:
        raise ValueError(f"unknown latency preset {preset!r}; known are {', '.join(PRESETS)}")
    if a == b:
        delay_ms = known.same_zone
    elif a[0] == b[0]:
        delay_ms = known.other_zone
    elif known.other_datacenter is not None:
        delay_ms = known.other_datacenter
    else:
        delay_ms = _between_regions_ms(a[0], b[0])
    return delay_ms / 1000


def drawn_s(base: float, random: Random) -> float:
    """Draw the delay of one datagram on a path that takes `base` seconds when idle.

    Never below `base`. What comes on top is log-normal: a twentieth of `base` in the median, half
    of it in one of a hundred draws, and more now and then, so that datagrams overtake each other.
    """
    # The median of such a draw is 1, and one of a hundred is above 10.
    return base + base * 0.05 * random.lognormvariate(0.0, 1.0)


def _between_regions_ms(a: str, b: str) -> float:
    for datacenter in (a, b):
        if datacenter not in _REGIONS:
            known = ", ".join(f"{name} ({region})" for name, region in _REGIONS.items())
            raise ValueError(f"latency preset 'regions' has no {datacenter!r}; known are {known}")
    pair = (_REGIONS[a], _REGIONS[b])
    return _ROUND_TRIPS_MS[pair if pair in _ROUND_TRIPS_MS else pair[::-1]] / 2
