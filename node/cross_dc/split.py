"""Division of a limit into one share for each data center."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ringfence.limiter import Limit
from ringfence.limiter.reference import Counter, SlotNumbers, scheme_of
from ringfence.rules import Rule

__all__ = ["largest_shares", "share_of", "used_up"]


def largest_shares(rules: Iterable[Rule], datacenters: Sequence[str]) -> dict[bytes, Limit]:
    """Return the largest share of each limit that is divided among data centers, by the id of the
    rule."""
    first = min(datacenters)
    return {
        rule.id.to_bytes(8, "big"): share_of(rule.limit, first, datacenters)
        for rule in rules
        if rule.scope == "split" and rule.limit is not None
    }


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
    """Create a counter after all units of a limit are used at `now`."""
    scheme = scheme_of(limit, SlotNumbers(1))
    return scheme.open(now, scheme.ceiling)
