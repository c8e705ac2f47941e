"""Division of a limit into one share for each data center."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ringfence.limiter import Limit
from ringfence.limiter.reference import Counter, SlotNumbers, scheme_of
from ringfence.rules import Rule

__all__ = ["share_of", "split_limits", "used_up"]


def split_limits(rules: Iterable[Rule]) -> dict[bytes, Limit]:
    """Return the whole limits that are divided among data centers, by the id of the rule."""
    divided = [rule for rule in rules if rule.scope == "split"]
    return {rule.id.to_bytes(8, "big"): rule.limit for rule in divided if rule.limit is not None}


def share_of(limit: Limit, datacenter: str, datacenters: Sequence[str]) -> Limit:
    """Return the share of a limit that one data center may admit. Shares are equal; the first data
    centers by name get the remainder."""
    names = sorted({datacenter, *datacenters})
    index, count = names.index(datacenter), len(names)
    burst = limit.burst
    return replace(
        limit,
        amount=_part(limit.amount, index, count),
        # A share of less than one unit has the amount 0, which denies every check.
        burst=None if burst is None else max(1, _part(burst, index, count)),
    )


def _part(amount: int, index: int, count: int) -> int:
    return amount // count + (index < amount % count)


def used_up(limit: Limit, now: int) -> Counter:
    """Create a counter of the whole limit after all its units are used at `now`."""
    scheme = scheme_of(limit, SlotNumbers(1))
    return scheme.open(now, scheme.ceiling)
