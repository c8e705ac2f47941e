"""Division of a limit into one share for each data center."""

from collections.abc import Sequence
from dataclasses import replace

from ringfence.limiter import Limit

__all__ = ["share_of"]


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
