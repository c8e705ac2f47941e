"""Several nodes and real embedded clients on a network in memory, on virtual time, for tests."""

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import islice
from random import Random

import trio

from gossip import Record
from hashring import Member, NodeId, Ring, shard_of
from node.config.access import Access
from node.config.settings import NodeSettings
from node.context.containment import Containment
from node.node import Node
from ringfence.client.cluster.cluster import Cluster, ClusterSettings
from ringfence.client.decision import Decision
from ringfence.client.limiter import Limiter
from ringfence.limiter import Limit
from ringfence.peering.link import LinkSettings
from ringfence.rules import Descriptor, RuleSet, adhoc_rule, encode_key
from ringfence.rules.loading.yaml_files import load_text
from ringfence.transport.interface import Address
from ringfence.transport.memory import MemoryNetwork
from ringfence.wire import Hello, Role

logger = logging.getLogger("ringfence.node")


def raise_(error: Exception) -> None:
    raise error


CONTAINMENT = Containment(logger, lambda: 0.0, raise_)
"""Containment for parts without a node: it raises each internal error again."""
NAMES = ("a", "b", "c")
OPEN = Access(cluster="ringfence", is_open=True)
"""Access of all callers, without keys."""
RULES = """
domain: api
descriptors:
  - key: client
    rate_limit: {unit: minute, requests_per_unit: 5, algorithm: fixed_window}
  - key: tenant
    rate_limit: {unit: minute, requests_per_unit: 100, algorithm: fixed_window}
  - key: strict
    rate_limit: {unit: minute, requests_per_unit: 5, on_failure: deny}
  - key: alone
    rate_limit: {unit: minute, requests_per_unit: 2, algorithm: fixed_window, on_failure: local}
  - key: one
    rate_limit: {unit: minute, requests_per_unit: 1, algorithm: fixed_window}
"""


class HandClock:
    """Wall clock of all nodes, which only tests change. It starts in the middle of a minute."""

    def __init__(self) -> None:
        self.time = 30 * 10**9

    def now(self) -> int:
        return self.time


def address_of(name: str) -> Address:
    return name, 7101


@cache
def ring_of(names: Sequence[str]) -> Ring:
    return Ring.of(Member(NodeId(name)) for name in names)


def owned(
    rules: RuleSet, key: str, owner: str, number: int = 0, names: Sequence[str] = NAMES
) -> dict[str, str]:
    """Return a descriptor whose counter has this owner, in the ring of the members `names`."""
    found = (
        {key: f"{owner}{i}"}
        for i in range(200)
        if ring_of(names).owner(shard_of(counter(rules, key, f"{owner}{i}"))) == owner
    )
    return next(islice(found, number, None))


def counter(rules: RuleSet, key: str, value: str) -> bytes:
    [match] = rules.match("api", [Descriptor(((key, value),))])
    assert match is not None
    return match.key


