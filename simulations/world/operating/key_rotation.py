"""Rotation of the cluster key at the end of a run, and revocation of a client's token.

An operator changes the keys of all nodes one after another, as `ringfence keys rotate` describes.
The members stay connected, and the clients with valid tokens notice nothing. While the owner of a
key is restarted, a client borrows units. Afterwards, exactly the admitted units must be counted.
"""

from collections.abc import Sequence
from itertools import count
from random import Random

from hashring import shard_of
from node.node import Node
from ringfence import runtime
from ringfence.client.limiter import Limiter
from ringfence.errors import AccessDenied
from ringfence.rules import Descriptor
from ringfence.wire import Source
from simulations.scenarios.generate_rules import LENT_RULE
from simulations.world.hosts import Client, Hosts
from simulations.world.named_rules import DOMAIN
from simulations.world.world import RESETTER, World

__all__ = ["wrong_rotation"]

_STEP_S = 0.4
"""Seconds between the changes of two nodes."""
_CHANGED_S = 1.0
"""Seconds after a change until members have probed each other, and are connected again."""
_TRIES = 20
"""Most times of that length until a node that joins has its shards."""
_ATTEMPTS = 3
"""Attempts of each query."""
_TOGETHER = 4
"""Checks at a time, which make a key hot."""
_SPENDING_PAUSE_S = 0.1
_BORROWED_S = 0.5
"""Seconds of checks until the restart."""
_RETURNED_S = 1.5
"""Seconds after the last check until each lease has ended."""
_KEY_BYTES = 32
_REQUEST = {LENT_RULE: "rotated"}


async def wrong_rotation(
    world: World, client: Client, revoked: Client, random: Random
) -> list[str]:
    """Rotate the cluster key, restart a node, and revoke a token; return what was wrong.

    `client` keeps its token, and `revoked` loses it.
    """
    hosts = world.hosts
    nodes, key = hosts.nodes(), random.randbytes(_KEY_BYTES)
    [old] = nodes[0].access.current.cluster_keys
    before = _refusals(nodes)
    wrong: list[str] = []
    for keys in ((old, key), (key, old)):
        ended = await _change(world, keys)
        if ended:
            wrong.append(f"{ended} connections ended while the old cluster key was valid")
    await _change(world, (key,))
    if _refusals(nodes) != before:
        wrong.append("members refused datagrams or died during the rotation of the cluster key")
    here = sorted(hosts.in_ring().intersection(hosts.in_datacenter(client.datacenter)))
    name = random.choice(here)
    spending = _Spending(client.limiter, _owned(world, name))
    async with runtime.open_task_group() as tasks:
        tasks.start_soon(spending.run)
        await runtime.sleep(_BORROWED_S)
        await world.leave(name)
        world.lose_seeds(name, False)  # A fault may have given it wrong seed addresses.
        await world.start(name)
        if not await _is_settled(hosts):
            wrong.append(f"{name} did not join again with the new cluster key")
        spending.is_over = True
    await runtime.sleep(_RETURNED_S)
    if len(here) > 1:  # Otherwise no node stays that could fetch the counters.
        wrong += await spending.wrong_count(revoked.limiter)
    wrong += [
        f"{node.name} does not reach all members after the rotation of the cluster key"
        for node in hosts.nodes()
        if await _missing(node, hosts.nodes())
    ]
    for each in (client, revoked):
        if await _source(each.limiter) is not Source.OWNER:
            wrong.append(f"{each.address[0]} gets no decision after the rotation")
    await _change(world, (key,), without=RESETTER)
    if await _source(client.limiter) is not Source.OWNER:
        wrong.append("the revocation of a token affects clients with another token")
    if await _source(revoked.limiter) is Source.OWNER:
        wrong.append("a client with a revoked token gets decisions")
    return wrong


class _Spending:
    """Checks of one key by a client that borrows units, while the owner of the key restarts."""

    def __init__(self, limiter: Limiter, request: dict[str, str]) -> None:
        self._limiter = limiter
        self._request = request
        self._admitted = 0
        self.is_over = False

    async def run(self) -> None:
        """Make several checks at a time until it is over."""
        while not self.is_over:
            async with runtime.open_task_group() as tasks:
                for _ in range(_TOGETHER):
                    tasks.start_soon(self._check)
            await runtime.sleep(_SPENDING_PAUSE_S)

    async def _check(self) -> None:
        decision = await self._limiter.check(DOMAIN, self._request)
        self._admitted += decision.allowed

    async def wrong_count(self, limiter: Limiter) -> list[str]:
        """Compare the units that the owner counts with the admitted ones."""
        [status] = (await limiter.peek(DOMAIN, self._request)).statuses
        used = (status.limit or 0) - (status.remaining or 0)
        if used == self._admitted:
            return []
        return [f"the owner must count {self._admitted} units after a restart, got {used}"]


def _owned(world: World, name: str) -> dict[str, str]:
    """Return a request whose key belongs to a node."""
    node = world.hosts.by_name[name].node
    assert node is not None
    for number in count():
        request = {LENT_RULE: f"moved-{number}"}
        [match] = world.rules.match(DOMAIN, [Descriptor(tuple(request.items()))])
        assert match is not None
        if node.cluster.ring.owner(shard_of(match.key)) == name:
            return request
    raise AssertionError("unreachable")


async def _change(world: World, keys: tuple[bytes, ...], without: str = "") -> int:
    """Give all nodes other cluster keys in turn; return how many connections ended."""
    ended = 0
    for host in world.hosts.running():
        ended += world.change_access(host, keys, without)
        await runtime.sleep(_STEP_S)
    await runtime.sleep(_CHANGED_S)
    return ended


async def _is_settled(hosts: Hosts) -> bool:
    """Return whether all nodes run, are members, and hold their shards within some time."""
    for _ in range(_TRIES):
        await runtime.sleep(_CHANGED_S)
        if len(hosts.running()) == len(hosts.names()) and hosts.is_settled():
            return True
    return False


def _refusals(nodes: Sequence[Node]) -> int:
    """Return how many datagrams were refused, except repeated ones, and how many members died."""
    return sum(
        count
        for node in nodes
        for name, count in node.queries.stats(1).counters.items()
        if name == "gossip_deaths"
        or (name.startswith("gossip_refused_") and not name.endswith("_replayed"))
    )


async def _missing(node: Node, nodes: Sequence[Node]) -> list[str]:
    """Return the members that do not answer a query of a node.

    A node that sends rarely may first find several dead connections. Between regions, a query may
    take longer than its time-out while the connection begins.
    """
    missing: list[str] = [each.name for each in nodes]
    for attempt in range(_ATTEMPTS):
        if missing and attempt:
            await runtime.sleep(_CHANGED_S)
        missing = [name for name in missing if await node.queries.counters_of(name) is None]
    return missing


async def _source(limiter: Limiter) -> Source | None:
    """Return who decides a check of a client; None if its token is refused."""
    try:
        return (await limiter.check(DOMAIN, _REQUEST)).source
    except AccessDenied:
        return None
