"""Keys that a chosen node owns, and races of clients for the units of one key."""

from collections.abc import Mapping, Sequence
from itertools import islice

import trio

from hashring import shard_of
from ringfence.client.decision import Decision
from ringfence.client.limiter import Limiter
from ringfence.limiter import Limit
from ringfence.rules import adhoc_rule, encode_key
from tests.node.cluster import of, ring_of


async def race(limiters: Sequence[Limiter], descriptor: Mapping[str, str]) -> int:
    """Send checks of one key from all clients at once; return how many were admitted."""
    decisions: list[Decision] = []

    async def ask(limiter: Limiter) -> None:
        decisions.append(await limiter.check("api", descriptor))

    async with trio.open_nursery() as nursery:
        for limiter in limiters:
            nursery.start_soon(ask, limiter)
    return sum(of(decisions))


def key_owned_by(
    owner: str, limit: Limit, names: Sequence[str] = ("a", "b"), number: int = 0
) -> str:
    """Return a key that the ring of `names` assigns to `owner`; each `number` has a different
    key."""
    rule = adhoc_rule(limit)
    ring = ring_of(names)
    keys = (str(i) for i in range(1000))
    owned = (key for key in keys if ring.owner(shard_of(encode_key(rule.id, (key,)))) == owner)
    return next(islice(owned, number, None))
