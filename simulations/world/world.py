"""Simulated world: nodes and embedded clients on virtual time, over an in-memory network.

The world creates the hosts of a scenario and applies faults to them. The hosts run the shipped
code. At the level `core`, members know each other from the start and datagrams are not encrypted.
"""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import islice
from math import inf
from random import Random

from msgspec.structs import replace

from gossip import Record
from node.config.access import Access
from node.config.settings import NodeSettings
from node.node import Node
from ringfence import runtime
from ringfence.client.cluster.cluster import Cluster, ClusterSettings
from ringfence.client.limiter import Limiter
from ringfence.errors import RingfenceError
from ringfence.rules import Rule, RuleSet
from ringfence.rules.loading.yaml_files import load_text
from ringfence.settings.token_file import Scope, TokenEntry
from ringfence.transport.interface import Address
from ringfence.wire import Hello, Role, token_digest
from simulations.reporting.events import Events
from simulations.runtimes.virtual_time import HostClock, clock
from simulations.scenarios.faults.faulty_containment import FaultyContainment
from simulations.scenarios.scenario import Scenario
from simulations.scenarios.seeds import stream
from simulations.world.hosts import PORT, Client, Host, Hosts
from simulations.world.links import Links
from simulations.world.named_rules import NamedRules
from simulations.world.network import SimulatedNetwork
from simulations.world.plain_datagrams import PlainDatagrams
from simulations.world.watches.membership_watch import MembershipWatch
from simulations.world.watches.shard_watch import ShardWatch

__all__ = ["OPERATOR", "RESETTER", "World"]

_APP, _SECRET = "app", b"secret of the application"
"""Name and secret of the token of all clients."""
_OPEN_ACCESS = Access(cluster="ringfence", is_open=True)
_OPERATOR, _OPERATOR_SECRET = "operator", b"secret of the operator"
"""Name and secret of the token with which an operator reads the admin ports."""
_RESETTER, _RESETTER_SECRET = "resetter", b"secret of the resetter"
"""Name and secret of the token with which an operator resets counters."""
_ADMIN, _ADMIN_SECRET = "admin", b"secret of the admin"
"""Name and secret of the token with which an operator runs commands."""
_ACCESS = Access(
    cluster="ringfence",
    tokens={
        _APP: TokenEntry(token_digest(_SECRET), frozenset([Scope.CHECK])),
        _OPERATOR: TokenEntry(token_digest(_OPERATOR_SECRET), frozenset([Scope.OBSERVE])),
        _RESETTER: TokenEntry(
            token_digest(_RESETTER_SECRET), frozenset([Scope.CHECK, Scope.RESET])
        ),
        _ADMIN: TokenEntry(token_digest(_ADMIN_SECRET), frozenset(Scope)),
    },
)
"""Access of clients whose tokens lack the scope `refund`."""
OPERATOR = f"{_OPERATOR}.{_OPERATOR_SECRET.hex()}"
"""Token with which an operator reads the admin ports."""
RESETTER = _RESETTER
"""Name of the token of `World.connect_operator`."""
_JITTER = 0.0001
_HEDGE_AFTER = 0.1
"""Seconds after which clients also ask the standby, as gateways do."""
_NO_HOST = ("no-host", PORT)
_SETTLE = 60.0
"""Time-out of the cluster's start, in seconds."""
_SEEDS = 8
"""Number of seed addresses of a node."""


