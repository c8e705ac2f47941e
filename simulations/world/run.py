"""Run of a scenario, from its seed to its outcome: start, load, faults, and check of the
invariants.

The cluster starts, then the load, and faults begin and end. After a period without faults, the run
reads the counters and checks the invariants.
"""

from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import combinations
from time import perf_counter

from msgspec.structs import replace

from hashring import SHARDS, Ring, View, shard_of
from ringfence import runtime
from ringfence.wire import Source
from simulations.judging.allowed_loss import emptied, hosts_of, overwhelmed
from simulations.judging.broken_connections import BrokenConnections, Deciders
from simulations.judging.coverage import count_marks
from simulations.judging.excuses import Excuses
from simulations.judging.invariants import MAX_FAILURES, Final, Invariants
from simulations.judging.pairs import pairs_met
from simulations.reporting.events import Events
from simulations.reporting.figures import figures_of
from simulations.reporting.outcome import Outcome
from simulations.runtimes.virtual_time import run_at_level
from simulations.scenarios.faults.arguments import check
from simulations.scenarios.faults.injection import VERBS, apply
from simulations.scenarios.generate_rules import LENT_RULE
from simulations.scenarios.scenario import Fault, Scenario
from simulations.scenarios.seeds import stream
from simulations.world.hosts import Client
from simulations.world.key_histories import key_histories
from simulations.world.load_runner import LoadRunner
from simulations.world.observer import Observer
from simulations.world.operating.admin_views import wrong_views
from simulations.world.operating.commands import wrong_commands
from simulations.world.operating.key_rotation import wrong_rotation
from simulations.world.operating.lending import Lending
from simulations.world.operating.operator import Operator
from simulations.world.operating.paused_owner import wrong_after_pause
from simulations.world.operating.replicas import wrong_replicas
from simulations.world.operating.statistics import Tally, wrong_statistics
from simulations.world.over_limit import worst_excess
from simulations.world.watches.membership_watch import detection_bound
from simulations.world.watches.settling_watch import SettlingWatch
from simulations.world.world import OPERATOR, World

__all__ = ["CLIENTS_PER_DATACENTER", "Progress", "simulate"]

CLIENTS_PER_DATACENTER = 2
_MAX_KEYS_READ = 300
_MOST_AWAY = 3
"""Nodes that may be away from a cluster at once, for the owners that a key may have."""
_MOST_PORTS = 20
"""Nodes of a cluster above which no operator reads their admin ports, to save time."""
_REPLICATED_S = 3.0
"""Seconds after the last check until its counter is replicated, also in other data centers."""
_CACHED_S = 1.5
"""Seconds until no cached view of an admin port is left."""
_PAUSED = 0.3
"""Share of the runs with borrowers in which the owner of a key is suspended at the end."""
_ROTATED = 0.3
"""Share of the runs with tokens in which the cluster key changes at the end."""
_COMMANDED = 0.3
"""Share of the runs with borrowers in which an operator runs commands at the end."""
_MAY_STAY = ("crash", "leave", "limits", "rules")
"""Faults that may last longer than the load, because the cluster recovers in spite of them."""
_RETURN_S = 10.0
"""Seconds until a member that returns to the ring has its shards."""
_ATTEMPTS = 3
"""Attempts of each check at the end of a run; an idle client may first find several dead
connections."""

Progress = Callable[[float], None]
"""Callback that receives the completed part of the run, from 0 to 1."""


def simulate(
    scenario: Scenario, seed: int, command: str, progress: Progress = lambda part: None
) -> Outcome:
    """Run a scenario and check its invariants. Raises `ValueError` for unknown faults and loads."""
    for fault in scenario.faults:
        check(fault)
    scenario = replace(scenario, faults=tuple(_ended(scenario)))
    outcome = Outcome(scenario, seed, command, faults=scenario.faults)
    began = perf_counter()
    run_at_level(scenario.level, _Run(scenario, seed, outcome, progress).run, seed)
    outcome.real_s = perf_counter() - began
    return outcome


def _ended(scenario: Scenario) -> Iterator[Fault]:
    """Return the faults of a scenario; those that outlast the load end with it."""
    for fault in scenario.faults:
        if fault.verb in _MAY_STAY or VERBS[fault.verb].end is None:
            yield fault
        else:
            end = max(fault.at, scenario.seconds)
            yield replace(fault, until=end if fault.until is None else min(fault.until, end))


