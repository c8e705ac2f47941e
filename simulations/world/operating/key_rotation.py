"""Rotation of the cluster key at the end of a run, and revocation of a client's token.

An operator changes the keys of all nodes one after another, as `ringfence keys rotate` describes.
The members stay connected, and the clients with valid tokens notice nothing. While the owner of a
key is restarted, a client borrows units. Afterwards, exactly the admitted units must be counted.
"""

from collections.abc import Sequence
from random import Random

from node.node import Node
from ringfence import runtime
from ringfence.client.limiter import Limiter
from ringfence.errors import AccessDenied
from ringfence.wire import Source
from simulations.scenarios.generate_rules import LENT_RULE
from simulations.world.hosts import Client, Hosts
from simulations.world.named_rules import DOMAIN
from simulations.world.operating.spending import Spending, owned_request
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
    spending = Spending(client.limiter, owned_request(world, name, "moved"))
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
        wrong += await spending.wrong_count(revoked.limiter, "after a restart")
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
    """Return the source of a decision for a client; None if its token is refused."""
    try:
        return (await limiter.check(DOMAIN, _REQUEST)).source
    except AccessDenied:
        return None
