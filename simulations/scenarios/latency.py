"""Network delay between two hosts when there are no faults.

A preset gives the delay of an idle path. `draw_delay_s` adds a random queueing delay. The network
itself models loss, repeats and cuts.
"""

from functools import cache
from math import inf
from random import Random
from typing import TypeAlias

from msgspec import Struct

__all__ = ["PRESETS", "Place", "delay_s", "draw_delay_s", "round_trip_s"]

Place: TypeAlias = tuple[str, str]
"""Data center and zone of a host."""


class _Preset(Struct, frozen=True):
    """One-way delays of a kind of network, in milliseconds."""

    same_zone: float
    other_zone: float
    other_datacenter: float | None
    """Delay between data centers; None if `_ROUND_TRIPS_MS` gives the delay of each pair."""


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
"""Cloud regions that the data centers represent in `regions`."""

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
"""Round trips of each pair, in the order of `_REGIONS`."""


def delay_s(preset: str, a: Place, b: Place) -> float:
    """Return the one-way delay in seconds between `a` and `b` on an idle path; it is symmetric.

    Preset `lan` has 40 ms between data centers, and `near` has 5 ms. In `regions`, data centers dc1
    to dc5 represent us-east, eu-west, ap-southeast, us-west and sa-east. All three have 0.1 ms in a
    zone and 0.3 ms between zones. `zero` has no delay. Raises `ValueError` for any other preset,
    and for an unknown data center in `regions`.

    The delays of `regions` are half of the median round trips of 2022 between regions of a large
    cloud. A public monitor published them; they are rounded to milliseconds.
    """
    known = _PRESETS.get(preset)
    if known is None:
        raise ValueError(f"latency preset must be one of {', '.join(PRESETS)}, got {preset!r}")
    if a == b:
        delay_ms = known.same_zone
    elif a[0] == b[0]:
        delay_ms = known.other_zone
    elif known.other_datacenter is not None:
        delay_ms = known.other_datacenter
    else:
        delay_ms = _between_regions_ms(a[0], b[0])
    return delay_ms / 1000


def draw_delay_s(base: float, random: Random) -> float:
    """Draw the delay of one datagram on a path with an idle delay of `base` seconds.

    The result is at least `base`. The additional delay is log-normal: its median is 5 % of `base`,
    and its 99th percentile 50 %. Datagrams may therefore overtake each other.
    """
    # This distribution has a median of 1 and a 99th percentile of 10.
    return base + base * 0.05 * random.lognormvariate(0.0, 1.0)


def _between_regions_ms(a: str, b: str) -> float:
    for datacenter in (a, b):
        if datacenter not in _REGIONS:
            known = ", ".join(f"{name} ({region})" for name, region in _REGIONS.items())
            raise ValueError(
                f"data center of preset 'regions' must be one of {known}, got {datacenter!r}"
            )
    pair = (_REGIONS[a], _REGIONS[b])
    return _ROUND_TRIPS_MS[pair if pair in _ROUND_TRIPS_MS else pair[::-1]] / 2


@cache
def round_trip_s(latency: str, places: tuple[tuple[str, str], ...], datacenter: str) -> float:
    """Return the shortest round trip from a data center to another one; infinity without another.

    `places` are data centers with their zones.
    """
    return min(
        [
            2 * delay_s(latency, here, there)
            for here in places
            for there in places
            if here[0] == datacenter != there[0]
        ],
        default=inf,
    )
