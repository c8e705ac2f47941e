"""Checks of one key by a client that borrows units, while something happens to the key's owner."""

from itertools import count

from hashring import shard_of
from ringfence import runtime
from ringfence.client.limiter import Limiter
from ringfence.rules import Descriptor
from ringfence.wire import Source
from simulations.scenarios.generate_rules import LENT_RULE
from simulations.world.named_rules import DOMAIN
from simulations.world.world import World

__all__ = ["Spending", "owned_request", "used_units"]

_TOGETHER = 4
"""Checks at a time, which make a key hot."""
_PAUSE_S = 0.1
_UNCONFIRMED = (Source.POLICY, Source.SHED)
"""Sources of decisions that no node made, although a node may have counted the check."""


class Spending:
    """Checks of one key by a client, and the units that they admitted."""

    def __init__(self, limiter: Limiter, request: dict[str, str]) -> None:
        self._limiter = limiter
        self._request = request
        self._admitted = 0
        self._unconfirmed = 0
        self.is_over = False

    async def run(self) -> None:
        """Make several checks at a time until `is_over` is set."""
        while not self.is_over:
            async with runtime.open_task_group() as tasks:
                for _ in range(_TOGETHER):
                    tasks.start_soon(self._check)
            await runtime.sleep(_PAUSE_S)

    async def _check(self) -> None:
        decision = await self._limiter.check(DOMAIN, self._request)
        if decision.source in _UNCONFIRMED:
            self._unconfirmed += 1
        else:
            self._admitted += decision.allowed

    async def wrong_count(self, limiter: Limiter, when: str) -> list[str]:
        """Compare the units that the owner counts with the admitted ones."""
        used, least = await used_units(limiter, self._request), self._admitted
        if used is None or least <= used <= least + self._unconfirmed:
            return []
        return [f"the owner must count {least} units {when}, got {used}"]


async def used_units(limiter: Limiter, request: dict[str, str]) -> int | None:
    """Return the units that the owner of a key counts; None without an answer of a node."""
    decision = await limiter.peek(DOMAIN, request)
    [status] = decision.statuses
    if decision.source in _UNCONFIRMED or status.limit is None:
        return None
    return status.limit - (status.remaining or 0)


def owned_request(world: World, name: str, prefix: str, rule: str = LENT_RULE) -> dict[str, str]:
    """Return a request whose key starts with a prefix and belongs to a node."""
    node = world.hosts.by_name[name].node
    assert node is not None
    for number in count():
        request = {rule: f"{prefix}-{number}"}
        [match] = world.rules.match(DOMAIN, [Descriptor(tuple(request.items()))])
        assert match is not None
        if node.cluster.ring.owner(shard_of(match.key)) == name:
            return request
    raise AssertionError("unreachable")
