"""Reader of the keys `scope` and `global`: whether one data center or all of them share a limit.

Validates the two keys, and rejects limits that cannot hold in all data centers at once.
`cross_dc_bounds` computes by how much such a limit may be exceeded.
"""

from collections.abc import Mapping

from ringfence.limiter.limit import NS_PER_SECOND, Algorithm, Limit
from ringfence.rules.cross_dc_bounds import SHORTEST_NS
from ringfence.rules.loading.cursor import Cursor
from ringfence.rules.loading.values import Item

__all__ = ["check_scope", "read_scope"]

_GOSSIPED = (
    *(Algorithm.SLIDING_WINDOW, Algorithm.FIXED_WINDOW),
    *(Algorithm.TOKEN_BUCKET, Algorithm.LEAKY_BUCKET),
)
"""Algorithms that can use counts of other data centers."""
_HOME = "`global: {mode: home, home: NAME}`"
_SPLIT = "`global: {mode: split}`"
_KEYS_OF_SCOPE = {"global": "scope: global", "split": "global: {mode: split}"}
"""Keys that set a scope, for messages."""


def read_scope(
    cursor: Cursor, fields: Mapping[str, Item], base: tuple[str, str]
) -> tuple[str, str]:
    """Return the scope of a rule and its home data center, or `base` when the keys are absent.

    The home data center is empty for most scopes. `scope: global` without `global` takes the mode
    from `base` when `base` has one.
    """
    scope = cursor.choice(fields, "scope", ("datacenter", "global"))
    item = fields.get("global")
    if item is None:
        overrides = scope and (scope == "datacenter" or base[0] == "datacenter")
        return (scope, "") if overrides else base
    if scope == "datacenter":
        fix = "keep one of them: `global` is for limits that hold in all data centers"
        cursor.error(item.line, "`scope: datacenter` excludes global", fix)
    table = cursor.table(item, "global")
    if table is None:
        return base
    below = cursor.below("global")
    inner = below.fields(table, ("mode", "home"), {})
    mode = below.choice(inner, "mode", ("gossip", "split", "home"))
    home = below.text(inner, "home")
    if mode == "home":
        if not home:
            fix = "add `home: NAME` with the name of the data center that decides"
            below.error(item.line, "mode home needs a home", fix)
        return "home", home
    if home:
        fix = "write `mode: home`, or remove it"
        below.error(inner["home"].line, "home needs mode home", fix)
    return ("split" if mode == "split" else "global"), ""


def check_scope(cursor: Cursor, line: int, scope: str, limit: Limit, *, is_default: bool) -> None:
    """Report a limit whose algorithm or period does not permit its scope.

    With `is_default`, the scope comes from `defaults`. Then it is an error too: without this scope,
    each data center would admit the whole limit, which the file does not state.
    """
    found = _problem_of(scope, limit)
    if found is not None:
        what, fix = found
        if is_default:
            what += f" (the map `defaults` sets `{_KEYS_OF_SCOPE[scope]}`)"
        cursor.error(line, what, f"use {fix}")


def _problem_of(scope: str, limit: Limit) -> tuple[str, str] | None:
    """Return why a limit does not permit its scope, and what to use instead; None if it does."""
    algorithm = limit.algorithm
    if scope == "split" and (algorithm is Algorithm.CONCURRENCY or limit.queue):
        what = "concurrency limits and queues cannot be split among data centers"
        return what, f"{_HOME} or `scope: datacenter`"
    if scope == "global" and algorithm not in _GOSSIPED:
        what = f"{algorithm} cannot use counts of other data centers"
        other = f"one of {', '.join(_GOSSIPED)}"
        if algorithm is Algorithm.SLIDING_WINDOW_LOG:
            other = f"sliding_window with `slots`, {_SPLIT}"
        return what, f"{other}, {_HOME} or `scope: datacenter`"
    if scope == "global" and limit.period_ns < SHORTEST_NS:
        what = (
            "counts of other data centers arrive too late for a period of "
            f"{limit.period_ns / NS_PER_SECOND:g} s"
        )
        least = f"at least {SHORTEST_NS // NS_PER_SECOND} s"
        return what, f"{least}, {_SPLIT}, {_HOME} or `scope: datacenter`"
    return None
