"""How far over a limit several data centers can go together, known before it is used.

What one data center admits reaches the others after a while, the staleness; until then they decide
without it. Here are the numbers, for `ringfence rules check` and for what rule files may say; the
counting is the node's. All of it holds while links hold and the nodes keep up with the keys.
"""

from dataclasses import dataclass
from fractions import Fraction

from ringfence.limiter.limit import NS_PER_SECOND, Limit

__all__ = ["ROUND_NS", "SHORTEST_NS", "Reach", "exceeding", "reach_of", "shortest_ns"]

ROUND_NS = NS_PER_SECOND // 5
"""Between two rounds in which a data center tells the others, on average."""
_JITTER_NS = ROUND_NS // 10
"""By how much a round may be earlier or later."""
_HOP_NS = NS_PER_SECOND // 50
"""Allowed for queues on both sides of one way."""
_SHARE = 100
"""A key far from its limit may keep 1 / 100 of it untold for up to a second."""
_WINDOWS = 20
"""A period must be so many times as long as the counts are late."""

SHORTEST_NS = _WINDOWS * ROUND_NS
"""Whatever the network, counts come too late for a shorter period."""


@dataclass(frozen=True, slots=True)
class Reach:
    """What a limit of global scope holds over several data centers.

    Units are those of the algorithm's own count: how many in a window, how full a bucket. What any
    true period can hold beyond that within one data center comes on top.
    """

    bound: int
    """Most units counted together while all links hold, where one data center stops at the
    limit."""
    ceiling: int
    """Most units counted together when links are cut, or all demand comes in one instant."""
    staleness_ns: int
    """Age of another data center's count, at most; 0 where none is used."""
    is_too_short: bool
    """Whether the period is too short for counts of that age."""
    reason: str
    """Why, in one sentence."""


def reach_of(limit: Limit, scope: str, datacenters: int, rtt_ns: int, demand: float) -> Reach:
    """Bound a limit of one of the global scopes, as `Rule.scope` names them.

    `datacenters` is 1 or more, `rtt_ns` the round trip between two of them, `demand` what all
    callers together ask as a multiple of the limit, evenly in time and from everywhere.
    """
    most = limit.ceiling
    if datacenters < 2:
        return Reach(most, most, 0, False, "There is no other data center.")
    if scope == "home":
        reason = "One data center decides, and on_failure where it cannot be reached."
        return Reach(most, most, 0, False, reason)
    if scope == "split":
        return _split(limit, datacenters)
    late = _staleness_ns(rtt_ns)
    ceiling = datacenters * most
    others = datacenters - 1
    arriving, untold = _unseen(limit, datacenters, late, demand)
    centers = "data center admits" if others == 1 else "data centers each admit"
    return Reach(
        min(ceiling, most + exceeding(limit, datacenters, late, demand)),
        ceiling,
        late,
        limit.period_ns < _WINDOWS * late,
        f"Counts of others are up to {late / 1e6:g} ms old: at {demand:g} times the limit the "
        f"{others} other {centers} up to {arriving} meanwhile, and may keep {untold} untold.",
    )


def exceeding(limit: Limit, datacenters: int, late_ns: int, demand: float) -> int:
    """Count the units above the limit that the others admit before one data center hears of them.

    At the last unit that a data center admits, its own count is exact and the rest at most
    `late_ns` old, so beyond the limit goes only what the others admitted since.
    """
    return (datacenters - 1) * sum(_unseen(limit, datacenters, late_ns, demand))


def shortest_ns(rtt_ns: int) -> int:
    """Tell the shortest period for which counts come in time."""
    return max(SHORTEST_NS, _WINDOWS * _staleness_ns(rtt_ns))


def _unseen(limit: Limit, datacenters: int, late_ns: int, demand: float) -> tuple[int, int]:
    """What one data center admits in this time, and what it need not tell at once."""
    most = limit.ceiling
    arriving = Fraction(demand) * limit.amount * late_ns / (datacenters * limit.period_ns)
    return min(most, -(-arriving.numerator // arriving.denominator)), max(1, most // _SHARE)


def _staleness_ns(rtt_ns: int) -> int:
    """Add up how long a unit just missed by one round waits for the next, and the way it takes."""
    wait = ROUND_NS + _JITTER_NS
    answer = rtt_ns + 2 * _HOP_NS
    if answer > ROUND_NS - _JITTER_NS:
        # Nothing more is told to a node that has not confirmed the round before.
        wait += answer
    return wait + rtt_ns // 2 + _HOP_NS


def _split(limit: Limit, datacenters: int) -> Reach:
    most = limit.ceiling
    if limit.burst is not None and limit.amount:
        most = max(most, datacenters)  # No part of a bucket is smaller than one unit.
    return Reach(
        most,
        most,
        0,
        False,
        "Each data center has its part, and asks the others when that is used up; the part of one "
        "that cannot be reached stays its own.",
    )