class _Run:
    def __init__(self, scenario: Scenario, seed: int, outcome: Outcome, progress: Progress) -> None:
        self._scenario = scenario
        self._seed = seed
        self._outcome = outcome
        self._progress = progress
        self._events = Events()
        self._closing_clients: tuple[Client, Client] | None = None
        """Clients of the lending: a borrower, and the operator who resets counters."""

    async def run(self) -> None:
        async with runtime.open_task_group() as tasks:
            self._world = world = World(self._scenario, self._seed, self._events, tasks)
            self._rules = world.named_rules
            await self._start_cluster()
            hosts, scenario = world.hosts, self._scenario
            hosts.began = runtime.current_time()
            runner = LoadRunner(scenario, self._seed, hosts, self._rules)
            self._ledger, self._held = runner.ledger, runner.held
            observer = Observer(hosts, self._ledger)
            self._settling = SettlingWatch(hosts)
            self._operator = Operator(hosts, OPERATOR)
            if not (scenario.faults or scenario.network.resets):
                self._start_counting(runner)
            async with runtime.open_task_group() as load:
                load.start_soon(observer.run)
                load.start_soon(world.watch.run)
                load.start_soon(self._settling.run)
                load.start_soon(runner.run, 0.0, scenario.seconds)
                for fault in scenario.faults:
                    load.start_soon(self._fault, fault)
                await runtime.sleep(scenario.seconds)
                await self._wait_until_calm()
                if scenario.calm_load:
                    in_ring = hosts.in_ring()
                    self._start_counting(runner)
                    load.start_soon(runner.run, scenario.calm_load_from, scenario.calm_load)
                    await runtime.sleep(hosts.began + scenario.read_at - runtime.current_time())
                    statistics = await self._wrong_statistics(runner)
                    while in_ring != (now := hosts.in_ring()):
                        in_ring = now  # Flap damping ended; the ring has just changed.
                        await runtime.sleep(_RETURN_S)
                    await self._wait_for_refutations()
                else:
                    statistics = await self._wrong_statistics(runner)
                # The reading peeks at all keys, which sends their counters to the standbys again.
                replicas = self._wrong_replicas(hosts.now - _REPLICATED_S)
                final = await self._read_final_state()
                final.statistics = statistics
                if not final.problems:
                    await runtime.sleep(_REPLICATED_S)
                    final.replicas = replicas or self._wrong_replicas(hosts.now)
                    final.lending = await self._wrong_lending()
                    final.views = await self._wrong_views()
                    final.paused = await self._wrong_after_pause()
                    final.rotation = await self._wrong_rotation()
                    final.commands = await self._wrong_commands()
                final.bugs = [f"{type(bug).__name__}: {bug}" for bug in world.bugs]
                load.cancel_scope.cancel()
            self._outcome.pairs = pairs_met(runner.usage, scenario)
            self._finish(observer, final)
            tasks.cancel_scope.cancel()

    def _start_counting(self, runner: LoadRunner) -> None:
        """Make the nodes and the load runner count all decisions from now on."""
        if len(self._world.hosts.names()) <= _MOST_PORTS and not self._operator.names:
            self._operator.open_ports()
            runner.tally = Tally()

    async def _wrong_statistics(self, runner: LoadRunner) -> list[str]:
        """Compare the statistics of nodes with the answers of clients, if no fault was active."""
        if runner.tally is None:
            return []
        published = await self._operator.read_statistics()
        return wrong_statistics(runner.tally, published, self._rules.repeated)

    async def _wrong_lending(self) -> list[str]:
        """Let clients borrow units of the rule for it, if the file has it."""
        world, hosts = self._world, self._world.hosts
        rules = {rule.path[-1][0]: rule for rule in world.rules.rules()}
        rule = rules.get(LENT_RULE)
        if rule is None or rule.limit is None or not self._operator.names:
            return []
        random = stream(self._seed, "lending")
        where = random.choice(hosts.clients).datacenter
        first, second = [await world.connect_borrower(where, number) for number in range(2)]
        operator = await world.connect_operator(where)
        lending = Lending(
            *((first, second), operator, rule.limit.amount, random),
            *(self._operator.read_statistics, world.disconnect),
        )
        self._closing_clients = second, operator
        return await lending.run(is_bounded=self._scenario.bounded_refunds)

    async def _wrong_after_pause(self) -> list[str]:
        """Suspend a node of some clusters while clients use its keys."""
        random = stream(self._seed, "paused")
        if self._closing_clients is None or random.random() >= _PAUSED:
            return []
        return await wrong_after_pause(
            *(self._world, *self._closing_clients, random),
            may_refund=not self._scenario.bounded_refunds,
        )

    async def _wrong_rotation(self) -> list[str]:
        """Rotate the keys of some clusters with tokens, after clients have borrowed units."""
        if self._closing_clients is None or not self._scenario.bounded_refunds:
            return []
        random = stream(self._seed, "rotation")
        if random.random() >= _ROTATED:
            return []
        return await wrong_rotation(self._world, *self._closing_clients, random)

    async def _wrong_commands(self) -> list[str]:
        """Run the commands of an operator against some clusters."""
        random = stream(self._seed, "commands")
        if self._closing_clients is None or random.random() >= _COMMANDED:
            return []
        return await wrong_commands(self._world, self._ledger, random)

    def _wrong_replicas(self, used_until: float) -> list[str]:
        """Compare the counters that were not used after an instant with their replicas."""
        scenario, watch = self._scenario, self._settling
        unsafe = overwhelmed(scenario, failures=MAX_FAILURES) | emptied(scenario)
        excuses = Excuses(scenario, watch.disturbances, holders=watch.holders)
        return wrong_replicas(
            *(self._world.hosts, self._rules, self._ledger, used_until), unsafe, excuses
        )

    async def _wrong_views(self) -> list[str]:
        """Compare the views of the admin ports with the cluster."""
        hosts, operator = self._world.hosts, self._operator
        if len(hosts.names()) > _MOST_PORTS or not hosts.running():
            return []
        if not operator.names:
            operator.open_ports()
        await runtime.sleep(_CACHED_S)
        return await wrong_views(operator, hosts, self._rules, self._ledger, self._scenario)

    async def _start_cluster(self) -> None:
        await self._world.start_cluster()
        for number in range(self._scenario.datacenters):
            for _ in range(CLIENTS_PER_DATACENTER):
                await self._world.connect(f"dc{number + 1}")

    async def _fault(self, fault: Fault) -> None:
        hosts = self._world.hosts
        await _sleep_until(hosts.began + fault.at)
        hosts.note("fault", f"begins: {fault}")
        await apply(self._world, fault, is_end=False)
        if fault.until is not None:
            await _sleep_until(hosts.began + fault.until)
            hosts.note("fault", f"ends: {fault}")
            await apply(self._world, fault, is_end=True)

    async def _wait_until_calm(self) -> None:
        """Wait until the effects of all faults are over."""
        steps = 20
        for step in range(steps):
            self._progress((self._scenario.seconds + step) / (self._scenario.seconds + steps))
            await runtime.sleep(self._scenario.calm / steps)

    async def _wait_for_refutations(self) -> None:
        """Wait until no member is suspected, at most for the detection bound.

        A network that loses datagrams causes suspicions at any time.
        """
        hosts = self._world.hosts
        until = runtime.current_time() + detection_bound(len(hosts.names()))
        while runtime.current_time() < until and hosts.has_suspicions():
            await runtime.sleep(1.0)

    async def _read_final_state(self) -> Final:
        world, final = self._world, Final(read_from=self._world.hosts.now)
        hosts = world.hosts
        expected = hosts.in_ring()
        for host in hosts.running():
            seen = {name for name, state in hosts.states(host).items() if state == "alive"}
            if seen != expected:
                missing, ghosts = sorted(expected - seen)[:5], sorted(seen - expected)[:5]
                final.problems.append(f"{host.name} misses {missing} and believes in {ghosts}")
        if len({node.membership.digest for node in hosts.nodes()}) > 1:
            final.problems.append("views differ")
        if not final.problems and not hosts.is_settled():
            final.problems.append("shards are not on their owners")
        for datacenter in sorted({client.datacenter for client in hosts.clients}):
            final.problems += self._wrong_holders(datacenter)
            client = next(each for each in hosts.clients if each.datacenter == datacenter)
            for rule, keys in self._keys():
                for key in keys[:_MAX_KEYS_READ]:
                    for _ in range(_ATTEMPTS):
                        decision = await self._rules.peek(client.limiter, rule, key)
                        if decision.source in (Source.OWNER, Source.STANDBY):
                            final.used[datacenter, rule, key] = self._units_used(
                                datacenter, rule, key
                            )
                            break
                    else:
                        final.problems.append(f"no node in {datacenter} decides {rule}={key}")
        final.broken = self._read_broken_connections()
        final.longest_queue_s = world.longest_queue_s
        final.disturbances, final.holders = self._settling.disturbances, self._settling.holders
        return final

    def _read_broken_connections(self) -> BrokenConnections:
        """Return the breaks of connections, with owner and standby of each key."""
        hosts, latency = self._world.hosts, self._scenario.network.latency
        datacenters = {host.name: host.datacenter for host in hosts.by_name.values()}
        view = hosts.nodes()[0].cluster.view if hosts.nodes() else View.of(())
        rings_of = cache(partial(self._possible_rings, view))
        return BrokenConnections(
            self._world.links.resets, datacenters, partial(self._deciders_of, rings_of), latency
        )

    def _deciders_of(
        self, rings_of: Callable[[str], list[Ring]], datacenter: str, rule: str, key: str
    ) -> set[Deciders]:
        """Return owner and standby of a key, now and while some nodes had left the cluster."""
        match = self._rules.match(rule, key)
        if match is None:
            return set()
        shard = shard_of(match.key)
        rings = rings_of(match.rule.home if match.rule.scope == "home" else datacenter)
        return {Deciders(ring.owner(shard), ring.standby(shard)) for ring in rings}

    def _possible_rings(self, view: View, datacenter: str) -> list[Ring]:
        """Return the ring of a data center, and its rings while some nodes had left the cluster."""
        ring = view.ring(datacenter)
        leaves = [fault for fault in self._scenario.faults if fault.verb in ("leave", "crash")]
        hosts = sorted({name for fault in leaves for name in hosts_of(fault, self._scenario)})
        rings = [
            Ring.of([each for each in ring.members if each.name not in away], ring)
            for count in range(min(len(hosts), _MOST_AWAY) + 1)
            for away in combinations(hosts, count)
        ]
        return [each for each in rings if each.members]

    def _units_used(self, datacenter: str, rule: str, key: str) -> int:
        """Return the units that the owner of a key counts, including those above the limit."""
        match = self._rules.match(rule, key)
        if match is None:
            return 0
        where = match.rule.home if match.rule.scope == "home" else datacenter
        nodes = [host.node for host in self._world.hosts.running() if host.datacenter == where]
        counts = [node.queries.used(match.key) for node in nodes if node is not None]
        return max([units for units in counts if units is not None], default=0)

    def _keys(self) -> list[tuple[str, list[str]]]:
        """Return the keys that clients checked, by rule."""
        found = [(rule, self._ledger.keys(rule)) for rule in self._rules.names]
        return found + [(rule, self._held.keys(rule)) for rule in self._held.rules()]

    def _wrong_holders(self, datacenter: str) -> list[str]:
        """Report shards that two nodes count, and shards that no node counts."""
        held = [
            host.node.queries.held_map()
            for host in self._world.hosts.running()
            if host.datacenter == datacenter and host.node is not None
        ]
        holders = sum(int.from_bytes(each, "little") for each in held).to_bytes(SHARDS, "little")
        missing = holders.count(0)
        twice = SHARDS - missing - holders.count(1)
        if missing == SHARDS:
            return []
        return [f"{twice} shards of {datacenter} are held twice, {missing} by no node"] * bool(
            twice or missing
        )

    def _finish(self, observer: Observer, final: Final) -> None:
        outcome, world = self._outcome, self._world
        hosts = world.hosts
        counters = world.counters()
        rules = self._rules.limited()
        late_s = observer.stalest_ms / 1000
        invariants = Invariants(rules, self._scenario, late_s, hosts.began)
        outcome.violations = [*world.watch.violations]
        outcome.violations += invariants.violations(self._ledger, final, hosts.now)
        held = {rule.path[-1][0]: rule for rule in world.rules.rules()}
        outcome.violations += invariants.slot_violations(self._held, held, final, hosts.now)
        outcome.virtual_s = runtime.current_time()
        outcome.event_hash = self._events.digest
        outcome.judged = invariants.judged
        outcome.marks = count_marks(counters)
        outcome.reached = world.shard_watch.reached() | {
            n for n, count in counters.items() if count
        }
        worst = worst_excess(self._ledger, self._rules.rule)
        outcome.histories = key_histories(
            *(outcome.violations, self._ledger, self._rules, hosts),
            *(world.shard_watch, invariants, worst),
        )
        outcome.series = observer.series(rules, invariants)
        outcome.figures = figures_of(self._ledger, invariants, worst.units) | {
            "staleness_worst_ms": observer.stalest_ms,
            "events": self._events.count,
            "deaths": counters["gossip_deaths"],
            "false_deaths": world.watch.false_deaths,
            "detection_worst_s": max(world.watch.detections, default=0.0),
            "detection_bound_s": detection_bound(len(hosts.in_datacenter("dc1"))),
            "converged_at_s": world.watch.converged_at,
            "datagrams_per_node_s": world.datagrams / len(hosts.names()) / hosts.now,
            "pending_most": world.watch.most_pending,
            "judged_exactly": invariants.judged.share,
        }


async def _sleep_until(when: float) -> None:
    await runtime.sleep(when - runtime.current_time())