@dataclass
class World:
    nursery: trio.Nursery
    network: MemoryNetwork
    clock: HandClock
    rules: RuleSet
    nodes: dict[str, Node] = field(default_factory=dict)
    scopes: dict[str, trio.CancelScope] = field(default_factory=dict)
    bugs: list[Exception] = field(default_factory=list)
    access: Access = OPEN
    clients: int = 0
    started: set[str] = field(default_factory=set)

    async def start(
        self,
        name: str,
        *,
        rules: RuleSet | None = None,
        datacenter: str = "dc1",
        zone: str = "",
        pause: float = 0.0,
        seeds: Sequence[str] | None = None,
        host: str = "",
    ) -> Node:
        """Start a node that joins the running nodes, `pause` seconds after its port is open.

        The default of `seeds` is the names of all running nodes. Without seeds, the node starts
        alone. The default of `host` is the name of the node.
        """
        node = self._new_node(name, rules=rules, datacenter=datacenter, zone=zone, host=host)
        others = [address_of(other) for other in (self.nodes if seeds is None else seeds)]
        await self._run_node(node, others, pause=pause)
        return node

    async def start_together(self, names: Sequence[str]) -> None:
        """Start nodes that know each other and have their shards from the start, without joins."""
        nodes = [self._new_node(name, is_founder=True) for name in names]
        records = [node.membership.me for node in nodes]
        for node in nodes:
            seeds = [address_of(other) for other in self.nodes]
            await self._run_node(node, seeds, founders=records)

    def _new_node(
        self,
        name: str,
        *,
        rules: RuleSet | None = None,
        datacenter: str = "dc1",
        zone: str = "",
        host: str = "",
        is_founder: bool = False,
    ) -> Node:
        if name in self.started:
            self.clock.time += 1_000_000  # A restarted node needs another generation.
        self.started.add(name)
        return Node(
            NodeSettings(
                name=name,
                listen=f"{host or name}:7101",
                datacenter=datacenter,
                zone=zone,
                drain_timeout=5.0,
            ),
            self.access,
            rules or self.rules,
            clock=self.clock,
            random=Random(name + host),
            containment=Containment(logger, trio.current_time, self.bugs.append),
            is_founder=is_founder,
        )

    async def _run_node(
        self,
        node: Node,
        others: Sequence[Address],
        *,
        pause: float = 0.0,
        founders: Sequence[Record] = (),
    ) -> None:
        name = node.name
        transport = self.network.transport(
            node.settings.advertise_at,
            on_bug=partial(node.containment.failed, "transport"),
            accept=node.accept,
        )

        async def resolve() -> Sequence[Address]:
            return others

        async def run_all(task_status: trio.TaskStatus[trio.CancelScope]) -> None:
            async with trio.open_nursery() as nursery:
                await nursery.start(transport.run)
                if pause:
                    await trio.sleep(pause)
                run = partial(node.run, founders=founders)
                await nursery.start(run, transport, resolve if others else None)
                task_status.started(nursery.cancel_scope)

        self.nodes[name] = node
        self.scopes[name] = await self.nursery.start(run_all)

    async def settle(self) -> None:
        """Wait until all running nodes see the same members and hold the shards that they own."""
        with trio.fail_after(30):
            while not all(self._is_settled(node) for node in self.nodes.values()):  # noqa: ASYNC110
                await trio.sleep(0.1)

    def _is_settled(self, node: Node) -> bool:
        in_ring = ("alive", "suspect")
        alive = {row.name for row in node.queries.members(1).members if row.state in in_ring}
        counters = node.queries.stats(1).counters
        return alive == set(self.nodes) and counters["held_shards"] == counters["owned_shards"]

    async def crash(self, name: str) -> None:
        """End a node immediately, as a power failure would."""
        self.network.crash(address_of(name))
        self.scopes.pop(name).cancel()
        self.nodes.pop(name)
        await trio.lowlevel.checkpoint()

    async def stop(self, name: str) -> None:
        """Make a node transfer its shards and leave, then end it."""
        await self.nodes.pop(name).leave()
        self.scopes.pop(name).cancel()
        await trio.sleep(0.01)  # until its address is free

    @asynccontextmanager
    async def client(
        self,
        *seeds: str,
        only: bool = False,
        rules: RuleSet | None = None,
        answer_timeout: float = 0.5,
        standby_after: float | None = None,
        link: LinkSettings | None = None,
        raise_on_outage: bool = False,
        denials: int = 1000,
        leases: bool = True,
    ) -> AsyncIterator[Limiter]:
        """Run an embedded client that has joined; with `only`, it sends all checks to its seed."""
        self.clients += 1
        number = self.clients
        transport = self.network.transport((f"client{number}", 1), on_bug=self.bugs.append)
        cluster = Cluster(
            transport,
            [address_of(seed) for seed in seeds or NAMES],
            Hello(Role.CLIENT, "app", b"", number),
            ClusterSettings(
                link=link or LinkSettings(answer_timeout=answer_timeout),
                ask_owners=not only,
                hedge_after=standby_after,
                denial_cache_size=denials,
                use_leases=leases,
            ),
            self.clock,
            Random(number),
            None if rules is None else rules.as_carried(),
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(transport.run)
            await nursery.start(cluster.run)
            await cluster.wait_joined(5.0)
            yield Limiter(cluster, raise_on_outage=raise_on_outage, local_cache=cluster.local_cache)
            await cluster.aclose()
            transport.flush()
            nursery.cancel_scope.cancel()

    def count(self, name: str, counter: str) -> int:
        return self.nodes[name].queries.stats(1).counters.get(counter, 0)

    def total(self, counter: str) -> int:
        return sum(self.count(name, counter) for name in self.nodes)


@asynccontextmanager
async def world(
    *names: str, rules: str = RULES, at: int = 30 * 10**9, joins: bool = False
) -> AsyncIterator[World]:
    """Run nodes that know each other and have their shards.

    With `joins`, each node joins the earlier nodes, so that links exist and members were probed.
    """
    async with empty_world(rules=rules, at=at) as made:
        names = names or NAMES
        if not joins and len(names) > 1:
            await made.start_together(names)
        for name in [name for name in names if name not in made.nodes]:
            await made.start(name)
        await made.settle()
        yield made


@asynccontextmanager
async def empty_world(*, rules: str = RULES, at: int = 30 * 10**9) -> AsyncIterator[World]:
    """Run a network without nodes; at its end, it ends all nodes that the test has started."""
    async with trio.open_nursery() as nursery:
        made = World(nursery, MemoryNetwork(Random(1)), HandClock(), load_text(rules).rules)
        made.clock.time = at
        yield made
        nursery.cancel_scope.cancel()
    assert made.bugs == []


def of(decisions: Sequence[Decision]) -> list[bool]:
    return [decision.allowed for decision in decisions]


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
    """Return a key that the ring of `names` assigns to `owner`; `number` selects one of them."""
    rule = adhoc_rule(limit)
    ring = ring_of(names)
    keys = (str(i) for i in range(1000))
    owned = (key for key in keys if ring.owner(shard_of(encode_key(rule.id, (key,)))) == owner)
    return next(islice(owned, number, None))
