"""Real nodes and real embedded clients on virtual time, over a network in memory.

Makes the hosts of a scenario and does to them what each fault says. The hosts run the code that
ships. At core level the members know each other from the start, and datagrams are not sealed.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from math import inf

from gossip import Record, Status
from node.config.access import Access
from node.config.settings import NodeSettings
from node.node import Node
from ringfence import runtime
from ringfence.client.cluster.cluster import Cluster, ClusterSettings
from ringfence.client.limiter import Limiter
from ringfence.errors import RingfenceError
from ringfence.rules import Rule, RuleSet
from ringfence.rules.loading.yaml_files import load_text
from ringfence.transport.interface import Address
from ringfence.wire import Hello, Role
from simulations.reporting.events import Events
from simulations.runtimes.virtual_time import HostClock
from simulations.scenarios.latency import Place
from simulations.scenarios.planted_errors import FaultyContainment
from simulations.scenarios.scenario import Scenario
from simulations.scenarios.seeds import stream
from simulations.world.membership_watch import MembershipWatch
from simulations.world.network import SimulatedNetwork
from simulations.world.plain_datagrams import PlainDatagrams

__all__ = ["Host", "World"]

_JITTER = 0.0001
_PORT = 7101
_PATIENCE = 0.1
"""Seconds after which clients ask the standby as well, as gateways do."""
_NOBODY = ("nobody", _PORT)
_SETTLE = 60.0
"""Seconds that the cluster may take to come up."""
_SEEDS = 8
"""Addresses of members that a node is started with."""
_VIEWERS = 9


@dataclass(slots=True)
class Host:
    """A machine that nodes live and die on."""

    name: str
    datacenter: str
    zone: str
    clock: HostClock
    node: Node | None = None
    life: runtime.CancelScope | None = None
    errors: FaultyContainment | None = None
    lives: int = 0
    port: int = _PORT
    is_seedless: bool = False
    """Whether whom it is told to join is nobody."""

    @property
    def is_damped(self) -> bool:
        """Whether its node stays out of the ring for a while, being accused too often."""
        return self.node is not None and self.node.is_damped

    @property
    def place(self) -> Place:
        """Where it stands."""
        return self.datacenter, self.zone

    @property
    def address(self) -> Address:
        """Where its node listens."""
        return self.name, self.port


@dataclass(slots=True)
class _Client:
    datacenter: str
    address: Address
    cluster: Cluster
    limiter: Limiter


class World:
    """The hosts of one run."""

    def __init__(
        self, scenario: Scenario, seed: int, events: Events, tasks: runtime.TaskGroup
    ) -> None:
        self.scenario = scenario
        self.rules: RuleSet = load_text(scenario.rules).rules
        self.hosts: dict[str, Host] = {}
        self.clients: list[_Client] = []
        self.bugs: list[Exception] = []
        self._past: Counter[str] = Counter()
        """Counters of lives that are over."""
        self.began = 0.0
        """When the load began, on trio's clock."""
        self._seed = seed
        self._events = events
        self._tasks = tasks
        self._datagrams = PlainDatagrams() if scenario.level == "core" else None
        self._network = SimulatedNetwork(stream(seed, "network"), scenario.network, jitter=_JITTER)
        for number in range(scenario.nodes):
            datacenter = f"dc{number % scenario.datacenters + 1}"
            zone = f"z{number // scenario.datacenters % scenario.zones + 1}"
            name = f"n{number + 1}"
            host = Host(name, datacenter, zone, HostClock(runtime.clock()))
            self.hosts[name] = host
            self._network.place(host.address, host.place)
        self.watch = MembershipWatch(self, () if scenario.is_blind else scenario.faults)
        if scenario.network.resets:
            tasks.start_soon(self._break_connections, scenario.network.resets)

    @property
    def now(self) -> float:
        """Seconds since the load began."""
        return runtime.current_time() - self.began

    def names(self) -> list[str]:
        """All hosts."""
        return list(self.hosts)

    def in_datacenter(self, datacenter: str) -> list[str]:
        """The hosts of a data center."""
        return [host.name for host in self.hosts.values() if host.datacenter == datacenter]

    def in_zone(self, zone: str) -> list[str]:
        """The hosts of a zone, in all data centers."""
        return [host.name for host in self.hosts.values() if host.zone == zone]

    @property
    def datagrams(self) -> int:
        """Datagrams that were sent so far."""
        return self._network.datagrams

    def nodes(self) -> list[Node]:
        """The nodes that run."""
        return [host.node for host in self.hosts.values() if host.node is not None]

    def running(self) -> list[Host]:
        """The hosts whose node runs."""
        return [host for host in self.hosts.values() if host.life is not None]

    # -- lives ---------------------------------------------------------------------------------

    async def come_up(self) -> None:
        """Start all nodes: at core level at once, else one after the other."""
        if self.scenario.level == "core":
            await self._found()
            return
        for name in self.hosts:
            await self.start(name)
        with runtime.move_on_after(_SETTLE) as patience:
            while not self.is_settled():
                await runtime.sleep(0.1)
        if patience.cancelled_caught:
            raise RuntimeError("the cluster did not come up")

    async def _found(self) -> None:
        """Start all nodes as members that know each other and hold the shards that they own."""
        nodes = [self._new_node(host, is_founder=True) for host in self.hosts.values()]
        records = [node.membership.me for node in nodes]
        for host, node in zip(self.hosts.values(), nodes, strict=True):
            await self._live(host, node, (), records)

    async def start(self, name: str) -> None:
        """Start a node, which joins those that run."""
        host = self.hosts[name]
        if host.node is None:
            seeds = [other.address for other in islice(self.running(), _SEEDS)]
            self.note(name, "starts")
            await self._live(host, self._new_node(host, is_founder=False), seeds, ())

    def _new_node(self, host: Host, *, is_founder: bool) -> Node:
        host.lives += 1
        host.errors = FaultyContainment(runtime.current_time, self.bugs.append)
        return Node(
            NodeSettings(
                name=host.name,
                listen=f"{host.name}:{host.port}",
                datacenter=host.datacenter,
                zone=host.zone,
            ),
            Access(cluster="ringfence", is_open=True),
            self.rules,
            clock=host.clock,
            random=stream(self._seed, "node", host.name, host.lives),
            least_parts=self.scenario.least_parts,
            containment=host.errors,
            is_founder=is_founder,
            datagrams=self._datagrams,
            on_change=self.watch.changed,
        )

    async def _live(
        self, host: Host, node: Node, seeds: Sequence[Address], founders: Sequence[Record]
    ) -> None:
        """Run a node on a host until it ends."""
        assert host.errors is not None
        transport = self._network.transport(
            host.address, on_bug=partial(host.errors.failed, "transport"), accept=node.accept
        )

        async def resolve() -> list[Address]:
            if host.is_seedless:
                return [_NOBODY]
            return [*seeds] or [other.address for other in self.running() if other is not host]

        async def live(task_status: runtime.TaskStatus[runtime.CancelScope]) -> None:
            with runtime.move_on_after(inf) as scope:
                try:
                    async with runtime.open_task_group() as tasks:
                        await tasks.start(transport.run)
                        task_status.started(scope)
                        await node.run(transport, resolve if seeds else None, founders=founders)
                except* RingfenceError as group:
                    self.note(host.name, f"ended: {group.exceptions[0]}")
                finally:
                    if host.node is node:
                        host.node = host.life = None
                        self.watch.ended(host.name)

        host.node = node
        host.life = await self._tasks.start(live)

    def crash(self, name: str) -> None:
        """End a node as a power failure would: its wire first."""
        host = self.hosts[name]
        if host.life is not None:
            self._remember(host)
            self.watch.crashed(host)
            self._network.crash(host.address)
            host.life.cancel()
            host.node = host.life = None
            self.watch.ended(name)
            self.note(name, "crashes")

    async def leave(self, name: str) -> None:
        """Have a node hand over and leave, then end it."""
        host = self.hosts[name]
        node, life = host.node, host.life
        if node is not None and life is not None:
            self.note(name, "leaves")
            await node.leave()
            self._remember(host)
            life.cancel()
            await runtime.sleep(0.01)  # until its address is free
            self.note(name, "has left")

    def pause(self, name: str, is_paused: bool) -> None:
        """Have a host stand still, or go on."""
        change = self._network.pause if is_paused else self._network.resume
        change(self.hosts[name].address)
        self.note(name, "stands still" if is_paused else "goes on")

    def plant_errors(self, name: str, count: int) -> None:
        """Have the next calls and tasks of a node meet an internal error."""
        errors = self.hosts[name].errors
        if errors is not None:
            errors.planted = count

    def set_busy(self, name: str, seconds: float) -> None:
        """Have a host work for so long on each message."""
        self._network.set_cost(self.hosts[name].address, seconds)

    def move(self, name: str) -> None:
        """Have a node that is down come back at another port."""
        host = self.hosts[name]
        if host.node is not None:
            return
        before, host.port = host.address, host.port + 1
        self._network.set_cost(before, 0.0)
        self._network.place(host.address, host.place)

    def lose_seeds(self, name: str, is_lost: bool) -> None:
        """Have a node find nobody at the addresses that it is given, or those that it should."""
        self.hosts[name].is_seedless = is_lost

    def lower_limits(self, name: str, part: float) -> None:
        """Have one node alone go by this part of every limit."""
        node = self.hosts[name].node
        if node is not None:
            node.change_rules(self.rules if part == 1 else _lowered(self.rules, part))

    def step_clock(self, name: str, seconds: float) -> None:
        """Set a host's clock."""
        self.hosts[name].clock.step(seconds)
        self.note(name, f"clock set by {seconds:g} s")

    def drift_clock(self, name: str, ppm: float) -> None:
        """Have a host's clock run fast or slow."""
        self.hosts[name].clock.drift(ppm)
        self.note(name, f"clock drifts by {ppm:g} ppm")

    # -- links ---------------------------------------------------------------------------------

    def each_link(
        self, some: Sequence[str], others: Sequence[str]
    ) -> list[tuple[Address, Address]]:
        """All links from some hosts to others."""
        return [
            (self.hosts[one].address, self.hosts[other].address)
            for one in some
            for other in others
            if one != other
        ]

    def _both_ways(
        self, some: Sequence[str], others: Sequence[str]
    ) -> list[tuple[Address, Address]]:
        links = self.each_link(some, others)
        return [*dict.fromkeys(way for one, other in links for way in ((one, other), (other, one)))]

    def cut(self, some: Sequence[str], others: Sequence[str], *, one_way: bool = False) -> None:
        """Carry nothing between them, or only back; clients stand beside the nodes of theirs."""
        change = self._network.cut_one_way if one_way else self._network.cut
        for one, other in [*self.each_link(some, others), *self._client_links(some, others)]:
            change(one, other)

    def heal(self, some: Sequence[str], others: Sequence[str]) -> None:
        """Undo `cut`."""
        for one, other in [*self.each_link(some, others), *self._client_links(some, others)]:
            self._network.heal(one, other)

    def set_loss(self, share: float, some: Sequence[str], others: Sequence[str]) -> None:
        """Lose this share of the datagrams between them."""
        for one, other in self.each_link(some, others):
            self._network.set_loss(one, other, max(share, self.scenario.network.loss))

    def set_repeats(self, share: float, some: Sequence[str], others: Sequence[str]) -> None:
        """Have this share of the datagrams between them come twice."""
        for one, other in self.each_link(some, others):
            self._network.set_repeats(one, other, max(share, self.scenario.network.repeats))

    def set_bursts(self, share: float, some: Sequence[str], others: Sequence[str]) -> None:
        """Lose this share of the datagrams between them in bursts."""
        for one, other in self._both_ways(some, others):
            self._network.set_bursts(one, other, share)

    def set_corrupt(self, share: float, some: Sequence[str], others: Sequence[str]) -> None:
        """Spoil this share of the datagrams between them."""
        for one, other in self._both_ways(some, others):
            self._network.set_corrupt(one, other, share)

    def set_replay(self, share: float, some: Sequence[str], others: Sequence[str]) -> None:
        """Have old datagrams come again, this many for each new one."""
        for one, other in self._both_ways(some, others):
            self._network.set_replay(one, other, share)

    def set_spikes(self, mean: float, some: Sequence[str], others: Sequence[str]) -> None:
        """Have everything between them take longer by chance, seconds in the mean."""
        for one, other in self.each_link(some, others):
            self._network.set_spikes(one, other, mean)

    def set_clog(self, is_on: bool, some: Sequence[str], others: Sequence[str]) -> None:
        """Hold everything between them, or let it go at once."""
        change = self._network.clog if is_on else self._network.unclog
        for one, other in self.each_link(some, others):
            change(one, other)

    def reset(self, some: Sequence[str], others: Sequence[str]) -> None:
        """End all connections between them."""
        for one, other in self.each_link(some, others):
            self._network.reset(one, other)

    def set_slow(self, extra: float, some: Sequence[str], others: Sequence[str]) -> None:
        """Have everything between them take so many seconds longer; 0 is as ever."""
        for one, other in self.each_link(some, others):
            self._network.set_extra_delay(one, other, extra)

    async def _break_connections(self, per_second: float) -> None:
        """Break connections between two hosts at random while the load lasts."""
        random = stream(self._seed, "resets")
        while True:
            await runtime.sleep(random.expovariate(per_second))
            addresses = [host.address for host in self.hosts.values()]
            one = random.choice([*addresses, *(client.address for client in self.clients)])
            other = random.choice(addresses)
            if self.began and self.now < self.scenario.seconds and one != other:
                self._network.reset(one, other)

    def _client_links(
        self, some: Sequence[str], others: Sequence[str]
    ) -> list[tuple[Address, Address]]:
        """The links from clients, each beside the first running node of its data center, that a
        cut between hosts cuts, too."""
        links: list[tuple[Address, Address]] = []
        for client in self.clients:
            beside = self._home_of(client)
            for here, there in ((some, others), (others, some)):
                if beside in here:
                    ways = [(client.address, self.hosts[name].address) for name in there]
                    links += ways if here is some else [way[::-1] for way in ways]
        return links

    def _home_of(self, client: _Client) -> str:
        names = [h.name for h in self.hosts.values() if h.datacenter == client.datacenter]
        return names[int(client.address[0].rsplit("-", 1)[1]) % len(names)]

    # -- clients -------------------------------------------------------------------------------

    async def connect(self, datacenter: str) -> None:
        """Start an embedded client in a data center."""
        number = len(self.clients)
        name = f"client-{number}"
        address = (name, 1)
        transport = self._network.transport(address, on_bug=self.bugs.append)
        near = [host for host in self.hosts.values() if host.datacenter == datacenter]
        random = stream(self._seed, "client", number)
        cluster = Cluster(
            transport,
            [host.address for host in near],
            Hello(Role.CLIENT, "app", b"", random.getrandbits(64)),
            ClusterSettings(datacenter=datacenter, use_leases=False, hedge_after=_PATIENCE),
            HostClock(runtime.clock()),
            random,
            None,
        )
        self._network.place(address, (datacenter, "z1"))
        await self._tasks.start(transport.run)
        await self._tasks.start(cluster.run)
        await cluster.wait_joined(10.0)
        limiter = Limiter(cluster, local_cache=cluster.local_cache)
        self.clients.append(_Client(datacenter, address, cluster, limiter))

    # -- what is seen --------------------------------------------------------------------------

    def note(self, who: str, what: str) -> None:
        """Add to the history."""
        self._events.add(runtime.current_time(), who, what)

    def is_settled(self) -> bool:
        """Whether all that run see each other and have the shards that are theirs."""
        names = {host.name for host in self.running() if not host.is_damped}
        for host in self.running():
            assert host.node is not None
            states = self.states(host)
            alive = {name for name, state in states.items() if state in ("alive", "suspect")}
            counters = host.node.stats(1).counters
            if alive != names or counters["held_shards"] != counters["owned_shards"]:
                return False
        return True

    def states(self, viewer: Host) -> dict[str, str]:
        """How one node sees all members."""
        assert viewer.node is not None
        records = viewer.node.membership.records
        return {name: _state_of(record) for name, record in records.items()}

    def views(self) -> list[dict[str, str]]:
        """How some of the nodes see all members: among a thousand, most see the same."""
        return [self.states(host) for host in self.running()[:_VIEWERS]]

    def staleness(self) -> list[tuple[str, tuple[str, int], dict[str, int]]]:
        """Per node that runs its data center, which life it is, and its counters."""
        if self.scenario.datacenters == 1:
            return []
        return [
            (host.datacenter, (host.name, host.lives), host.node.stats(1).counters)
            for host in self.running()
            if host.node is not None
        ]

    def counters(self) -> Counter[str]:
        """All counters, over all lives of all nodes."""
        found = Counter(self._past)
        for host in self.running():
            assert host.node is not None
            found.update(host.node.stats(1).counters)
        return found

    def _remember(self, host: Host) -> None:
        if host.node is not None:
            self._past.update(host.node.stats(1).counters)


def _state_of(record: Record) -> str:
    is_forwarding = record.forward_only and record.status in (Status.ALIVE, Status.SUSPECT)
    return "forwarding" if is_forwarding else record.status.name.lower()


def _lowered(rules: RuleSet, part: float) -> RuleSet:
    def lowered(rule: Rule) -> Rule:
        limit = rule.limit
        if limit is None:
            return rule
        return replace(rule, limit=replace(limit, amount=max(1, int(limit.amount * part))))

    return RuleSet(
        replace(
            domain,
            rows=tuple(lowered(row) if isinstance(row, Rule) else row for row in domain.rows),
        )
        for domain in rules.contents
    )
