"""A limit divided among data centers, so that all of them together never exceed it."""

from collections.abc import Sequence
from dataclasses import replace

from ringfence.limiter import Limit

__all__ = ["share_of"]


def share_of(limit: Limit, datacenter: str, datacenters: Sequence[str]) -> Limit:
    """Find one data center's share: equal parts, what is left over to the first ones by name."""
    names = sorted({datacenter, *datacenters})
    index, count = names.index(datacenter), len(names)
    burst = limit.burst
    return replace(
        limit,
        amount=_part(limit.amount, index, count),
        # A bucket of nothing cannot be: with less than one unit each, the amount 0 refuses all.
        burst=None if burst is None else max(1, _part(burst, index, count)),
    )


def _part(amount: int, index: int, count: int) -> int:
    return amount // count + (index < amount % count)
