"""Bounds on over-admission when several data centers share a limit.

Counts of one data center reach the others with a delay, the staleness. Until then the others
decide without them. `ringfence rules check` prints these bounds, and the validation of rule files
uses them. They hold while all links work and the nodes can process the load.
"""

from fractions import Fraction

from msgspec import Struct

from ringfence.limiter.limit import NS_PER_SECOND, Limit

__all__ = [
    "ROUND_NS",
    "SHORTEST_NS",
    "CrossDcBounds",
    "cross_dc_bounds",
    "exceeding",
    "shortest_ns",
]

ROUND_NS = NS_PER_SECOND // 5
"""Average interval between two rounds in which a data center sends counts to the others."""
_JITTER_NS = ROUND_NS // 10
"""Maximum deviation of one interval."""
_HOP_NS = NS_PER_SECOND // 50
"""Allowance for queueing at both ends of one way."""
_SHARE = 100
"""Divisor: a key far from its limit may delay counts of 1 / 100 of the limit for up to a second."""
_WINDOWS = 20
"""Minimum ratio of a period to the staleness."""

SHORTEST_NS = _WINDOWS * ROUND_NS
"""Shortest period of a global limit, even on a network without delay."""


class CrossDcBounds(Struct, frozen=True):
    """Bounds on over-admission for a limit of global scope in several data centers.

    Units are those of the algorithm's own count: hits in a window, or the level of a bucket. The
    over-admission of the algorithm within one data center is not included.
    """

    bound: int
    """Maximum total count while all links work; each data center stops at the limit."""
    ceiling: int
    """Maximum total count when links fail, or when all demand arrives at one instant."""
    staleness_ns: int
    """Maximum age of another data center's count; 0 when no such count is used."""
    is_too_short: bool
    """Whether the period is too short for counts of that age."""
    reason: str
    """Explanation in one sentence."""


def cross_dc_bounds(
    limit: Limit, scope: str, datacenters: int, rtt_ns: int, demand: float
) -> CrossDcBounds:
    """Compute the bounds of a limit with one of the global scopes of `Rule.scope`.

    `datacenters` is at least 1, and `rtt_ns` is the round trip between two of them. `demand` is
    the total demand as a multiple of the limit, even over time and over data centers.
    """
    most = limit.ceiling
    if datacenters < 2:
        return CrossDcBounds(most, most, 0, False, "There is no other data center.")
    if scope == "home":
        reason = "One data center decides; the others apply on_failure when they cannot reach it."
        return CrossDcBounds(most, most, 0, False, reason)
    if scope == "split":
        return _split(limit, datacenters)
    late = _staleness_ns(rtt_ns)
    ceiling = datacenters * most
    others = datacenters - 1
    admitted, unsent = _unseen(limit, datacenters, late, demand)
    centers = "data center admits" if others == 1 else "data centers each admit"
    return CrossDcBounds(
        min(ceiling, most + exceeding(limit, datacenters, late, demand)),
        ceiling,
        late,
        limit.period_ns < _WINDOWS * late,
        f"Counts of others are up to {late / 1e6:g} ms old: at {demand:g} times the limit the "
        f"{others} other {centers} up to {admitted} in that time, and may not have sent {unsent}.",
    )


def exceeding(limit: Limit, datacenters: int, late_ns: int, demand: float) -> int:
    """Return the units above the limit that other data centers admit before their counts arrive.

    When a data center admits its last unit, its own count is exact and the other counts are at most
    `late_ns` old. Only what the others admitted in that time exceeds the limit.
    """
    return (datacenters - 1) * sum(_unseen(limit, datacenters, late_ns, demand))


def shortest_ns(rtt_ns: int) -> int:
    """Return the shortest period of a limit for which counts of other data centers arrive in
    time."""
    return max(SHORTEST_NS, _WINDOWS * _staleness_ns(rtt_ns))


def _unseen(limit: Limit, datacenters: int, late_ns: int, demand: float) -> tuple[int, int]:
    """Return how many units a data center admits in `late_ns`, and how many it may not have sent
    yet."""
    most = limit.ceiling
    admitted = Fraction(demand) * limit.amount * late_ns / (datacenters * limit.period_ns)
    return min(most, -(-admitted.numerator // admitted.denominator)), max(1, most // _SHARE)


def _staleness_ns(rtt_ns: int) -> int:
    """Return the maximum age of another data center's count: the wait until it is sent, and the
    transfer."""
    wait = ROUND_NS + _JITTER_NS
    answer = rtt_ns + 2 * _HOP_NS
    if answer > ROUND_NS - _JITTER_NS:
        # A node that has not acknowledged one round is not sent the next one.
        wait += answer
    return wait + rtt_ns // 2 + _HOP_NS


def _split(limit: Limit, datacenters: int) -> CrossDcBounds:
    most = limit.ceiling
    if limit.burst is not None and limit.amount:
        most = max(most, datacenters)  # Each part of a bucket has at least one unit.
    return CrossDcBounds(
        most,
        most,
        0,
        False,
        "Each data center has a part, and asks the others for more when the part is used up; an "
        "unreachable data center keeps its part.",
    )