class World:
    """Simulated world of one run: hosts, clients and network."""

    def __init__(
        self, scenario: Scenario, seed: int, events: Events, tasks: runtime.TaskGroup
    ) -> None:
        self.scenario = scenario
        self.rules: RuleSet = load_text(scenario.rules).rules
        """Rules of the scenario."""
        self.named_rules = NamedRules(self.rules, scenario.loads)
        self.bugs: list[Exception] = []
        self._past: Counter[str] = Counter()
        """Counters of nodes that have ended."""
        self._access = _ACCESS if scenario.bounded_refunds else _OPEN_ACCESS
        """Keys and tokens of all nodes."""
        self._seed = seed
        self._tasks = tasks
        self._datagrams = PlainDatagrams() if scenario.level == "core" else None
        self._network = SimulatedNetwork(stream(seed, "network"), scenario.network, jitter=_JITTER)
        self.hosts = Hosts(scenario, events, clock())
        for host in self.hosts.by_name.values():
            self._network.place(host.address, host.place)
        self.links = Links(self.hosts, self._network, scenario.network)
        self.shard_watch = ShardWatch(clock())
        self.watch = MembershipWatch(self.hosts, () if scenario.is_blind else scenario.faults)
        if scenario.network.resets:
            tasks.start_soon(
                self.links.break_connections,
                scenario.network.resets,
                scenario.seconds,
                stream(seed, "resets"),
            )

    @property
    def datagrams(self) -> int:
        """Return the number of datagrams that were sent so far."""
        return self._network.datagrams

    @property
    def longest_queue_s(self) -> float:
        """Return the longest time that busy hosts have held one message up."""
        return self._network.longest_queue_s

    # -- nodes ---------------------------------------------------------------------------------

    async def start_cluster(self) -> None:
        """Start all nodes: together when the scenario has the level `core`, otherwise one after
        another."""
        if self.scenario.level == "core" and self.scenario.nodes > 1:
            await self._form_cluster()
            return
        for name in self.hosts.names():
            await self.start(name)
        with runtime.move_on_after(_SETTLE) as scope:
            while not self.hosts.is_settled():
                await runtime.sleep(0.1)
        if scope.cancelled_caught:
            raise RuntimeError("the cluster did not start in time")

    async def _form_cluster(self) -> None:
        """Start all nodes with a complete member table and with the shards that they own."""
        nodes = [self._new_node(host, is_founder=True) for host in self.hosts.by_name.values()]
        records = [node.membership.me for node in nodes]
        for host, node in zip(self.hosts.by_name.values(), nodes, strict=True):
            await self._run_node(host, node, (), records)

    async def start(self, name: str) -> None:
        """Start a node, which joins the running nodes of the cluster."""
        host = self.hosts.by_name[name]
        if host.node is None:
            seeds = [other.address for other in islice(self.hosts.running(), _SEEDS)]
            self.hosts.note(name, "starts")
            await self._run_node(host, self._new_node(host, is_founder=False), seeds, ())

    def _new_node(self, host: Host, *, is_founder: bool) -> Node:
        host.starts += 1
        host.errors = FaultyContainment(runtime.current_time, self.bugs.append)
        return Node(
            NodeSettings(
                name=host.name,
                listen=f"{host.name}:{host.port}",
                datacenter=host.datacenter,
                zone=host.zone,
            ),
            self._access,
            self._rules_of(host),
            clock=host.clock,
            random=stream(self._seed, "node", host.name, host.starts),
            least_parts=self.scenario.least_parts,
            containment=host.errors,
            is_founder=is_founder,
            datagrams=self._datagrams,
            on_change=self.watch.changed,
            on_transition=self.shard_watch.observer_of(host.name),
        )

    async def _run_node(
        self, host: Host, node: Node, seeds: Sequence[Address], founders: Sequence[Record]
    ) -> None:
        """Run a node on a host until the node ends."""
        assert host.errors is not None
        transport = self._network.transport(
            host.address, on_bug=partial(host.errors.failed, "transport"), accept=node.accept
        )

        async def resolve() -> list[Address]:
            if host.is_seedless:
                return [_NO_HOST]
            return [*seeds] or [
                other.address for other in self.hosts.running() if other is not host
            ]

        async def run_until_ended(task_status: runtime.TaskStatus[runtime.CancelScope]) -> None:
            with runtime.move_on_after(inf) as scope:
                try:
                    async with runtime.open_task_group() as tasks:
                        await tasks.start(transport.run)
                        task_status.started(scope)
                        await node.run(transport, resolve if seeds else None, founders=founders)
                except* RingfenceError as group:
                    self.hosts.note(host.name, f"ended: {group.exceptions[0]}")
                finally:
                    if host.node is node:
                        host.node = host.scope = None
                        self._node_ended(host.name)

        host.node = node
        host.scope = await self._tasks.start(run_until_ended)

    def crash(self, name: str) -> None:
        """End a node immediately, as a power failure would; its network stops first."""
        host = self.hosts.by_name[name]
        if host.scope is not None:
            self._remember(host)
            self.watch.crashed(host)
            self._network.crash(host.address)
            host.scope.cancel()
            host.node = host.scope = None
            self._node_ended(name)
            self.hosts.note(name, "crashes")

    def _node_ended(self, name: str) -> None:
        self.watch.ended(name)
        self.shard_watch.ended(name)

    async def leave(self, name: str) -> None:
        """Make a node transfer its shards and leave the cluster, then end it."""
        host = self.hosts.by_name[name]
        node, scope = host.node, host.scope
        if node is not None and scope is not None:
            self.hosts.note(name, "leaves")
            await node.leave()
            self._remember(host)
            scope.cancel()
            await runtime.sleep(0.01)  # Wait until the address is free.
            self.hosts.note(name, "has left")

    def pause(self, name: str, is_paused: bool) -> None:
        """Suspend or resume all processes of a host."""
        change = self._network.pause if is_paused else self._network.resume
        change(self.hosts.by_name[name].address)
        self.hosts.note(name, "stands still" if is_paused else "goes on")

    def inject_errors(self, name: str, count: int) -> None:
        """Raise an internal error in the next calls and tasks of a node."""
        errors = self.hosts.by_name[name].errors
        if errors is not None:
            errors.errors_to_raise = count

    def set_busy(self, name: str, seconds: float) -> None:
        """Set the processing time of each message on a host."""
        self._network.set_cost(self.hosts.by_name[name].address, seconds)

    def move(self, name: str) -> None:
        """Change the port that the next node of a stopped host will use."""
        host = self.hosts.by_name[name]
        if host.node is not None:
            return
        before, host.port = host.address, host.port + 1
        self._network.set_cost(before, 0.0)
        self._network.place(host.address, host.place)

    def lose_seeds(self, name: str, is_lost: bool) -> None:
        """Give a node wrong or correct seed addresses for its next start."""
        self.hosts.by_name[name].is_seedless = is_lost

    def lower_limits(self, name: str, part: float) -> None:
        """Multiply every limit of one node by a factor below 1; 1 restores the limits."""
        host = self.hosts.by_name[name]
        host.limits_part = part
        if host.node is not None:
            host.node.change_rules(self._rules_of(host))

    def change_rules(self, part: float) -> None:
        """Multiply every limit of the rule file by a factor, on all nodes; 1 restores the file."""
        self.named_rules.in_force = _scaled(self.rules, part)
        for host in self.hosts.running():
            assert host.node is not None
            host.node.change_rules(self._rules_of(host))

    def change_access(self, host: Host, keys: tuple[bytes, ...], without: str = "") -> int:
        """Change the cluster keys of a node, and of nodes that start later; remove a token.

        Returns the number of connections of the node that ended.
        """
        tokens = {name: entry for name, entry in _ACCESS.tokens.items() if name != without}
        self._access = replace(self._access, cluster_keys=keys, tokens=tokens)
        assert host.node is not None
        return host.node.change_access(self._access)

    def _rules_of(self, host: Host) -> RuleSet:
        return _scaled(self.named_rules.in_force, host.limits_part)

    def step_clock(self, name: str, seconds: float) -> None:
        """Change the clock of a host by a number of seconds."""
        self.hosts.by_name[name].clock.step(seconds)
        self.hosts.note(name, f"clock set by {seconds:g} s")

    def drift_clock(self, name: str, ppm: float) -> None:
        """Make the clock of a host drift, in parts per million."""
        self.hosts.by_name[name].clock.drift(ppm)
        self.hosts.note(name, f"clock drifts by {ppm:g} ppm")

    # -- clients -------------------------------------------------------------------------------

    async def connect(self, datacenter: str) -> None:
        """Start an application with an embedded client in a data center, for the loads."""
        number = len(self.hosts.clients)
        random = stream(self._seed, "client", number)
        settings, name = _settings(datacenter), f"client-{number}"
        client = await self._connect(name, settings, (_APP, _SECRET), random)
        self.hosts.clients.append(client)

    async def connect_borrower(self, datacenter: str, number: int) -> Client:
        """Start a client that may borrow units of limits, besides those of the loads."""
        name, random = f"borrower-{number}", stream(self._seed, "borrower", number)
        settings = _settings(datacenter, use_leases=True)
        return await self._connect(name, settings, (_APP, _SECRET), random)

    async def connect_operator(self, datacenter: str) -> Client:
        """Start a client that may reset counters."""
        token = _RESETTER, _RESETTER_SECRET
        random = stream(self._seed, "operator")
        return await self._connect("operator", _settings(datacenter), token, random)

    async def connect_command(self, at: Host, *, ask_owners: bool) -> Client:
        """Start the client of an operator's commands, which has the address of one node."""
        name = "owner-command" if ask_owners else "command"
        settings = ClusterSettings(datacenter=at.datacenter, ask_owners=ask_owners)
        token = _ADMIN, _ADMIN_SECRET
        return await self._connect(name, settings, token, stream(self._seed, name), at)

    def disconnect(self, client: Client) -> None:
        """Cut a client off from the network, as if its process was killed."""
        self._network.crash(client.address)

    async def _connect(
        self,
        name: str,
        settings: ClusterSettings,
        token: tuple[str, bytes],
        random: Random,
        at: Host | None = None,
    ) -> Client:
        """Start a client; it has the address of the node of a host, or all of its data center."""
        address, datacenter = (name, 1), settings.datacenter
        assert datacenter is not None
        transport = self._network.transport(address, on_bug=self.bugs.append)
        near = [host for host in self.hosts.by_name.values() if host.datacenter == datacenter]
        cluster = Cluster(
            transport,
            [host.address for host in near] if at is None else [at.address],
            Hello(Role.CLIENT, *token, random.getrandbits(64)),
            settings,
            HostClock(clock()),
            random,
            None,
        )
        self._network.place(address, (datacenter, "z1"))
        await self._tasks.start(transport.run)
        await self._tasks.start(cluster.run)
        await cluster.wait_joined(10.0)
        limiter = Limiter(cluster, local_cache=cluster.local_cache)
        return Client(datacenter, address, cluster, limiter)

    # -- observation --------------------------------------------------------------------------

    def counters(self) -> Counter[str]:
        """Return the metric counters, summed over all nodes and their earlier processes."""
        found = Counter(self._past)
        for host in self.hosts.running():
            assert host.node is not None
            found.update(host.node.queries.stats(1).counters)
        return found

    def _remember(self, host: Host) -> None:
        if host.node is not None:
            self._past.update(host.node.queries.stats(1).counters)


def _settings(datacenter: str, *, use_leases: bool = False) -> ClusterSettings:
    return ClusterSettings(datacenter, use_leases=use_leases, hedge_after=_HEDGE_AFTER)


def _scaled(rules: RuleSet, factor: float) -> RuleSet:
    """Return the rules with every limit multiplied by a factor, and at least 1."""

    def scaled(rule: Rule) -> Rule:
        limit = rule.limit
        if limit is None:
            return rule
        return replace(
            rule, limit=dataclasses.replace(limit, amount=max(1, int(limit.amount * factor)))
        )

    if factor == 1:
        return rules
    return RuleSet(
        replace(
            domain,
            rows=tuple(scaled(row) if isinstance(row, Rule) else row for row in domain.rows),
        )
        for domain in rules.contents
    )
