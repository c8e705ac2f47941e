"""Who shares a limit: the keys `scope` and `global` of a `rate_limit` or of `defaults`.

Decides what they may say and which limits can hold in all data centers at once. How far a limit is
exceeded there is `reach`'s, how it is counted the node's.
"""

from collections.abc import Mapping

from ringfence.limiter.limit import NS_PER_SECOND, Algorithm, Limit
from ringfence.rules.cross_dc_bounds import SHORTEST_NS
from ringfence.rules.loading.source import Cursor, Item

__all__ = ["check_scope", "read_scope"]

_TOLD = (
    *(Algorithm.SLIDING_WINDOW, Algorithm.FIXED_WINDOW),
    *(Algorithm.TOKEN_BUCKET, Algorithm.LEAKY_BUCKET),
)
"""Algorithms that can count what other data centers tell."""
_HOME = "`global: {mode: home, home: NAME}`"
_SPLIT = "`global: {mode: split}`"


def read_scope(spot: Cursor, fields: Mapping[str, Item], base: tuple[str, str]) -> tuple[str, str]:
    """Read the scope of a rule, and the home of one that has it; `base` when nothing is said.

    A bare `scope: global` leaves to `base` how the limit holds, if that says so.
    """
    scope = spot.choice(fields, "scope", ("datacenter", "global"))
    item = fields.get("global")
    if item is None:
        is_said = scope and (scope == "datacenter" or base[0] == "datacenter")
        return (scope, "") if is_said else base
    if scope == "datacenter":
        mend = "keep one of them: `global` says how a limit holds in all data centers"
        spot.error(item.line, "`scope: datacenter` together with global", mend)
    table = spot.table(item, "global")
    if table is None:
        return base
    below = spot.below("global")
    inner = below.fields(table, ("mode", "home"), {})
    mode = below.choice(inner, "mode", ("gossip", "split", "home"))
    home = below.text(inner, "home")
    if mode == "home":
        if not home:
            mend = "add `home: NAME` of the data center that decides"
            below.error(item.line, "mode home without a home", mend)
        return "home", home
    if home:
        mend = "write `mode: home`, or drop it"
        below.error(inner["home"].line, "home belongs to mode home", mend)
    return ("split" if mode == "split" else "global"), ""


def check_scope(spot: Cursor, line: int, scope: str, limit: Limit) -> None:
    """Report a limit that cannot hold in all data centers the way `scope` says."""
    algorithm = limit.algorithm
    if scope == "split" and (algorithm is Algorithm.CONCURRENCY or limit.queue):
        what = "units in flight and queues cannot be split among data centers"
        spot.error(line, what, f"use {_HOME} or `scope: datacenter`")
    elif scope == "global" and algorithm not in _TOLD:
        what = f"{algorithm} cannot count what other data centers tell"
        other = f"one of {', '.join(_TOLD)}"
        if algorithm is Algorithm.SLIDING_WINDOW_LOG:
            other = f"sliding_window with `slots`, {_SPLIT}"
        spot.error(line, what, f"use {other}, {_HOME} or `scope: datacenter`")
    elif scope == "global" and limit.period_ns < SHORTEST_NS:
        what = (
            "counts of other data centers come too late for a period of "
            f"{limit.period_ns / NS_PER_SECOND:g} s"
        )
        least = f"at least {SHORTEST_NS // NS_PER_SECOND} s"
        spot.error(line, what, f"use {least}, {_SPLIT}, {_HOME} or `scope: datacenter`")
